"""A replicated channel over three nodes of the engine, beside what the engine and the disk do alone."""

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle, islice, permutations
from pathlib import Path

import nats
import nats.errors
import uvloop
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import NoStreamResponseError

from examples.jetstream_cluster import JetStreamCluster
from millrace.v1 import channel_service_pb2 as pb
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.channel import Channel
from millrace_server.channels.config import ChannelConfig, FileChannelConfig, ReplicatedChannelConfig
from millrace_server.channels.file_store import FileStores
from millrace_server.channels.log_store import LogStore
from millrace_server.channels.recovery import ReplayProgress
from millrace_server.channels.stream_store import StreamStores, TakeOver
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.grpc_services.messages import nonempty_events_of, parse_apart
from millrace_server.histograms import Histograms
from millrace_server.replication.chain import Chain
from millrace_server.replication.engine import Engine
from millrace_server.replication.stream import Stream, StreamLimits
from millrace_server.replication.stream_log import StreamLog
from millrace_server.wal.disk import OsDisk
from millrace_server.wal.format import Kind
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import Submission
from millrace_server.wal.writer_threads import WriterThreads
from tests.bench.findings import Line, Section
from tests.bench.payloads import append_columns

_STREAM_BYTES_MAX = 8 << 30
_LIMITS = StreamLimits(replicas=3, stream_bytes_max=_STREAM_BYTES_MAX)
_CAPACITY = 50_000_000
_BYTE_CAPACITY = 1 << 40
_RESPONSE_BYTES_MAX = 1 << 26
_BARE = "bare"
_GETS_AT_ONCE = 3
_CALL_SECONDS = 30.0
_POLL_SECONDS = 0.02
_LEADER_TRIES_MAX = 20
_LEADER_SECONDS = 2.0
_LARGE_EVENTS = 1_000
_MESSAGES_PER_GET = 8
_LEAST = (
    ("1x1000", "bare 1x1000", 0.9),
    # What a channel cannot do without: its limit.
    ("parse then bare 1x1000", "bare 1x1000", None),
    ("1x1000", "parse then bare 1x1000", None),
    ("16x10", "bare 1x10", 5.0),
    ("64x10", "local 64x10", 0.35),
)
"""What is compared with what, and the least share of it, where there is a target."""


@dataclass(frozen=True)
class ReplicatedPlan:
    """The extent of the measurements."""

    rounds: int = 5
    large: int = 60
    """Appends of 1,000 events in a round."""
    small: int = 400
    """Appends of 10 events by one caller in a round; more callers make more."""

    @property
    def step_count(self) -> int:
        """The rounds, and the replays."""
        return self.rounds + 1


QUICK_REPLICATED_PLAN = ReplicatedPlan(2, 20, 100)


async def measure_replicated(scratch: Path, plan: ReplicatedPlan, on_step: Callable[[], None]) -> list[Section]:
    """Appends through channels and without them, in turns.

    Args:
        scratch: An empty directory on the disk that is measured.
        plan: The extent.
        on_step: Called after each step.
    """
    (scratch / "files").mkdir()
    # The servers' event loop, which is not that of the other scenarios.
    return await asyncio.to_thread(uvloop.run, _measure(scratch, plan, on_step))


async def _measure(scratch: Path, plan: ReplicatedPlan, on_step: Callable[[], None]) -> list[Section]:
    async with AsyncExitStack() as stack:
        cluster = stack.enter_context(JetStreamCluster(scratch / "engine"))
        contenders = await _Contenders.opened(stack, cluster, scratch / "files")
        rates: dict[str, list[float]] = {}
        for number in range(-1, plan.rounds):
            found = await _rates_in_turn(contenders, plan)
            if number >= 0:
                for name, of_round in found.items():
                    rates.setdefault(name, []).extend(of_round)
            on_step()
        replays = await _replays(stack, cluster, plan)
        on_step()
    return [
        Section("Replicated over three nodes: 512-byte bodies, syncs always", [*_rates(rates), *_shares(rates)]),
        Section("Replicated: replay of groups of 1,000 events", replays),
    ]


async def _rates_in_turn(contenders: "_Contenders", plan: ReplicatedPlan) -> dict[str, list[float]]:
    """Measures all contenders once; those with large appends many times, a call of each in turn.

    What else the machine does changes within a second, and so would the shares if each made its calls side by side. The
    second of two calls counts: the first may wait for a replica that still syncs another stream's message.
    """
    calls = contenders.large()
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for names in islice(cycle(permutations(calls)), plan.large):
        for name in names:
            await calls[name]()
            started = time.perf_counter()
            await calls[name]()
            rates[name].append(_LARGE_EVENTS / (time.perf_counter() - started))
    return rates | {name: [await measure()] for name, measure in contenders.in_turn(plan).items()}


