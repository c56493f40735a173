"""Plasma's other calls and its news: the same on `plasmon.plasma` and on PyArrow's own, if that has it."""

from __future__ import annotations

import gc
import os
import select
import struct
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import ANTI_HANG, PLASMA_MEMORY, until

pytestmark = pytest.mark.filterwarnings("ignore:Plasma is deprecated:DeprecationWarning")


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

    # Only objects that are sealed and not in use are evicted.
    two, used = created(999)
    three, buffer = created(998)
    client.seal(three)
    del buffer
    assert client.evict(1000) == 1000
    client.seal(two)
    assert client.evict(1000) == 0
    del used
    assert client.evict(1) == 1001

    # Evicted objects have as many bytes as were asked for.
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
    # The release by one client and the question of the other reach the store on two connections.
    until("what was let go of is deleted", lambda: not client.contains(ids[0]))
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
    # A socket and `get_next_notification` get the same notifications.
    assert other.get_next_notification() == (ids[0], -1, -1)


def test_what_a_client_says_of_the_store(client: Any, store: str) -> None:
    assert client.store_socket_name == store
    assert client.store_capacity() == PLASMA_MEMORY
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
    # Sealed objects can be read after disconnect(); unsealed ones are gone.
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
