"""Tests of subscriptions to the objects of a node."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import plasmon
import pytest
from conftest import ANTI_HANG

MEBI = 1 << 20


def test_what_is_there_comes_first_then_what_happens(near: plasmon.Client) -> None:
    there = near.put(bytes(100_000))
    with near.subscribe() as events:
        assert events.next(ANTI_HANG) == plasmon.Event("sealed", there, 100_000, 0, 0, node=near.node)
        later = near.create_and_seal(plasmon.ObjectId.random(), b"later", b"md")
        near.delete(there)
        assert events.next(ANTI_HANG) == plasmon.Event("sealed", later, 5, 2, 0, node=near.node)
        assert events.next(ANTI_HANG) == plasmon.Event("deleted", there, 0, 0, 0, node=near.node)
        assert events.next(0) is None
        assert events.next(0.01) is None
    assert events.closed
    with pytest.raises(plasmon.Disconnected, match="closed"):
        events.next(0)
    with pytest.raises(plasmon.Disconnected, match="closed"):
        events.fileno()
    assert list(events) == []


def test_events_have_names(near: plasmon.Client) -> None:
    with near.subscribe() as events:
        oid = near.put(b"x", name="event/named")
        near.delete(oid)
        seen: list[tuple[str, str | None]] = []
        while len(seen) < 2:
            event = events.next(ANTI_HANG)
            assert event is not None
            if event.id == oid:
                seen.append((event.kind, event.name))
        assert seen == [("sealed", "event/named"), ("deleted", "event/named")]


def test_events_of_all_nodes_come_with_their_node(near: plasmon.Client, far: plasmon.Client) -> None:
    there = far.put(b"there", name="event/there")
    with near.subscribe(cluster=True) as events:

        def next_of(id: plasmon.ObjectId) -> plasmon.Event:
            while (event := events.next(ANTI_HANG)) is None or event.id != id:
                assert event is not None
            return event

        assert next_of(there) == plasmon.Event("sealed", there, 5, 0, 0, "event/there", far.node)
        here = near.put(b"here")
        assert next_of(here) == plasmon.Event("sealed", here, 4, 0, 0, node=near.node)
        far.delete(there)
        assert next_of(there) == plasmon.Event("deleted", there, 0, 0, 0, "event/there", far.node)


def test_it_can_be_polled(near: plasmon.Client) -> None:
    with near.subscribe() as events:
        while events.next(0.2) is not None:
            pass
        assert select.select([events], [], [], 0)[0] == []
        oid = near.put(b"")
        assert select.select([events], [], [], ANTI_HANG)[0] == [events]
        event = events.next(ANTI_HANG)
        assert event is not None
        assert (event.kind, event.id) == ("sealed", oid)


def test_many_events_come_once_and_in_order(near: plasmon.Client) -> None:
    with near.subscribe() as events:
        ids = near.put_many([b""] * 500)
        near.delete(ids)
        seen: dict[plasmon.ObjectId, list[str]] = {oid: [] for oid in ids}
        while sum(map(len, seen.values())) < 1000:
            event = events.next(ANTI_HANG)
            assert event is not None
            assert event.kind != "gap"
            if event.id in seen:
                seen[event.id].append(event.kind)
        assert set(map(tuple, seen.values())) == {("sealed", "deleted")}


CLOSED_WHILE_WAITED_FOR = """
import sys, threading, time, plasmon

# Number of times that a thread has gone to sleep.
def switches(thread):
    with open(f"/proc/self/task/{thread.native_id}/status") as status:
        return next(line for line in status if line.startswith("voluntary_ctxt_switches"))

with plasmon.connect(sys.argv[1]) as client:
    events = client.subscribe()
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(events))
    reader.start()
    while not seen:  # Then it waits for the second.
        client.put(b"") if not client.list() else time.sleep(0.01)
    before = None
    while (now := switches(reader)) != before:  # Who waits for the interpreter wakes every 5 ms.
        before = now
        time.sleep(0.02)
    events.close()
    events.close()
    reader.join()
    print("ended", len(seen) > 0, flush=True)
"""


def test_closing_ends_the_wait_of_another_thread(near: plasmon.Client) -> None:
    # The code runs in a program of its own: if it hangs, it holds the GIL.
    command = [sys.executable, "-c", CLOSED_WHILE_WAITED_FOR, near.socket]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=ANTI_HANG, check=True)
    assert run.stdout == "ended True\n"


def test_a_child_has_no_part_in_it(near: plasmon.Client) -> None:
    with near.subscribe() as events:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                events.next(0)
            except plasmon.Disconnected as error:
                status = 0 if "after fork" in str(error) else 2
            finally:
                events.close()
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        oid = near.put(b"of the parent")
        while (event := events.next(ANTI_HANG)) is not None and event.id != oid:
            pass
        assert event is not None


def test_it_ends_with_the_node() -> None:
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        events = cluster.client().subscribe()
        cluster.kill(0)
        with pytest.raises(plasmon.Disconnected, match="connect again"):
            events.next(ANTI_HANG)
        assert not events.closed
