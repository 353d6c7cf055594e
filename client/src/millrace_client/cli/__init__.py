"""The command line `millrace`, which the extra `cli` of millrace-client installs."""

import gc
import os
import sys
from contextlib import suppress

from millrace_client.cli.exit_status import ExitCode, TerminatedError, end_on_signals

_EXTRA = {"typer", "rich"}


def main() -> None:
    """Runs `millrace` with this process's arguments, and exits with an `ExitCode`."""
    # Until the command begins: modules stay, and to search them for garbage takes longer than a call.
    gc.disable()
    # The command's own sentence says why a TLS handshake has failed.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        _run()
    except SystemExit as ended:
        # One that arrives right now is still raised.
        with suppress(KeyboardInterrupt, TerminatedError):
            end_on_signals()
        end_on_signals()
        if isinstance(ended.code, int):
            _end_at_once(ended.code)
        raise
    finally:
        end_on_signals()


def _run() -> None:
    try:
        end_on_signals()
        from millrace_client.cli.program import app

        app(prog_name="millrace")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write("millrace: the command line is not installed; run `pip install 'millrace-client[cli]'`\n")
        sys.exit(ExitCode.USAGE)
    # Only for signals just before a command begins or after it ends; it handles others itself.
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except TerminatedError:
        sys.exit(ExitCode.TERMINATED)


def _end_at_once(exit_code: int) -> None:
    """Ends this process, unless its output cannot be written, which Python reports.

    Python would take it apart first, and abort if a thread is just writing to standard error: that of a progress bar
    runs on after the second Ctrl-C.
    """
    with suppress(OSError, ValueError):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(exit_code)
