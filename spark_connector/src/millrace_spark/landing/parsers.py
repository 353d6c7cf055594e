"""Parses lines into columns with Spark's own expressions: no line passes through Python."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it
from pyspark.sql.types import StringType, StructType

from millrace_spark.errors import OptionError
from millrace_spark.landing.formats import (
    ACCESS_LOG,
    SYSLOG_3164,
    SYSLOG_5424,
    AccessLogFormat,
    JsonFormat,
    LineFormat,
    NumberedPattern,
    RegexFormat,
    SyslogFormat,
    TextFormat,
    java_pattern,
    numbered_pattern,
)

_SHOWN_LENGTH_MAX = 100


@dataclass(frozen=True)
class ParsedField:
    """A column, parsed from a part of each line.

    Attributes:
        name: The name of the column.
        text: The text of the part; null if a line lacks it.
        value: The parsed value; null if the text does not parse.
        kind: The expected type, for people; None if any text is valid.
    """

    name: str
    text: Column
    value: Column
    kind: str | None = None


def plain_fields(texts: Mapping[str, Column]) -> list[ParsedField]:
    """Returns fields of type string."""
    return [ParsedField(name, text, text) for name, text in texts.items()]


def typed_field(name: str, text: Column, kind: str, line_format: RegexFormat) -> ParsedField:
    """Returns a field of a type."""
    match kind:
        case "string":
            return ParsedField(name, text, text)
        case "timestamp":
            return ParsedField(name, text, F.try_to_timestamp(text, F.lit(line_format.time_format)), "a timestamp")
        case "date":
            moment = F.try_to_timestamp(text, F.lit(line_format.date_format))
            return ParsedField(name, text, moment.cast("date"), "a date")
        case _:
            return ParsedField(name, text, text.try_cast(kind), f"a value of type {kind}")


def reason_of(fields: Iterable[ParsedField]) -> Column:
    """Returns the reason why a line is bad although it has all parts; null if all fields parse."""
    reasons = [
        F.when(
            field.text.isNotNull() & field.value.isNull(),
            F.concat(
                F.lit(f"{field.name} is '"),
                F.left(field.text, F.lit(_SHOWN_LENGTH_MAX)),
                F.lit(f"', which is not {field.kind}"),
            ),
        )
        for field in fields
        if field.kind
    ]
    return F.coalesce(*reasons) if reasons else F.lit(None).cast("string")


def dash_to_null(text: Column) -> Column:
    """Returns null for a dash, by which logs mark missing values."""
    return F.nullif(text, F.lit("-"))


LINE = "_millrace_line"
_PARTS = "_millrace_parts"
_OTHER_PARTS = "_millrace_other_parts"
_RECORD = "_millrace_record"
_CORRUPT = "_millrace_corrupt"

_SEPARATOR = "\x01"
_ACCESS_TIME = "dd/MMM/yyyy:HH:mm:ss Z"
_SHORT_TIME = "yyyy MMM d HH:mm:ss"


@dataclass(frozen=True)
class Parsed:
    """The result of parsing.

    Attributes:
        frame: The lines, with the columns that `fields` and `reason` need.
        fields: The parsed columns; null if missing, or if the line is bad.
        reason: The reason why a line is bad; null if it is not.
    """

    frame: DataFrame
    fields: Mapping[str, Column]
    reason: Column


def parse_lines(events: DataFrame, line_format: LineFormat) -> Parsed:
    """Parses the bodies of events."""
    text = F.col("body").cast("string")
    if line_format.invalid_utf8 == "replace":
        text = F.make_valid_utf8(text)
    # The body is a line; whether it includes the line end depends on the producer.
    whole_line = F.expr(rf"trim(trailing '\r\n' from {LINE})")
    lines = events.withColumn(LINE, text).withColumn(LINE, whole_line)
    parsed = _PARSERS[type(line_format)](lines, line_format)
    size = F.octet_length("body")
    too_long = F.format_string(
        f"has %s bytes; at most {line_format.line_bytes_max} are parsed, see parse.line_bytes_max", size
    )
    reason = (
        F.when(F.col("body").isNull(), F.lit("has no body"))
        .when(size > line_format.line_bytes_max, too_long)
        .when(~F.is_valid_utf8(text), F.lit("is not UTF-8"))
        .otherwise(parsed.reason)
    )
    return Parsed(parsed.frame, parsed.fields, reason)


def _parse_text(lines: DataFrame, _: LineFormat) -> Parsed:
    return Parsed(lines, {"line": F.col(LINE)}, F.lit(None).cast("string"))


def _parse_json(lines: DataFrame, line_format: LineFormat) -> Parsed:
    assert isinstance(line_format, JsonFormat)
    schema = json_schema(lines, line_format)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    if line_format.time_format:
        options["timestampFormat"] = line_format.time_format
    with_corrupt = StructType([*schema.fields]).add(_CORRUPT, StringType())
    record = F.from_json(F.col(LINE), with_corrupt, options)
    is_object = F.startswith(F.ltrim(F.col(LINE)), F.lit("{"))
    frame = lines.withColumn(
        _RECORD, F.when(is_object & (F.octet_length(F.col(LINE)) <= line_format.line_bytes_max), record)
    )
    not_this_schema = F.when(F.try_parse_json(F.col(LINE)).isNull(), F.lit("is not JSON")).otherwise(
        F.lit("is JSON, but a value does not have the type of the schema")
    )
    reason = F.when(F.col(_RECORD).isNull(), F.lit("is not a JSON object")).when(
        F.col(_RECORD)[_CORRUPT].isNotNull(), not_this_schema
    )
    # Spark parses the first value of a line and ignores the rest.
    values_in_line = F.json_array_length(F.concat(F.lit("["), F.col(LINE), F.lit("]")))
    is_alone = F.coalesce(values_in_line == 1, F.lit(col=False))
    reason = reason.when(~is_alone, F.lit("is not one JSON object: more text follows it"))
    for name in line_format.required:
        if name not in schema.names:
            raise OptionError(
                f"parse.required: {name!r} is not a column of the schema; its columns are {', '.join(schema.names)}"
            )
        reason = reason.when(F.col(_RECORD)[name].isNull(), F.lit(f"has no {name}"))
    return Parsed(frame, {name: F.col(_RECORD)[name] for name in schema.names}, reason)


def json_schema(frame: DataFrame, line_format: JsonFormat) -> StructType:
    """Returns the schema of a JSON format."""
    setting, text = "parse.columns", line_format.columns
    if text is None:
        assert line_format.columns_file is not None
        setting = "parse.columns_file"
        try:
            text = Path(line_format.columns_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{setting}: {line_format.columns_file} cannot be read: {error}") from None
    try:
        if text.startswith("{"):
            return StructType.fromJson(json.loads(text))
        return frame.sparkSession.createDataFrame([], text).schema
    except (PySparkException, ValueError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise OptionError(f"{setting}: is not a schema such as 'id bigint, time timestamp': {reason}") from None


def _parse_regex(lines: DataFrame, line_format: LineFormat) -> Parsed:
    assert isinstance(line_format, RegexFormat)
    numbered = numbered_pattern(line_format.pattern)
    frame = lines.withColumn(_PARTS, _parts_of(numbered, line_format))
    fields = [
        typed_field(name, text, line_format.types.get(name, "string"), line_format)
        for name, text in _named_parts(numbered, _PARTS).items()
    ]
    return _parsed(frame, fields, F.col(_PARTS).isNull(), "does not match parse.pattern")


def _parse_access_log(lines: DataFrame, line_format: LineFormat) -> Parsed:
    numbered = numbered_pattern(ACCESS_LOG)
    frame = lines.withColumn(_PARTS, _parts_of(numbered, line_format))
    part = {name: dash_to_null(text) for name, text in _named_parts(numbered, _PARTS).items()}
    request = part["request"]
    words = F.split(request, " ")
    protocol = F.when(F.element_at(words, -1).startswith("HTTP/"), F.element_at(words, -1))
    path = F.regexp_replace(F.regexp_replace(request, r"\A\S+ +", ""), r" +HTTP/\S*\z", "")
    fields = [
        *plain_fields({"client": part["client"], "user": part["user"]}),
        ParsedField("time", part["time"], F.try_to_timestamp(part["time"], F.lit(_ACCESS_TIME)), "a time"),
        # The request may be garbage, such as a port scan, or TLS on a plain port.
        *plain_fields(
            {
                "method": F.when(protocol.isNotNull(), words[0]),
                "path": F.when(protocol.isNotNull(), path),
                "protocol": protocol,
                "request": request,
            }
        ),
        ParsedField("status", part["status"], part["status"].try_cast("int"), "an int"),
        ParsedField("bytes", part["bytes"], part["bytes"].try_cast("bigint"), "a bigint"),
        *plain_fields({"referrer": part["referrer"], "agent": part["agent"]}),
    ]
    return _parsed(frame, fields, F.col(_PARTS).isNull(), "is not a line of an access log")


def _parse_syslog(lines: DataFrame, line_format: LineFormat) -> Parsed:
    newer, older = numbered_pattern(SYSLOG_5424), numbered_pattern(SYSLOG_3164)
    is_newer = F.col(LINE).rlike(r"\A<\d{1,3}>1 ")
    frame = lines.withColumn(_PARTS, F.when(is_newer, _parts_of(newer, line_format)))
    frame = frame.withColumn(_OTHER_PARTS, F.when(~is_newer, _parts_of(older, line_format)))
    new = {name: dash_to_null(text) for name, text in _named_parts(newer, _PARTS).items()}
    # A dash marks a missing field in RFC 5424, but is a valid message.
    new["message"] = _named_parts(newer, _PARTS)["message"]
    old = _named_parts(older, _OTHER_PARTS)
    either = {name: F.coalesce(text, old[name]) if name in old else text for name, text in new.items()}
    priority = either["priority"].try_cast("int")
    time = F.coalesce(F.try_to_timestamp(new["time"]), _time_without_year(old["time"]))
    valid_priority = F.when(priority.between(0, 191), priority)
    facility = (valid_priority.bitwiseAND(F.lit(0xF8)) / 8).cast("int")
    severity = valid_priority.bitwiseAND(F.lit(7)).cast("int")
    fields = [
        ParsedField("time", either["time"], time, "a time"),
        *plain_fields({name: either[name] for name in ("host", "app", "process_id", "message_id", "structured_data")}),
        ParsedField("facility", either["priority"], facility, "a priority"),
        ParsedField("severity", either["priority"], severity, "a priority"),
        *plain_fields({"message": either["message"]}),
    ]
    is_neither = F.col(_PARTS).isNull() & F.col(_OTHER_PARTS).isNull()
    return _parsed(frame, fields, is_neither, "is not a syslog message")


def _time_without_year(text: Column) -> Column:
    """Returns a time of the past year: a message of December that arrives in January is from last year."""
    words = F.regexp_replace(text, " +", " ")
    now = F.current_timestamp()
    this_year, last_year = (
        F.try_to_timestamp(F.concat_ws(" ", (F.year(now) - back).cast("string"), words), F.lit(_SHORT_TIME))
        for back in (0, 1)
    )
    # Clocks differ, and these times have no time zone.
    is_past = this_year <= now + F.expr("interval 1 day")
    return F.when(text.isNotNull(), F.coalesce(F.when(is_past, this_year), last_year, this_year))


def _parts_of(numbered: NumberedPattern, line_format: LineFormat) -> Column:
    """Returns the groups of a matching line, after an empty text; null for other lines.

    Each line is matched once: a regexp_extract per group would match it once per group.
    """
    line = F.col(LINE)
    groups = "".join(f"{_SEPARATOR}${group}" for group in range(1, numbered.group_count + 1))
    parts = F.split(F.regexp_replace(line, java_pattern(numbered), groups), _SEPARATOR)
    may_match = (F.octet_length("body") <= line_format.line_bytes_max) & ~F.contains(line, F.lit(_SEPARATOR))
    return F.when(may_match, F.when(F.size(parts) == numbered.group_count + 1, parts))


def _named_parts(numbered: NumberedPattern, parts: str) -> dict[str, Column]:
    """Returns the named groups; null if empty, since Java does not distinguish that from a group without a match."""
    return {name: F.nullif(F.col(parts)[group], F.lit("")) for name, group in numbered.names.items()}


def _parsed(frame: DataFrame, fields: list[ParsedField], is_other: Column, mismatch: str) -> Parsed:
    separated = F.contains(F.col(LINE), F.lit(_SEPARATOR))
    control = F.when(separated, F.lit("has the control character U+0001"))
    reason = F.when(is_other, control.otherwise(F.lit(mismatch)))
    reason = F.coalesce(reason, reason_of(fields))
    return Parsed(frame, {field.name: field.value for field in fields}, reason)


_PARSERS = {
    TextFormat: _parse_text,
    JsonFormat: _parse_json,
    RegexFormat: _parse_regex,
    AccessLogFormat: _parse_access_log,
    SyslogFormat: _parse_syslog,
}
