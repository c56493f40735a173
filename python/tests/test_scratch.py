"""Tests of scratch memory: objects that are got into it and put from it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator

import numpy as np
import plasmon
import pytest
from conftest import ANTI_HANG, until

MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[plasmon.LocalCluster]:
    with plasmon.LocalCluster(nodes=2, memory="64MiB") as cluster:
        yield cluster


def pattern(size: int, seed: int = 1) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def memfd(size: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    file = os.memfd_create("own", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    if seals:
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def used(client: plasmon.Client) -> int:
    return int(client.status()["memory"]["used"])


def into(client: plasmon.Client, oid: plasmon.ObjectId) -> str:
    fetched = client.explain(oid)["fetched"]
    assert fetched is not None
    return str(fetched["into"])


@pytest.mark.parametrize("size", [0, 1, 4095, 20_000, 70_001, 3 * MIB + 1])
def test_an_object_comes_into_lent_memory_and_nowhere_else(cluster: plasmon.LocalCluster, size: int) -> None:
    here, there = cluster.client(0), cluster.client(1)
    data = pattern(size)
    oid = there.create_and_seal(plasmon.ObjectId.random(), data, b"with metadata")
    scratch = here.buffer(4 * MIB)
    view = memoryview(scratch)
    view[:] = b"\xee" * len(view)
    # The second get reads the object from its known location.
    for at in (4096, 77):
        target = view[at : at + max(size, 1)]
        assert here.get_into(oid, target, ANTI_HANG) == size
        assert view[at : at + size] == data
        assert view[at + size] == 0xEE, "nothing is written behind it"
        assert into(here, oid) == "given"
        view[at : at + size] = b"\xee" * size
    assert oid not in [info.id for info in here.list()]
    there.delete(oid)


def test_it_comes_into_memory_of_the_program_too(cluster: plasmon.LocalCluster) -> None:
    here, there = cluster.client(0), cluster.client(1)
    file = memfd(5 * MIB)
    own = here.register(file)
    os.close(file)
    for seed in range(3):
        data = pattern(2 * MIB, seed)
        oid = there.put(data)
        array = np.frombuffer(memoryview(own), np.uint8)[MIB : 3 * MIB]
        assert here.get_into(oid, array.data, ANTI_HANG) == 2 * MIB
        assert array.tobytes() == data
        assert into(here, oid) == "given"
        there.delete(oid)
    registrations = here.status()["transfer"]["registrations"]
    assert (registrations["regions"], registrations["misses"]) == (1, 1)
    assert registrations["hits"] >= 2
    # A small object comes inside a message.
    oid = there.put(b"small")
    assert here.get_into(oid, memoryview(own)[10:20], ANTI_HANG) == 5
    assert bytes(memoryview(own)[10:15]) == b"small"


def test_any_other_memory_is_copied_to(cluster: plasmon.LocalCluster) -> None:
    here, there = cluster.client(0), cluster.client(1)
    data = pattern(100_000)
    oid = there.put(data)
    target = bytearray(100_001)
    assert here.get_into(oid, target, ANTI_HANG) == 100_000
    assert target[:-1] == data
    assert into(here, oid) == "replica"
    scratch = here.buffer(100_000)
    assert here.get_into(oid, scratch, 0) == 100_000, "it is here now"
    assert bytes(memoryview(scratch)) == data


def test_what_does_not_fit_or_cannot_come_says_so(cluster: plasmon.LocalCluster) -> None:
    here, there = cluster.client(0), cluster.client(1)
    oid = there.put(pattern(100_000))
    scratch = here.buffer(100_000)
    with pytest.raises(plasmon.InvalidArgument, match=r"100000 bytes of data.* only 99999"):
        here.get_into(oid, memoryview(scratch)[1:], ANTI_HANG)
    with pytest.raises(plasmon.InvalidArgument, match="only 5"):
        here.get_into(oid, bytearray(5), ANTI_HANG)
    with pytest.raises(plasmon.TimedOut):
        here.get_into("never", scratch, 0.1)
    with pytest.raises(plasmon.ObjectNotFound):
        here.get_into("never", scratch, 0)
    with pytest.raises(TypeError, match="cannot be written"):
        here.get_into(oid, b"read-only" * 20_000, ANTI_HANG)
    with pytest.raises(plasmon.InvalidArgument, match="one piece"):
        here.get_into(oid, memoryview(bytearray(400_000))[::2], ANTI_HANG)
    assert here.get_into(oid, scratch, ANTI_HANG) == 100_000


def test_lent_memory_becomes_an_object_where_it_is(cluster: plasmon.LocalCluster) -> None:
    here, there = cluster.client(0), cluster.client(1)
    before = used(here)
    scratch = here.buffer(2 * MIB)
    lent = used(here) - before
    assert 2 * MIB <= lent <= 2 * MIB + 4096
    array = np.frombuffer(memoryview(scratch), np.float64).reshape(2, -1)
    array[:] = np.arange(array.size).reshape(2, -1)
    copied = here.status()["transfer"]["cpu_copied_bytes"]
    oid = here.put_from(array, name="moved")
    assert here.status()["transfer"]["cpu_copied_bytes"] == copied
    assert used(here) - before == lent, "it is where it was"
    assert "given up" in repr(scratch)
    with pytest.raises(BufferError, match="given up"):
        memoryview(scratch)
    for client in (here, there):
        got = client.get(oid, timeout=ANTI_HANG)
        assert got.shape == array.shape
        assert (got == np.arange(array.size).reshape(2, -1)).all()
        del got
    del array, scratch
    there.delete(oid)
    until("its memory is free", lambda: used(here) == before)


def test_a_part_of_it_becomes_an_object_and_the_rest_is_free(cluster: plasmon.LocalCluster) -> None:
    here = cluster.client(0)
    before = used(here)
    scratch = here.buffer(8 * MIB)
    data = pattern(MIB + 5)
    memoryview(scratch)[: MIB + 5] = data
    oid = here.put_from(memoryview(scratch)[: MIB + 5], digest=True)
    assert used(here) - before <= MIB + 4096
    assert bytes(here.get(oid)) == data
    here.get_buffers([oid])[0].verify()
    here.delete(oid)
    until("its memory is free", lambda: used(here) == before)


def test_what_is_refused_leaves_it_as_it_was(cluster: plasmon.LocalCluster) -> None:
    here = cluster.client(0)
    before = used(here)
    here.put(b"taken", name="taken")
    scratch = here.buffer(MIB)
    memoryview(scratch)[:5] = b"first"
    with pytest.raises(plasmon.ObjectExists):
        here.put_from(scratch, name="taken")
    memoryview(scratch)[:5] = b"later"
    oid = here.put_from(scratch)
    assert bytes(here.get(oid)[:5]) == b"later"
    with pytest.raises(plasmon.InvalidArgument):
        here.put_from(scratch)
    # Private objects come from private memory, or are copied.
    scratch = here.buffer(MIB, private=True)
    mine = here.put_from(scratch, private=True)
    assert next(info for info in here.list() if info.id == mine).private
    scratch = here.buffer(MIB)
    copied = here.put_from(scratch, private=True)
    for one in (oid, mine, copied, "taken"):
        here.delete(one)
    del scratch
    until("its memory is free", lambda: used(here) == before)


def test_small_ones_and_own_memory_are_copied(cluster: plasmon.LocalCluster) -> None:
    here = cluster.client(0)
    before = used(here)
    scratch = here.buffer(100)
    memoryview(scratch)[:] = b"x" * 100
    oid = here.put_from(scratch)
    assert here.get(oid) == b"x" * 100
    file = memfd(MIB)
    own = here.register(file)
    os.close(file)
    memoryview(own)[:3] = b"own"
    other = here.put_from(own)
    assert bytes(here.get(other)[:3]) == b"own"
    third = here.put_from(np.arange(5))
    assert (here.get(third) == np.arange(5)).all(), "as put does"
    here.delete([oid, other, third])
    del own, scratch
    until("its memory is free", lambda: used(here) == before)


def test_memory_counts_and_goes_with_its_views_and_its_client(cluster: plasmon.LocalCluster) -> None:
    here = cluster.client(0)
    before = used(here)
    here.set_options(quota=3 * MIB)
    first = memoryview(here.buffer(2 * MIB))
    with pytest.raises(plasmon.StoreFull, match="lend a buffer of 2097152 bytes"):
        here.buffer(2 * MIB)
    del first
    here.buffer(2 * MIB)
    here.set_options(quota=0)
    with pytest.raises(plasmon.ObjectTooLarge):
        here.buffer(1 << 40)
    with pytest.raises(plasmon.InvalidArgument):
        here.buffer(-1)
    other = plasmon.connect(cluster.sockets[0])
    kept = other.buffer(MIB)
    other.close()
    memoryview(kept)[0] = 1
    del kept
    until("its memory is free", lambda: used(here) == before)


@pytest.mark.parametrize("size", [0, 4096])
def test_files_that_would_not_stay_are_refused(cluster: plasmon.LocalCluster, size: int) -> None:
    here = cluster.client(0)
    file = memfd(size, seals=0)
    with pytest.raises(plasmon.InvalidArgument, match="F_SEAL_SHRINK"):
        here.register(file)
    os.close(file)
    with pytest.raises(plasmon.InvalidArgument, match="descriptor"):
        here.register(file)
    read, write = os.pipe()
    with pytest.raises(plasmon.InvalidArgument):
        here.register(read)
    os.close(read)
    os.close(write)
    assert json.dumps(here.status()), "the node is well"


def test_whoever_gives_up_gets_into_it_again(cluster: plasmon.LocalCluster) -> None:
    here, there = cluster.client(0), cluster.client(1)
    scratch = here.buffer(MIB)
    with pytest.raises(plasmon.TimedOut):
        here.get_into("not yet", scratch, 0.05)
    data = pattern(MIB)
    there.put(data, name="not yet")
    assert here.get_into("not yet", scratch, ANTI_HANG) == MIB
    assert bytes(memoryview(scratch)) == data
    there.delete("not yet")


def test_messages_use_blocks_of_a_size_that_fits(cluster: plasmon.LocalCluster) -> None:
    here, there = cluster.client(0), cluster.client(1)

    def lent() -> list[int]:
        pools = there.status()["fabric"]["pools"]
        assert all(pool["kept"] + pool["lent"] <= pool["blocks"] for pool in pools)
        return [pool["lent_ever"] for pool in pools]

    before = lent()
    for size in (10, 1000, 10_000):
        oid = there.put(b"x" * size)
        assert here.get(oid, timeout=ANTI_HANG) == b"x" * size
        there.delete(oid)
    assert all(now > then for now, then in zip(lent(), before, strict=True))
