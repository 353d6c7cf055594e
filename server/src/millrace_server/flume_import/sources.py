"""Conversion of Flume's sources."""

import os
import shlex

from millrace_server.flume_import.interceptors import convert_interceptors, convert_selector
from millrace_server.flume_import.options import ANY_HOST, Options, Table, set_values, to_glob

_ALTERNATIVES = {
    "netcat": "use the source syslog, which takes lines over TCP, or the source exec with netcat",
    "netcatudp": "use the source syslog, which takes datagrams",
    "seq": "use `millrace bench put`, or the source exec with seq",
    "org.apache.flume.source.stresssource": "use `millrace bench put`",
    "jms": "write a source of type custom in Python",
    "org.apache.flume.source.kafka.kafkasource": "write a source of type custom in Python",
}
_RPC = "has no source of its own: every server takes events over gRPC at server.listen; senders name the channel"
_SYSLOG_TYPES = {"syslogtcp": "tcp", "multiport_syslogtcp": "tcp", "syslogudp": "udp"}
_TLS = dict.fromkeys(("ssl", "keystore", "keystore-password"), "add a table tls, with files in PEM")


def convert_source(type_name: str, options: Options) -> Table | None:
    """Returns the table of a source; None if it has no counterpart, which is noted."""
    channels = options.words("channels")
    shared: Table = {"channels": channels}
    set_values(shared, selector=convert_selector(options.subset("selector")))
    if interceptors := convert_interceptors(options):
        shared["interceptors"] = interceptors
    kind = type_name.lower()
    if kind in _SYSLOG_TYPES:
        return _syslog(_SYSLOG_TYPES[kind], options) | shared
    convert = _CONVERTERS.get(kind)
    if convert is not None:
        return convert(options) | shared
    if kind in {"avro", "thrift"}:
        options.note("", f"{_RPC} ({', '.join(channels)})")
    else:
        advice = _ALTERNATIVES.get(kind, "write a source of type custom in Python")
        options.note("type", f"{type_name} has no counterpart: {advice}")
    options.discard_unused()
    return None


def _exec(options: Options) -> Table:
    command, shell = options.text("command"), options.text("shell")
    table: Table = {"type": "exec"}
    if shell:
        table |= {"shell": True, "command": command}
    else:
        table["command"] = shlex.split(command) or [command]
    table["restart"] = "always" if options.flag("restart") else "never"
    set_values(table, batch_events_max=options.number("batchSize"), linger_seconds=options.seconds("batchTimeout"))
    if command.split()[:1] == ["tail"]:
        options.note("command", "a source of type taildir reads files that grow, and loses nothing in a crash")
    options.report_unused(
        {
            "restartThrottle": "a command that ends often is restarted after increasing delays",
            "logStdErr": "its standard error is always logged",
        }
    )
    return table


def _spooldir(options: Options) -> Table:
    table: Table = {"type": "spooldir", "directory": options.text("spoolDir")}
    suffix, delete = options.text("fileSuffix"), options.text("deletePolicy", "never")
    if delete.lower() == "immediate":
        table["done"] = {"type": "delete"}
    elif suffix:
        table["done"] = {"type": "rename", "suffix": suffix}
    order = options.text("consumeOrder", "oldest").lower()
    if order == "random":
        options.note("consumeOrder", "there is no random order; the oldest file comes first")
    elif order != "oldest":
        table["order"] = order
    for key, setting in (("includePattern", "include"), ("ignorePattern", "exclude")):
        _set_glob(table, options, key, setting)
    set_values(
        table,
        recursive=options.flag("recursiveDirectorySearch"),
        poll_seconds=options.seconds("pollDelay"),
        batch_events_max=options.number("batchSize"),
        file_header=_header_key(options, "fileHeader", "fileHeaderKey", "file"),
        basename_header=_header_key(options, "basenameHeader", "basenameHeaderKey", "basename"),
        format=_format(options),
    )
    options.report_unused(
        {
            "trackerDir": "the channels themselves remember what they have stored",
            "trackingPolicy": "done files are renamed, moved or deleted",
            "maxBackoff": "delays after a failure grow up to 30 seconds",
            "bufferMaxLines": "without effect in Flume too",
            "deserializer.": "has no counterpart in this format",
        }
    )
    return table


