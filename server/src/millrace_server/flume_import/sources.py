"""Flume's sources."""

import os
import shlex

from millrace_server.flume_import.interceptors import convert_interceptors, convert_selector
from millrace_server.flume_import.options import ANY_HOST, Options, Table, glob_of, set_known

_WITHOUT_COUNTERPART = {
    "netcat": "use the source syslog, which takes lines over TCP, or the source exec with netcat",
    "netcatudp": "use the source syslog, which takes datagrams",
    "seq": "use `millrace bench put`, or the source exec with seq",
    "org.apache.flume.source.stresssource": "use `millrace bench put`",
    "jms": "write a source of type custom in Python",
    "org.apache.flume.source.kafka.kafkasource": "write a source of type custom in Python",
}
_RPC = "has no source of its own: every server takes events over gRPC at server.listen; senders name the channel"
_SYSLOG_TYPES = {"syslogtcp": "tcp", "multiport_syslogtcp": "tcp", "syslogudp": "udp"}
_TLS = {"ssl": "there is no TLS yet", "keystore": "there is no TLS yet", "keystore-password": "there is no TLS yet"}


def convert_source(type_name: str, options: Options) -> Table | None:
    """The table of a source; None where there is no counterpart, which is told."""
    channels = options.words("channels")
    shared: Table = {"channels": channels}
    set_known(shared, selector=convert_selector(options.below("selector")))
    if interceptors := convert_interceptors(options):
        shared["interceptors"] = interceptors
    kind = type_name.lower()
    if kind in _SYSLOG_TYPES:
        return _syslog(_SYSLOG_TYPES[kind], options) | shared
    convert = _CONVERTERS.get(kind)
    if convert is not None:
        return convert(options) | shared
    if kind in {"avro", "thrift"}:
        options.remark("", f"{_RPC} ({', '.join(channels)})")
    else:
        advice = _WITHOUT_COUNTERPART.get(kind, "write a source of type custom in Python")
        options.remark("type", f"{type_name} has no counterpart: {advice}")
    options.drop_rest()
    return None


def _exec(options: Options) -> Table:
    command, shell = options.text("command"), options.text("shell")
    table: Table = {"type": "exec"}
    if shell:
        table |= {"shell": True, "command": command}
    else:
        table["command"] = shlex.split(command) or [command]
    restart = options.flag("restart")
    table["restart"] = "always" if restart else "never"
    set_known(table, batch_events_max=options.number("batchSize"), linger_seconds=options.seconds("batchTimeout"))
    if command.split()[:1] == ["tail"]:
        options.remark("command", "a source of type taildir reads files that grow, and loses nothing in a crash")
    options.tell_rest(
        {
            "restartThrottle": "a command that ends often is started again after longer and longer delays",
            "logStdErr": "what it writes to its standard error is always logged",
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
        options.remark("consumeOrder", "there is no random order; the oldest file comes first")
    elif order != "oldest":
        table["order"] = order
    for key, setting in (("includePattern", "include"), ("ignorePattern", "exclude")):
        _set_glob(table, options, key, setting)
    set_known(
        table,
        recursive=options.flag("recursiveDirectorySearch"),
        poll_seconds=options.seconds("pollDelay"),
        batch_events_max=options.number("batchSize"),
        file_header=_header_key(options, "fileHeader", "fileHeaderKey", "file"),
        basename_header=_header_key(options, "basenameHeader", "basenameHeaderKey", "basename"),
        format=_format(options),
    )
    options.tell_rest(
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
    settings = options.below("deserializer")
    charset, errors = options.text("inputCharset"), options.text("decodeErrorPolicy").lower()
    line_bytes_max, file_bytes_max = settings.number("maxLineLength"), settings.number("maxBlobLength")
    for key in ("outputCharset", "schemaType"):
        settings.text(key)
    settings.tell_rest({})
    if kind == "blob":
        return {"type": "blob"} | ({"file_bytes_max": file_bytes_max} if file_bytes_max else {})
    if kind == "avro":
        return {"type": "avro", "body": "avro"}
    if kind != "line":
        options.remark("deserializer", f"{deserializer} has no counterpart; lines are read")
    # Without a word, Flume gives a file up that it cannot decode.
    table: Table = {"type": "lines", "line_bytes_max": line_bytes_max or 2048, "decode_errors": errors or "fail"}
    set_known(table, charset=charset or None)
    return table


def _taildir(options: Options) -> Table:
    groups = options.words("filegroups")
    group_paths = options.below("filegroups")
    group_headers = options.below("headers")
    paths: list[str] = []
    path_headers: dict[str, dict[str, str]] = {}
    for group in groups:
        directory, name = os.path.split(group_paths.text(group))
        glob = glob_of(name)
        if glob is None:
            options.remark(
                f"filegroups.{group}", f'"{name}" is no pattern of the shell; all files of the directory are read'
            )
            glob = "*"
        paths.append(f"{directory}/{glob}")
        if headers := dict(group_headers.below(group).items()):
            path_headers[paths[-1]] = headers
    # Flume's source reads any file that its pattern finds.
    table: Table = {"type": "taildir", "paths": paths, "exclude": []}
    set_known(
        table,
        path_headers=path_headers or None,
        skip_to_end=options.flag("skipToEnd"),
        idle_close_seconds=options.seconds("idleTimeout"),
        batch_events_max=options.number("batchSize"),
        byte_offset_header="byteoffset" if options.flag("byteOffsetHeader") else None,
        file_header=_header_key(options, "fileHeader", "fileHeaderKey", "file"),
    )
    options.tell_rest(
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
    set_known(
        table,
        message_bytes_max=options.number("eventSize"),
        client_ip_header=options.text("clientIPHeader") or None,
        port_header=options.text("portHeader") or None,
        batch_events_max=options.number("batchSize"),
    )
    options.tell_rest(
        _TLS | {"charset.": "messages are kept as their bytes", "numProcessors": "there is one event loop"}
    )
    return table


def _http(options: Options) -> Table:
    host, port = options.text("bind", ANY_HOST), options.text("port", "5140")
    table: Table = {"type": "http", "allow_plaintext": True, "listen": f"{host}:{port}"}
    handler = options.text("handler")
    if handler and "JSONHandler" not in handler:
        options.remark(
            "handler", "bodies of other types than JSON become one event each, as Flume's BlobHandler does it"
        )
    settings = options.below("handler")
    set_known(table, body_bytes_max=settings.number("maxBlobLength"))
    settings.tell_rest({})
    options.tell_rest(
        _TLS | {"QueuedThreadPool.": "there is no pool of threads", "HttpConfiguration.": "not configurable"}
    )
    return table


def _set_glob(table: Table, options: Options, key: str, setting: str) -> None:
    pattern = options.text(key)
    if pattern and pattern not in {"^.*$", "^$"}:
        glob = glob_of(pattern)
        if glob is None:
            options.remark(key, f'"{pattern}" is no pattern of the shell; write {setting} by hand')
        else:
            table[setting] = [glob]


def _header_key(options: Options, flag: str, key: str, default: str) -> str | None:
    name = options.text(key, default)
    return name if options.flag(flag) else None


_CONVERTERS = {"exec": _exec, "spooldir": _spooldir, "taildir": _taildir, "http": _http}
