"""Errors, their reasons, and how they travel."""

import pickle

import grpc
import pytest

import millrace_client as millrace
from millrace_client import errors
from millrace_client.errors import ERRORS_BY_REASON, RetryAdvice
from millrace_server import errors as server_errors


def test_each_reason_of_the_server_has_its_class() -> None:
    """Nothing that the server refuses comes as the bare base class, and names agree."""
    refusals = {kind.reason: kind.__name__ for kind in server_errors.MillraceError.__subclasses__()}
    for reason, name in refusals.items():
        # In the server some say whose they are, since the log has errors of its own.
        assert ERRORS_BY_REASON[reason].__name__ in {name, name.removeprefix("Channel")}


@pytest.mark.parametrize("kind", ERRORS_BY_REASON.values(), ids=lambda kind: kind.__name__)
def test_error_is_public_and_has_its_reason(kind: type[millrace.MillraceError]) -> None:
    """Each class is to be had from the package, and knows its reason without being told."""
    assert getattr(millrace, kind.__name__) is kind
    assert kind.__name__ in millrace.__all__
    assert kind("text").reason == kind.default_reason


@pytest.mark.parametrize("kind", ERRORS_BY_REASON.values(), ids=lambda kind: kind.__name__)
def test_error_survives_pickling(kind: type[millrace.MillraceError]) -> None:
    """Errors cross processes whole, as Spark's do."""
    error = kind("text", channel="c", txn_id="t", retry_delay_seconds=1.5, code=grpc.StatusCode.ABORTED)
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert type(copied) is kind
    assert (str(copied), vars(copied)) == ("text", vars(error))


def test_outcome_is_unknown_where_no_answer_came() -> None:
    """Whoever repeats by hand must know what may have been done."""
    unknown = {reason for reason, kind in ERRORS_BY_REASON.items() if not kind.is_outcome_known}
    assert {"UNAVAILABLE", "DEADLINE", "CANCELLED", "INTERNAL", "MESSAGE_TOO_LARGE", "REPLAYING"} <= unknown
    assert not unknown & {"CHANNEL_FULL", "TXN_CAPACITY", "BAD_ARGUMENT", "DRAINING", "OVERLOADED", "LEASE_EXPIRED"}


def test_unknown_reason_is_told_by_the_base_class() -> None:
    """A reason that comes later is kept."""
    assert errors.MillraceError("text", reason="MOON_FULL").reason == "MOON_FULL"


def test_advice_stands_on_each_class() -> None:
    """Only a bug of the server, and a failure that has another error's reason, leave open what to do."""
    without = {reason for reason, kind in ERRORS_BY_REASON.items() if kind.default_advice is RetryAdvice.UNKNOWN}
    assert without == {"INTERNAL", "SEND_FAILED"}


def test_advice_of_an_error_is_that_of_its_reason() -> None:
    """A failed send is repeated for the same reasons as the call that failed."""
    assert errors.SendFailedError("text", reason="CHANNEL_FULL").advice is RetryAdvice.FULL
    assert errors.MillraceError("text", reason="MOON_FULL").advice is RetryAdvice.UNKNOWN


def test_advice_of_an_unknown_reason_follows_its_code() -> None:
    """A proxy that refuses without a reason refuses again."""
    denied = errors.MillraceError("text", reason="WRONG_MOON", code=grpc.StatusCode.PERMISSION_DENIED)
    assert denied.advice is RetryAdvice.NEVER
    assert errors.MillraceError("text", reason="UNIMPLEMENTED").advice is RetryAdvice.NEVER
