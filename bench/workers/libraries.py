"""Worker that stores values of Python's libraries, with Plasmon and without: a line of JSON for each time.

`harness/python.py` runs it with an interpreter that has the library, one case a process. Without Plasmon,
a value is a pickle of protocol 5 in a file in shared memory, joblib uses its own files, and Dask TCP.

For a value, processes as many as `READERS` get it at the same time, each in a process that has imported the
library, reads all of it, and tells by how much its memory has grown.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import plasmon

READERS = 4
WAYS = ("plasmon", "without")
_together: Any = None
"""Barrier of the readers, in a reader."""
MIB = 1 << 20
SMALL = 80_000
"""Size in bytes of a value that a reader gets before it is measured."""
_FIELDS = {"Rss": "rss_mib", "Pss": "pss_mib", "Private_Clean": "private_mib", "Private_Dirty": "private_mib"}


def memory() -> dict[str, float]:
    """Memory of this process in MiB: resident, its share of what is shared, and its own alone."""
    sizes = dict.fromkeys(_FIELDS.values(), 0.0)
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        if name in _FIELDS:
            sizes[_FIELDS[name]] += int(rest.split()[0]) / 1024
    return sizes


def grown(before: dict[str, float]) -> dict[str, float]:
    """Memory in MiB that this process has more than before."""
    return {name: size - before[name] for name, size in memory().items()}


# Values: how each is made, and how all of it is read.


def texts(rows: int) -> list[str]:
    """Texts of a column, each longer than what Polars keeps in its views."""
    some = [f"text number {number:06}" for number in range(1000)]
    return [some[number % 1000] for number in range(rows)]


def array(size: int) -> Any:
    """Random numbers."""
    import numpy as np

    return np.random.default_rng(1).random(size // 8)


def torch_tensor(size: int) -> tuple[Any, Callable[[Any], object]]:
    """A tensor of PyTorch."""
    import torch

    return torch.rand(size // 4), lambda tensor: tensor.sum().item()


def polars_frame(size: int) -> tuple[Any, Callable[[Any], object]]:
    """A frame of Polars: six columns of numbers, one of texts."""
    import polars as pl

    rows = size // 80
    numbers = {f"c{number}": array(8 * rows) for number in range(6)}
    return pl.DataFrame({**numbers, "s": texts(rows)}), read_polars


def read_polars(frame: Any) -> object:
    """Reads all columns."""
    return [frame[name].hash().max() for name in frame.columns]


def pandas_frame(size: int) -> tuple[Any, Callable[[Any], object]]:
    """A frame of pandas: six columns of numbers, one of texts."""
    import pandas as pd

    rows = size // 72
    numbers = {f"c{number}": array(8 * rows) for number in range(6)}
    return pd.DataFrame({**numbers, "s": texts(rows)}), read_pandas


def read_pandas(frame: Any) -> object:
    """Reads all columns."""
    return frame.drop(columns="s").sum(), frame["s"].str.len().max()


def nested_arrays(size: int) -> tuple[Any, Callable[[Any], object]]:
    """A dictionary of arrays, which pickle 5 can leave beside the pickle."""
    value = {str(number): array(size // 10) for number in range(10)}
    return value, lambda value: sum(part.sum() for part in value.values())


VALUES = {
    "torch": torch_tensor,
    "polars": polars_frame,
    "pandas": pandas_frame,
    "pickle": nested_arrays,
}


class Files:
    """Values as pickles of protocol 5 in files in shared memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, value: Any) -> str:
        """Stores a value."""
        path = self._folder / uuid4().hex
        path.write_bytes(pickle.dumps(value, protocol=5))
        return str(path)

    def get(self, path: str) -> Any:
        """Gets a value."""
        return pickle.loads(Path(path).read_bytes())

    def delete(self, path: str) -> None:
        """Deletes a value."""
        os.unlink(path)


