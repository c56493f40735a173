"""Interface of every peer for the benchmarks: a client of an object store.

A peer is a module with a class that derives from `Store` and is registered in `worker.py`. It defines only
the operations that it has, and the harness measures those.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

Key = Any
"""Id in the peer's own type, made by `Store.key` outside the measured time."""


class Store(ABC):
    """Connected client of an object store. Each call has done its work when it returns.

    Optional methods, each a separate operation if a peer has it:

    - `contains(key)`, `delete(key)`: for one object;
    - `replace(key, value)`: puts an object in the place of another one;
    - `put_many(keys, value)`, `get_many(keys)`, `fetch_many(keys)`: for many objects in one call;
    - `create_and_seal(key, value)`: the call for a small value, where it differs from `put`;
    - `create_seal(key, value)`: creates the object, copies the value into its memory, and seals it;
    - `put_array(key, array)`, `get_array(key)`: for a NumPy array of bytes, returned as an array;
    - `held_here(keys)`: number of these objects that this host has already, so that a fetch would not move
      them;
    - `evict()`: drops all replicas of other hosts' objects, and returns their size in bytes.
    """

    version: str
    """Version of the store."""
    in_place = True
    """Whether a get returns the bytes in place. Otherwise it copies them."""
    shared = True
    """Whether a client can name an object that another client has put."""

    apart = False
    """Whether a put leaves the object on another host than this client's, so that reading would fetch it."""

    @abstractmethod
    def __init__(self, address: str) -> None:
        """Connects to the store at an address: a socket's path, or host and port."""

    def key(self, raw: bytes) -> Key:
        """Id in the store's own type, for 20 random bytes."""
        return raw

    @abstractmethod
    def put(self, key: Key, value: bytes) -> None:
        """Stores bytes under a new id."""

    @abstractmethod
    def get(self, key: Key) -> None:
        """Gets an object's bytes by the fastest call, and releases them at once."""

    def fetch(self, key: Key) -> None:
        """Gets an object that is on another host, and not here yet."""
        self.get(key)

    def prepare_fetch(self, size: int) -> None:  # noqa: B027  # Most need nothing.
        """Prepares fetches of objects of a size. Not measured."""

    @abstractmethod
    def read(self, key: Key) -> bytes:
        """Copies an object's bytes, for a check. Not measured."""

    def discard(self, keys: Sequence[Key]) -> None:
        """Deletes objects by the fastest call. Not measured."""
        for key in keys:
            self.delete(key)  # type: ignore[attr-defined]
