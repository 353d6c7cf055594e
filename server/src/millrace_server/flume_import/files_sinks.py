"""Conversion of Flume's sinks that write files."""

import re

from millrace.setting_problems import choices_of
from millrace_server.channels.config import AnyChannelConfig
from millrace_server.flume_import.component_table import find_component
from millrace_server.flume_import.conversion import convert
from millrace_server.flume_import.hadoop import (
    DEFAULT_WANTED,
    below,
    default_file_system,
    has_scheme,
    is_supported,
    with_plain_scheme,
)
from millrace_server.flume_import.options import Options, Table, set_values
from millrace_server.flume_import.patterns import to_path_template
from millrace_server.flume_import.references import fill_in, is_to_be_filled_in

_DAY_SECONDS = 86_400
_ROLL_SECONDS = 30
_ROLL_BYTES = 1_024
_ROLL_EVENTS = 10
"""Flume's defaults."""

_BYTES_HIGHEST = 1 << 40
_EVENTS_HIGHEST = 1_000_000_000
_UNIT_SECONDS = {"second": 1, "minute": 60, "hour": 3_600}
_CODECS = {"gzip": "gzip", "zstd": "zstd", "zstandard": "zstd", "deflate": "gzip", "default": "gzip"}
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]{0,63}")
_SUFFIX = re.compile(r"[A-Za-z0-9._=-]{0,32}")


def convert_hdfs(options: Options, table: Table) -> None:
    """Converts the properties of an HDFS sink that the table of components leaves to code."""
    table["path"] = _hdfs_path(options)
    _set_name(options, table, "prefix", "hdfs.filePrefix", _PREFIX)
    _set_name(options, table, "suffix", "hdfs.fileSuffix", _SUFFIX)
    _set_hdfs_format(options, table)
    _set_times(options, table)
    _set_rolls(options, table, "hdfs.rollInterval", "hdfs.rollSize", "hdfs.rollCount")
    idle_seconds = options.number("hdfs.idleTimeout")
    user = options.text("hdfs.proxyUser")
    set_values(
        table, idle_seconds=float(idle_seconds) if idle_seconds else None, options={"user": user} if user else None
    )


def convert_file_roll(options: Options, table: Table) -> None:
    """Converts the properties of a File Roll sink that the table of components leaves to code."""
    # In Flume, this directory has no placeholders.
    table["path"] = re.sub(r"[{}]", lambda match: match[0] * 2, options.required("sink.directory", "DIRECTORY", "path"))
    _set_name(options, table, "prefix", "sink.pathManager.prefix", _PREFIX)
    extension = options.text("sink.pathManager.extension")
    if extension:
        table["suffix"] = f".{extension}"
    if options.text("sink.pathManager", "DEFAULT").lower() != "default":
        options.changed("sink.pathManager", "file names contain the sink, the channel and the sequences", "prefix")
    _set_serializer(options, table, "sink.serializer")
    _set_rolls(options, table, "sink.rollInterval", None, None)


def _hdfs_path(options: Options) -> str:
    path = with_plain_scheme(options.required("hdfs.path", "PATH", "path"))
    if path.startswith(("s3a:", "s3n:")):
        path = f"s3:{path[4:]}"
        options.changed("hdfs.path", "S3's own client writes it: see options for region and endpoint", "path")
    if not has_scheme(path):
        environment = options.shared.resolver.environment
        default = default_file_system(environment)
        if default is None:
            default = fill_in(DEFAULT_WANTED)
            sentence = (
                "it belongs to Hadoop's default file system, which is not known here: set HADOOP_CONF_DIR to the "
                "directory of core-site.xml and import again, or fill in the namenode"
            )
            options.left_out("hdfs.path", sentence, "path")
        path = below(default, path, environment.get("USER", "flume"))
    if not is_supported(path):
        options.left_out("hdfs.path", "there is no such file system here: fill in a path of another one", "path")
        path = fill_in(path)
    converted = to_path_template(path)
    if converted.unknown:
        sentence = f"{' and '.join(converted.unknown)} has no counterpart: fill in what stands for it"
        options.left_out("hdfs.path", sentence, "path")
    if converted.padded:
        options.changed("hdfs.path", f"{' and '.join(converted.padded)} has leading zeros here", "path")
    return converted.template


