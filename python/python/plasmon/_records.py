"""Records that calls return: plain values, which own nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plasmon._internal import ObjectId

Public = Literal["r", "rw"]
"""Rights of other users to an object: "r" to read it, "rw" for all that its creator may do."""

State = Literal["unsealed", "primary", "kept", "cached", "doomed", "spilled"]
"""State of an object on a node, as in `ObjectInfo.state`."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Object on a node, or in a cluster: a row of `Client.list`."""

    id: ObjectId
    name: str | None
    """Name that the object was created with, if any."""
    state: State
    """State of the object: being written ("unsealed"); this node has the primary replica ("primary"), a kept
    replica ("kept") or a cached one ("cached"); deleted but still pinned ("doomed"); on disk only
    ("spilled")."""
    private: bool
    """Whether only the creator sees the object."""
    public: Public | None
    """Rights of other users to the object. `None` if it is private."""
    size: int
    """Size of the data in bytes."""
    metadata_size: int
    """Size of the metadata in bytes."""
    pins: int
    """Number of pins of clients and other nodes."""
    age: float
    """Time in seconds since the object was sealed on this node or fetched, or since its creation if
    unsealed."""
    construction: int
    """Time from creation to seal in whole seconds. 0 if the object was not created on this node."""
    kind: str | None = None
    """What the value is, in a few words: "numpy float64 (1000,)", "arrow table", "polars frame", "pickle
    dict", "bytes". `None` if the object is not written yet or is not in memory."""
    nodes: tuple[str, ...] = ()
    """Ids of the nodes that hold the object, the one that this row is of first."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Holders of an object after `Client.replicate`, `migrate` or `broadcast`."""

    holders: list[str]
    """Ids of nodes: after a broadcast those of its nodes that hold the object, else those that keep it."""
    failed: list[tuple[str, str]]
    """Ids of the nodes that should hold the object and do not, each with the reason."""


@dataclass(frozen=True, slots=True)
class Event:
    """Event of an object on a node."""

    kind: Literal["sealed", "deleted", "gap"]
    """Kind: the object is here now ("sealed"), is not here any more ("deleted"), or events are missing
    because they were not read for too long, or the node was out of reach ("gap")."""
    id: ObjectId | None
    """Id of the object. `None` for a gap."""
    size: int
    """Size of the data in bytes, for a sealed object."""
    metadata_size: int
    """Size of the metadata in bytes, for a sealed object."""
    missed: int
    """Number of missing events, for a gap. 0 if nobody knows: the node is out of reach, or has just come."""
    name: str | None = None
    """Name of the object, if it was created with one."""
    node: str = ""
    """Id of the node, 32 hexadecimal digits."""