def measure_value(case: str, client: plasmon.Client, size: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Times of puts and gets of one value, both ways in turn."""
    warnings.simplefilter("ignore", plasmon.ReadOnlyMemory)
    value, read = VALUES[case](size)
    read(value)
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/dev/shm") as folder:
        stores: dict[str, Any] = {"plasmon": client, "without": Files(Path(folder))}
        for turn in range(rounds + 1):
            for way in WAYS if turn % 2 else reversed(WAYS):
                store = stores[way]
                begin = time.perf_counter()
                key = store.put(value)
                put = time.perf_counter()
                got = store.get(key)
                ended = time.perf_counter()
                read(got)
                del got
                if turn:  # The first turn warms up.
                    yield {"way": way, "operation": "put", "ms": 1e3 * (put - begin)}
                    yield {"way": way, "operation": "get", "ms": 1e3 * (ended - put)}
                store.delete(key)
        for way, store in stores.items():
            key = store.put(value)
            for told in readers(store, key, case):
                yield {"way": way, "operation": "memory", **told}
            store.delete(key)


def readers(store: Any, key: Any, case: str) -> list[dict[str, float]]:
    """Growth of the memory of processes that have the same value at the same time."""
    small = store.put(VALUES[case](SMALL)[0])
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(READERS)
    with context.Pool(READERS, initializer=_begin, initargs=(barrier,)) as pool:
        told = pool.map(growth, [(store, small, key, case)] * READERS, chunksize=1)
    store.delete(small)
    return told


def _begin(barrier: Any) -> None:
    """Begins a reader."""
    global _together
    _together = barrier
    warnings.simplefilter("ignore", plasmon.ReadOnlyMemory)


def growth(task: tuple[Any, Any, Any, str]) -> dict[str, float]:
    """Growth of this process by a get, while all readers hold the value."""
    store, small, key, case = task
    _, read = VALUES[case](SMALL)
    read(store.get(small))  # Imports what a get needs.
    _together.wait(60)
    before = memory()
    value = store.get(key)
    read(value)
    _together.wait(60)
    after = grown(before)
    _together.wait(60)
    return after


# joblib


def look(matrix: Any, number: int) -> float:
    """A call that reads a part of an array."""
    return float(matrix[number::64].sum())


def in_process(matrix: Any) -> tuple[int, dict[str, float]]:
    """Process of this call, and its memory while it holds an array that it has read."""
    matrix.sum()
    return os.getpid(), memory()


def measure_joblib(client: plasmon.Client, size: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Times of calls with one array, of the program's own and one that lies in the store.

    Memory of a process that makes calls with the program's own.
    """
    import joblib
    import plasmon.joblib

    plasmon.joblib.register()
    own = array(size)
    stored = client.get(client.put(own))
    # Memory comes first, as long as no page of the node's memory is mapped in the processes.
    for way in WAYS:
        words = {"socket": client.socket} if way == "plasmon" else {}
        with joblib.parallel_config("plasmon" if way == "plasmon" else "loky", n_jobs=2, **words):
            # Both processes run by then, and have imported what a call needs.
            before = dict(joblib.Parallel()(joblib.delayed(in_process)(own[:SMALL]) for _ in range(16)))
            after = dict(joblib.Parallel()(joblib.delayed(in_process)(own) for _ in range(16)))
        for process, held in after.items():
            if process in before:
                growth = {name: size - before[process][name] for name, size in held.items()}
                yield {"way": way, "operation": "memory", **growth}
    for turn in range(rounds + 1):
        for way in WAYS if turn % 2 else reversed(WAYS):
            words = {"socket": client.socket} if way == "plasmon" else {}
            with joblib.parallel_config("plasmon" if way == "plasmon" else "loky", n_jobs=2, **words):
                for operation, matrix in (("own array", own), ("stored array", stored)):
                    begin = time.perf_counter()
                    calls = joblib.Parallel()(joblib.delayed(look)(matrix, number) for number in range(16))
                    ended = time.perf_counter()
                    assert len(calls) == 16
                    if turn:
                        yield {"way": way, "operation": operation, "ms": 1e3 * (ended - begin)}


# Dask


@contextmanager
def dask_client(way: str, client: plasmon.Client) -> Iterator[Any]:
    """Client of Dask with two workers."""
    import distributed

    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as dask,
    ):
        if way == "plasmon":
            import plasmon.dask

            dask.register_plugin(plasmon.dask.Plugin(client.socket))
        yield dask


