"""A part of a line becomes a value of a type."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it

from millrace_spark.landing.formats import RegexFormat

_SHOWN_LENGTH_MAX = 100


@dataclass(frozen=True)
class ParsedField:
    """A column that is made of a part of each line.

    Attributes:
        name: The column's.
        text: The part; null where a line has none.
        value: What it says; null where it says nothing of its type.
        kind: What it should be, for people; None where it may be anything.
    """

    name: str
    text: Column
    value: Column
    kind: str | None = None

    def cast_to(self, kind: str) -> "ParsedField":
        """The same with another type of Spark's."""
        return replace(self, value=self.value.cast(kind))


def plain_fields(texts: Mapping[str, Column]) -> list[ParsedField]:
    """Parts that may be anything."""
    return [ParsedField(name, text, text) for name, text in texts.items()]


def typed_field(name: str, text: Column, kind: str, line_format: RegexFormat) -> ParsedField:
    """A part that is of a type."""
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
    """Why a line is none, although all parts are there; null where each is what it should be."""
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


def unless_dash(text: Column) -> Column:
    """Null where a log writes a dash for nothing."""
    return F.nullif(text, F.lit("-"))
