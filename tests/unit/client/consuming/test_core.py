import grpc
import pytest

from millrace_client import errors
from millrace_client.consuming.core import passes
from millrace_client.errors import MillraceError


@pytest.mark.parametrize(
    "error",
    [
        errors.UnavailableError("x", code=grpc.StatusCode.UNAVAILABLE),
        errors.DrainingError("x", code=grpc.StatusCode.UNAVAILABLE),
        errors.ReplayingError("x", code=grpc.StatusCode.UNAVAILABLE),
        errors.ChannelClaimedError("x", code=grpc.StatusCode.FAILED_PRECONDITION),
        errors.TooManyTxnsError("x", code=grpc.StatusCode.RESOURCE_EXHAUSTED),
        errors.LogFailedError("x", code=grpc.StatusCode.DATA_LOSS),
        errors.DeadlineError("x"),
        errors.InternalError("x", code=grpc.StatusCode.INTERNAL),
        MillraceError("x", reason="MOON_FULL"),
    ],
    ids=lambda error: error.reason,
)
def test_error_that_time_may_mend_passes(error: MillraceError) -> None:
    """Temporary errors and unknown ones are retried."""
    assert passes(error, waits_for_channels=False)


@pytest.mark.parametrize(
    "error",
    [
        errors.BadArgumentError("x"),
        errors.BadNameError("x"),
        errors.CorruptError("x", code=grpc.StatusCode.DATA_LOSS),
        errors.MessageTooLargeError("x"),
        errors.ClientForkedError("x"),
        MillraceError("x", reason="UNIMPLEMENTED", code=grpc.StatusCode.UNIMPLEMENTED),
        errors.ForbiddenError("x", code=grpc.StatusCode.PERMISSION_DENIED),
    ],
    ids=lambda error: error.reason,
)
def test_error_that_lasts_does_not_pass(error: MillraceError) -> None:
    """The error is raised, even if the consumer waits for missing channels."""
    assert not passes(error, waits_for_channels=True)


def test_channel_that_is_not_there_passes_by_choice() -> None:
    """A missing channel is usually a mistake; a consumer started before its creation may wait."""
    error = errors.ChannelNotFoundError("x", code=grpc.StatusCode.NOT_FOUND)
    assert not passes(error, waits_for_channels=False)
    assert passes(error, waits_for_channels=True)
