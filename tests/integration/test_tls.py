"""Servers and clients over TLS."""

import json
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import DNSName, IPAddress, SubjectAlternativeName, load_pem_x509_certificate
from cryptography.x509.oid import ExtendedKeyUsageOID

import millrace_client as millrace
import millrace_client.aio
from millrace_client import ComponentState, Tls
from millrace_server.access.tokens import make_token
from millrace_server.embedded import EmbeddedAgent
from millrace_server.network.dev_certificates import key_in_pem
from tests.access_site import append_and_consume_with_each_client
from tests.certificates import Authority, Site
from tests.conftest import StartMillraced
from tests.millrace_program import run_millrace
from tests.millraced import Millraced, run_millraced

WAIT_SECONDS_MAX = 60.0
MODES = (("pem", 0o644), ("key", 0o600))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(site: Site) -> Iterator[Millraced]:
    """A server that asks for client certificates."""
    config, data_dir = site.folder / "millrace.toml", site.folder / "data"
    config.write_text(site.toml())
    free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    arguments = ("--config", str(config), "--data-dir", str(data_dir), *free_ports)
    # A process of its own, since what gRPC writes by itself is chosen when it is imported.
    millraced = Millraced(arguments, data_dir, python=sys.executable)
    yield millraced
    millraced.kill()


def get(server: Millraced, path: str, tls: Tls) -> tuple[int, Any]:
    """Returns the status and the body of a response over HTTP."""
    context = ssl.create_default_context(cafile=str(tls.ca))
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.private_key)
    try:
        with urllib.request.urlopen(f"https://{server.http}{path}", context=context, timeout=WAIT_SECONDS_MAX) as got:
            return got.status, got.read()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read()


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


def test_clients_with_a_certificate_use_all_of_it(server: Millraced, site: Site) -> None:
    """The client, its asyncio variant, the producer, the consumer and HTTP work as in plain text."""
    append_and_consume_with_each_client(server.grpc, tls=site.client)
    assert get(server, "/channels", site.client)[0] == 200
    status, metrics = get(server, "/metrics", site.client)
    assert (status, b'server.pem"} ' in metrics) == (200, True)


def test_health_check_of_the_container_works_over_tls(server: Millraced) -> None:
    """It needs no certificate, also where clients do; it fails where nothing serves."""
    dockerfile = (Path(__file__).parents[2] / "deploy" / "Dockerfile").read_text().replace("\\\n", "")
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (.*)$", dockerfile, re.MULTILINE)
    program, *arguments = json.loads(check)
    asked = [Path(sys.executable).with_name(program), *arguments]
    for path, exit_code in (("/healthz", 0), ("/channels", 1)):
        url = {"MILLRACE_HEALTH_URL": f"https://{server.http}{path}"}
        ran = subprocess.run(asked, env=url, capture_output=True, check=False)
        assert ran.returncode == exit_code, ran.stderr


def test_command_line_connects_over_tls(server: Millraced, site: Site) -> None:
    """Every command has the options, and `put` gives them to its producer."""
    options = [f"--tls-ca={site.ca}", f"--tls-certificate={site.client.certificate}"]
    options.append(f"--tls-key={site.client.private_key}")
    assert run_millrace(server.grpc, "channel", "create", "lines", *options).returncode == 0
    assert run_millrace(server.grpc, "put", "lines", *options, typed=b"a\nb\n").returncode == 0
    shown = run_millrace(server.grpc, *options, "channels", "--json")
    assert {one["name"]: one["gauges"]["queued_events"] for one in json.loads(shown.stdout)}["lines"] == 2
    refused = run_millrace(server.grpc, "channels", "--tls-ca=nowhere.pem")
    assert refused.returncode == 2
    assert b"nowhere.pem cannot be read: No such file or directory" in refused.stderr


def forged(site: Site, folder: Path) -> dict[str, Tls]:
    """Clients whose certificates nobody that the server trusts has given to them."""
    trusted, other = site.authority, Authority("Nobody")
    namesake, own = Authority("Authority 0"), Authority("client")
    issued = {
        "of another authority": other.issue(folder, "other"),
        "of another authority of the same name": namesake.issue(folder, "namesake"),
        "expired": trusted.issue(folder, "expired", days=-1),
        "not yet valid": trusted.issue(folder, "early", age_days=-1),
        "for servers only": trusted.issue(folder, "only-server", usages=[ExtendedKeyUsageOID.SERVER_AUTH]),
        "signed by itself": (folder / "own.pem", folder / "own.key"),
    }
    leaf = [(SubjectAlternativeName([DNSName("localhost")]), False)]
    (folder / "own.pem").write_bytes(own._signed(own.subject, own.key.public_key(), leaf, -1, 1))
    (folder / "own.key").write_bytes(key_in_pem(own.key))
    # A client that acts as an authority, and shows its own certificate as that of one.
    client_key = load_pem_private_key((site.folder / "client.key").read_bytes(), None)
    assert isinstance(client_key, EllipticCurvePrivateKey)
    own.key = client_key
    certificate, private_key = own.issue(folder, "boss")
    certificate.write_bytes(certificate.read_bytes() + (site.folder / "client.pem").read_bytes())
    issued["signed by a client"] = certificate, private_key
    return {kind: Tls(ca=site.ca, certificate=pem, private_key=key) for kind, (pem, key) in issued.items()}


