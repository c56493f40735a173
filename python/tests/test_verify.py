"""Tests of gets that compare bytes with the digest of their seal."""

from __future__ import annotations

import asyncio

import plasmon
import pytest
from plasmon import aio


@pytest.mark.parametrize("size", [100, 100_000, 2_000_000])
def test_a_get_may_compare_what_it_brings(near: plasmon.Client, far: plasmon.Client, size: int) -> None:
    value = bytes(range(256)) * (size // 256 + 1)
    before = far.status()["transfer"]["compared"]
    with_digest, without = near.put(value, digest=True), near.put(value)
    assert far.get(with_digest, 30, verify=True) == value
    assert far.get(with_digest, verify=True) == value
    assert far.get([without], 30, verify=True) == [value]
    assert far.get(["nobody", with_digest], default=None, verify=True) == [None, value]
    assert far.get_buffers([with_digest], verify=True) == [value]
    into = far.buffer(len(value))
    assert far.get_into(near.put(value, digest=True), into, 30, verify=True) == len(value)
    assert memoryview(into) == value
    assert far.status()["transfer"]["compared"] == before + 2
    assert far.status()["transfer"]["damaged"] == 0


def test_a_task_may_compare_what_it_brings(cluster: plasmon.LocalCluster, near: plasmon.Client) -> None:
    ids = near.put_many([b"1" * 1000, b"2" * 100_000], digest=True)

    async def get() -> list[bytes]:
        async with aio.connect(cluster.sockets[1]) as client:
            values = await client.get(ids, 30, verify=True)
            assert await client.get(["nobody", *ids], default=None, verify=True) == [None, *values]
            return [bytes(value) for value in values]

    assert asyncio.run(get()) == [b"1" * 1000, b"2" * 100_000]
