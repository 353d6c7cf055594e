"""Claimed ranges: batch reads of fixed ranges, which a job acknowledges when it is done."""

import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Literal, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from millrace_spark.errors import MillraceSparkError, OptionError
from millrace_spark.option_values import Security
from millrace_spark.reading.options import ClaimOptions, reader_id_of
from millrace_spark.reading.ranges import ClaimedRange, ranges_to_json
from millrace_spark.shards import parse_channels, parse_endpoints, sharing_servers

if TYPE_CHECKING:
    from millrace_client import Tls


def claim_ranges(  # noqa: PLR0913 - a face for notebooks: one keyword for each choice
    endpoints: str | Iterable[str],
    channels: str | Iterable[str],
    *,
    reader_id: str | None = None,
    lease_seconds: float | None = None,
    takeover: bool = False,
    ack: Literal["never", "onSuccess"] = "never",
    tls: "Tls | None" = None,
    token: str | None = None,
    token_file: str | None = None,
) -> "ClaimedRanges":
    """Claims channels and fixes the range of each, on each endpoint, from its oldest event to its newest.

    Until the claims are released, no other reader consumes from the channels. A background thread keeps each claim
    alive, whether Spark reads or not.

    Args:
        endpoints: Servers that hold the channels, `host:port`; one comma-separated string, or several strings. Servers
            that share replicated channels are one endpoint, with slashes between them.
        channels: Names of channels, or patterns such as `orders-*`, in the same form.
        reader_id: The reader. Ends a claim that the same reader still holds, as after a crash, and fences it off; so
            give each pipeline its own name. The default is a name with user, machine and process.
        lease_seconds: How long the claims outlive this process; the default lease of each channel if None.
        takeover: Whether to end another reader's claim.
        ack: `onSuccess`: acknowledges all ranges when the `with` block ends without an exception. Jobs that the block
            does not wait for, and exceptions that it catches, count as success. If the block raises, or the process is
            killed, every event stays in its channel. `never`: only `acknowledge` removes events.
        tls: How to connect over TLS, here and in tasks, by the paths of files on each node. None: plain text.
        token: The token that proves who reads. None: that of `token_file`, or none.
        token_file: File of the token, on each node by this path; it is read again when it changes.

    Raises:
        OptionError: An endpoint is not `host:port`.
        MillraceSparkError: A server is unreachable, or refuses. No claim is left behind.
    """
    servers = endpoints if isinstance(endpoints, str) else ",".join(endpoints)
    options = ClaimOptions(
        endpoints=parse_endpoints(servers),
        channels=parse_channels(channels if isinstance(channels, str) else ",".join(channels)),
        reader_id=reader_id or reader_id_of(os.getpid()),
        lease_seconds=lease_seconds,
        takeover=takeover,
        security=Security(tls=tls, token=token, token_file=token_file, sharing_servers=sharing_servers(servers)),
    )
    if ack not in {"never", "onSuccess"}:
        raise OptionError(f"ack: is {ack!r}; it must be never or onSuccess")
    return ClaimedRanges(options, is_acknowledged_on_success=ack == "onSuccess")


class ClaimedRanges:
    """The result of `claim_ranges`; a context manager that releases the claims.

    Attributes:
        ranges: The claimed range of each channel on each endpoint.
    """

    def __init__(self, options: ClaimOptions, *, is_acknowledged_on_success: bool = False) -> None:
        from millrace_spark.reading.claim_keeper import ClaimKeeper
        from millrace_spark.servers import connected, find_shards

        self._is_acknowledged_on_success = is_acknowledged_on_success
        self._security = options.security
        self._claims: list[ClaimKeeper] = []
        with ExitStack() as on_failure:
            on_failure.callback(self.release)
            with connected(options.endpoints, options.security) as clients:
                shards = find_shards(clients, options.channels)
            for shard in shards:
                self._claims.append(ClaimKeeper(shard, options))
            on_failure.pop_all()
        self.ranges: tuple[ClaimedRange, ...] = tuple(claim.range for claim in self._claims)

    @property
    def options(self) -> dict[str, str]:
        """The options of `format("millrace")` that read exactly these ranges."""
        return {"ranges": ranges_to_json(self.ranges), **self._security.options}

    def load(
        self,
        spark: SparkSession,
        schema: StructType | str | None = None,
        max_events_per_partition: int | None = None,
    ) -> DataFrame:
        """Returns the events as a DataFrame. Every action on it reads exactly these ranges.

        Args:
            spark: The session.
            schema: A subset of the columns, or another order; all columns if None.
            max_events_per_partition: Larger ranges are split among tasks; see `OPTIONS`.
        """
        reader = spark.read.format("millrace").options(**self.options)
        if max_events_per_partition is not None:
            reader = reader.option("maxEventsPerPartition", max_events_per_partition)
        return (reader.schema(schema) if schema is not None else reader).load()

    def acknowledge(self) -> None:
        """Removes the events of these ranges from their channels.

        Call it when the output is safe. It may be repeated, and must be repeated if it failed.

        Raises:
            MillraceSparkError: A claim was lost or released, or a server is unreachable. The events of the ranges
                before it in `ranges` are removed; those of its own range and the ones after it are not.
        """
        if not self._claims:
            raise MillraceSparkError(
                "the claims were released, so nothing was acknowledged; acknowledge before release"
            )
        for claim in self._claims:
            claim.acknowledge()

    def release(self) -> None:
        """Ends the claims. Events that were not acknowledged stay in the channels."""
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

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        try:
            if kind is None and self._is_acknowledged_on_success:
                self.acknowledge()
        finally:
            self.release()
