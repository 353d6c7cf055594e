import re
import threading

import pytest

from millrace_client import (
    ChannelConfiguredError,
    ChannelFullError,
    ChannelNotFoundError,
    MillraceError,
    UnavailableError,
    errors,
)
from millrace_client.cli.exit_status import (
    ADVICE,
    MEANINGS,
    ExitCode,
    TerminatedError,
    exit_code_of,
    sentence_of,
    unwrapped_interrupts,
)
from millrace_client.grpc_errors import _likely_cause


def test_meanings_of_all_codes_are_there() -> None:
    """Each exit code has its description in the table that --help shows."""
    assert set(MEANINGS) == set(ExitCode)


def test_exit_codes_once_released_stay_the_same() -> None:
    """Scripts depend on the numbers, so they never change."""
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0,
        "REFUSED": 1,
        "USAGE": 2,
        "UNREACHABLE": 3,
        "EMPTY": 4,
        "LATER": 5,
        "INTERRUPTED": 130,
        "BROKEN_PIPE": 141,
        "TERMINATED": 143,
    }


SERVER = "collector-1:7070"


def all_error_classes() -> list[type[MillraceError]]:
    return [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MillraceError)]


def test_sentence_of_a_refusal_tells_what_happened_and_what_to_do() -> None:
    """The server's message comes first, then the advice with the names filled in."""
    error = ChannelFullError("the channel holds 100 events of 100.", channel="orders")
    assert sentence_of(error, SERVER) == (
        "the channel holds 100 events of 100; take events out, or raise the capacity with"
        " `millrace channel update orders --capacity N`"
    )


def test_sentence_of_a_refusal_that_says_what_to_do_has_no_other_advice() -> None:
    """The server knows where the channel is defined, and its message says what to do."""
    error = ChannelConfiguredError("channel 'orders' is defined in the file; remove it there", channel="orders")
    assert sentence_of(error, SERVER) == "channel 'orders' is defined in the file; remove it there"


def test_sentence_of_no_server_names_the_address() -> None:
    """Messages of gRPC about sockets are replaced by useful ones."""
    error = UnavailableError("failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:7070")
    assert sentence_of(error, SERVER) == (
        "no server responds at collector-1:7070; start one with `millraced serve`, or name another with --server or"
        " MILLRACE_SERVER"
    )


@pytest.mark.parametrize(
    ("details", "advice"),
    [
        ("SSL_ERROR_SSL: WRONG_VERSION_NUMBER", "it does not use TLS, but this client does; leave out --tls-ca"),
        ("CERTIFICATE_VERIFY_FAILED: certificate has expired", "its certificate has expired; replace it on the server"),
        ("CERTIFICATE_VERIFY_FAILED: OK", "this client does not trust its certificate; name the file of the authority"),
        ("errors resolving nowhere:1", "the name of its host cannot be resolved; name the server by a name that this"),
        ("Trying to connect an http1.x server", "this port speaks HTTP, but not gRPC; name the server's gRPC port, by"),
        ("Hostname Verification Check failed.", "its certificate is not valid for this name; use a name or address"),
        (
            "failed to connect to all addresses: Socket closed",
            "does it require TLS, or another client certificate? If so, use",
        ),
    ],
)
def test_sentence_of_a_failed_connection_says_what_is_wrong(details: str, advice: str) -> None:
    """A server that responds, but not over this connection, need not be started."""
    message = f"cannot reach a Millrace server at {SERVER}; {_likely_cause(details)} ({details})"
    sentence = sentence_of(UnavailableError(message), SERVER)
    assert sentence.startswith(f"cannot reach a Millrace server at {SERVER}; {advice}")
    assert details not in sentence


def test_sentence_of_an_unknown_reason_is_the_message() -> None:
    """A newer server may have reasons that this client does not know."""
    error = MillraceError("the moon is in the way.", reason="MOON_IN_THE_WAY")
    assert sentence_of(error, SERVER) == "the moon is in the way"
    assert exit_code_of(error) is ExitCode.REFUSED


def test_sentence_of_an_empty_message_is_the_reason() -> None:
    """There is always a message."""
    assert sentence_of(MillraceError("", reason="MOON_IN_THE_WAY"), SERVER) == "MOON_IN_THE_WAY"


def test_sentence_of_a_hostile_message_stays_one_plain_line() -> None:
    """A message cannot control the terminal, nor look like several lines."""
    error = MillraceError("a\n\x1b[2Jmillrace: all is well", reason="MOON_IN_THE_WAY")
    assert sentence_of(error, SERVER) == "a\\n\\x1b[2Jmillrace: all is well"


def test_sentence_of_hostile_names_fills_them_in_as_they_are() -> None:
    """Braces in names are not placeholders."""
    error = ChannelNotFoundError("none", channel="{server}")
    assert sentence_of(error, "{channel}").startswith("the server at {channel} has no channel {server};")


@pytest.mark.parametrize("reason", sorted(ADVICE))
def test_advice_of_each_reason_is_one_sentence(reason: str) -> None:
    """Advice follows a semicolon, ends without a full stop, and has no unfilled placeholder."""
    sentence = sentence_of(MillraceError("it went wrong", reason=reason), SERVER)
    assert not re.search(r"[.{}]$|[{}]|\n|  ", sentence)
    assert exit_code_of(MillraceError("it went wrong", reason=reason)) is not ExitCode.OK


def test_advice_where_a_retry_can_help_ends_with_later() -> None:
    """Scripts may wait and retry exactly if the code says so."""
    later = {reason for reason in ADVICE if exit_code_of(MillraceError("", reason=reason)) is ExitCode.LATER}
    assert later == {
        "CHANNEL_CLAIMED",
        "TXNS_OPEN",
        "CHANNEL_FULL",
        "BYTES_FULL",
        "DISK_FULL",
        "TOO_MANY_TXNS",
        "QUOTA_EXCEEDED",
        "OVERLOADED",
        "REPLAYING",
        "DRAINING",
        "LEASE_EXPIRED",
        "NOT_OWNER",
        "TXN_NOT_FOUND",
    }


def test_advice_reasons_are_all_known_to_the_client() -> None:
    """A renamed reason would lose its advice unnoticed."""
    known = {kind.default_reason for kind in all_error_classes()} | {"UNIMPLEMENTED"}
    assert set(ADVICE) <= known


def interrupted(interrupt: type[BaseException]) -> None:
    lock = threading.Lock()
    try:
        raise interrupt
    finally:
        lock.release()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TerminatedError])
def test_interrupt_inside_a_lock_comes_out_as_itself(interrupt: type[BaseException]) -> None:
    """The error of a lock that an interrupted wait releases is hidden."""
    with pytest.raises(interrupt), unwrapped_interrupts():
        interrupted(interrupt)


def test_other_errors_pass_as_they_are() -> None:
    """This includes errors that look similar."""
    with pytest.raises(RuntimeError, match="mine"), unwrapped_interrupts():
        raise RuntimeError("mine")


@pytest.mark.parametrize("reason", ["TXN_STATE", "NOT_CLAIMED", "STALE_EPOCH", "CANCELLED"])
def test_lost_state_without_advice_is_a_refusal(reason: str) -> None:
    """A script must not repeat a command only because its transaction or claim is lost."""
    assert exit_code_of(MillraceError("it went wrong", reason=reason)) is ExitCode.REFUSED
