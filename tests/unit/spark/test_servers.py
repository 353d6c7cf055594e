import contextlib

import pytest

import millrace_client as millrace
from millrace_client import MillraceError, SequenceGoneError, UnavailableError
from millrace_spark import MillraceSparkError, OptionError
from millrace_spark.servers import RetryPolicy, check_aliases, find_shards
from tests.logged import messages_of
from tests.unit.spark.fake_servers import FakeServers


class FakeTime:
    """A clock that advances only in pauses."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def test_wait_grows_up_to_a_bound_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Retries become less frequent, are logged once, and end after the retry time."""
    time = FakeTime()
    retries = RetryPolicy(10.0, clock=time.clock, pause=time.pause)
    attempts = 0
    with contextlib.suppress(UnavailableError):
        while True:
            retries.wait(UnavailableError("gone"))
            attempts += 1
    assert attempts == len(time.pauses)
    assert time.pauses[:5] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert max(time.pauses) == 2.0
    assert sum(time.pauses) == pytest.approx(10.0)
    assert messages_of("millrace_spark", caplog) == ["gone; trying again for up to 10 s"]


def test_reset_ends_the_series_of_failures() -> None:
    """A success ends the current series of failures."""
    time = FakeTime()
    retries = RetryPolicy(1.0, clock=time.clock, pause=time.pause)
    for _ in range(50):
        retries.wait(UnavailableError("gone"))
        retries.reset()
    assert set(time.pauses) == {0.1}


@pytest.mark.parametrize("error", [SequenceGoneError("gone"), MillraceError("?", reason="NEW_REASON")])
def test_wait_for_what_does_not_pass_raises_it(error: MillraceError) -> None:
    """A permanent error is not retried."""
    time = FakeTime()
    with pytest.raises(type(error)):
        RetryPolicy(10.0, clock=time.clock, pause=time.pause).wait(error)
    assert time.pauses == []


@pytest.fixture
def fakes() -> FakeServers:
    fake = FakeServers()
    for endpoint, name in (("a:1", "orders"), ("a:1", "audit-1"), ("b:1", "audit-1"), ("b:1", "audit-2")):
        fake.make(endpoint, name)
    return fake


def clients(fakes: FakeServers, *endpoints: str) -> dict[str, millrace.Client]:
    return {endpoint: fakes.connect(endpoint) for endpoint in endpoints}  # type: ignore[misc] # fakes of them


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["orders"], ["orders@a:1"]),
        (["audit-*"], ["audit-1@a:1", "audit-1@b:1", "audit-2@b:1"]),
        (["orders", "*-2"], ["audit-2@b:1", "orders@a:1"]),
        (["audit-1", "audit-*"], ["audit-1@a:1", "audit-1@b:1", "audit-2@b:1"]),
    ],
)
def test_find_shards_finds_each_once_wherever_it_is(fakes: FakeServers, wanted: list[str], found: list[str]) -> None:
    """A channel need not be on all servers."""
    assert [str(shard) for shard in find_shards(clients(fakes, "a:1", "b:1"), wanted)] == found


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (
            ["orders", "ordres"],
            "channel ordres: there is no channel of that name on a:1, b:1, which have audit-1, audit-2, orders",
        ),
        (["x-*"], r"channel x-\*: the pattern matches no channel on a:1, b:1, which have audit-1, audit-2, orders"),
    ],
)
def test_find_shards_of_a_missing_channel_lists_the_others(
    fakes: FakeServers, wanted: list[str], sentence: str
) -> None:
    """The error lists the existing channels."""
    with pytest.raises(MillraceSparkError, match=f"^{sentence}$"):
        find_shards(clients(fakes, "a:1", "b:1"), wanted)


def test_find_shards_where_a_server_is_away_says_so(fakes: FakeServers) -> None:
    """An unreachable server is an error."""
    fakes.away.add("b:1")
    with pytest.raises(MillraceSparkError, match=r"channel audit-\* at b:1: cannot reach b:1"):
        find_shards(clients(fakes, "a:1", "b:1"), ["audit-*"])


def test_find_shards_of_a_server_under_two_names_is_refused(fakes: FakeServers) -> None:
    """Otherwise its events would be read twice."""
    fakes.channels["localhost:1", "orders"] = fakes.channels["a:1", "orders"]
    with pytest.raises(
        OptionError, match=r"^option endpoints: a:1 and localhost:1 are the same server, since channel "
    ):
        find_shards(clients(fakes, "a:1", "b:1", "localhost:1"), ["orders"])


def test_find_shards_takes_a_replicated_channel_once_whoever_owns_it(fakes: FakeServers) -> None:
    """All servers that share it list it; its shard is the same after a takeover, so that a query goes on with it."""
    shared = fakes.channels["b:1", "audit-1"] = fakes.channels["a:1", "audit-1"]
    shared.type = millrace.ChannelType.REPLICATED
    assert [str(shard) for shard in find_shards(clients(fakes, "a:1", "b:1"), ["audit-1"])] == ["audit-1@a:1"]


def test_find_shards_by_name_on_one_server_makes_no_call(fakes: FakeServers) -> None:
    """The claims check whether the channels exist."""
    fakes.away.add("a:1")
    assert [str(shard) for shard in find_shards(clients(fakes, "a:1"), ["orders", "nowhere"])] == [
        "orders@a:1",
        "nowhere@a:1",
    ]


def test_check_aliases_of_a_replicated_channel_at_two_servers_says_so(fakes: FakeServers) -> None:
    """A batch that were written to it through both would be taken for a repeat of itself."""
    fakes.channels["b:1", "audit-1"] = fakes.channels["a:1", "audit-1"]
    fakes.channels["a:1", "audit-1"].type = millrace.ChannelType.REPLICATED
    homes: dict[str, str] = {}
    check_aliases(homes, "a:1", fakes.connect("a:1").admin.list_channels())
    with pytest.raises(
        OptionError, match=r"^option endpoints: a:1 and b:1 share the replicated channel audit-1; write a slash"
    ):
        check_aliases(homes, "b:1", fakes.connect("b:1").admin.list_channels())
