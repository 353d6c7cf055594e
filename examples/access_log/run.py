"""The main job: a log that grows goes through two agents into Spark, and every line is accounted for.

    python examples/access_log/run.py [--engine jetstream] [LOG]

It starts two agents on free ports. The edge follows a file, which gets the lines of LOG bit by bit, and forwards them
to the collector; each keeps them in a file channel. A streaming query of Spark reads the collector's channel, parses
the lines, writes Parquet and acknowledges what is written; then it shows what is in it. Counts and checksums of each
step are compared. While the lines flow, the edge is killed and restarted, then the collector, then the query:
nothing may be lost, and nothing may be there twice. Without LOG it takes the log that the set-up of the virtual
environment wrote.

With `--engine jetstream`, two collectors share a replicated channel, whose log three nodes of NATS JetStream keep; the
leading node and the collector that owns the channel are killed too.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from examples.access_log.main_job import main

    sys.exit(main())
