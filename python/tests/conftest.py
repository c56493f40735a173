"""Real nodes for all tests: two that share a cluster, and a Plasma store with its clients."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import plasmon
import pytest
from plasmon import _values

_T = TypeVar("_T")

ANTI_HANG = 60.0
"""Seconds that nothing takes: a test that waits so long has failed."""
PLASMA_MEMORY = 10**8
"""Bytes of the store of the tests of Plasma."""

OTHER = 65533
"""User id that nothing else uses."""

PICKLED_BYTES = 8192
"""Limit of a pickle that has no data of its value in it."""


# A program that a shell runs in the background ignores SIGINT, and so would its children.
signal.signal(signal.SIGINT, signal.default_int_handler)


def until(what: str, condition: Callable[[], bool]) -> None:
    """Waits until a condition holds."""
    deadline = time.monotonic() + ANTI_HANG
    while not condition():
        assert time.monotonic() < deadline, f"still waiting: {what}"
        time.sleep(0.005)


def let_pass(seconds: float, why: str) -> None:
    """Lets a time pass if there is no condition to wait for, with the reason."""
    assert why
    time.sleep(seconds)


LET_PASS = """
def let_pass(seconds, why, sleep=__import__("time").sleep):
    assert why
    sleep(seconds)
"""
"""Source of `let_pass` for programs that tests run. It works while an interpreter ends as well."""


async def let_pass_async(seconds: float, why: str) -> None:
    """Lets a time pass as `let_pass` does, in a task."""
    assert why
    await asyncio.sleep(seconds)


def seen_beside(write: Callable[[int], None], read: Callable[[], _T], rounds: int) -> list[_T]:
    """What a reader in a loop saw beside a writer of the rounds from 1 on, after the round 0."""
    write(0)
    done = threading.Event()

    def seen() -> list[_T]:
        found = [read()]
        while not done.is_set():
            found.append(read())
        return found

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(seen)
        try:
            for number in range(1, rounds):
                write(number)
        finally:
            done.set()
        return reading.result(ANTI_HANG)


def admit_others(socket: str) -> None:
    """Lets other users connect to a node."""
    for place, mode in ((os.path.dirname(socket), 0o711), (socket, 0o666)):
        os.chmod(place, mode)
    folder = os.path.dirname(os.path.dirname(socket))
    if folder != "/tmp":
        os.chmod(folder, 0o711)


def held(client: plasmon.Client) -> int:
    """Number of objects that are pinned on a node, including deleted ones."""
    objects = client.status()["objects"]
    count: int = objects["pinned"] + objects["doomed"]
    return count


@pytest.fixture(scope="session")
def cluster() -> Iterator[plasmon.LocalCluster]:
    with plasmon.LocalCluster(nodes=2, memory="256MiB") as cluster:
        yield cluster


@pytest.fixture
def near(cluster: plasmon.LocalCluster) -> Iterator[plasmon.Client]:
    """Client of the first node. After the test no object may be pinned on any node; all objects are
    deleted."""
    yield cluster.client(0)
    gc.collect()
    for number in range(len(cluster.sockets)):
        client = cluster.client(number)
        until(f"pins on node {number} to go", lambda client=client: held(client) == 0)  # type: ignore[misc]
        client.delete([row.id for row in client.list()])


@pytest.fixture
def far(cluster: plasmon.LocalCluster, near: plasmon.Client) -> plasmon.Client:
    """Client of the second node."""
    return cluster.client(1)


@pytest.fixture(params=["same node", "other node"])
def reader(request: pytest.FixtureRequest, near: plasmon.Client, far: plasmon.Client) -> plasmon.Client:
    """Gets objects that `near` has put: on the same node, and on the other."""
    return near if request.param == "same node" else far


@pytest.fixture(params=["plasmon.plasma", "pyarrow.plasma"], scope="module")
def plasma(request: pytest.FixtureRequest) -> ModuleType:
    """Plasma of this package, and PyArrow's own if it has that."""
    try:
        return importlib.import_module(request.param)
    except ModuleNotFoundError:
        if request.param == "plasmon.plasma":
            raise
        pytest.skip("this PyArrow has no Plasma any more: version 11 has")


@pytest.fixture(scope="module")
def store(plasma: ModuleType) -> Iterator[str]:
    """The socket of a Plasma store."""
    with plasma.start_plasma_store(PLASMA_MEMORY) as (socket, process):
        yield socket
        assert process.poll() is None


@pytest.fixture
def client(plasma: ModuleType, store: str) -> Iterator[Any]:
    """A client of the Plasma store. After the test its objects are deleted."""
    client = plasma.connect(store)
    yield client
    gc.collect()
    client.delete(list(client.list()))
    client.disconnect()


@pytest.fixture
def other(plasma: ModuleType, store: str) -> Iterator[Any]:
    """A second client of the Plasma store."""
    other = plasma.connect(store)
    yield other
    gc.collect()
    other.disconnect()


@pytest.fixture
def new_id(plasma: ModuleType) -> Callable[[], Any]:
    """Makes ids of objects of Plasma."""
    from_random: Callable[[], Any] = plasma.ObjectID.from_random
    return from_random


def is_in_store(address: int) -> bool:
    """Whether an address is within memory that a node shares with this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "plasmon" in line:
            begin, end = (int(number, 16) for number in re.split("[- ]", line)[:2])
            if begin <= address < end:
                return True
    return False


@pytest.fixture
def in_place(near: plasmon.Client, reader: plasmon.Client) -> Callable[[Any, Callable[[Any], int]], Any]:
    """Puts a value on one node and gets it. Neither may copy its data: it is not within the pickle, and the
    address that the test reads from the result is in the store."""

    def check(value: Any, address: Callable[[Any], int]) -> Any:
        encoded = _values.encode(value)
        if b'"kind":"pickle"' in encoded.metadata:
            assert memoryview(encoded.parts[0][1]).nbytes < PICKLED_BYTES, "data was copied into the pickle"
        del encoded
        got = reader.get(near.put(value), timeout=30)
        assert type(got) is type(value)
        assert is_in_store(address(got))
        return got

    return check
