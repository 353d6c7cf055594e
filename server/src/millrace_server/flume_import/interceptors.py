"""Conversion of Flume's interceptors and selectors."""

from millrace_server.flume_import.options import Options, Table, set_values, to_replacement, to_strptime_format

_CLASSES = {
    "TimestampInterceptor": "timestamp",
    "HostInterceptor": "host",
    "StaticInterceptor": "static",
    "RemoveHeaderInterceptor": "remove_header",
    "UUIDInterceptor": "uuid",
    "SearchAndReplaceInterceptor": "search_replace",
    "RegexFilteringInterceptor": "regex_filter",
    "RegexExtractorInterceptor": "regex_extractor",
}
"""Class names that may replace the short name of a type, with "$Builder" appended."""


def convert_interceptors(options: Options) -> list[Table]:
    """Returns the tables of a source's interceptors, in order."""
    return [table for _, each in options.components("interceptors") if (table := _convert(each))]


def _convert(options: Options) -> Table | None:
    type_name = options.text("type")
    short = _CLASSES.get(type_name.removesuffix("$Builder").rpartition(".")[2], type_name.lower())
    convert = _CONVERTERS.get(short)
    if convert is None:
        options.note("type", f"{type_name} has no counterpart: write an interceptor of type custom in Python")
        options.discard_unused()
        return None
    table = convert(options)
    options.report_unused()
    return table


def _timestamp(options: Options) -> Table:
    table: Table = {"type": "timestamp"}
    header = options.text("headerName") or options.text("header")
    set_values(table, header=header or None, preserve_existing=options.flag("preserveExisting"))
    return table


def _host(options: Options) -> Table:
    uses_ip = options.flag("useIP")
    table: Table = {"type": "host", "use": "name" if uses_ip is False else "ip"}
    set_values(table, header=options.text("hostHeader") or None, preserve_existing=options.flag("preserveExisting"))
    return table


def _static(options: Options) -> Table:
    table: Table = {"type": "static", "key": options.text("key", "key"), "value": options.text("value", "value")}
    set_values(table, preserve_existing=options.flag("preserveExisting"))
    return table


def _remove_header(options: Options) -> Table:
    table: Table = {"type": "remove_header"}
    separator = options.text("fromListSeparator")
    if separator and separator not in {r"\s*,\s*", ","}:
        options.note("fromListSeparator", "names are separated at commas")
    names = [options.text("withName"), *options.text("fromList").split(",")]
    names = [name.strip() for name in names if name.strip()]
    set_values(table, names=names or None, pattern=options.text("matching") or None)
    return table


def _uuid(options: Options) -> Table:
    table: Table = {"type": "uuid"}
    set_values(
        table,
        header=options.text("headerName") or None,
        prefix=options.text("prefix") or None,
        preserve_existing=options.flag("preserveExisting"),
    )
    return table


def _search_replace(options: Options) -> Table:
    if options.text("charset", "UTF-8").upper() not in {"UTF-8", "UTF8"}:
        options.note("charset", "texts are UTF-8; let the source convert them, by its setting charset")
    replacement = to_replacement(options.text("replaceString"))
    return {"type": "search_replace", "pattern": options.text("searchPattern"), "replacement": replacement}


def _regex_filter(options: Options) -> Table:
    action = "drop" if options.flag("excludeEvents") else "keep"
    return {"type": "regex_filter", "pattern": options.text("regex", ".*"), "action": action}


def _regex_extractor(options: Options) -> Table:
    table: Table = {"type": "regex_extractor", "pattern": options.text("regex")}
    names, millis = [], {}
    for serializer, one in options.components("serializers"):
        name, type_name, pattern = one.text("name", serializer), one.text("type", "default"), one.text("pattern")
        names.append(name)
        if "Millis" in type_name and (time_format := to_strptime_format(pattern)):
            millis[name] = time_format
        elif type_name not in {"", "default"}:
            one.note("type", f"{type_name} has no counterpart; the header gets the text that was found")
        one.report_unused()
    set_values(table, names=names or None, millis=millis or None)
    return table


_CONVERTERS = {
    "timestamp": _timestamp,
    "host": _host,
    "static": _static,
    "remove_header": _remove_header,
    "uuid": _uuid,
    "search_replace": _search_replace,
    "regex_filter": _regex_filter,
    "regex_extractor": _regex_extractor,
}


def convert_selector(options: Options) -> Table | None:
    """Returns the table of a source's selector; None for the default, which sends every event to every channel."""
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
            options.note("type", f"{type_name} has no counterpart: write a selector of type custom in Python")
    options.report_unused()
    return table


def _multiplexing(options: Options) -> Table:
    header = options.text("header", "flume.selector.header")
    mapping = {value: channels.split() for value, channels in options.subset("mapping").items()}
    # Below `optional.` are header values; `optional` itself lists the optional channels of all events.
    optional = {value: channels.split() for value, channels in options.subset("optional").items()}
    table: Table = {"type": "multiplexing", "header": header, "mapping": mapping}
    if default := options.words("default"):
        table["default"] = default
    else:
        options.note("default", "there is none: events that match nothing are dropped, and counted")
    if optional:
        table["optional"] = optional
    return table
