"""Ray's object store, as Ray programs use it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray

from store import Key, Store


class Ray(Store):
    """Arrays by `ray.put` and `ray.get`, by which Ray moves bytes without pickling them.

    Ray names its objects itself, and they live as long as a program holds their names. Deleting is
    forgetting.
    """

    shared = False

    def __init__(self, address: str) -> None:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        self.version = ray.__version__
        self._references: dict[Key, Any] = {}

    def put(self, key: Key, value: bytes) -> None:
        self._references[key] = ray.put(np.frombuffer(value, np.uint8))

    def get(self, key: Key) -> None:
        ray.get(self._references[key])

    def get_many(self, keys: Sequence[Key]) -> None:
        ray.get([self._references[key] for key in keys])

    def read(self, key: Key) -> bytes:
        array: Any = ray.get(self._references[key])
        return bytes(array.data)

    def discard(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._references.pop(key, None)

    def put_array(self, key: Key, array: Any) -> None:
        self._references[key] = ray.put(array)

    def get_array(self, key: Key) -> Any:
        return ray.get(self._references[key])
