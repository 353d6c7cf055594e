"""Cases of flows, from their files to their results."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from millrace_server.cli import app
from tests.fenced_blocks import blocks_of
from tests.unit.repository.checkout import ROOT

PAGE = ROOT / "docs" / "testing_flows.md"

FLOWS = """
channels = { a = { type = "file" }, b = { type = "file" }, dead = { type = "file" } }
[sources.in]
type = "stdin"
channels = ["a", "b"]
"""


class Files:
    """Two files in a directory, and the command on them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def run(self, flows: str, cases: str, *options: str) -> Result:
        for name, text in (("flows.toml", flows), ("cases.toml", cases)):
            (self._directory / name).write_text(text, encoding="utf-8")
        return CliRunner().invoke(app, ["test", "flows.toml", "cases.toml", *options])

    def run_case(self, flows: str, case: str) -> list[str]:
        """Returns the differences of a single case."""
        ran = self.run(FLOWS + flows, f'[[cases]]\nname = "case"\nsource = "in"\n{case}', "--json")
        [result] = json.loads(ran.stdout)["cases"]
        assert ran.exit_code == (0 if result["is_passed"] else 1)
        assert result["is_passed"] is (not result["differences"])
        found: list[str] = result["differences"]
        return found

    def names(self) -> set[str]:
        return {path.name for path in self._directory.iterdir()}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    monkeypatch.chdir(tmp_path)
    return Files(tmp_path)


def test_example_of_the_page_passes_as_it_says(files: Files) -> None:
    """The page's files give the page's output, and nothing else is written."""
    kinds = ("flows.toml", "cases.toml", "command", "shown")
    [flows], [cases], [command], [shown] = (blocks_of(PAGE, kind) for kind in kinds)
    ran = files.run(flows, cases)
    assert ran.exit_code == 0
    assert (command, shown) == ("millraced test flows.toml cases.toml\n", ran.stdout)
    assert files.names() == {"flows.toml", "cases.toml"}


def test_example_of_the_page_without_its_mask_fails_as_it_says(files: Files) -> None:
    """The exit status is 1, and the difference is below the case."""
    [flows], [cases], [shown] = (blocks_of(PAGE, kind) for kind in ("flows.toml", "cases.toml", "failure"))
    ran = files.run(flows.replace(r"\d{12}", r"\d{13}"), cases)
    assert ran.exit_code == 1
    assert shown in ran.stdout
    assert ran.stdout.endswith("3 cases: 2 passed, 1 failed.\n")


EVENTS = 'events = [{ headers = { h = "1" }, body = "one" }, { body_base64 = "/w==" }]\n'


@pytest.mark.parametrize(
    ("expect", "differences"),
    [
        ("counts = { a = 2, b = 2 }, dropped = 0", []),
        ('channels = { a = [{ headers = { h = "1" } }, { body_base64 = "/w==" }], b = [{}, {}] }', []),
        ('counts = { a = 2, b = 2 }, channels = { a = [{ body_pattern = "^o" }, { exact_headers = true }] }', []),
        (
            "counts = { a = 1 }",
            ["channel a: 2 events, expected 1", 'channel b: 2 events, expected none; the first is h="1" body="one"'],
        ),
        (
            'counts = { b = 2 }, channels = { a = [{ headers = { h = "2", i = "3" }, body = "two" }] }, dropped = 1',
            [
                "channel a: 2 events, expected 1",
                'channel a, event 0: header h: "1", expected "2"',
                'channel a, event 0: header i: absent, expected "3"',
                'channel a, event 0: body: "one", expected "two"',
                "channel a, event 1: not expected: body=b'\\xff'",
                "dropped: 0 events, expected 1",
            ],
        ),
        (
            'counts = { b = 2 }, channels = { a = [{ exact_headers = true }, { body_pattern = "x" }, { body = "3" }] }',
            [
                "channel a: 2 events, expected 3",
                'channel a, event 0: header h: "1", expected absent',
                "channel a, event 1: body: b'\\xff', expected to match \"x\"",
                'channel a, event 2: missing: body="3"',
            ],
        ),
    ],
)
def test_case_names_every_difference(files: Files, expect: str, differences: list[str]) -> None:
    """Headers are a subset unless they are to be exact; a channel that is not named gets nothing."""
    assert files.run_case("", f"{EVENTS}expect = {{ {expect} }}") == differences


def test_case_of_long_bodies_shows_where_they_differ(files: Files) -> None:
    """The first difference may be far from the beginning."""
    body = "x" * 1_000
    expect = f'{{ counts = {{ b = 1 }}, channels = {{ a = [{{ body = "{body}b" }}] }} }}'
    case = f'events = [{{ body = "{body}a" }}]\nexpect = {expect}'
    [difference] = files.run_case("", case)
    assert difference == (f'channel a, event 0: body differs at byte 1000: "{"x" * 20}a", expected "{"x" * 20}b"')


