"""Tests of values in memory: where they lie, how long they stay, and who may write to them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import plasmon
import pyarrow as pa
import pytest
from conftest import held, until

MEBI = 1 << 20


def pinned(client: plasmon.Client) -> int:
    gc.collect()
    return held(client)


def mapping_of(address: int) -> str:
    """Line of /proc/self/maps in which an address lies."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, end = (int(part, 16) for part in line.split()[0].split("-"))
            if start <= address < end:
                return line
    raise AssertionError(f"nothing is mapped at {address:#x}")


def test_the_same_object_lies_at_one_place(near: plasmon.Client) -> None:
    oid = near.put(b"x" * MEBI)
    first, second = near.get_buffers([oid, oid])
    assert first.address == second.address
    assert first.id == second.id == oid
    assert len(first) == MEBI


def test_arrays_lie_in_the_memory_of_the_node(near: plasmon.Client) -> None:
    for array in [np.arange(MEBI), np.asfortranarray(np.ones((100, 100)))]:
        oid = near.put(array)
        value = near.get(oid)
        assert value.ctypes.data == near.get_buffers([oid])[0].address
        line = mapping_of(value.ctypes.data)
        assert line.split()[1] == "r--s"
        assert "memfd" in line
        del value


def test_copies_can_be_written_to_and_pin_nothing(near: plasmon.Client) -> None:
    before = pinned(near)
    read_only = np.arange(3.0)
    read_only.flags.writeable = False
    base = np.arange(8)
    values: list[Any] = [
        np.arange(MEBI),
        np.asfortranarray(np.ones((3, 5)))[:, ::2],
        {"a": np.arange(5), "nested": [read_only]},
        {"base": base, "view": base[2:4]},
        np.arange(0),
    ]
    for value in values:
        oid = near.put(value)
        for copy in (near.get(oid, copy=True), near.get([oid], copy=True)[0]):
            arrays = [copy] if isinstance(copy, np.ndarray) else [*copy.values()]
            for array in arrays:
                array = array[0] if isinstance(array, list) else array
                assert array.flags.writeable
                array += 1
        np.testing.assert_equal(near.get(oid), value)
    assert copy.nbytes == 0
    shared = near.get(near.put(values[3]), copy=True)
    shared["base"][2] = 77
    assert shared["view"][0] == 77
    assert pinned(near) == before


def test_copies_of_bytes_and_of_tables(near: plasmon.Client) -> None:
    before = pinned(near)
    oid, empty, name = near.put(b"abc"), near.put(b""), "copied"
    near.put(pa.table({"number": np.arange(MEBI)}), name=name)
    copied = near.get(oid, copy=True)
    assert type(copied) is bytearray
    copied[0] = 0
    assert (near.get(oid), near.get(empty, copy=True)) == (b"abc", b"")
    for wanted in (bytes, bytearray, memoryview):
        assert near.get(oid, type=wanted, copy=True) == b"abc"
    assert near.get(oid, type=str, copy=True) == "abc"
    assert near.get(["absent", oid], default=None, copy=True) == [None, b"abc"]
    with pytest.raises(plasmon.WrongType, match="bytearray, not int"):
        near.get(oid, type=int, copy=True)
    table = near.get(name, copy=True)
    assert table["number"][5].as_py() == 5
    assert pinned(near) == before
    near.delete([oid, empty, name])


@pytest.mark.parametrize("is_far", [False, True])
def test_copies_of_tables_within_values_pin_nothing(
    near: plasmon.Client, far: plasmon.Client, is_far: bool
) -> None:
    table, client = pa.table({"number": np.arange(MEBI)}), far if is_far else near
    value = {"tables": [table, table.slice(5, 3)], "array": pa.array([1, None]), "plain": np.arange(3.0)}
    oid = near.put(value)
    before = pinned(client)
    for got in (client.get(oid, copy=True), client.get([oid], copy=True)[0]):
        assert pinned(client) == before
        assert [one.equals(of) for one, of in zip(got["tables"], value["tables"], strict=True)] == [True] * 2
        assert got["array"].equals(value["array"])
        got["plain"] += 1
        numbers = np.frombuffer(got["tables"][0]["number"].chunk(0).buffers()[1], np.int64)
        assert "memfd" not in mapping_of(numbers.ctypes.data)
        near.delete(oid)
        assert numbers[7] == 7
        near.put(value, id=oid)
    assert pinned(near) == 0


