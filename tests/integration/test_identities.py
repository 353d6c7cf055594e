"""How callers prove who they are: JSON Web Tokens."""

import math
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace_client as millrace
from tests.millraced import Millraced
from tests.token_issuer import AUDIENCE, ISSUER, Issuer, jwks

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


def start(folder: Path, toml: str) -> Millraced:
    (folder / "millrace.toml").write_text(toml)
    places = ("--config", str(folder / "millrace.toml"), "--data-dir", str(folder / "data"))
    return Millraced((*places, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"), folder / "data")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Millraced]:
    """A server that trusts one issuer; checks in the end that it has logged no fault, and no token."""
    folder = tmp_path_factory.mktemp("server")
    (folder / "jwks.json").write_bytes(jwks(ONE))
    server = start(folder, jwt_toml(f'jwks_file = "{folder}/jwks.json"'))
    try:
        yield server
        assert server.stop() == 0
        assert server.other_output == []
        assert [entry for entry in server.log if entry["level"] == "error"] == []
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
        with urllib.request.urlopen(asked, timeout=WAIT_SECONDS_MAX) as answer:  # noqa: S310 - our own server
            return int(answer.status)
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
    """With the leeway of a minute; what was delivered is back in the channel, and other streams go on."""
    dying = ONE.token(exp=math.ceil(time.time()) - 59)
    with millrace.connect(server.grpc, token=ONE.token()) as boss, millrace.connect(server.grpc, token=dying) as other:
        boss.channel("orders").append([b"one"])
        queued_events = boss.admin.get_channel("orders").gauges.queued_events
        kept, watched = (
            boss.admin.watch_channels(interval_seconds=0.1),
            other.admin.watch_channels(interval_seconds=0.1),
        )
        next(kept), next(watched)
        with other.channel("orders").consume() as stream:
            next(stream)
            with pytest.raises(millrace.TokenExpiredError):
                next(stream)
        with pytest.raises(millrace.TokenExpiredError):
            list(watched)
        assert boss.admin.get_channel("orders").gauges.queued_events == queued_events
        next(kept)


def test_server_starts_without_its_issuer(tmp_path: Path) -> None:
    """Tokens are refused until the keys could be fetched, and the log says why."""
    server = start(tmp_path, jwt_toml('jwks_url = "http://127.0.0.1:1/keys"'))
    try:
        with (
            millrace.connect(server.grpc, token=ONE.token()) as client,
            pytest.raises(millrace.UnauthenticatedError, match="could not be fetched") as refused,
        ):
            client.admin.list_channels()
        assert refused.value.retry_delay_seconds == 5.0
        assert (
            "Connection refused"
            in server.wait_for("the keys of JSON Web Tokens cannot be read; former ones stay in force")["why"]
        )
    finally:
        server.kill()
