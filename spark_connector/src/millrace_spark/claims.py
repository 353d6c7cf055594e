"""Claims that a driver holds: ranges that stand still until they are acknowledged or released."""

import os
from collections.abc import Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from millrace_spark.errors import MillraceSparkError
from millrace_spark.options import ClaimOptions, parse_endpoints
from millrace_spark.ranges import ClaimedRange, ranges_to_json
from millrace_spark.reader_id import reader_id_of


def claim_ranges(
    endpoints: str | Iterable[str],
    channel: str,
    *,
    reader_id: str | None = None,
    lease_seconds: float | None = None,
    takeover: bool = False,
) -> "ClaimedRanges":
    """Claims a channel and fixes, for each endpoint, the range from its oldest event to its newest.

    Until the claims are released nobody else consumes from the channel. A background thread keeps them alive, whether
    Spark is reading or not.

    Args:
        endpoints: Servers that hold the channel, `host:port`; in one string with commas between, or several strings.
        channel: The channel's name, the same on each.
        reader_id: Who claims. Ends a claim that the same reader still has, as after a crash, and fences it off; so give
            each pipeline a name of its own. Without one a name is made of user, machine and process.
        lease_seconds: How long the claims outlive this process; the channel's own lease if None.
        takeover: End another reader's claim.

    Raises:
        OptionError: An endpoint is none.
        MillraceSparkError: A server cannot be reached, or refuses. No claim is left behind.
    """
    options = ClaimOptions(
        endpoints=parse_endpoints(endpoints if isinstance(endpoints, str) else ",".join(endpoints)),
        channel=channel,
        reader_id=reader_id or reader_id_of(os.getpid()),
        lease_seconds=lease_seconds,
        takeover=takeover,
    )
    return ClaimedRanges(options)


class ClaimedRanges:
    """What `claim_ranges` claimed. A context manager that releases it.

    Attributes:
        ranges: For each endpoint what was claimed there.
    """

    def __init__(self, options: ClaimOptions) -> None:
        from millrace_spark.held_claim import HeldClaim

        self._claims: list[HeldClaim] = []
        with ExitStack() as on_failure:
            on_failure.callback(self.release)
            for endpoint in options.endpoints:
                self._claims.append(HeldClaim(endpoint, options))
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