def _format(options: Options) -> Table | None:
    deserializer = options.text("deserializer", "LINE")
    kind = "blob" if "Blob" in deserializer else deserializer.lower()
    settings = options.subset("deserializer")
    charset, errors = options.text("inputCharset"), options.text("decodeErrorPolicy").lower()
    line_bytes_max, file_bytes_max = settings.number("maxLineLength"), settings.number("maxBlobLength")
    for key in ("outputCharset", "schemaType"):
        settings.text(key)
    settings.report_unused()
    if kind == "blob":
        return {"type": "blob"} | ({"file_bytes_max": file_bytes_max} if file_bytes_max else {})
    if kind == "avro":
        return {"type": "avro", "body": "avro"}
    if kind != "line":
        options.note("deserializer", f"{deserializer} has no counterpart; lines are read")
    # By default, Flume fails on a file that it cannot decode.
    table: Table = {"type": "lines", "line_bytes_max": line_bytes_max or 2048, "decode_errors": errors or "fail"}
    set_values(table, charset=charset or None)
    return table


def _taildir(options: Options) -> Table:
    groups = options.words("filegroups")
    group_paths = options.subset("filegroups")
    group_headers = options.subset("headers")
    paths: list[str] = []
    path_headers: dict[str, dict[str, str]] = {}
    for group in groups:
        directory, name = os.path.split(group_paths.text(group))
        glob = to_glob(name)
        if glob is None:
            options.note(f"filegroups.{group}", f'"{name}" is not a shell pattern; all files of the directory are read')
            glob = "*"
        paths.append(f"{directory}/{glob}")
        if headers := dict(group_headers.subset(group).items()):
            path_headers[paths[-1]] = headers
    # Flume's source reads any file that its pattern matches.
    table: Table = {"type": "taildir", "paths": paths, "exclude": []}
    set_values(
        table,
        path_headers=path_headers or None,
        skip_to_end=options.flag("skipToEnd"),
        idle_close_seconds=options.seconds("idleTimeout"),
        batch_events_max=options.number("batchSize"),
        byte_offset_header="byteoffset" if options.flag("byteOffsetHeader") else None,
        file_header=_header_key(options, "fileHeader", "fileHeaderKey", "file"),
    )
    options.report_unused(
        {
            "positionFile": "the channels themselves remember what they have stored; Flume's positions are not read; "
            "set skip_to_end = true, or have the files read from their beginning",
            "writePosInterval": "positions are stored with the events, in one commit",
            "cachePatternMatching": "new files are always found",
            "maxBatchCount": "files take turns",
            "backoffSleepIncrement": "files are looked at twice a second, and more often while they grow",
            "maxBackoffSleep": "files are looked at twice a second, and more often while they grow",
        }
    )
    return table


def _syslog(protocol: str, options: Options) -> Table:
    host = options.text("host", ANY_HOST) or options.text("bind")
    ports = options.words("ports") or [options.text("port", "514")]
    table: Table = {
        "type": "syslog",
        "allow_plaintext": True,
        "listen": [f"{protocol}://{host}:{port}" for port in ports],
    }
    keep = options.text("keepFields", "none").lower()
    if keep in {"all", "true"}:
        table["keep_fields"] = ["all"]
    elif keep not in {"none", "false"}:
        table["keep_fields"] = keep.split()
    set_values(
        table,
        message_bytes_max=options.number("eventSize"),
        client_ip_header=options.text("clientIPHeader") or None,
        port_header=options.text("portHeader") or None,
        batch_events_max=options.number("batchSize"),
    )
    options.report_unused(
        _TLS | {"charset.": "messages are kept as their bytes", "numProcessors": "there is one event loop"}
    )
    return table


def _http(options: Options) -> Table:
    host, port = options.text("bind", ANY_HOST), options.text("port", "5140")
    table: Table = {"type": "http", "allow_plaintext": True, "listen": f"{host}:{port}"}
    handler = options.text("handler")
    if handler and "JSONHandler" not in handler:
        options.note("handler", "bodies of other types than JSON become one event each, as with Flume's BlobHandler")
    settings = options.subset("handler")
    set_values(table, body_bytes_max=settings.number("maxBlobLength"))
    settings.report_unused()
    options.report_unused(
        _TLS | {"QueuedThreadPool.": "there is no thread pool", "HttpConfiguration.": "not configurable"}
    )
    return table


def _set_glob(table: Table, options: Options, key: str, setting: str) -> None:
    pattern = options.text(key)
    if pattern and pattern not in {"^.*$", "^$"}:
        glob = to_glob(pattern)
        if glob is None:
            options.note(key, f'"{pattern}" is not a shell pattern; write {setting} by hand')
        else:
            table[setting] = [glob]


def _header_key(options: Options, flag: str, key: str, default: str) -> str | None:
    name = options.text(key, default)
    return name if options.flag(flag) else None


_CONVERTERS = {"exec": _exec, "spooldir": _spooldir, "taildir": _taildir, "http": _http}
