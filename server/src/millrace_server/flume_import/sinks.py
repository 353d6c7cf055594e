"""Conversion of Flume's sinks and sink groups."""

from millrace_server.flume_import.options import Options, Table, set_values, to_path_template

_NEVER_SECONDS = 86_400.0
_LOWEST_RANK = -(1 << 31)
_FLUME_ROLL_SECONDS = 30.0

_ALTERNATIVES = "write a sink of type custom in Python, or let Spark read the channel"
_HDFS_REASONS = {
    "hdfs.kerberosPrincipal": "log in with kinit; libhdfs uses the ticket",
    "hdfs.kerberosKeytab": "log in with kinit; libhdfs uses the ticket",
    "hdfs.proxyUser": "set user in the sink's table options",
    "hdfs.inUsePrefix": "unfinished files have names that readers of the data ignore, and are removed after a crash",
    "hdfs.inUseSuffix": "unfinished files have names that readers of the data ignore, and are removed after a crash",
    "hdfs.writeFormat": "there are no sequence files: use Avro or Parquet",
    "hdfs.threadsPoolSize": "one thread writes",
    "hdfs.rollTimerPoolSize": "one thread writes",
    "hdfs.minBlockReplicas": "files are not rolled because a replica is missing",
    "hdfs.closeTries": "closing is tried until it succeeds",
    "hdfs.retryInterval": "delays after a failure grow up to 30 seconds",
    "serializer.": "has no counterpart",
}
_STATUS_OPTIONS = (
    "defaultBackoff",
    "defaultRollback",
    "defaultIncrementMetrics",
    "backoff.",
    "rollback.",
    "incrementMetrics.",
)
_CODECS = {"gzip": "gzip", "zstd": "zstd", "zstandard": "zstd", "snappy": "snappy"}


def convert_sink(type_name: str, options: Options) -> Table | None:
    """Returns the table of a sink; None if it has no counterpart, which is noted."""
    channel = options.text("channel")
    convert = _CONVERTERS.get(type_name.lower())
    if convert is None:
        options.note("type", f"{type_name} has no counterpart: {_ALTERNATIVES}")
        options.discard_unused()
        return None
    return {"channel": channel} | convert(options, channel)


def convert_group(options: Options) -> Table | None:
    """Returns the table of a sink group; None if it has only one sink and needs no group."""
    sinks = options.words("sinks")
    processor = options.subset("processor")
    kind = processor.text("type", "default").lower()
    priorities = processor.subset("priority")
    table: Table = {"sinks": sinks, "policy": "load_balancing" if kind == "load_balance" else "failover"}
    if kind == "failover":
        ranks = {name: rank for name in sinks if (rank := priorities.number(name)) is not None}
        unranked = [name for name in sinks if name not in ranks]
        if unranked:
            priorities.note("", f"{' and '.join(unranked)} have none, and come last in the order of the list")
        # Highest first; sorting is stable.
        table["sinks"] = sorted(sinks, key=lambda name: ranks.get(name, _LOWEST_RANK), reverse=True)
    backoff_seconds_max = processor.seconds("maxpenalty") or processor.seconds("selector.maxTimeOut")
    set_values(table, backoff_seconds_max=backoff_seconds_max)
    processor.report_unused(
        {
            "selector": "each sink takes from the channel as fast as it can, which shares the load by itself",
            "backoff": "sinks that fail always back off",
        }
    )
    options.report_unused()
    return table if len(sinks) > 1 else None


def _millrace(options: Options, channel: str) -> Table:
    host, port = options.text("hostname"), options.text("port")
    table: Table = {"type": "millrace", "endpoints": [f"{host}:{port}"], "target_channel": channel}
    options.note(
        "", f"target_channel is the channel of the receiving server; here it is called {channel}, as the sink's own"
    )
    set_values(
        table,
        batch_events_max=options.number("batch-size"),
        connect_timeout_seconds=options.seconds("connect-timeout"),
        timeout_seconds=options.seconds("request-timeout"),
    )
    options.report_unused(
        {
            "ssl": "add a table tls, with files in PEM",
            "truststore": "add a table tls, whose ca is a file in PEM",
            "compression-type": "batches travel as they are",
            "compression-level": "batches travel as they are",
            "maxIoWorkers": "there is one event loop",
            "reset-connection-interval": "the name is resolved again when the connection breaks",
        }
    )
    return table


