import grpc
import pytest

from millrace_client import errors
from millrace_client.consuming.config import ConsumerConfig
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
    assert passes(error, ConsumerConfig())


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
    assert not passes(error, ConsumerConfig(waits_for_channels=True))


def test_channel_that_is_not_there_passes_by_choice() -> None:
    """A missing channel is usually a mistake; a consumer started before its creation may wait."""
    error = errors.ChannelNotFoundError("x", code=grpc.StatusCode.NOT_FOUND)
    assert not passes(error, ConsumerConfig())
    assert passes(error, ConsumerConfig(waits_for_channels=True))


@pytest.mark.parametrize("kind", [errors.UnauthenticatedError, errors.TokenExpiredError])
def test_refused_token_passes_if_its_file_may_get_another(kind: type[MillraceError]) -> None:
    """Without a file, no time brings a valid token."""
    error = kind("x", code=grpc.StatusCode.UNAUTHENTICATED)
    assert passes(error, ConsumerConfig(token_file="token"))  # noqa: S106 - a path
    assert not passes(error, ConsumerConfig(token="x"))  # noqa: S106 - of a test)
    assert not passes(error, ConsumerConfig())
