"""Tests of Plasma's client, which run on `plasmon.plasma`, and on PyArrow's own if it is installed."""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import ANTI_HANG, until

pytestmark = [
    pytest.mark.filterwarnings("ignore:Plasma is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'serialization_context':FutureWarning"),
]

MEMORY = 10**8
FOREVER_MS = int(ANTI_HANG * 1000)


@pytest.fixture(params=["plasmon.plasma", "pyarrow.plasma"], scope="module")
def plasma(request: pytest.FixtureRequest) -> ModuleType:
    try:
        return importlib.import_module(request.param)
    except ModuleNotFoundError:
        if request.param == "plasmon.plasma":
            raise
        pytest.skip("this PyArrow has no Plasma any more: version 11 has")


@pytest.fixture(scope="module")
def store(plasma: ModuleType) -> Iterator[str]:
    with plasma.start_plasma_store(MEMORY) as (socket, process):
        yield socket
        assert process.poll() is None


@pytest.fixture
def client(plasma: ModuleType, store: str) -> Iterator[Any]:
    client = plasma.connect(store)
    yield client
    gc.collect()
    client.delete(list(client.list()))
    client.disconnect()


@pytest.fixture
def other(plasma: ModuleType, store: str) -> Iterator[Any]:
    """Second client."""
    other = plasma.connect(store)
    yield other
    gc.collect()
    other.disconnect()


