"""Selectors: which of a source's channels an event goes to."""

from typing import Literal

from pydantic import BaseModel


class ReplicatingConfig(BaseModel, frozen=True, extra="forbid"):
    """Every event goes to every channel."""

    type: Literal["replicating"]
    """Every event to every channel."""


AnySelectorConfig = ReplicatingConfig
"""A selector's table, told apart by its `type`."""
