"""The sink `millrace`: appends what it takes to a channel of another server, exactly once and in order."""

import asyncio
from pathlib import Path

from millrace_server.agent.channel_reader import ChannelReader, EventsRejectedError
from millrace_server.agent.sinks.millrace.config import MillraceSinkConfig
from millrace_server.agent.sinks.millrace.endpoints import Endpoints
from millrace_server.agent.sinks.millrace.pipeline import Pipeline, PipelineLimits, RefusedError
from millrace_server.agent.sinks.millrace.target import TargetChannel, connected
from millrace_server.agent.supervision import ComponentError, ComponentFailedError, SilentError


class ForwardingSink:
    """Forwards events.

    Each is named by the id of the channel that it comes from and by its sequence there, and the target's channel stores
    no name twice. So whatever is cut off is simply sent again, from the oldest event on that was not settled: what was
    not answered, or answered and not settled before a crash, is dropped there.

    Args:
        config: What to do.
        directory: Where the sink remembers its server.
    """

    def __init__(self, config: MillraceSinkConfig, directory: Path) -> None:
        self._config = config
        self._directory = directory
        self._endpoints: Endpoints | None = None

    async def run(self, reader: ChannelReader) -> None:
        if self._endpoints is None:
            clock = asyncio.get_running_loop().time
            config = self._config
            self._endpoints = Endpoints(config.endpoints, config.failover_seconds, self._directory, clock)
        endpoints = self._endpoints
        endpoint = await endpoints.current()
        try:
            async with connected(endpoint, self._config.target_channel, self._config.connect_timeout_seconds) as target:
                await _Forwarding(self._config, target, reader, endpoints).run()
        except ComponentFailedError:
            raise
        except ComponentError as error:
            endpoints.note_failure(error.seconds if isinstance(error, SilentError) else 0.0)
            raise


class _Forwarding:
    """The work with one connection: one stream after the other, each smaller or more careful as the target wants it."""

    def __init__(
        self, config: MillraceSinkConfig, target: TargetChannel, reader: ChannelReader, endpoints: Endpoints
    ) -> None:
        self._target = target
        self._reader = reader
        self._endpoints = endpoints
        self._limits = PipelineLimits(
            deliveries_max=config.inflight_batches_max,
            bytes_max=config.inflight_bytes_max,
            body_bytes_max=config.batch_bytes_max,
            events_max=target.transaction_capacity,
            answer_seconds_max=config.timeout_seconds,
        )

    async def run(self) -> None:
        while True:
            try:
                await Pipeline(self._target, self._reader, self._limits, self._endpoints.note_success).run()
            except RefusedError as error:
                self._limits = self._limits._replace(careful_count=0)
                await self._go_round(error)
            else:
                return

    async def _go_round(self, refused: RefusedError) -> None:
        """Sees to it that the next stream gets further than the last one did.

        Raises:
            ComponentError: It would not.
        """
        refusal = refused.refusal
        rejection = EventsRejectedError(f"{self._target.endpoint}: {refusal}")
        if refusal.is_about_stream and refused.unanswered_count > 1:
            # One of them is too large, and nobody has said which.
            refused.delivery.nack()
            self._limits = self._limits._replace(careful_count=refused.unanswered_count)
        elif refusal.is_about_stream:
            self._limits = self._limits._replace(careful_count=1)
            await self._reader.reject(refused.delivery, rejection)
        elif refusal.is_about_event or (refusal.is_about_size and refused.event_count == 1):
            await self._reader.reject(refused.delivery, rejection)
        elif refusal.is_about_size:
            refused.delivery.nack()
            self._limits = self._limits._replace(events_max=refused.event_count // 2)
        elif refusal.is_about_load and not refused.was_alone:
            refused.delivery.nack()
            self._limits = self._limits._replace(careful_count=max(refused.unanswered_count, 2))
        elif refusal.reason == "OFFSET_GAP" and refused.has_condition:
            # What the target had stored of this stream it has lost. The next stream begins without a condition.
            refused.delivery.nack()
        else:
            refused.delivery.nack()
            raise self._target.error_of(refusal)
