"""Configurations of the engine's nodes, checked by their own program."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def nats_accepts(config: str, scratch: Path, environment: Mapping[str, str]) -> bool:
    """Whether nats-server accepts a configuration; it says why not on standard error."""
    path = scratch / "nats.conf"
    path.write_text(config)
    program = Path(sys.executable).with_name("nats-server")
    checked = subprocess.run([program, "-t", "-c", path], env={**os.environ, **environment}, check=False)
    return checked.returncode == 0
