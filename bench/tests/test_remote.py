"""Tests of gets between hosts, with real nodes and connections."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import mpi, paths
from harness.network import PREFIX, Network
from harness.processes import PeerError, Worker
from harness.remote import conditions, growth, making
from harness.remote import run as running
from harness.remote.contenders import GETTER, HOLDER, ONE_PLACE, PLACES, Contender, Plasmon, Way, plasmon
from harness.remote.figures import REMOTE, Fetches
from harness.remote.others import Fabric, Ray, Tcp
from harness.remote.run import moved

KIB, MIB = 1 << 10, 1 << 20
TINY = running.Plan(64 * MIB, (KIB, MIB), (1, 2), turn=0.02, rounds=2, seconds=60.0, restless_seconds=1.0)


@pytest.fixture(name="network")
def _network() -> Iterator[Network]:
    with Network(3) as network:
        yield network


@pytest.fixture(name="cluster")
def _cluster(network: Network, tmp_path: Path) -> Iterator[Plasmon]:
    (cluster,) = plasmon(["auto"])
    assert cluster.missing() is None
    cluster.start(network.hosts[:2], tmp_path / "auto", TINY.memory)
    yield cluster
    cluster.close()


def measure(
    contenders: list[Contender], network: Network, folder: Path, plan: running.Plan = TINY
) -> tuple[dict[tuple[str, str, str, int, int], Fetches], dict[str, list[str]]]:
    kept: list[Fetches] = []

    def keep(rows: list[Fetches]) -> None:
        kept[:] = rows

    failures, _ = running.measure(contenders, plan, network.hosts[:2], folder, keep)
    return {(row.peer, row.operation, row.memory, row.size, row.clients): row for row in kept}, failures


def test_everyone_gets_every_object_once_from_the_other_host(network: Network, tmp_path: Path) -> None:
    rows, failures = measure([*plasmon(["auto"]), Tcp(), Fabric()], network, tmp_path)
    assert failures == {}
    ways = [
        ("plasmon-auto", "fetch", "cold"),
        ("plasmon-auto", "fetch", "warm"),
        ("plasmon-python", "fetch", "cold"),
        ("plasmon-python", "fetch", "warm"),
    ]
    bare = [("", ONE_PLACE), ("_places", PLACES)]
    for suffix, memory in bare:
        ways += [("tcp", f"fetch{suffix}", memory), ("fabric", f"read_asleep{suffix}", memory)]
    expected = {(*way, size, getters) for way in ways for size in TINY.sizes for getters in TINY.getters}
    # Polling takes all cores of a small machine, so there is only one getter.
    polls = [("fabric", f"read{suffix}", memory) for suffix, memory in bare]
    expected |= {(*way, size, 1) for way in polls for size in TINY.sizes}
    # In chunks only what is longer than one.
    for suffix, memory in bare:
        chunks = ("fabric", f"read_chunks{suffix}", memory), ("fabric", f"read_chunks_asleep{suffix}", memory)
        expected |= {(*chunks[0], MIB, 1)} | {(*chunks[1], MIB, getters) for getters in TINY.getters}
    expected |= {("plasmon-python", "fetch_many", "cold", KIB, 1)}
    assert set(rows) == expected
    for row in rows.values():
        assert row.turns == TINY.rounds
        assert row.median_us > 0
        assert row.ops_per_s > 0
        assert row.getter_cpu_s_per_gib is not None
        assert row.getter_cpu_s_per_gib > 0
        assert bool(row.moved_by) == row.peer.startswith("plasmon")


def test_one_that_fails_is_named_and_the_others_are_measured(network: Network, tmp_path: Path) -> None:
    class Doomed(Tcp):
        name = "doomed"
        ways = (Way("doomed"),)

        def getter(self, way: Way, number: int) -> Worker:
            worker = super().getter(way, number)
            os.kill(self.servers()[HOLDER][0], signal.SIGKILL)
            return worker

    class Stillborn(Tcp):
        name = "stillborn"
        ways = (Way("stillborn"),)

        def _serve(self, memory: int) -> None:
            self._said(self._spawn(self._hosts[HOLDER], ["false"], "server"), "\n")

    rows, failures = measure([Doomed(), Stillborn(), Tcp()], network, tmp_path)
    assert {row.peer for row in rows.values()} == {"tcp"}
    assert set(failures) == {"doomed", "stillborn"}
    assert len(failures["doomed"]) == running.TRIES
    assert len(failures["stillborn"]) == 1
    assert "did not start" in failures["stillborn"][0]


def test_no_round_is_begun_that_there_is_no_time_for(network: Network, tmp_path: Path) -> None:
    plan = running.Plan(64 * MIB, (KIB,), (1,), turn=0.05, rounds=1000, seconds=1.0, restless_seconds=1.0)
    rows, _ = measure([Tcp()], network, tmp_path, plan)
    assert len(rows) == len(Tcp.ways)
    for row in rows.values():
        assert 1 <= row.turns < 1000


def test_gets_of_what_is_here_are_told_from_gets_of_what_is_not(cluster: Plasmon) -> None:
    holder, getter = cluster.client(HOLDER, 0), cluster.client(GETTER, 0)
    numbers = (0, 5)
    holder.ask("measure", operation="put", size=MIB, owner=0, numbers=numbers)
    counts = [cluster.fetched()]
    for _ in range(2):
        getter.ask("measure", operation="fetch", size=MIB, owner=0, numbers=numbers)
        counts.append(cluster.fetched())
    first = moved(counts[0], counts[1], 5)
    assert first is not None
    assert sum(first.values()) == 5
    with pytest.raises(PeerError, match="5 gets, but 0 objects"):
        moved(counts[1], counts[2], 5)
    assert getter.ask("evict")["bytes"] >= 5 * MIB
    getter.ask("measure", operation="fetch", size=MIB, owner=0, numbers=numbers)
    again = moved(counts[2], cluster.fetched(), 5)
    assert again is not None
    assert sum(again.values()) == 5


@pytest.mark.parametrize("contender", [Tcp(), Fabric()])
def test_the_bare_network_is_measured_with_its_bytes_compared(
    contender: Contender, network: Network, tmp_path: Path
) -> None:
    contender.start(network.hosts, tmp_path / contender.name, TINY.memory)
    try:
        worker = contender.getter(contender.ways[0], 0)
        for operation in worker.operations:
            for size in (1, 64) if operation.startswith("message") else (1, 64, 5 * MIB + 3):
                ask = {"operation": operation, "size": size, "owner": 0, "numbers": (0, 1), "calls": 3}
                assert len(worker.ask("measure", **ask)["ns"]) == 3
            too_much = {"operation": operation, "size": 1 << 30, "owner": 0, "numbers": (0, 1)}
            with pytest.raises(PeerError, match="1073741824 bytes"):
                worker.ask("measure", **too_much)
    finally:
        contender.close()


def test_growth_is_measured_by_objects_getters_and_nodes(network: Network, tmp_path: Path) -> None:
    (cluster,) = plasmon(["auto"])
    plan = growth.Plan((1, 70), nodes=(2, 3), getters=(1, 2), some=64, memory=128 * MIB, runs=2)
    cluster.start([], tmp_path / "cluster", plan.memory)
    try:
        points = list(growth.Growing(cluster, network, plan).points())
    finally:
        cluster.close()
    at = {axis: {point.at for point in points if point.axis == axis} for axis in growth.AXES}
    assert at == {"objects": {1, 70}, "getters": {1, 2}, "nodes": {2, 3}}
    assert all(0 < point.slowest_per_s <= point.objects_per_s <= point.fastest_per_s for point in points)
    assert all(point.nodes == point.at for point in points if point.axis == "nodes")


def test_first_and_mixed_gets_are_measured(network: Network, tmp_path: Path) -> None:
    plan = conditions.Plan(clusters=2, sizes=(KIB, MIB), reused=2, small=300, large=128 * MIB, turns=1)
    rows, failures = conditions.measure(
        lambda: plasmon(["auto"])[0], network.hosts[:2], tmp_path, plan, available=4 << 30
    )
    assert failures == []
    found = {(row.mode, row.operation, row.memory, row.size): row for row in rows}
    expected = {("connection", name, "cold", size) for name in ("first", "reused") for size in (KIB, MIB)}
    expected |= {("beside", name, memory, KIB) for name in ("idle", "busy") for memory in ("cold", "warm")}
    expected |= {("beside", "large", memory, 128 * MIB) for memory in ("cold", "warm")}
    assert set(found) == {*expected, ("beside", "large_alone", "", 128 * MIB)}
    for size in (KIB, MIB):
        assert found["connection", "first", "cold", size].samples == plan.clusters
        assert found["connection", "reused", "cold", size].samples == plan.clusters * plan.reused
    for memory in ("cold", "warm"):
        assert found["beside", "idle", memory, KIB].samples <= plan.small
        assert 0 < found["beside", "busy", memory, KIB].samples <= plan.small


def test_objects_are_made_and_deleted_alone_and_in_a_cluster(network: Network, tmp_path: Path) -> None:
    plan = making.Plan(sizes=(KIB, MIB), most=4, turns=1)
    rows, failures = making.measure(lambda: plasmon(["auto"])[0], network.hosts[:2], tmp_path, plan)
    assert failures == []
    found = {(row.operation, row.memory, row.size): row.samples for row in rows}
    made = {
        (what, where, size): 4
        for what in ("put", "replace", "create_seal")
        for where in ("alone", "pair")
        for size in (KIB, MIB)
    }
    assert found == made | {("delete", where, size): 8 for where in ("alone", "pair") for size in (KIB, MIB)}


def test_two_of_four_nodes_only_have_their_part_of_the_directory(network: Network, tmp_path: Path) -> None:
    four = Plasmon.of_four()
    plan = running.Plan(64 * MIB, (KIB,), (1,), turn=0.02, rounds=1, seconds=60.0, restless_seconds=1.0)
    rows, failures = measure([four, Tcp()], network, tmp_path, plan)
    assert failures == {}
    ours = {operation for peer, operation, *_ in rows if peer == "plasmon-four-python"}
    assert ours == {"fetch", "fetch_many"}


def test_a_cluster_that_fails_is_told_and_the_rest_is_measured(network: Network, tmp_path: Path) -> None:
    clusters = iter([Plasmon("auto", ["--provider", "carrier-pigeon"]), *plasmon(["auto"])])
    plan = conditions.Plan(clusters=1, small=300, large=64 * MIB, turns=1)
    rows, failures = conditions.measure(
        lambda: next(clusters), network.hosts[:2], tmp_path, plan, available=4 << 30
    )
    assert len(failures) == 1
    assert failures[0].startswith("first transfers: ")
    assert {row.mode for row in rows} == {"beside"}


def test_ray_gets_nothing_that_is_here(network: Network) -> None:
    ray = Ray()
    # pytest's own folder is too deep for Ray's sockets.
    folder = tempfile.TemporaryDirectory(prefix="bench-")
    if reason := ray.missing() or network.why_not:
        pytest.skip(reason)
    try:
        ray.start(network.hosts[:2], Path(folder.name) / "ray", 256 * MIB)
        worker = ray.getter(ray.ways[0], 0)
        # One object in a turn, as of the largest: to look at it after the put would bring it here.
        for first, size in enumerate((KIB, MIB, 16 * MIB)):
            work = {"size": size, "owner": 0, "numbers": (first, 1)}
            worker.ask("measure", operation="put", **work)
            worker.ask("prepare", operation="fetch", owner=0, numbers=(first, 1))
            assert len(worker.ask("measure", operation="fetch", **work)["ns"]) == 1
            with pytest.raises(PeerError, match="1 of 1 objects are on this host"):
                worker.ask("measure", operation="fetch", **work)
            with pytest.raises(PeerError, match="1 of 1 objects are on this host"):
                worker.ask("prepare", operation="fetch", owner=0, numbers=(first, 1))
    finally:
        ray.close()
        folder.cleanup()


def harness(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(paths.ROOT / "bench")}
    command = [sys.executable, "-B", "-m", "harness", *words]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def nothing_is_left(of: int) -> bool:
    return not list(Path("/run/netns").glob(f"{PREFIX}{of}-*"))


def test_a_quick_run_from_begin_to_end(tmp_path: Path) -> None:
    quick = harness("remote", "--quick", "--peers", "plasmon-auto", "tcp", "--results", str(tmp_path))
    _, said = quick.communicate(timeout=300)
    assert quick.returncode == 0, said
    described = json.loads((tmp_path / "remote.json").read_text())
    assert described["whole"]
    assert described["quick"]
    assert described["impossible"] == []
    assert {row.peer for row in REMOTE.read(tmp_path)} == {
        "plasmon-auto",
        "plasmon-python",
        "tcp",
    }
    modes = {"remote", "connection", "making", "beside", "lanes"}
    assert {row.mode for row in REMOTE.read(tmp_path)} == modes
    assert nothing_is_left(quick.pid)


def test_a_run_that_is_ended_keeps_what_it_has_and_leaves_nothing(tmp_path: Path) -> None:
    run = harness("remote", "--peers", "tcp", "--results", str(tmp_path))
    deadline = time.monotonic() + 300
    while not (tmp_path / "remote.json").exists():
        assert run.poll() is None
        if time.monotonic() > deadline:
            pytest.fail("there is no figure yet")
        time.sleep(0.1)
    run.terminate()
    _, said = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "Ended before its time" in said
    assert not json.loads((tmp_path / "remote.json").read_text())["whole"]
    assert len(REMOTE.read(tmp_path)) >= len(running.FULL.sizes)
    assert nothing_is_left(run.pid)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_get_what_the_others_have_put(ranks: int, tmp_path: Path) -> None:
    if reason := mpi.missing():
        pytest.skip(reason)
    with Network(ranks) as network:
        rows = mpi.measure(network, tmp_path, [0, KIB, MIB], batch=4, rounds=2)
    found = {(row.operation, row.size): row for row in rows}
    assert set(found) == {(operation, size) for operation in mpi.OPERATIONS for size in (0, KIB, MIB)}
    assert {row.samples for row in rows if row.operation == "fetch"} == {2 * 4 * (ranks - 1)}
    assert {row.samples for row in rows if row.operation != "fetch"} == {2 * 4}


def test_a_rank_that_fails_ends_all(tmp_path: Path) -> None:
    if reason := mpi.missing():
        pytest.skip(reason)
    with Network(2) as network, pytest.raises(PeerError, match=r"rank 1: .*Full"):
        # The nodes have a gigabyte: what the last rank creates does not fit.
        mpi.measure(network, tmp_path, [700 * MIB], batch=2, rounds=1)
