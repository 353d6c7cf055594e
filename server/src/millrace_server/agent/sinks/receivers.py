"""Settings of sinks that connect to servers: which ones, and with what certificate."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo, field_validator

from millrace_server.agent.setting_types import ServerAddress
from millrace_server.files import NamedPath


def _check_unique(endpoints: list[str]) -> list[str]:
    if len(set(endpoints)) != len(endpoints):
        raise ValueError("names a server twice; each may come once")
    return endpoints


Endpoint = ServerAddress
"""`host:port` of one server. A name that stands for several servers in turn breaks what `endpoints` promises."""

Endpoints = Annotated[list[Endpoint], Field(min_length=1), AfterValidator(_check_unique)]
"""Several servers, in order."""


class ClientCertificateConfig(BaseModel, frozen=True, extra="forbid"):
    """The certificate of a sink."""

    certificate: NamedPath | None = None
    """File of the sink's own certificate, followed by the intermediate ones."""

    private_key: NamedPath | None = Field(None, validate_default=True)
    """File of its key, without a password."""

    @field_validator("private_key")
    @classmethod
    def _check_pair(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if "certificate" in info.data and (key is None) != (info.data["certificate"] is None):
            raise ValueError("certificate and private_key come together, and one of them is missing")
        return key
