import pytest

from millrace_server.flume_import.references import (
    ReferenceResolver,
    fill_in,
    is_to_be_filled_in,
    missing_in,
    without_marks,
)


@pytest.fixture
def around() -> ReferenceResolver:
    properties = {"port": "44444", "address": "${host}:${port}", "host": "h", "self": "x${self}"}
    return ReferenceResolver({"HOME": "/srv/me", "key": "secret"}, {"java.port": "1"}, properties, {"f1"}, set())


@pytest.mark.parametrize(
    ("value", "resolved"),
    [
        ("plain $5 {x}", "plain $5 {x}"),
        ("${env:HOME}/x", "/srv/me/x"),
        ("${HOME}", "/srv/me"),
        ("${sys:java.port}", "1"),
        ("${address}", "h:44444"),
        ("${env:GONE:-/x}", "/x"),
        ("${HOME:-/x}", "/srv/me"),
        ("$${HOME}", "${HOME}"),
        ("${f1['key']}${f1[\"key\"]}${f1[key]}", "secretsecretsecret"),
    ],
)
def test_resolve_of_what_is_known_gives_its_value(around: ReferenceResolver, value: str, resolved: str) -> None:
    """The environment, system properties, other properties, defaults and configuration filters, as in Flume."""
    assert around.resolve(value) == resolved


@pytest.mark.parametrize(
    "value", ["${env:GONE}", "${sys:gone}", "${GONE}", "${f2['key']}", "${f1['gone']}", "${date:x}"]
)
def test_resolve_of_what_is_not_known_marks_it(around: ReferenceResolver, value: str) -> None:
    """What is missing is named, and the text can be read without its marks."""
    resolved = around.resolve(f"a{value}b")
    assert is_to_be_filled_in(resolved)
    assert missing_in(resolved) == [value]
    assert without_marks(resolved) == f"a{value}b"


def test_resolve_of_a_value_that_refers_to_itself_ends(around: ReferenceResolver) -> None:
    """Depth is limited, and what is left is marked."""
    assert is_to_be_filled_in(around.resolve("${self}"))


def test_resolve_notes_the_properties_that_were_used(around: ReferenceResolver) -> None:
    """So that a property that belongs to no agent can be told from one that nothing needs."""
    around.resolve("${address}")
    assert around.used == {"address", "host", "port"}


def test_fill_in_of_a_text_is_found_in_any_other() -> None:
    """Marks survive whatever is put around them."""
    assert is_to_be_filled_in(f"tcp://{fill_in('HOST')}:1")
    assert not is_to_be_filled_in("HOST")
