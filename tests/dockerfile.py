"""The Dockerfile, read, and its steps run without a container engine."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.unit.repository.checkout import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"

_DIRECTORIES = re.compile(r"(?<![\w.])(?=/(?:etc/millrace|opt|source|usr/share/doc/millrace|var/lib/millrace)\b)")
"""In front of each path of the image that a step makes or uses."""


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions with their arguments, continued lines joined."""
    lines = (line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest) for line in joined.splitlines() if line for name, _, rest in [line.partition(" ")]]


class Image:
    """What the steps of the Dockerfile make, in a directory instead of an image's root.

    Where a step calls pip, uv does the same, since it has the packages of the tests' environment at hand.

    Attributes:
        environment: The variables that the last stage sets.
    """

    def __init__(self, root: Path, context: Mapping[str, Path]) -> None:
        """`context` says where sources of the build lie that are not in the checkout, by their first directory."""
        self._root = root
        self._context = context
        self.environment: dict[str, str] = {}

    def build(self) -> None:
        """Runs the steps of all stages; what runs as another user runs as this one."""
        for name, rest in instructions():
            if name == "RUN":
                step = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
                self.run(self._without_pip(step))
            elif name == "COPY" and not rest.startswith("--from"):
                *sources, target = shlex.split(rest)
                for source in sources:
                    self._copy(source, self.path(target))
            elif name == "ENV":
                variables = dict(word.split("=", 1) for word in shlex.split(rest))
                own = {key: self.path(value).replace("$PATH", os.environ["PATH"]) for key, value in variables.items()}
                self.environment.update(own)

    def run(self, command: list[str]) -> str:
        """Runs a command in the image, and returns what it prints."""
        words = [sys.executable if word == "python" else self.path(word) for word in command]
        # Only root may give files to others, and nobody has to where all runs as one user.
        words = [word for word in words if not word.startswith(("--owner", "--group"))]
        environment = {**os.environ, **self.environment}
        program = shutil.which(words[0], path=environment["PATH"]) or words[0]
        run = subprocess.run([program, *words[1:]], env=environment, capture_output=True, text=True, check=False)
        assert run.returncode == 0, (command, run.stderr)
        return run.stdout

    def _without_pip(self, step: list[str]) -> list[str]:
        """A step that makes an environment, or installs packages in it, in a fraction of the time; others unchanged."""
        if step[1:3] == ["-m", "venv"]:
            return [*step[:3], "--without-pip", *step[3:]]
        if not step[0].endswith("/pip"):
            return step
        uv = str(Path(sys.executable).with_name("uv"))
        patterns = [word for word in step[2:] if word != "--no-cache-dir"]
        # What the shell makes of a pattern in the image.
        words = [found for word in patterns for found in self._matching(word)]
        return [uv, "pip", "install", "--quiet", "--python", str(Path(step[0]).with_name("python")), *words]

    def _matching(self, word: str) -> list[str]:
        if "*" not in word:
            return [word]
        pattern = Path(self.path(word))
        return [str(path) for path in pattern.parent.glob(pattern.name)]

    def path(self, text: str) -> str:
        """A text with the image's paths where they lie here."""
        return _DIRECTORIES.sub(str(self._root), text)

    def _copy(self, source: str, target: str) -> None:
        first, _, rest = source.partition("/")
        found = (self._context.get(first) or ROOT / first) / rest
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        if found.is_dir():
            shutil.copytree(found, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(found, target)
