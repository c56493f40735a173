"""Mooncake's store over TCP: objects in one client's segment, got by another into registered memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from mooncake.store import MooncakeDistributedStore

from store import Key, Store

_STAGING = 320 << 20
"""Memory in bytes for the store's own copies: more than the largest object."""
_PACKAGE = "mooncake-transfer-engine-non-cuda"


class Mooncake(Store):
    """`put`, and `get_into`, which copies nothing.

    The address is `MASTER:PORT,HOST,BYTES`: its master, where this client is, what it lends of memory.
    Only the holder lends any, so that all objects lie there.
    """

    in_place = False

    def __init__(self, address: str) -> None:
        master, host, segment = address.split(",")
        self._store: Any = MooncakeDistributedStore()
        failed = self._store.setup(host, "P2PHANDSHAKE", int(segment), _STAGING, "tcp", "", master)
        if failed:
            raise RuntimeError(f"the store of Mooncake does not start here: error {failed}")
        self.version = metadata.version(_PACKAGE)
        self._target = ctypes.create_string_buffer(0)

    def key(self, raw: bytes) -> Key:
        return raw.hex()

    def put(self, key: Key, value: bytes) -> None:
        _check(self._store.put(key, value), "put")

    def prepare_fetch(self, size: int) -> None:
        if size > len(self._target):
            if len(self._target):
                self._store.unregister_buffer(ctypes.addressof(self._target))
            self._target = ctypes.create_string_buffer(size)
            ctypes.memset(self._target, 1, size)  # The memory is touched before it is used.
            _check(self._store.register_buffer(ctypes.addressof(self._target), size), "register_buffer")

    def get(self, key: Key) -> None:
        if self._store.get_into(key, ctypes.addressof(self._target), len(self._target)) < 0:
            raise RuntimeError(f"there is no {key}")

    def read(self, key: Key) -> bytes:
        value: bytes = self._store.get(key)
        return value

    def contains(self, key: Key) -> bool:
        return bool(self._store.is_exist(key) == 1)

    def delete(self, key: Key) -> None:
        # A lease that a get has left would keep the object.
        _check(self._store.remove(key, True), "remove")

    def discard(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self.delete(key)

    def put_array(self, key: Key, array: Any) -> None:
        self.put(key, bytes(array.data))


def _check(error: int, what: str) -> None:
    if error:
        raise RuntimeError(f"{what} failed: error {error}")
