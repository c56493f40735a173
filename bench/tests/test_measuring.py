"""Tests of the harness with a real node: what it measures, and how it handles failures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import figures, local, objects, peers
from harness.processes import PeerError, Worker

TINY = local.Plan(
    memory=256 << 20,
    first_rounds=1,
    rounds=1,
    client_rounds=1,
    turn=0.01,
    window=0.05,
    objects=2000,
    clients=(1, 2),
)


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[peers.Peer]:
    peer = peers.PlasmonPython()
    peer.start(tmp_path / "node", TINY.memory)
    yield peer
    peer.stop()


@pytest.fixture
def worker(peer: peers.Peer) -> Iterator[Worker]:
    worker = peer.client(0)
    yield worker
    worker.close()


def ask(worker: Worker, operation: str, count: int, **more: object) -> int:
    """Measures an operation. Returns the number of calls."""
    request = {"operation": operation, "size": 4096, "owner": 0, "numbers": (0, count), **more}
    return len(worker.ask("measure", **request)["ns"])


def test_a_worker_times_every_call_on_objects_that_are_there(worker: Worker) -> None:
    assert ask(worker, "put", 5) == 5
    assert ask(worker, "get", 5, calls=12) == 12
    assert ask(worker, "contains", 5, calls=5) == 5
    assert ask(worker, "delete", 5) == 5


def test_a_failure_is_said_and_the_worker_goes_on(worker: Worker) -> None:
    assert ask(worker, "put", 1) == 1
    with pytest.raises(PeerError, match="ObjectExists"):
        ask(worker, "put", 1)
    with pytest.raises(PeerError, match="does not know"):
        worker.ask("measure", operation="contains", size=4096, owner=1, numbers=(0, 1), calls=1)
    assert ask(worker, "get", 1, calls=1) == 1


def test_other_bytes_than_were_put_are_noticed(worker: Worker) -> None:
    ask(worker, "put", 1)
    with pytest.raises(PeerError, match="other bytes"):
        worker.ask("measure", operation="get", size=1024, owner=0, numbers=(0, 1), calls=1)


def test_clients_together_put_and_get_what_others_put(tmp_path: Path) -> None:
    rows, failures, versions = local.measure([peers.PlasmonPython()], TINY, tmp_path)
    assert not failures
    assert set(versions) == {"plasmon-python"}
    measured = {(row.mode, row.operation, row.clients) for row in rows}
    assert {("single", "get", 1), ("sustained", "put_many", 1), ("sustained", "get", 2)} <= measured
    assert all(row.median_us > 0 and row.ops_per_s > 0 for row in rows)


def test_a_peer_that_dies_is_named_and_the_others_are_measured(tmp_path: Path) -> None:
    class Doomed(peers.PlasmonPython):
        name = "doomed"

        def client(self, number: int) -> Worker:
            worker = super().client(number)
            self.stop()
            return worker

    rows, failures, _ = local.measure([Doomed(), peers.PlasmonPython()], TINY, tmp_path)
    assert list(failures) == ["doomed"]
    assert {row.peer for row in rows} == {"plasmon-python"}


def test_a_store_that_fills_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "QUICK_STAGES", [2000, 4000])
    monkeypatch.setattr(objects, "LEAST_MEMORY", 64 << 20)
    monkeypatch.setattr(objects, "SETTLE", 0.0)
    stages, failures = objects.measure([peers.PlasmonPython()], True, tmp_path)
    assert not failures
    assert [stage.objects for stage in stages] == [2000, 4000]
    # An object is known by 20 bytes, at the least, and no object costs what a page does.
    assert all(20 < stage.bytes_per_object < 4096 for stage in stages)
    figures.write(tmp_path / "objects.csv", stages, objects.Stage)
    assert figures.read(tmp_path / "objects.csv", objects.Stage) == stages
