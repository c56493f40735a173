"""Tests of classes of work: clients whose work is high, normal or low."""

from __future__ import annotations

import asyncio
import pickle

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