@dataclass(frozen=True)
class _Contenders:
    """A replicated channel, a file channel, and a bare stream, with the same leader as the channel's."""

    _replicated: Channel
    _local: Channel
    _bare: JetStreamContext

    @classmethod
    async def opened(cls, stack: AsyncExitStack, cluster: JetStreamCluster, directory: Path) -> "_Contenders":
        url = cluster.urls[0]
        engine = await Engine.connected([url])
        stack.push_async_callback(asyncio.to_thread, engine.close)
        engine.connect_lone()
        config = ReplicatedChannelConfig.model_validate(
            {
                "type": "replicated",
                "capacity": _CAPACITY,
                "byte_capacity": _BYTE_CAPACITY,
                "engine": {"type": "jetstream", "servers": [url], "stream_bytes_max": _STREAM_BYTES_MAX},
            }
        )
        attempt = TakeOver(_LIMITS, "127.0.0.1:1")
        opened = await StreamStores(engine).open("orders", config, attempt, ReplayProgress(), _ignore)
        stack.push_async_callback(opened.store.close)
        files = FileChannelConfig(type="file", capacity=_CAPACITY, byte_capacity=_BYTE_CAPACITY)
        local = await FileStores(directory, OsDisk()).open("orders", files, ReplayProgress(), _ignore)
        stack.push_async_callback(local.close)
        connection = await nats.connect(url)
        stack.push_async_callback(connection.close)
        bare = connection.jetstream()
        await bare.add_stream(name=_BARE, subjects=[_BARE], num_replicas=3, max_bytes=_STREAM_BYTES_MAX)
        leader = cluster.leader_of(opened.chain.stream.name)
        for _ in range(_LEADER_TRIES_MAX):
            if cluster.leader_of(_BARE) is leader:
                break
            # Without a leader there is no response.
            with suppress(nats.errors.TimeoutError):
                await connection.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{_BARE}", timeout=_LEADER_SECONDS)
        await _responded(bare)
        return cls(_channel(config, opened.store), _channel(files, local), bare)

    def large(self) -> Mapping[str, Callable[[], Awaitable[object]]]:
        """The calls with 1,000 events that are compared one by one."""
        raw = _request(_LARGE_EVENTS)

        async def publish() -> None:
            await self._bare.publish(_BARE, raw, timeout=_CALL_SECONDS)

        async def parse_then_publish() -> None:
            assert _events(raw)
            await publish()

        async def append() -> None:
            await self._replicated.appends.append(_events(raw), None)

        return {"bare 1x1000": publish, "parse then bare 1x1000": parse_then_publish, "1x1000": append}

    def in_turn(self, plan: ReplicatedPlan) -> Mapping[str, Callable[[], Awaitable[float]]]:
        """The measurements of many calls."""
        return {
            "local 1x1000": partial(_append, self._local, 1, 1_000, plan.large),
            "bare 1x10": partial(self._publish, 10, plan.small),
            "1x10": partial(_append, self._replicated, 1, 10, plan.small),
            "16x10": partial(_append, self._replicated, 16, 10, plan.small * 4),
            "64x10": partial(_append, self._replicated, 64, 10, plan.small * 16),
            "local 64x10": partial(_append, self._local, 64, 10, plan.small * 16),
        }

    async def _publish(self, events: int, calls: int) -> float:
        raw = _request(events)
        started = time.perf_counter()
        for _ in range(calls):
            await self._bare.publish(_BARE, raw, timeout=_CALL_SECONDS)
        return calls * events / (time.perf_counter() - started)


async def _responded(bare: JetStreamContext) -> None:
    """Waits until a publish gets a response: the node of the connection may not know of the new leader yet."""
    async with asyncio.timeout(_CALL_SECONDS):
        while True:
            with suppress(NoStreamResponseError):
                await bare.publish(_BARE, b"", timeout=_CALL_SECONDS)
                return
            await asyncio.sleep(_POLL_SECONDS)


@cache
def _request(events: int) -> bytes:
    return append_columns(events, "orders")


