"""Servers and clients over TLS."""

import asyncio
import json
import re
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import millrace_client as millrace
import millrace_client.aio
from millrace_client import ComponentState, Tls
from tests.certificates import Authority
from tests.conftest import StartMillraced
from tests.millrace_program import run_millrace
from tests.millraced import Millraced, run_millraced

WAIT_SECONDS_MAX = 60.0
REREAD = "TLS files read again"
CHANNEL = '[channels.orders]\ntype = "file"\n'


class Site:
    """The files of a server and of a client, which trust the authorities in `ca.pem`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = Authority("Authority 0")
        self.ca = folder / "ca.pem"
        self.ca.write_bytes(self._authority.certificate)
        self._issue()
        self.client = Tls(ca=self.ca, certificate=folder / "client.pem", private_key=folder / "client.key")

    def toml(self, *, requires_certificates: bool = True) -> str:
        tls = f'server.tls = {{ certificate = "{self._folder}/server.pem", private_key = "{self._folder}/server.key"'
        required = f', client_ca = "{self.ca}", client_certificate = "required"' if requires_certificates else ""
        return f"{tls}{required} }}\n{CHANNEL}"

    def rotate(self, number: int, wait_until_trusted: Callable[[], object]) -> bytes:
        """Replaces the authority, the server's and the client's certificates; returns the new authority's own."""
        authority = Authority(f"Authority {number}")
        self._replace(self.ca, self._authority.certificate + authority.certificate)
        wait_until_trusted()
        self._authority = authority
        self._issue()
        return authority.certificate

    def stranger(self, folder: Path) -> Tls:
        """A client whose certificate is from somebody else."""
        folder.mkdir()
        certificate, private_key = Authority("Nobody").issue(folder, "stranger")
        return Tls(ca=self.ca, certificate=certificate, private_key=private_key)

    def _issue(self) -> None:
        scratch = self._folder / "scratch"
        scratch.mkdir(exist_ok=True)
        for name in ("server", "client"):
            # The key first: a certificate whose key is not there yet is not in force.
            certificate, private_key = self._authority.issue(scratch, name)
            private_key.replace(self._folder / f"{name}.key")
            certificate.replace(self._folder / f"{name}.pem")

    def _replace(self, path: Path, content: bytes) -> None:
        beside = path.with_suffix(".new")
        beside.write_bytes(content)
        beside.replace(path)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "tls").mkdir()
    return Site(tmp_path / "tls")


@pytest.fixture
def server(site: Site, start_millraced: StartMillraced) -> Millraced:
    """A server that asks for client certificates."""
    return start_millraced(site.toml())


def get(server: Millraced, path: str, tls: Tls) -> tuple[int, Any]:
    """Returns the status and the body of an answer over HTTP."""
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
    with millrace.connect(server.grpc, tls=site.client) as client:
        assert client.channel("orders").append([b"one"]).last_sequence == 1
    with millrace.Producer(server.grpc, channel="orders", tls=site.client) as producer:
        assert producer.send(b"two").result(WAIT_SECONDS_MAX).sequence == 2
    asyncio.run(append_in_asyncio(server, site.client))
    config = millrace.ConsumerConfig(tls=site.client)
    with millrace.Consumer(server.grpc, "orders", config=config) as consumer:
        bodies: list[bytes] = []
        for delivery in consumer:
            bodies += delivery.bodies()
            if len(bodies) == 3:
                break
    assert bodies == [b"one", b"two", b"three"]
    assert get(server, "/channels", site.client)[0] == 200
    status, metrics = get(server, "/metrics", site.client)
    assert (status, b"millrace_tls_certificate_expiry_days 29." in metrics) == (200, True)


async def append_in_asyncio(server: Millraced, tls: Tls) -> None:
    async with millrace_client.aio.connect(server.grpc, tls=tls) as client:
        assert (await client.channel("orders").append([b"three"])).last_sequence == 3


def test_command_line_connects_over_tls(server: Millraced, site: Site) -> None:
    """Every command has the options, and `put` gives them to its producer."""
    options = [f"--tls-ca={site.ca}", f"--tls-certificate={site.client.certificate}"]
    options.append(f"--tls-key={site.client.private_key}")
    assert run_millrace(server.grpc, "put", "orders", *options, typed=b"a\nb\n").returncode == 0
    shown = run_millrace(server.grpc, *options, "channels", "--json")
    assert json.loads(shown.stdout)[0]["gauges"]["queued_events"] == 2
    refused = run_millrace(server.grpc, "channels", "--tls-ca=nowhere.pem")
    assert refused.returncode == 2
    assert b"nowhere.pem cannot be read: No such file or directory" in refused.stderr


