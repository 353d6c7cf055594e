"""Streaming queries whose driver is killed at random times: each event arrives once."""

import random
import time
from pathlib import Path

import pytest

from tests.crash.spark_scene import COPIES, NOTES, Account, Scene, spark_scene

pytestmark = pytest.mark.spark

# Each kill takes some twenty seconds, too long for the suite, which kills one driver: that of the main job.
_KILLS_OF_THE_DRIVER = 50
_TORN_KILLS = 20
_DELAY_SECONDS_MAX = 1.5
_START_SECONDS_MAX = 10.0


def _kill_at_random(scene: Scene, kill_count: int, *, kills_servers: bool) -> list[bytes]:
    """Kills the driver this often, each time at work or, rarely, at its start; returns the lines of the notes."""
    notes: list[bytes] = []
    for number in range(kill_count):
        notes += scene.write_note(number)
        scene.start_driver()
        if scene.chance.random() < 0.2:
            time.sleep(scene.chance.uniform(0.0, _START_SECONDS_MAX))
        else:
            scene.wait_for_batches(1)
            if kills_servers and scene.chance.random() < 0.5:
                scene.kill_counts["server"] += 1
                scene.chance.choice(scene.servers).kill_and_start()
            time.sleep(scene.chance.uniform(0.0, _DELAY_SECONDS_MAX))
        scene.kill_driver(scene.chance.choice(["all", "jvm"]))
    return notes


def _settle(scene: Scene, notes: list[bytes]) -> None:
    """Lets the queries complete, and compares what has arrived with what was sent."""
    for network in scene.networks:
        network.is_calm = True
    scene.end_feed()
    scene.start_driver()
    scene.wait_until(scene.is_drained)
    scene.wait_until(lambda: len(scene.stored(NOTES)) >= len(notes))
    scene.stop_driver()
    print(  # noqa: T201 - how much that was
        f"{dict(scene.kill_counts)} killed, {sum(network.cut_count for network in scene.networks)} connections cut, "
        f"{len(scene.sent)} events to each, {len(notes)} notes, {scene.done_batches()} batches"
    )
    assert Account.of(scene.sent, scene.landed()) == Account(len(scene.sent), [], [], [])
    assert Account.of(scene.sent, scene.stored(COPIES)) == Account(len(scene.sent), [], [], [])
    assert Account.of(notes, scene.stored(NOTES)) == Account(len(notes), [], [], [])


def test_account_of_what_went_wrong_reports_it() -> None:
    """Missing, duplicated and unknown events are found."""
    assert Account.of([b"1", b"2", b"3"], [b"1", b"1", b"3", b"4"]) == Account(3, [b"2"], [b"1"], [b"4"])


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_queries_of_a_driver_killed_50_times_bring_each_event_once(tmp_path: Path, chance: random.Random) -> None:
    """The queries read a channel into Parquet, a channel into another one, and files into a channel, on two servers."""
    with spark_scene(tmp_path, chance, server_count=2, is_unreliable=False) as scene:
        _settle(scene, _kill_at_random(scene, _KILLS_OF_THE_DRIVER, kills_servers=False))


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_queries_on_an_unreliable_network_bring_each_event_once(tmp_path: Path, chance: random.Random) -> None:
    """Responses are lost and connections cut, and servers and the driver are killed and restarted."""
    with spark_scene(tmp_path, chance, server_count=2, is_unreliable=True) as scene:
        _settle(scene, _kill_at_random(scene, _TORN_KILLS, kills_servers=True))