def _events(raw: bytes) -> list[StoredColumns]:
    """Parses and checks a request as the service does."""
    return nonempty_events_of(*parse_apart(pb.AppendRequest, raw))


async def _append(channel: Channel, callers: int, events: int, calls: int) -> float:
    """Appends as the service does, each caller behind its response; returns events per second."""
    raw = _request(events)

    async def call() -> None:
        for _ in range(calls // callers):
            await channel.appends.append(_events(raw), None)

    started = time.perf_counter()
    await asyncio.gather(*[call() for _ in range(callers)])
    return calls // callers * callers * events / (time.perf_counter() - started)


async def _replays(stack: AsyncExitStack, cluster: JetStreamCluster, plan: ReplicatedPlan) -> list[Line]:
    """Compares the replay of a log with requests for the same messages that overlap as many times."""
    engine = await Engine.connected(cluster.urls[:1])
    stack.push_async_callback(asyncio.to_thread, engine.close)
    stream = Stream(engine, "large", _LIMITS)
    chain = await asyncio.to_thread(Chain.opened, engine, stream)
    await asyncio.to_thread(chain.fence, "127.0.0.1:1")
    log = StreamLog(chain, PayloadCodec())
    assert not await asyncio.to_thread(lambda: list(log.replay()))
    log.start(WriterThreads(), Histograms())
    raw = append_columns(_LARGE_EVENTS, "orders")
    for number in range(plan.large * 4):
        stored = asyncio.Event()

        def done(_submission: Submission, _error: Exception | None, stored: asyncio.Event = stored) -> None:
            stored.set()

        log.submit([(Kind.PUT, [raw])], needs_sync=True, begins_segment=not number, done=done)
        await stored.wait()
    await asyncio.to_thread(log.close)
    events = plan.large * 4 * _LARGE_EVENTS
    ours, bare = [], []
    for _ in range(plan.rounds):
        ours.append(events / await asyncio.to_thread(_replay_seconds, engine, stream))
        bare.append(events / await asyncio.wrap_future(engine.call(_bare_seconds(engine, stream.name, chain))))
    shares = [mine / theirs for mine, theirs in zip(ours, bare, strict=True)]
    return [
        Line(what="replayed", value=statistics.median(ours), unit="events/s"),
        Line(what="overlapping direct gets", value=statistics.median(bare), unit="events/s"),
        Line(what="replayed, of overlapping direct gets", value=statistics.median(shares), unit="", least=0.6),
    ]


def _replay_seconds(engine: Engine, stream: Stream) -> float:
    chain = Chain.opened(engine, stream)
    started = time.perf_counter()
    for record in StreamLog(chain, PayloadCodec()).replay():
        assert record.payload
    return time.perf_counter() - started


async def _bare_seconds(engine: Engine, name: str, chain: Chain) -> float:
    """Gets all messages on the engine's event loop, some requests at once, and does nothing with them."""
    starts = iter(range(1, chain.last_sequence + 1, _MESSAGES_PER_GET))

    async def get_all() -> None:
        for start in starts:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            async def note(message: Msg, ended: "asyncio.Future[None]" = ended) -> None:
                if "Nats-Sequence" not in (message.headers or {}):
                    ended.set_result(None)

            inbox = engine.nats.new_inbox()
            subscription = await engine.nats.subscribe(inbox, cb=note)
            request = json.dumps({"seq": start, "batch": _MESSAGES_PER_GET}).encode()
            await engine.nats.publish(f"$JS.API.DIRECT.GET.{name}", request, inbox)
            await asyncio.wait_for(ended, _CALL_SECONDS)
            await subscription.unsubscribe()

    started = time.perf_counter()
    await asyncio.gather(*[get_all() for _ in range(_GETS_AT_ONCE)])
    return time.perf_counter() - started


def _rates(rates: dict[str, list[float]]) -> list[Line]:
    return [Line(what=name, value=statistics.median(found), unit="events/s") for name, found in rates.items()]


def _shares(rates: dict[str, list[float]]) -> list[Line]:
    return [
        Line(
            what=f"{mine}, of {other}",
            value=statistics.median(one / two for one, two in zip(rates[mine], rates[other], strict=True)),
            unit="",
            least=least,
        )
        for mine, other, least in _LEAST
    ]


def _channel(config: ChannelConfig, store: LogStore) -> Channel:
    return Channel("orders", config, store.storage, TxnDirectory(100), _RESPONSE_BYTES_MAX)


def _ignore(_change: str) -> None:
    """The channels' servers would log it."""