def test_columns_lie_in_the_memory_of_the_node(near: plasmon.Client) -> None:
    oid = near.put(pa.table({"number": np.arange(MEBI)}))
    buffer = near.get_buffers([oid])[0]
    inside = range(buffer.address, buffer.address + len(buffer))
    column = near.get(oid)["number"].chunk(0)
    assert column.buffers()[1].address in inside
    assert not column.buffers()[1].is_mutable
    numbers = column.to_numpy(zero_copy_only=True)
    del column, buffer
    assert numbers.sum() == sum(range(MEBI))


@pytest.mark.parametrize("size", [100, MEBI])
def test_a_value_is_pinned_as_long_as_any_part_of_it_lives(near: plasmon.Client, size: int) -> None:
    oid = near.put(np.arange(size))
    assert pinned(near) == 0
    value = near.get(oid)
    part = value[10:20]
    view = memoryview(part)
    assert pinned(near) == 1
    del value
    assert pinned(near) == 1
    del part
    assert pinned(near) == 1
    assert view.tolist() == list(range(10, 20))
    view.release()
    del view
    assert pinned(near) == 0


def test_a_value_outlives_its_id_and_its_client(cluster: plasmon.LocalCluster, near: plasmon.Client) -> None:
    with cluster.connect(0) as client:
        oid = client.put(b"kept" * MEBI)
        value = client.get(oid)
    assert near.delete(oid)
    assert not near.contains(oid)
    for _ in range(20):  # These objects would overwrite it, if its memory were free.
        near.delete(near.put(b"\0" * (8 * MEBI)))
    assert value == b"kept" * MEBI
    assert near.status()["objects"]["doomed"] == 1
    del value
    until("the memory to be given back", lambda: near.status()["objects"]["doomed"] == 0)


def test_an_id_can_be_pinned_in_two_lives(near: plasmon.Client) -> None:
    near.put(b"first", id="reborn")
    first = near.get("reborn")
    near.delete("reborn")
    near.put(b"second", id="reborn")
    second = near.get("reborn")
    assert (bytes(first), bytes(second)) == (b"first", b"second")
    assert pinned(near) == 2
    del second
    assert bytes(first) == b"first"
    assert pinned(near) == 1
    del first
    near.delete("reborn")


@pytest.mark.parametrize("size", [0, 100, 5 * MEBI])
def test_creations(near: plasmon.Client, reader: plasmon.Client, size: int) -> None:
    oid = plasmon.ObjectId.random()
    creation = near.create(oid, size, b"meta")
    assert (creation.id, len(creation)) == (oid, size)
    view = memoryview(creation)
    assert not view.readonly
    view[:] = b"w" * size
    assert not near.contains(oid)
    creation.seal()
    assert near.contains(oid)
    assert reader.get(oid, timeout=30) == b"w" * size
    assert reader.get_buffers([oid])[0].metadata == b"meta"
    with pytest.raises(BufferError, match="sealed or aborted"):
        memoryview(creation)
    if size:
        assert mapping_of(creation.address).split()[1].startswith("r--")


def test_creations_can_be_ended_by_id(near: plasmon.Client) -> None:
    creation = near.create("by id", 3)
    memoryview(creation)[:] = b"abc"
    near.seal("by id")
    assert near.get("by id") == b"abc"
    near.delete("by id")
    other = near.create("by id", 3)
    near.abort("by id")
    assert not near.contains("by id")
    for finished in [creation, other]:
        with pytest.raises(plasmon.InvalidArgument, match="sealed or aborted already"):
            finished.seal()
        with pytest.raises(plasmon.InvalidArgument, match="sealed or aborted already"):
            finished.abort()
    with pytest.raises(plasmon.InvalidArgument, match="not creating"):
        near.seal("by id")


def test_what_is_not_sealed_never_was(near: plasmon.Client) -> None:
    with pytest.raises(ZeroDivisionError), near.create("never", MEBI):
        _ = 1 / 0
    near.create("never", MEBI).abort()
    near.create("never", MEBI)  # Dropped at once.
    with near.create("never", 1) as creation:
        creation.abort()
    assert not near.contains("never")
    near.create("never", 1).seal()
    near.delete("never")


