"""The command line `millrace`, which the extra `cli` of millrace-client installs."""

import sys

from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.interrupts import TerminatedError, obey_sigterm

_EXTRA = {"typer", "rich"}


def main() -> None:
    """Runs `millrace` with this process's arguments, and exits with an `ExitCode`."""
    try:
        obey_sigterm()
        from millrace_client.cli.program import app

        app(prog_name="millrace")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write("millrace: the command line is not installed; run `pip install 'millrace-client[cli]'`\n")
        sys.exit(ExitCode.USAGE)
    # Only where they come before the program has begun or after it has ended; it handles both itself.
    except KeyboardInterrupt:
        sys.exit(ExitCode.INTERRUPTED)
    except TerminatedError:
        sys.exit(ExitCode.TERMINATED)
