import asyncio
import re
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256K1, SECP521R1, EllipticCurve, generate_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from pydantic import ValidationError
from structlog.testing import capture_logs

from millrace.setting_problems import describe_problems
from millrace_server import files
from millrace_server.network.dev_certificates import key_in_pem
from millrace_server.network.tls import TlsFiles, TlsSettings
from tests.certificates import Authority

AUTHORITY = Authority()


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    """The settings of a server that asks for client certificates."""
    certificate, private_key = AUTHORITY.issue(tmp_path, "server")
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.certificate)
    return {
        "certificate": str(certificate),
        "private_key": str(private_key),
        "client_ca": str(tmp_path / "ca.pem"),
        "client_certificate": "required",
    }


def problems_of(settings: dict[str, Any]) -> list[str]:
    with pytest.raises(ValidationError) as raised:
        TlsSettings.model_validate(settings, strict=True)
    return list(map(str, describe_problems(raised.value, TlsSettings)))


def one_problem_of(settings: dict[str, Any]) -> str:
    (problem,) = problems_of(settings)
    return problem


def test_settings_without_client_certificates_need_no_authority(given: dict[str, Any]) -> None:
    """A certificate and its key suffice."""
    settings = TlsSettings.model_validate({"certificate": given["certificate"], "private_key": given["private_key"]})
    assert settings.client_certificate == "off"
    assert not TlsFiles(settings).requires_client_certificate


def test_settings_name_each_file_that_is_not_there(given: dict[str, Any], tmp_path: Path) -> None:
    """All missing files are named at once."""
    for file in tmp_path.iterdir():
        file.unlink()
    missing = "which cannot be read: No such file or directory"
    assert problems_of(given) == [
        f'{name}: is "{given[name]}", {missing}' for name in ("certificate", "private_key", "client_ca")
    ]


def test_settings_with_a_certificate_that_has_expired_say_since_when(given: dict[str, Any], tmp_path: Path) -> None:
    """The sentence names the file, the certificate, and what to do."""
    certificate, _ = AUTHORITY.issue(tmp_path, "server", days=-1)
    problem = one_problem_of(given)
    assert problem.startswith(f'certificate: is "{certificate}", whose certificate CN=server expired at ')
    assert problem.endswith("; replace it")


def test_settings_with_a_key_of_another_certificate_name_both(given: dict[str, Any], tmp_path: Path) -> None:
    """The files do not fit together."""
    _, other_key = AUTHORITY.issue(tmp_path, "other")
    assert one_problem_of(given | {"private_key": str(other_key)}).startswith(
        f'private_key: is "{other_key}", which is not the key of CN=server, the first certificate in the file'
    )


def test_settings_with_a_certificate_for_clients_only_are_refused(given: dict[str, Any], tmp_path: Path) -> None:
    """Every client would reject the server, for a reason that only the server's operator can mend."""
    AUTHORITY.issue(tmp_path, "server", usages=[ExtendedKeyUsageOID.CLIENT_AUTH])
    assert "whose certificate CN=server is not for servers" in one_problem_of(given)
    AUTHORITY.issue(tmp_path, "server", usages=[ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE])
    assert TlsSettings.model_validate(given).client_certificate == "required"


def test_settings_with_a_key_that_everybody_may_read_give_the_command(given: dict[str, Any]) -> None:
    """The group may read a key, others may not."""
    key = Path(given["private_key"])
    key.chmod(0o640)
    assert TlsSettings.model_validate(given).private_key == key
    key.chmod(0o644)
    told = f'private_key: is "{key}", which every user of this machine may read; run: chmod o-rwx {key}'
    assert one_problem_of(given) == told


@pytest.mark.parametrize("name", ["certificate", "private_key", "client_ca"])
def test_settings_with_a_file_that_everybody_may_change_give_the_command(given: dict[str, Any], name: str) -> None:
    """Nobody but the owner and the group decides whom the server trusts."""
    path = Path(given[name])
    path.chmod(0o642)
    assert f'{name}: is "{path}", which every user of this machine may ' in one_problem_of(given)
    path.chmod(0o622)
    assert one_problem_of(given).endswith(f"may change; run: chmod o-w {path}")


def test_settings_with_a_certificate_of_tomorrow_say_so(given: dict[str, Any], tmp_path: Path) -> None:
    """The machine's clock may be wrong."""
    AUTHORITY.issue(tmp_path, "server", age_days=-1)
    assert re.search("CN=server is valid from .* only; check this machine's clock", one_problem_of(given))


@pytest.mark.parametrize("curve", [SECP521R1(), SECP256K1()])
def test_settings_with_a_key_that_clients_do_not_accept_are_refused(
    given: dict[str, Any], curve: EllipticCurve
) -> None:
    """OpenSSL would take it, and no client of gRPC would get a connection."""
    Path(given["private_key"]).write_bytes(key_in_pem(generate_private_key(curve)))
    assert "whose type gRPC clients do not accept" in one_problem_of(given)


