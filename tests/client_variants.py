"""The synchronous and the asyncio client behind one interface, so that each test runs with both."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import millrace_client
import millrace_client.aio

_AIO_MODULES = ("millrace_client.aio", "millrace_client.consuming.task")

Connect = Callable[..., Any]
"""`connect(endpoint, **options)` of one of the variants."""


class SyncWrapper:
    """An object of the asyncio client that tests use without `await`: each awaitable is run at once."""

    def __init__(self, runner: asyncio.Runner, inner: Any) -> None:
        self._runner = runner
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return self._wrapped(getattr(self._inner, name))

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._wrapped(self._inner(*args, **options))

    def __len__(self) -> int:
        return len(self._inner)

    def __enter__(self) -> Any:
        entered = self._run(self._inner.__aenter__())
        return self if entered is self._inner else self._wrapped(entered)

    def __exit__(self, *error: object) -> None:
        self._run(self._inner.__aexit__(*error))

    def __iter__(self) -> Iterator[Any]:
        if not hasattr(self._inner, "__aiter__"):
            yield from self._inner
            return
        iterator = aiter(self._inner)
        while True:
            try:
                item = self._run(anext(iterator))
            except StopAsyncIteration:
                return
            yield self._wrapped(item)

    def close(self) -> None:
        """Calls `close`, or `aclose` for asynchronous iterators."""
        self._run(self._inner.aclose() if hasattr(self._inner, "aclose") else self._inner.close())

    def _wrapped(self, value: Any) -> Any:
        if inspect.isawaitable(value):
            return self._wrapped(self._run(value))
        if callable(value) or inspect.isasyncgen(value) or type(value).__module__.startswith(_AIO_MODULES):
            return SyncWrapper(self._runner, value)
        return value

    def _run(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        return self._runner.run(wait())


@contextmanager
def client_variant(name: str) -> Iterator[Connect]:
    """The client with this name, `sync` or `aio`; closes the clients that were created."""
    if name == "sync":
        yield from _closing(millrace_client.connect)
        return
    with asyncio.Runner() as runner:

        def connect(endpoint: str, **options: Any) -> SyncWrapper:
            return SyncWrapper(runner, millrace_client.aio.connect(endpoint, **options))

        yield from _closing(connect)


def _closing(connect: Connect) -> Iterator[Connect]:
    clients: list[Any] = []

    def connect_once(endpoint: str, **options: Any) -> Any:
        clients.append(connect(endpoint, **options))
        return clients[-1]

    yield connect_once
    for client in clients:
        client.close()