def _set_name(options: Options, table: Table, setting: str, key: str, allowed: re.Pattern[str]) -> None:
    name = options.text(key)
    if not name:
        return
    if is_to_be_filled_in(name) or allowed.fullmatch(name):
        table[setting] = name
    else:
        options.left_out(key, f'"{name}" cannot be a {setting}; what depends on events belongs in path', setting)


def _set_hdfs_format(options: Options, table: Table) -> None:
    codec, file_type = options.text("hdfs.codeC").lower(), options.text("hdfs.fileType", "SequenceFile").lower()
    write_format = options.text("hdfs.writeFormat", "Writable")
    if file_type == "sequencefile":
        sentence = f"there are no sequence files (of {write_format}): bodies are lines of text; see format for others"
        options.left_out("hdfs.fileType", sentence, "path")
        for key in ("serializer", *(f"serializer.{name}" for name in options.unread_of("serializer"))):
            if key in options:
                options.text(key)
                options.unneeded(key, "Flume's sequence files have none")
    else:
        _set_serializer(options, table, "serializer")
    if file_type == "datastream" and codec:
        options.unneeded("hdfs.codeC", "Flume does not compress a DataStream")
    elif codec:
        _set_compression(options, table, "hdfs.codeC", codec)


def _set_compression(options: Options, table: Table, key: str, codec: str) -> None:
    known = next((ours for name, ours in _CODECS.items() if codec.startswith(name)), None)
    table["compression"] = known or "gzip"
    if known is None:
        options.changed(key, f"{codec} is not supported: files are compressed with gzip", "compression")


def _set_serializer(options: Options, table: Table, key: str) -> None:
    component = find_component("serializer", options.text(key, "text"))
    settings = options.subset(key, "format")
    codec = settings.text("compressionCodec").lower() if component.becomes == "avro" else ""
    converted = convert(component, settings, type_key=None) or {"type": "text"}
    file_format = converted.pop("type")
    if file_format != "text":
        table["format"] = file_format
    if codec and codec != "null":
        _set_compression(settings, table, "compressionCodec", codec)
    table |= converted


def _set_times(options: Options, table: Table) -> None:
    has_times = "{time:" in str(table["path"])
    rounds, value = options.flag("hdfs.round"), options.number("hdfs.roundValue") or 1
    unit = options.text("hdfs.roundUnit", "second").lower()
    if rounds:
        table["time_round_seconds"] = value * _UNIT_SECONDS.get(unit, 1)
    zone = options.text("hdfs.timeZone")
    if zone not in {"", "Local Time"}:
        table["time_zone"] = zone
    elif has_times:
        options.changed(
            "hdfs.timeZone", "times are in UTC, where Flume has the zone of its machine: see time_zone", "path"
        )
    if options.flag("hdfs.useLocalTimeStamp"):
        sentence = "the clock is used only for events without the header in time_header"
        options.changed("hdfs.useLocalTimeStamp", sentence, "path")
    elif has_times:
        options.advise(
            "hdfs.useLocalTimeStamp", "an event without a time has the current one; Flume fails then", "path"
        )


def _set_rolls(options: Options, table: Table, interval: str, size: str | None, count: str | None) -> None:
    """Sets when files are finished; in Flume, 0 means never."""
    seconds = options.number(interval)
    if seconds == 0:
        sentence = "files are finished after a day at the latest; until then their events stay in the channel"
        options.changed(interval, sentence, "roll_seconds")
    given_bytes = 0 if size is None else options.number(size)
    given_events = 0 if count is None else options.number(count)
    table["roll_seconds"] = float(_ROLL_SECONDS if seconds is None else seconds or _DAY_SECONDS)
    table["roll_bytes"] = _ROLL_BYTES if given_bytes is None else given_bytes or _BYTES_HIGHEST
    table["roll_events"] = _ROLL_EVENTS if given_events is None else given_events or _EVENTS_HIGHEST


def fit_to_channel(options: Options, table: Table, channel: str) -> None:
    """Limits the number of events in a file, since its channel must hold them until the file is finished."""
    channel_table = options.shared.tables["channels"][channel]
    config = choices_of(AnyChannelConfig)[1][str(channel_table["type"])]
    capacity = channel_table.get("capacity", config.model_fields["capacity"].default)
    most = max(1, capacity // 2) if isinstance(capacity, int) else None
    if most is not None and isinstance(table["roll_events"], int) and table["roll_events"] > most:
        table["roll_events"] = most
        sentence = (
            f"a file has at most {most} events, half of what channel {channel} holds, where events stay until their "
            "file is finished"
        )
        options.changed(None, sentence, "roll_events")
