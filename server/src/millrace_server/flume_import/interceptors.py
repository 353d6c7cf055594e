"""Conversion of Flume's interceptors."""

import re

from millrace_server.flume_import.component_table import find_component
from millrace_server.flume_import.conversion import OwnCode, convert
from millrace_server.flume_import.options import Options, Table, set_values
from millrace_server.flume_import.patterns import to_regex, to_replacement, to_strptime_format

_LIST_SEPARATOR = r"\s*,\s*"


def convert_interceptors(source: Options) -> list[Table]:
    """Returns the tables of a source's interceptors, in order."""
    names = source.words("interceptors")
    options = source.subset("interceptors", "interceptors")
    tables = [table for name in names if (table := _convert(options.subset(name))) is not None]
    options.leave_out_unread("belongs to no interceptor that the source lists")
    return tables


def _convert(options: Options) -> Table | None:
    component = find_component("interceptor", options.text("type"))
    table = convert(component, options, _OWN.get(component.name))
    if table is not None and isinstance(pattern := table.get("pattern"), str):
        table["pattern"] = to_regex(pattern)
    return table


def _remove_header(options: Options, table: Table) -> None:
    separator, listed = options.text("fromListSeparator") or _LIST_SEPARATOR, options.text("fromList")
    try:
        names = re.split(separator, listed)
    except re.error:
        options.left_out(
            "fromListSeparator", "is not a regular expression here; names are separated at commas", "names"
        )
        names = re.split(_LIST_SEPARATOR, listed)
    names = [name for name in (options.text("withName"), *names) if name]
    set_values(table, names=list(dict.fromkeys(names)) or None)


def _search_replace(options: Options, table: Table) -> None:
    table["replacement"] = to_replacement(options.text("replaceString"))
    if options.text("charset", "UTF-8").upper() not in {"UTF-8", "UTF8"}:
        options.left_out("charset", "bodies are UTF-8: let the source convert them, by its setting charset")


def _regex_extractor(options: Options, table: Table) -> None:
    names, millis = [], {}
    listed = options.words("serializers")
    serializers = options.subset("serializers", "interceptors")
    for serializer in listed:
        one = serializers.subset(serializer)
        name, type_name, pattern = one.text("name", serializer), one.text("type", "default"), one.text("pattern")
        names.append(name)
        if type_name.endswith("MillisSerializer"):
            time_format = to_strptime_format(pattern)
            if time_format is None:
                one.left_out("pattern", f'"{pattern}" has no counterpart: the header gets the text that was found')
            else:
                millis[name] = time_format
                one.changed("pattern", "times without a zone are in UTC; see time_zone")
        elif type_name != "default" and not type_name.endswith("PassThroughSerializer"):
            one.left_out("type", f"{type_name} has no counterpart: the header gets the text that was found")
        one.leave_out_unread("is not a property of a serializer in Flume's user guide")
    serializers.leave_out_unread("belongs to no serializer that the interceptor lists")
    set_values(table, names=names or None, millis=millis or None)


_OWN: dict[str, OwnCode] = {
    "remove_header": _remove_header,
    "search_replace": _search_replace,
    "regex_extractor": _regex_extractor,
}
