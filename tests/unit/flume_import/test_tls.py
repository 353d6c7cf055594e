"""Java's keystores; those of PKCS #12 are made here."""

import stat
from pathlib import Path

import pytest
import typer
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificates

from millrace_server.cli.flume_command import import_flume
from millrace_server.flume_import import Outcome
from tests.certificates import Site
from tests.flume_imports import imported, notes_of, outcomes_of, source_of, source_text

HTTP = "type = http\nport = 443\nssl = true\n"


@pytest.fixture(scope="module")
def keystore(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A keystore with the certificate of a server, its key, and its authority's certificate."""
    site = Site(tmp_path_factory.mktemp("site"))
    key = load_pem_private_key((site.folder / "server.key").read_bytes(), None)
    [certificate, *_] = load_pem_x509_certificates((site.folder / "server.pem").read_bytes())
    authorities = load_pem_x509_certificates(site.ca.read_bytes())
    path = site.folder / "flume.jks"
    encryption = BestAvailableEncryption(b"changeit")
    path.write_bytes(pkcs12.serialize_key_and_certificates(b"flume", key, certificate, authorities, encryption))  # type: ignore[arg-type] # of the same kinds
    return path


def test_import_of_a_keystore_with_a_directory_writes_pem_files(keystore: Path, tmp_path: Path) -> None:
    """The configuration passes the check, which reads them; nobody else may read the key."""
    lines = f"{HTTP}keystore = {keystore}\nkeystore-password = changeit\nkeystore-type = PKCS12"
    source = source_of(lines, tls_directory=tmp_path)
    assert source["tls"] == {"certificate": f"{tmp_path}/s-flume.pem", "private_key": f"{tmp_path}/s-flume.key"}
    assert stat.S_IMODE((tmp_path / "s-flume.key").stat().st_mode) == 0o600
    assert len(load_pem_x509_certificates((tmp_path / "s-flume.pem").read_bytes())) == 2
    assert "allow_plaintext" not in source


def test_command_with_strict_and_something_left_out_writes_no_pem_files(
    keystore: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next attempt does not find files of this one in its way."""
    conf = tmp_path / "agent.conf"
    conf.write_text(source_text(f"{HTTP}keystore = {keystore}\nkeystore-password = changeit\nodd = 1"))
    with pytest.raises(typer.Exit):
        import_flume([conf], tls_directory=tmp_path, strict=True)
    assert "nothing was written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [conf]


def test_import_of_a_keystore_never_overwrites_files(keystore: Path, tmp_path: Path) -> None:
    """What is there already stays, and it is said."""
    (tmp_path / "s-flume.pem").write_text("mine")
    text = source_text(f"{HTTP}keystore = {keystore}\nkeystore-password = changeit")
    assert "cannot be written: File exists" in notes_of(text, tls_directory=tmp_path)["a.sources.s.keystore"]
    assert (tmp_path / "s-flume.pem").read_text() == "mine"


@pytest.mark.parametrize(
    ("password", "sentence"),
    [("wrong", "is no keystore of PKCS #12, or has another password"), ("${env:GONE}", "has another password")],
)
def test_import_of_a_keystore_that_cannot_be_read_says_what_to_do(
    keystore: Path, tmp_path: Path, password: str, sentence: str
) -> None:
    """The source keeps TLS, and the sentence has the commands."""
    text = source_text(f"{HTTP}keystore = {keystore}\nkeystore-password = {password}")
    note = notes_of(text, tls_directory=tmp_path)["a.sources.s.keystore"]
    assert sentence in note
    assert "keytool -importkeystore" in note
    assert "tls" in imported(text, tls_directory=tmp_path).tables["sources"]["s"]
    assert not any(tmp_path.iterdir())


def test_import_without_a_directory_names_the_files_to_make() -> None:
    """They are beside the keystore, and plain text is never allowed instead."""
    text = source_text(f"{HTTP}keystore = /etc/flume/keystore.jks\nkeystore-password = x")
    source = imported(text, allow_plaintext=True).tables["sources"]["s"]
    assert source["tls"] == {"certificate": "/etc/flume/keystore.pem", "private_key": "/etc/flume/keystore.key"}
    assert "allow_plaintext" not in source
    assert outcomes_of(text)["a.sources.s.keystore"] is Outcome.CHANGED


def test_import_of_global_keystores_takes_them_from_definitions_and_the_environment() -> None:
    """A component's own precedes system properties, and those precede the environment."""
    environment = {"FLUME_SSL_KEYSTORE_PATH": "/env/store.jks"}
    definitions = {"javax.net.ssl.keyStore": "/sys/store.jks"}
    text = source_text(HTTP)
    from_environment = imported(text, environment=environment).tables["sources"]["s"]
    assert from_environment["tls"] == {"certificate": "/env/store.pem", "private_key": "/env/store.key"}
    defined = imported(text, environment=environment, definitions=definitions).tables["sources"]["s"]
    assert defined["tls"] == {"certificate": "/sys/store.pem", "private_key": "/sys/store.key"}


def test_import_of_a_flag_that_is_not_known_keeps_tls() -> None:
    """Nothing becomes plain text because a variable was not set at the import."""
    text = source_text("type = http\nport = 443\nenableSSL = ${env:GONE}\nkeystore = /k.jks")
    assert "tls" in imported(text).tables["sources"]["s"]


def test_import_without_ssl_has_no_tls() -> None:
    """A keystore alone does not enable TLS, as in Flume."""
    text = source_text("type = http\nbind = localhost\nport = 80\nssl = false\nkeystore = /k.jks")
    assert "tls" not in imported(text).tables["sources"]["s"]


def test_import_of_tls_without_a_keystore_has_commands_for_one() -> None:
    """Which keystore it is, only Flume's process knew."""
    assert "-srckeystore KEYSTORE -dest" in notes_of(source_text(f"{HTTP}ssl = true"))["a.sources.s.keystore"]
