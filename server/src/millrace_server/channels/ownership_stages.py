"""The stages of a replicated channel's way through one server."""

import enum


class Stage(enum.Enum):
    """Moves; any other is illegal.

    STANDING_BY -> TAKING_OVER   this server has got the lease
    TAKING_OVER -> SERVING       the log is fenced and read back, the lease confirmed, and the channel open for calls
    TAKING_OVER -> STANDING_BY   another server was faster, or the engine does not respond
    TAKING_OVER -> FAILED        the log is damaged, needs a key that is missing, or the channel does not open
    SERVING -> LEAVING           the server stops, or the channel moves to another one
    SERVING -> LOSING            the lease is lost, another server has appended, or the log has failed
    LEAVING -> STANDING_BY       a checkpoint is written, and the lease released
    LOSING -> STANDING_BY        the log is closed
    """

    STANDING_BY = "standing by"
    TAKING_OVER = "taking over"
    SERVING = "serving"
    LEAVING = "leaving"
    LOSING = "losing"
    FAILED = "failed"


MOVES = {
    Stage.STANDING_BY: {Stage.TAKING_OVER},
    Stage.TAKING_OVER: {Stage.SERVING, Stage.STANDING_BY, Stage.FAILED},
    Stage.SERVING: {Stage.LEAVING, Stage.LOSING},
    Stage.LEAVING: {Stage.STANDING_BY},
    Stage.LOSING: {Stage.STANDING_BY},
    Stage.FAILED: set[Stage](),
}
