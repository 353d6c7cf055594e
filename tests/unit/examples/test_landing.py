from pathlib import Path

from examples.access_log.landing import replaced


def test_replaced_keeps_what_was_there_where_the_new_one_is_not_whole(tmp_path: Path) -> None:
    """Both stay until a later run has a whole one."""
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
