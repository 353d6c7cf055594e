"""The main job: a log file goes through a channel into Spark, and every line is accounted for.

    python examples/access_log/run.py [LOG]

It starts a server on a free port, sends the file's lines into a file channel, reads them with Spark in parallel, parses
them, writes Parquet, shows what is in it, compares the counts and checksums of each step, acknowledges, and stops
everything. Half-way through the sending, and again before Spark reads, it kills the server and starts it anew: nothing
that was committed may be lost, and nothing may be there twice. Without LOG it takes the log that the set-up of the
virtual environment wrote.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from examples.access_log.main_job import main

    sys.exit(main())
