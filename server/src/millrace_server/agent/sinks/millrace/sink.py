"""The sink `millrace`, which appends events to a channel of another server, exactly once and in order."""

import asyncio
from pathlib import Path

from millrace_client.errors import (
    EventTooLargeError,
    MessageTooLargeError,
    OffsetGapError,
    OverloadedError,
    TxnCapacityError,
)
from millrace_server.agent.channel_reader import ChannelReader, EventsRejectedError
from millrace_server.agent.sinks.millrace.config import MillraceSinkConfig
from millrace_server.agent.sinks.millrace.pipeline import Pipeline, PipelineLimits, RefusedError
from millrace_server.agent.sinks.millrace.target import Endpoints, TargetChannel, connected
from millrace_server.agent.supervision import ComponentError, ComponentFailedError, ResponseTimeoutError


class ForwardingSink:
    """Forwards events.

    An event is identified by the id of its channel and its sequence, and the target stores each identity once. So after
    any interruption, the sink resumes at the oldest event that is not settled: the target drops events that it has
    already stored, whether the response was lost or the sink crashed before it settled them.
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
            async with connected(endpoint, self._config) as target:
                await _Forwarding(self._config, target, reader, endpoints).run()
        except ComponentFailedError:
            raise
        except ComponentError as error:
            endpoints.note_failure(error.seconds if isinstance(error, ResponseTimeoutError) else 0.0)
            raise


class _Forwarding:
    """Forwards events over one connection, in one stream after another, each with limits that suit the target."""

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
            response_seconds_max=config.timeout_seconds,
        )

    async def run(self) -> None:
        while True:
            try:
                await Pipeline(self._target, self._reader, self._limits, self._endpoints.note_success).run()
            except RefusedError as error:
                self._limits = self._limits._replace(single_count=0)
                await self._adapt(error)
            else:
                return

    async def _adapt(self, refused: RefusedError) -> None:
        """Changes the limits so that the next stream makes progress. Raises ComponentError if that does not help."""
        error = refused.error
        rejection = EventsRejectedError(f"{self._target.endpoint}: {error.reason}: {error.message}")
        match error:
            case MessageTooLargeError() if refused.in_flight_count > 1:
                # One of the requests is too large, but gRPC does not say which.
                refused.delivery.nack()
                self._limits = self._limits._replace(single_count=refused.in_flight_count)
            case MessageTooLargeError():
                self._limits = self._limits._replace(single_count=1)
                await self._reader.reject(refused.delivery, rejection)
            case EventTooLargeError():
                await self._reader.reject(refused.delivery, rejection)
            case TxnCapacityError() if refused.event_count == 1:
                await self._reader.reject(refused.delivery, rejection)
            case TxnCapacityError():
                refused.delivery.nack()
                self._limits = self._limits._replace(events_max=refused.event_count // 2)
            case OverloadedError() if not refused.was_alone:
                refused.delivery.nack()
                self._limits = self._limits._replace(single_count=max(refused.in_flight_count, 2))
            case OffsetGapError() if refused.has_condition:
                # The target has lost events of this stream that it had stored. The next stream begins without a
                # condition.
                refused.delivery.nack()
            case _:
                refused.delivery.nack()
                raise self._target.component_error(error)
