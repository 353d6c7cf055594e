"""A real Chromium for tests of the console, and what goes wrong in its pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

from tests.waiting import WAIT_SECONDS_MAX

_MILLISECONDS = 1000
_TABS_MAX = 100
_UNUSED_FEATURES = ("WebUIOmniboxPopup", "WebUIOmniboxAimPopup")
"""Pages of the address bar, which Chromium loads for each window, as long as a page of the console takes."""

_FEATURES_DISABLED_BY_PLAYWRIGHT = (
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable",
    "LensOverlay",
    "MediaRouter",
    "PaintHolding",
    "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "OptimizationHints",
    "NetworkTimeServiceQuerying",
    "AimEnabled",
    "PreconnectToSearch",
)
"""Repeated here, without those of other systems, since Chromium obeys only the last `--disable-features`."""

expect.set_options(timeout=WAIT_SECONDS_MAX * _MILLISECONDS)


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """The system's Chromium; skips the test where there is none."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("needs a browser: apt-get install chromium")
    arguments = [f"--disable-features={','.join(_FEATURES_DISABLED_BY_PLAYWRIGHT + _UNUSED_FEATURES)}"]
    # Chromium's sandbox refuses to run as root.
    arguments += ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


class Console:
    """The console of a server in a tab of its own.

    Attributes:
        page: The tab.
        request_count: How often the tab asked a server for something.
        problems: Errors of scripts, violations of the Content-Security-Policy, and requests to other servers.
    """

    def __init__(self, browser: Browser, address: str) -> None:
        self.origin = f"http://{address}"
        self.context = browser.new_context(base_url=self.origin, reduced_motion="reduce")
        self.context.set_default_timeout(WAIT_SECONDS_MAX * _MILLISECONDS)
        self.page: Page = self.context.new_page()
        self.request_count = 0
        self.problems: list[str] = []
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("console", self._note_message)
        self.page.on("request", self._note_request)

    def _note_message(self, message: ConsoleMessage) -> None:
        # The browser reports each refusal of the server, too, which a test may want.
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    def _note_request(self, request: Request) -> None:
        self.request_count += 1
        if not request.url.startswith(self.origin):
            self.problems.append(f"a request to {request.url}")

    def stop_clock(self) -> Page:
        """Lets time pass in the page only as `page.clock.run_for` says; to be called before it is opened."""
        self.page.clock.install(time=0)
        self.page.clock.pause_at(_MILLISECONDS)
        return self.page

    def open(self, view: str, title: str | None = None) -> Page:
        """Goes to an address such as `channels/orders`, and waits for its title."""
        self.page.goto(f"/#/{view}")
        if title is not None:
            expect(self.page.get_by_role("heading", level=1)).to_contain_text(title)
        return self.page

    def barriers(self) -> list[str]:
        """What axe finds wrong for people who use a keyboard or a screen reader, or do not see well."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(Axe().axe_script)
        response = self.page.evaluate("axe.run({ resultTypes: ['violations'] })")
        assert len(response["passes"]) > 10, response
        return [f"{one['id']}: {[node['html'] for node in one['nodes']]}" for one in response["violations"]]

    def tab_to(self, name: str) -> None:
        """Waits for the control of that name, and presses Tab until it has the focus."""
        expect(self.page.get_by_text(name, exact=True).first).to_be_visible()
        for _ in range(_TABS_MAX):
            self.page.keyboard.press("Tab")
            if self.page.evaluate("document.activeElement.innerText?.trim()") == name:
                return
        raise AssertionError(f"no {name!r} within {_TABS_MAX} tabs")

    def close(self) -> None:
        self.context.close()
        assert self.problems == [], self.problems
