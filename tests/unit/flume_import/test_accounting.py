"""Random properties: the import never fails, and each property is accounted for."""

import tomllib
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from millrace_server.flume_import import FlumeImportError, Outcome, PropertiesError, import_agent, parse_properties
from millrace_server.flume_import.component_table import all_components
from tests.flume_imports import EXAMPLES

KEYS = sorted({item.key.split(".", 1)[1] for path in EXAMPLES.iterdir() for item in parse_properties(path.read_text())})
"""The keys of the guide's examples, without their agents."""

PROPERTIES = sorted({row.name for component in all_components() for row in component.rows})
TYPES = sorted({name for component in all_components() for name in component.types})

WORDS = """c1 r1 k1 g1 i1 f1 x 0 -1 10 1e400 true false ${x} ${env:Y} ${f1['z']} *.log (a|b) /%t/%{h} SSL"""
COMPONENTS = """sources.r1 channels.c1 sinks.k1 sinkgroups.g1 configfilters.f1 sources.r1.selector
sources.r1.interceptors sources.r1.interceptors.i1 sinks.k1.serializer"""
LISTED = {
    "sources": "r1 r2",
    "channels": "c1 c2",
    "sinks": "k1 k2",
    "sinkgroups": "g1",
    "configfilters": "f1",
    "channels.c1.type": "memory",
    "channels.c2.type": "file",
    "sources.r1.channels": "c1 c2",
    "sinks.k1.channel": "c1",
}

words = st.sampled_from([*WORDS.split(), "", "c1 c2", "\ud7ff", "\x85", '"'])
values = words | st.sampled_from(TYPES) | st.text(max_size=8) | st.lists(words, max_size=3).map(" ".join)
names = st.sampled_from(COMPONENTS.split())
endings = st.sampled_from(PROPERTIES) | st.text("ab.*", min_size=1, max_size=4)
keys = st.sampled_from(KEYS) | st.builds("{}.{}".format, names, endings) | st.text(max_size=6)


def _escaped(text: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else letter for letter in text)


@given(st.dictionaries(keys, values, max_size=25))
def test_import_of_random_properties_accounts_for_each(properties: dict[str, str]) -> None:
    """None vanishes, none crashes the import, and the result is TOML whatever the values are."""
    lines = [f"a.{_escaped(key)} = {_escaped(value)}" for key, value in {**LISTED, **properties}.items()]
    try:
        parsed = parse_properties("\n".join(lines))
    except PropertiesError:
        # NUL and what is no character are refused with their line.
        return
    result = import_agent(parsed, "a")
    assert result.ledger.outcomes.keys() == {item.key for item in parsed}
    assert not result.ledger.unsettled
    assert sum(result.counts.values()) == len(parsed)
    noted = {note.key for note in result.notes}
    for key, outcome in result.ledger.outcomes.items():
        # What is left out is said, of itself or of what it belongs to.
        if outcome is Outcome.LEFT_OUT:
            assert any(key == other or key.startswith(f"{other}.") for other in noted), key
    tomllib.loads(result.toml())


@given(st.text())
def test_import_of_any_text_ends_in_a_result_or_a_sentence(text: str) -> None:
    """Whatever is in the file, the user gets a result."""
    with suppress(PropertiesError, FlumeImportError):
        import_agent(parse_properties(text))
