"""Conversion of Flume's sources."""

import os
from functools import partial

from millrace_server.flume_import.component_table import find_component
from millrace_server.flume_import.conversion import OwnCode, convert
from millrace_server.flume_import.interceptors import convert_interceptors
from millrace_server.flume_import.kafka import convert_kafka_source
from millrace_server.flume_import.options import ANY_HOST, Options, Table, address, set_values
from millrace_server.flume_import.patterns import has_single_dot, to_globs
from millrace_server.flume_import.references import fill_in, is_to_be_filled_in
from millrace_server.flume_import.selectors import convert_selector
from millrace_server.flume_import.tls import server_tls

_LOOPBACK = ("127.", "localhost", "::1", "[::1]")
_WEEK_SECONDS = 604_800.0
_COUNT_MAX = 10**15
_BLOB_BYTES = 100_000_000
_LINE_CHARACTERS = 2_048
"""Flume's defaults of the deserializers."""


def convert_source(options: Options) -> Table | None:
    """Returns the table of a source; None if it has no counterpart, which is recorded."""
    component = find_component("source", options.text("type"))
    channels = options.channels("channels")
    selector = convert_selector(options, channels)
    interceptors = convert_interceptors(options)
    table = convert(component, options, _OWN.get(component.name))
    if table is None:
        return None
    table = {"type": table.pop("type"), "channels": channels} | table
    set_values(table, selector=selector, interceptors=interceptors or None)
    return table


def _listen(options: Options, host_key: str, default_host: str = "") -> str:
    host = options.text(host_key, default_host) or options.required(host_key, "HOST", "listen")
    return address(host, options.required("port", "PORT", "listen"))


def _allow_plaintext(options: Options, table: Table, host: str, *, may_be_tls: bool = True) -> None:
    """Sets `allow_plaintext` if it was requested and is needed."""
    is_plain = not may_be_tls or "tls" not in table
    if options.shared.settings.allow_plaintext and is_plain and not host.startswith(_LOOPBACK):
        table["allow_plaintext"] = True


def _serve(options: Options, table: Table, listen: str, *flags: str) -> None:
    """Sets the address on which a source listens, and TLS."""
    table["listen"] = listen
    set_values(table, tls=server_tls(options, *flags))
    _allow_plaintext(options, table, listen)


def _netcat(options: Options, table: Table) -> None:
    # Flume closes no idle connection; this is the highest value of the setting.
    table["idle_seconds_max"] = _WEEK_SECONDS
    _serve(options, table, _listen(options, "bind"))


def _avro(options: Options, table: Table) -> None:
    rules = options.listed("ipFilterRules")
    if options.flag("ipFilter") and rules:
        table["ip_filter_rules"] = rules
    elif rules:
        options.unneeded("ipFilterRules", "they have no effect, since ipFilter is not true")
    _serve(options, table, _listen(options, "bind"))


def _sequence(options: Options, table: Table) -> None:
    count = options.number("totalEvents")
    # A count above the maximum is practically unlimited.
    set_values(table, count=count if count is not None and count <= _COUNT_MAX else None)


def _netcat_udp(options: Options, table: Table) -> None:
    listen = _listen(options, "bind")
    table |= {"listen": [f"udp://{listen}"], "keep_fields": ["all"]}
    _allow_plaintext(options, table, listen, may_be_tls=False)


def _http(options: Options, table: Table) -> None:
    handler, blob_bytes = options.text("handler"), options.number("handler.maxBlobLength")
    if handler.endswith("BlobHandler"):
        blob_bytes = blob_bytes or _BLOB_BYTES
        options.changed("handler", "a body is one event, unless its Content-Type is that of JSON")
    elif handler and not handler.endswith("JSONHandler"):
        sentence = f"{handler} has no counterpart: requests are JSON, JSON lines, or one event each"
        options.left_out("handler", sentence, "listen")
    set_values(table, body_bytes_max=blob_bytes)
    _serve(options, table, _listen(options, "bind", ANY_HOST), "enableSSL")


def _syslog(transport: str, options: Options, table: Table) -> None:
    host = options.required("host", "HOST", "listen")
    ports = options.required("ports" if "ports" in options else "port", "PORT", "listen").split()
    table["listen"] = [f"{transport}://{address(host, port)}" for port in ports]
    keep = options.text("keepFields", "none").lower()
    if keep in {"all", "true"}:
        table["keep_fields"] = ["all"]
    elif keep not in {"none", "false"}:
        table["keep_fields"] = keep.split()
    if transport == "tcp":
        set_values(table, tls=server_tls(options))
    _allow_plaintext(options, table, host, may_be_tls=transport == "tcp")


def _exec(options: Options, table: Table) -> None:
    command, shell = options.text("command"), options.text("shell")
    if not shell:
        # Flume splits at spaces, and does not support quotes.
        table["command"] = command.split()
    elif shell.split() == ["/bin/sh", "-c"]:
        table |= {"shell": True, "command": command}
    else:
        table["command"] = [*shell.split(), command]
    if command.split()[:1] == ["tail"]:
        sentence = "a source of type taildir reads files that grow, and loses nothing in a crash"
        options.advise("command", sentence, "command")


def _header_key(options: Options, flag: str, key: str, default: str) -> str | None:
    name = options.text(key, default)
    return name if options.flag(flag) else None


