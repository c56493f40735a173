"""Tests of digests, raw bytes, calls for many objects, and reports of the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import plasmon
import pyarrow as pa
import pytest
from conftest import ANTI_HANG, held, until

MEBI = 1 << 20


@pytest.mark.parametrize("size", [0, 1, 1000, 200_000])
@pytest.mark.parametrize("digest", [False, True])
def test_raw_bytes_with_metadata(
    near: plasmon.Client, reader: plasmon.Client, size: int, digest: bool
) -> None:
    data = bytes(n % 251 for n in range(size))
    oid = near.create_and_seal(plasmon.ObjectId.random(), data, b"of my own", digest=digest)
    assert reader.get(oid, timeout=30) == data
    assert reader.metadata(oid) == b"of my own"
    assert near.create_and_seal("a name", memoryview(data)) == plasmon.ObjectId.from_name("a name")
    assert [row.name for row in near.list() if row.id != oid] == ["a name"]


@pytest.mark.parametrize("size", [0, 10, MEBI])
@pytest.mark.parametrize("metadata_size", [64 << 10, (64 << 10) + 1, 5 * MEBI])
def test_metadata_of_any_size(
    near: plasmon.Client, reader: plasmon.Client, size: int, metadata_size: int
) -> None:
    """Metadata that is too long for a frame is written into the store by its creator."""
    random = np.random.default_rng(size + metadata_size)
    data, metadata = random.bytes(size), random.bytes(metadata_size)
    made = near.create_and_seal(plasmon.ObjectId.random(), data, metadata, digest=True)
    with near.create(plasmon.ObjectId.random(), size, metadata, digest=True) as creation:
        memoryview(creation)[:] = data
    for oid in (made, creation.id):
        [buffer] = reader.get_buffers([oid], timeout=30)
        assert (bytes(memoryview(buffer)), buffer.metadata) == (data, metadata)
        buffer.verify()
        into = bytearray(size)
        assert (reader.get_into(oid, into, timeout=30), bytes(into)) == (size, data)
    assert near.hash(made) == near.hash(creation.id)
    assert {(row.size, row.metadata_size) for row in near.list()} == {(size, metadata_size)}


def test_raw_bytes_of_any_type_are_stored_in_c_order(near: plasmon.Client) -> None:
    array: Any = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    assert near.get(near.create_and_seal(plasmon.ObjectId.random(), array)) == array.tobytes()
    assert near.get(near.create_and_seal(plasmon.ObjectId.random(), array.T)) == array.T.tobytes()


def test_a_hash_is_of_data_then_metadata(near: plasmon.Client) -> None:
    near.create_and_seal("one", b"abc", b"def", digest=True)
    near.create_and_seal("two", b"abcdef", digest=False)
    near.create_and_seal("three", b"abcdeg")
    assert near.hash("one") == near.hash("two") != near.hash("three")
    # XXH3-64 of no bytes, as its authors publish it.
    near.create_and_seal("nothing", b"")
    assert near.hash("nothing") == 0x2D06800538D394C2.to_bytes(8, "little")


def test_a_digest_stays_with_the_object(near: plasmon.Client) -> None:
    small = near.put(b"small", digest=True)
    large = near.put(np.arange(MEBI), digest=True)
    creation = near.create(plasmon.ObjectId.random(), MEBI, b"metadata", digest=True)
    memoryview(creation)[:] = bytes(MEBI)
    creation.seal()
    for oid in (small, large, creation.id):
        [buffer] = near.get_buffers([oid])
        assert buffer.digest() == near.hash(oid)
        near.verify(oid)
    # A digest computed now equals the one made at the seal.
    assert near.hash(near.put(b"small")) == near.hash(small)


def test_many_values_are_stored_at_once(near: plasmon.Client, reader: plasmon.Client) -> None:
    table = pa.table({"n": [1, 2, 3]})
    values = [b"bytes", np.arange(5), {"a": np.arange(100_000)}, table, bytes(MEBI), "text"]
    ids = near.put_many(values)
    got = reader.get(ids, timeout=30)
    assert got[0] == b"bytes"
    assert got[1].tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(got[2]["a"], np.arange(100_000))
    assert got[3] == table
    assert got[4] == bytes(MEBI)
    assert got[5] == "text"
    assert near.put_many([]) == []


def test_thousands_of_values_are_stored_in_order(near: plasmon.Client) -> None:
    ids = near.put_many([str(number).encode() * 100 for number in range(3000)], digest=True)
    assert [bytes(value) for value in near.get(ids)] == [str(number).encode() * 100 for number in range(3000)]


def test_many_values_with_ids_of_their_own(near: plasmon.Client) -> None:
    oid = plasmon.ObjectId.random()
    assert near.put_many([b"1", b"2"], ids=[oid, "named"]) == [oid, plasmon.ObjectId.from_name("named")]
    assert near.get([oid, "named"]) == [b"1", b"2"]
    with pytest.raises(plasmon.InvalidArgument, match="2 ids for 1 values"):
        near.put_many([b"1"], ids=["a", "b"])


def test_one_of_many_that_is_taken_does_not_hinder_the_others(near: plasmon.Client) -> None:
    taken, free, last = (plasmon.ObjectId.random() for _ in range(3))
    near.put(b"first", id=taken)
    near.put(b"first", id="taken name")
    with pytest.raises(plasmon.ObjectExists, match=taken.hex()):
        near.put_many([b"a", b"b", b"c"], ids=[free, taken, last])
    assert near.get([taken, free, last]) == [b"first", b"a", b"c"]
    with pytest.raises(plasmon.ObjectExists, match=plasmon.ObjectId.from_name("taken name").hex()):
        near.put_many([b"d", b"e"], ids=["taken name", "free name"])
    assert near.get("free name") == b"e"


def test_capacity_and_usage(near: plasmon.Client) -> None:
    before = near.usage()
    assert near.capacity == before["capacity"] == 256 * MEBI
    assert before["used"] + before["free"] <= near.capacity
    near.put(bytes(MEBI))
    after = near.usage()
    assert after["used"] >= before["used"] + MEBI


def test_wait_says_which_are_here(near: plasmon.Client, far: plasmon.Client) -> None:
    here, there = near.put(b"here"), far.put(b"there")
    never = plasmon.ObjectId.random()
    assert near.wait([here, never], timeout=0) == ([here], [never])
    assert near.wait([never, here], count=1, timeout=ANTI_HANG) == ([here], [never])
    assert near.wait([there, here], timeout=ANTI_HANG) == ([there, here], [])
    assert near.wait([], timeout=0) == ([], [])
    assert near.wait("a name", timeout=0) == ([], [plasmon.ObjectId.from_name("a name")])
    assert held(near) == 0
    for count in (-1, 2):
        with pytest.raises(plasmon.InvalidArgument, match="objects to wait for"):
            near.wait([here], count=count)


def test_a_wait_ends_when_enough_have_come(near: plasmon.Client) -> None:
    ids = [plasmon.ObjectId.random() for _ in range(3)]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(near.wait, ids, 2, ANTI_HANG)
        near.put(b"", id=ids[2])
        near.put(b"", id=ids[0])
        assert waiting.result() == ([ids[0], ids[2]], [ids[1]])


def test_cached_replicas_are_evicted(near: plasmon.Client, far: plasmon.Client) -> None:
    oid = near.put(bytes(MEBI))
    assert far.wait([oid], timeout=ANTI_HANG) == ([oid], [])
    far.refresh([oid])
    far.refresh("nothing of this name")
    assert far.evict(1) >= MEBI
    assert oid not in {row.id for row in far.list()}
    assert near.get(oid) == bytes(MEBI)
    assert near.evict(0) == 0
    for size in (-1, 1 << 64):
        with pytest.raises(plasmon.InvalidArgument, match="bytes to free"):
            near.evict(size)


def test_options_of_a_client(cluster: plasmon.LocalCluster, near: plasmon.Client) -> None:
    with cluster.connect() as client:

        def row() -> tuple[str, int] | None:
            rows = [row for row in near.status()["connections"] if row["name"].startswith("worker")]
            return (rows[0]["name"], rows[0]["quota"]) if rows else None

        client.set_options(name="worker 1")
        assert row() == ("worker 1", 0)
        client.set_options(quota=MEBI)
        assert row() == ("worker 1", MEBI)
        client.set_options(name="worker 2", quota=MEBI)
        assert row() == ("worker 2", MEBI)
        with pytest.raises(plasmon.StoreFull):
            client.put(bytes(2 * MEBI))
        client.set_options()
        client.set_options(name="worker 3")
        assert row() == ("worker 3", MEBI)
        client.set_options(quota=0)
        assert row() == ("worker 3", 0)
        client.put(bytes(2 * MEBI))
        with pytest.raises(plasmon.InvalidArgument, match="empty"):
            client.set_options(name="")
        with pytest.raises(plasmon.InvalidArgument, match="255"):
            client.set_options(name="n" * 256)
        with pytest.raises(plasmon.InvalidArgument, match="quota"):
            client.set_options(quota=-1)


def test_a_put_waits_for_room() -> None:
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        client = cluster.client()
        first = client.put(bytes(40 * MEBI))
        with pytest.raises(plasmon.StoreFull):
            client.put(bytes(40 * MEBI), timeout=0.05)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(client.put, bytes(40 * MEBI), timeout=ANTI_HANG)
            until("the put to wait", lambda: client.status()["memory"]["waiting"] == 1)
            client.delete(first)
            assert client.get(waiting.result()) == bytes(40 * MEBI)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_time_for_room_that_is_none_is_refused(near: plasmon.Client, timeout: float) -> None:
    with pytest.raises(plasmon.InvalidArgument, match="number of seconds"):
        near.put(b"", timeout=timeout)
