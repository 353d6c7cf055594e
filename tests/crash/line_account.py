"""A comparison of the lines that arrived with those that were written."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.crash.log_writer import line_of


@dataclass
class LineAccount:
    """Compares the events that arrived with the lines that were written.

    Attributes:
        count: Events that have arrived.
        lost: Lines that have not arrived, by log.
        doubled: Lines that have arrived again.
        disordered: Lines that came before one that was written earlier.
        strange: Bodies that were not written.
    """

    count: int = 0
    lost: dict[str, list[int]] = field(default_factory=dict)
    doubled: list[bytes] = field(default_factory=list)
    disordered: list[bytes] = field(default_factory=list)
    strange: list[bytes] = field(default_factory=list)

    @classmethod
    def of(cls, bodies: Iterable[bytes], line_counts: Mapping[str, int]) -> "LineAccount":
        """The account of these bodies, in the order of their arrival."""
        account = cls()
        arrived = {name: bytearray(count) for name, count in line_counts.items()}
        newest = dict.fromkeys(line_counts, -1)
        for body in bodies:
            account.count += 1
            name, _, rest = body.decode(errors="replace").partition(" ")
            digits = rest[:7]
            number = int(digits) if digits.isdigit() else -1
            if not 0 <= number < line_counts.get(name, 0) or body != line_of(name, number):
                account.strange.append(body)
            elif arrived[name][number]:
                account.doubled.append(body)
            else:
                arrived[name][number] = 1
                if number < newest[name]:
                    account.disordered.append(body)
                newest[name] = max(newest[name], number)
        for name, flags in arrived.items():
            if missing := [number for number, flag in enumerate(flags) if not flag]:
                account.lost[name] = missing
        return account
