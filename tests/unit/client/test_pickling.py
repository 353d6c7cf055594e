"""What has connections is not sent to another process."""

import copy
import pickle
from collections.abc import Callable

import pytest

import millrace_client
import millrace_client.aio
from millrace_client import Consumer, Producer

ADDRESS = "127.0.0.1:1"


@pytest.mark.parametrize(
    "create",
    [
        lambda: millrace_client.connect(ADDRESS),
        lambda: millrace_client.connect(ADDRESS).admin,
        lambda: millrace_client.connect(ADDRESS).channel("orders"),
        lambda: millrace_client.connect(ADDRESS).channel("orders").transaction(),
        lambda: millrace_client.aio.connect(ADDRESS),
        lambda: millrace_client.aio.connect(ADDRESS).channel("orders"),
        lambda: Producer(ADDRESS, "orders"),
        lambda: Consumer(ADDRESS, "orders"),
        lambda: millrace_client.aio.AsyncConsumer(ADDRESS, "orders"),
    ],
)
def test_pickle_of_a_connection_says_connect_in_the_worker(create: Callable[[], object]) -> None:
    """Process pools, Spark and Ray pickle what they send, and name only a lock otherwise."""
    connected = create()
    for serialize in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied.*; connect in the worker"):
            serialize(connected)
