"""How callers prove who they are: JSON Web Tokens, certificates, and what looks like them."""

import asyncio
import math
import re
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

import millrace_client as millrace
from millrace.v1.channel_service_pb2 import AppendRequest, BeginTxnRequest
from millrace.v1.event_pb2 import Event
from millrace_client import Tls
from millrace_server.access.tokens import make_token
from millrace_server.files import write_atomically
from tests.access_site import bearer, call, check_that_streams_end, start_server
from tests.integration.raw_http2 import Frame, FrameKind, call_headers, raw_connection
from tests.millraced import Millraced
from tests.odd_certificates import DNS, IP, URI, Names, issued, write_certificate
from tests.token_issuer import AUDIENCE, ISSUER, Issuer, jwks
from tests.waiting import wait_until

WAIT_SECONDS_MAX = 60.0
ONE = Issuer()
ROLES = """
roles.all.allow = ["*:*"]
identities.boss.roles = ["all"]
identities."system:serviceaccount:logs:*".roles = ["all"]
channels.orders.type = "memory"
"""


def jwt_toml(keys: str) -> str:
    return f'auth.jwt = {{ issuer = "{ISSUER}", audience = "{AUDIENCE}", {keys} }}\n{ROLES}'


def jwks_file(server: Millraced) -> Path:
    return server.data_dir.with_name("jwks.json")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Millraced]:
    """A server that trusts one issuer; checks in the end that it has logged no fault, and no token."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "jwks.json").write_bytes(jwks(ONE))
    server = start_server(folder, jwt_toml(f'jwks_file = "{folder}/jwks.json"'))
    try:
        yield server
        assert server.stop() == 0
        assert server.other_output == []
        assert server.faults == []
        assert "eyJ" not in str(server.log)
    finally:
        server.kill()


def append(server: Millraced, token: str) -> str:
    """Returns why an append was refused; an empty string if it was not."""
    try:
        with millrace.connect(server.grpc, token=token) as client:
            client.channel("orders").append([b"one"])
    except millrace.MillraceError as error:
        return "SHOWS THE TOKEN" if token in str(error) else error.reason
    return ""


def get(server: Millraced, token: str) -> int:
    asked = urllib.request.Request(f"http://{server.http}/metrics", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(asked, timeout=WAIT_SECONDS_MAX) as response:  # noqa: S310 - our own server
            return int(response.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


def test_token_of_the_issuer_proves_an_identity(server: Millraced) -> None:
    """Over gRPC and HTTP; expired ones are told apart, and another issuer's are refused."""
    account = ONE.token("system:serviceaccount:logs:shipper", aud=[AUDIENCE, "https://kubernetes.default.svc"])
    tokens = [ONE.token(), account, ONE.token("stranger"), ONE.token(lifetime=-61), Issuer().token(), "a.b.c"]
    refusals = ["", "", "FORBIDDEN", "TOKEN_EXPIRED", "UNAUTHENTICATED", "UNAUTHENTICATED"]
    assert [append(server, token) for token in tokens] == refusals
    assert [get(server, token) for token in tokens] == [200, 200, 403, 401, 401, 401]


def test_streams_end_when_their_token_expires(server: Millraced) -> None:
    """With the leeway of a minute; what was delivered is back in the channel, and other streams go on.

    Transactions of the identity are rolled back, long before their leases end.
    """
    dying = ONE.token("system:serviceaccount:logs:dying", exp=math.ceil(time.time()) - 54)
    with millrace.connect(server.grpc, token=ONE.token()) as boss, millrace.connect(server.grpc, token=dying) as other:
        begin = BeginTxnRequest(channel="orders", lease=Duration(seconds=3_000))
        assert call(server.grpc, "BeginTxn", begin, bearer(dying))[0] == "OK"
        check_that_streams_end("orders", boss, other, lambda: None, millrace.TokenExpiredError)
        wait_until(lambda: boss.admin.get_channel("orders").gauges.open_transactions == 0)


