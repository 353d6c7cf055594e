import pytest

from millrace_server.flume_import import Outcome
from tests.flume_imports import CHANNEL, example, notes_of, outcomes_of, tables_of


def test_import_of_a_file_channel_takes_over_its_limits() -> None:
    """Milliseconds become seconds, lists become arrays, and what is not needed is reported."""
    text = """
    a.channels = f
    a.channels.f.type = file
    a.channels.f.dataDirs = /d1, /d2
    a.channels.f.checkpointDir = /cp
    a.channels.f.checkpointInterval = 15000
    a.channels.f.transactionCapacity = 500
    a.channels.f.keep-alive = 5
    a.channels.f.useDualCheckpoints = true
    a.channels.f.use-fast-replay = true
    a.channels.f.fsyncPerTransaction = false
    a.channels.f.fsyncInterval = 2
    """
    assert tables_of(text)["channels"]["f"] == {
        "type": "file",
        "transaction_capacity": 500,
        "keep_alive_seconds": 5.0,
        "data_dirs": ["/d1", "/d2"],
        "checkpoint_dir": "/cp",
        "backup_checkpoint": True,
        "checkpoint_interval_seconds": 15.0,
        "fsync": "interval",
        "fsync_interval_seconds": 2.0,
    }
    assert outcomes_of(text)["a.channels.f.use-fast-replay"] is Outcome.UNNEEDED
    assert "what Flume has there is not read" in notes_of(text)["a.channels.f.dataDirs"]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("spillable", {"type": "spillable", "capacity": 1_010_000, "memory_capacity": 10_000}),
        ("spillable_disk_only", {"type": "file", "capacity": 1_000_000}),
        ("spillable_memory_only", {"type": "memory", "capacity": 100_000}),
    ],
)
def test_import_of_a_spillable_channel_has_the_parts_that_flume_has(name: str, table: dict[str, object]) -> None:
    """Flume counts the overflow separately, and either part may be missing."""
    channel = tables_of(example(name))["channels"]["c1"]
    assert channel | table == channel
    assert ("data_dirs" in channel) == (channel["type"] != "memory")


def test_import_of_an_encrypted_channel_keeps_it_encrypted() -> None:
    """The channel does not open before there is a key, and the import says how to make one."""
    text = example("file_channel_encrypted")
    encryption = tables_of(text)["channels"]["c1"]["encryption"]
    assert encryption == {"active_key": "key-1", "keys": {"key-1": "/path/to/key-1.key"}}
    assert "openssl rand -hex 32" in notes_of(text)["a1.channels.c1.encryption.activeKey"]


def test_import_of_encryption_without_a_key_has_to_be_filled_in() -> None:
    """A channel that Flume would refuse never becomes one without encryption."""
    text = CHANNEL.replace("memory", "file") + "a.channels.c.encryption.keyProvider = JCEKSFILE\n"
    assert tables_of(text)["channels"]["c"]["encryption"]["active_key"] == "-KEY-"


def test_import_of_a_byte_capacity_of_0_says_that_there_is_a_limit() -> None:
    """Flume takes it for no limit."""
    text = f"{CHANNEL}a.channels.c.byteCapacity = 0\n"
    assert tables_of(text)["channels"]["c"] == {"type": "memory"}
    assert outcomes_of(text)["a.channels.c.byteCapacity"] is Outcome.CHANGED


def test_import_of_a_database_channel_makes_a_log() -> None:
    """Its capacity is taken over, and the database is not needed any more."""
    text = "a.channels = c\na.channels.c.type = jdbc\na.channels.c.maximum.capacity = 7\na.channels.c.db.password = x\n"
    assert tables_of(text)["channels"]["c"] == {"type": "file", "capacity": 7}
    assert outcomes_of(text)["a.channels.c.db.password"] is Outcome.UNNEEDED


def test_import_of_an_unknown_or_misspelt_property_leaves_it_out() -> None:
    """A misspelt option in the old file is not taken over either."""
    text = f"{CHANNEL}a.channels.c.capacty = 7\na.channels.c.capacity = many\n"
    notes = notes_of(text)
    assert notes["a.channels.c.capacty"] == "is not a property of memory in Flume's user guide"
    assert notes["a.channels.c.capacity"].startswith('is "many", which is not a whole number')
