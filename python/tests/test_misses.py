"""Tests of misses: gets that do not wait for an object to be put."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from typing import Any

import numpy as np
import plasmon
import plasmon.aio
import pytest
from conftest import ANTI_HANG

NAMES = [f"absent {number}" for number in range(64)]
"""Absent names, so many that every node is the keeper of some."""


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(ANTI_HANG):
            await main

    asyncio.run(bounded())


def test_a_default_takes_the_place_of_what_is_not_there(near: plasmon.Client, far: plasmon.Client) -> None:
    near.put([1], name="there")
    for client in (near, far):
        assert client.get("there", default=None) == [1]
        assert client.get("not there", default=None) is None
        assert client.get("not there", 0.01, default="late") == "late"
        assert client.get(["there", "not there", "there"], default=7) == [[1], 7, [1]]
        assert client.get(NAMES, 0, default=0) == [0] * len(NAMES)
        assert client.get([], default=0) == []
        with pytest.raises(plasmon.ObjectNotFound, match="not in the cluster"):
            client.get("not there", timeout=0)
        with pytest.raises(plasmon.ObjectNotFound):
            client.metadata("not there", timeout=0)
        with pytest.raises(plasmon.ObjectNotFound):
            client.get_into("not there", bytearray(1), timeout=0)
    near.put([2], name="mine", private=True)
    assert far.get("mine", default=0, private=True) == [2]
    assert far.get("mine", default=0) == 0


def test_what_is_elsewhere_is_brought(near: plasmon.Client, far: plasmon.Client) -> None:
    array = np.arange(500_000)
    for number in range(8):
        near.put(array + number, name=f"array {number}")
        found = far.get(f"array {number}", timeout=0)
        assert np.array_equal(found, array + number)
    target = bytearray(4)
    near.put(b"four", name="for a buffer")
    assert far.get_into("for a buffer", target, timeout=0) == 4
    assert target == b"four"


def test_what_is_put_in_time_is_no_miss(near: plasmon.Client, far: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            waiting = asyncio.create_task(client.get(["early", "never put"], 0.5, default=None))
            await asyncio.sleep(0)
            await asyncio.to_thread(far.put, b"come", name="early")
            assert await waiting == [b"come", None]

    run(main())


def test_misses_of_tasks(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            await client.put(1, name="of a task")
            assert await client.get("of a task", default=None) == 1
            assert await client.get("no task's", default=None) is None
            assert await client.get(["no task's", "of a task"], default=None) == [None, 1]
            assert await client.get("no task's", 0.01, default=2) == 2
            many = [f"no task's {number}" for number in range(1500)]
            assert await client.get([*many, "of a task"], default=0) == [0] * 1500 + [1]
            with pytest.raises(plasmon.ObjectNotFound, match="not in the cluster"):
                await client.get("no task's", timeout=0)

    run(main())


def test_a_silent_keeper_is_no_miss() -> None:
    with plasmon.LocalCluster(nodes=2, memory="64MiB") as cluster:
        client = cluster.client()
        assert client.get(NAMES, default=0) == [0] * len(NAMES)

        async def of_tasks() -> None:
            async with plasmon.aio.connect(client.socket) as tasks:
                with pytest.raises(plasmon.TimedOut):
                    await tasks.get(NAMES, default=0)

        os.kill(cluster.pids[1], signal.SIGSTOP)
        try:
            with pytest.raises(plasmon.TimedOut, match="cannot tell whether"):
                client.get(NAMES, default=0)
            run(of_tasks())
        finally:
            os.kill(cluster.pids[1], signal.SIGCONT)


def test_explain_and_wait_stay_here(near: plasmon.Client, far: plasmon.Client) -> None:
    oid = far.put(np.zeros(10))
    assert near.explain(oid)["value"] is None
    assert near.wait([oid], timeout=0) == ([], [oid])
    assert near.get(oid, timeout=ANTI_HANG).shape == (10,)
    assert near.wait([oid], timeout=0) == ([oid], [])
