"""Where a stream's log lines go."""

import logging


def show_log_lines() -> None:
    """Has the lines of the logger `millrace_spark` come out on standard error, unless somebody has said otherwise.

    A stream runs in a Python process of Spark's own, where nobody has set up logging and lines below a warning would be
    lost. Spark passes that process's standard error on to its own.
    """
    logger = logging.getLogger("millrace_spark")
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"))
    logger.addHandler(handler)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