@pytest.mark.parametrize("who", ["nobody", "stranger", "plain text"])
def test_clients_without_a_valid_certificate_get_nothing(
    server: Millraced, site: Site, tmp_path: Path, who: str
) -> None:
    """Only `/healthz` is open to all; a certificate of another authority ends even the handshake of HTTP."""
    strangers = {"nobody": Tls(ca=site.ca), "stranger": site.stranger(tmp_path / "stranger"), "plain text": None}
    tls = strangers[who]
    with millrace.connect(server.grpc, tls=tls) as client, pytest.raises(millrace.UnavailableError):
        client.admin.list_channels()
    if who == "nobody":
        assert get(server, "/healthz", Tls(ca=site.ca))[0] == 200
        for path in ("/channels", "/metrics", "/components", "/nowhere"):
            assert get(server, path, Tls(ca=site.ca))[0] == 401
    elif who == "stranger":
        assert isinstance(tls, Tls)
        with pytest.raises((urllib.error.URLError, ConnectionError)):
            get(server, "/channels", tls)
    else:
        with socket.create_connection(host_and_port(server.http), WAIT_SECONDS_MAX) as plain:
            plain.sendall(b"GET /channels HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert not plain.recv(1_000).startswith(b"HTTP/1.1 200")


def test_server_whose_clients_need_no_certificate_is_verified(start_millraced: StartMillraced, site: Site) -> None:
    """A client that trusts another authority does not send anything."""
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


def test_rotation_of_everything_fails_no_call(server: Millraced, site: Site) -> None:
    """Clients that live through rotations go on, and new connections need the new files; no event is lost or twice."""
    is_over = threading.Event()
    appended: list[int] = []

    def keep_appending() -> None:
        with millrace.connect(server.grpc, tls=site.client) as client:
            orders = client.channel("orders")
            while not is_over.is_set():
                appended.append(orders.append([b"call"]).last_sequence)

    def reconnects_with(ca: Path) -> bool:
        tls = Tls(ca=ca, certificate=site.client.certificate, private_key=site.client.private_key)
        try:
            with millrace.connect(server.grpc, tls=tls) as client:
                client.admin.list_channels()
        except millrace.UnavailableError:
            return False
        return True

    caller = threading.Thread(target=keep_appending)
    caller.start()
    try:
        with millrace.Producer(server.grpc, channel="orders", tls=site.client) as producer:
            sent = [producer.send(b"0")]
            for number in range(1, 4):
                reread = sum(entry["event"] == REREAD for entry in server.log)
                known = site.rotate(number, partial(server.wait_for, REREAD, count=reread + 1))
                only = site.ca.with_name(f"only-{number}.pem")
                only.write_bytes(known)
                while not reconnects_with(only):
                    assert caller.is_alive()
                sent.append(producer.send(b"%d" % number))
                sent[-1].result(WAIT_SECONDS_MAX)
            assert not reconnects_with(site.ca.with_name("only-1.pem"))
    finally:
        is_over.set()
        caller.join(WAIT_SECONDS_MAX)
    numbers = [*appended, *(one.result(WAIT_SECONDS_MAX).sequence or 0 for one in sent)]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


def test_sink_forwards_over_tls(server: Millraced, site: Site, start_millraced: StartMillraced, tmp_path: Path) -> None:
    """A sink with a certificate forwards; one without says what is wrong, and keeps its events."""
    files = f'certificate = "{site.client.certificate}", private_key = "{site.client.private_key}"'
    sinks = {"good": f'{{ ca = "{site.ca}", {files} }}', "bad": f'{{ ca = "{tmp_path}/nowhere.pem" }}'}
    toml = "".join(
        f'[channels.{name}]\ntype = "file"\n[sinks.{name}]\ntype = "millrace"\nchannel = "{name}"\n'
        f'endpoints = ["{server.grpc}"]\ntarget_channel = "orders"\ntls = {tls}\n'
        for name, tls in sinks.items()
    )
    edge = start_millraced(toml)
    with millrace.connect(edge.grpc) as client, millrace.connect(server.grpc, tls=site.client) as target:
        for name in sinks:
            client.channel(name).append([name.encode()])
        with target.channel("orders").transaction() as txn:
            (batch,) = txn.take(wait_seconds=WAIT_SECONDS_MAX)
            assert [event.body for event in batch] == [b"good"]
        watched = chain.from_iterable(client.admin.watch_components(0.1))
        failing = next(one for one in watched if one.state is ComponentState.BACKING_OFF)
        assert failing.name == "bad"
        assert "nowhere.pem cannot be read" in failing.reason
        assert client.admin.get_channel("bad").gauges.queued_events == 1


def test_server_with_files_that_do_not_fit_does_not_start(site: Site, tmp_path: Path) -> None:
    """The configuration error names the setting, the file and what to do."""
    (site.ca.parent / "server.key").chmod(0o644)
    config = tmp_path / "millrace.toml"
    config.write_text(site.toml())
    ran = run_millraced("serve", "--config", config)
    assert ran.returncode == 2
    assert re.search(r"server\.tls\.private_key: .* run: chmod o-rwx", ran.stderr)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_versions_of_tls_are_refused(server: Millraced, site: Site) -> None:
    """A client that offers TLS 1.1 at most gets no connection, neither to gRPC nor to HTTP."""
    context = ssl.create_default_context(cafile=str(site.ca))
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    for address in (server.grpc, server.http):
        with (
            socket.create_connection(host_and_port(address), WAIT_SECONDS_MAX) as plain,
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            context.wrap_socket(plain, server_hostname="localhost")
