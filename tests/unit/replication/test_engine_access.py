"""How servers of the engine are reached, and what they are told of this server: real ones, with TLS and with users."""

import asyncio
import base64
import binascii
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from examples.jetstream_cluster import JetStreamCluster
from millrace_server.network.dev_certificates import Authority
from millrace_server.replication import engine as engine_module
from millrace_server.replication.connection import Connection
from millrace_server.replication.engine import Engine, EngineError
from millrace_server.replication.engine_access import EngineAccess, EngineTls
from millrace_server.replication.engine_settings import EngineSettings
from millrace_server.replication.lease_bucket import JetStreamBucket, JetStreamLeases
from millrace_server.replication.nkeys import Nkey
from millrace_server.replication.sync_check import warn_of_missing_syncs
from millrace_server.wal.records import LogFailedError
from tests.stream_logs import OwnedLog, connecting_until, engine_at, new_name, owned_log

_SEED_PREFIXES = {"O": 14, "A": 0, "U": 20}


class _Key:
    """A new NKEY of an operator, an account or a user."""

    def __init__(self, kind: str) -> None:
        self._seed = secrets.token_bytes(32)
        self._kind = _SEED_PREFIXES[kind] << 3
        # The class under test signs; what it makes of the seed, the engine's server checks.
        self._signer = Nkey(self._seed)

    @property
    def seed(self) -> str:
        """As `nsc` writes it."""
        return _encoded(bytes([18 << 3 | self._kind >> 5, (self._kind & 31) << 3]) + self._seed)

    @property
    def public(self) -> str:
        """As configurations have it."""
        raw = base64.b32decode(self._signer.public + "=" * (-len(self._signer.public) % 8))
        return _encoded(bytes([self._kind]) + raw[1:-2])

    def jwt(self, subject: str, name: str, claims: dict[str, Any]) -> str:
        """Says something about another key, signed by this one."""
        body = {"jti": secrets.token_hex(8), "iat": 1, "iss": self.public, "sub": subject, "name": name}
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, {**body, "nats": {"version": 2, **claims}}]
        text = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts)
        return f"{text}.{self._signer.sign(text)}"


def _encoded(body: bytes) -> str:
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


@contextmanager
def _server(folder: Path, config: str) -> Iterator[JetStreamCluster]:
    with JetStreamCluster(folder / "nats", 1, extra_config=config) as cluster:
        yield cluster


async def _use(url: str, access: EngineAccess) -> None:
    """Stores something small and something large with such connections, and reads it."""
    large = bytes(range(250)) * 3_600
    async with engine_at(url, access=access) as engine, owned_log(engine, new_name()) as log:
        # A view, as the events of a request are.
        stored = [await log.submit(b"1"), await log.submit(memoryview(large))]
        assert await log.read(*stored) == [b"1", large]


@contextmanager
def _refused(sentence: str) -> Iterator[pytest.ExceptionInfo[EngineError]]:
    """Asserts that such connections are refused, with this in the message."""
    with connecting_until(sentence), pytest.raises(EngineError, match=sentence) as raised:
        yield raised


def _secret(folder: Path, content: str) -> Path:
    path = folder / f"secret-{secrets.token_hex(4)}"
    path.write_text(content)
    path.chmod(0o600)
    return path


async def test_connect_with_a_user_and_a_password_is_admitted(tmp_path: Path) -> None:
    """Another password is not, and is not shown."""
    with _server(tmp_path, "authorization: {user: millrace, password: right}") as cluster:
        await _use(cluster.urls[0], EngineAccess(user="millrace", password_file=_secret(tmp_path, "right\n")))
        with _refused("Authorization Violation") as raised:
            await _use(cluster.urls[0], EngineAccess(user="millrace", password_file=_secret(tmp_path, "wr0ng")))
        assert "wr0ng" not in str(raised.value)