JOBS: dict[str, Callable[[Any, Any], Any]] = {
    "shuffle, tasks": lambda large, small: large.shuffle("k", shuffle_method="tasks"),
    "shuffle, p2p": lambda large, small: large.shuffle("k", shuffle_method="p2p"),
    "broadcast join": lambda large, small: large.merge(small, on="k", broadcast=True),
}


def received(dask: Any, frame: Any) -> dict[str, float]:
    """Growth of the memory of a worker that reads a frame of the other worker."""
    maker, reader = sorted(dask.scheduler_info()["workers"])
    for rows in (1, len(frame)):  # The first imports what a transfer needs.
        before = dask.run(memory, workers=[reader])[reader]
        made = dask.submit(frame.head, rows, workers=[maker], pure=False)
        dask.submit(read_numbers, made, workers=[reader], pure=False).result()
        after = dask.run(memory, workers=[reader])[reader]
    return {name: size - before[name] for name, size in after.items()}


def read_numbers(frame: Any) -> object:
    """Reads all columns of numbers."""
    return frame.sum().sum()


def measure_dask(client: plasmon.Client, size: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Times of a shuffle of a frame, by tasks and peer to peer, and of a join with a smaller one.

    Memory of a worker that gets a frame of another worker.
    """
    import dask.dataframe as dd
    import numpy as np
    import pandas as pd

    rows = size // 24
    keys = np.random.default_rng(2).integers(0, rows // 4, rows)
    left = pd.DataFrame({"k": keys, "v": array(8 * rows), "w": array(8 * rows)})
    right = pd.DataFrame({"k": np.arange(rows // 4), "x": array(8 * (rows // 4))})
    with dask_client("plasmon", client) as first, dask_client("without", client) as second:
        clients = {"plasmon": first, "without": second}
        # Memory comes first, as long as no page of the node's memory is mapped in the workers.
        for way, one in clients.items():
            yield {"way": way, "operation": "memory", **received(one, left)}
        inputs = {}
        for way, one in clients.items():
            with one.as_current():
                frames = dd.from_pandas(left, npartitions=8), dd.from_pandas(right, npartitions=2)
                inputs[way] = [frame.persist() for frame in frames]
        for turn in range(rounds + 1):
            for way in WAYS if turn % 2 else reversed(WAYS):
                for operation, job in JOBS.items():
                    with clients[way].as_current():
                        begin = time.perf_counter()
                        # A length alone would need no columns.
                        count = job(*inputs[way]).map_partitions(len).compute().sum()
                        ended = time.perf_counter()
                    assert count == rows, f"{operation}: {count} of {rows} rows"
                    if turn:
                        yield {"way": way, "operation": operation, "ms": 1e3 * (ended - begin)}
        inputs.clear()


def main() -> None:
    """Measures a case with a node of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=(*VALUES, "joblib", "dask"))
    parser.add_argument("--size", type=int, required=True, help="bytes of the value")
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    case, size, rounds = arguments.case, arguments.size, arguments.rounds
    room = (12 if case == "dask" else 4) * size + 64 * MIB
    with plasmon.LocalCluster(nodes=1, memory=room) as cluster:
        client = cluster.client()
        while (report := client.status()["memory"])["prefaulted"] < report["capacity"]:
            time.sleep(0.05)
        if case == "joblib":
            lines = measure_joblib(client, size, rounds)
        elif case == "dask":
            lines = measure_dask(client, size, rounds)
        else:
            lines = measure_value(case, client, size, rounds)
        for line in lines:
            print(json.dumps({"case": case, "bytes": size, **line}), flush=True)


if __name__ == "__main__":
    main()
