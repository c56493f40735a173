"""Redis over a unix socket or TCP, with the hiredis parser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis  # noqa: F401  # redis uses it when it is there: here it must be.
import numpy as np
import redis

from store import Key, Store


class Redis(Store):
    """SET, GET, EXISTS, DEL; many objects by MSET and MGET."""

    in_place = False

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        there = {"host": host, "port": int(port)} if host else {"unix_socket_path": address}
        self._client: Any = redis.Redis(**there)
        self.version = str(self._client.info("server")["redis_version"])

    def put(self, key: Key, value: bytes) -> None:
        self._client.set(key, value)

    def put_many(self, keys: Sequence[Key], value: bytes) -> None:
        self._client.mset(dict.fromkeys(keys, value))

    def get(self, key: Key) -> None:
        self._client.get(key)

    def get_many(self, keys: Sequence[Key]) -> None:
        self._client.mget(keys)

    def fetch_many(self, keys: Sequence[Key]) -> None:
        self._client.mget(keys)

    def read(self, key: Key) -> bytes:
        value: bytes = self._client.get(key)
        return value

    def contains(self, key: Key) -> bool:
        return bool(self._client.exists(key))

    def delete(self, key: Key) -> None:
        self._client.delete(key)

    def discard(self, keys: Sequence[Key]) -> None:
        self._client.delete(*keys)

    def put_array(self, key: Key, array: Any) -> None:
        self._client.set(key, array.data)

    def get_array(self, key: Key) -> Any:
        return np.frombuffer(self._client.get(key), np.uint8)
