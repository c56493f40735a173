"""Ray's object store between two nodes: an actor on the first puts, this program on the second gets."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import ray

from store import Key, Store

_PATIENCE_MS = 10_000


class RayPair(Store):
    """Arrays by `ray.put` in an actor of the node that has the resource "holder", and `ray.get` here.

    The address is `GCS:PORT,HOST`: Ray, and the node this program belongs to.
    """

    shared = False
    apart = True

    def __init__(self, address: str) -> None:
        gcs, host = address.split(",")
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        ray.init(address=gcs, _node_ip_address=host, **quiet)
        self.version = ray.__version__
        self._here = ray.get_runtime_context().get_node_id()
        self._holder: Any = ray.remote(num_cpus=0, resources={"holder": 0.001})(_Holder).remote()
        self._references: dict[Key, Any] = {}

    def put(self, key: Key, value: bytes) -> None:
        self.put_many([key], value)

    def put_many(self, keys: Sequence[Key], value: bytes) -> None:
        references = ray.get(self._holder.put.remote(len(keys), value))
        self._references.update(zip(keys, references, strict=True))

    def get(self, key: Key) -> None:
        ray.get(self._references[key])

    def read(self, key: Key) -> bytes:
        array: Any = ray.get(self._references[key])
        return bytes(array.data)

    def held_here(self, keys: Sequence[Key]) -> int:
        references = [self._references[key] for key in keys]
        told = ray.experimental.get_object_locations(references, timeout_ms=_PATIENCE_MS)
        return sum(self._here in told[reference]["node_ids"] for reference in references)

    def discard(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._references.pop(key, None)


class _Holder:
    """Actor that puts objects."""

    def put(self, count: int, value: bytes) -> list[Any]:
        """Puts objects of the same bytes. Returns their references."""
        array = np.frombuffer(value, np.uint8)
        return [ray.put(array) for _ in range(count)]
