"""The entry point of the command `millrace-spark`, which needs the extra `cli` of millrace-spark."""

import sys

_EXTRA = {"pydantic", "rich", "typer"}
_USAGE = 2


def main() -> None:
    """Runs `millrace-spark` with the arguments of this process, and exits with an `ExitCode`."""
    try:
        from millrace_spark.landing.program import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        sys.stderr.write("millrace-spark: the command line is not installed; run `pip install 'millrace-spark[cli]'`\n")
        sys.exit(_USAGE)
    app(prog_name="millrace-spark")


if __name__ == "__main__":
    main()