def test_streams_end_when_the_key_of_their_token_is_removed(server: Millraced) -> None:
    """Another key is in force before that without a restart, and the streams of others go on."""
    new = Issuer("EdDSA", "new")
    write_atomically(jwks_file(server), jwks(ONE, new))
    server.wait_for("keys of JSON Web Tokens reloaded")
    with (
        millrace.connect(server.grpc, token=ONE.token()) as boss,
        millrace.connect(server.grpc, token=new.token()) as other,
    ):
        kept, watched = (one.admin.watch_channels(interval_seconds=0.1) for one in (boss, other))
        next(kept), next(watched)
        write_atomically(jwks_file(server), jwks(ONE))
        with pytest.raises(millrace.UnauthenticatedError, match="the key of the token is not known"):
            list(watched)
        next(kept)


def test_server_starts_without_its_issuer(tmp_path: Path) -> None:
    """Tokens are refused until the keys could be fetched, and the log says why."""
    server = start_server(tmp_path, jwt_toml('jwks_url = "http://127.0.0.1:1/keys"'))
    try:
        with (
            millrace.connect(server.grpc, token=ONE.token()) as client,
            pytest.raises(millrace.UnauthenticatedError, match="could not be fetched") as refused,
        ):
            client.admin.list_channels()
        assert refused.value.retry_delay_seconds == 5.0
        assert (
            "Connection refused"
            in server.wait_for("the keys of JSON Web Tokens cannot be read; previous ones stay in use")["why"]
        )
    finally:
        server.kill()


class Guests:
    """A server that asks for certificates, has tokens, and lets nobody do anything; it says whom it refuses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca, _ = write_certificate(folder, "ca", issued([], [], is_authority=True))
        own = write_certificate(folder, "server", issued([(DNS, b"localhost"), (IP, bytes((127, 0, 0, 1)))], []))
        self.token = make_token(folder / "tokens", "token-name")
        self.server = start_server(
            folder,
            f'server.tls = {{ certificate = "{own[0]}", private_key = "{own[1]}", client_ca = "{self.ca}", '
            f'client_certificate = "required" }}\nauth.tokens_file = "{folder}/tokens"\n',
        )

    def shown(self, alternative: Names, common: list[str]) -> tuple[Path, Path]:
        return write_certificate(self.folder, "client", issued(alternative, common))

    def over_grpc(self, shown: tuple[Path, Path], token: str | None = None) -> str | None:
        """Returns whom the server takes a client for."""
        tls = Tls(ca=self.ca, certificate=shown[0], private_key=shown[1])
        with (
            millrace.connect(self.server.grpc, tls=tls, token=token) as client,
            pytest.raises(millrace.MillraceError) as refused,
        ):
            client.admin.get_channel("orders")
        return named(str(refused.value), is_forbidden=refused.value.reason == "FORBIDDEN")

    def over_http(self, shown: tuple[Path, Path], *headers: str) -> str | None:
        """Does the same over HTTP."""
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(*shown)
        host, _, port = self.server.http.rpartition(":")
        lines = [f"Authorization: {header}\r\n" for header in headers]
        asked = f"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{''.join(lines)}\r\n"
        with (
            socket.create_connection((host, int(port)), WAIT_SECONDS_MAX) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            connection.sendall(asked.encode())
            response = b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
        assert not response.startswith("HTTP/1.1 200")
        return named(response.replace("\\\\", "\\"), is_forbidden=response.startswith("HTTP/1.1 403"))


def named(text: str, *, is_forbidden: bool) -> str | None:
    found = re.search("no role of '(.*)' allows", text)
    assert (found is not None) == is_forbidden
    return found[1] if found else None


@pytest.fixture(scope="module")
def guests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guests]:
    guests = Guests(tmp_path_factory.mktemp("guests"))
    try:
        yield guests
        assert guests.server.stop() == 0
        assert guests.server.other_output == []
        assert guests.token not in str(guests.server.log)
    finally:
        guests.server.kill()


@pytest.mark.parametrize(
    ("alternative", "common", "name"),
    [
        ([(DNS, b"web"), (URI, b"spiffe://a/b")], "common", "spiffe://a/b"),
        ([(URI, b"spiffe://a/b"), (URI, b"spiffe://a/c"), (DNS, b"web"), (DNS, b"other")], "common", "web"),
        ([], "common", "common"),
        ([(DNS, b"boss\0.evil.example")], "common", None),
        ([(URI, b"spiffe://boss\0")], "common", None),
        ([(DNS, b"\xff")], "common", None),
        ([], "boss\0", None),
        ([], "a\nb", None),
        ([(DNS, b"x" * 300)], "common", None),
    ],
)
def test_certificates_name_the_same_identity_everywhere(
    guests: Guests, alternative: Names, common: str, name: str | None
) -> None:
    """Over gRPC and HTTP; names that would be read in several ways are nobody's."""
    shown = guests.shown(alternative, [common])
    assert guests.over_grpc(shown) == name
    assert guests.over_http(shown) == name


