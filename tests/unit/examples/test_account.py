import zlib

import pytest

from examples.access_log.account import Account, Tally, tally

SEVEN = Tally(7, 77)


def test_account_is_equal_where_each_tally_is_the_same() -> None:
    """Nothing is missing, nothing is there twice."""
    assert Account(in_file=SEVEN, events_committed=7, landed=SEVEN).is_equal


@pytest.mark.parametrize("name", ["in_file", "landed"])
@pytest.mark.parametrize("other", [Tally(8, 77), Tally(7, 78)])
def test_account_is_not_equal_where_one_tally_differs(name: str, other: Tally) -> None:
    """Wherever a line was lost, came twice or became another one, it shows."""
    tallies = dict.fromkeys(["in_file", "landed"], SEVEN) | {name: other}
    assert not Account(events_committed=7, **tallies).is_equal


def test_account_is_not_equal_where_the_server_committed_another_number() -> None:
    """What was stored and not read shows too."""
    assert not Account(in_file=SEVEN, events_committed=8, landed=SEVEN).is_equal


def test_tally_counts_lines_and_sums_the_checksum_of_each_with_its_number() -> None:
    """No line has the checksum of none; what is no UTF-8 is replaced."""
    assert tally([]) == Tally(0, 0)
    assert tally([b"one", b"", b"\xff"]) == Tally(
        3, zlib.crc32(b"1 one") + zlib.crc32(b"2 ") + zlib.crc32("3 \ufffd".encode())
    )


@pytest.mark.parametrize("other", [[b"b", b"a"], [b"a", b"a"], [b"a", b""], [b"a", b"b", b"b"], [b"b"]])
def test_tally_of_lines_in_other_places_is_another_one(other: list[bytes]) -> None:
    """Lines that changed places, came twice or are missing do not go unnoticed, whatever the count says."""
    assert tally(other) != tally([b"a", b"b"])
