"""The commands of docs/how_to/repair_a_log.md and of a restore, on a channel that is damaged."""

from pathlib import Path

import millrace_client as millrace
from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.scripts import run_script
from tests.unit.repository.checkout import ROOT

PAGE = ROOT / "docs" / "how_to" / "repair_a_log.md"
_ORDERS = 'channels.orders.type = "file"'


def flip_a_byte(path: Path, body: bytes) -> None:
    """Damages a stored body."""
    content = bytearray(path.read_bytes())
    content[content.index(body)] ^= 1
    path.write_bytes(content)


def test_blocks_for_damage_look_repair_and_restore(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """The commands run unchanged; a damaged channel opens again, or is restored from the backup."""
    [look], [repair] = (blocks_of(PAGE, kind) for kind in ("tools", "repair"))
    data_dir = tmp_path / "millrace-data"
    server = start_millraced(_ORDERS, data_dir)
    server.wait_for("channel opened")
    with millrace.connect(server.grpc) as client:
        client.channel("orders").append([b"a book"])
        run_script(look, tmp_path)
    assert server.stop() == 0
    flip_a_byte(data_dir / "channels" / "orders" / "segment-000000000001.log", b"a book")
    run_script(repair, tmp_path)
    repaired = start_millraced(_ORDERS, data_dir)
    assert repaired.wait_for("channel opened")["events"] == 0
    assert repaired.stop() == 0
    (data_dir / "channels" / "orders").rename(tmp_path / "damaged")
    run_script("millraced restore backups/orders millrace-data/channels/orders", tmp_path)
    restored = start_millraced(_ORDERS, data_dir)
    restored.wait_for("channel opened")
    with millrace.connect(restored.grpc) as client:
        assert [batch.bodies() for batch in client.channel("orders").peek()] == [[b"a book"]]