@pytest.fixture
def new_id(plasma: ModuleType) -> Callable[[], Any]:
    from_random: Callable[[], Any] = plasma.ObjectID.from_random
    return from_random


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
    assert client.evict(MEMORY) == 0
    # Other objects of the store are not in this result.
    for _ in range(8):
        client.create_and_seal(new_id(), bytes(MEMORY // 4))
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


VALUES = [
    None,
    True,
    -1,
    1 << 70,
    0.5,
    "text",
    b"bytes",
    b"",
    [],
    ["hello", 3, 1.0, None],
    (1, (2,)),
    {"a": [1, {"b": b"c"}]},
    {1, 2},
]


def test_values_come_back_as_they_were(plasma: ModuleType, client: Any, other: Any) -> None:
    ids = [client.put(value) for value in VALUES]
    got = other.get(ids)
    assert got == VALUES
    assert [type(value) for value in got] == [type(value) for value in VALUES]
    assert client.get(ids[5]) == "text"
    assert client.get((ids[5],)) == ["text"]
    oid = plasma.ObjectID.from_random()
    assert client.put([1], oid) == oid
    missing = plasma.ObjectID.from_random()
    assert client.get(missing, 0) is plasma.ObjectNotAvailable
    assert client.get([oid, missing], timeout_ms=10) == [[1], plasma.ObjectNotAvailable]


def test_arrays_are_read_in_place(client: Any, other: Any) -> None:
    array = np.random.default_rng(1).random((100, 300))
    oid = client.put(array)
    got = other.get(oid)
    assert (got == array).all()
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert not got.flags.writeable
    assert not got.flags.owndata
    assert other.list()[oid]["ref_count"] == 1
    part = got[3:5]
    del got
    assert other.list()[oid]["ref_count"] == 1
    assert (part == array[3:5]).all()
    del part
    until("its use to end", lambda: other.list()[oid]["ref_count"] == 0)
    nested = {"x": [array, {"y": array[:3].T}], "z": np.array(["a", None], object)}
    got = other.get(client.put(nested))
    assert (got["x"][0] == array).all()
    assert (got["x"][1]["y"] == array[:3].T).all()
    assert list(got["z"]) == ["a", None]
    assert not got["x"][0].flags.owndata


def test_arrow_data(client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    table = pa.table({"number": list(range(1000)), "text": [str(n) for n in range(1000)]})
    assert other.get(client.put(table)).equals(table)
    [batch] = table.to_batches()
    assert other.get(client.put(batch)).equals(batch)
    assert other.get(client.put(pa.py_buffer(b"raw"))).to_pybytes() == b"raw"
    assert other.get(client.put(table["number"].chunk(0))).equals(table["number"].chunk(0))

    # Programs do this by hand: they write into the buffer, and read in place.
    oid, counter = new_id(), pa.MockOutputStream()
    for sink in (counter, None):
        sink = sink or pa.FixedSizeBufferWriter(client.create(oid, counter.size()))
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write(table)
    client.seal(oid)
    del sink, writer
    [buffer] = other.get_buffers([oid])
    reader = pa.ipc.open_stream(buffer)
    read = reader.read_all()
    del buffer, reader
    assert client.evict(MEMORY) >= 0
    assert other.list()[oid]["ref_count"] == 1
    assert read.equals(table)

    tensor = pa.Tensor.from_numpy(np.arange(24.0).reshape(4, 6))
    oid = new_id()
    sink = pa.FixedSizeBufferWriter(client.create(oid, pa.ipc.get_tensor_size(tensor)))
    pa.ipc.write_tensor(tensor, sink)
    client.seal(oid)
    assert pa.ipc.read_tensor(pa.BufferReader(other.get_buffers([oid])[0])).equals(tensor)


def test_frames_of_pandas(client: Any, other: Any) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"number": range(100), "text": list("abcd") * 25})
    pandas.testing.assert_frame_equal(other.get(client.put(frame)), frame)


class Custom:
    def __init__(self, value: object) -> None:
        self.value = value


@pytest.mark.skipif(not hasattr(pa.lib, "SerializationContext"), reason="this PyArrow has no such contexts")
def test_serialization_contexts(client: Any, other: Any) -> None:
    context = pa.lib.SerializationContext()
    context.register_type(Custom, "Custom")
    value = Custom([1, Custom(np.arange(1000))])
    oid = client.put(value, None, serialization_context=context)
    with pytest.raises(pa.ArrowSerializationError):
        other.get(oid)
    got = other.get(oid, -1, serialization_context=context)
    assert got.value[0] == 1
    assert (got.value[1].value == np.arange(1000)).all()

    context.register_type(
        Custom,
        "Custom",
        custom_serializer=lambda it: [it.value],
        custom_deserializer=lambda it: Custom(it[0]),
    )
    oid = client.put({"a": Custom(3)}, serialization_context=context)
    assert other.get([oid], serialization_context=context)[0]["a"].value == 3


def test_contains(client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    sealed, unsealed, absent = new_id(), new_id(), new_id()
    client.create_and_seal(sealed, b"x")
    client.create(unsealed, 1)
    assert [other.contains(oid) for oid in (sealed, unsealed, absent)] == [True, False, False]
    assert [client.contains(oid) for oid in (sealed, unsealed, absent)] == [True, True, False]


def test_hash(plasma: ModuleType, client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    missing = new_id()
    with pytest.raises(plasma.PlasmaObjectNotFound):
        client.hash(missing)
    client.create(missing, 1)
    with pytest.raises(plasma.PlasmaObjectNotFound):
        client.hash(missing)

    def stored(data: bytes, metadata: bytes) -> Any:
        oid = new_id()
        client.create_and_seal(oid, data, metadata)
        return oid

    data, metadata = os.urandom(2000), os.urandom(1000)
    changed = bytes([data[0] ^ 1]) + data[1:]
    contents = [(data, metadata), (changed, metadata), (changed, metadata[1:]), (data, b"")]
    contents += [(bytes(length), b"") for length in range(200)]
    hashes = [client.hash(stored(*content)) for content in contents]
    assert len(set(hashes)) == len(contents)
    assert {len(digest) for digest in hashes} == {8}
    assert [other.hash(stored(*content)) for content in contents] == hashes


def test_evict(client: Any, new_id: Callable[[], Any]) -> None:
    def created(size: int) -> tuple[Any, Any]:
        oid = new_id()
        return oid, client.create(oid, size, b"md")

    one, buffer = created(1000)
    assert client.evict(1) == 0
    client.seal(one)
    assert client.evict(1) == 0
    del buffer
    assert client.evict(1) == 1002
    assert not client.contains(one)

    # Only sealed objects that are not in use are evicted.
    two, used = created(999)
    three, buffer = created(998)
    client.seal(three)
    del buffer
    assert client.evict(1000) == 1000
    client.seal(two)
    assert client.evict(1000) == 0
    del used
    assert client.evict(1) == 1001

    # As many objects are evicted as needed.
    ids = [new_id() for _ in range(3)]
    for oid in ids:
        client.create_and_seal(oid, bytes(1000))
    assert client.evict(2000) == 2000
    assert [client.contains(oid) for oid in ids] == [False, False, True]


def test_evict_takes_what_is_empty_on_its_way(client: Any, new_id: Callable[[], Any]) -> None:
    sizes = [(0, 0), (0, 0), (1000, 200_000), (5, 0), (0, 0)]
    ids = [new_id() for _ in sizes]
    for oid, (size, metadata_size) in zip(ids, sizes, strict=True):
        client.create_and_seal(oid, bytes(size), bytes(metadata_size))
    assert client.evict(1) == 201_000
    assert [client.contains(oid) for oid in ids] == [False, False, False, True, True]
    assert client.evict(100) == 5
    assert not any(client.contains(oid) for oid in ids)
    client.create_and_seal(ids[0], b"")
    assert client.evict(1) == 0
    assert not client.contains(ids[0])


def test_delete(client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    ids = [new_id() for _ in range(100)]
    for oid in ids:
        client.create_and_seal(oid, oid.binary())
    kept = other.get_buffers(ids[:1])[0]
    assert client.delete([*ids, new_id()]) is None
    assert not any(client.contains(oid) for oid in ids[1:])
    assert kept.to_pybytes() == ids[0].binary()
    del kept
    assert not client.contains(ids[0])
    client.create_and_seal(ids[0], b"anew")
    assert other.get_buffers(ids[:1])[0].to_pybytes() == b"anew"
    with pytest.raises(TypeError):
        client.delete(ids[0])


def test_list(client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    before = time.time()
    oid = new_id()
    buffer = client.create(oid, 11, b"1234567")
    after = time.time()
    entry = other.list()[oid]
    assert (entry["data_size"], entry["metadata_size"]) == (11, 7)
    assert (entry["state"], entry["ref_count"], entry["construct_duration"]) == ("created", 1, -1)
    assert before - 2 <= entry["create_time"] <= after + 2
    client.seal(oid)
    entry = other.list()[oid]
    assert (entry["state"], entry["ref_count"]) == ("sealed", 1)
    assert 0 <= entry["construct_duration"] <= ANTI_HANG
    del buffer
    until("its use to end", lambda: other.list()[oid]["ref_count"] == 0)
    held = [client.get_buffers([oid]), other.get_buffers([oid])]
    assert other.list()[oid]["ref_count"] == 2
    del held
    assert set(other.list()) == {oid}


def test_how_long_a_creation_took(client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    oid, before = new_id(), time.time()
    client.create(oid, 1)
    created = time.time()
    until("a second to pass", lambda: time.time() > created + 1.1)
    client.seal(oid)
    entry = other.list()[oid]
    assert 1 <= entry["construct_duration"] <= ANTI_HANG
    assert before - 2 <= entry["create_time"] <= created + 2


def test_notifications(client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    existing = new_id()
    client.create_and_seal(existing, b"12345", b"md")
    other.subscribe()
    assert other.get_next_notification() == (existing, 5, 2)
    ids = [new_id() for _ in range(2000)]
    for size, oid in enumerate(ids):
        client.create_and_seal(oid, bytes(size % 50), bytes(size % 7))
    assert [other.get_next_notification() for _ in ids] == [
        (oid, size % 50, size % 7) for size, oid in enumerate(ids)
    ]
    client.delete(ids[:10])
    assert {other.get_next_notification() for _ in range(10)} == {(oid, -1, -1) for oid in ids[:10]}
    assert client.evict(1) == 7
    assert other.get_next_notification() == (existing, -1, -1)


def test_notifications_on_a_socket(client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    with pytest.raises((OSError, ValueError), match=r"subscribe|negative"):
        other.get_notification_socket()
    with pytest.raises(OSError, match=r"subscribe|Failed to read"):
        other.get_next_notification()
    other.subscribe()
    socket = other.get_notification_socket()
    assert select.select([socket], [], [], 0)[0] == []
    ids = [new_id() for _ in range(1000)]
    for size, oid in enumerate(ids):
        client.create_and_seal(oid, bytes(size % 50), bytes(size % 7))
    for size, oid in enumerate(ids):
        assert select.select([socket], [], [], ANTI_HANG)[0] == [socket]
        (length,) = struct.unpack("L", socket.recv(8))
        content = socket.recv(length)
        assert other.decode_notifications(content) == ([oid], [size % 50], [size % 7])
    client.delete(ids[:1])
    # Both ways read the same notifications.
    assert other.get_next_notification() == (ids[0], -1, -1)


def test_what_a_client_says_of_the_store(client: Any, store: str) -> None:
    assert client.store_socket_name == store
    assert client.store_capacity() == MEMORY
    before = client.debug_string()
    oid = client.put_raw_buffer(bytes(1 << 20))
    assert client.debug_string() != before
    client.set_client_options("", 1 << 20)
    del oid


def test_a_quota_limits_what_a_client_creates(plasma: ModuleType, other: Any) -> None:
    other.set_client_options("limited", 1 << 20)
    other.put_raw_buffer(bytes(1000))
    with pytest.raises(plasma.PlasmaStoreFull):
        other.put_raw_buffer(bytes(2 << 20))


def test_connections(plasma: ModuleType, store: str, client: Any, new_id: Callable[[], Any]) -> None:
    with pytest.raises(OSError, match="nobody-listens-here"):
        plasma.connect("/tmp/nobody-listens-here", num_retries=1)
    # Buffers can be read after disconnect(). Unsealed objects are gone.
    leaving = plasma.connect(store)
    oid, unsealed = leaving.put(np.arange(10_000)), new_id()
    array, buffer = leaving.get(oid), leaving.create(unsealed, 10)
    assert unsealed in client.list()
    leaving.disconnect()
    leaving.disconnect()
    assert (leaving.store_socket_name, leaving.store_capacity()) == (store, client.store_capacity())
    with pytest.raises(OSError, match=r"closed|Bad file"):
        leaving.contains(new_id())
    with pytest.raises(OSError, match=r"closed|Bad file"):
        leaving.get_buffers([new_id()], 0)
    assert (array == np.arange(10_000)).all()
    until("what is not sealed to go", lambda: unsealed not in client.list())
    del buffer


def test_values_outlive_their_client(plasma: ModuleType, store: str) -> None:
    client = plasma.connect(store)
    array = client.get(client.put(np.arange(10_000)))
    del client
    gc.collect()
    assert (array == np.arange(10_000)).all()
