"""The security settings of Kafka clients: TLS and SASL."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, SecretStr, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.client_certificate import ClientCertificateConfig
from millrace_server.files import NamedPath, read_named

_PASSWORD_BYTES_MAX = 4_096

PropertyValue = str | int | float | bool


class KafkaTlsConfig(ClientCertificateConfig, frozen=True, extra="forbid"):
    """How a Kafka client connects over TLS. The files are in PEM, and are read when the component starts."""

    ca: NamedPath | None = None
    """File of the CA certificates, in PEM, for verifying the brokers' certificates; by default the operating
    system's."""

    private_key_password_file: NamedPath | None = None
    """File of the key's password, in one line."""

    def properties(self) -> dict[str, PropertyValue]:
        """Returns librdkafka's properties. Raises ValueError if a file cannot be read."""
        paths = {
            "ssl.ca.location": self.ca,
            "ssl.certificate.location": self.certificate,
            "ssl.key.location": self.private_key,
        }
        found: dict[str, PropertyValue] = {name: str(path) for name, path in paths.items() if path is not None}
        if self.private_key_password_file is not None:
            found["ssl.key.password"] = _password_in(self.private_key_password_file, "tls.private_key_password_file")
        return found


class KafkaSaslConfig(BaseModel, frozen=True, extra="forbid"):
    """How a Kafka client authenticates itself. Further properties of a mechanism belong in `client`."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"]
    """The SASL mechanism."""

    username: str | None = Field(None, min_length=1)
    """The name of the user."""

    password: SecretStr | None = None
    """The password."""

    password_file: NamedPath | None = None
    """File of the password, in one line, instead of `password`; it is read when the component starts."""

    @field_validator("password_file")
    @classmethod
    def _check_one(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is not None and info.data.get("password") is not None:
            raise ValueError("password and password_file are mutually exclusive")
        return path

    def properties(self) -> dict[str, PropertyValue]:
        """Returns librdkafka's properties. Raises ValueError if the file cannot be read."""
        found: dict[str, PropertyValue] = {"sasl.mechanism": self.mechanism}
        if self.username is not None:
            found["sasl.username"] = self.username
        if self.password is not None:
            found["sasl.password"] = self.password.get_secret_value()
        elif self.password_file is not None:
            found["sasl.password"] = _password_in(self.password_file, "sasl.password_file")
        return found


def _password_in(path: Path, setting: str) -> str:
    try:
        return read_named(path, _PASSWORD_BYTES_MAX, is_secret=True).decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise ValueError(f"{setting}: is {shown_value(str(path))}, which is not valid UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None
