"""The certificate with which sinks and sources connect to servers."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from millrace_server.agent.client_certificate import ClientCertificateConfig
from millrace_server.agent.kafka.security import KafkaTlsConfig
from millrace_server.agent.sinks.avro.config import AvroTlsConfig
from millrace_server.agent.sinks.millrace.config import ClientTlsConfig


@pytest.mark.parametrize("model", [AvroTlsConfig, ClientTlsConfig, KafkaTlsConfig])
def test_settings_with_a_key_that_everybody_may_read_give_the_command(
    model: type[ClientCertificateConfig], tmp_path: Path
) -> None:
    """Its group may read it; and a file that is not there yet is the component's trouble once it starts."""
    key = tmp_path / "agent.key"
    settings = {"certificate": str(tmp_path / "agent.pem"), "private_key": str(key)}
    assert model.model_validate(settings).private_key == key
    key.touch(0o640)
    assert model.model_validate(settings).private_key == key
    key.chmod(0o644)
    with pytest.raises(ValidationError, match=f"every user of this machine may read; run: chmod o-rwx {key}"):
        model.model_validate(settings)
