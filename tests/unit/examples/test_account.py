import zlib

import pytest

from examples.access_log.account import Account, Fingerprint, fingerprint

SEVEN = Fingerprint(7, 77)


def test_account_is_equal_where_each_fingerprint_is_the_same() -> None:
    """Nothing is missing or duplicated."""
    assert Account(in_file=SEVEN, events_committed=7, landed=SEVEN).is_equal


@pytest.mark.parametrize("name", ["in_file", "landed"])
@pytest.mark.parametrize("other", [Fingerprint(8, 77), Fingerprint(7, 78)])
def test_account_is_not_equal_where_one_fingerprint_differs(name: str, other: Fingerprint) -> None:
    """A line that was lost, duplicated or changed is detected at each stage."""
    tallies = dict.fromkeys(["in_file", "landed"], SEVEN) | {name: other}
    assert not Account(events_committed=7, **tallies).is_equal


def test_account_is_not_equal_where_the_server_committed_another_number() -> None:
    """Events that were stored but not read are detected too."""
    assert not Account(in_file=SEVEN, events_committed=8, landed=SEVEN).is_equal


def test_fingerprint_counts_lines_and_sums_the_checksum_of_each_with_its_number() -> None:
    """Even an empty line has a checksum; the lines may have any bytes, in any order."""
    assert fingerprint([]) == Fingerprint(0, 0)
    checksum = zlib.crc32(b"1 one") + zlib.crc32(b"2 ") + zlib.crc32(b"3 \xff")
    assert fingerprint([(3, b"\xff"), (1, b"one"), (2, b"")]) == Fingerprint(3, checksum)


@pytest.mark.parametrize("other", [[b"b", b"a"], [b"a", b"a"], [b"a", b""], [b"a", b"b", b"b"], [b"b"]])
def test_fingerprint_of_lines_in_other_places_is_another_one(other: list[bytes]) -> None:
    """Lines that were swapped, duplicated or lost are detected, whatever the count is."""
    assert fingerprint(enumerate(other, 1)) != fingerprint([(1, b"a"), (2, b"b")])
