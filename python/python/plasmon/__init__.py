"""Plasmon: objects shared in place by the programs of a host, and moved between hosts.

    import plasmon

    with plasmon.connect() as client:
        client.put(array, name="temperatures")
        same = client.get("temperatures")  # On any node; read-only, in place.

`plasmon.aio` has the same client for asyncio. `LocalCluster` starts a cluster on this host, for tests and for
trying Plasmon out.
"""

from plasmon import errors
from plasmon._client import Client, connect
from plasmon._cluster import LocalCluster
from plasmon._ids import IdLike
from plasmon._internal import Buffer, Creation, ObjectId, Scratch, __version__, default_socket
from plasmon._records import Event, ObjectInfo, Spread
from plasmon._reduction import register_type
from plasmon._subscription import Subscription
from plasmon.errors import (
    Busy,
    Disconnected,
    Error,
    InvalidArgument,
    MalformedValue,
    NotAllowed,
    ObjectDamaged,
    ObjectExists,
    ObjectLost,
    ObjectNotFound,
    ObjectTooLarge,
    OutcomeUnknown,
    ReadOnlyMemory,
    StoreFull,
    TimedOut,
    TooFewReplicas,
)

__all__ = [
    "Buffer",
    "Busy",
    "Client",
    "Creation",
    "Disconnected",
    "Error",
    "Event",
    "IdLike",
    "InvalidArgument",
    "LocalCluster",
    "MalformedValue",
    "NotAllowed",
    "ObjectDamaged",
    "ObjectExists",
    "ObjectId",
    "ObjectInfo",
    "ObjectLost",
    "ObjectNotFound",
    "ObjectTooLarge",
    "OutcomeUnknown",
    "ReadOnlyMemory",
    "Scratch",
    "Spread",
    "StoreFull",
    "Subscription",
    "TimedOut",
    "TooFewReplicas",
    "__version__",
    "connect",
    "default_socket",
    "errors",
    "register_type",
]
