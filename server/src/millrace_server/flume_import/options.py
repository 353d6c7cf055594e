"""The options of one Flume component, each of which is either converted or told about."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_TRUE = {"true": True, "false": False}
_MILLISECONDS = 1_000

ANY_HOST = "0.0.0.0"  # noqa: S104 - what Flume's own sources listen on by default
"""All addresses of the machine."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something of a Flume configuration that has no counterpart, or another one than might be expected."""

    key: str
    """The property, or the beginning of several."""
    sentence: str
    """Why, and what to do."""


class Options:
    """Takes options out one by one; what nobody took is left over.

    Args:
        prefix: What the keys begin with in the file.
        values: The options by the rest of their keys.
        remarks: Where it is told what cannot be converted.
    """

    def __init__(self, prefix: str, values: Mapping[str, str], remarks: list[Remark]) -> None:
        self.prefix = prefix
        self._values = dict(values)
        self._remarks = remarks

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def remark(self, key: str, sentence: str) -> None:
        """Tells about one of the options, or with an empty key about the component."""
        self._remarks.append(Remark(f"{self.prefix}.{key}" if key else self.prefix, sentence))

    def text(self, key: str, default: str = "") -> str:
        """An option's text."""
        return self._values.pop(key, default).strip()

    def words(self, key: str) -> list[str]:
        """An option's words, between spaces."""
        return self.text(key).split()

    def number(self, key: str) -> int | None:
        """A whole number; None where there is none."""
        return self._converted(key, int, "a whole number")

    def seconds(self, key: str) -> float | None:
        """Milliseconds as seconds; None where there are none."""
        milliseconds = self._converted(key, float, "a number of milliseconds")
        return None if milliseconds is None else milliseconds / _MILLISECONDS

    def flag(self, key: str) -> bool | None:
        """Whether it is true; None where it is not said."""
        return self._converted(key, lambda text: _TRUE[text.lower()], "true or false")

    def _converted(self, key: str, convert: Callable[[str], T], what: str) -> T | None:
        text = self.text(key)
        if not text:
            return None
        try:
            return convert(text)
        except (ValueError, KeyError):
            self.remark(key, f'is "{text}", which is not {what}; the default is used')
            return None

    def below(self, prefix: str) -> "Options":
        """Takes out all options whose keys begin with a prefix and a dot, without these."""
        begin = f"{prefix}."
        chosen = {key: self._values.pop(key) for key in list(self._values) if key.startswith(begin)}
        values = {key.removeprefix(begin): value for key, value in chosen.items()}
        return Options(f"{self.prefix}.{prefix}", values, self._remarks)

    def names(self) -> list[str]:
        """The keys that are there, up to their first dot, in order."""
        return list(dict.fromkeys(key.split(".", 1)[0] for key in self._values))

    def items(self) -> Iterator[tuple[str, str]]:
        """Takes out all that is left."""
        while self._values:
            key = next(iter(self._values))
            yield key, self.text(key)

    def drop_rest(self) -> None:
        """Tells nothing of what is left: it was told about as a whole."""
        self._values.clear()

    def tell_rest(self, reasons: Mapping[str, str]) -> None:
        """Tells about all that is left, with a reason where one is known.

        Args:
            reasons: By key; one that ends in a dot is for all that begin so.
        """
        for key in dict(self.items()):
            found = (
                reason
                for known, reason in reasons.items()
                if key == known or (known.endswith(".") and key.startswith(known))
            )
            self.remark(key, next(found, "has no counterpart"))


Table = dict[str, object]
"""A table of the TOML file."""


def set_known(table: Table, **values: object) -> None:
    """Sets what is not None."""
    table.update({key: value for key, value in values.items() if value is not None})
