"""Dask's workers share values through the store. Each test has workers that are processes."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import plasmon
import pytest
from conftest import is_in_store, until

distributed = pytest.importorskip("distributed")
of_dask = pytest.importorskip("dask")
pd = pytest.importorskip("pandas")
pa = pytest.importorskip("pyarrow")

import plasmon.dask  # noqa: E402
from distributed.protocol import deserialize, serialize  # noqa: E402

HERE = {"sender": {"address": "tcp://127.0.0.1:1"}, "recipient": {"address": "tcp://127.0.0.1:2"}}
ELSEWHERE = {"sender": {"address": "tcp://127.0.0.1:1"}, "recipient": {"address": "tcp://192.0.2.1:2"}}
N = 200_000
WHERE_TOLD = {"distributed.scheduler.work-stealing": False}
"""Has tasks that name a worker run there as long as that worker lives."""


@pytest.fixture
def shared(near: plasmon.Client) -> Iterator[plasmon.Client]:
    """Has this process send values of Dask through a node."""
    plasmon.dask.register(near.socket)
    yield near
    plasmon.dask.unregister()
    plasmon.dask._sharing = None


def frame() -> Any:
    texts = [f"text {number}" for number in range(1000)]
    return pd.DataFrame({"a": np.arange(float(N)), "s": [texts[n % 1000] for n in range(N)]})


VALUES: dict[str, Callable[[], Any]] = {
    "array": lambda: np.random.default_rng(1).random((500, 300)),
    "array in the order of Fortran": lambda: np.asfortranarray(np.random.default_rng(1).random((500, 300))),
    "slice": lambda: np.random.default_rng(1).random((900, 300))[::2],
    "structure": lambda: np.zeros(N, dtype=[("a", "<f8"), ("b", "<M8[us]")]),
    "frame": frame,
    "series": lambda: frame()["a"],
    "table": lambda: pa.Table.from_pandas(frame()),
    "batch": lambda: pa.RecordBatch.from_pandas(frame()),
}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one.equals(other))


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_goes_as_a_handle(shared: plasmon.Client, kind: str) -> None:
    value = VALUES[kind]()
    header, frames = serialize(value, context=HERE)
    assert sum(memoryview(part).nbytes for part in frames) < 1000
    assert len(shared.list()) == 1
    got = deserialize(header, frames)
    assert type(got) is type(value)
    assert equal(got, value)
    if isinstance(got, np.ndarray):
        assert is_in_store(got.ctypes.data)
        assert not got.flags.writeable


@pytest.mark.parametrize(
    ("value", "context"),
    [
        (np.zeros(10), HERE),
        (np.zeros(N), ELSEWHERE),
        (np.zeros(N), None),
        (np.broadcast_to(np.zeros(1), (N,)), HERE),
        (np.array([object()] * N), HERE),
        (pd.DataFrame({"o": [{"a": 1}] * N}), HERE),
        (b"x" * (1 << 20), HERE),
        ({"a": "b"}, HERE),
    ],
)
def test_other_values_go_as_usual(shared: plasmon.Client, value: Any, context: Any) -> None:
    header, frames = serialize(value, context=context)
    assert shared.list() == []
    got = deserialize(header, frames)
    if not isinstance(value, np.ndarray) or not value.dtype.hasobject:
        assert equal(got, value) if hasattr(value, "dtype") else type(got) is type(value)


def test_a_value_goes_as_usual_if_the_store_is_full(shared: plasmon.Client) -> None:
    value = np.ones(shared.capacity // 8 + N)
    header, frames = serialize(value, context=HERE)
    assert np.array_equal(deserialize(header, frames), value)


@pytest.fixture
def dask(near: plasmon.Client) -> Iterator[Any]:
    """Client of Dask with two workers, which share values."""
    with (
        of_dask.config.set(WHERE_TOLD),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        plasmon.dask.install(client, near.socket)
        yield client
    plasmon.dask.unregister()
    plasmon.dask._sharing = None


@pytest.fixture
def apart(cluster: plasmon.LocalCluster, near: plasmon.Client) -> Iterator[Any]:
    """Client of Dask with a worker at each of two nodes, as on two hosts: each finds its node by itself."""
    options = {"host": "127.0.0.1", "nthreads": 1, "memory_limit": 0, "dashboard": False}
    workers = {
        number: {"cls": distributed.Nanny, "options": {**options, "env": {"PLASMON_SOCKET": socket}}}
        for number, socket in enumerate(cluster.sockets)
    }
    scheduler = {"cls": distributed.Scheduler, "options": {"host": "127.0.0.1", "dashboard": False}}
    with (
        of_dask.config.set(WHERE_TOLD),
        distributed.SpecCluster(workers=workers, scheduler=scheduler) as cluster_of_dask,
        distributed.Client(cluster_of_dask) as client,
    ):
        plasmon.dask.register(near.socket)
        client.register_plugin(plasmon.dask.Plugin())
        yield client
    plasmon.dask.unregister()
    plasmon.dask._sharing = None


def make(seed: int) -> Any:
    return np.random.default_rng(seed).random(N)


def look(array: Any) -> tuple[bool, bool, float]:
    return is_in_store(array.ctypes.data), array.flags.writeable, float(array.sum())


def test_workers_map_each_other_s_results(dask: Any, near: plasmon.Client) -> None:
    first, second = dask.scheduler_info()["workers"]
    made = dask.submit(make, 1, workers=[first])
    there = dask.submit(look, made, workers=[second])
    assert there.result() == (True, False, float(make(1).sum()))
    assert dask.submit(look, made, workers=[first], pure=False).result()[0] is False
    assert len(near.list()) == 1, "one object for all receivers"
    # The client gets the same object.
    got = made.result()
    assert is_in_store(got.ctypes.data)
    assert len(near.list()) == 1
    del made, there
    until("the object to end with the result", lambda: [row.state for row in near.list()] == ["doomed"])
    assert got.sum() == make(1).sum()


def test_scattered_values_go_through_the_store(dask: Any, near: plasmon.Client) -> None:
    array = make(2)
    futures = dask.scatter(array, broadcast=True)
    for worker in dask.scheduler_info()["workers"]:
        assert dask.submit(look, futures, workers=[worker], pure=False).result()[:2] == (True, False)
    array[:] = 0
    again = dask.scatter(array)
    assert dask.submit(look, again).result()[2] == 0


def test_an_array_that_a_task_changed_is_sent_anew_by_an_actor(dask: Any) -> None:
    actor = dask.submit(Counter, actor=True).result()
    for count in range(1, 4):
        assert actor.count().result().sum() == count * N


class Counter:
    """Actor whose results are one array, which changes."""

    def __init__(self) -> None:
        self._counts = np.zeros(N)

    def count(self) -> Any:
        self._counts += 1
        return self._counts


def test_a_shuffle_and_a_join(dask: Any) -> None:
    dd = pytest.importorskip("dask.dataframe")
    left = pd.DataFrame({"k": np.arange(N) % 1000, "v": np.arange(float(N))})
    right = pd.DataFrame({"k": np.arange(1000), "w": np.arange(1000.0)})
    parts = dd.from_pandas(left, npartitions=4)
    for method in ("tasks", "p2p"):
        shuffled = parts.shuffle("k", shuffle_method=method).compute()
        assert shuffled.sort_values(["v"])["v"].to_numpy().tolist() == left["v"].tolist()
    joined = parts.merge(dd.from_pandas(right, npartitions=1), on="k", broadcast=True).compute()
    assert (joined["w"] == joined["k"]).all()
    assert len(joined) == N


def test_a_worker_without_a_node_shares_nothing(near: plasmon.Client) -> None:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.register_plugin(plasmon.dask.Plugin("/nonexistent/plasmon.sock"))
        first, second = client.scheduler_info()["workers"]
        made = client.submit(make, 1, workers=[first])
        assert client.submit(look, made, workers=[second]).result()[0] is False


def test_objects_of_values_that_are_no_results_end_by_themselves(
    shared: plasmon.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plasmon.dask, "IN_FLIGHT_SECONDS", 0.2)
    message = serialize(make(1), context=HERE)
    until("the object to end", lambda: not shared.list())
    with pytest.raises(plasmon.Error):
        shared.get(pickle.loads(message[1][0])[0], timeout=0)


def ids_of(client: plasmon.Client) -> set[plasmon.ObjectId]:
    return {row.id for row in client.list(cluster=True)}


def test_a_value_whose_sender_has_ended_is_lost_like_a_connection(
    shared: plasmon.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, frames = serialize(make(1), context=HERE)
    arrived = deserialize(header, frames)
    sharing = plasmon.dask._sharing
    assert sharing is not None
    sharing.client.close()
    plasmon.dask._sharing = None
    until("its objects to end", lambda: [row.state for row in shared.list()] == ["doomed"])
    monkeypatch.setattr(plasmon.dask, "ARRIVAL_SECONDS", 0.1)
    with pytest.raises(plasmon.dask.SenderEnded, match="is gone with the process that sent it") as lost:
        deserialize(header, frames)
    assert isinstance(lost.value, OSError), "by which Dask knows that a connection broke"
    assert np.array_equal(arrived, make(1)), "what has arrived stays readable"


def lose_the_next_object() -> None:
    """Has this worker's next object be gone before anybody reads it, as with a worker that ends then."""
    sharing = plasmon.dask._sharing
    assert sharing is not None
    put = sharing._put

    def put_and_lose(value: Any, ttl: float | None) -> Any:
        id = put(value, ttl)
        sharing._put = put  # type: ignore[method-assign]
        if id is not None:
            sharing.client.delete(id)
        return id

    sharing._put = put_and_lose  # type: ignore[method-assign]


