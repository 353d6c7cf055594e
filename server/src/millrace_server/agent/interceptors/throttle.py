"""The interceptor `throttle`, which limits the rate of events."""

from bisect import bisect_right
from itertools import accumulate
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_units import ByteSize
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.context import THIS_MACHINE, InterceptorContext
from millrace_server.agent.interceptors.interceptor import (
    Interceptor,
    InterceptorConfig,
    MustWaitError,
    QuickInterceptor,
)
from millrace_server.token_bucket import ROUNDING_SECONDS, TokenBucket


class ThrottleConfig(InterceptorConfig):
    """Limits the events, or the bytes of their bodies, that pass per second.

    The limit is an average: up to one second's worth of events passes at once after a pause. Events count when they
    pass, and count again if their sender repeats them because they could not be stored.
    """

    type: Literal["throttle"]
    """Limits the rate of events."""

    events_per_second: int | None = Field(None, ge=1, le=1_000_000_000)
    """The maximum number of events."""

    bytes_per_second: ByteSize | None = Field(None, ge=1, le=1024**4)
    """The maximum number of bytes of bodies."""

    when_exceeded: Literal["wait", "drop"] = Field("wait", validate_default=True)
    """`wait`: the batch waits, and with it the source, as for a full channel. Nothing is lost, unless the source's
    input cannot wait, such as UDP. A batch with more than one second's worth of events passes as a whole, and the next
    one waits longer.
    `drop`: the first events of the batch pass, and the others are dropped and counted."""

    @field_validator("when_exceeded")
    @classmethod
    def _check_any_limit(cls, when_exceeded: str, info: ValidationInfo) -> str:
        limits = (info.data.get(name, "invalid") for name in ("events_per_second", "bytes_per_second"))
        if all(limit is None for limit in limits):
            raise ValueError("has no limit to apply to; set events_per_second, bytes_per_second or both")
        return when_exceeded

    def make(self, context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        return _Throttle(self, context)


class _Throttle(QuickInterceptor):
    def __init__(self, config: ThrottleConfig, context: InterceptorContext) -> None:
        self._drops = config.when_exceeded == "drop"
        clock, events, byte_count = context.monotonic, config.events_per_second, config.bytes_per_second
        self._limits: list[_EventLimit | _ByteLimit] = []
        if events is not None:
            self._limits.append(_EventLimit(events, events, clock))
        if byte_count is not None:
            self._limits.append(_ByteLimit(byte_count, byte_count, clock))

    def intercept(self, table: EventTable) -> EventTable:
        if self._drops:
            table = table.part(0, min(limit.passing_count(table) for limit in self._limits))
        seconds = max(limit.take(limit.size(table)) for limit in self._limits)
        if seconds > 0 and not self._drops:
            for limit in self._limits:
                limit.give_back(limit.size(table))
            raise MustWaitError(seconds + ROUNDING_SECONDS)
        return table


class _EventLimit(TokenBucket):
    def size(self, table: EventTable) -> int:
        return table.count

    def passing_count(self, table: EventTable) -> int:
        """Returns how many of the first events may pass now."""
        return min(int(max(self.level(), 0)), table.count)


class _ByteLimit(TokenBucket):
    def size(self, table: EventTable) -> int:
        return table.body_bytes

    def passing_count(self, table: EventTable) -> int:
        """Returns how many of the first events may pass now. An event above the limit passes if nothing was used."""
        count = bisect_right(list(accumulate(map(len, table.bodies))), self.level())
        return count or int(self.is_full)
