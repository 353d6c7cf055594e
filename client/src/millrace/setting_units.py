"""Settings that may have a unit: `capacity = "1M"`, `byte_capacity = "8GiB"`.

The client never imports this module: it needs pydantic, which the client does not depend on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from millrace.units import parse_byte_size, parse_count


@dataclass(frozen=True)
class Unit:
    """Reads the text of a setting that is a whole number."""

    parse: Callable[[str], int]
    example: str

    def number(self, value: object) -> object:
        """Returns the number that a text with a unit means; anything else is returned as it is, for validation."""
        # TOML has types: "100" is no number.
        if not (isinstance(value, str) and value[-1:].isalpha()):
            return value
        try:
            return self.parse(value)
        except ValueError:
            return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.number, handler(source))


COUNT_UNIT = Unit(parse_count, "1M")
Count = Annotated[int, COUNT_UNIT]
"""A number of events, or text such as `500k` or `1M`."""

ByteSize = Annotated[int, Unit(parse_byte_size, "64MiB")]
"""A number of bytes, or text such as `64MiB` or `8GB`."""