def channels_over_grpc(server: Millraced, tls: Tls | None) -> int | None:
    """Returns how many channels a client sees; None if it gets no connection."""
    with millrace.connect(server.grpc, tls=tls) as client:
        try:
            return len(client.admin.list_channels())
        except millrace.UnavailableError:
            return None


def test_clients_without_a_valid_certificate_get_nothing(server: Millraced, site: Site, tmp_path: Path) -> None:
    """Neither over gRPC nor over HTTP, where only `/healthz` is open to those who have none. Nobody fills the log."""
    strangers = forged(site, tmp_path)
    with ThreadPoolExecutor(len(strangers) + 2) as attackers:
        found = attackers.map(lambda tls: channels_over_grpc(server, tls), [None, Tls(ca=site.ca), *strangers.values()])
        assert set(found) == {None}
    for kind, tls in strangers.items():
        with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
            raise AssertionError(f"{kind}: {get(server, '/channels', tls)}")
    assert get(server, "/healthz", Tls(ca=site.ca))[0] == 200
    for path in ("/channels", "/metrics", "/components", "/nowhere"):
        assert get(server, path, Tls(ca=site.ca))[0] == 401
    with socket.create_connection(host_and_port(server.http), WAIT_SECONDS_MAX) as plain:
        plain.sendall(b"GET /channels HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not plain.recv(1_000).startswith(b"HTTP/1.1 200")
    assert server.other_output == []
    assert server.faults == []


def test_server_whose_clients_need_no_certificate_is_verified(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """A client that trusts another authority does not send anything."""
    site = Site(tmp_path)
    server = start_millraced(site.toml(requires_certificates=False))
    with millrace.connect(server.grpc, tls=Tls(ca=site.ca)) as client:
        assert [channel.name for channel in client.admin.list_channels()] == ["orders"]
    assert get(server, "/channels", Tls(ca=site.ca))[0] == 200
    site.ca.write_bytes(Authority("Nobody").certificate)
    with (
        millrace.connect(server.grpc, tls=Tls(ca=site.ca)) as client,
        pytest.raises(millrace.UnavailableError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        client.admin.list_channels()


def test_sink_forwards_over_tls(server: Millraced, site: Site, start_millraced: StartMillraced, tmp_path: Path) -> None:
    """A sink with a certificate forwards; one without says what is wrong, and keeps its events."""
    files = f'certificate = "{site.client.certificate}", private_key = "{site.client.private_key}"'
    sinks = {"good": f'{{ ca = "{site.ca}", {files} }}', "bad": f'{{ ca = "{tmp_path}/nowhere.pem" }}'}
    toml = "".join(
        f'[channels.{name}]\ntype = "file"\n[sinks.{name}]\ntype = "millrace"\nchannel = "{name}"\n'
        f'endpoints = ["{server.grpc}"]\ntarget_channel = "forwarded"\ntls = {tls}\n'
        for name, tls in sinks.items()
    )
    edge = start_millraced(toml)
    with millrace.connect(edge.grpc) as client, millrace.connect(server.grpc, tls=site.client) as target:
        target.admin.create_channel("forwarded")
        for name in sinks:
            client.channel(name).append([name.encode()])
        with target.channel("forwarded").transaction() as txn:
            (batch,) = txn.take(wait_seconds=WAIT_SECONDS_MAX)
            assert [event.body for event in batch] == [b"good"]
        watched = chain.from_iterable(client.admin.watch_components(0.1))
        failing = next(one for one in watched if one.state is ComponentState.BACKING_OFF)
        assert failing.name == "bad"
        assert "nowhere.pem cannot be read" in failing.reason
        assert client.admin.get_channel("bad").gauges.queued_events == 1


def test_embedded_agent_forwards_over_tls_with_its_token(
    site: Site, start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """Its sink has the same settings as a daemon's."""
    (tmp_path / "token").write_text(make_token(tmp_path / "tokens", "shop"))
    auth = (
        f'auth.tokens_file = "{tmp_path}/tokens"\nroles.shop.allow = ["*:orders"]\nidentities.shop.roles = ["shop"]\n'
    )
    server = start_millraced(auth + site.toml())
    tls = {"ca": site.client.ca, "certificate": site.client.certificate, "private_key": site.client.private_key}
    sink = {"type": "millrace", "channel": "sold", "endpoints": [server.grpc], "target_channel": "orders"}
    flows = {
        "server": {"data_dir": str(tmp_path / "shop")},
        "channels": {"sold": {"type": "file"}},
        "sources": {"shop": {"type": "embedded", "channels": ["sold"]}},
        "sinks": {"out": {**sink, "token_file": str(tmp_path / "token"), "tls": {key: str(tls[key]) for key in tls}}},
    }
    with (
        millrace.connect(server.grpc, tls=site.client, token_file=tmp_path / "token") as client,
        EmbeddedAgent(flows) as agent,
    ):
        agent.put("shop", {}, b"a chair")
        with client.channel("orders").transaction() as txn:
            (batch,) = txn.take(wait_seconds=WAIT_SECONDS_MAX)
            assert [event.body for event in batch] == [b"a chair"]


def test_server_with_files_that_do_not_fit_does_not_start(tmp_path: Path) -> None:
    """The configuration error names the setting, the file and what to do."""
    site = Site(tmp_path)
    (site.ca.parent / "server.key").chmod(0o644)
    config = tmp_path / "millrace.toml"
    config.write_text(site.toml())
    ran = run_millraced("serve", "--config", config)
    assert ran.returncode == 2
    assert re.search(r"server\.tls\.private_key: .* run: chmod o-rwx", ran.stderr)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
def test_only_new_versions_of_tls_are_spoken(server: Millraced, site: Site) -> None:
    """A client that offers one version only gets a connection with 1.2 and 1.3, to gRPC and to HTTP."""
    for address in (server.grpc, server.http):
        for spoken in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            assert handshake(address, site, spoken) == spoken.name.replace("_", ".")
        for old in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
            # HTTP's response is an alert; gRPC closes the connection.
            with pytest.raises((ssl.SSLError, ConnectionError)):
                handshake(address, site, old)


def handshake(address: str, site: Site, version: ssl.TLSVersion) -> str | None:
    """Returns the version that a connection has whose client offers this one only."""
    context = ssl.create_default_context(cafile=str(site.ca))
    context.load_cert_chain(site.folder / "client.pem", site.folder / "client.key")
    # So that the client itself does not refuse old versions.
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(host_and_port(address), WAIT_SECONDS_MAX) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return connection.version()


def test_certificate_whose_role_is_taken_away_is_as_good_as_none(start_millraced: StartMillraced, site: Site) -> None:
    """A client certificate is revoked by a longer pattern that allows nothing: open streams end, calls are refused."""
    auth = '[auth]\n[roles.all]\nallow = ["*:*"]\n[roles.none]\nallow = []\n[identities."local*"]\nroles = ["all"]\n'
    revoked = start_millraced(site.toml() + auth)
    with millrace.connect(revoked.grpc, tls=site.client) as client:
        client.channel("orders").append([b"one"])
        with client.channel("orders").consume() as stream:
            next(stream)
            Path(revoked.arguments[1]).write_text(f'{site.toml()}{auth}[identities.localhost]\nroles = ["none"]\n')
            revoked.send(signal.SIGHUP)
            with pytest.raises(millrace.ForbiddenError):
                next(stream)
        with pytest.raises(millrace.ForbiddenError):
            client.channel("orders").append([b"two"])
    assert get(revoked, "/channels", site.client)[0] == 403


def test_dev_certificates_make_a_server_and_its_client(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """What the command prints configures a server, and its client's command works; no file is ever overwritten."""
    made = run_millraced("dev-certificates", "tls", "--name", "collector-1", "--name", "10.0.0.7", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()}
    assert modes == {"ca.pem": 0o644} | {f"{one}.{kind}": mode for one in ("server", "client") for kind, mode in MODES}
    server = start_millraced(made.stdout)
    command = shlex.split(
        made.stderr.splitlines()[-1].replace("localhost:7070", server.grpc.replace("127.0.0.1", "localhost"))
    )
    assert command[0] == "millrace"
    assert run_millrace("", *command[1:]).returncode == 0
    files = {path: path.read_bytes() for path in (tmp_path / "tls").iterdir()}
    certificate = load_pem_x509_certificate(files[tmp_path / "tls" / "server.pem"])
    named = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    assert {"collector-1", "localhost", socket.gethostname()} <= set(named.get_values_for_type(DNSName))
    assert {"10.0.0.7", "127.0.0.1", "::1"} == set(map(str, named.get_values_for_type(IPAddress)))
    (tmp_path / "tls" / "ca.pem").unlink()
    again = run_millraced("dev-certificates", "tls", cwd=tmp_path)
    assert (again.returncode, "tls/server.pem: cannot be written: File exists" in again.stderr) == (1, True)
    assert not (tmp_path / "tls" / "ca.pem").exists()
    assert all(path.read_bytes() == content for path, content in files.items() if path.name != "ca.pem")
    assert run_millraced("dev-certificates", "other", "--name", "a b", cwd=tmp_path).returncode == 2