def _hdfs(options: Options, _channel: str) -> Table:
    path, unknown = to_path_template(options.text("hdfs.path"))
    table: Table = {"type": "files", "path": path}
    if unknown:
        options.note("hdfs.path", f"{' and '.join(unknown)} have no counterpart; see the path of the sink files")
    codec = options.text("hdfs.codeC").lower()
    compression = next((name for known, name in _CODECS.items() if codec.startswith(known)), None)
    if codec and compression is None:
        options.note("hdfs.codeC", f"{codec} is not supported; files are compressed with gzip or zstd")
    file_type = options.text("hdfs.fileType", "SequenceFile").lower()
    if "serializer" in options and "avro" in options.text("serializer").lower():
        table["format"] = "avro"
    elif file_type == "sequencefile":
        options.note("hdfs.fileType", "there are no sequence files; text is to_toml, see format for Avro and Parquet")
    rounds = options.flag("hdfs.round")
    value, unit = options.number("hdfs.roundValue"), options.text("hdfs.roundUnit", "second").lower()
    if rounds and value:
        table["time_round_seconds"] = value * {"second": 1, "minute": 60, "hour": 3_600}.get(unit, 1)
    zone, idle_seconds = options.text("hdfs.timeZone"), options.number("hdfs.idleTimeout")
    if options.flag("hdfs.useLocalTimeStamp"):
        options.note("hdfs.useLocalTimeStamp", "the clock is used where an event has no header timestamp")
    set_values(
        table,
        prefix=options.text("hdfs.filePrefix") or None,
        suffix=options.text("hdfs.fileSuffix") or None,
        compression=compression,
        time_zone=None if zone in {"", "Local Time"} else zone,
        open_files_max=options.number("hdfs.maxOpenFiles"),
        batch_events_max=options.number("hdfs.batchSize"),
        stall_seconds=options.seconds("hdfs.callTimeout"),
        idle_seconds=float(idle_seconds) if idle_seconds else None,
        roll_seconds=_roll_seconds(options, "hdfs.rollInterval"),
        # Flume's defaults, 1,024 bytes and 10 events, are not useful limits; 0 means no limit.
        roll_bytes=options.number("hdfs.rollSize") or None,
        roll_events=options.number("hdfs.rollCount") or None,
    )
    options.report_unused(_HDFS_REASONS)
    return table


def _file_roll(options: Options, _channel: str) -> Table:
    table: Table = {"type": "files", "path": options.text("sink.directory")}
    set_values(
        table,
        roll_seconds=_roll_seconds(options, "sink.rollInterval"),
        batch_events_max=options.number("sink.batchSize"),
        prefix=options.text("sink.pathManager.prefix") or None,
    )
    if extension := options.text("sink.pathManager.extension"):
        table["suffix"] = f".{extension}"
    options.report_unused(
        {"sink.pathManager": "names tell the time and what is in the file", "sink.serializer": "text is to_toml"}
    )
    return table


def _roll_seconds(options: Options, key: str) -> float:
    """Returns the age limit of a file: Flume's default if it is not set, and a day if it is 0."""
    given = options.number(key)
    if given == 0:
        options.note(key, "files are finished after a day at the latest: until then their events stay in the channel")
    return float(_FLUME_ROLL_SECONDS if given is None else given or _NEVER_SECONDS)


def _logger(options: Options, _channel: str) -> Table:
    table: Table = {"type": "logger"}
    set_values(table, bytes_max=options.number("maxBytesToLog"))
    options.report_unused()
    return table


def _null(options: Options, _channel: str) -> Table:
    table: Table = {"type": "null"}
    set_values(table, batch_events_max=options.number("batchSize"))
    options.report_unused()
    return table


def _http(options: Options, _channel: str) -> Table:
    table: Table = {"type": "http", "url": options.text("endpoint"), "format": "single"}
    set_values(
        table,
        connect_seconds_max=options.seconds("connectTimeout"),
        answer_seconds_max=options.seconds("requestTimeout"),
    )
    headers = {"Content-Type": options.text("contentTypeHeader"), "Accept": options.text("acceptHeader")}
    set_values(table, headers={name: value for name, value in headers.items() if value} or None)
    advice = "see statuses: what each status means for the events"
    options.report_unused(dict.fromkeys(_STATUS_OPTIONS, advice))
    return table


_CONVERTERS = {
    "avro": _millrace,
    "thrift": _millrace,
    "hdfs": _hdfs,
    "file_roll": _file_roll,
    "logger": _logger,
    "null": _null,
    "http": _http,
}
