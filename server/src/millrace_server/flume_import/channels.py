"""Conversion of Flume's channels."""

import re
from pathlib import PurePosixPath

from millrace_server.flume_import.component_table import find_component
from millrace_server.flume_import.conversion import OwnCode, convert
from millrace_server.flume_import.kafka import convert_kafka_channel
from millrace_server.flume_import.options import Options, Table, set_values

_MEMORY_CAPACITY = 10_000
_OVERFLOW_CAPACITY = 100_000_000
"""Flume's defaults of a spillable channel."""

_LOG_SETTINGS = ("data_dirs", "checkpoint_dir", "backup_checkpoint", "checkpoint_interval_seconds", "segment_bytes_max",
                 "min_free_bytes", "fsync", "fsync_interval_seconds", "encryption")  # fmt: skip
_MAKE_A_KEY = "openssl rand -hex 32 > FILE; chmod 600 FILE"


def convert_channel(options: Options) -> Table | None:
    """Returns the table of a channel; None if it has no counterpart, which is recorded."""
    component = find_component("channel", options.text("type"))
    return convert(component, options, _OWN.get(component.name))


def _memory(options: Options, table: Table) -> None:
    byte_capacity = options.number("byteCapacity")
    if byte_capacity == 0:
        options.changed("byteCapacity", "Flume has no limit then; here it is a fifth of the memory", "byte_capacity")
    set_values(table, byte_capacity=byte_capacity or None)


def _file(options: Options, table: Table) -> None:
    if directories := options.listed("dataDirs"):
        table["data_dirs"] = directories
        sentence = "each channel has a directory of its own in there; what Flume has there is not read, so let it drain"
        options.changed("dataDirs", sentence, "data_dirs")
    if options.unread_of("encryption"):
        table["encryption"] = _encryption(options)


def _encryption(options: Options) -> Table:
    """Returns the settings of an encrypted channel, with a new key: Flume's keys are in a Java keystore."""
    key = options.required("encryption.activeKey", "KEY", "encryption")
    store = options.text("encryption.keyProvider.keyStoreFile")
    key_id = re.sub(r"[^A-Za-z0-9._-]", "-", key)[:64]
    directory = PurePosixPath(store).parent if store else PurePosixPath("/etc/millrace")
    path = str(directory / f"{key_id}.key")
    sentence = (
        f"records are encrypted by AES-GCM, with keys in files; until there is {path}, the channel does not open: make "
        f"it with {_MAKE_A_KEY}. Older keys are not needed, since what Flume has stored is not read"
    )
    options.changed("encryption.activeKey", sentence, "encryption")
    return {"active_key": key_id, "keys": {key_id: path}}


def _spillable(options: Options, table: Table) -> None:
    memory, overflow = options.number("memoryCapacity"), options.number("overflowCapacity")
    memory = _MEMORY_CAPACITY if memory is None or memory < 0 else memory
    overflow = _OVERFLOW_CAPACITY if overflow is None or overflow < 0 else overflow
    memory = memory if memory or overflow else _MEMORY_CAPACITY
    byte_capacity = options.number("byteCapacity") or None
    _file(options, table)
    if not memory:
        # Without the part in memory, it is a file channel, as Flume's user guide says.
        table |= {"type": "file", "capacity": overflow}
    elif not overflow:
        table |= {"type": "memory", "capacity": memory}
        set_values(table, byte_capacity=byte_capacity)
        for setting in _LOG_SETTINGS:
            table.pop(setting, None)
    else:
        table |= {"capacity": memory + overflow, "memory_capacity": memory}
        set_values(table, memory_byte_capacity=byte_capacity)


def _jdbc(options: Options, table: Table) -> None:
    capacity = options.number("maximum.capacity") or 0
    if capacity > 0:
        table["capacity"] = capacity
    else:
        options.changed("maximum.capacity", "there is no limit in Flume; here it is 1,000,000 events", "capacity")


_OWN: dict[str, OwnCode] = {
    "memory": _memory,
    "file": _file,
    "spillablememory": _spillable,
    "jdbc": _jdbc,
    "kafka": convert_kafka_channel,
}
