"""Tests of the place of objects: kept replicas, moves, broadcasts, pins, times to live."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import plasmon
import pytest
from conftest import ANTI_HANG, until


@pytest.fixture(scope="module")
def three() -> Iterator[plasmon.LocalCluster]:
    with plasmon.LocalCluster(nodes=3, memory="64MiB") as cluster:
        yield cluster


def roles(client: plasmon.Client, oid: plasmon.ObjectId) -> dict[str, str]:
    return dict(client.locations(oid))


def knows(client: plasmon.Client, oid: plasmon.ObjectId, wanted: dict[str, str]) -> None:
    """Waits until the directory has learned which nodes hold an object."""
    until(f"the directory to say {wanted}", lambda: roles(client, oid) == wanted)


def test_a_put_waits_for_its_replicas(three: plasmon.LocalCluster) -> None:
    first, second, third = map(three.client, range(3))
    for value in (b"small", bytes(200_000)):
        oid = first.put(value, replicas=3)
        wanted = {first.node: "primary", second.node: "kept", third.node: "kept"}
        knows(second, oid, wanted)
        assert second.evict(1 << 60) >= 0
        assert third.get(oid, timeout=0) == value
        states = {row.state for row in second.list() if row.id == oid}
        assert states == {"kept"}
        first.delete(oid)
    oids = first.put_many([b"1", b"2", bytes(100_000)], replicas=2)
    twice = ["kept", "primary"]
    until("two keep them", lambda: all(sorted(roles(first, oid).values()) == twice for oid in oids))
    with first.create("in place", 10, replicas=2) as creation:
        memoryview(creation)[:] = b"0123456789"
    placed = plasmon.ObjectId.from_name("in place")
    until("two keep it", lambda: sorted(roles(second, placed).values()) == ["kept", "primary"])
    first.delete([*oids, placed])


def test_too_few_nodes_are_an_error_and_the_object_stays(three: plasmon.LocalCluster) -> None:
    client = three.client(0)
    with pytest.raises(plasmon.TooFewReplicas, match=r"kept by 3 of 4 nodes.*the cluster has 3"):
        client.put(b"wanted", name="wanted", replicas=4)
    assert three.client(1).get("wanted", timeout=0) == b"wanted"
    client.delete("wanted")
    for replicas in (0, -1, 70_000):
        with pytest.raises(plasmon.InvalidArgument):
            client.put(b"nothing", replicas=replicas)
        with pytest.raises(plasmon.InvalidArgument):
            client.replicate("nothing", replicas)


def test_objects_are_replicated_moved_and_broadcast(three: plasmon.LocalCluster) -> None:
    first, second, third = map(three.client, range(3))
    oid = first.put(bytes(3_000_000))
    assert len(first.replicate(oid, 2).holders) == 2
    assert len(third.replicate(oid, 1).holders) == 1
    held = first.get(oid)
    moved = second.migrate(oid, third.node, timeout=ANTI_HANG)
    assert moved.holders == [third.node]
    assert roles(second, oid)[third.node] == "primary"
    until("it is no longer where it was", lambda: first.node not in roles(second, oid))
    assert held == bytes(3_000_000)
    del held
    spread = first.broadcast(oid)
    assert sorted(spread.holders) == sorted(client.node for client in (first, second, third))
    assert spread.failed == []
    assert second.get(oid, timeout=0) == bytes(3_000_000)
    second.delete(oid)
    with pytest.raises(plasmon.ObjectNotFound):
        first.broadcast(oid, [second.node])
    with pytest.raises(plasmon.InvalidArgument, match=r"no node of the cluster is 0\.0\.0\.1;"):
        first.broadcast(oid, ["0.0.0.1"])
    with pytest.raises(plasmon.InvalidArgument, match="not in this cluster"):
        first.migrate(oid, "0" * 32)
    assert first.broadcast(oid, []) == plasmon.Spread([], [])


def test_nodes_are_named_as_on_the_command_line(three: plasmon.LocalCluster) -> None:
    first, second, third = map(three.client, range(3))
    listen = {member["node"]: member["listen"] for member in first.status()["cluster"]["members"]}
    port = listen[second.node].rpartition(":")[2]
    oid = first.put(b"moves")
    for name, wanted in (
        (listen[third.node], third),
        (f"localhost:{port}", second),
        (third.node[:31], third),
        (first.node, first),
    ):
        assert first.migrate(oid, name, timeout=ANTI_HANG).holders == [wanted.node]
    spread = first.broadcast(oid, [third.node, listen[second.node]], timeout=ANTI_HANG)
    assert sorted(spread.holders) == sorted([second.node, third.node])
    for several in ("localhost", "127.0.0.1"):
        with pytest.raises(plasmon.InvalidArgument, match=f"several nodes are {several}: ") as ambiguous:
            first.migrate(oid, several)
        assert all(f"{node} at {at}" in str(ambiguous.value) for node, at in listen.items())
    for nobody in ("0.0.0.1", "localhost:1", "no host", ""):
        with pytest.raises(plasmon.InvalidArgument, match="no node of the cluster is"):
            first.migrate(oid, nobody, timeout=ANTI_HANG)
    first.delete(oid)


def test_an_object_ends_with_its_time(three: plasmon.LocalCluster) -> None:
    first, second = three.client(0), three.client(1)
    oid = first.put(b"short", ttl=1.0)
    assert second.get(oid, timeout=ANTI_HANG) == b"short"
    until("it ends here", lambda: oid not in {row.id for row in first.list()})
    until("it ends there", lambda: oid not in {row.id for row in second.list()})
    for ttl in (0, -1.0):
        with pytest.raises(plasmon.InvalidArgument):
            first.put(b"nothing", ttl=ttl)


def test_what_is_pinned_stays(three: plasmon.LocalCluster) -> None:
    first, second = three.client(0), three.client(1)
    oid = second.put(bytes(1_000_000))
    with three.connect(0) as client:
        client.pin(oid, timeout=ANTI_HANG)
        first.evict(1 << 60)
        assert first.get(oid, timeout=0) == bytes(1_000_000)
        client.unpin(oid)
        first.evict(1 << 60)
        assert first.wait([oid], timeout=0) == ([], [oid])
        client.pin(oid, timeout=ANTI_HANG)
    until("its end unpins it", lambda: first.status()["objects"]["pinned"] == 0)
    with pytest.raises(plasmon.TimedOut):
        first.pin("nothing", timeout=0.05)
    second.delete(oid)


def test_of_two_who_put_one_name_one_gets_it(three: plasmon.LocalCluster) -> None:
    clients = [three.client(number) for number in range(3)]
    for turn in range(20):
        start, name = threading.Barrier(3), f"name {turn}"
        outcomes: dict[int, bool] = {}

        def put(
            number: int,
            start: threading.Barrier = start,
            name: str = name,
            outcomes: dict[int, bool] = outcomes,
        ) -> None:
            start.wait()
            try:
                clients[number].put(number, name=name)
                outcomes[number] = True
            except plasmon.ObjectExists:
                outcomes[number] = False

        threads = [threading.Thread(target=put, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = (number for number, won in outcomes.items() if won)
        assert [client.get(name, timeout=ANTI_HANG) for client in clients] == [winner] * 3
        clients[0].delete(name)
