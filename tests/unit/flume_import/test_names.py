import re

from hypothesis import given
from hypothesis import strategies as st

from millrace_server.channels.config import CHANNEL_NAME_PATTERN
from millrace_server.flume_import.names import new_names
from tests.flume_imports import notes_of


def test_new_names_of_good_names_are_the_same() -> None:
    """A name that is good here never changes, even if another one would like to have it."""
    assert new_names(["C1", "c1", "ch-1"]) == {"C1": "c1-2", "c1": "c1", "ch-1": "ch-1"}


def test_new_names_of_other_names_are_like_them() -> None:
    """Letters become lower-case, and what is not allowed becomes a hyphen."""
    assert new_names(["avro-AppSrv_source1", "größe", "-", "x:y"]) == {
        "avro-AppSrv_source1": "avro-appsrv_source1",
        "größe": "gr-e",
        "-": "unnamed",
        "x:y": "x-y",
    }


@given(st.lists(st.text(max_size=80) | st.sampled_from(["A" * 70, "a" * 64, "A" * 64, "a" * 65])))
def test_new_names_of_any_names_are_good_and_different(names: list[str]) -> None:
    """Each can name a channel, and no two are the same."""
    chosen = new_names(names)
    assert chosen.keys() == set(names)
    assert len(set(chosen.values())) == len(chosen)
    assert all(re.fullmatch(CHANNEL_NAME_PATTERN, name) for name in chosen.values())


def test_import_of_names_that_are_not_known_shows_them_as_they_are_written() -> None:
    """What marks an unknown value inside the import is in no report."""
    notes = notes_of("a.sources = ${who}\na.sources.r1.channels = ${where}\n")
    assert notes["a.sources.${who}"] == "its name is to be filled in"
    assert all(text.isprintable() and text.isascii() for item in notes.items() for text in item)
