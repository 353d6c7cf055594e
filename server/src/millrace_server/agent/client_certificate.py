"""The certificate with which a component connects to servers."""

from pathlib import Path

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from millrace_server.files import NamedPath, refuse_public_secret


class ClientCertificateConfig(BaseModel, frozen=True, extra="forbid"):
    """The client certificate of a source or sink."""

    certificate: NamedPath | None = None
    """File of the client's own certificate, followed by the intermediate certificates."""

    private_key: NamedPath | None = Field(None, validate_default=True)
    """File of its key, without a password. It must not be world-readable."""

    @field_validator("private_key")
    @classmethod
    def _check_pair(cls, key: Path | None, info: ValidationInfo) -> Path | None:
        if "certificate" in info.data and (key is None) != (info.data["certificate"] is None):
            raise ValueError("certificate and private_key must be given together; one of them is missing")
        if key is not None:
            refuse_public_secret(key)
        return key