async def test_user_with_the_permissions_of_the_page_may_do_all_that_servers_do(tmp_path: Path) -> None:
    """Logs, checkpoints and their removal, leases and their watch, and the deletion of a channel."""
    page = (Path(__file__).parents[3] / "docs" / "replicated.md").read_text()
    sentence = re.search(r"allow publishing to\s+(.+), and subscribing to (.+)\.\n", page)
    assert sentence is not None
    publish, subscribe = (json.dumps(re.findall("`(.+?)`", part)) for part in sentence.groups())
    permissions = f"{{publish: {publish}, subscribe: {subscribe}}}"
    users = f"authorization: {{users: [{{user: u, password: p, permissions: {permissions}}}]}}"
    with _server(tmp_path, users) as cluster:
        access = EngineAccess(user="u", password_file=_secret(tmp_path, "p"))
        await _use(cluster.urls[0], access)
        engine = await Engine.connected(cluster.urls, access)
        log = await OwnedLog.opened(engine, "orders")
        await log.write_checkpoint((await log.submit(b"1")).end, b"state")
        await asyncio.to_thread(log.chain.purge_before, log.chain.last_sequence)
        await log.close()
        one, other = [
            JetStreamLeases(await JetStreamBucket.opened(engine, 1), f"mill-{number}:7070", 5.0) for number in range(2)
        ]
        for leases in (one, other):
            await leases.ready()
        await one.of("orders").acquire()
        waiting = asyncio.create_task(other.of("orders").acquire())
        await one.give_up("orders")
        await waiting
        for leases in (one, other):
            await leases.close()
        await asyncio.to_thread(log.chain.delete)
        await asyncio.to_thread(engine.close)
        assert "Violation" not in cluster.nodes[0]._log.read_text()


async def test_permission_that_is_missing_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine does not respond to such a request, so what is repeated only times out."""
    monkeypatch.setattr("millrace_server.replication.chain.CALL_SECONDS", 0.1)
    monkeypatch.setattr("millrace_server.replication.stream.CALL_SECONDS", 0.1)
    monkeypatch.setattr("millrace_server.replication.stream_reading.UNKNOWN_SECONDS_MAX", 0.5)
    users = 'authorization: {users: [{user: u, password: p, permissions: {publish: ["$JS.API.>"]}}]}'
    with _server(tmp_path, users) as cluster, capture_logs() as logged, pytest.raises(LogFailedError):
        await _use(cluster.urls[0], EngineAccess(user="u", password_file=_secret(tmp_path, "p")))
    (denial,) = [entry["error"] for entry in logged if entry["log_level"] == "warning"]
    assert 'permissions violation for publish to "millrace.' in denial.lower()


async def test_connect_with_a_token_is_admitted(tmp_path: Path) -> None:
    """It is read from its file."""
    with _server(tmp_path, "authorization: {token: abc}") as cluster:
        await _use(cluster.urls[0], EngineAccess(token_file=_secret(tmp_path, "abc")))


async def test_connect_with_an_nkey_is_admitted(tmp_path: Path) -> None:
    """The engine knows its public part only; another one is refused."""
    key = _Key("U")
    with _server(tmp_path, f"authorization: {{users: [{{nkey: {key.public}}}]}}") as cluster:
        await _use(cluster.urls[0], EngineAccess(nkey_file=_secret(tmp_path, key.seed)))
        with _refused("Authorization Violation"):
            await _use(cluster.urls[0], EngineAccess(nkey_file=_secret(tmp_path, _Key("U").seed)))


async def test_connect_with_a_credentials_file_is_admitted(tmp_path: Path) -> None:
    """The engine trusts an operator, who has signed an account, which has signed the user."""
    operator, account, system, user = _Key("O"), _Key("A"), _Key("A"), _Key("U")
    limits = {"subs": -1, "data": -1, "payload": -1, "conn": -1, "leaf": -1, "imports": -1, "exports": -1}
    stored = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    of_account = operator.jwt(account.public, "A", {"type": "account", "limits": limits | stored})
    of_system = operator.jwt(system.public, "SYS", {"type": "account", "limits": limits})
    of_operator = operator.jwt(operator.public, "O", {"type": "operator", "system_account": system.public})
    of_user = account.jwt(user.public, "U", {"type": "user", "subs": -1, "data": -1, "payload": -1})
    credentials = (
        f"-----BEGIN NATS USER JWT-----\n{of_user}\n------END NATS USER JWT------\n\n*** IMPORTANT ***\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    config = (
        f"operator: {of_operator}\nsystem_account: {system.public}\nresolver: MEMORY\n"
        f"resolver_preload: {{{account.public}: {of_account}, {system.public}: {of_system}}}"
    )
    with _server(tmp_path, config) as cluster:
        await _use(cluster.urls[0], EngineAccess(credentials_file=_secret(tmp_path, credentials)))


async def test_connection_that_was_refused_goes_on_with_a_new_secret(tmp_path: Path) -> None:
    """The file is read for each connection, and a refusal is no reason to give up."""
    secret = _secret(tmp_path, "old")
    cluster = JetStreamCluster(tmp_path / "nats", 1, extra_config="authorization: {token: old}")
    with cluster:
        engine = await Engine.connected(cluster.urls, EngineAccess(token_file=secret))
        log = await OwnedLog.opened(engine, new_name())
        await log.submit(b"1")
        cluster.stop()
        cluster.nodes[0].extra_config = "authorization: {token: new}"
        await asyncio.to_thread(cluster.start)
        storing = log.submit(b"2")
        async with asyncio.timeout(30):
            while "Authorization" not in str(engine.nats.last_error):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.02)
        assert not storing.done()
        secret.write_text("new")
        await storing
        await log.close()
        await asyncio.to_thread(engine.close)


async def test_connect_over_tls_checks_both_certificates(tmp_path: Path) -> None:
    """Who has no certificate, or trusts another authority, is not connected."""
    authority, other = Authority(), Authority()
    ca, other_ca = tmp_path / "ca.pem", tmp_path / "other.pem"
    ca.write_bytes(authority.certificate)
    other_ca.write_bytes(other.certificate)
    certificate, key = authority.issue(tmp_path, "server")
    own, own_key = authority.issue(tmp_path, "millrace")
    config = f"tls: {{cert_file: '{certificate}', key_file: '{key}', ca_file: '{ca}', verify: true}}"
    with _server(tmp_path, config) as cluster:
        await _use(cluster.urls[0], EngineAccess(tls=EngineTls(ca=ca, certificate=own, private_key=own_key)))
        with connecting_until(""), pytest.raises(EngineError, match="can be used"):
            await _use(cluster.urls[0], EngineAccess(tls=EngineTls(ca=ca)))
        with _refused("certificate verify failed"):
            await _use(cluster.urls[0], EngineAccess(tls=EngineTls(ca=other_ca, certificate=own, private_key=own_key)))


async def test_connect_with_tls_to_a_server_without_it_is_refused(nats_url: str, tmp_path: Path) -> None:
    """Nothing is sent in plain text where TLS was asked for."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(Authority().certificate)
    with _refused("does not ask for TLS, and `tls` is set"):
        await _use(nats_url, EngineAccess(tls=EngineTls(ca=ca)))