def _spooldir(options: Options, table: Table) -> None:
    table["done"] = _done(options)
    order = options.text("consumeOrder", "oldest").lower()
    if order == "random":
        options.changed("consumeOrder", "there is no random order: the oldest file is read first", "order")
    elif order != "oldest":
        table["order"] = order
    for key, setting, harmless in (("includePattern", "include", "^.*$"), ("ignorePattern", "exclude", "^$")):
        pattern = options.text(key, harmless)
        if pattern != harmless:
            table[setting] = _globs(options, key, pattern, setting)
    set_values(
        table,
        file_header=_header_key(options, "fileHeader", "fileHeaderKey", "file"),
        basename_header=_header_key(options, "basenameHeader", "basenameHeaderKey", "basename"),
        format=_format(options),
    )


def _done(options: Options) -> Table | None:
    suffix = options.text("fileSuffix", ".COMPLETED")
    policy, tracking = options.text("deletePolicy", "never"), options.text("trackingPolicy", "rename")
    if policy.lower() == "immediate":
        return {"type": "delete"}
    if tracking.lower() != "rename":
        options.changed("trackingPolicy", "files that are done are renamed, moved or deleted", "done")
    return {"type": "rename", "suffix": suffix}


def _format(options: Options) -> Table:
    deserializer = options.text("deserializer", "LINE")
    kind = deserializer.removesuffix("$Builder").rpartition(".")[2].lower().removesuffix("deserializer")
    charset, errors = options.text("inputCharset"), options.text("decodeErrorPolicy", "FAIL").lower()
    if kind == "blob":
        options.changed("deserializer", "a larger file is bad, where Flume makes several events of it", "format")
        return {"type": "blob", "file_bytes_max": options.number("deserializer.maxBlobLength") or _BLOB_BYTES}
    if kind == "avro":
        if options.text("deserializer.schemaType", "HASH").upper() != "LITERAL":
            options.changed("deserializer.schemaType", "a header has the schema itself, not its hash", "format")
        return {"type": "avro", "body": "avro", "schema_header": "flume.avro.schema.literal"}
    if kind != "line":
        options.left_out("deserializer", f"{deserializer} has no counterpart: lines are read", "format")
    longest = options.number("deserializer.maxLineLength") or options.number("bufferMaxLineLength")
    if options.text("deserializer.outputCharset", "UTF-8").upper() != "UTF-8":
        options.left_out("deserializer.outputCharset", "bodies are UTF-8", "format")
    table: Table = {"type": "lines", "line_bytes_max": longest or _LINE_CHARACTERS, "decode_errors": errors}
    set_values(table, charset=charset or None)
    return table


def _globs(options: Options, key: str, pattern: str, setting: str) -> list[str]:
    """Returns shell patterns for a regular expression of file names; if there are none, text to fill in."""
    globs = None if is_to_be_filled_in(pattern) else to_globs(pattern)
    if globs is None:
        options.left_out(key, f'"{pattern}" cannot be written as shell patterns: write {setting} by hand', setting)
        return [fill_in(f"SHELL PATTERN FOR {pattern}")]
    if has_single_dot(pattern):
        options.changed(key, f"a dot in {pattern} is taken for a dot, not for any character", setting)
    return globs


def _taildir(options: Options, table: Table) -> None:
    paths: list[str] = []
    path_headers: dict[str, dict[str, str]] = {}
    for group in options.words("filegroups"):
        key = f"filegroups.{group}"
        directory, name = os.path.split(options.text(key))
        globs = _globs(options, key, name, "paths")
        # In taildir, a pattern that begins with a wildcard does not match names that begin with a dot.
        globs += [f".{glob.removeprefix('?')}" for glob in globs if glob.startswith(("*", "?"))]
        found = [f"{_literal(directory)}/{glob}" for glob in globs]
        paths.extend(path for path in found if path not in paths)
        headers = dict(options.subset(f"headers.{group}", "path_headers").items())
        if headers:
            path_headers |= {path: headers for path in found if path not in path_headers}
    # Flume's source reads any file that its pattern matches.
    table |= {"paths": paths, "exclude": []}
    sentence = (
        "Flume's positions are not read: files are read from their beginning, or with skip_to_end = true only what is "
        "appended from now on"
    )
    options.text("positionFile")
    options.changed("positionFile", sentence, "paths")
    set_values(
        table,
        path_headers=path_headers or None,
        byte_offset_header="byteoffset" if options.flag("byteOffsetHeader") else None,
        file_header=_header_key(options, "fileHeader", "fileHeaderKey", "file"),
    )


def _literal(directory: str) -> str:
    """Returns a directory as a shell pattern that matches only this directory."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in directory)


_OWN: dict[str, OwnCode] = {
    "avro": _avro,
    "exec": _exec,
    "http": _http,
    "kafka": convert_kafka_source,
    "multiport_syslogtcp": partial(_syslog, "tcp"),
    "netcat": _netcat,
    "netcatudp": _netcat_udp,
    "seq": _sequence,
    "spooldir": _spooldir,
    "syslogtcp": partial(_syslog, "tcp"),
    "syslogudp": partial(_syslog, "udp"),
    "taildir": _taildir,
}
