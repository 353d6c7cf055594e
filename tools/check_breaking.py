"""Checks that the wire contract still understands what was written for the version before.

That version is the newest release's tag, or before the first release the commit before this one. A first commit, or a
clone without history, has none; then there is nothing to break.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _git(*arguments: str) -> str | None:
    """What git prints; None where it fails."""
    git = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return git.stdout.strip() if git.returncode == 0 else None


def version_before() -> str | None:
    """The git reference of the version before; None where there is none with a contract in it."""
    reference = _git("describe", "--tags", "--abbrev=0", "--match", "v*") or _git("rev-parse", "--verify", "HEAD^")
    if reference is None or _git("cat-file", "-e", f"{reference}:buf.yaml") is None:
        return None
    return reference


def main() -> None:
    reference = version_before()
    if reference is None:
        print("buf breaking: there is no version before this one")
        return
    # buf is installed beside the interpreter that runs this.
    buf = Path(sys.executable).with_name("buf")
    against = f".git#ref={reference}"
    sys.exit(subprocess.run([buf, "breaking", "--against", against], cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