async def test_close_after_an_attempt_that_was_cancelled_while_it_failed_closes_its_transport(
    nats_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would remain until the event loop is closed."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(Authority().certificate)
    connection = Connection(EngineAccess(tls=EngineTls(ca=ca)))

    async def give_up(_error: Exception) -> None:
        opening.cancel()

    monkeypatch.setattr(connection, "_note", give_up)
    opening = asyncio.ensure_future(connection.open([nats_url], lambda: None))
    with pytest.raises(asyncio.CancelledError):
        await opening
    transport: Any = connection._transport
    writer = transport._io_writer
    assert not writer.is_closing()
    await connection.close()
    assert writer.is_closing()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"user": "me"}, "they come together"),
        ({"password_file": "line"}, "they come together"),
        ({"token_file": "line", "nkey_file": "seed"}, "has nkey_file and token_file"),
        ({"token_file": "empty"}, "must hold one line"),
        ({"token_file": "two"}, "must hold one line"),
        ({"token_file": "readable"}, "chmod o-rwx"),
        ({"token_file": "missing"}, "cannot be read"),
        ({"nkey_file": "line"}, "does not hold the NKEY seed of a user"),
        ({"nkey_file": "account"}, "does not hold the NKEY seed of a user"),
        ({"credentials_file": "seed"}, "does not hold a user's JWT and seed"),
        ({"tls": {"ca": "line"}}, "holds no certificates in PEM"),
        ({"tls": {"certificate": "ca"}}, "certificate and private_key must be given together"),
    ],
)
def test_settings_that_cannot_be_say_why(tmp_path: Path, settings: dict[str, Any], problem: str) -> None:
    """No secret is shown."""
    contents = {"line": "s3cret", "empty": "\n", "two": "s3cret\ns3cret", "readable": "s3cret", "seed": _Key("U").seed}
    for name, content in (contents | {"account": _Key("A").seed, "ca": Authority().certificate.decode()}).items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o644 if name == "readable" else 0o600)

    def located(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: located(inner, key) for key, inner in value.items()}
        return value if name == "user" else tmp_path / value

    with pytest.raises(ValidationError, match=problem) as raised:
        EngineAccess(**located(settings))
    assert not any(content in str(raised.value.errors()[0]["msg"]) for content in ("s3cret", contents["seed"]))


