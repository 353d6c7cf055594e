"""The end of the daemon's process."""

from tests.fork_server import run_code


def test_exit_of_a_process_that_is_only_slow_blames_no_thread() -> None:
    """Its main thread is still about to end when the time of the others is over; that is no reason for a warning."""
    ended = run_code("from millrace_server.process import daemon; daemon._exit_now()", warning_filters=("error",))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
