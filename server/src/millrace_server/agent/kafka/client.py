"""Settings of a Kafka client, which librdkafka checks with the rest of the configuration."""

import importlib.util
import logging
from abc import ABC
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, Secret, SecretStr, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.client_certificate import ClientCertificateConfig
from millrace_server.agent.rate_limited_log import RateLimit
from millrace_server.agent.setting_types import ServerAddress, revealed
from millrace_server.agent.supervision import ComponentError
from millrace_server.files import NamedPath, read_named
from millrace_server.network import Address

_PASSWORD_BYTES_MAX = 4_096

_log = logging.getLogger(__name__)

_LOG_BURST, _LOG_SECONDS = 5, 30.0
_LIMITS_MAX = 1_000


class _RepetitionFilter(logging.Filter):
    """Lets a few lines of one kind and client through at once, then one now and then.

    While no broker can be reached, librdkafka logs each attempt, many in a second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._limits: dict[object, RateLimit] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        # librdkafka's lines have as arguments what they are about, the client's name with a number, and the text.
        kind = record.msg
        if isinstance(record.args, tuple) and len(record.args) > 1:
            kind = f"{record.args[0]} {str(record.args[1]).partition('#')[0]}"
        if len(self._limits) >= _LIMITS_MAX:
            self._limits.clear()
        return self._limits.setdefault(kind, RateLimit(_LOG_BURST, _LOG_SECONDS)).try_acquire()


_log.addFilter(_RepetitionFilter())

_OWN_PROPERTIES = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "security.protocol": "the tables tls and sasl",
    "ssl.ca.location": "tls.ca",
    "ssl.certificate.location": "tls.certificate",
    "ssl.key.location": "tls.private_key",
    "ssl.key.password": "tls.private_key_password_file",
    "sasl.mechanism": "sasl.mechanism",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.username": "sasl.username",
    "sasl.password": "sasl.password_file",
}
"""Properties that other settings stand for."""

_CODE = {
    "default.topic.config",
    "error_cb",
    "logger",
    "oauth_cb",
    "on_commit",
    "on_delivery",
    "stats_cb",
    "throttle_cb",
}
"""What confluent-kafka takes as Python objects."""

TOPIC_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"
TopicName = Annotated[str, Field(pattern=TOPIC_PATTERN)]

PropertyValue = str | int | float | bool


class KafkaTlsConfig(ClientCertificateConfig, frozen=True, extra="forbid"):
    """How a Kafka client connects over TLS. The files, in PEM, are read when the component starts."""

    ca: NamedPath | None = None
    """File of the certificates that the brokers' certificates must be signed with; by default the operating system's.
    """

    private_key_password_file: NamedPath | None = None
    """File of the key's password, in one line."""

    def properties(self) -> dict[str, PropertyValue]:
        """Returns librdkafka's properties; raises ValueError if a file cannot be read."""
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
    """How a Kafka client authenticates. Further properties of a mechanism belong into `client`."""

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
            raise ValueError("password and password_file exclude each other")
        return path

    def properties(self) -> dict[str, PropertyValue]:
        """Returns librdkafka's properties; raises ValueError if the file cannot be read."""
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
        raise ValueError(f"{setting}: is {shown_value(str(path))}, which is not text in UTF-8") from None
    except ValueError as error:
        raise ValueError(f"{setting}: {error}") from None


class KafkaClientConfig(BaseModel, ABC, frozen=True, extra="forbid", defer_build=True):
    """Settings of a source's or sink's Kafka client."""

    own_properties: ClassVar[Mapping[str, str]] = {}
    """Properties that the component itself needs in a certain way, with the setting to use instead, or why."""

    bootstrap_servers: Annotated[list[ServerAddress], Field(min_length=1)]
    """Some brokers of the cluster, as `host:port`; the client learns of all others from them."""

    tls: KafkaTlsConfig | None = None
    """The table `tls`: how to connect over TLS, and with which certificate; without it, the client connects in plain
    text."""

    sasl: KafkaSaslConfig | None = None
    """The table `sasl`: how to authenticate with a name and a password, a Kerberos ticket, or a token."""

    client: dict[str, Secret[PropertyValue]] = Field(default_factory=dict, validate_default=True)
    """Further properties of librdkafka, such as `"fetch.max.bytes" = 10_000_000`; their values are never shown."""

    @field_validator("type", check_fields=False)
    @classmethod
    def _check_is_installed(cls, value: str) -> str:
        if importlib.util.find_spec("confluent_kafka") is None:
            raise ValueError(
                "is \"kafka\", which needs confluent-kafka; install it with: pip install 'millrace-server[kafka]'"
            )
        return value

    @field_validator("sasl")
    @classmethod
    def _check_encrypted(cls, sasl: KafkaSaslConfig | None, info: ValidationInfo) -> KafkaSaslConfig | None:
        servers = info.data.get("bootstrap_servers", [])
        is_plain = sasl is not None and sasl.mechanism == "PLAIN" and info.data.get("tls", "invalid") is None
        if is_plain and not all(Address.parse(server).is_loopback for server in servers):
            raise ValueError("would send the password in plain text; there must be a table tls, or another mechanism")
        return sasl

    @field_validator("client")
    @classmethod
    def _check_client(cls, client: dict[str, Secret[Any]], info: ValidationInfo) -> dict[str, Secret[Any]]:
        for name in client:
            if name in _CODE:
                raise ValueError(f"has {shown_value(name)}, whose value is a Python object, which TOML cannot hold")
            if instead := _OWN_PROPERTIES.get(name):
                raise ValueError(f"has {shown_value(name)}; use {instead}")
            if why := cls.own_properties.get(name):
                raise ValueError(f"has {shown_value(name)}, which the component sets itself: {why}")
        if importlib.util.find_spec("confluent_kafka") is not None and {"tls", "sasl"} <= info.data.keys():
            # With a logger, librdkafka does not write to standard error what the exception says as well.
            cls._try_properties({**_properties(info.data["tls"], info.data["sasl"], client), "logger": _log})
        return client

    @classmethod
    def _try_properties(cls, properties: dict[str, Any]) -> None:
        """Raises ValueError if librdkafka does not accept the properties; connects to nothing."""
        raise NotImplementedError

    def client_properties(self, name: str) -> dict[str, Any]:
        """Returns the properties of a client, whose `name` the brokers log; raises ComponentError without a file."""
        try:
            properties = _properties(self.tls, self.sasl, self.client)
        except ValueError as error:
            raise ComponentError(str(error)) from None
        return {
            "client.id": f"millrace-{name}",
            **properties,
            "bootstrap.servers": ",".join(self.bootstrap_servers),
            "logger": _log,
        }


def _properties(
    tls: KafkaTlsConfig | None, sasl: KafkaSaslConfig | None, client: Mapping[str, Secret[Any]]
) -> dict[str, Any]:
    transport = "PLAINTEXT" if tls is None else "SSL"
    return {
        "security.protocol": transport if sasl is None else f"SASL_{transport}",
        **({} if tls is None else tls.properties()),
        **({} if sasl is None else sasl.properties()),
        # As text: true and 1.5 would otherwise be Python's `True`, and an int of C.
        **{name: _as_text(value) for name, value in revealed(client).items()},
    }


def _as_text(value: PropertyValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def described(error: Any) -> str:
    """Returns the sentence of a KafkaException or KafkaError."""
    found = error.args[0] if isinstance(error, Exception) and error.args else error
    text = found.str() if hasattr(found, "str") else str(found)
    name = found.name() if hasattr(found, "name") else ""
    return f"{name}: {' '.join(text.split())}" if name else text
