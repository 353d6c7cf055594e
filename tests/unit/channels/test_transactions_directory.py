import pytest

from millrace_server.channels.transactions import TxnDirectory
from millrace_server.errors import TxnNotFoundError, TxnStateError
from tests.channel_events import open_channel


async def test_channel_of_an_unknown_transaction_is_not_found() -> None:
    """It was never begun, or is forgotten."""
    directory = TxnDirectory(10)
    orders, bills = (
        open_channel("orders", directory=directory).transactions,
        open_channel("bills", directory=directory).transactions,
    )
    directory.add("a", orders)
    # Another channel's forgotten id does not remove this channel's.
    directory.remove("a", bills)
    assert directory.find("a") is orders
    directory.remove("a", orders)
    with pytest.raises(TxnNotFoundError, match="no transaction with this id is known") as refused:
        directory.find("a")
    assert refused.value.metadata == {"txn_id": "a"}


async def test_common_channel_of_transactions_of_one_channel_is_that_one() -> None:
    """There may be one transaction or several."""
    directory = TxnDirectory(10)
    orders = open_channel(directory=directory).transactions
    directory.add("a", orders)
    directory.add("b", orders)
    assert directory.find_common(["a"]) is directory.find_common(["b", "a"]) is orders


async def test_common_channel_of_transactions_of_two_channels_is_refused() -> None:
    """A commit is atomic in one channel only; the error names the other one."""
    directory = TxnDirectory(10)
    directory.add("a", open_channel("orders", directory=directory).transactions)
    directory.add("b", open_channel("bills", directory=directory).transactions)
    with pytest.raises(TxnStateError, match="different channels, 'orders' and 'bills'") as refused:
        directory.find_common(["a", "b"])
    assert refused.value.metadata == {"txn_id": "b"}


@pytest.mark.parametrize("txn_ids", [["none"], ["a", "none"], ["none", "a"]])
async def test_common_channel_of_an_unknown_one_is_not_found(txn_ids: list[str]) -> None:
    """Its position among the others makes no difference."""
    directory = TxnDirectory(10)
    directory.add("a", open_channel(directory=directory).transactions)
    with pytest.raises(TxnNotFoundError) as refused:
        directory.find_common(txn_ids)
    assert refused.value.metadata == {"txn_id": "none"}
