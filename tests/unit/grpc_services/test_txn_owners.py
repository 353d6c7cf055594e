"""Transactions of identities that cannot authenticate any more, or that no role allows them any more."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace_server.access.control import AccessControl, Credentials, credentials_of
from millrace_server.access.settings import AuthSettings, IdentitySettings, RoleSettings
from millrace_server.access.tokens import make_token
from millrace_server.channels.activity import Origin
from millrace_server.channels.channel import Channel
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.files import write_atomically
from millrace_server.grpc_services import txn_owners
from millrace_server.grpc_services.txn_owners import TxnOwners
from tests.certificates import Authority
from tests.channel_events import append, limits_of, queued, stored

TAKER = {"web-1": ["take:orders"]}


def roles_of(allowed: Mapping[str, Sequence[str]]) -> tuple[dict[str, RoleSettings], dict[str, IdentitySettings]]:
    """Each identity has the role of its own name."""
    roles = {name: RoleSettings(allow=list(allow)) for name, allow in allowed.items()}
    return roles, {name: IdentitySettings(roles=[name]) for name in allowed}


@dataclass
class Scene:
    """A channel with one event, and identities that may do what `allowed` says."""

    access: AccessControl
    channel: Channel
    owners: TxnOwners
    tokens_file: Path
    token: str

    async def take(self, credentials: Credentials, txn_id: str = "txn") -> None:
        """Takes the event in a transaction of an identity."""
        identity = self.access.identify(credentials)
        self.owners.note_use(identity, credentials)
        transactions = self.channel.transactions
        transactions.begin(txn_id, 3_600.0, Origin(identity.name))
        batches, _ = await transactions.take(txn_id, TakeLimits(), 0.0, None)
        assert batches

    async def remove_first_token(self) -> None:
        """Removes it, and returns when that is in force."""
        _, _, rest = self.tokens_file.read_bytes().partition(b"\n")
        write_atomically(self.tokens_file, rest)
        is_in_force = asyncio.Event()
        self.access.watch(is_in_force.set)
        following = asyncio.create_task(self.access.follow())
        await is_in_force.wait()
        following.cancel()


@pytest.fixture
async def scene(tmp_path: Path) -> Scene:
    tokens_file = tmp_path / "tokens"
    token = make_token(tokens_file, "web-1")
    access = AccessControl(AuthSettings(tokens_file=tokens_file), *roles_of(TAKER))
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=100)
    channel = registry.create("orders", limits_of(capacity=1)).channel
    owners = TxnOwners(access, registry)
    access.watch(owners.roll_back_revoked)
    await append(channel, b"one")
    return Scene(access, channel, owners, tokens_file, token)


async def test_transaction_of_a_removed_token_is_rolled_back(scene: Scene) -> None:
    """What it took can be taken by others at once, long before its lease ends."""
    await scene.take(credentials_of([f"Bearer {scene.token}"], None))
    assert queued(scene.channel) == []
    await scene.remove_first_token()
    assert queued(scene.channel) == [b"one"]
    assert not scene.channel.open_transactions


async def test_transaction_of_an_identity_with_another_token_goes_on(scene: Scene) -> None:
    """A token that is replaced by another one of the same name costs no work that was begun with it."""
    await scene.take(credentials_of([f"Bearer {scene.token}"], None))
    make_token(scene.tokens_file, "web-1")
    await scene.remove_first_token()
    assert scene.channel.open_transactions == 1


@pytest.mark.parametrize(
    ("allow", "is_kept"),
    [(["take:orders"], True), (["*:*"], True), (["append:orders"], False), (["take:other"], False), ([], False)],
)
async def test_transaction_that_no_role_allows_any_more_is_rolled_back(
    scene: Scene, allow: list[str], *, is_kept: bool
) -> None:
    """It counts what the transaction has done: here it has taken."""
    await scene.take(credentials_of([f"Bearer {scene.token}"], None))
    scene.access.replace(*roles_of({"web-1": allow}))
    assert scene.channel.open_transactions == is_kept


async def test_transaction_that_has_put_needs_append(scene: Scene) -> None:
    """One that has done nothing yet needs either of the two."""
    scene.access.replace(*roles_of({"web-1": ["append:orders", "take:orders"]}))
    credentials = credentials_of([f"Bearer {scene.token}"], None)
    scene.owners.note_use(scene.access.identify(credentials), credentials)
    for txn_id in ("put", "idle"):
        scene.channel.transactions.begin(txn_id, 3_600.0, Origin("web-1"))
    scene.channel.transactions.put("put", [stored(b"two")], None)
    scene.access.replace(*roles_of(TAKER))
    assert scene.channel.open_transactions == 1
    scene.channel.transactions.renew("idle")


async def test_transaction_of_an_expired_certificate_is_rolled_back(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as another certificate of the same name is valid, it goes on: several machines may share a name."""
    monkeypatch.setattr(txn_owners, "_CHECK_SECONDS", 0.0)
    authority = Authority()
    scene.access.replace(*roles_of({"localhost": ["take:orders"]}))
    shown = [credentials_of([], authority.issue(tmp_path, "web", days=days)[0].read_bytes()) for days in (1.0, 2.0)]
    await scene.take(shown[0])
    scene.owners.note_use(scene.access.identify(shown[1]), shown[1])
    following = asyncio.create_task(scene.owners.follow())
    for expired, open_count in zip(shown, (1, 0), strict=True):
        monkeypatch.setattr("time.time", lambda: expired.certificate_expiry_time)  # noqa: B023 - called in this turn
        for _ in range(3):
            await asyncio.sleep(0)
        assert scene.channel.open_transactions == open_count
    following.cancel()
    assert queued(scene.channel) == [b"one"]
