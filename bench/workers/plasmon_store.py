"""Plasmon, from Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plasmon

from store import Key, Store


class Plasmon(Store):
    """Bytes by `put` and `get_buffers`, arrays by `put` and `get`."""

    def __init__(self, address: str) -> None:
        self._client: Any = plasmon.connect(address)
        self.version = self._client.status()["version"]

    def key(self, raw: bytes) -> Key:
        return plasmon.ObjectId(raw)

    def put(self, key: Key, value: bytes) -> None:
        self._client.put(value, id=key)

    def replace(self, key: Key, value: bytes) -> None:
        self._client.put(value, id=key, replace=True)

    def create_and_seal(self, key: Key, value: bytes) -> None:
        self._client.create_and_seal(key, value)

    def create_seal(self, key: Key, value: bytes) -> None:
        creation = self._client.create(key, len(value))
        with memoryview(creation) as memory:
            memory[:] = value
        creation.seal()

    def put_many(self, keys: Sequence[Key], value: bytes) -> None:
        self._client.put_many([value] * len(keys), ids=keys)

    def get(self, key: Key) -> None:
        self._client.get_buffers((key,))

    def read(self, key: Key) -> bytes:
        return bytes(memoryview(self._client.get_buffers((key,))[0]))

    def contains(self, key: Key) -> bool:
        return bool(self._client.contains(key))

    def delete(self, key: Key) -> None:
        self._client.delete(key)

    def discard(self, keys: Sequence[Key]) -> None:
        self._client.delete(keys)

    def evict(self) -> int:
        return int(self._client.evict(1 << 63))

    def get_many(self, keys: Sequence[Key]) -> None:
        self._client.get_buffers(keys)

    def fetch_many(self, keys: Sequence[Key]) -> None:
        self._client.get_buffers(keys)

    def put_array(self, key: Key, array: Any) -> None:
        self._client.put(array, id=key)

    def get_array(self, key: Key) -> Any:
        return self._client.get(key)
