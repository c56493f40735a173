"""Tests of Plasma's store: what it drops when it is full, and how it is started and ended."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import plasmon.plasma
import pyarrow as pa
import pytest
from conftest import ANTI_HANG, PLASMA_MEMORY, until

pytestmark = pytest.mark.filterwarnings("ignore:Plasma is deprecated:DeprecationWarning")

PERCENT = PLASMA_MEMORY // 100
MARGIN = 9000
"""Bytes by which an object may be too large, so that bookkeeping does not matter."""


@pytest.fixture
def store(plasma: ModuleType) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A store that must live until the end of the test, and then end at once when asked to."""
    with plasma.start_plasma_store(plasma_store_memory=PLASMA_MEMORY) as (socket, process):
        yield socket, process
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(ANTI_HANG) == 0
    assert not os.path.exists(os.path.dirname(socket))


@pytest.fixture
def client(plasma: ModuleType, store: tuple[str, subprocess.Popen[bytes]]) -> Any:
    return plasma.connect(store[0])


def created(plasma: ModuleType, client: Any, size: int) -> tuple[Any, Any]:
    """Creates and seals a new object. Returns it with its buffer."""
    oid = plasma.ObjectID.from_random()
    buffer = client.create(oid, size)
    np.frombuffer(buffer, np.uint8)[:: max(size // 100, 1)] = 1
    client.seal(oid)
    return oid, buffer


def test_the_least_recently_used_makes_room(plasma: ModuleType, client: Any) -> None:
    ids = [plasma.ObjectID.from_random() for _ in range(9)]
    for oid in ids:
        client.create_and_seal(oid, bytes(12 * PERCENT))
    left = [oid for oid in ids if client.contains(oid)]
    assert left == ids[-len(left) :]
    assert 6 <= len(left) <= 8
    client.get_buffers(left[:1])
    assert client.evict(1) == 12 * PERCENT
    assert [client.contains(oid) for oid in left] == [True, False] + [True] * (len(left) - 2)


def test_what_is_in_use_stays(plasma: ModuleType, client: Any) -> None:
    percent = client.store_capacity() // 100

    def too_large(size: int) -> None:
        with pytest.raises(plasma.PlasmaStoreFull):
            created(plasma, client, size)

    kept = [created(plasma, client, 50 * percent)]
    too_large(50 * percent + MARGIN)
    for _ in range(2):
        created(plasma, client, 20 * percent)
        too_large(50 * percent + MARGIN)
    kept.append(created(plasma, client, 20 * percent))
    too_large(30 * percent + MARGIN)
    kept.append(created(plasma, client, 10 * percent))
    too_large(20 * percent + MARGIN)
    assert all(client.contains(oid) for oid, _ in kept)
    del kept
    created(plasma, client, 90 * percent)


def test_all_memory_can_be_used(plasma: ModuleType, client: Any) -> None:
    random = np.random.default_rng(1)
    for size in random.integers(1, PLASMA_MEMORY // 20, 100):
        created(plasma, client, int(size))
    for _ in range(2):
        created(plasma, client, PLASMA_MEMORY - MARGIN)
    # An object that cannot fit is refused every time, and takes no id.
    oid = plasma.ObjectID.from_random()
    for _ in range(3):
        with pytest.raises(plasma.PlasmaStoreFull):
            client.create(oid, 2 * PLASMA_MEMORY)
    client.create(oid, 1)


@pytest.mark.parametrize("memory", [10_000, 5_000_001, PLASMA_MEMORY])
def test_a_store_has_what_it_was_given_to_the_byte(plasma: ModuleType, memory: int) -> None:
    with plasma.start_plasma_store(memory) as (socket, _):
        client = plasma.connect(socket)
        assert client.store_capacity() == memory
        for size, metadata_size in ((memory, 0), (memory - memory // 3, memory // 3), (0, memory)):
            oid = plasma.ObjectID.from_random()
            client.create_and_seal(oid, bytes(size), bytes(metadata_size))
            [(metadata, data)] = client.get_buffers([oid], with_meta=True)
            assert (len(metadata), data.size) == (metadata_size, size)
            del data
        for size, metadata_size in ((memory + 1, 0), (memory // 2, memory - memory // 2 + 1)):
            with pytest.raises(plasma.PlasmaStoreFull):
                client.create(plasma.ObjectID.from_random(), size, bytes(metadata_size))
        most = client.create(plasma.ObjectID.from_random(), memory - 10)
        small = [plasma.ObjectID.from_random() for _ in range(2)]
        client.create_and_seal(small[0], b"1234567")
        client.create_and_seal(small[1], b"1234", b"md")
        assert [client.contains(oid) for oid in small] == [False, True]
        with pytest.raises(plasma.PlasmaStoreFull):
            client.create(small[0], 11)
        del most


def test_a_reader_may_die(
    plasma: ModuleType, store: tuple[str, subprocess.Popen[bytes]], client: Any
) -> None:
    """Clients are killed while they wait, and while they hold and create objects."""
    oid, buffer = created(plasma, client, 10 * PERCENT)
    del buffer
    program = f"""if True:
        import {plasma.__name__} as plasma
        client = plasma.connect({store[0]!r})
        held = client.get_buffers([plasma.ObjectID({oid.binary()!r})])
        client.create(plasma.ObjectID(bytes(20)), 10 ** 6)
        print("ready", flush=True)
        client.get([plasma.ObjectID(b"x" * 20)])
    """
    reader = subprocess.Popen([sys.executable, "-W", "ignore", "-c", program], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"ready\n"
    assert client.list()[oid]["ref_count"] == 1
    reader.kill()
    reader.wait()
    reader.stdout.close()
    until("its uses to go", lambda: client.list()[oid]["ref_count"] == 0)
    assert set(client.list()) == {oid}
    client.put(1, plasma.ObjectID(b"x" * 20))
    assert client.evict(PLASMA_MEMORY) > 10 * PERCENT
    assert client.list() == {}


def test_clients_retry_to_connect(plasma: ModuleType, tmp_path: Path) -> None:
    """The store may be started after its clients."""
    socket, clients = str(tmp_path / "socket"), []
    waiting = threading.Thread(target=lambda: clients.append(plasma.connect(socket)))
    waiting.start()
    waiting.join(0.2)
    assert not clients
    program = [server(plasma), "-s", socket, "-m", str(PLASMA_MEMORY)]
    with subprocess.Popen(program, stdin=subprocess.DEVNULL) as process:
        waiting.join(ANTI_HANG)
        assert clients[0].contains(plasma.ObjectID(bytes(20))) is False
        process.terminate()
        assert process.wait(ANTI_HANG) == 0


def server(plasma: ModuleType) -> str:
    """Program of the store."""
    if plasma.__name__ == "pyarrow.plasma":
        return os.path.join(os.path.dirname(pa.__file__), "plasma-store-server")
    return str(Path(sys.executable).parent / "plasma-store-server")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-m", "100000000"],
        ["-s", "{}/socket"],
        ["-s", "{}/socket", "-m", "100MB"],
        ["-s", "{}/socket", "-m", "100000000", "-e", "unknown://store"],
        ["-s", "{}/socket", "-m", "100000000", "--unknown"],
    ],
)
def test_wrong_arguments_of_the_server(plasma: ModuleType, arguments: list[str], tmp_path: Path) -> None:
    command = [server(plasma), *(argument.format(tmp_path) for argument in arguments)]
    ended = subprocess.run(command, capture_output=True, timeout=ANTI_HANG, check=False)
    assert ended.returncode == 1
    assert ended.stderr
    assert b"Traceback" not in ended.stderr


def test_what_is_evicted_comes_back_from_an_external_store(plasma: ModuleType) -> None:
    with plasma.start_plasma_store(1000 * 1024, external_store="hashtable://test") as (socket, _):
        client = plasma.connect(socket)
        ids = [plasma.ObjectID.from_random() for _ in range(20)]
        data = [os.urandom(100 * 1024) for _ in ids]
        for oid, each in zip(ids, data, strict=True):
            client.create_and_seal(oid, each)
        assert all(client.contains(oid) for oid in ids)
        for oid, each in zip(ids, data, strict=True):
            [buffer] = client.get_buffers([oid])
            assert buffer.to_pybytes() == each
            del buffer
        assert client.get_buffers([plasma.ObjectID.from_random()], timeout_ms=10) == [None]


def test_start_of_a_store_fails(plasma: ModuleType) -> None:
    with pytest.raises(Exception, match=r"at once|same time"), plasma.start_plasma_store(1, True, True):
        pass
    with (
        pytest.raises(RuntimeError),
        plasma.start_plasma_store(PLASMA_MEMORY, external_store="unknown://store"),
    ):
        pass


# The following tests are for plasmon.plasma only.


def test_get_of_what_one_is_creating_is_refused() -> None:
    """A get of an object that the client itself is creating raises, where Plasma ends the process."""
    with plasmon.plasma.start_plasma_store(PLASMA_MEMORY) as (socket, _):
        client = plasmon.plasma.connect(socket)
        oid = plasmon.plasma.ObjectID.from_random()
        client.create(oid, 1)
        with pytest.raises(ValueError, match="seal it before"):
            client.get(oid)
        # A negative size raises, where Plasma's store ends.
        with pytest.raises(ValueError, match="not -1"):
            client.create(plasmon.plasma.ObjectID.from_random(), -1)


def test_both_interfaces_see_the_same_objects() -> None:
    with plasmon.plasma.start_plasma_store(PLASMA_MEMORY) as (socket, _), plasmon.connect(socket) as native:
        client = plasmon.plasma.connect(socket)
        array = np.arange(1000.0)
        assert (native.get(client.put(array).binary()) == array).all()
        for value in ("text", {"a": 1}, b"bytes"):
            assert native.get(client.put(value).binary()) == value
            assert client.get(plasmon.plasma.ObjectID(native.put(value).binary())) == value
        missing = plasmon.plasma.ObjectID.from_random()
        with pytest.raises(plasmon.ObjectNotFound):
            client.hash(missing)
        native.put(1, id=missing.binary())
        with pytest.raises(plasmon.ObjectExists):
            client.put(1, missing)


def test_lost_notifications_are_told_of() -> None:
    """Plasma's store keeps all notifications, as long as it has memory."""
    count = 260_000
    with plasmon.plasma.start_plasma_store(PLASMA_MEMORY) as (socket, _), plasmon.connect(socket) as native:
        calls, stream = plasmon.plasma.connect(socket), plasmon.plasma.connect(socket)
        calls.subscribe()
        stream.subscribe()
        stream.get_notification_socket()
        for _ in range(count // 2000):
            native.delete(native.put_many([b"x"] * 1000))
        seen, lost = 0, 0
        while seen + lost < count:
            try:
                assert calls.get_next_notification()[1:] in ((1, 0), (-1, -1))
                seen += 1
            except OSError as error:
                lost += int(str(error).split()[0])
        assert (seen >= 1 << 16, lost > 0) == (True, True)

        reader, seen, lost = stream.get_notification_socket().makefile("rb"), 0, 0
        while seen + lost < count:
            (length,) = struct.unpack("=q", reader.read(8))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                seen += len(stream.decode_notifications(reader.read(length))[0])
            lost += sum(int(str(warning.message).split()[0]) for warning in caught)
        assert (seen >= 1 << 16, lost > 0) == (True, True)

        # The subscription continues after a loss, and ends with the connection.
        native.put(b"abc")
        assert calls.get_next_notification()[1:] == (3, 0)
        assert stream.get_next_notification()[1:] == (3, 0)
        stream.disconnect()
        assert reader.read() == b""


def test_ids_are_ordered() -> None:
    low, high = plasmon.plasma.ObjectID(b"a" * 20), plasmon.plasma.ObjectID(b"b" * 20)
    assert low < high
    assert low <= high
    assert high > low
    assert high >= low
    assert sorted([high, low]) == [low, high]
    with pytest.raises(TypeError):
        low < 1  # type: ignore[operator] # noqa: B015


def test_without_pyarrow_buffers_are_views() -> None:
    program = """if True:
        import sys
        sys.modules["pyarrow"] = None
        import plasmon.plasma as plasma
        with plasma.start_plasma_store(10 ** 8) as (socket, _):
            client = plasma.connect(socket)
            oid = plasma.ObjectID.from_random()
            buffer = client.create(oid, 3, b"md")
            buffer[:] = b"abc"
            client.seal(oid)
            assert client.get_buffers([oid], with_meta=True) == [(b"md", b"abc")]
            assert client.get_metadata([oid])[0] == b"md"
            assert buffer == b"abc"
            part = buffer[1:]
            del buffer
            assert client.evict(1) == 0
            del part
            assert client.evict(1) == 5
            try:
                client.hash(oid)
            except plasma.PlasmaObjectNotFound:
                pass
            assert client.get(client.put([1])) == [1]
    """
    subprocess.run([sys.executable, "-c", program], check=True, timeout=ANTI_HANG)


def test_what_has_no_meaning_here_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="TensorFlow"):
        plasmon.plasma.build_plasma_tensorflow_op()
    with plasmon.plasma.start_plasma_store(PLASMA_MEMORY) as (socket, _):
        client = plasmon.plasma.connect(socket)
        with pytest.raises(NotImplementedError, match="Rust client"):
            client.to_capsule()


def test_a_folder_is_the_external_store(tmp_path: Path) -> None:
    folder = tmp_path / "evicted"
    oid = plasmon.plasma.ObjectID.from_random()
    for evicted in (True, False):
        with plasmon.plasma.start_plasma_store(PLASMA_MEMORY, external_store=f"file://{folder}") as (
            socket,
            _,
        ):
            client = plasmon.plasma.connect(socket)
            if evicted:
                client.create_and_seal(oid, b"x" * (39 * PERCENT), b"m" * PERCENT)
                for _ in range(2):
                    client.create_and_seal(plasmon.plasma.ObjectID.from_random(), bytes(40 * PERCENT))
            [(metadata, data)] = client.get_buffers([oid], with_meta=True)
            assert data.to_pybytes() == b"x" * (39 * PERCENT)
            assert metadata == b"m" * PERCENT
            del data
    shutil.rmtree(folder)


def test_a_store_ends_with_the_program_that_started_it() -> None:
    program = """if True:
        import os, signal
        import plasmon.plasma as plasma
        with plasma.start_plasma_store(10 ** 8) as (_, process):
            print(process.pid, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=ANTI_HANG, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    until("the store to end", lambda: not os.path.exists(f"/proc/{int(ended.stdout)}"))
