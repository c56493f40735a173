"""Records that calls return: plain values, which hold no resources of a node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from plasmon._internal import ObjectId, Version

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
    """Kind of the value in a few words: "numpy float64 (1000,)", "arrow table", "polars frame", "pickle
    dict", "bytes". `None` if the object is not written yet or is not in memory."""
    nodes: tuple[str, ...] = ()
    """Ids of the nodes that hold the object, the one that this row is of first."""
    version: Version | None = None
    """Version of the object, for `put(..., replace=True, expected=version)`. `None` if it is not sealed."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Holders of an object after `Client.replicate`, `migrate` or `broadcast`."""

    holders: list[str]
    """Ids of nodes: after a broadcast those of its nodes that hold the object, else those that keep it."""
    failed: list[tuple[str, str]]
    """Ids of the nodes that should hold the object and do not, each with the reason."""


@dataclass(frozen=True, slots=True)
class RegionEvent:
    """Event of a region to which a client has a handle."""

    kind: Literal["moved", "freed", "granted", "revoked", "lost", "gap"]
    """Kind: the region lives on another node ("moved"), was freed ("freed"), or is gone with its home
    ("lost"); a user has got rights ("granted"), or those granted were revoked ("revoked"). These two are told
    to that user, and to masters of the region. Or events are missing ("gap"), because they were not read for
    too long, or because changes of rights could not be heard while a region moved or its home was out of
    reach."""
    name: str | None
    """Name of the region. `None` for a gap."""
    owner: int | None
    """User id of the region's owner. `None` for a gap."""
    home: str | None = None
    """Id of the node on which the region lives now, if it has moved."""
    user: int | Literal["everyone"] | None = None
    """User whose rights have changed, for "granted" and "revoked"."""
    rights: str | None = None
    """Rights that this user has now, or everyone: letters of "rwm", for read, write and master."""
    missed: int = 0
    """Number of missing events, for a gap. 0 if nobody knows."""


@dataclass(frozen=True, slots=True)
class Event:
    """Event of an object on a node."""

    kind: Literal["sealed", "replaced", "deleted", "gap"]
    """Kind: the object is here now ("sealed"); it has taken the place of another of its id and is here now
    ("replaced"), which the node tells on which it was put, and others tell "deleted", and "sealed" when they
    have fetched it; it is not here any more ("deleted"); or events are missing because they were not read for
    too long, or the node was out of reach ("gap")."""
    id: ObjectId | None
    """Id of the object. `None` for a gap."""
    size: int
    """Size of the data in bytes, for an object that is sealed or replaced another."""
    metadata_size: int
    """Size of the metadata in bytes, likewise."""
    missed: int
    """Number of missing events, for a gap. 0 if nobody knows: the node is out of reach, or has just come."""
    name: str | None = None
    """Name of the object, if it was created with one."""
    node: str = ""
    """Id of the node, 32 hexadecimal digits."""
