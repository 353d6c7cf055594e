import sys
from pathlib import Path

import pytest

from examples.access_log.landing import LandingError, local_landing, replaced
from tests.landing_plan import landing_plan


def test_kill_returns_whether_the_landing_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A landing that has ended itself was not killed, even if that was not seen yet."""
    with local_landing(landing_plan(tmp_path)) as landing:
        assert landing.kill()
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with local_landing(landing_plan(tmp_path)) as landing:
        with pytest.raises(LandingError, match="the landing ended with 1"):
            landing.wait()
        assert not landing.kill()


def test_replaced_keeps_what_was_there_where_the_new_one_is_not_whole(tmp_path: Path) -> None:
    """Both stay until a later run has a complete result."""
    folder, earlier = tmp_path / "landed", tmp_path / "landed.earlier"
    folder.mkdir()
    (folder / "good").touch()
    for _ in range(2):
        with replaced(folder) as replacement:
            assert not folder.exists()
            folder.mkdir()
            (folder / "bad").touch()
            replacement.is_whole = False
        assert replacement.earlier == earlier
        assert [path.name for path in (*folder.iterdir(), *earlier.iterdir())] == ["bad", "good"]
    with replaced(folder):
        folder.mkdir()
    assert list(tmp_path.iterdir()) == [folder]
