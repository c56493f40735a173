"""Tests of regions: memory that programs of two hosts read and change, by calls and in place."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import plasmon
import plasmon.aio
import pytest
from conftest import ANTI_HANG, until

SIZES = [0, 1, 7, 8, 319, 320, 321, 4095, 2**20 + 1]
SIZE = 2 * 2**20 + 5


@pytest.fixture
def region(near: plasmon.Client) -> Iterator[Callable[..., plasmon.Region]]:
    """Makes regions, which are freed after the test."""
    made: list[plasmon.Region] = []

    def make(name: str, size: int = SIZE, **options: object) -> plasmon.Region:
        made.append(near.create_region(name, size, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for info in near.regions():
        near.map_region(info.name, "rw").free()
    assert near.regions() == []


@pytest.fixture(params=["mapped", "called", "far"])
def one(
    request: pytest.FixtureRequest, region: Callable[..., plasmon.Region], far: plasmon.Client
) -> plasmon.Region:
    """A region that is mapped here, one of this host that is reached by calls, and one of the other host."""
    kinds: dict[str, dict[str, object]] = {"called": {"mappable": False}, "far": {"node": far.node}}
    options = kinds.get(request.param, {})
    made = region(request.param, **options)
    assert made.local == (request.param == "mapped")
    return made


def test_bytes_of_all_sizes(one: plasmon.Region) -> None:
    assert one.read() == bytes(SIZE)
    for size in SIZES:
        data = np.random.default_rng(size).bytes(size)
        for offset in (0, 1, SIZE - size):
            one.write(data, offset)
            assert one.read(offset, size) == data
            into = bytearray(size)
            assert one.read_into(into, offset) == size
            assert into == data
    array: Any = np.arange(12, dtype="f4").reshape(3, 4)
    one.write(array, 5)
    same: Any = np.zeros((4, 3), "f4")
    assert one.read_into(same, 5) == 48
    assert (same.ravel() == array.ravel()).all()
    one.write(array[:0], 5)
    one.fill(7, 3, 1000)
    assert one.read(3, 1000) == bytes([7]) * 1000
    one.fill()
    assert one.read() == bytes(SIZE)


def test_words(one: plasmon.Region) -> None:
    assert one.fetch_add(8) == 0
    assert one.fetch_add(8, -2) == 1
    assert one.swap(8, 5) == 2**64 - 1
    assert one.compare_swap(8, 4, 6) == 5
    assert one.compare_swap(8, 5, 6) == 5
    assert one.test_and_set(16) is False
    assert one.test_and_set(16) is True
    assert one.read(8, 16) == (6).to_bytes(8, "little") + (1).to_bytes(8, "little")


def test_begun_operations(one: plasmon.Region) -> None:
    adds = [one.begin_fetch_add(0, 2) for _ in range(20)]
    writes = [one.begin_write(bytes([n]) * 5000, 8192 * (n + 1)) for n in range(20)]
    one.fence()
    assert all(begun.done() for begun in [*adds, *writes])
    assert sorted(add.result() for add in adds) == [*range(0, 40, 2)]
    assert [write.result() for write in writes] == [None] * 20
    reads = [one.begin_read(8192 * (n + 1), 5000) for n in range(20)]
    assert [read.result() for read in reads] == [bytes([n]) * 5000 for n in range(20)]
    with pytest.raises(plasmon.InvalidArgument):
        reads[0].result()


def test_what_is_wrong_is_refused(one: plasmon.Region, near: plasmon.Client) -> None:
    wrong: list[Callable[[], object]] = [
        lambda: one.read(SIZE, 1),
        lambda: one.read(0, SIZE + 1),
        lambda: one.read(2**63, 2**62),
        lambda: one.write(b"12", SIZE - 1),
        lambda: one.fill(0, 0, SIZE + 1),
        lambda: one.fetch_add(4),
        lambda: one.fetch_add(SIZE // 8 * 8),
        lambda: one.fetch_add(0, 2**64),
        lambda: one.begin_read(0, 2**20),
        lambda: one.grant("nobody at all", "r"),
        lambda: one.grant(0, "x"),  # type: ignore[arg-type]
        lambda: near.create_region("", 8),
        lambda: near.create_region("n" * 256, 8),
        lambda: near.create_region("none", 0),
        lambda: near.create_region("public", 8, public="w"),  # type: ignore[arg-type]
        lambda: near.map_region("far", "x"),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(plasmon.InvalidArgument):
            call()
    with pytest.raises(TypeError):
        one.fetch_add(0, 1.5)  # type: ignore[arg-type]
    reader = near.map_region(one.name)
    with pytest.raises(plasmon.NotAllowed):
        reader.write(b"1")
    with pytest.raises(plasmon.ObjectExists):
        near.create_region(one.name, 8)
    assert one.read() == bytes(SIZE)


def test_arrays_and_views_are_the_memory(
    region: Callable[..., plasmon.Region], near: plasmon.Client, far: plasmon.Client
) -> None:
    here = region("array", 8 * 100)
    there = far.map_region("array", "rw")
    array = here.array("f8", (10, 10))
    array[:] = np.arange(100).reshape(10, 10)
    assert np.frombuffer(there.read(), "f8").sum() == 4950
    there.write(np.float64(-1).tobytes(), 8 * 11)
    assert array[1, 1] == -1
    assert here.array("u8", offset=16).shape == (98,)
    with pytest.raises(plasmon.InvalidArgument):
        here.array("f8", (11, 10))
    with pytest.raises(plasmon.InvalidArgument):
        here.array("O")
    for call in (there.view, there.array):
        with pytest.raises(plasmon.NotHere):
            call()
    read_only = near.map_region("array").view()
    assert read_only.readonly
    assert not here.view().readonly
    here.close()
    here_again = near.map_region("array", "rw")
    here_again.free()
    # The memory is nobody else's while there is a view of it.
    assert array[0, 5] == 5.0
    with pytest.raises(plasmon.RegionFreed):
        there.read()
    with pytest.raises(plasmon.ObjectNotFound):
        near.map_region("array")


def test_a_word_is_waited_for(
    region: Callable[..., plasmon.Region], near: plasmon.Client, far: plasmon.Client
) -> None:
    here = region("flag", 64)
    there = far.map_region("flag", "rw")
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(here.wait(0, 0, timeout=60)))
    waiting.start()
    there.swap(0, 9)
    waiting.join()
    assert found == [9]
    with pytest.raises(plasmon.TimedOut):
        there.wait(0, 9, timeout=0.2)


def test_processes_share_a_counter(
    region: Callable[..., plasmon.Region], cluster: plasmon.LocalCluster
) -> None:
    counter = region("counter", 8)
    program = (
        "import plasmon, sys\n"
        "with plasmon.connect(sys.argv[1]) as client, client.map_region('counter', 'rw') as region:\n"
        "    for _ in range(1000): region.fetch_add(0)\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, cluster.sockets[number % 2]]) for number in range(4)
    ]
    assert [child.wait() for child in children] == [0] * 4
    assert int.from_bytes(counter.read(), "little") == 4000


def test_a_list_a_snapshot_and_the_end(
    region: Callable[..., plasmon.Region], near: plasmon.Client, far: plasmon.Client
) -> None:
    first, second = region("b", 100), region("a", 5000, node=far.node, public="r")
    second.write(b"hello")
    first.copy_from(second, size=5, offset=1)
    assert first.read(0, 7) == b"\0hello\0"
    rows = far.regions()
    assert [(row.name, row.size, row.home, row.public) for row in rows] == [
        ("a", 5000, far.node, "r"),
        ("b", 100, near.node, ""),
    ]
    assert first.info().name == "b"
    assert second.snapshot(name="copy") == plasmon.ObjectId.from_name("copy")
    assert bytes(near.get("copy", type=bytes))[:5] == b"hello"
    second.free()
    with pytest.raises(plasmon.RegionFreed):
        second.read()


def test_handles_end(
    region: Callable[..., plasmon.Region], near: plasmon.Client, cluster: plasmon.LocalCluster
) -> None:
    kept = region("kept", 8)
    with cluster.connect(0) as client:
        brief = client.create_region("brief", 8, ephemeral=True)
        with client.map_region("kept", "rw") as inner:
            inner.fetch_add(0)
        assert inner.closed
        with pytest.raises(plasmon.InvalidArgument):
            inner.read()
    with pytest.raises(plasmon.Disconnected):
        brief.read()
    del brief
    until("the ephemeral region to end", lambda: [info.name for info in near.regions()] == ["kept"])
    assert kept.fetch_add(0) == 1


def test_a_forked_child_maps_regions_anew(
    region: Callable[..., plasmon.Region], near: plasmon.Client
) -> None:
    mapped, called = region("forked", 8), region("called", 8, mappable=False)
    mapped.fetch_add(0)
    called.fetch_add(0)
    child = os.fork()
    if child == 0:
        refused = 0
        for inherited in (mapped, called):
            try:
                inherited.fetch_add(0)
            except plasmon.Disconnected:
                refused += 1
        with near.map_region("forked", "rw") as own:
            os._exit(0 if (own.fetch_add(0, 10), refused) == (1, 2) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (mapped.fetch_add(0), called.fetch_add(0)) == (11, 1)


def test_a_namespace_has_regions_of_its_own(
    region: Callable[..., plasmon.Region], cluster: plasmon.LocalCluster
) -> None:
    region("named", 8)
    with plasmon.connect(cluster.sockets[0], namespace="job") as client:
        assert client.regions() == []
        own = client.create_region("named", 16)
        assert (own.name, own.size) == ("named", 16)
        assert [info.name for info in client.regions()] == ["named"]


@pytest.mark.parametrize("where", [0, 1])
def test_tasks_use_regions(
    region: Callable[..., plasmon.Region], cluster: plasmon.LocalCluster, where: int
) -> None:
    region("tasks", 2**20)

    async def use() -> None:
        async with (
            plasmon.aio.connect(cluster.sockets[where]) as client,
            await client.map_region("tasks", "rw") as shared,
        ):
            assert shared.local == (where == 0)
            before = await asyncio.gather(*(shared.fetch_add(0) for _ in range(50)))
            assert sorted(before) == [*range(50)]
            data = np.random.default_rng(1).bytes(2**20 - 8)
            await shared.write(data, 8)
            assert await shared.read(8) == data
            waiting = asyncio.create_task(shared.wait(0, 50))
            await shared.swap(0, 1)
            await shared.notify(0)
            assert await waiting == 1
            made = await client.create_region("brief", 8)
            await made.copy_from(shared, size=8)
            assert await made.read() == (1).to_bytes(8, "little")
            assert {info.name for info in await client.regions()} == {"brief", "tasks"}
            await made.free()

    asyncio.run(use())


async def eventually(what: str, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(ANTI_HANG):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("where", [0, 1])
def test_tasks_that_wait_take_no_thread_and_end_when_cancelled(
    region: Callable[..., plasmon.Region],
    cluster: plasmon.LocalCluster,
    near: plasmon.Client,
    where: int,
) -> None:
    made = region("many", 64, mappable=False)

    def waiting() -> int:
        count: int = near.status()["regions"]["waiting"]
        return count

    async def use() -> None:
        async with (
            plasmon.aio.connect(cluster.sockets[where]) as client,
            await client.map_region("many", "rw") as shared,
        ):
            threads = threading.active_count()
            for _ in range(1 + (where == 0)):
                tasks = [asyncio.create_task(shared.wait(8, 0)) for _ in range(500)]
                await eventually("all to wait", lambda: waiting() == 500)
                assert await shared.fetch_add(0) == made.fetch_add(0) - 1
                for task in tasks:
                    task.cancel()
                done = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(one, asyncio.CancelledError) for one in done)
                await eventually("the waits to end on the node", lambda: waiting() == 0)
            tasks = [asyncio.create_task(shared.wait(8, 0)) for _ in range(500)]
            await eventually("all to wait", lambda: waiting() == 500)
            assert threading.active_count() == threads
            assert await shared.swap(8, 7) == 0
            assert await asyncio.gather(*tasks) == [7] * 500
            with pytest.raises(plasmon.TimedOut):
                await shared.wait(8, 7, timeout=0.2)
            unheard = asyncio.create_task(shared.wait(8, 7))
            await eventually("it to wait", lambda: waiting() == 1)
        with pytest.raises(plasmon.Disconnected, match="closed"):
            await unheard
        with pytest.raises(plasmon.Disconnected, match="closed"):
            await shared.fetch_add(0)

    asyncio.run(use())


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("mappable", [True, False])
def test_tasks_make_all_operations(
    region: Callable[..., plasmon.Region], cluster: plasmon.LocalCluster, where: int, mappable: bool
) -> None:
    region("whole", 2**19, mappable=mappable)
    data = np.random.default_rng(2).bytes(2**19)

    async def use() -> None:
        async with (
            plasmon.aio.connect(cluster.sockets[where]) as client,
            await client.map_region("whole", "rw") as shared,
        ):
            lent = await client.buffer(2**18 + 1)
            for size in (0, 1, 320, 321, 2**14, 2**18, 2**18 + 1):
                await shared.fill(1)
                assert await shared.read(size=16) == bytes([1] * 16)
                await asyncio.gather(*(shared.write(data[at:][:size], at) for at in (0, 8, 16)))
                assert (await shared.read(16, size)) == data[16:][:size]
                into = bytearray(size)
                assert await shared.read_into(into, 16) == size
                assert into == data[16:][:size]
                place = memoryview(lent)[:size]
                place[:] = data[:size]
                await shared.write(place, 3)
                assert await shared.read_into(place[: size // 2], 3) == size // 2
                assert await shared.read(3, size) == data[:size]
            await shared.fill(0, 0, 64)
            assert await shared.fetch_add(0, -1) == 0
            assert await shared.compare_swap(0, 2**64 - 1, 5) == 2**64 - 1
            assert await shared.swap(0, -2) == 5
            assert [await shared.test_and_set(8) for _ in range(2)] == [False, True]
            await shared.copy_from(shared, source_offset=0, offset=16, size=8)
            assert await shared.wait(16, 0) == 2**64 - 2
            await shared.notify(16)
            for wrong in (shared.read(2**19, 1), shared.fetch_add(4), shared.write(b"ab", 2**19 - 1)):
                with pytest.raises(plasmon.InvalidArgument):
                    await wrong

    asyncio.run(use())


@pytest.mark.parametrize("where", [0, 1])
def test_a_wait_that_is_interrupted_gives_its_slot_back(
    region: Callable[..., plasmon.Region],
    cluster: plasmon.LocalCluster,
    near: plasmon.Client,
    where: int,
) -> None:
    region("interrupted", 8, mappable=False)

    def interrupt() -> None:
        until("the call to wait", lambda: near.status()["regions"]["waiting"] == 1)
        signal.raise_signal(signal.SIGUSR1)

    def handle(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with (
            plasmon.connect(cluster.sockets[where]) as client,
            client.map_region("interrupted") as shared,
        ):
            for _ in range(1 + (where == 0)):
                thread = threading.Thread(target=interrupt)
                thread.start()
                with pytest.raises(KeyboardInterrupt):
                    shared.wait(0, 0)
                thread.join()
                until("the call to end", lambda: client.status()["slots"]["under_way"] == 0)
                assert shared.read() == bytes(8)
                until("the home to forget the wait", lambda: near.status()["regions"]["waiting"] == 0)
    finally:
        signal.signal(signal.SIGUSR1, before)
