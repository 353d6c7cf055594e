"""Interceptors, which change or drop events between a source and its channels."""

from typing import Annotated

from pydantic import Field

from millrace_server.agent.interceptors.dedupe import DedupeConfig
from millrace_server.agent.interceptors.headers import (
    HostConfig,
    RemoveHeaderConfig,
    StaticConfig,
    TimestampConfig,
    UuidConfig,
)
from millrace_server.agent.interceptors.interceptor import CustomInterceptorConfig
from millrace_server.agent.interceptors.regex_extractor import RegexExtractorConfig
from millrace_server.agent.interceptors.regexes import RegexFilterConfig, SearchReplaceConfig
from millrace_server.agent.interceptors.sample import SampleConfig
from millrace_server.agent.interceptors.throttle import ThrottleConfig

AnyInterceptorConfig = Annotated[
    TimestampConfig
    | HostConfig
    | StaticConfig
    | UuidConfig
    | RemoveHeaderConfig
    | SearchReplaceConfig
    | RegexFilterConfig
    | RegexExtractorConfig
    | SampleConfig
    | ThrottleConfig
    | DedupeConfig
    | CustomInterceptorConfig,
    Field(discriminator="type"),
]
"""An interceptor's table; `type` selects the class."""
