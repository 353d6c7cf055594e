import getpass
import platform

import pytest

from millrace_spark.reader_id import reader_id_of


def test_reader_id_tells_user_machine_and_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is refused by a claim sees where to look."""
    monkeypatch.setattr(getpass, "getuser", lambda: "ann")
    monkeypatch.setattr(platform, "node", lambda: "mill-1")
    assert reader_id_of(42) == "spark-ann@mill-1-42"


def test_reader_id_of_a_user_without_name_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers run under numbers that have no name."""

    def fail() -> str:
        raise KeyError("uid not found: 1234")

    monkeypatch.setattr(getpass, "getuser", fail)
    assert reader_id_of(42).startswith("spark-unknown@")


def test_reader_id_of_odd_names_is_allowed_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has 1 to 128 printable ASCII characters, and keeps its end, which tells processes apart."""
    monkeypatch.setattr(getpass, "getuser", lambda: "jörg müller")
    monkeypatch.setattr(platform, "node", lambda: "h" * 300)
    reader_id = reader_id_of(42)
    assert reader_id.endswith("h-42")
    assert len(reader_id) == 128
    monkeypatch.setattr(platform, "node", lambda: "h")
    assert reader_id_of(42) == "spark-j_rg_m_ller@h-42"
