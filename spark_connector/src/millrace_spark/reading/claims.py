"""Claims that a driver holds: ranges that stand still until they are acknowledged or released."""

import os
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Literal, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from millrace_spark.errors import MillraceSparkError, OptionError
from millrace_spark.option_values import parse_endpoints
from millrace_spark.reading.options import ClaimOptions, reader_id_of
from millrace_spark.reading.ranges import ClaimedRange, ranges_to_json
from millrace_spark.shards import parse_channels


def claim_ranges(  # noqa: PLR0913 - a face for notebooks: one keyword for each choice
    endpoints: str | Iterable[str],
    channels: str | Iterable[str],
    *,
    reader_id: str | None = None,
    lease_seconds: float | None = None,
    takeover: bool = False,
    ack: Literal["never", "onSuccess"] = "never",
) -> "ClaimedRanges":
    """Claims channels and fixes, for each of them on each endpoint, the range from its oldest event to its newest.

    Until the claims are released nobody else consumes from the channels. A background thread for each keeps them alive,
    whether Spark is reading or not.

    Args:
        endpoints: Servers that hold the channels, `host:port`; in one string with commas between, or several strings.
        channels: Names of channels, or patterns such as `orders-*`, in the same form.
        reader_id: Who claims. Ends a claim that the same reader still has, as after a crash, and fences it off; so give
            each pipeline a name of its own. Without one a name is made of user, machine and process.
        lease_seconds: How long the claims outlive this process; each channel's own lease if None.
        takeover: End another reader's claim.
        ack: `onSuccess`: as a `with` block, acknowledge all ranges where the block ends without an exception. That is
            as good as the block: what it did not wait for, or swallowed, counts as done. An exception, also that the
            process is killed, leaves every event where it is. `never`: nothing is removed but by `acknowledge`.

    Raises:
        OptionError: An endpoint is none.
        MillraceSparkError: A server cannot be reached, or refuses. No claim is left behind.
    """
    options = ClaimOptions(
        endpoints=parse_endpoints(endpoints if isinstance(endpoints, str) else ",".join(endpoints)),
        channels=parse_channels(channels if isinstance(channels, str) else ",".join(channels)),
        reader_id=reader_id or reader_id_of(os.getpid()),
        lease_seconds=lease_seconds,
        takeover=takeover,
    )
    if ack not in {"never", "onSuccess"}:
        raise OptionError(f"ack: is {ack!r}; it must be never or onSuccess")
    return ClaimedRanges(options, is_acknowledged_on_success=ack == "onSuccess")


class ClaimedRanges:
    """What `claim_ranges` claimed. A context manager that releases it.

    Attributes:
        ranges: For each channel on each endpoint what was claimed there.
    """

    def __init__(self, options: ClaimOptions, *, is_acknowledged_on_success: bool = False) -> None:
        from millrace_spark.reading.claim_keeper import ClaimKeeper
        from millrace_spark.servers import connected, find_shards

        self._is_acknowledged_on_success = is_acknowledged_on_success
        self._claims: list[ClaimKeeper] = []
        with ExitStack() as on_failure:
            on_failure.callback(self.release)
            with connected(options.endpoints) as clients:
                shards = find_shards(clients, options.channels)
            for shard in shards:
                self._claims.append(ClaimKeeper(shard, options))
            on_failure.pop_all()
        self.ranges: tuple[ClaimedRange, ...] = tuple(claim.range for claim in self._claims)

    @property
    def options(self) -> dict[str, str]:
        """Options of `format("millrace")` that read exactly these ranges."""
        return {"ranges": ranges_to_json(self.ranges)}

    def load(
        self,
        spark: SparkSession,
        schema: StructType | str | None = None,
        max_events_per_partition: int | None = None,
    ) -> DataFrame:
        """The events as a DataFrame; every action on it reads exactly these ranges.

        Args:
            spark: The session that reads.
            schema: Some of the columns, or others' order; all of them if None.
            max_events_per_partition: Larger ranges are split among tasks; see `OPTIONS`.
        """
        reader = spark.read.format("millrace").options(**self.options)
        if max_events_per_partition is not None:
            reader = reader.option("maxEventsPerPartition", max_events_per_partition)
        return (reader.schema(schema) if schema is not None else reader).load()

    def acknowledge(self) -> None:
        """Removes the events of these ranges from their channels, for good.

        Call it when what was read is safe. It may be repeated, and must be where it failed.

        Raises:
            MillraceSparkError: A claim was lost or released, or a server cannot be reached. Endpoints that come before
                it in `ranges` have removed their events, it and those after it have not.
        """
        if not self._claims:
            raise MillraceSparkError("the claims were released, so nothing was acknowledged; acknowledge before that")
        for claim in self._claims:
            claim.acknowledge()

    def release(self) -> None:
        """Ends the claims; what was not acknowledged stays in the channels, for anybody."""
        while self._claims:
            self._claims.pop().release()

    def __repr__(self) -> str:
        held = [
            f"{found.channel}@{found.endpoint} {found.first_sequence:,} to {found.next_sequence - 1:,}"
            for found in self.ranges
        ]
        return f"<ClaimedRanges {', '.join(held)}{'' if self._claims else ', released'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if exc_type is None and self._is_acknowledged_on_success:
                self.acknowledge()
        finally:
            self.release()
