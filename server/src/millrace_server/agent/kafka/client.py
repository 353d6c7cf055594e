"""The settings of Kafka clients, which librdkafka checks when the configuration is read."""

from abc import ABC
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, Secret, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.kafka.client_log import CLIENT_LOG
from millrace_server.agent.kafka.security import KafkaSaslConfig, KafkaTlsConfig, PropertyValue
from millrace_server.agent.setting_types import ServerAddress, revealed
from millrace_server.agent.supervision import ComponentError
from millrace_server.extras import check_installed, is_installed
from millrace_server.network import Address

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
"""Properties that are set by other settings."""

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
"""Properties whose values are Python objects in confluent-kafka."""

TOPIC_PATTERN = r"^[a-zA-Z0-9._-]{1,249}$"
TopicName = Annotated[str, Field(pattern=TOPIC_PATTERN)]


class KafkaClientConfig(BaseModel, ABC, frozen=True, extra="forbid", defer_build=True):
    """Settings of the Kafka client of a source or sink."""

    own_properties: ClassVar[Mapping[str, str]] = {}
    """Properties that the component sets itself, with the reason or the setting to use instead."""

    bootstrap_servers: Annotated[list[ServerAddress], Field(min_length=1)]
    """Some brokers of the cluster, as `host:port`; the client learns about all others from them."""

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
        check_installed(value, "confluent-kafka", "kafka", "confluent_kafka")
        return value

    @field_validator("sasl")
    @classmethod
    def _check_encrypted(cls, sasl: KafkaSaslConfig | None, info: ValidationInfo) -> KafkaSaslConfig | None:
        servers = info.data.get("bootstrap_servers", [])
        is_plain = sasl is not None and sasl.mechanism == "PLAIN" and info.data.get("tls", "invalid") is None
        if is_plain and not all(Address.parse(server).is_loopback for server in servers):
            raise ValueError("would send the password in plain text; add a table tls, or use another mechanism")
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
        if is_installed("confluent_kafka") and {"tls", "sasl"} <= info.data.keys():
            # Without a logger, librdkafka would also write the problem to standard error.
            cls._try_properties({**_properties(info.data["tls"], info.data["sasl"], client), "logger": CLIENT_LOG})
        return client

    @classmethod
    def _try_properties(cls, properties: dict[str, Any]) -> None:
        """Raises ValueError if librdkafka does not accept the properties; does not connect."""
        raise NotImplementedError

    def client_properties(self, name: str) -> dict[str, Any]:
        """Returns the properties of a client; brokers log its `name`. Raises ComponentError if a file is missing."""
        try:
            properties = _properties(self.tls, self.sasl, self.client)
        except ValueError as error:
            raise ComponentError(str(error)) from None
        return {
            "client.id": f"millrace-{name}",
            **properties,
            "bootstrap.servers": ",".join(self.bootstrap_servers),
            "logger": CLIENT_LOG,
        }


def _properties(
    tls: KafkaTlsConfig | None, sasl: KafkaSaslConfig | None, client: Mapping[str, Secret[Any]]
) -> dict[str, Any]:
    transport = "PLAINTEXT" if tls is None else "SSL"
    return {
        "security.protocol": transport if sasl is None else f"SASL_{transport}",
        **({} if tls is None else tls.properties()),
        **({} if sasl is None else sasl.properties()),
        # As text: otherwise true would become Python's `True`, and 1.5 a C int.
        **{
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in revealed(client).items()
        },
    }


def described(error: Any) -> str:
    """Returns the message of a KafkaException or KafkaError."""
    found = error.args[0] if isinstance(error, Exception) and error.args else error
    text = found.str() if hasattr(found, "str") else str(found)
    name = found.name() if hasattr(found, "name") else ""
    return f"{name}: {' '.join(text.split())}" if name else text
