"""Tests of calls of functions by tasks: no thread waits for them, and bytes of all sizes come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import plasmon
import plasmon.aio
import pytest
from conftest import ANTI_HANG

SIZES = [0, 320, 321, 8192, 8193, 256 << 10, (256 << 10) + 1, 3 << 20]
CALLS = 100


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def server(near: plasmon.Client, go_on: threading.Event) -> Iterator[plasmon.Server]:
    """Functions of bytes, on the first node."""

    def hold(data: bytes) -> bytes:
        assert go_on.wait(ANTI_HANG)
        return data

    with near.serve("tasks", {"echo": lambda data: data, "hold": hold}, threads=4) as server:
        yield server
        go_on.set()


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.usefixtures("server")
def test_bytes_of_all_sizes(cluster: plasmon.LocalCluster, where: int) -> None:
    async def use() -> None:
        async with plasmon.aio.connect(cluster.sockets[where]) as client:
            service = await client.service("tasks", timeout=ANTI_HANG)
            for size in SIZES * 2:
                data = np.random.default_rng(size).bytes(size)
                assert await service.call("echo", data, timeout=ANTI_HANG) == data
            together = [service.call("echo", bytes(size), timeout=ANTI_HANG) for size in SIZES * 4]
            assert [len(reply) for reply in await asyncio.gather(*together)] == SIZES * 4

    asyncio.run(use())


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.usefixtures("server")
def test_tasks_that_wait_take_no_threads(
    cluster: plasmon.LocalCluster, go_on: threading.Event, where: int
) -> None:
    async def use() -> None:
        async with plasmon.aio.connect(cluster.sockets[where]) as client:
            service = await client.service("tasks", timeout=ANTI_HANG)
            assert await service.call("echo", b"1") == b"1"
            before = threading.active_count()
            waiting = [
                asyncio.create_task(service.call("hold", b"%d" % nth, timeout=ANTI_HANG))
                for nth in range(CALLS)
            ]
            done, _ = await asyncio.wait(waiting, timeout=0.2)
            assert not done
            assert threading.active_count() == before
            # The client's other requests go on meanwhile.
            object_id = await client.put({"a": 1})
            assert await client.get(object_id) == {"a": 1}
            # Some are given up; a thread of the server never sees those that were not begun.
            for one in waiting[CALLS // 2 :]:
                one.cancel()
            go_on.set()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert ended[: CALLS // 2] == [b"%d" % nth for nth in range(CALLS // 2)]
            assert all(isinstance(one, asyncio.CancelledError) for one in ended[CALLS // 2 :])

    asyncio.run(use())


@pytest.mark.usefixtures("server")
def test_time_outs_of_tasks(cluster: plasmon.LocalCluster) -> None:
    async def use() -> None:
        async with plasmon.aio.connect(cluster.sockets[1]) as client:
            service = await client.service("tasks", timeout=ANTI_HANG)
            calls = [service.call("hold", timeout=0.2) for _ in range(8)]
            ended = await asyncio.gather(*calls, return_exceptions=True)
            kinds = {type(one) for one in ended}
            # Four threads have begun it; the other calls were not run.
            assert kinds == {plasmon.OutcomeUnknown, plasmon.TimedOut}
            with pytest.raises(plasmon.InvalidArgument, match="has no function"):
                await service.call("nothing")
        with pytest.raises(plasmon.Disconnected):
            await service.call("echo")

    asyncio.run(use())
