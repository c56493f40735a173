"""Plasma's objects, made and got: the same on `plasmon.plasma` and on PyArrow's own, if that has it."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import ANTI_HANG, PLASMA_MEMORY, until

pytestmark = pytest.mark.filterwarnings("ignore:Plasma is deprecated:DeprecationWarning")

FOREVER_MS = int(ANTI_HANG * 1000)


def test_ids(plasma: ModuleType) -> None:
    one = plasma.ObjectID(b"\x01" * 20)
    assert one == plasma.ObjectID(b"\x01" * 20)
    assert hash(one) == hash(plasma.ObjectID(b"\x01" * 20))
    assert one != plasma.ObjectID(b"\x02" * 20)
    assert one != "something else"
    assert one is not None
    assert one.binary() == b"\x01" * 20
    assert repr(one) == str(one) == f"ObjectID({'01' * 20})"
    assert pickle.loads(pickle.dumps(one)) == one
    for wrong in (b"", b"\x01" * 19, b"\x01" * 21, "\x01" * 20, bytearray(20), 20, None):
        with pytest.raises(ValueError, match="20 bytes"):
            plasma.ObjectID(wrong)


def test_random_ids_differ_between_processes(plasma: ModuleType) -> None:
    program = f"import {plasma.__name__} as plasma; print(plasma.ObjectID.from_random().binary())"
    made = {subprocess.check_output([sys.executable, "-W", "ignore", "-c", program]) for _ in range(2)}
    assert len(made) == 2
    assert plasma.ObjectID.from_random() != plasma.ObjectID.from_random()


def test_create_write_seal_get(client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    oid = new_id()
    buffer = client.create(oid, 50)
    assert len(buffer) == buffer.size == 50
    assert buffer.is_mutable
    np.frombuffer(buffer, np.uint8)[:] = np.arange(50)
    assert client.seal(oid) is None
    for reader in (client, other):
        [data] = reader.get_buffers([oid])
        assert isinstance(data, pa.Buffer)
        assert not data.is_mutable
        assert data.to_pybytes() == bytes(range(50))
        with pytest.raises(TypeError):
            data[0] = 1
        with pytest.raises(IndexError):
            data[50]


@pytest.mark.parametrize("size", [0, 1, 999, 64 << 10, (64 << 10) + 1, 3 << 20])
def test_sizes(client: Any, new_id: Callable[[], Any], size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    ways = [new_id(), new_id(), new_id()]
    pa.FixedSizeBufferWriter(client.create(ways[0], size)).write(data)
    client.seal(ways[0])
    client.create_and_seal(ways[1], data)
    assert client.put_raw_buffer(memoryview(data), ways[2]) == ways[2]
    assert [buffer.to_pybytes() for buffer in client.get_buffers(ways)] == [data] * 3


def test_metadata(client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    for size in (0, 1, 7, 1000, 4000):
        metadata = os.urandom(size)
        created, made, put = new_id(), new_id(), new_id()
        client.create(created, 3, bytearray(metadata))
        client.seal(created)
        client.create_and_seal(made, b"abc", metadata)
        client.put_raw_buffer(b"abc", put, metadata=metadata)
        ids = [created, made, put]
        assert [buffer.to_pybytes() for buffer in other.get_metadata(ids)] == [metadata] * 3
        assert [pair[0] for pair in other.get_buffers(ids, with_meta=True)] == [metadata] * 3
        assert [pair[1].size for pair in other.get_buffers(ids, with_meta=True)] == [3] * 3
    with pytest.raises(TypeError):
        client.create(new_id(), 1, "text")
    with pytest.raises(TypeError):
        client.create_and_seal(new_id(), "text")


@pytest.mark.parametrize("size", [64 << 10, (64 << 10) + 1, 10**7, 2 * 10**7])
def test_large_metadata(client: Any, other: Any, new_id: Callable[[], Any], size: int) -> None:
    metadata = np.random.default_rng(size).bytes(size)
    created, made = new_id(), new_id()
    buffer = client.create(created, 3, metadata)
    assert other.list()[created]["metadata_size"] == size
    pa.FixedSizeBufferWriter(buffer).write(b"abc")
    client.seal(created)
    client.create_and_seal(made, b"abc", metadata)
    for oid in (created, made):
        [(got, data)] = other.get_buffers([oid], with_meta=True)
        assert (got, data.to_pybytes()) == (metadata, b"abc")
        assert other.get_metadata([oid])[0].to_pybytes() == metadata
        assert [other.list()[oid][key] for key in ("data_size", "metadata_size")] == [3, size]
    assert client.hash(created) == client.hash(made)
    del buffer, data
    until("its uses to end", lambda: other.list()[made]["ref_count"] == 0)
    assert client.evict(1) == size + 3


def test_an_id_is_taken_from_its_creation_on(
    plasma: ModuleType, client: Any, other: Any, new_id: Callable[[], Any]
) -> None:
    oid = new_id()
    client.create(oid, 10)
    for _ in range(2):
        for creator in (client, other):
            with pytest.raises(plasma.PlasmaObjectExists):
                creator.create(oid, 10)
            with pytest.raises(plasma.PlasmaObjectExists):
                creator.create_and_seal(oid, b"")
            with pytest.raises(plasma.PlasmaObjectExists):
                creator.put_raw_buffer(b"x", oid)
            with pytest.raises(plasma.PlasmaObjectExists):
                creator.put(1, oid)
        if not other.contains(oid):
            client.seal(oid)
    assert issubclass(plasma.PlasmaObjectExists, pa.lib.ArrowException)
    assert issubclass(plasma.PlasmaObjectNotFound, pa.lib.ArrowException)
    assert issubclass(plasma.PlasmaStoreFull, pa.lib.ArrowException)


def test_seal_is_for_what_the_client_creates(
    plasma: ModuleType, client: Any, other: Any, new_id: Callable[[], Any]
) -> None:
    oid = new_id()
    with pytest.raises(plasma.PlasmaObjectNotFound):
        client.seal(oid)
    buffer = client.create(oid, 10)
    with pytest.raises(plasma.PlasmaObjectNotFound):
        other.seal(oid)
    client.seal(oid)
    with pytest.raises(TypeError) as sealed:
        client.seal(oid)
    assert isinstance(sealed.value, pa.lib.ArrowException)
    del buffer
    with pytest.raises(plasma.PlasmaObjectNotFound):
        client.seal(oid)


def test_a_creation_lives_without_its_buffer(client: Any, new_id: Callable[[], Any]) -> None:
    ids = [new_id() for _ in range(300)]
    for oid in ids:
        client.create(oid, 5, b"meta")
    gc.collect()
    for oid in ids:
        client.seal(oid)
    assert [pair[0] for pair in client.get_buffers(ids, with_meta=True)] == [b"meta"] * 300


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_the_buffer_of_a_creation_can_be_read_after_the_seal(
    client: Any, new_id: Callable[[], Any], size: int
) -> None:
    oid, data = new_id(), os.urandom(size)
    buffer = client.create(oid, size)
    pa.FixedSizeBufferWriter(buffer).write(data)
    client.seal(oid)
    view = np.frombuffer(buffer, np.uint8)
    del buffer
    assert client.list()[oid]["ref_count"] == 1
    assert client.evict(PLASMA_MEMORY) == 0
    # Whatever else comes into the store does not come here.
    for _ in range(8):
        client.create_and_seal(new_id(), bytes(PLASMA_MEMORY // 4))
    assert client.contains(oid)
    assert view.tobytes() == data
    del view
    until("its use to end", lambda: client.list()[oid]["ref_count"] == 0)


def test_get_within_a_time(client: Any, new_id: Callable[[], Any]) -> None:
    ids = [new_id() for _ in range(20)]
    for timeout in (0, 10, 200):
        assert client.get_buffers(ids, timeout_ms=timeout) == [None] * 20
    assert client.get_buffers(ids[:1], timeout_ms=0) == [None]
    for oid in ids[::2]:
        client.create_and_seal(oid, oid.binary(), b"meta")
    for timeout in (0, 10, 200):
        there = [None if place % 2 else oid.binary() for place, oid in enumerate(ids)]
        buffers = client.get_buffers(ids, timeout)
        assert [buffer and buffer.to_pybytes() for buffer in buffers] == there
        pairs = client.get_buffers(ids, timeout, with_meta=True)
        assert pairs[1] == (None, None)
        assert pairs[0][0] == b"meta"
        metadata = client.get_metadata(ids, timeout)
        assert metadata[1] is None
        assert metadata[0].to_pybytes() == b"meta"
    assert client.get_buffers([], 0) == client.get_metadata([]) == client.get([]) == []
    twice = client.get_buffers([ids[0], ids[0], ids[1]], 0)
    assert twice[0].equals(twice[1])
    assert twice[2] is None


def test_get_is_for_ids(client: Any) -> None:
    with pytest.raises(TypeError):
        client.get_buffers(["x" * 20], 0)
    with pytest.raises(TypeError):
        client.get_buffers([b"x" * 20], 0)
    with pytest.raises(TypeError):
        client.contains(b"x" * 20)
    with pytest.raises(TypeError):
        client.delete(client)


def test_what_is_not_sealed_cannot_be_got(client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    oid = new_id()
    client.create(oid, 10, b"metadata")
    for reader in (client, other):
        assert reader.get_buffers([oid], timeout_ms=0, with_meta=True) == [(None, None)]
        assert reader.get_buffers([oid], timeout_ms=1) == [None]
    client.seal(oid)
    assert client.get_buffers([oid], timeout_ms=0)[0].size == 10


def test_get_waits_for_seals(plasma: ModuleType, client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    ids = [new_id() for _ in range(10)]
    values: list[Any] = []
    waiting = threading.Thread(target=lambda: values.extend(other.get(ids, FOREVER_MS)))
    waiting.start()
    for number, oid in enumerate(ids):
        client.put(number, oid)
    waiting.join(ANTI_HANG)
    assert values == list(range(10))
    late = new_id()
    waiting = threading.Thread(target=lambda: values.append(other.get(late)))
    waiting.start()
    waiting.join(0.05)
    client.put("late", late)
    waiting.join(ANTI_HANG)
    assert values[10] == "late"


def test_a_client_cannot_be_pickled_nor_copied(client: Any) -> None:
    for made in (lambda: pickle.dumps({"client": client}), lambda: copy.copy(client)):
        with pytest.raises(TypeError, match="no default __reduce__ due to non-trivial __cinit__"):
            made()
