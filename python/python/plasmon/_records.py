"""What calls return: plain records, which own nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plasmon._internal import ObjectId

Public = Literal["r", "rw"]
"""What other users may do with an object: read it, or all that its creator may."""

State = Literal["unsealed", "primary", "kept", "cached", "doomed", "spilled"]
"""Where an object is in its life, as `ObjectInfo.state` says."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A row of `Client.list`."""

    id: ObjectId
    name: str | None
    """The name it was created with, if any."""
    state: State
    """Being written; the replica its creator made; one of several that were asked for; fetched from another
    node; deleted but still pinned; on disk only."""
    private: bool
    """Whether only the user who created it sees it."""
    public: Public | None
    """What other users may do with it; `None` if it is private."""
    size: int
    """Bytes of data."""
    metadata_size: int
    """Bytes of metadata."""
    pins: int
    """Pins of clients and other nodes."""
    age: float
    """Seconds since it came to this node: since its seal, or while it is unsealed since its creation."""
    construction: int
    """Whole seconds from its creation to its seal; 0 if it was not created on this node."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Where an object is after `Client.replicate`, `migrate` or `broadcast`."""

    holders: list[str]
    """The nodes that hold it: of a broadcast those that it was for, else those that keep it."""
    failed: list[tuple[str, str]]
    """The nodes that were to and do not, each with the reason."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an object of a node."""

    kind: Literal["sealed", "deleted", "gap"]
    """It is here from now on; it no longer is; or events are missing, because they were not read for long."""
    id: ObjectId | None
    """Which object; `None` for a gap."""
    size: int
    """Bytes of data, of a sealed object."""
    metadata_size: int
    """Bytes of metadata, of a sealed object."""
    missed: int
    """How many events a gap stands for."""
