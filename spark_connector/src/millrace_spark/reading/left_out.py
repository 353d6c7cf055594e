"""Shards that a checkpoint knows, and the options do not name any more."""

import logging
from collections.abc import Mapping
from dataclasses import replace

import millrace_client as millrace
from millrace_spark.lookup import connected
from millrace_spark.reading.data_loss import LossPolicy
from millrace_spark.reading.offsets import Offsets, ShardOffset
from millrace_spark.reading.options import ClaimOptions
from millrace_spark.shards import Shard, is_meant

_log = logging.getLogger("millrace_spark")


class LeftOut:
    """Looks once at each, so that no event is left unread in silence.

    Args:
        options: What is read.
        losses: What becomes of a shard that is not drained.
    """

    def __init__(self, options: ClaimOptions, losses: LossPolicy) -> None:
        self._options = options
        self._losses = losses
        self._looked_at: dict[Shard, bool] = {}

    def positions(self, logged: Mapping[Shard, ShardOffset]) -> Offsets:
        """Those that are to stay in the checkpoint, with nothing to read: they are drained, and may come back.

        Raises:
            DataLossError: One is not drained, and that is fatal.
        """
        return {
            shard: replace(offset, from_sequence=offset.to_sequence)
            for shard, offset in logged.items()
            if self._is_drained(shard, offset)
        }

    def _is_drained(self, shard: Shard, offset: ShardOffset) -> bool:
        if shard not in self._looked_at:
            undrained = self._undrained(shard, offset)
            if undrained is not None:
                self._losses.tell(undrained)
            self._looked_at[shard] = undrained is None
        return self._looked_at[shard]

    def _undrained(self, shard: Shard, offset: ShardOffset) -> str | None:
        """What is left there, in a sentence; None where it is nothing."""
        left_out = f"channel {shard}: is in the query's checkpoint, but endpoints and channels do not name it any more"
        if shard.endpoint in self._options.endpoints and is_meant(shard.channel, self._options.channels):
            return f"channel {shard}: is in the query's checkpoint, but somebody has deleted it"
        try:
            with connected([shard.endpoint]) as clients:
                info = clients[shard.endpoint].admin.get_channel(shard.channel)
        except millrace.ChannelNotFoundError:
            return None
        except millrace.MillraceError as error:
            return f"{left_out}, and whether it is drained cannot be told: {str(error).rstrip('.')}"
        end, first = info.gauges.next_sequence, info.gauges.first_sequence
        if info.channel_id != offset.channel_id or first == end or end <= offset.to_sequence:
            _log.info("%s; it is drained", left_out)
            return None
        return f"{left_out}, and events {max(first, offset.to_sequence)} to {end - 1} there have not been read"
