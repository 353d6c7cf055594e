"""Flume's channel selectors."""

from millrace_server.flume_import.options import Options, Table


def convert_selector(options: Options) -> Table | None:
    """The table of a source's selector; None for the default, every event to every channel."""
    type_name = options.text("type", "replicating").lower()
    table: Table | None = None
    match type_name:
        case "multiplexing":
            table = _multiplexing(options)
        case "load_balancing":
            policy = options.text("policy", "round_robin").lower()
            table = {"type": "load_balancing", "policy": policy}
        case "replicating":
            optional = options.words("optional")
            if optional:
                table = {"type": "replicating", "optional": optional}
        case _:
            options.remark("type", f"{type_name} has no counterpart: write a selector of type custom in Python")
    options.tell_rest({})
    return table


def _multiplexing(options: Options) -> Table:
    header = options.text("header", "flume.selector.header")
    mapping = {value: channels.split() for value, channels in options.below("mapping").items()}
    # Under `optional.` stand values; without more, it is the optional channels of all events.
    optional = {value: channels.split() for value, channels in options.below("optional").items()}
    table: Table = {"type": "multiplexing", "header": header, "mapping": mapping}
    if default := options.words("default"):
        table["default"] = default
    else:
        options.remark("default", "there is none: events that match nothing are dropped, and counted")
    if optional:
        table["optional"] = optional
    return table
