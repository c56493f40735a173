"""Tests of one client in many threads, in forked children, and in processes of multiprocessing."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import plasmon
import pytest
from conftest import ANTI_HANG, held, until

THREADS = 16
ROUNDS = 150


def test_sixteen_threads_hammer_one_client(near: plasmon.Client, far: plasmon.Client) -> None:
    failures: list[BaseException] = []
    start = threading.Barrier(THREADS)

    def hammer(number: int) -> None:
        chance = random.Random(number)
        try:
            start.wait(ANTI_HANG)
            for turn in range(ROUNDS):
                size = chance.choice([0, 10, 1000, 100_000])
                data = bytes([number]) * size
                id = near.put(data, name=f"{number}/{turn}")
                assert near.get(id) == data
                if turn % 10 == 0:
                    assert far.get(id, timeout=ANTI_HANG) == data
                with pytest.raises(plasmon.ObjectExists):
                    near.put(b"other", id=id)
                with pytest.raises(plasmon.TimedOut):
                    near.get(f"never {number}/{turn}", timeout=0.0001)
                created = near.create(f"created {number}/{turn}", 100_000)
                memoryview(created)[:] = bytes([255 - number]) * 100_000
                if turn % 2:
                    created.seal()
                    assert near.get(created.id) == bytes([255 - number]) * 100_000
                else:
                    created.abort()
                assert near.delete([id, created.id]) == [True, bool(turn % 2)]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=hammer, args=[number]) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    assert near.list() == []


def test_a_closed_client_refuses_many_threads(near: plasmon.Client) -> None:
    # In a process of its own, which can be ended if its threads wait for each other.
    program = """
import sys, threading
import plasmon

client = plasmon.connect(sys.argv[1])
client.close()

def refused():
    for _ in range(300):
        for call in (client.status, lambda: client.get_into("x", bytearray(1)), lambda: client.contains("x")):
            try:
                call()
            except plasmon.Disconnected:
                continue
            raise AssertionError(call)

threads = [threading.Thread(target=refused) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    subprocess.run([sys.executable, "-c", program, near.socket], check=True, timeout=ANTI_HANG)
    until("pins to go", lambda: held(near) == 0)


def test_forks_while_threads_call(near: plasmon.Client) -> None:
    """A child forked at any moment gets its own connection, never a locked lock."""
    stop = threading.Event()
    failures: list[BaseException] = []
    kept = near.put(b"kept" * 50_000)
    value = near.get(kept)

    def hammer(number: int) -> None:
        try:
            turn = 0
            while not stop.is_set():
                turn += 1
                assert near.get(near.put(turn, name=f"{number}/{turn}")) == turn
                near.contains([f"never {turn}"])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=hammer, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                mine = near.get(near.put(os.getpid()))
                if mine == os.getpid() and near.get(kept) == b"kept" * 50_000 == value:
                    status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert near.status()["objects"]["pinned"] == 1, "children let go of nothing of their parent's"
    assert value == b"kept" * 50_000


def work(socket: str, name: str, task: int) -> int:
    """Task of a process of a pool, which may run one or several."""
    with plasmon.connect(socket) as client:
        data: bytes = client.get(name)
        client.put(len(data), name=f"{name}, {task}")
        return len(data)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_a_pool_connect_on_their_own(near: plasmon.Client, method: str) -> None:
    name = f"for {method}"
    near.put(bytes(200_000), name=name)
    value = near.get(name)
    with multiprocessing.get_context(method).Pool(3) as pool:
        tasks = [(near.socket, name, task) for task in range(3)]
        assert pool.starmap(work, tasks, chunksize=1) == [200_000] * 3
    until("their pins to go", lambda: held(near) == 1)
    assert len(value) == 200_000


LOOK = "import plasmon; print(plasmon.connect().socket)"


def look(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    kept = {
        key: value for key, value in os.environ.items() if key not in ("PLASMON_SOCKET", "XDG_RUNTIME_DIR")
    }
    return subprocess.run(
        [sys.executable, "-c", LOOK],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=ANTI_HANG,
    )


def test_connect_finds_the_node(near: plasmon.Client, tmp_path: Path) -> None:
    assert look({"PLASMON_SOCKET": near.socket}).stdout.strip() == near.socket
    (tmp_path / "plasmon").mkdir()
    link = tmp_path / "plasmon" / "plasmon.sock"
    link.symlink_to(near.socket)
    assert look({"XDG_RUNTIME_DIR": str(tmp_path)}).stdout.strip() == str(link)
    nowhere = look({"PLASMON_SOCKET": str(tmp_path / "none.sock")})
    assert nowhere.returncode != 0
    assert "none.sock" in nowhere.stderr
    assert "plasmon serve" in nowhere.stderr, "the error says what to do"


def size_of(client: plasmon.Client, name: str) -> int:
    return len(client.get(name))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_client_goes_to_the_processes_of_a_pool(near: plasmon.Client, method: str) -> None:
    near.put(bytes(1000), name="for all")
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        assert list(pool.map(size_of, [near] * 4, ["for all"] * 4)) == [1000] * 4


def test_a_child_that_only_closes_its_client_does_not_connect(
    cluster: plasmon.LocalCluster, near: plasmon.Client
) -> None:
    with cluster.connect() as client:
        child = os.fork()
        if child == 0:
            client.close()
            os._exit(0 if client.closed else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.get(client.put(b"still open")) == b"still open"
    with pytest.raises(TypeError, match="a closed client cannot be pickled"):
        pickle.dumps(client)
