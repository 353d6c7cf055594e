"""Errors, their reasons, and their pickling."""

import pickle

import grpc
import pytest

import millrace_client as millrace
from millrace_client import errors
from millrace_client.errors import ERRORS_BY_REASON, RetryAdvice
from millrace_server import errors as server_errors


def test_each_reason_of_the_server_has_its_class() -> None:
    """No reason of the server becomes the base class, and the names agree."""
    refusals = {kind.reason: kind.__name__ for kind in server_errors.MillraceError.__subclasses__()}
    for reason, name in refusals.items():
        # Some of the server's names have a prefix, since the log has errors of its own.
        assert ERRORS_BY_REASON[reason].__name__ in {name, name.removeprefix("Channel")}


@pytest.mark.parametrize("kind", ERRORS_BY_REASON.values(), ids=lambda kind: kind.__name__)
def test_error_is_public_and_has_its_reason(kind: type[millrace.MillraceError]) -> None:
    """Each class is exported by the package, and knows its reason."""
    assert getattr(millrace, kind.__name__) is kind
    assert kind.__name__ in millrace.__all__
    assert kind("text").reason == kind.default_reason


@pytest.mark.parametrize("kind", ERRORS_BY_REASON.values(), ids=lambda kind: kind.__name__)
def test_error_survives_pickling(kind: type[millrace.MillraceError]) -> None:
    """Errors can be passed between processes, as Spark does."""
    error = kind("text", channel="c", txn_id="t", retry_delay_seconds=1.5, code=grpc.StatusCode.ABORTED)
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert type(copied) is kind
    assert (str(copied), vars(copied)) == ("text", vars(error))


def test_outcome_is_unknown_where_no_response_came() -> None:
    """The errors show callers that retry by themselves whether the call may have taken effect."""
    unknown = {reason for reason, kind in ERRORS_BY_REASON.items() if not kind.is_outcome_known}
    assert {"UNAVAILABLE", "DEADLINE", "CANCELLED", "INTERNAL", "MESSAGE_TOO_LARGE"} <= unknown
    assert {"REPLAYING", "NOT_OWNER"} <= unknown
    assert not unknown & {"CHANNEL_FULL", "TXN_CAPACITY", "BAD_ARGUMENT", "DRAINING", "OVERLOADED", "LEASE_EXPIRED"}


def test_unknown_reason_becomes_the_base_class() -> None:
    """The base class keeps a reason that it does not know."""
    assert errors.MillraceError("text", reason="MOON_FULL").reason == "MOON_FULL"


def test_advice_stands_on_each_class() -> None:
    """Only internal errors, and failures with another error's reason, have no advice of their own."""
    without = {reason for reason, kind in ERRORS_BY_REASON.items() if kind.default_advice is RetryAdvice.UNKNOWN}
    assert without == {"INTERNAL", "SEND_FAILED"}


def test_advice_of_an_error_is_that_of_its_reason() -> None:
    """A failed send may be repeated for the same reasons as the call that failed."""
    assert errors.SendFailedError("text", reason="CHANNEL_FULL").advice is RetryAdvice.FULL
    assert errors.MillraceError("text", reason="MOON_FULL").advice is RetryAdvice.UNKNOWN


def test_advice_of_an_unknown_reason_follows_its_code() -> None:
    """A refusal of a proxy without a reason is not retried."""
    denied = errors.MillraceError("text", reason="WRONG_MOON", code=grpc.StatusCode.PERMISSION_DENIED)
    assert denied.advice is RetryAdvice.NEVER
    assert errors.MillraceError("text", reason="UNIMPLEMENTED").advice is RetryAdvice.NEVER
