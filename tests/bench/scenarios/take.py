"""Take in columns: the way out, in transactions."""

import asyncio
import itertools

from millrace.v1 import channel_service_pb2 as pb
from tests.bench.bare_server import source_request
from tests.bench.measuring import Contender, Scenario
from tests.bench.payloads import BATCH_EVENTS, CHANNEL, append_columns
from tests.bench.world import CHANNELS, World

CALLERS = 4
TAKES_PER_TXN = 10

_numbers = itertools.count()


def take_scenario(world: World) -> Scenario:
    """Four callers take batches of 1,000 in columns and commit them."""
    return _scenario(world, columns=True)


def take_in_rows_scenario(world: World) -> Scenario:
    """The same in rows, for comparison: what it costs to turn columns into rows."""
    return _scenario(world, columns=False)


def _scenario(world: World, *, columns: bool) -> Scenario:
    answer_bytes = len(append_columns(BATCH_EVENTS))
    request_bytes = len(_take_request("txn-0000000", columns=columns))

    def ours(name: str, takes_per_txn: int) -> Contender:
        async def run(operations: int) -> None:
            await _take_all(world, operations, takes_per_txn, columns=columns)

        return Contender(
            name=name,
            server_pid=world.server.process.pid,
            run=run,
            prepare=lambda operations: world.fill(operations, BATCH_EVENTS),
            tidy=lambda _operations: world.empty(0),
        )

    return Scenario(
        name="take" if columns else "take_rows",
        title=f"Take, {'columns' if columns else 'rows'}, {CALLERS} callers",
        events_per_operation=BATCH_EVENTS,
        operations=400 if columns else 80,
        ours=[
            ours(f"BeginTxn, {TAKES_PER_TXN} x Take, Commit", TAKES_PER_TXN),
            ours("BeginTxn, Take, Commit", 1),
        ],
        echo=world.bare_calls("echo", append_columns(BATCH_EVENTS), CALLERS),
        one_way=world.bare_calls("source", source_request(answer_bytes, request_bytes), CALLERS),
        target=0.6 if columns else None,
    )


async def _take_all(world: World, operations: int, takes_per_txn: int, *, columns: bool) -> None:
    begin, take, commit = (world.unary(CHANNELS.format(method)) for method in ("BeginTxn", "Take", "Commit"))
    remaining = operations

    async def keep_taking() -> None:
        nonlocal remaining
        while remaining > 0:
            takes = min(takes_per_txn, remaining)
            remaining -= takes
            txn_id = f"txn-{next(_numbers):07}"
            await begin(pb.BeginTxnRequest(channel=CHANNEL, txn_id=txn_id).SerializeToString())
            request = _take_request(txn_id, columns=columns)
            for _ in range(takes):
                await take(request)
            await commit(pb.CommitRequest(txn_ids=[txn_id]).SerializeToString())

    async with asyncio.TaskGroup() as taking:
        for _ in range(CALLERS):
            taking.create_task(keep_taking())


def _take_request(txn_id: str, *, columns: bool) -> bytes:
    return pb.TakeRequest(txn_id=txn_id, max_events=BATCH_EVENTS, columns=columns).SerializeToString()