@pytest.mark.parametrize("name", ["certificate", "private_key", "client_ca"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        # Of an algorithm that there is not.
        b"-----BEGIN PRIVATE KEY-----\nMBACAQAwBQYDKgMEBAQBAgME\n-----END PRIVATE KEY-----\n",
    ],
)
def test_settings_with_a_file_of_something_else_name_it(given: dict[str, Any], name: str, content: bytes) -> None:
    """Files without certificates or keys are refused."""
    Path(given[name]).write_bytes(content)
    held = "no private key in PEM" if name == "private_key" else "no certificates in PEM"
    assert one_problem_of(given) == f'{name}: is "{given[name]}", which holds {held}'


def test_settings_that_require_certificates_of_nobody_are_refused(given: dict[str, Any]) -> None:
    """Without an authority, no client certificate could be valid."""
    del given["client_ca"]
    assert one_problem_of(given).startswith('client_certificate: is "required"; it needs client_ca')


def test_settings_with_an_authority_of_clients_must_require_certificates(given: dict[str, Any]) -> None:
    """The default asks nobody for a certificate, which the authority alone does not change."""
    del given["client_certificate"]
    assert one_problem_of(given).startswith('client_certificate: is "off", so client_ca has no effect')


def test_files_that_change_together_are_in_force(given: dict[str, Any], tmp_path: Path) -> None:
    """A new certificate whose key is not there yet leaves the former one in force, until the key has come."""
    files = TlsFiles(TlsSettings.model_validate(given))
    former = files.material
    (tmp_path / "new").mkdir()
    certificate, private_key = AUTHORITY.issue(tmp_path / "new", "server", days=7)
    certificate.replace(given["certificate"])
    files.refresh()
    assert files.material is former
    private_key.replace(given["private_key"])
    files.refresh()
    assert files.material is not former
    assert 6 < files.days_left()[Path(given["certificate"])] < 7


def test_files_that_are_damaged_or_gone_leave_the_former_ones_in_force(given: dict[str, Any]) -> None:
    """Nothing that happens to the files ends the service."""
    files = TlsFiles(TlsSettings.model_validate(given))
    former = files.material
    for name in ("client_ca", "private_key", "certificate"):
        Path(given[name]).write_bytes(b"damaged")
        files.refresh()
        Path(given[name]).unlink()
        files.refresh()
    assert files.material is former


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_sessions_are_not_resumed_with_other_files(
    given: dict[str, Any], tmp_path: Path, version: ssl.TLSVersion
) -> None:
    """A client whose authority is not trusted any more cannot go on with a session from before."""
    files = TlsFiles(TlsSettings.model_validate(given))
    server, client = files.http_context(), ssl.create_default_context(cafile=given["client_ca"])
    client.load_cert_chain(*AUTHORITY.issue(tmp_path, "client"))
    client.minimum_version = client.maximum_version = version
    first = connected(server, client)
    assert connected(server, client, first.session).session_reused
    Path(given["client_ca"]).write_bytes(Authority("Other").certificate)
    files.refresh()
    with pytest.raises(ssl.SSLCertVerificationError):
        connected(server, client, first.session)


def connected(server: ssl.SSLContext, client: ssl.SSLContext, session: ssl.SSLSession | None = None) -> ssl.SSLObject:
    """Returns the client's end of a connection, after the first byte."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = client.wrap_bio(to_client, to_server, server_hostname="localhost", session=session)
    for act in (ours.do_handshake, theirs.do_handshake, ours.do_handshake, theirs.do_handshake):
        with suppress(ssl.SSLWantReadError):
            act()
    theirs.write(b"1")
    assert ours.read() == b"1"
    return ours


def test_expiry_is_logged_once_a_day_for_each_file(given: dict[str, Any], tmp_path: Path) -> None:
    """From 14 days before; the authority's certificate is good for longer."""
    AUTHORITY.issue(tmp_path, "server", days=13.5)
    files = TlsFiles(TlsSettings.model_validate(given))
    with capture_logs() as told:
        files.warn_of_expiry()
        files.warn_of_expiry()
    [entry] = told
    assert (entry["log_level"], entry["file"], entry["days_left"]) == ("warning", given["certificate"], 13.5)
    assert "expires soon; replace the file" in entry["event"]


async def test_follow_goes_on_after_any_failure(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in reading files once does not end the rotation for good."""
    monkeypatch.setattr(files, "CHECK_SECONDS", 0.0)
    tls_files = TlsFiles(TlsSettings.model_validate(given))
    is_called_again = asyncio.Event()
    loop = asyncio.get_running_loop()
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        if len(calls) > 1:
            loop.call_soon_threadsafe(is_called_again.set)
        raise AttributeError

    monkeypatch.setattr(tls_files, "refresh", fail)
    with capture_logs() as told:
        following = asyncio.create_task(tls_files.follow())
        await asyncio.wait_for(is_called_again.wait(), 60)
        following.cancel()
    assert told[0]["event"] == "checking the TLS files for changes failed"


def test_files_without_a_change_are_not_read_again(given: dict[str, Any]) -> None:
    """A look at unchanged files costs three calls of `stat`."""
    files = TlsFiles(TlsSettings.model_validate(given))
    former = files.material
    files.refresh()
    assert files.material is former
