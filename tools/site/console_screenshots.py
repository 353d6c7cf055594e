"""Takes the screenshots of the console in `docs/images`, with a server under real load and with real troubles.

`make docs PICTURES=1` runs it. It needs Chromium, and takes more than a minute, until the charts have events to show.
"""

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

import millrace_client
from millrace_client import Event

PICTURES = Path(__file__).resolve().parents[2] / "docs" / "images"
LOAD_SECONDS = 75.0
STEP_SECONDS = 0.05
PAYMENTS = 480
CYCLE_STEPS, BACKLOG_STEPS = 800, 500
"""In a cycle orders first come faster than they are taken, and then more slowly, so that the charts have a shape."""

CONFIG_TOML = """
[channels.orders]
type = "file"
[channels.payments]
type = "memory"
capacity = 500
keep_alive_seconds = 0
[channels.access]
type = "spillable"
[channels.dead-letters]
type = "file"

[sources.nginx]
type = "taildir"
paths = ["logs/*.log"]
channels = ["access"]
dead_letter_channel = "dead-letters"
[sinks.archive]
type = "files"
channel = "access"
path = "archive"
[sinks.billing]
type = "http"
channel = "payments"
url = "http://127.0.0.1:9/payments"
dead_letter_channel = "dead-letters"
"""


class Picture(NamedTuple):
    """A view of the console, and how it is shown."""

    name: str
    view: str
    scheme: Literal["light", "dark"] = "light"
    width: int = 1200
    height: int = 800
    prepare: Callable[[Page], None] = lambda _page: None


def _open_first_event(page: Page) -> None:
    page.locator("tbody button").first.click()
    expect(page.locator("pre")).to_be_visible()


ALL = (
    Picture("console-overview", "", height=740),
    Picture("console-flow", "flow", "dark", width=1300, height=480),
    Picture("console-channel", "channels/orders", height=900),
    Picture("console-events", "events/orders?search=Lovelace", prepare=_open_first_event),
    Picture("console-components", "components", "dark", height=480),
    Picture("console-phone", "", "dark", width=360, height=780),
)


class Load:
    """The load of the channels: orders that are consumed, payments that are not, and lines of a log."""

    def __init__(self, address: str, folder: Path) -> None:
        self._client = millrace_client.connect(address)
        self._log = folder / "logs" / "access.log"
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        orders, payments = self._client.channel("orders"), self._client.channel("payments")
        for number in iter(range(1_000_000)):
            if self._is_over.wait(STEP_SECONDS):
                return
            customer = (
                {"name": "Ada Lovelace", "city": "London"}
                if number % 3
                else {"name": "Grace Hopper", "city": "New York"}
            )
            body = json.dumps({"order": 100_000 + number, "customer": customer, "total": round(number % 97 * 1.25, 2)})
            orders.append([Event(body.encode(), {"host": f"web-{number % 4}", "format": "json"})] * 20)
            with orders.transaction() as txn:
                txn.take(max_events=15 if number % CYCLE_STEPS < BACKLOG_STEPS else 30)
            if number < PAYMENTS:
                payments.append([body.encode()])
            with self._log.open("a") as log:
                log.write(f'10.0.0.{number % 250} - - "GET /orders/{number} HTTP/1.1" 200 512\n' * 5)

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._client.close()


@contextmanager
def loaded_server(load_seconds: float = LOAD_SECONDS) -> Iterator[dict[str, str]]:
    """A server that has been under load for some seconds; returns the addresses of its ports, `grpc` and `http`."""
    with TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        (folder / "logs").mkdir()
        (folder / "archive").mkdir()
        (folder / "logs" / "access.log").touch()
        (folder / "millrace.toml").write_text(CONFIG_TOML)
        addresses = folder / "addresses.json"
        millraced = Path(sys.executable).with_name("millraced")
        free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--address-file", addresses)
        server = subprocess.Popen(
            [millraced, "serve", "--config", "millrace.toml", *free_ports], cwd=folder, stderr=subprocess.DEVNULL
        )
        running.callback(server.wait)
        running.callback(server.terminate)
        while not addresses.exists():
            time.sleep(STEP_SECONDS)
        found = json.loads(addresses.read_text())
        running.callback(Load(found["grpc"], folder).end)
        time.sleep(load_seconds)
        yield found


def take(browser: Browser, address: str, picture: Picture) -> None:
    """Writes a picture."""
    size: ViewportSize = {"width": picture.width, "height": picture.height}
    context = browser.new_context(viewport=size, color_scheme=picture.scheme, locale="en-GB")
    page = context.new_page()
    page.goto(f"http://{address}/#/{picture.view}")
    page.wait_for_load_state("networkidle")
    picture.prepare(page)
    page.screenshot(path=PICTURES / f"{picture.name}.png")
    context.close()


def main() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("the pictures need a browser: apt-get install chromium")
    PICTURES.mkdir(exist_ok=True)
    with loaded_server() as addresses, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture in ALL:
            take(browser, addresses["http"], picture)
        browser.close()


if __name__ == "__main__":
    main()