def wait_shortly() -> None:
    """Has this worker give objects less time to arrive."""
    plasmon.dask.ARRIVAL_SECONDS = 0.1


def test_dask_gets_a_value_again_whose_object_is_gone(dask: Any, near: plasmon.Client) -> None:
    first, second = dask.scheduler_info()["workers"]
    made = dask.submit(make, 1, workers=[first])
    distributed.wait(made)
    dask.run(lose_the_next_object, workers=[first])
    dask.run(wait_shortly, workers=[second])
    there = dask.submit(look, made, workers=[second])
    assert there.result() == (True, False, float(make(1).sum()))
    # A value is put anew, too, if its object was deleted or evicted later.
    near.delete(list(ids_of(near)))
    assert made.result().sum() == make(1).sum()


def test_a_client_gets_a_value_again_whose_object_is_gone(dask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plasmon.dask, "ARRIVAL_SECONDS", 0.1)
    first = next(iter(dask.scheduler_info()["workers"]))
    made = dask.submit(make, 1, workers=[first])
    distributed.wait(made)
    dask.run(lose_the_next_object, workers=[first])
    with pytest.raises(plasmon.dask.SenderEnded):
        made.result()
    assert made.result().sum() == make(1).sum()
    other = dask.submit(make, 2, workers=[first])
    distributed.wait(other)
    dask.run(lose_the_next_object, workers=[first])
    with of_dask.config.set({"distributed.comm.retry.count": 1}):
        assert other.result().sum() == make(2).sum()