def test_token_beside_a_certificate_counts(guests: Guests) -> None:
    """Both must be good, and there must be one token only."""
    shown, bearer = guests.shown([], ["common"]), f"Bearer {guests.token}"
    assert guests.over_grpc(shown, guests.token) == "token-name"
    assert guests.over_grpc(shown, "wrong") is None
    assert guests.over_http(shown, bearer) == "token-name"
    for headers in (
        ["Bearer wrong"],
        [bearer, bearer],
        [bearer, "Bearer wrong"],
        [f"{bearer}, {bearer}"],
        ["Basic eDp5"],
    ):
        assert guests.over_http(shown, *headers) is None


async def shown_in_grpc(server: Millraced, headers: list[bytes]) -> None:
    """Appends with these authorization headers, and waits for the end of the call or of the connection."""
    request = AppendRequest(channel="orders", events=[Event(body=b"let in")]).SerializeToString()
    data = Frame(FrameKind.DATA, 1, 1, b"\0" + len(request).to_bytes(4, "big") + request)
    begun = call_headers(1, "/millrace.v1.ChannelService/Append", *((b"authorization", header) for header in headers))
    async with raw_connection(server.grpc) as connection:
        await connection.send(begun, data)
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while (frame := await connection.receive()) is not None and not frame.ends_call:
                pass


def shown_in_http(server: Millraced, headers: list[bytes]) -> bytes:
    """Returns the first line of the response."""
    host, _, port = server.http.rpartition(":")
    lines = b"".join(b"Authorization: " + header + b"\r\n" for header in headers)
    with socket.create_connection((host, int(port)), WAIT_SECONDS_MAX) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + lines + b"\r\n")
        return b"".join(iter(lambda: connection.recv(65_536), b"")).partition(b"\r\n")[0]


GOOD, FORGED = ONE.token(exp=5_000_000_000).encode(), Issuer().token().encode()
HEADER = st.binary(max_size=300) | st.builds(
    bytes.__add__,
    st.sampled_from([b"Bearer ", b"bearer   ", b"Bearer\t", b"Basic ", b"Bearer " + GOOD + b",", GOOD, b""]),
    st.sampled_from([FORGED, GOOD[:-1], GOOD + b"=", b"\0" + GOOD, b"\xff", b"x" * 9_000]) | st.binary(max_size=50),
)


@given(st.lists(HEADER, max_size=3))
def test_headers_that_are_not_one_good_token_let_nobody_in(server: Millraced, headers: list[bytes]) -> None:
    """Whatever bytes they have, over gRPC and over HTTP; and the server goes on."""
    with millrace.connect(server.grpc, token=GOOD.decode()) as boss:
        before = boss.admin.get_channel("orders").counters
        asyncio.run(shown_in_grpc(server, headers))
        assert shown_in_http(server, headers).split(b" ")[1:2] in ([b"401"], [b"400"], [b"431"])
        assert boss.admin.get_channel("orders").counters.event_put_success_count == before.event_put_success_count
