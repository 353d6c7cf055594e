"""The servers that a sink sends to."""

from typing import Annotated

from pydantic import AfterValidator, Field

from millrace_server.agent.setting_types import ServerAddress


def _check_unique(endpoints: list[str]) -> list[str]:
    if len(set(endpoints)) != len(endpoints):
        raise ValueError("lists a server twice; list each one once")
    return endpoints


Endpoints = Annotated[list[ServerAddress], Field(min_length=1), AfterValidator(_check_unique)]
"""Several servers, in order. A name that stands for several of them in turn breaks what `endpoints` promises."""
