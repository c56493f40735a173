"""Worker that works on regions of Plasmon, or on values of Redis.

    regions.py plasmon SOCKET HOME mapped|called
    regions.py redis ADDRESS

SOCKET is that of the node whose client this is, and HOME that of the node on which the regions live. Requests
and answers are lines of JSON, as `worker.py` describes them, and only `measure` is known. A batch is made of
single calls, one after the other or, in `read_begun`, begun together. Its time is that of all of them.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from answering import serve

ALIGNED = 64
ROOM = 32 << 20
"""Size in bytes of the memory in which the places of an operation lie."""
LENT_FROM = 64 << 10
"""Size in bytes from which an operation uses memory that the node lends."""

_clock = time.perf_counter_ns
Call = Callable[[list[int]], object]
"""Carries out the operation at each of these offsets."""


class Peer(ABC):
    """Client whose operations are timed."""

    version = ""
    operations: Sequence[str] = ("read", "write", "fetch_add")

    @abstractmethod
    def operation(self, operation: str, size: int, places: int) -> tuple[Call, Callable[[], bool]]:
        """Prepares an operation on so many values of a size, and a check of what the last call did."""


class Plasmon(Peer):
    """Regions of Plasmon. Each operation of a size has one of its own."""

    operations = ("read", "write", "fetch_add", "read_begun")

    def __init__(self, socket: str, home: str, kind: str) -> None:
        import plasmon

        self._client: Any = plasmon.connect(socket)
        self._home: Any = plasmon.connect(home)
        self._mappable = {"mapped": True, "called": False}[kind]
        self._made: dict[str, tuple[Any, Any]] = {}
        self.version = self._client.status()["version"]

    def operation(self, operation: str, size: int, places: int) -> tuple[Call, Callable[[], bool]]:
        """Prepares an operation on regions, by handles of this node's client."""
        name = f"python-{os.getpid()}-{operation}-{size}-{places}"
        if name not in self._made:
            there = self._home.create_region(name, places * step_of(size), mappable=self._mappable)
            self._made[name] = there, self._client.map_region(name, "rw")
        region = self._made[name][1]
        if region.local != (self._mappable and self._client.node == self._home.node):
            raise AssertionError(f"region {name!r} is mapped in this process, or is not, and should")
        if operation == "fetch_add":
            return self._adds(region)
        content = os.urandom(size)
        # The content is the same at every place.
        region.write(content.ljust(step_of(size), b"\0") * places)
        if operation == "read_begun":
            return self._begun(region, size, content)
        lent = memoryview(self._client.buffer(size)) if size >= LENT_FROM else None
        if operation == "read":
            return self._reads(region, size, content, lent)
        if lent is not None:
            lent[:] = content
        return self._writes(region, content, lent or content)

    @staticmethod
    def _reads(
        region: Any, size: int, content: bytes, lent: memoryview | None
    ) -> tuple[Call, Callable[[], bool]]:
        last: bytes | memoryview = lent or b""

        def receive(offsets: list[int]) -> None:
            read = region.read_into
            for offset in offsets:
                read(lent, offset)

        def read(offsets: list[int]) -> None:
            nonlocal last
            read = region.read
            for offset in offsets:
                last = read(offset, size)

        return receive if lent else read, lambda: last == content

    @staticmethod
    def _writes(region: Any, content: bytes, data: bytes | memoryview) -> tuple[Call, Callable[[], bool]]:
        def call(offsets: list[int]) -> None:
            write = region.write
            for offset in offsets:
                write(data, offset)

        return call, lambda: bool(region.read(0, len(content)) == content)

    @staticmethod
    def _adds(region: Any) -> tuple[Call, Callable[[], bool]]:
        before, done = region.fetch_add(0, 0), 0

        def call(offsets: list[int]) -> None:
            nonlocal done
            add = region.fetch_add
            for _ in offsets:
                add(0, 1)
            done += len(offsets)

        return call, lambda: bool(region.fetch_add(0, 0) == before + done)

    @staticmethod
    def _begun(region: Any, size: int, content: bytes) -> tuple[Call, Callable[[], bool]]:
        last = b""

        def call(offsets: list[int]) -> None:
            nonlocal last
            for read in [region.begin_read(offset, size) for offset in offsets]:
                last = read.result()

        return call, lambda: last == content


class Redis(Peer):
    """Values of Redis."""

    def __init__(self, address: str) -> None:
        import hiredis  # noqa: F401  # redis uses it when it is there: here it must be.
        import redis

        host, _, port = address.rpartition(":")
        there: dict[str, Any]
        there = {"host": host, "port": int(port)} if host else {"unix_socket_path": address}
        self._client: Any = redis.Redis(**there)
        self.version = str(self._client.info("server")["redis_version"])

    def operation(self, operation: str, size: int, places: int) -> tuple[Call, Callable[[], bool]]:
        """Prepares an operation on one value."""
        client, content, key = self._client, os.urandom(size), f"python-{size}"
        client.set(key, content)
        calls: dict[str, Callable[[int], object]] = {
            "read": lambda _: client.get(key),
            "write": lambda _: client.set(key, content),
            "fetch_add": lambda _: client.incr("python-number"),
        }
        once = calls[operation]

        def call(offsets: list[int]) -> None:
            for offset in offsets:
                once(offset)

        return call, lambda: client.get(key) == content


def step_of(size: int) -> int:
    """Number of bytes from one place to the next."""
    return -(-size // ALIGNED) * ALIGNED


def measure(
    peer: Peer,
    operation: str,
    size: int,
    numbers: list[int],
    batch: int = 1,
    calls: int = 1 << 60,
    seconds: float = 3600.0,
    owner: int = 0,
) -> dict[str, Any]:
    """Times every call."""
    count = max(1, min(numbers[1], ROOM // step_of(size)))
    offsets = [index % count * step_of(size) for index in range(-(-count // batch) * batch)]
    units = [offsets[first : first + batch] for first in range(0, len(offsets), batch)]
    call, is_right = peer.operation(operation, size, count)
    ns: list[int] = []
    cpu, begin = time.process_time_ns(), _clock()
    end = begin + int(seconds * 1e9)
    for number in range(calls):
        unit = units[number % len(units)]
        start = _clock()
        call(unit)
        stop = _clock()
        ns.append(stop - start)
        if stop > end:
            break
    cpu = time.process_time_ns() - cpu
    if not is_right():
        raise AssertionError(f"{operation} of {size} bytes did something else than it should")
    return {"ns": ns, "cpu_ns": cpu}


PEERS: dict[str, Callable[..., Peer]] = {"plasmon": Plasmon, "redis": Redis}


def main() -> None:
    """Answers requests until standard input ends."""
    name, *arguments = sys.argv[1:]
    serve(lambda: PEERS[name](*arguments), lambda peer: peer.operations, measure)


if __name__ == "__main__":
    main()
