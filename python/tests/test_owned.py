"""Tests of objects that end with their client."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import plasmon
import plasmon.aio
import pytest
from conftest import ANTI_HANG, until


def gone(client: plasmon.Client, ids: Iterable[plasmon.ObjectId]) -> Callable[[], bool]:
    """Condition that no object of these is anywhere."""
    some = [*ids]
    return lambda: not any(client.contains(some))


def put_all(client: plasmon.Client) -> list[plasmon.ObjectId]:
    """Puts owned objects by every call that makes objects."""
    ids = [
        client.put(b"small", owned=True),
        client.put(np.zeros(1 << 17), owned=True),
        *client.put_many([b"one", {"of": "many"}], owned=True),
        client.create_and_seal(plasmon.ObjectId.random(), b"bytes", owned=True),
    ]
    with client.create(plasmon.ObjectId.random(), 4, owned=True) as creation:
        memoryview(creation)[:] = b"abcd"
    ids.append(creation.id)
    scratch = client.buffer(1 << 20)
    ids.append(client.put_from(scratch, owned=True))
    return ids


def test_what_a_client_owns_ends_when_it_is_closed(near: plasmon.Client, far: plasmon.Client) -> None:
    client = plasmon.connect(near.socket)
    ids = put_all(client)
    stays = client.put(b"stays")
    assert all(near.contains(ids))
    held = client.get(ids[1])
    copy = far.get(ids[1], timeout=ANTI_HANG)
    # Values of a closed client stay readable, and the connection lasts as long as they.
    client.close()
    until("they are deleted", gone(far, ids))
    assert not held.any()
    assert not copy.any()
    assert near.contains(stays)
    assert near.delete(stays)


PUTS = """
import sys, plasmon
client = plasmon.connect(sys.argv[1])
print(client.put(b"of a process", owned=True), client.put(bytes(1 << 20), owned=True), flush=True)
input()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, None])
def test_it_ends_with_the_process(near: plasmon.Client, how: signal.Signals | None) -> None:
    command = [sys.executable, "-c", PUTS, near.socket]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ids = [plasmon.ObjectId.from_hex(text) for text in process.stdout.readline().split()]
        assert near.contains(ids) == [True, True]
        if how is None:
            process.communicate("\n", timeout=ANTI_HANG)
        else:
            process.send_signal(how)
    until("they are deleted", gone(near, ids))


def test_it_stays_with_its_client(near: plasmon.Client, far: plasmon.Client) -> None:
    with plasmon.connect(near.socket) as client:
        oid = client.put(b"stays", owned=True)
        with pytest.raises(plasmon.InvalidArgument, match="owned"):
            client.migrate(oid, far.node, timeout=ANTI_HANG)


def test_the_loop_of_asyncio_has_it_too(near: plasmon.Client) -> None:
    async def put() -> Any:
        async with plasmon.aio.connect(near.socket) as client:
            oid = await client.put(b"of a loop", owned=True)
            assert await client.contains(oid)
            async with client.subscribe() as events:
                async for event in events:
                    if event.id == oid:
                        break
            assert events.closed
            return oid

    until("it is deleted", gone(near, [asyncio.run(put())]))
