"""Limits of one channel."""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationInfo, field_validator, model_validator

CAPACITY_MAX = 1_000_000_000
SECONDS_MAX = 3600.0
BYTES_MAX = 1 << 50

_DEFAULT_CAPACITY = 100
_DEFAULT_TRANSACTION_CAPACITY = 100
_MEMORY_SHARE = 0.2
_CONTAINER_MEMORY = Path("/sys/fs/cgroup/memory.max")

Seconds = Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]


def _default_byte_capacity() -> int:
    """A fifth of the machine's memory, or the container's: several channels may fill up before it is in need."""
    machine_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        container_bytes = int(_CONTAINER_MEMORY.read_text())
    except (OSError, ValueError):
        # No container, or "max": one without a limit.
        container_bytes = machine_bytes
    return int(min(machine_bytes, container_bytes) * _MEMORY_SHARE)


class ChannelConfig(BaseModel, frozen=True, extra="forbid"):
    """Limits of one channel."""

    type: Literal["memory"]
    """What keeps the events. `memory`: fast, gone with the process."""

    capacity: int = Field(_DEFAULT_CAPACITY, ge=1, le=CAPACITY_MAX)
    """Events that the channel holds, taken ones included until their commit."""

    transaction_capacity: int = Field(_DEFAULT_TRANSACTION_CAPACITY, ge=1, le=CAPACITY_MAX)
    """Puts, and apart from them takes, that one transaction holds. Its default bows to a smaller `capacity`."""

    byte_capacity: int = Field(default_factory=_default_byte_capacity, ge=1, le=BYTES_MAX)
    """Bytes for bodies and headers together."""

    byte_capacity_buffer_percentage: int = Field(20, ge=0, le=99)
    """Percentage of `byte_capacity` that is set aside for headers."""

    keep_alive_seconds: Seconds = 3.0
    """How long a commit waits for room, and a take for an event."""

    lease_seconds: float = Field(30.0, gt=0, le=SECONDS_MAX, allow_inf_nan=False)
    """How long a transaction or claim lives without a call."""

    open_transactions_max: int = Field(5_000, ge=1, le=1_000_000)
    """Transactions that may be open at once."""

    @property
    def body_bytes_max(self) -> int:
        """Bytes of bodies that the channel holds."""
        return self.byte_capacity * (100 - self.byte_capacity_buffer_percentage) // 100

    @model_validator(mode="before")
    @classmethod
    def _bow_to_capacity(cls, values: object) -> object:
        if isinstance(values, dict) and "transaction_capacity" not in values:
            capacity = values.get("capacity")
            if type(capacity) is int and 0 < capacity < _DEFAULT_TRANSACTION_CAPACITY:
                return {**values, "transaction_capacity": capacity}
        return values

    @field_validator("transaction_capacity")
    @classmethod
    def _check_within_capacity(cls, transaction_capacity: int, info: ValidationInfo) -> int:
        capacity = info.data.get("capacity", transaction_capacity)
        if transaction_capacity > capacity:
            raise ValueError(f"is {transaction_capacity}; it must not be above capacity, {capacity}")
        return transaction_capacity
