"""PyArrow's Plasma, in the last release that had it."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import pyarrow

from store import Key, Store

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # It is deprecated; we know.
    from pyarrow import plasma


class Plasma(Store):
    """Bytes by `put_raw_buffer` and `get_buffers`, arrays by `put` and `get`."""

    def __init__(self, address: str) -> None:
        warnings.simplefilter("ignore")
        self._client: Any = plasma.connect(address)
        self.version = pyarrow.__version__

    def key(self, raw: bytes) -> Key:
        return plasma.ObjectID(raw)

    def put(self, key: Key, value: bytes) -> None:
        self._client.put_raw_buffer(value, key)

    def create_and_seal(self, key: Key, value: bytes) -> None:
        self._client.create_and_seal(key, value)

    def get(self, key: Key) -> None:
        self._client.get_buffers([key])

    def get_many(self, keys: Sequence[Key]) -> None:
        self._client.get_buffers(keys)

    def read(self, key: Key) -> bytes:
        buffer: bytes = self._client.get_buffers([key])[0].to_pybytes()
        return buffer

    def contains(self, key: Key) -> bool:
        return bool(self._client.contains(key))

    def delete(self, key: Key) -> None:
        self._client.delete([key])

    def discard(self, keys: Sequence[Key]) -> None:
        self._client.delete(list(keys))

    def put_array(self, key: Key, array: Any) -> None:
        self._client.put(array, key)

    def get_array(self, key: Key) -> Any:
        return self._client.get(key)
