"""Arrays over the memory of objects: pickled as a reference, so that another process maps the same memory.

Also owns the connections of this process that such references are read by, one a socket. Any thread.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from plasmon._client import Client
from plasmon._internal import Buffer, ObjectId

if TYPE_CHECKING:
    import numpy as np

GET_SECONDS = 60.0
"""Longest time in seconds for the object of a reference to come."""

_clients: dict[str | None, Client] = {}
_connecting = threading.Lock()


def _follow_fork() -> None:
    """Replaces the lock, which a thread of the parent may have held."""
    global _connecting
    _connecting = threading.Lock()


os.register_at_fork(after_in_child=_follow_fork)


def client_of(socket: str | None) -> Client:
    """Connection of this process to the node at a socket, by default the one of this host."""
    with _connecting:
        client = _clients.get(socket)
        if client is None or client.closed:
            client = _clients[socket] = Client(socket)
        return client


class Reference(NamedTuple):
    """An array's place in an object, from which `restore` makes it again."""

    id: ObjectId
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def reference(array: np.ndarray[Any, Any]) -> Reference | None:
    """Place of an array in the object that it reads. `None` if its memory is no object's."""
    import numpy as np

    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, Buffer) or array.dtype.hasobject:
        return None
    offset = array.__array_interface__["data"][0] - base._origin
    return Reference(base.id, offset, array.dtype, array.shape, array.strides)


def restore(place: Reference, buffer: Buffer) -> np.ndarray[Any, Any]:
    """Array at a place in an object, over the object's memory."""
    import numpy as np

    return np.ndarray(place.shape, place.dtype, memoryview(buffer), place.offset, place.strides)
