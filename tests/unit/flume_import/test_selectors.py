import pytest

from millrace_server.flume_import import Outcome
from tests.flume_imports import example, notes_of, outcomes_of, tables_of

TWO_CHANNELS = """
a.channels = c d
a.channels.c.type = memory
a.channels.d.type = memory
a.sources = s
a.sources.s.type = exec
a.sources.s.command = cat log
a.sources.s.channels = c d
a.sources.s.selector.type = multiplexing
a.sources.s.selector.header = state
"""


def selector_of(text: str) -> object:
    [source] = tables_of(text)["sources"].values()
    return source.get("selector")


@pytest.mark.parametrize("name", ["multiplexing", "load_balancing", "replicating"])
def test_import_of_the_guides_selectors_keeps_what_they_say(name: str) -> None:
    """Each of Flume's selectors has a counterpart."""
    assert (
        selector_of(example(name).replace("netcat", "http"))
        == {
            "multiplexing": {
                "type": "multiplexing",
                "header": "state",
                "mapping": {"CZ": ["c1"], "US": ["c2", "c3"]},
                "default": ["c4"],
            },
            "load_balancing": {"type": "load_balancing", "policy": "round_robin"},
            "replicating": {"type": "replicating", "optional": ["c3"]},
        }[name]
    )


def test_import_of_a_channel_that_is_optional_and_required_makes_it_required() -> None:
    """The guide's own example: the channel is required for AZ and NY, so for CA the source waits for it too."""
    text = example("multiplexing_optional").replace("type = avro", "type = logger")
    assert selector_of(text) == {
        "type": "multiplexing",
        "header": "State",
        "mapping": {
            "CA": ["mem-channel-1", "file-channel-2"],
            "AZ": ["file-channel-2"],
            "NY": ["mem-channel-1", "file-channel-2"],
        },
        "default": ["mem-channel-1"],
    }
    assert outcomes_of(text)["agent_foo.sources.avro-AppSrv-source1.selector.optional.CA"] is Outcome.CHANGED


def test_import_of_a_channel_that_is_only_optional_leaves_it_optional() -> None:
    """Nothing has to change then."""
    text = f"{TWO_CHANNELS}a.sources.s.selector.mapping.A = c\na.sources.s.selector.optional.A = c d\n"
    assert selector_of(text) == {
        "type": "multiplexing",
        "header": "state",
        "mapping": {"A": ["c"]},
        "optional": {"A": ["d"]},
    }
    assert Outcome.CHANGED not in outcomes_of(text).values()


def test_import_of_an_optional_channel_of_a_value_without_mapping_keeps_the_default_ones() -> None:
    """In Flume such a value goes to the default channels too, so the mapping that it gets has them."""
    lines = "mapping.A = d", "default = c", "optional.B = d"
    text = TWO_CHANNELS + "\n".join(f"a.sources.s.selector.{line}" for line in lines)
    assert selector_of(text) == {
        "type": "multiplexing",
        "header": "state",
        "mapping": {"A": ["d"], "B": ["c", "d"]},
        "default": ["c"],
    }


def test_import_of_a_selector_that_names_other_channels_says_so() -> None:
    """Channels that the source does not have are left out, whether the agent has them or not."""
    text = f"{TWO_CHANNELS}a.sources.s.selector.mapping.A = c gone\na.sources.s.selector.default = d\n"
    assert selector_of(text) == {"type": "multiplexing", "header": "state", "mapping": {"A": ["c"]}, "default": ["d"]}
    assert "lists gone" in notes_of(text)["a.sources.s.selector.mapping.A"]


def test_import_of_a_selector_of_ones_own_says_what_to_do() -> None:
    """Events would go to all channels, so the note matters."""
    text = TWO_CHANNELS.replace("multiplexing", "org.example.Mine")
    assert selector_of(text) is None
    assert "write a selector of type custom" in notes_of(text)["a.sources.s.selector"]