def test_case_counts_what_reaches_no_channel(files: Files) -> None:
    """Dropped by an interceptor, by the selector, or refused without a dead-letter channel."""
    flows = """
    interceptors = [
        { type = "regex_filter", pattern = "^drop", action = "drop" },
        { type = "search_replace", pattern = "b*", replacement = "xxxxxxxx" },
    ]
    selector = { type = "multiplexing", header = "h", mapping = { a = ["a"], b = ["b"] } }
    """
    case = """
    events = [
        { body = "drop" }, { headers = { h = "a" }, body = "x" }, { headers = { h = "none" } },
        { headers = { h = "b" }, body = "%s" },
    ]
    expect = { counts = { a = 1 }, dropped = 3 }
    """
    assert files.run_case(flows, case % ("y" * 200_000)) == []


def test_case_of_refused_events_finds_them_in_the_dead_letter_channel(files: Files) -> None:
    """With the headers of a dead letter, at the time of the case; the other events pass."""
    flows = """
    dead_letter_channel = "dead"
    interceptors = [{ type = "custom", factory = "tests.custom_interceptors:failing_on", options = { text = "bad" } }]
    """
    case = """
    events = [{ body = "good" }, { body = "bad" }]
    [cases.expect]
    counts = { a = 1, b = 1 }
    [[cases.expect.channels.dead]]
    body = "bad"
    [cases.expect.channels.dead.headers]
    "millrace.dead_letter.step" = "interceptors[0]"
    "millrace.dead_letter.source" = "in"
    "millrace.dead_letter.time" = "2026-01-01T00:00:00.000+00:00"
    """
    assert files.run_case(flows, case) == []
    without = 'events = [{ body = "bad" }]\nexpect = {}'
    [difference] = files.run_case(flows.replace('dead_letter_channel = "dead"', ""), without)
    assert difference.startswith("the source would not make progress: interceptors[0] raised ")


def test_case_of_a_load_balancer_has_one_channel_for_all(files: Files) -> None:
    """Which one it picks depends on what has space; by key it depends on the event."""
    balanced = 'selector = { type = "load_balancing" }'
    assert files.run_case(balanced, 'events = [{ repeat = 3 }]\nexpect = { counts = { "*" = 3 } }') == []
    by_key = 'selector = { type = "load_balancing", policy = "key_hash" }'
    assert files.run_case(by_key, 'events = [{ body = "x", repeat = 3 }]\nexpect = { counts = { b = 3 } }') == []


def test_case_passes_time_between_batches_and_for_throttles(files: Files) -> None:
    """Batches are cut as given, and a throttle's wait moves the clock."""
    flows = 'interceptors = [{ type = "throttle", events_per_second = 2 }, { type = "timestamp" }]'
    case = """
    events = [{ body = "x", repeat = 4 }, { body = "y", after_seconds = 10 }]
    batch_events = 2
    [cases.expect]
    counts = { b = 5 }
    channels.a = [
        { headers = { timestamp = "1767225600000" } }, { headers = { timestamp = "1767225600000" } },
        { headers = { timestamp = "1767225601001" } }, { headers = { timestamp = "1767225601001" } },
        { headers = { timestamp = "1767225611001" } },
    ]
    """
    assert files.run_case(flows, case) == []


def test_case_repeats_random_choices(files: Files) -> None:
    """A sample without a seed and a UUID are the same in each run, and in each case."""
    flows = 'interceptors = [{ type = "sample", fraction = 0.5 }, { type = "uuid" }]'
    case = '[[cases]]\nname = "c"\nsource = "in"\nevents = [{ repeat = 20 }]\nexpect = { counts = { a = 0, b = 0 } }\n'
    first, second = (files.run(FLOWS + flows, case * 2, "--json").stdout for _ in range(2))
    assert first == second
    one, other = json.loads(first)["cases"]
    assert one == other
    assert 0 < len(one["channels"]["a"]) < 20


def test_command_with_bad_files_says_all_that_is_wrong(files: Files) -> None:
    """Each problem has its line and its path, as in a configuration."""
    cases = """time = "yesterday"
[[cases]]
name = "x"
source = "none"
events = []
[[cases]]
name = "y"
source = "in"
events = [{ body = "a", body_base64 = "eA==" }, { bodi = "x" }, { body_base64 = "!" }]
expect = { channels = { c = [{ body = "a", body_pattern = "b" }] }, counts = { a = -1 } }
"""
    ran = files.run(FLOWS, cases)
    assert ran.exit_code == 2
    told = [line.removeprefix("millraced: cases.toml:") for line in ran.stderr.splitlines()]
    assert [line.split("; ")[0] for line in told] == [
        '1: time: is "yesterday"',
        "2: cases[0].expect: is missing",
        '4: cases[0].source: is "none"',
        "5: cases[0].events: has no value",
        "9: cases[1].events[0].body_base64: is given together with body",
        "9: cases[1].events[1].bodi: is not known",
        '9: cases[1].events[2].body_base64: is "!"',
        "10: cases[1].expect.channels.c[0].body_pattern: is given together with body",
        "10: cases[1].expect.counts.a: is -1",
        "10: cases[1].expect.channels.c: is not a channel of the source",
    ]
    both = files.run("channels = 1", "cases = 1")
    assert both.exit_code == 2
    assert {line.split(": ")[1].split(":")[0] for line in both.stderr.splitlines()} == {"flows.toml", "cases.toml"}
