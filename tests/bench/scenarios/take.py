"""Take in columns: the way out, in transactions."""

import asyncio
import itertools
from dataclasses import dataclass

from millrace.v1 import channel_service_pb2 as pb
from tests.bench.bare_server import source_request
from tests.bench.calls import OnResponse
from tests.bench.measuring import Contender, Scenario, of_echo
from tests.bench.payloads import BATCH_EVENTS, append_columns
from tests.bench.world import CHANNELS, World

CALLERS = 4
TAKES_PER_TXN = 10

_numbers = itertools.count()


def take_scenario(world: World) -> Scenario:
    """Four callers take batches of 1,000 in columns and commit them."""
    return _scenario(world, columns=True)


def take_in_rows_scenario(world: World) -> Scenario:
    """The same in rows, for comparison: the cost of converting columns to rows."""
    return _scenario(world, columns=False)


def _scenario(world: World, *, columns: bool) -> Scenario:
    response = append_columns(BATCH_EVENTS, world.channel)
    request_bytes = len(_take_request("txn-0000000", columns=columns))

    def ours(name: str, takes_per_txn: int) -> Contender:
        async def run(operations: int) -> None:
            taking = Taking(CALLERS, takes_per_txn, columns=columns)
            await take_many(world, operations, taking)

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
        echo=world.bare_calls("echo", response, CALLERS),
        one_way=world.bare_calls("source", source_request(len(response), request_bytes), CALLERS),
        target=of_echo(0.6) if columns else None,
    )


@dataclass(frozen=True)
class Taking:
    """The parameters of takes."""

    callers: int
    takes_per_txn: int
    columns: bool = True


async def take_many(world: World, operations: int, taking: Taking, on_response: OnResponse = lambda: None) -> None:
    """Takes batches in transactions, divided among callers that each wait for their responses."""
    begin, take, commit = (world.unary(CHANNELS.format(method)) for method in ("BeginTxn", "Take", "Commit"))
    remaining = operations

    async def keep_taking() -> None:
        nonlocal remaining
        while remaining > 0:
            takes = min(taking.takes_per_txn, remaining)
            remaining -= takes
            txn_id = f"txn-{next(_numbers):07}"
            await begin(pb.BeginTxnRequest(channel=world.channel, txn_id=txn_id).SerializeToString())
            request = _take_request(txn_id, columns=taking.columns)
            for _ in range(takes):
                await take(request)
                on_response()
            await commit(pb.CommitRequest(txn_ids=[txn_id]).SerializeToString())

    async with asyncio.TaskGroup() as calling:
        for _ in range(taking.callers):
            calling.create_task(keep_taking())


def _take_request(txn_id: str, *, columns: bool) -> bytes:
    return pb.TakeRequest(txn_id=txn_id, max_events=BATCH_EVENTS, columns=columns).SerializeToString()
