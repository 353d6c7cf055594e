"""The interceptor `sample`, which keeps a fraction of the events."""

from collections.abc import Callable
from hashlib import blake2b
from itertools import repeat
from random import Random
from typing import Literal

from pydantic import Field

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.context import THIS_MACHINE, InterceptorContext
from millrace_server.agent.interceptors.interceptor import Interceptor, InterceptorConfig

_SEED_BYTES = 8
_HASH_BYTES = 8
_HASH_END = 1 << (8 * _HASH_BYTES)


class SampleConfig(InterceptorConfig):
    """Keeps a fraction of the events and drops the others, which are counted.

    With a key, the same events are always kept, on every machine. At random, the choice may differ when a batch is
    repeated, so the channels of one source may hold different samples after a crash.
    """

    type: Literal["sample"]
    """Keeps a fraction of the events."""

    fraction: float = Field(ge=0, le=1, allow_inf_nan=False)
    """The fraction to keep: of all keys if there is a `header`, otherwise of the events, on average."""

    header: str | None = None
    """The header with the key: events with the same key are all kept or all dropped. The key of an event without the
    header is its body. None: each event is kept or dropped at random."""

    seed: int | None = Field(None, ge=0, le=_HASH_END - 1)
    """With a `header`, samples with different seeds are independent of each other. Without one, the random choices are
    the same after each start."""

    def make(self, context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        if self.header is not None:
            return _KeySample(self.fraction, self.header, self.seed or 0)
        seed = int.from_bytes(context.random_bytes(_SEED_BYTES)) if self.seed is None else self.seed
        return _RandomSample(self.fraction, Random(seed).random)  # noqa: S311 - it guards no secret


class _RandomSample:
    def __init__(self, fraction: float, random: Callable[[], float]) -> None:
        self._fraction = fraction
        self._random = random

    def intercept(self, table: EventTable) -> EventTable:
        return table.chosen([self._random() < self._fraction for _ in repeat(None, table.count)])


class _KeySample:
    def __init__(self, fraction: float, header: str, seed: int) -> None:
        self._hash_limit = fraction * _HASH_END
        self._header = header
        self._salt = seed.to_bytes(_SEED_BYTES)

    def intercept(self, table: EventTable) -> EventTable:
        keys = table.headers.get(self._header)
        if isinstance(keys, str):
            return table if self._keeps(keys.encode(errors="replace")) else table.part(0, 0)
        # Most keys occur many times, so each is hashed once.
        known = {key: self._keeps(key.encode(errors="replace")) for key in set(keys or ()) if key is not None}
        return table.chosen(
            [
                self._keeps(body) if key is None else known[key]
                for key, body in zip(table.values(self._header), table.bodies, strict=True)
            ]
        )

    def _keeps(self, key: bytes) -> bool:
        return int.from_bytes(blake2b(key, digest_size=_HASH_BYTES, salt=self._salt).digest()) < self._hash_limit
