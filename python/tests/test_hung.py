"""Tests of a stopped node: no call outlives its time-out, and calls work again when the node continues."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import plasmon
import plasmon.aio
import pytest
from conftest import ANTI_HANG, held, until
from plasmon import errors, plasma

SOON = 0.05
"""Time-out that a stopped node cannot meet."""


@pytest.fixture
def node() -> Iterator[plasmon.LocalCluster]:
    """First of two nodes: the directory has to be asked for absent objects."""
    with plasmon.LocalCluster(nodes=2, memory="64MiB") as cluster:
        pid = cluster.client().status()["pid"]
        try:
            yield cluster
        finally:
            os.kill(pid, signal.SIGCONT)


def stop(node: plasmon.LocalCluster) -> int:
    pid: int = node.client().status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    return pid


CALLS: dict[str, Callable[[plasmon.Client], object]] = {
    "get": lambda client: client.get("absent", timeout=SOON),
    "get at once": lambda client: client.get("absent", timeout=0),
    "get_buffers": lambda client: client.get_buffers(["absent", "other"], timeout=SOON),
    "wait": lambda client: client.wait(["absent"], timeout=SOON),
    "put": lambda client: client.put(b"small", timeout=SOON),
    "put large": lambda client: client.put(bytes(1 << 20), timeout=SOON),
    "put_many": lambda client: client.put_many([b"x", bytes(1 << 20), b"y"], timeout=SOON),
    "create": lambda client: client.create("created", 1 << 20, timeout=SOON),
    "create_and_seal": lambda client: client.create_and_seal("sealed", b"x", timeout=SOON),
    "buffer": lambda client: client.buffer(1 << 20, timeout=SOON),
    "get_into": lambda client: client.get_into("absent", bytearray(8), timeout=SOON),
    "pin": lambda client: client.pin("absent", timeout=SOON),
    "replicate": lambda client: client.replicate("absent", 2, timeout=SOON),
    "migrate": lambda client: client.migrate("absent", client.node, timeout=SOON),
    "migrate to a host": lambda client: client.migrate("absent", "localhost", timeout=SOON),
    "broadcast to a host": lambda client: client.broadcast("absent", ["localhost"], timeout=SOON),
    "metadata": lambda client: client.metadata("absent", timeout=SOON),
}
WITHOUT: dict[str, Callable[[plasmon.Client], object]] = {
    "contains": lambda client: client.contains("absent"),
    "delete": lambda client: client.delete("absent"),
    "status": lambda client: client.status(),
    "list": lambda client: client.list(),
    "evict": lambda client: client.evict(1),
    "put": lambda client: client.put(b"small"),
    "subscribe": lambda client: client.subscribe(),
}


def test_no_call_outlives_its_time_out(node: plasmon.LocalCluster) -> None:
    # Each call has a client of its own, so that all run at the same time.
    calls = [(name, call, node.connect()) for name, call in CALLS.items()]
    calls += [(name, call, plasmon.connect(node.sockets[0], timeout=SOON)) for name, call in WITHOUT.items()]
    pid = stop(node)
    with ThreadPoolExecutor(len(calls)) as pool:
        made = [(name, pool.submit(call, client)) for name, call, client in calls]
        for name, one in made:
            error = one.exception(ANTI_HANG / 2)
            assert isinstance(error, errors.TimedOut), name
    with pytest.raises(errors.TimedOut):
        plasmon.connect(node.sockets[0], timeout=SOON)
    os.kill(pid, signal.SIGCONT)
    for number, (_, _, client) in enumerate(calls):
        oid = client.put(bytes([number]) * 100)
        assert client.get(oid) == bytes([number]) * 100
    gc.collect()
    client = node.client()
    until("pins to go", lambda: held(client) == 0)
    until("creations to go", lambda: client.status()["objects"]["unsealed"] == 0)


def test_no_task_outlives_its_time_out(node: plasmon.LocalCluster) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(node.sockets[0]) as client:
            oid = await client.put(b"before")
            pid = stop(node)
            waiting = [asyncio.ensure_future(client.replicate(oid, 2)) for _ in range(8)]
            await asyncio.sleep(0)
            # Other calls take all threads.
            for call in (
                client.get("absent", timeout=SOON),
                client.get("absent", timeout=0),
                client.wait(["absent"], timeout=SOON),
                client.put(b"x", timeout=SOON),
                client.get_into("absent", bytearray(8), SOON),
            ):
                with pytest.raises(errors.TimedOut):
                    await asyncio.wait_for(call, ANTI_HANG / 2)
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            os.kill(pid, signal.SIGCONT)
            assert await client.get(oid) == b"before"
            assert await client.get(await client.put(b"after"), timeout=ANTI_HANG) == b"after"
        async with asyncio.timeout(ANTI_HANG):
            pid = stop(node)
            with pytest.raises(errors.TimedOut):
                await plasmon.aio.connect(node.sockets[0], timeout=SOON)

    asyncio.run(main())


def test_plasmas_client_says_not_available(node: plasmon.LocalCluster) -> None:
    client = plasma.connect(node.sockets[0])
    here = client.put(b"here")
    absent = [plasma.ObjectID.from_random() for _ in range(3)]
    stop(node)
    with ThreadPoolExecutor() as pool:
        got = pool.submit(client.get, [here, *absent], int(SOON * 1000)).result(ANTI_HANG / 2)
    assert got[1:] == [plasma.ObjectNotAvailable] * 3


def test_ctrl_c_ends_connecting_and_waiting(node: plasmon.LocalCluster) -> None:
    program = (
        "import sys, plasmon\n"
        "client = None\n"
        "print('begins', flush=True)\n"
        "try:\n"
        "    plasmon.connect(sys.argv[1], timeout=600)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    stop(node)
    command = [sys.executable, "-c", program, node.sockets[0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "begins\n"
        ended = threading.Event()

        def interrupt() -> None:
            while not ended.wait(0.1):
                child.send_signal(signal.SIGINT)

        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        said = child.stdout.readline()
        ended.set()
        interrupting.join()
    assert said == "interrupted\n"


def test_whose_node_it_is(cluster: plasmon.LocalCluster) -> None:
    assert cluster.client(0).owner == os.geteuid()