@pytest.mark.parametrize("nodes", ["dask", "apart"])
def test_what_a_killed_worker_has_put_ends_with_it(
    near: plasmon.Client, nodes: str, request: pytest.FixtureRequest
) -> None:
    dask = request.getfixturevalue(nodes)
    pids = dask.run(os.getpid)
    first, second = pids
    put = {"workers": [first], "allow_other_workers": True}
    made = [dask.submit(make, seed, **put) for seed in range(6)]
    sums = [dask.submit(np.add, one, other, **put) for one, other in pairwise(made)]
    distributed.wait(made + sums)
    # The second worker maps some values, and others are only in the first worker.
    looks = [dask.submit(look, one, workers=[second]) for one in made[:2] + sums[:2]]
    assert all(is_mapped for is_mapped, _, _ in dask.gather(looks))
    in_store = ids_of(near)
    assert len(in_store) == 4
    os.kill(pids[first], signal.SIGKILL)
    until("the objects of the killed worker to end", lambda: not any(near.contains(list(in_store))))
    again = [dask.submit(look, one, workers=[second], pure=False) for one in made + sums]
    arrays = [make(seed) for seed in range(6)]
    wanted = arrays + [one + other for one, other in pairwise(arrays)]
    assert [total for _, _, total in dask.gather(again)] == [float(array.sum()) for array in wanted]


def test_a_worker_is_killed_amid_a_job(dask: Any, near: plasmon.Client) -> None:
    pids = dask.run(os.getpid)
    made = dask.map(make, range(12))
    sums = [dask.submit(np.add, one, other) for one, other in zip(made, reversed(made), strict=True)]
    totals = [dask.submit(look, one) for one in sums]
    distributed.wait(totals, return_when="FIRST_COMPLETED")
    os.kill(next(iter(pids.values())), signal.SIGKILL)
    wanted = [make(seed) + make(11 - seed) for seed in range(12)]
    assert [total for _, _, total in dask.gather(totals)] == [float(array.sum()) for array in wanted]
    del made, sums, totals
    until("no object to be left", lambda: not near.list())


def test_workers_at_two_nodes_read_each_other_s_results(
    apart: Any, near: plasmon.Client, far: plasmon.Client
) -> None:
    workers = {info["name"]: address for address, info in apart.scheduler_info()["workers"].items()}
    one = apart.submit(make, 1, workers=[workers[0]])
    other = apart.submit(make, 2, workers=[workers[1]])
    assert apart.submit(look, one, workers=[workers[1]]).result() == (True, False, float(make(1).sum()))
    assert apart.submit(look, other, workers=[workers[0]]).result() == (True, False, float(make(2).sum()))
    states = {row.state for row in near.list()}, {row.state for row in far.list()}
    assert states == ({"primary", "cached"}, {"primary", "cached"}), "each put at its own node"
    assert np.array_equal(other.result(), make(2))
    del one, other
    until("the objects to end on both", lambda: not ids_of(near) and not ids_of(far))
