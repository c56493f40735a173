"""What every peer looks like to the benchmarks: one client of one object store.

A peer is a module with a class that derives from `Store` and is registered in `worker.py`. What a peer cannot
do it does not define: the harness measures what is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

Key = Any
"""A peer's own kind of id, made by `Store.key` outside the time that is measured."""


class Store(ABC):
    """A client of an object store, connected. Each call does its work before it returns.

    Optional methods, each an operation of its own when a peer has it:

    - `contains(key)`, `delete(key)`: of one object;
    - `put_many(keys, value)`, `get_many(keys)`: many objects in one call;
    - `create_and_seal(key, value)`: the call for a small value, where it differs from `put`;
    - `put_array(key, array)`, `get_array(key)`: a NumPy array of bytes, got as an array again;
    - `held_here(keys)`: how many of these objects this host has already, which a fetch would not bring;
    - `evict()`: drops all replicas of other hosts' objects, and says how many bytes they were.
    """

    version: str
    """Of what is measured."""
    in_place = True
    """Whether a get gives the bytes where they lie; otherwise it copies them."""
    shared = True
    """Whether a client can name an object that another one has put."""

    apart = False
    """Whether a put leaves the object on another host than this client's: to read it would bring it here."""

    @abstractmethod
    def __init__(self, address: str) -> None:
        """Connects to the store at an address: a socket's path, or host and port."""

    def key(self, raw: bytes) -> Key:
        """The store's own kind of id, for 20 random bytes."""
        return raw

    @abstractmethod
    def put(self, key: Key, value: bytes) -> None:
        """Stores bytes under a new id, for others to get."""

    @abstractmethod
    def get(self, key: Key) -> None:
        """Gets an object's bytes by the fastest call there is, and gives them back at once."""

    def fetch(self, key: Key) -> None:
        """Gets an object that is on another host, and not yet here."""
        self.get(key)

    def prepare_fetch(self, size: int) -> None:  # noqa: B027  # Most need nothing.
        """Makes ready for fetches of objects of a size; is not measured."""

    @abstractmethod
    def read(self, key: Key) -> bytes:
        """A copy of an object's bytes, to check them; is not measured."""

    def discard(self, keys: Sequence[Key]) -> None:
        """Deletes objects by the fastest call there is; is not measured."""
        for key in keys:
            self.delete(key)  # type: ignore[attr-defined]
