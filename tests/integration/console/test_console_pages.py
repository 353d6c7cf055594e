"""Every page of the console in a browser: readable by everybody, on every screen, and safe."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

import millrace_client
from millrace_client import Event, Stamp
from tests.integration.browser import Console
from tests.millraced import Millraced
from tests.waiting import wait_until

HOSTILE = "<img src=x onerror=document.title='hacked'>"
HOSTILE_JSON = b'{"id": 12345678901234567890, "name": "<script>document.title=\'hacked\'</script>"}'

CONFIG_TOML = """
channels.orders = { type = "file" }
channels.full = { type = "memory", capacity = 1, keep_alive_seconds = 0 }
channels.dead = { type = "memory" }
channels.damaged = { type = "file", data_dirs = ["DATA_DIR"] }
channels.followed = { type = "memory" }
sources.lines = { type = "syslog", listen = ["udp://127.0.0.1:0"], channels = ["orders"], dead_letter_channel = "dead" }
sinks.gone = { type = "millrace", channel = "full", endpoints = ["127.0.0.1:9"], target_channel = "full" }
"""

PAGES = {
    "": "Overview",
    "flow": "Flow",
    "channels/orders": "orders",
    "channels/damaged": "damaged",
    "channels/unknown": "unknown",
    "events": "Events",
    "events/orders": "orders",
    "dead-letters": "Dead letters",
    "dead-letters/dead": "dead",
    "components": "Components",
    "configuration": "Configuration",
    "nowhere": "No such page",
}

CLIPPED = """[...document.querySelectorAll(".scroll")]
    .filter((place) => place.scrollWidth > place.clientWidth)
    .map((place) => place.innerText)"""
"""A script that returns the tables which are wider than their places."""


@pytest.fixture(scope="module")
def config_toml(tmp_path_factory: pytest.TempPathFactory) -> str:
    data_dir = tmp_path_factory.mktemp("data")
    (data_dir / "damaged").mkdir()
    (data_dir / "damaged" / "segment-000000000001.log").write_bytes(b"no segment" * 100)
    return CONFIG_TOML.replace("DATA_DIR", str(data_dir))


@pytest.fixture(scope="module")
def busy_server(server: Millraced) -> Iterator[Millraced]:
    """A server with a claim, an open transaction, a producer, a dead letter, and names that try to be HTML."""
    with millrace_client.connect(server.grpc) as client:
        orders = client.channel("orders")
        orders.append([Event(HOSTILE_JSON, {HOSTILE: HOSTILE}), Event(bytes(range(64)))], Stamp(HOSTILE, 1, 2))
        client.channel("full").append([b"one"])
        client.channel("dead").append([Event(b"bad", {"millrace.dead_letter.reason": HOSTILE})])
        wait_until(lambda: client.admin.list_components()[0].reason != "")
        client.channel("dead").transaction(3600.0, HOSTILE).begin()
        orders.claim(HOSTILE, lease_seconds=3600.0)
        yield server


@pytest.mark.parametrize(("view", "title"), PAGES.items(), ids=[view or "overview" for view in PAGES])
def test_page_in_both_schemes_and_on_a_phone_has_no_barrier(
    console: Console, busy_server: Millraced, view: str, title: str
) -> None:
    """Axe finds nothing in light, nor in dark on a phone, whose 360 pixels are enough for all but wide tables.

    On a laptop these, too, have space for all columns, the last of which are acts.
    """
    page = console.open(view, title)
    expect(page.get_by_text("Loading…")).to_have_count(0)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(CLIPPED) == []
    assert console.barriers() == []
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 360, "height": 780})
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert console.barriers() == []


def test_channel_that_cannot_be_opened_says_why(console: Console, busy_server: Millraced) -> None:
    """Its page has the state and the reason, though neither figures nor users."""
    page = console.open("channels/damaged", "damaged")
    expect(page.get_by_text("channel 'damaged' cannot be opened")).to_be_visible()
    expect(page.locator("dl.figures")).to_contain_text("log failed")


def test_event_of_hostile_text_is_shown_as_text(console: Console, busy_server: Millraced) -> None:
    """Headers and bodies are text, JSON or hex, and never HTML; long numbers keep all their digits."""
    page = console.open("events/orders", "orders")
    page.get_by_role("button", name="▸ 1").click()
    expect(page.locator("dl.pairs dt")).to_have_text(HOSTILE)
    expect(page.locator("pre")).to_contain_text('"id": 12345678901234567890,\n')
    page.get_by_role("button", name="Hex").click()
    expect(page.locator("pre")).to_contain_text("00000000  7b 22 69 64")
    assert page.locator("img").count() == 0
    assert page.title() == "orders · Millrace"


def test_events_searched_for_text_are_found_and_marked(console: Console, busy_server: Millraced) -> None:
    """A search looks into headers and bodies, shows what matches, and takes nothing."""
    page = console.open("events/orders", "orders")
    page.get_by_label("Search headers and bodies").fill("SCRIPT")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("mark").first).to_have_text("script")
    assert page.url.endswith("?search=SCRIPT")
    with millrace_client.connect(busy_server.grpc) as client:
        assert client.admin.get_channel("orders").gauges.queued_events == 2


def test_events_followed_in_the_browser_appear(console: Console, busy_server: Millraced) -> None:
    """An event is shown once it is committed."""
    page = console.open("events/followed", "followed")
    page.get_by_label("Start at").select_option("follow")
    with page.expect_response("**/follow*"):
        page.get_by_role("button", name="Follow").click()
    with millrace_client.connect(busy_server.grpc) as client:
        client.channel("followed").append([b"fresh"])
    expect(page.locator("td.preview")).to_have_text("fresh")


def test_theme_chosen_by_the_reader_is_kept(console: Console, server: Millraced) -> None:
    """The switch overrides the system's preference, also after a reload."""
    page = console.open("", "Overview")
    page.emulate_media(color_scheme="light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_label("Theme").select_option("dark")
    page.reload()
    expect(page.get_by_label("Theme")).to_have_value("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_page_whose_server_is_gone_says_so(console: Console, server: Millraced) -> None:
    """The last figures stay, with the time that they are of, until the server responds again."""
    page = console.stop_clock()
    console.open("", "Overview")
    expect(page.get_by_role("row").filter(has_text="orders")).to_be_visible()
    page.route("**/api/**", lambda route: route.abort())
    page.clock.run_for(2_000)
    expect(page.get_by_role("alert")).to_contain_text("The server does not respond. Figures are from ")
    expect(page.get_by_role("row").filter(has_text="orders")).to_be_visible()
    page.unroute("**/api/**")
    page.clock.run_for(4_000)
    expect(page.get_by_role("alert")).to_have_count(0)
