"""What a landing asks of `spark.readStream.format("millrace")`, and what that tells of itself."""

import json
from collections.abc import Mapping

from millrace_spark.landing.config import LandingConfig
from millrace_spark.listener import shard_reports


def source_options(config: LandingConfig) -> dict[str, str]:
    """The options of reading for a configuration."""
    source = config.source
    options: dict[str, object] = {
        "endpoints": ",".join(source.endpoints),
        "channels": ",".join(source.channels),
        "readerId": config.landing_name,
        "startingSequences": source.starting_sequences,
        "maxEventsPerTrigger": source.events_per_batch_max,
        "maxBytesPerTrigger": source.bytes_per_batch_max,
        "minEventsPerTrigger": source.events_per_batch_min if config.run.follow else None,
        "failOnDataLoss": source.fail_on_data_loss,
        "takeover": source.takeover,
        "leaseSeconds": source.lease_seconds,
        "retrySeconds": source.retry_seconds,
    }
    if options["minEventsPerTrigger"] is not None:
        options["maxTriggerDelay"] = f"{source.batch_delay_seconds_max}s"
    return {name: _shown(value) for name, value in options.items() if value is not None}


def lag_of(progress: Mapping[str, object] | None) -> int | None:
    """How many events the channels hold that no batch has; None where the query has not told yet."""
    sources = progress.get("sources") if progress else None
    if not isinstance(sources, list) or not sources:
        return None
    told = sources[0].get("latestOffset")
    reports = list(shard_reports(told if isinstance(told, str) else json.dumps(told)))
    return sum(int(report.figures["lag"]) for report in reports) if reports else None


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
