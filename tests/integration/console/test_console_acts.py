"""Acts by way of the console: with the keyboard, with the name typed, and not without a login."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

import millrace_client
from millrace_client import Client, Event, Stamp
from millrace_server.access.tokens import hash_of
from tests.integration.browser import Console
from tests.millraced import Millraced

TOKEN = "the-token-of-the-operator"  # noqa: S105 - of this test only

CONFIG_TOML = """
[server]
shutdown_grace_seconds = 0
[auth]
tokens_file = "{tokens}"
[roles.all]
allow = ["*:*"]
[identities.operator]
roles = ["all"]
[channels.configured]
type = "memory"
[sinks.gone]
type = "millrace"
channel = "configured"
endpoints = ["127.0.0.1:9"]
target_channel = "configured"
"""


@pytest.fixture(scope="module")
def config_toml(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"operator:sha256:{hash_of(TOKEN)}\n")
    return CONFIG_TOML.format(tokens=tokens)


@pytest.fixture
def client(server: Millraced) -> Iterator[Client]:
    with millrace_client.connect(server.grpc, token=TOKEN) as connected:
        yield connected


@pytest.fixture
def operator(console: Console) -> Console:
    """A console that is logged in."""
    response = console.context.request.post("/session", data={"token": TOKEN}, headers={"X-Millrace-Console": "1"})
    assert response.ok
    return console


def _confirm(page: Page, name: str, verb: str) -> str:
    """Types the name, presses the button, closes the dialog, and returns the server's response."""
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("to confirm").fill(name)
    dialog.get_by_role("button", name=verb).click()
    response = dialog.get_by_role("status").inner_text()
    dialog.get_by_role("button", name="Close").click()
    return response


def test_login_with_a_token_opens_a_session_until_it_is_closed(console: Console) -> None:
    """A wrong token is refused with the reason; the session is out of reach of scripts, and ends."""
    page = console.open("")
    page.get_by_label("Token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("token")
    assert console.barriers() == []
    page.get_by_label("Token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in to Millrace")


def test_channel_created_and_purged_by_keyboard_alone(operator: Console, client: Client) -> None:
    """Tab, Enter, Escape and letters suffice, and nothing happens before the whole name is typed."""
    page = operator.open("", "Overview")
    operator.tab_to("Create a channel")
    page.keyboard.press("Enter")
    page.keyboard.type("typed")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("status")).to_contain_text("typed")
    page.keyboard.press("Enter")
    client.channel("typed").append([b"one", b"two"])
    operator.tab_to("typed")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_be_focused()
    operator.tab_to("Purge")
    page.keyboard.press("Enter")
    page.keyboard.type("type")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("button", name="Purge")).to_be_disabled()
    assert client.admin.get_channel("typed").gauges.queued_events == 2
    page.keyboard.type("d")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("status")).to_contain_text("2")
    assert client.admin.get_channel("typed").gauges.queued_events == 0
    page.keyboard.press("Enter")
    operator.tab_to("Delete")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert "typed" in {channel.name for channel in client.admin.list_channels()}


def test_delete_of_a_channel_with_events_shows_why_it_is_refused(operator: Console, client: Client) -> None:
    """The dialog keeps what was typed, so that a tick in the box suffices for another try."""
    client.admin.create_channel("held")
    client.channel("held").append([b"one"])
    page = operator.open("channels/held", "held")
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("to confirm").fill("held")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog.get_by_role("alert")).to_contain_text("CHANNEL_NOT_EMPTY")
    assert operator.barriers() == []
    dialog.get_by_label("Even if it holds events").check()
    dialog.get_by_role("button", name="Delete").click()
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")
    assert "held" not in {channel.name for channel in client.admin.list_channels()}


def test_acts_on_who_uses_a_channel_take_effect(operator: Console, client: Client) -> None:
    """A transaction is rolled back, a claim released, a producer forgotten, and the channel resized."""
    client.admin.create_channel("used")
    used = client.channel("used")
    used.append([b"one"], Stamp("producer-1", 1, 1))
    used.transaction(3600.0, "txn-1").begin()
    used.claim("reader-1", lease_seconds=3600.0)
    page = operator.open("channels/used", "used")
    page.get_by_role("button", name="End txn-1").click()
    _confirm(page, "txn-1", "Roll back")
    assert client.admin.list_transactions("used") == []
    page.get_by_role("button", name="Forget producer-1").click()
    _confirm(page, "producer-1", "Forget")
    assert client.admin.list_producers("used") == []
    page.get_by_role("button", name="Release the claim").click()
    _confirm(page, "used", "Release")
    assert client.admin.get_channel("used").claim is None
    page.get_by_role("button", name="Resize").click()
    page.get_by_label("Capacity in events").fill("12345")
    _confirm(page, "used", "Resize")
    assert client.admin.get_channel("used").config.capacity == 12_345


def test_dead_letter_chosen_is_replayed_alone(operator: Console, client: Client) -> None:
    """The chosen letter goes where it came from, the other one stays."""
    for name in ("origin", "dead"):
        client.admin.create_channel(name)
    headers = {"millrace.dead_letter.reason": "no JSON", "millrace.dead_letter.channel": "origin"}
    client.channel("dead").append([Event(b"first", headers), Event(b"second", headers)])
    page = operator.open("dead-letters/dead", "dead")
    page.get_by_label("Choose 2").check()
    page.get_by_role("button", name="Replay 1").click()
    _confirm(page, "dead", "Replay")
    expect(page.get_by_label("Choose 2")).to_have_count(0)
    [batch] = client.channel("origin").peek()
    assert [event.body for event in batch] == [b"second"]
    assert client.admin.get_channel("dead").gauges.queued_events == 1


def test_retry_of_a_sink_that_backs_off_is_acknowledged(operator: Console) -> None:
    """The component tries at once; its reason is given together with its state."""
    page = operator.open("components", "Components")
    row = page.get_by_role("row").filter(has_text="gone")
    expect(row).to_contain_text("cannot reach a Millrace server at 127.0.0.1:9")
    row.get_by_role("button", name="Retry now").click()
    assert "gone" in _confirm(page, "gone", "Retry")
