"""All interceptors that a configuration can name."""

from typing import Annotated

from pydantic import Field

from millrace_server.agent.interceptors.custom import CustomInterceptorConfig
from millrace_server.agent.interceptors.host import HostConfig
from millrace_server.agent.interceptors.regex_extractor import RegexExtractorConfig
from millrace_server.agent.interceptors.regex_filter import RegexFilterConfig
from millrace_server.agent.interceptors.remove_header import RemoveHeaderConfig
from millrace_server.agent.interceptors.search_replace import SearchReplaceConfig
from millrace_server.agent.interceptors.static import StaticConfig
from millrace_server.agent.interceptors.timestamp import TimestampConfig
from millrace_server.agent.interceptors.uuid import UuidConfig

AnyInterceptorConfig = Annotated[
    TimestampConfig
    | HostConfig
    | StaticConfig
    | UuidConfig
    | RemoveHeaderConfig
    | SearchReplaceConfig
    | RegexFilterConfig
    | RegexExtractorConfig
    | CustomInterceptorConfig,
    Field(discriminator="type"),
]
"""An interceptor's table, told apart by its `type`."""
