"""Whole programs that use the client: forks and exits."""

from functools import partial

import pytest

import millrace_client as millrace
from tests.fork_server import run_code
from tests.millraced import Millraced

run = partial(run_code, warning_filters=("error",))


@pytest.fixture
def orders(millraced: Millraced) -> str:
    """The address of a server that has the channel `orders`."""
    with millrace.connect(millraced.grpc) as client:
        client.admin.create_channel("orders", millrace.ChannelConfig(capacity=100_000))
    return millraced.grpc


@pytest.mark.parametrize("ending", ["break", "raise SystemExit"])
def test_program_that_ends_in_a_loop_keeps_its_acks(orders: str, ending: str) -> None:
    """A program may exit right after its last ack without closing anything; the ack arrives, and nothing is printed."""
    with millrace.connect(orders) as client:
        client.channel("orders").append([b"a", b"b"])
        result = run(
            f"""
            import sys
            import millrace_client as millrace

            for delivery in millrace.connect(sys.argv[1]).channel("orders").consume(max_events=1):
                delivery.ack()
                {ending}
            """,
            orders,
        )
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
        with client.channel("orders").transaction() as txn:
            assert [body for batch in txn.take() for body in batch.bodies()] == [b"b"]


def test_program_that_leaves_everything_open_ends(orders: str) -> None:
    """Open clients, streams and transactions do not keep a program running, and print nothing."""
    result = run(
        """
        import sys
        import millrace_client as millrace

        client = millrace.connect(sys.argv[1])
        orders = client.channel("orders")
        orders.append([b"a"])
        deliveries = orders.consume()
        delivery = next(deliveries)
        txn = orders.transaction().begin()
        peek = orders.peek(from_sequence=1, follow=True)
        looks = client.admin.watch_channels()
        next(looks)
        """,
        orders,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_asyncio_program_that_leaves_a_loop_keeps_its_acks(orders: str) -> None:
    """The same for asyncio, with the client closed at the end."""
    with millrace.connect(orders) as client:
        client.channel("orders").append([b"a", b"b"])
        result = run(
            """
            import asyncio, sys
            import millrace_client.aio as millrace

            async def main():
                async with millrace.connect(sys.argv[1]) as client:
                    async for delivery in client.channel("orders").consume(max_events=1):
                        await delivery.ack()
                        break

            asyncio.run(main())
            """,
            orders,
        )
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
        with client.channel("orders").transaction() as txn:
            assert [body for batch in txn.take() for body in batch.bodies()] == [b"b"]


def test_asyncio_tasks_share_a_client(orders: str) -> None:
    """The events of one task that is cancelled during a take return to the channel."""
    result = run(
        """
        import asyncio, sys
        import millrace_client.aio as millrace

        async def take_for_ever(orders, taken):
            async with orders.transaction() as txn:
                await txn.take()
                taken.set()
                await asyncio.sleep(3600)

        async def main():
            async with millrace.connect(sys.argv[1]) as client:
                orders = client.channel("orders")
                receipts = await asyncio.gather(*(orders.append([b"x"] * 3) for _ in range(100)))
                assert sorted(receipt.first_sequence for receipt in receipts) == list(range(1, 300, 3))
                taken = asyncio.Event()
                task = asyncio.create_task(take_for_ever(orders, taken))
                await taken.wait()
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    pass
                gauges = (await client.admin.get_channel("orders")).gauges
                assert (gauges.queued_events, gauges.taken_events) == (300, 0), gauges

        asyncio.run(main())
        """,
        orders,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_fork_before_the_first_call_leaves_the_client_to_both(orders: str) -> None:
    """An unused client is not connected yet, so each process connects for itself, as a producer of its own."""
    result = run(
        """
        import os, sys
        import millrace_client as millrace

        orders = millrace.connect(sys.argv[1]).channel("orders")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                orders.append([b"child"])
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        orders.append([b"parent"])
        with orders.transaction() as txn:
            print(*[body.decode() for batch in txn.take() for body in batch.bodies()])
        """,
        orders,
    )
    assert (result.stdout, result.returncode) == ("child parent\n", 0), result.stderr
