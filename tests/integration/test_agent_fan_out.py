"""Sources that fill several channels of a real daemon."""

import random
import time
from pathlib import Path

import pytest

from tests.conftest import StartMillraced
from tests.integration.daemon_queries import component_of, stored_bodies, stored_count
from tests.millraced import run_millraced
from tests.waiting import wait_until

NAMES = ("a", "b", "c")
LINES = 700
KILLS = 3

CHANNELS_TOML = "".join(f'[channels.{name}]\ntype = "file"\nmin_free_bytes = 0\n' for name in NAMES)


def source_toml(lines: Path, selector: str, more: str = "") -> str:
    return f"""
        {CHANNELS_TOML}
        [sources.in]
        type = "custom"
        factory = "tests.line_source:LineSource"
        options = {{ path = "{lines}" }}
        channels = ["a", "b", "c"]
        selector = {selector}
        {more}
    """


def written_lines(directory: Path, count: int = LINES) -> tuple[Path, list[bytes]]:
    """A file of numbered lines of different lengths."""
    lines = [b"%d %s" % (number, b"x" * (number * 7 % 50)) for number in range(count)]
    path = directory / "lines.txt"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path, lines


@pytest.mark.parametrize(
    "selector",
    [
        '{ type = "replicating" }',
        '{ type = "load_balancing", policy = "round_robin" }',
    ],
    ids=["replicating", "round_robin"],
)
def test_deliver_to_several_channels_through_kills_stores_each_event_once(
    start_millraced: StartMillraced, tmp_path: Path, selector: str
) -> None:
    """Flume leaves a batch in some of the channels only, and its retry stores second copies."""
    chance = random.Random(5)
    path, lines = written_lines(tmp_path)
    config, data_dir = source_toml(path, selector), tmp_path / "data"
    for _ in range(KILLS):
        server = start_millraced(config, data_dir)
        wait_until(lambda: sum(stored_count(server, name) for name in NAMES) > 0)  # noqa: B023 - it waits here
        time.sleep(chance.uniform(0.0, 0.15))
        server.kill()
    server = start_millraced(config, data_dir)
    wait_until(lambda: component_of(server, "in")["State"] == "stopped")
    stored = {name: stored_bodies(server, name) for name in NAMES}
    if "replicating" in selector:
        assert all(bodies == lines for bodies in stored.values())
    else:
        assert sorted(body for bodies in stored.values() for body in bodies) == sorted(lines)
        order = {line: number for number, line in enumerate(lines)}
        assert all(bodies == sorted(bodies, key=order.__getitem__) for bodies in stored.values())
    assert server.stop() == 0


def test_flow_with_interceptors_and_selector_does_as_its_configuration_says(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """The events go from the file to the channels; filtered and dead-lettered ones are counted."""
    path, lines = written_lines(tmp_path, 100)
    config = source_toml(
        path,
        '{ type = "multiplexing", header = "ending", mapping = { 1 = ["a"], 2 = ["a", "b"], 3 = ["b"] } }',
        """
        interceptors = [
            { type = "regex_filter", pattern = "^9", action = "drop" },
            { type = "regex_extractor", pattern = '(\\d) ', names = ["ending"] },
            { type = "search_replace", pattern = "x+", replacement = "X" },
        ]
        """,
    )
    server = start_millraced(config)
    wait_until(lambda: component_of(server, "in")["State"] == "stopped")
    kept = [line for line in lines if not line.startswith(b"9")]
    expected = {
        name: [
            line.replace(b"x", b"")[: line.index(b" ") + 1] + (b"X" if b"x" in line else b"")
            for line in kept
            if chr(line[line.index(b" ") - 1]) in endings
        ]
        for name, endings in {"a": "12", "b": "23", "c": ""}.items()
    }
    assert {name: stored_bodies(server, name) for name in NAMES} == expected
    reported = component_of(server, "in")
    dropped = len(lines) - len(kept)
    unrouted = len(kept) - len({body.split(b" ")[0] for name in "ab" for body in expected[name]})
    counted = (reported["EventAcceptedCount"], reported["FilteredCount"], reported["UnroutedCount"])
    assert counted == (len(lines), dropped, unrouted)
    assert server.stop() == 0
    # The log of the channel without events contains only stamps.
    verified = run_millraced("log", "verify", server.data_dir / "channels" / "c")
    assert verified.returncode == 0, verified.stdout


def test_check_of_a_flow_with_many_mistakes_names_them_all(tmp_path: Path) -> None:
    """The error lists all mistakes with their places."""
    config = tmp_path / "bad.toml"
    config.write_text(
        source_toml(
            tmp_path / "lines.txt",
            '{ type = "multiplexing", header = "h", mapping = { x = ["d"] } }',
            'interceptors = [{ type = "host" }, { type = "regex_filter", pattern = "(" }]\ndead_letter_channel = "e"',
        ),
        encoding="utf-8",
    )
    checked = run_millraced("serve", "--config", config)
    assert checked.returncode != 0
    for problem in (
        'sources.in.interceptors[1].pattern: is "(", which is not a valid regular expression',
        'sources.in.selector.mapping.x[0]: is "d"; it must be one of sources.in.channels',
        'sources.in.dead_letter_channel: is "e"; it must be a channel of the configuration',
    ):
        assert problem in checked.stderr
