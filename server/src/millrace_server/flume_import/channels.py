"""Conversion of Flume's channels."""

from millrace_server.flume_import.options import Options, Table, set_values

_LOG_REASONS = {
    "backupCheckpointDir": "both checkpoints lie in checkpoint_dir",
    "checkpointOnClose": "a stop always writes a checkpoint",
    "encryption.": "keys are not taken over: create new ones, and name them in the channel's table encryption",
    "overflowTimeout": "a commit spills at once when the memory is full",
    "overflowDeactivationThreshold": "a commit goes to memory again as soon as the log holds no event",
    "avgEventSize": "bytes are counted exactly",
    "use-fast-replay": "a replay is always fast",
    "use-log-replay-v1": "there is one kind of replay",
    "fsyncInterval": 'set fsync = "interval" to lose up to that much in a power cut',
    "fsyncPerTransaction": 'set fsync = "interval" to lose up to a second in a power cut',
}

_ALTERNATIVES = {
    "jdbc": "a channel of type file is durable too, and faster",
    "kafka": "a channel of type file is durable; to put events into Kafka, write a sink of type custom",
    "pseudotxn": "a channel of type memory has real transactions",
}


def convert_channel(type_name: str, options: Options) -> Table:
    """Returns the table of a channel."""
    table: Table = {"type": type_name}
    match type_name:
        case "memory":
            _set_limits(table, options)
            options.report_unused()
            return table
        case "file":
            _set_limits(table, options)
        case "spillablememory":
            table = _spillable(options)
        case _:
            return _replace_by_file(type_name, options)
    _set_log(table, options)
    options.report_unused(_LOG_REASONS)
    return table


def _replace_by_file(type_name: str, options: Options) -> Table:
    reason = _ALTERNATIVES.get(type_name, "there are channels of type memory, file and spillable")
    options.note("type", f"{reason}; this one becomes a channel of type file")
    table: Table = {"type": "file"}
    set_values(table, capacity=options.number("capacity"))
    options.report_unused()
    return table


def _spillable(options: Options) -> Table:
    table: Table = {"type": "spillable"}
    overflow, memory = options.number("overflowCapacity"), options.number("memoryCapacity")
    options.text("capacity")
    set_values(table, capacity=None if overflow is None else overflow + (memory or 10_000), memory_capacity=memory)
    byte_capacity = options.number("byteCapacity")
    _set_limits(table, options)
    set_values(table, memory_byte_capacity=byte_capacity)
    return table


def _set_limits(table: Table, options: Options) -> None:
    keep_alive = options.number("keep-alive")
    set_values(
        table,
        capacity=options.number("capacity"),
        transaction_capacity=options.number("transactionCapacity"),
        byte_capacity=options.number("byteCapacity") or None,
        byte_capacity_buffer_percentage=options.number("byteCapacityBufferPercentage"),
        keep_alive_seconds=None if keep_alive is None else float(keep_alive),
    )


def _set_log(table: Table, options: Options) -> None:
    directories = [part.strip() for part in options.text("dataDirs").split(",") if part.strip()]
    set_values(
        table,
        data_dirs=directories or None,
        checkpoint_dir=options.text("checkpointDir") or None,
        backup_checkpoint=options.flag("useDualCheckpoints"),
        checkpoint_interval_seconds=options.seconds("checkpointInterval"),
        segment_bytes_max=options.number("maxFileSize"),
        min_free_bytes=options.number("minimumRequiredSpace"),
    )
    if directories:
        options.note("dataDirs", "each channel gets a directory of its own in there; Flume's events are not read")