WRITE_AFTER_SEAL = """
import sys, plasmon
client = plasmon.connect(sys.argv[1])
creation = client.create(plasmon.ObjectId.random(), int(sys.argv[2]))
view = memoryview(creation)
view[0] = 1
creation.seal()
print("sealed", flush=True)
view[0] = 2
print("written")
"""


@pytest.mark.parametrize("size", [10, MEBI])
def test_writing_through_an_old_view_ends_the_writer(
    cluster: plasmon.LocalCluster, near: plasmon.Client, size: int
) -> None:
    command = [sys.executable, "-c", WRITE_AFTER_SEAL, cluster.sockets[0], str(size)]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert result.stdout == "sealed\n"
    assert result.returncode == -signal.SIGSEGV


WRITE_TO_ADDRESS = """
import ctypes, sys, plasmon
client = plasmon.connect(sys.argv[1])
creation = client.create(plasmon.ObjectId.random(), int(sys.argv[2]))
address = creation.address
ctypes.memset(address, 1, 1)
creation.seal()
print("sealed", flush=True)
ctypes.memset(address, 2, 1)
print("written")
"""


@pytest.mark.parametrize("size", [10, MEBI])
def test_writing_to_an_old_address_ends_the_writer(cluster: plasmon.LocalCluster, size: int) -> None:
    command = [sys.executable, "-c", WRITE_TO_ADDRESS, cluster.sockets[0], str(size)]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert result.stdout == "sealed\n"
    assert result.returncode == -signal.SIGSEGV


@pytest.mark.parametrize("size", [10, MEBI])
def test_a_creation_without_views_has_no_address_after_its_seal(near: plasmon.Client, size: int) -> None:
    creation = near.create("no views", size)
    memoryview(creation)[:] = b"v" * size
    creation.seal()
    with pytest.raises(plasmon.InvalidArgument, match="sealed or aborted"):
        _ = creation.address
    assert (len(creation), near.get("no views")) == (size, b"v" * size)
    near.delete("no views")


@pytest.mark.parametrize("size", [10, MEBI])
def test_old_views_stand_in_nobodys_way(near: plasmon.Client, size: int) -> None:
    views = []
    for way in range(4):
        creation = near.create("viewed", size)
        view = np.frombuffer(memoryview(creation), np.uint8)
        view[:] = way
        if way % 2:
            creation.abort()
        else:
            creation.seal()
            assert near.get("viewed") == bytes([way]) * size
            near.delete("viewed")
        views.append(view)
        # The next objects may lie where this one lay, of which there is a view.
        for value in (b"p" * size, b"q" * (2 * size)):
            oid = near.put(value)
            assert near.get(oid) == value
            near.delete(oid)
    assert all(mapping_of(view.ctypes.data).split()[1].startswith("r--") for view in views)
    last = np.frombuffer(memoryview(near.create("viewed", size)), np.uint8)
    last[:] = 7
    views.clear()
    last[:] = 8


def test_views_cannot_be_written(near: plasmon.Client) -> None:
    value: Any = near.get(near.put(b"constant"))
    with pytest.raises(TypeError, match="does not support item assignment"):
        value[0] = 1
    with pytest.raises(TypeError, match="read-only"):
        memoryview(value)[0] = 1
    buffer: Any = near.get_buffers([near.put(b"constant")])[0]
    with pytest.raises((BufferError, TypeError, ValueError)):
        np.frombuffer(buffer, np.uint8).flags.writeable = True


def test_a_client_that_dies_leaves_neither_pins_nor_creations(
    cluster: plasmon.LocalCluster, near: plasmon.Client
) -> None:
    near.put(b"held", id="held by the dead")
    script = (
        "import sys, os, plasmon\n"
        "client = plasmon.connect(sys.argv[1])\n"
        "value = client.get('held by the dead')\n"
        "creation = client.create('half', 1 << 20)\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, cluster.sockets[0]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        status = near.status()["objects"]
        assert (status["pinned"], status["unsealed"]) == (1, 1)
        os.kill(child.pid, signal.SIGKILL)
    until("pins to go", lambda: near.status()["objects"]["pinned"] == 0)
    until("creations to go", lambda: near.status()["objects"]["unsealed"] == 0)
    near.delete("held by the dead")
