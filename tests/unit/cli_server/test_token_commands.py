"""The commands `millraced token`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from millrace_server.access.tokens import hash_of, read_tokens
from millrace_server.cli import app


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["token", *map(str, arguments)])


def test_make_prints_the_token_and_keeps_its_hash(tmp_path: Path) -> None:
    """Standard output has the token alone; the file is for its user only, and says nothing of the token."""
    file = tmp_path / "tokens"
    made = [run("make", "spiffe://a/b", "--tokens-file", file) for _ in range(2)]
    tokens = [one.stdout.removesuffix("\n") for one in made]
    assert [one.exit_code for one in made] == [0, 0]
    assert len(set(tokens)) == 2
    assert all(len(token) == 43 for token in tokens)
    assert read_tokens(file) == {hash_of(token): "spiffe://a/b" for token in tokens}
    assert file.stat().st_mode & 0o777 == 0o600
    for one, token in zip(made, tokens, strict=True):
        assert token not in file.read_text() + one.stderr
        assert str(file) in one.stderr
        assert f"sha256:{hash_of(token)[:12]}..." in one.stderr


def test_list_shows_names_and_the_beginnings_of_hashes(tmp_path: Path) -> None:
    """Enough to find the line of a token, and of no use to anybody else."""
    file = tmp_path / "tokens"
    token = run("make", "web", "--tokens-file", file).stdout.strip()
    heading, line = run("list", "--tokens-file", file).stdout.splitlines()
    assert heading.split() == ["IDENTITY", "HASH"]
    assert line.split() == ["web", f"sha256:{hash_of(token)[:12]}..."]


def test_list_of_a_name_shows_its_tokens_only(tmp_path: Path) -> None:
    """While a token is replaced its name has two; once all are removed it has none."""
    file = tmp_path / "tokens"
    for name in ("web", "edge", "web"):
        run("make", name, "--tokens-file", file)
    listed = {name: run("list", name, "--tokens-file", file).stdout for name in ("web", "edge", "gone")}
    assert {name: shown.count("sha256:") for name, shown in listed.items()} == {"web": 2, "edge": 1, "gone": 0}
    assert "edge" not in listed["web"]


@pytest.mark.parametrize("command", [("make", "web"), ("list",)])
def test_commands_refuse_a_file_that_others_may_read(tmp_path: Path, command: tuple[str, ...]) -> None:
    """They say what to do, and add nothing to it."""
    file = tmp_path / "tokens"
    file.touch(0o644)
    refused = run(*command, "--tokens-file", file)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.rstrip().endswith(f"which every user of this machine may read; run: chmod o-rwx {file}")
    assert file.read_text() == ""
    file.chmod(0o640)
    assert run(*command, "--tokens-file", file).exit_code == 0


@pytest.mark.parametrize("name", ["a b", "", "a\n", "x" * 256])
def test_make_of_a_name_that_is_not_valid_says_what_is(tmp_path: Path, name: str) -> None:
    """Nothing is written."""
    refused = run("make", name, "--tokens-file", tmp_path / "tokens")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "NAME: a name must have 1 to 255 printable characters, and no spaces" in refused.stderr
    assert not (tmp_path / "tokens").exists()


def test_commands_that_find_no_file_say_so(tmp_path: Path) -> None:
    """Or no directory to write it to."""
    nowhere = tmp_path / "nowhere" / "tokens"
    for command, why in ((("list",), "cannot be read"), (("make", "web"), "cannot be written")):
        refused = run(*command, "--tokens-file", nowhere)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert f"{why}: No such file or directory" in refused.stderr
