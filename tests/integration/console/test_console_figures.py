"""The console under load, with many channels, and left open."""

import threading
from itertools import pairwise
from statistics import median

import pytest
from playwright.sync_api import CDPSession, Locator, Page, expect

import millrace_client
from tests.integration.browser import Console
from tests.millraced import Millraced

CHANNELS = 1_000
PAGE_ROWS = 50
POLL_MILLISECONDS = 2_000
STEP_MILLISECONDS = 80_000
PERIODS = 5
PERIOD_REQUESTS = 8
HEAP_UNIT_BYTES = 16 * 1024


@pytest.fixture(scope="module")
def config_toml() -> str:
    many = "".join(f'channels.c{number:04} = {{ type = "memory", capacity = 10 }}\n' for number in range(CHANNELS - 1))
    return f'{many}channels.orders = {{ type = "file" }}\n'


def _figure(page: Page, name: str) -> Locator:
    return page.locator("dl.figures > div", has=page.get_by_text(name, exact=True)).locator("dd")


def _counter(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name)).locator("td")


class Load:
    """Appends batches to a channel from a thread of its own, and takes half of them."""

    def __init__(self, address: str, channel: str) -> None:
        self._address = address
        self._channel = channel
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        with millrace_client.connect(self._address) as client:
            channel = client.channel(self._channel)
            while not self._is_over.wait(0.01):
                channel.append([b"x" * 100] * 20)
                with channel.transaction() as txn:
                    txn.take(max_events=10)


def test_figures_under_load_equal_the_account_of_the_client(console: Console, server: Millraced) -> None:
    """While events flow each figure lies between two of the client's, and afterwards all are equal."""
    page = console.stop_clock()
    console.open("channels/orders", "orders")
    expect(_counter(page, "event_put_success_count")).to_be_visible()
    with millrace_client.connect(server.grpc) as client:
        with Load(server.grpc, "orders"):
            for _ in range(3):
                before = client.admin.get_channel("orders").counters.event_put_success_count
                with page.expect_response("**/api/channels/orders") as responded:
                    page.clock.run_for(POLL_MILLISECONDS)
                shown = responded.value.json()["counters"]["event_put_success_count"]
                assert before <= shown <= client.admin.get_channel("orders").counters.event_put_success_count
                expect(_counter(page, "event_put_success_count")).to_have_text(f"{shown:,}")
        account = client.admin.get_channel("orders")
    page.clock.run_for(POLL_MILLISECONDS)
    expect(_counter(page, "event_put_success_count")).to_have_text(f"{account.counters.event_put_success_count:,}")
    expect(_counter(page, "event_take_success_count")).to_have_text(f"{account.counters.event_take_success_count:,}")
    expect(_counter(page, "commit_count")).to_have_text(f"{account.counters.commit_count:,}")
    depth = f"{account.gauges.queued_events:,}"
    expect(_figure(page, "Depth")).to_contain_text(f"{depth}\nof 1,000,000 · 0 taken", use_inner_text=True)
    console.open("?search=orders", "Overview")
    expect(_figure(page, "Channels")).to_have_text(f"{CHANNELS:,}")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="orders"))
    expect(row.locator("td").nth(1)).to_have_text(depth)


def test_overview_of_a_thousand_channels_shows_a_page_of_them(console: Console, server: Millraced) -> None:
    """The page shows 50 rows at a time, finds and sorts among all, and tells how long the first paint took."""
    page = console.open("", "Overview")
    rows = page.get_by_role("table", name="Channels").locator("tbody tr")
    expect(rows).to_have_count(PAGE_ROWS)
    shown = page.evaluate("performance.now()")
    # The browser tells of a paint some time after it.
    paint = page.wait_for_function("performance.getEntriesByName('first-contentful-paint')[0]?.startTime").json_value()
    print(f"first paint after {paint:.0f} ms, all rows of {CHANNELS} channels after {shown:.0f} ms")  # noqa: T201 - shown by -s
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text(f"51 to 100 of {CHANNELS}")).to_be_visible()
    page.get_by_role("button", name="Channel", exact=True).click()
    expect(rows.first).to_contain_text("c0000")
    page.get_by_role("button", name="Channel", exact=True).click()
    expect(rows.first).to_contain_text("orders")
    page.get_by_label("Search channels").fill("c099")
    expect(rows).to_have_count(9)
    with page.expect_response("**/api/overview*"):
        page.evaluate("window.kept = document.querySelector('tbody tr')")
    assert page.evaluate("window.kept === document.querySelector('tbody tr')")


def _kept(devtools: CDPSession) -> dict[str, int]:
    """The objects and nodes that the page's scripts can reach, its listeners, and its heap in units of 16 KiB."""
    group = {"objectGroup": "kept"}
    prototype = devtools.send("Runtime.evaluate", {"expression": "Object.prototype", **group})["result"]["objectId"]
    found = devtools.send("Runtime.queryObjects", {"prototypeObjectId": prototype, **group})["objects"]["objectId"]
    count = {"objectId": found, "functionDeclaration": "function () { return this.length }"}
    objects = devtools.send("Runtime.callFunctionOn", count)["result"]["value"]
    devtools.send("Runtime.releaseObjectGroup", group)
    devtools.send("HeapProfiler.collectGarbage")
    used = devtools.send("Runtime.getHeapUsage")["usedSize"]
    return {"objects": objects, **devtools.send("Memory.getDOMCounters"), "heap": used // HEAP_UNIT_BYTES}


def _settled(devtools: CDPSession) -> dict[str, int]:
    """The same once two looks are equal: responses may arrive between them, and some garbage survives a collection."""
    before, now = None, _kept(devtools)
    while now != before:
        before, now = now, _kept(devtools)
    return now


@pytest.mark.parametrize(
    ("view", "title"), [("", "Overview"), ("channels/orders", "orders")], ids=["overview", "channel"]
)
def test_page_left_open_for_long_does_not_grow(console: Console, server: Millraced, view: str, title: str) -> None:
    """Over an hour of the page's clock polls leave nothing, but for what is compiled once in some parts of it."""
    page = console.stop_clock()
    console.open(view, title)
    page.wait_for_load_state("networkidle")
    devtools = console.context.new_cdp_session(page)
    kept = []
    for _ in range(1 + PERIODS):
        end = console.request_count + PERIOD_REQUESTS
        while console.request_count < end:
            page.clock.run_for(STEP_MILLISECONDS)
        kept.append(_settled(devtools))
    for name in kept[0]:
        growth = [after[name] - before[name] for before, after in pairwise(kept)]
        # The page of a channel sends two kinds of requests, either of which might leave something.
        assert median(growth) < PERIOD_REQUESTS // 4, (name, growth)


def test_page_that_nobody_sees_asks_for_nothing(console: Console, server: Millraced) -> None:
    """A hidden tab costs the server nothing; once it is shown again it asks at once."""
    page = console.stop_clock()
    console.open("", "Overview")
    page.wait_for_load_state("networkidle")
    page.evaluate("Object.defineProperty(document, 'hidden', { value: true, configurable: true })")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    before = console.request_count
    page.clock.run_for(STEP_MILLISECONDS)
    assert console.request_count == before
    page.evaluate("delete document.hidden")
    with page.expect_response("**/api/overview*"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
