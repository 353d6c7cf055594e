"""Checks that the wire contract is compatible with the previous version.

That is the tag of the newest release, or before the first release the previous commit. A first commit, or a clone
without history, has no previous version, so there is nothing to compare.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _git(*arguments: str) -> str | None:
    """The output of git; None if it fails."""
    git = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return git.stdout.strip() if git.returncode == 0 else None


def previous_version() -> str | None:
    """The git reference of the previous version; None if there is none that has a wire contract."""
    reference = _git("describe", "--tags", "--abbrev=0", "--match", "v*") or _git("rev-parse", "--verify", "HEAD^")
    if reference is None or _git("cat-file", "-e", f"{reference}:buf.yaml") is None:
        return None
    return reference


def main() -> None:
    reference = previous_version()
    if reference is None:
        print("buf breaking: there is no version before this one")
        return
    # buf is installed beside the interpreter that runs this.
    buf = Path(sys.executable).with_name("buf")
    against = f".git#ref={reference}"
    sys.exit(subprocess.run([buf, "breaking", "--against", against], cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