def test_secret_without_tls_is_sent_to_loopback_addresses_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the environment says that the network is secret."""
    settings: dict[str, Any] = {"type": "jetstream", "token_file": _secret(tmp_path, "abc")}
    EngineSettings(servers=["nats://localhost:1", "nats://127.0.0.1:1", "nats://[::1]:1"], **settings)
    with pytest.raises(ValidationError, match="sends its secret to nats://n1:1 in plain text"):
        EngineSettings(servers=["nats://n1:1"], **settings)
    monkeypatch.setenv("MILLRACE_ALLOW_PLAINTEXT", "true")
    EngineSettings(servers=["nats://n1:1"], **settings)


async def test_connect_to_an_old_or_narrow_server_is_refused_with_both_figures(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator sees what is and what must be."""
    monkeypatch.setattr(engine_module, "VERSION_MIN", (99, 1))
    with pytest.raises(EngineError, match=r"is nats-server \d+\.\d+\.\d+; at least 99\.1 is needed"):
        await _use(nats_url, EngineAccess())
    monkeypatch.setattr(engine_module, "VERSION_MIN", (2, 12))
    monkeypatch.setattr(engine_module, "MESSAGE_BYTES_MIN", 1 << 30)
    with pytest.raises(EngineError, match=r"accepts 1048576 bytes in a message \(max_payload\); at least 1073741824"):
        await _use(nats_url, EngineAccess())


async def test_open_of_a_stream_larger_than_the_engine_may_store_is_refused_with_both_figures(tmp_path: Path) -> None:
    """It is met at the opening, not when the disk is full."""
    config = "accounts: {A: {jetstream: {max_file: 1000000}, users: [{user: u, password: p}]}}"
    with _server(tmp_path, config) as cluster:
        access = EngineAccess(user="u", password_file=_secret(tmp_path, "p"))
        with pytest.raises(EngineError, match=r"of 268435456 bytes: .*; the account uses 0 bytes .* 1000000"):
            await _use(cluster.urls[0], access)


async def test_open_of_a_stream_larger_than_a_node_may_store_names_its_setting(tmp_path: Path) -> None:
    """Clients are not told its figure."""
    config = f"jetstream: {{store_dir: '{tmp_path}', max_file_store: 1000000}}"
    with _server(tmp_path, config) as cluster, pytest.raises(EngineError) as refusal:
        await _use(cluster.urls[0], EngineAccess())
    assert re.search(r"of 268435456 bytes: .*; the account has no limit, so the max_file_store", str(refusal.value))


async def test_servers_that_do_not_sync_are_warned_of(tmp_path: Path) -> None:
    """Those that sync are not; one that cannot be asked is named too."""
    with _server(tmp_path, "") as cluster, capture_logs() as logged:
        await warn_of_missing_syncs([cluster.nodes[0].monitoring_url])
        assert not logged
        node = cluster.nodes[0]
        node.kill()
        node.extra_config = f"jetstream: {{store_dir: '{node.directory}', sync_interval: '2m'}}"
        await asyncio.to_thread(cluster.start)
        await warn_of_missing_syncs([node.monitoring_url, "http://127.0.0.1:1"])
    unsynced, unknown = sorted(logged, key=lambda entry: "sync_interval_seconds" not in entry)
    assert "does not sync each message" in unsynced["event"]
    assert unsynced["sync_interval_seconds"] == 120
    assert "cannot determine whether the engine syncs" in unknown["event"]


@pytest.mark.parametrize(
    "response",
    [
        b'INFO {"server_id":"N"}\r\n',
        b'HTTP/1.0 200 OK\r\n\r\n{"jetstream": "off"}',
        b"HTTP/1.0 200 OK\r\n\r\n[]",
        b'HTTP/1.0 200 OK\r\n\r\n{"jetstream": {"config": {"sync_interval": "2m"}}}',
    ],
)
async def test_warn_of_missing_syncs_when_the_url_is_not_of_a_monitoring_port_only_warns(response: bytes) -> None:
    """The port for clients, such as in the first response, must not keep channels from opening."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with capture_logs() as logged:
            await warn_of_missing_syncs([f"http://127.0.0.1:{port}"])
    [entry] = logged
    assert entry["url"] == f"http://127.0.0.1:{port}"
