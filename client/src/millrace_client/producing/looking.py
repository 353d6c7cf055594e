"""How a producer stands: what its parts tell, put together."""

import time

from millrace_client.producing.callbacks import CallbackRunner
from millrace_client.producing.engine import Engine
from millrace_client.producing.intake import Intake
from millrace_client.producing.metrics import Latencies, ProducerMetrics, Tally


def metrics_of(intake: Intake, tally: Tally, engine: Engine | None, callbacks: CallbackRunner) -> ProducerMetrics:
    """How things stand. Any thread may ask."""
    servers = [] if engine is None else engine.server_metrics()
    return ProducerMetrics(
        time=time.monotonic(),
        open_events=intake.open_event_count(),
        buffer_bytes=intake.held_bytes,
        buffer_bytes_max=intake.bytes_max,
        inflight_batches=sum(server.inflight_batches for server in servers),
        retrying_batches=0 if engine is None else engine.retrying_count,
        waiting_callbacks=callbacks.waiting_count,
        events_stored=tally.events_stored,
        events_deduplicated=tally.events_deduplicated,
        events_failed=tally.events_failed,
        events_dropped=tally.events_dropped,
        bytes_stored=tally.bytes_stored,
        batches_stored=tally.batches_stored,
        attempts_failed=tally.attempts_failed,
        retries=tally.retries,
        callback_errors=tally.callback_errors,
        blocked_seconds=tally.blocked_seconds,
        latencies=Latencies(tuple(tally.latency_counts), tally.latency_seconds),
        servers=servers,
    )
