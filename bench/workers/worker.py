"""Worker of the benchmarks: a process with one client of one peer, which times calls.

    worker.py PEER ADDRESS

It reads requests from standard input and answers each on standard output. Requests and answers are lines of
JSON:

- at the start it writes its abilities: `{"version", "in_place", "shared", "operations"}`;
- `{"do": "measure", "operation", "size", "owner", "numbers": [first, count, step], "batch", "calls",
  "seconds"}` calls an operation on objects in turn, at most `calls` times and about `seconds`:
  `{"ns": [...], "cpu_ns"}`, one a call, and what all of them cost this process;
- `{"do": "sustain", ..., "start"}` calls it as fast as it can for `seconds`, from the moment `start` of the
  monotonic clock in nanoseconds: `{"calls", "ns", "sample": [...], "cpu_ns"}`, with up to 2,000 of the
  calls' times;
- `{"do": "prepare", "owner", "numbers", "operation"}` makes the ids of objects ready, so that `sustain`
  starts in time (the operation may be left out);
- `{"do": "discard", "owner", "numbers"}` deletes objects;
- `{"do": "evict"}` drops all replicas that came from other hosts: `{"bytes"}`;
- a failed request is answered with `{"error"}`, and the worker goes on.

An object that is to be fetched must not be here. If the store can tell, `measure` and `prepare` refuse such
an object.

Objects are named by owner and number; a step of 1 may be left out. A batch is one call for that many objects.
The Rust worker (`bench/src`) uses the same lines.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from store import Key, Store

PEERS = {
    "plasmon": ("plasmon_store", "Plasmon"),
    "plasma": ("plasma_store", "Plasma"),
    "redis": ("redis_store", "Redis"),
    "ray": ("ray_store", "Ray"),
    "ray-pair": ("ray_pair_store", "RayPair"),
    "mooncake": ("mooncake_store", "Mooncake"),
}
OPERATIONS = {
    "put": "value",
    "replace": "value",
    "create_and_seal": "value",
    "create_seal": "value",
    "put_many": "value",
    "put_array": "array",
    "get": None,
    "get_many": None,
    "get_array": None,
    "fetch": None,
    "fetch_many": None,
    "contains": None,
    "delete": None,
}
"""Operations, with their arguments besides the key."""
ONCE = ("put", "replace", "create", "fetch", "delete")
"""Names of operations that make, fetch or remove an object, and so can run once for each."""
BLOCK = 1 << 20
SAMPLE = 2000
KEPT = 4
DISCARDED_AT_ONCE = 1000

_clock = time.perf_counter_ns


class Worker:
    """Worker for one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._values: dict[int, bytes] = {}
        self._prepared: dict[tuple[int, int, int, int], list[Key]] = {}

    def greeting(self) -> dict[str, Any]:
        """Abilities of the store."""
        return {
            "version": self._store.version,
            "in_place": self._store.in_place,
            "shared": self._store.shared,
            "operations": [name for name in OPERATIONS if hasattr(self._store, name)],
        }

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carries out one request."""
        do = request.pop("do")
        if do == "measure":
            return self.measure(**request)
        if do == "sustain":
            return self.sustain(**request)
        if do == "prepare":
            return self.prepare(**request)
        if do == "discard":
            return self.discard(**request)
        if do == "evict":
            return {"bytes": self._store.evict()}  # type: ignore[attr-defined]
        raise ValueError(f"there is no {do!r} to do")

    def measure(
        self,
        operation: str,
        size: int,
        owner: int,
        numbers: list[int],
        batch: int = 1,
        calls: int = 1 << 60,
        seconds: float = 3600.0,
    ) -> dict[str, Any]:
        """Times every call."""
        call, given = self._call(operation, size)
        keys = self._keys(owner, numbers)
        self._must_be_absent(operation, keys)
        units: list[Any] = keys if batch == 1 else _batches(keys, batch)
        calls = min(calls, len(units)) if operation.startswith(ONCE) else calls
        ns: list[int] = []
        cpu = time.process_time_ns()
        end = _clock() + int(seconds * 1e9)
        for number in range(calls):
            unit = units[number % len(units)]
            start = _clock()
            result = call(unit, *given)
            stop = _clock()
            ns.append(stop - start)
            # Releasing an array is not part of a get, but is done before the next one.
            self._must_be_true(operation, result, unit)
            del result
            if stop > end:
                break
        cpu = time.process_time_ns() - cpu
        done = min(len(ns), len(units))
        if done and operation != "delete":
            last = units[done - 1]
            self._check(operation, size, last if batch == 1 else last[-1])
        return {"ns": ns, "cpu_ns": cpu}

    def prepare(self, owner: int, numbers: list[int], operation: str = "") -> dict[str, Any]:
        """Prepares everything that would keep `sustain` from starting in time."""
        self._must_be_absent(operation, self._keys(owner, numbers))
        return {}

    def sustain(
        self,
        operation: str,
        size: int,
        owner: int,
        numbers: list[int],
        start: int,
        seconds: float,
        batch: int = 1,
    ) -> dict[str, Any]:
        """Calls as fast as it can, and ends early when there is nothing left to put."""
        call, given = self._call(operation, size)
        keys = self._keys(owner, numbers)
        units: list[Any] = keys if batch == 1 else _batches(keys, batch)
        once = operation.startswith(ONCE)
        if not units:
            raise ValueError(f"{operation} of no objects")
        ns: list[int] = []
        ready = time.monotonic_ns()
        if ready > start:
            raise TimeoutError(f"this worker was ready {(ready - start) / 1e9:.1f} s too late")
        time.sleep((start - ready) / 1e9)
        # On Linux, perf_counter and monotonic are the same clock.
        cpu = time.process_time_ns()
        begin = now = _clock()
        end = begin + int(seconds * 1e9)
        while now < end:
            for unit in units:
                call(unit, *given)
                before, now = now, _clock()
                ns.append(now - before)
                if now >= end:
                    break
            if once:
                break
        cpu = time.process_time_ns() - cpu
        if ns:
            last = units[(len(ns) - 1) % len(units)]
            self._check(operation, size, last if batch == 1 else last[-1])
        sample = ns[:: max(1, len(ns) // SAMPLE)][:SAMPLE]
        return {"calls": len(ns), "ns": now - begin, "sample": sample, "cpu_ns": cpu}

    def discard(self, owner: int, numbers: list[int]) -> dict[str, Any]:
        """Deletes objects."""
        for keys in _batches(self._keys(owner, numbers), DISCARDED_AT_ONCE):
            self._store.discard(keys)
        return {}

    def _call(self, operation: str, size: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Method of an operation, and its arguments besides a key."""
        if operation not in OPERATIONS:
            raise ValueError(f"there is no operation {operation!r}")
        if operation.startswith("fetch"):
            self._store.prepare_fetch(size)
        given: dict[str | None, Callable[[], tuple[Any, ...]]] = {
            None: lambda: (),
            "value": lambda: (self._value(size),),
            "array": lambda: (np.frombuffer(self._value(size), np.uint8),),
        }
        return getattr(self._store, operation), given[OPERATIONS[operation]]()

    def _value(self, size: int) -> bytes:
        """Bytes of every object of a size."""
        if size not in self._values:
            block = hashlib.shake_128(size.to_bytes(8, "little")).digest(min(size, BLOCK))
            self._values[size] = block * (size // len(block))
        return self._values[size]

    def _keys(self, owner: int, numbers: list[int]) -> list[Key]:
        """Ids of objects. The last few lists of them are kept."""
        first, count, step = (*numbers, 1)[:3]
        wanted = (owner, first, count, step)
        if wanted not in self._prepared:
            key, digest = self._store.key, hashlib.blake2b
            while len(self._prepared) >= KEPT:
                self._prepared.pop(next(iter(self._prepared)))
            self._prepared[wanted] = [
                key(digest(b"%d/%d" % (owner, number), digest_size=20).digest())
                for number in range(first, first + count * step, step)
            ]
        return self._prepared[wanted]

    def _check(self, operation: str, size: int, key: Key) -> None:
        """Checks the content of an object, without which no figure is valid."""
        if self._store.apart and operation.startswith("put"):
            return  # It is the fetch of it that is checked.
        if operation.endswith("array"):
            got = self._store.get_array(key)  # type: ignore[attr-defined]
            right = np.array_equal(got, np.frombuffer(self._value(size), np.uint8))
        else:
            right = self._store.read(key) == self._value(size)
        if not right:
            raise AssertionError(
                f"after {operation} of {size} bytes an object holds other bytes than were put"
            )

    def _must_be_absent(self, operation: str, keys: list[Key]) -> None:
        """Refuses a fetch of objects that are here, whose time would be that of another operation."""
        if not operation.startswith("fetch") or not hasattr(self._store, "held_here"):
            return
        if held := self._store.held_here(keys):
            raise AssertionError(f"{held} of {len(keys)} objects are on this host before they are fetched")

    @staticmethod
    def _must_be_true(operation: str, result: Any, unit: Any) -> None:
        if operation == "contains" and not result:
            raise AssertionError(f"the store does not know {unit}, which was put")


def _batches(keys: Sequence[Key], size: int) -> list[Sequence[Key]]:
    return [keys[first : first + size] for first in range(0, len(keys), size)]


def main() -> None:
    """Answers requests until standard input ends."""
    peer, address = sys.argv[1:]
    # Libraries may print, so the answers have the pipe for themselves.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    module, name = PEERS[peer]
    worker = Worker(getattr(importlib.import_module(module), name)(address))
    print(json.dumps(worker.greeting()), file=answers)
    gc.disable()
    for line in sys.stdin:
        try:
            answer = worker.answer(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        gc.collect()
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    main()
