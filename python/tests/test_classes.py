"""Tests of classes of work: clients whose work is high, normal or low."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any, Literal

import plasmon
import plasmon.aio
import pytest


def test_clients_of_all_classes_see_the_same_objects(near: plasmon.Client, far: plasmon.Client) -> None:
    near.put(list(range(1000)), name="a")
    region = near.create_region("counter", 8)
    before = far.status()["classes"]
    with far.with_class("low") as low, plasmon.connect(far.socket, priority="high") as high:
        assert low.get("a", timeout=30) == high.get("a") == list(range(1000))
        assert low.map_region("counter", "rw").fetch_add(0) == 0
        assert high.map_region("counter", "rw").fetch_add(0) == 1
        with pickle.loads(pickle.dumps(low)) as again:
            again.contains("a")
    classes = far.status()["classes"]
    assert classes["qos"] == "off"
    for name in ("high", "low"):
        assert classes[name]["operations"] > before[name]["operations"]
    region.free()


def test_clients_of_an_event_loop_have_classes(near: plasmon.Client) -> None:
    async def put() -> None:
        async with plasmon.aio.connect(near.socket, priority="low") as client:
            await client.put("of a loop", name="b")
            async with client.with_class("high") as high:
                assert await high.get("b") == "of a loop"

    before = near.status()["classes"]["low"]["operations"]
    asyncio.run(put())
    assert near.get("b") == "of a loop"
    assert near.status()["classes"]["low"]["operations"] > before


def operations(client: plasmon.Client) -> dict[str, int]:
    """Number of operations of each class that clients of a node made."""
    classes = client.status()["classes"]
    return {name: classes[name]["operations"] for name in ("high", "normal", "low")}


def made(client: plasmon.Client, before: dict[str, int]) -> tuple[int, int]:
    """Number of operations of class high, and of class low, that were made since."""
    now = operations(client)
    return now["high"] - before["high"], now["low"] - before["low"]


def test_single_calls_and_operations_have_classes(near: plasmon.Client, far: plasmon.Client) -> None:
    with near.create_region("word", 8) as region, near.serve("echo", {"run": bytes}, threads=2):
        word, echo = far.map_region("word", "rw"), far.service("echo", timeout=30)
        before = operations(far)
        assert echo.call("run", b"a", priority="high") == b"a"
        assert echo.begin("run", b"b", priority="high").result() == b"b"
        assert far.multicast([echo], "run", b"c", priority="high") == [b"c"]
        echo.send("run", b"d", confirm=True, priority="high")
        assert made(far, before) == (4, 0)
        with plasmon.priority("low"):
            word.fetch_add(0)
            assert word.begin_fetch_add(0).result() == 1
            assert echo.call("run", b"e") == b"e"
            with plasmon.priority("high"):
                word.write(b"12345678")
        assert made(far, before) == (5, 3)
        word.fetch_add(0)
        assert made(far, before) == (5, 3), "the choice ends with the block"
        region.free()


def test_tasks_have_classes_of_their_own(near: plasmon.Client, far: plasmon.Client) -> None:
    async def run() -> None:
        async with plasmon.aio.connect(far.socket) as client:
            word, echo = await client.map_region("word", "rw"), await client.service("echo", timeout=30)
            both = asyncio.Event()

            async def add(priority: Literal["high", "low"]) -> None:
                with plasmon.priority(priority):
                    if priority == "high":
                        await both.wait()
                    both.set()
                    await asyncio.gather(word.fetch_add(0), echo.call("run", b"a"))

            before = operations(far)
            await asyncio.gather(add("high"), add("low"), word.fetch_add(0))
            assert made(far, before) == (2, 2)
            assert await echo.call("run", b"b", priority="high") == b"b"
            await echo.send("run", b"c", confirm=True, priority="low")
            with plasmon.priority("low"):
                # A call with long data runs in a thread.
                assert await echo.call("run", bytes(100_000)) == bytes(100_000)
            high, low = made(far, before)
            assert high == 3
            assert low >= 4

    with near.create_region("word", 8) as region, near.serve("echo", {"run": bytes}, threads=4):
        asyncio.run(run())
        region.free()


@pytest.mark.parametrize("name", ["urgent", "", None, 1])
def test_a_block_is_of_one_of_the_classes(near: plasmon.Client, name: Any) -> None:
    with pytest.raises(plasmon.InvalidArgument, match="high, normal and low"), plasmon.priority(name):
        pass
    with near.serve("echo", {"run": bytes}), pytest.raises(plasmon.InvalidArgument, match="high, normal"):
        near.service("echo", timeout=30).call("run", priority="urgent")  # type: ignore[call-overload]


def test_there_are_three_classes(near: plasmon.Client) -> None:
    with pytest.raises(plasmon.InvalidArgument, match="high, normal and low"):
        plasmon.connect(near.socket, priority="urgent")  # type: ignore[arg-type]


def test_a_class_may_be_refused() -> None:
    with (
        plasmon.LocalCluster(nodes=1, memory="64MiB", arguments=["--classes", "low="]) as cluster,
        cluster.connect(0) as client,
        pytest.raises(plasmon.NotAllowed, match="--classes"),
    ):
        client.with_class("low")
