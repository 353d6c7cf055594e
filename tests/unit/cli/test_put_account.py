from pathlib import Path

import pytest

from millrace_client import SendSummary
from millrace_client.cli.put_account import PutAccount


@pytest.fixture
def account() -> PutAccount:
    account = PutAccount("orders", "p-1", skipped_lines=100, lines_read=1300)
    account.add(SendSummary(1000, 200, 5, 804, None))
    account.add(SendSummary(100, 100, None, None, None))
    account.add(SendSummary(100, 0, 2001, 2100, None))
    return account


def test_add_of_receipts_counts_lines_and_events_apart(account: PutAccount) -> None:
    """Lines that were stored before are answered for, but this run did not store them."""
    assert (account.lines_committed, account.events_committed) == (1200, 900)
    assert (account.first_sequence, account.last_sequence) == (5, 2100)
    assert account.next_line == 1300


def test_sentence_of_a_resumed_put_tells_all(account: PutAccount) -> None:
    """Skipped, read, committed, repeated, and where they lie."""
    assert account.sentence() == (
        "orders: 100 lines skipped, 1,300 lines read, 900 events committed, 300 of the lines stored before,"
        " sequences 5 to 2,100"
    )


def test_sentence_of_an_empty_put_is_short() -> None:
    """What is not there is not told."""
    assert PutAccount("orders", "p-1").sentence() == "orders: 0 lines read, 0 events committed"


def test_sentence_of_one_line_is_in_the_singular() -> None:
    """One is one."""
    account = PutAccount("orders", "p-1", lines_read=1)
    account.add(SendSummary(1, 0, 7, 7, None))
    assert account.sentence() == "orders: 1 line read, 1 event committed, sequences 7 to 7"


def test_document_of_an_incomplete_put_tells_where_to_resume(account: PutAccount) -> None:
    """A script needs the two numbers for --skip-lines and --producer-id."""
    assert account.document(is_complete=False) == {
        "channel": "orders",
        "producer_id": "p-1",
        "skipped_lines": 100,
        "lines_read": 1300,
        "lines_committed": 1200,
        "events_committed": 900,
        "first_sequence": 5,
        "last_sequence": 2100,
        "server_count": 1,
        "complete": False,
        "resume_skip_lines": 1300,
    }


def test_resume_command_with_spaces_can_be_pasted(account: PutAccount) -> None:
    """The shell reads the words as they were."""
    command = account.resume_command(Path("my log"), ["--header=a=b c"])
    assert command == "millrace put orders 'my log' '--header=a=b c' --skip-lines 1300 --producer-id p-1"
