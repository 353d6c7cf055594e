"""Conversion of Flume's sinks and sink groups."""

from millrace_server.flume_import.component_table import find_component
from millrace_server.flume_import.conversion import OwnCode, convert
from millrace_server.flume_import.files_sinks import convert_file_roll, convert_hdfs, fit_to_channel
from millrace_server.flume_import.kafka import convert_kafka_sink
from millrace_server.flume_import.options import Options, Table, address, set_values
from millrace_server.flume_import.tls import client_tls

_LOWEST_RANK = -(1 << 31)
_GROUP_LEAST = 2


def convert_sink(options: Options) -> Table | None:
    """Returns the table of a sink; None if it has no counterpart, which is recorded."""
    component = find_component("sink", options.text("type"))
    channel = next(iter(options.channels("channel")), "")
    table = convert(component, options, _OWN.get(component.name))
    if table is None:
        return None
    if table["type"] == "files" and channel:
        fit_to_channel(options, table, channel)
    return {"type": table.pop("type"), "channel": channel} | table


def _avro(options: Options, table: Table) -> None:
    host, port = options.required("hostname", "HOST", "endpoints"), options.required("port", "PORT", "endpoints")
    table["endpoints"] = [address(host, port)]
    level, reset = options.number("compression-level"), options.text("reset-connection-interval")
    if table.get("compression") == "deflate":
        set_values(table, compression_level=level)
    elif level is not None:
        options.unneeded("compression-level", "nothing is compressed")
    if reset.isdecimal() and int(reset):
        table["reset_connection_seconds"] = float(reset)
    if (tls := client_tls(options)) is not None:
        table["tls"] = tls
        options.changed("ssl", "names in certificates are checked, which Flume does not do: see check_host_name", "tls")


def _http(options: Options, table: Table) -> None:
    headers = {
        "Content-Type": options.text("contentTypeHeader", "text/plain"),
        "Accept": options.text("acceptHeader", "text/plain"),
    }
    table |= {"format": "single", "headers": headers}
    flags = {code: options.flag(f"rollback.{code}") for code in options.unread_of("rollback")}
    retried = {code: rolls for code, rolls in flags.items() if rolls is not None}
    rolls_by_default = options.flag("defaultRollback") is not False
    rules = {f"{family}xx": rolls_by_default for family in (2, 3, 4, 5)}
    rules |= {code.lower(): rolls for code, rolls in retried.items()}
    if "2xx" not in map(str.lower, retried):
        # Flume would send accepted events again and again.
        rules["2xx"] = False
        if rolls_by_default:
            options.changed("defaultRollback", "2xx settles events, where Flume sends them again", "statuses")
    table["statuses"] = {status: "retry" if rolls else "settle" for status, rolls in rules.items()}


def convert_group(options: Options) -> Table | None:
    """Returns the table of a sink group; None if it has only one sink and needs no group."""
    component = find_component("sink processor", options.text("processor.type", "default"))
    listed = list(dict.fromkeys(options.words("sinks") or options.words("processor.sinks")))
    if not component.becomes:
        # One sink needs no group.
        for key in options.unread():
            options.unneeded(key, "a sink needs no group")
            options.discard(key)
        if component.name != "default":
            options.left_out("processor.type", f"{component.name} has no counterpart: each sink empties the channel")
        elif len(set(listed)) > 1:
            options.changed("sinks", "it has no processor, so Flume takes one sink only: here each empties its channel")
        return None
    own = _failover if component.name == "failover" else None
    converted = convert(component, options, own, type_key="processor.type")
    assert converted is not None, "it has a counterpart"
    policy = converted.pop("type")
    converted_sinks = options.shared.names["sinks"]
    sinks = [converted_sinks[name] for name in _ranked(listed, converted.pop("ranks", {})) if name in converted_sinks]
    if len(sinks) < _GROUP_LEAST:
        options.omit("fewer than two of its sinks are left")
        return None
    return {"sinks": sinks, "policy": policy} | converted


def _failover(options: Options, table: Table) -> None:
    names = options.unread_of("processor.priority")
    ranks = {name: rank for name in names if (rank := options.number(f"processor.priority.{name}")) is not None}
    table["ranks"] = ranks


def _ranked(listed: list[str], ranks: object) -> list[str]:
    """Returns sinks by priority, the highest first; those without a priority come last, in their order."""
    assert isinstance(ranks, dict), "created above"
    return sorted(listed, key=lambda name: ranks.get(name, _LOWEST_RANK), reverse=True)


_OWN: dict[str, OwnCode] = {
    "avro": _avro,
    "file_roll": convert_file_roll,
    "hdfs": convert_hdfs,
    "http": _http,
    "kafka": convert_kafka_sink,
}
