"""joblib's processes read arrays in the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from typing import Any

import numpy as np
import plasmon
import pytest
from conftest import ANTI_HANG, is_in_store, until

joblib = pytest.importorskip("joblib")

import plasmon.joblib  # noqa: E402
from joblib import Parallel, delayed  # noqa: E402

N = 300_000


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    plasmon.joblib.register()


@pytest.fixture
def parallel(near: plasmon.Client) -> Iterator[Any]:
    """A `Parallel` of two processes, which share arrays."""
    with joblib.parallel_config("plasmon", socket=near.socket):
        yield Parallel(n_jobs=2)
    for pool in plasmon.joblib._pools:
        pool.processes.shutdown(wait=True)


def look(array: Any) -> tuple[int, bool, bool, float]:
    return os.getpid(), is_in_store(array.ctypes.data), array.flags.writeable, float(array.sum())


def within(frame: Any) -> tuple[bool, float]:
    return is_in_store(frame["a"].to_numpy().ctypes.data), float(frame["a"].sum())


def twice(array: Any) -> Any:
    return 2 * array


def part(array: Any) -> Any:
    return array[1:-1:3]


def names(size: int) -> Any:
    return np.array([str(number) for number in range(size)], dtype=object)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_argument_is_put_once_and_mapped(parallel: Any, near: plasmon.Client, order: Any) -> None:
    array = np.asarray(np.random.default_rng(1).random((N // 300, 300)), order=order)
    seen = []
    near_ids = set()
    for result in Parallel(n_jobs=2, return_as="generator")(delayed(look)(array) for _ in range(10)):
        near_ids |= {row.id for row in near.list()}
        seen.append(result)
    assert {result[1:] for result in seen} == {(True, False, float(array.sum()))}
    assert os.getpid() not in {result[0] for result in seen}
    assert len(near_ids) <= 1
    until("the object to end with the Parallel", lambda: not near.list())


def test_an_array_in_the_store_goes_as_a_reference(parallel: Any, near: plasmon.Client) -> None:
    array = near.get(near.put(np.arange(N)))
    views = [array, array[::2], array[::-1], array.reshape(300, -1).T, array[:3]]
    for view, (_, in_store, writeable, total) in zip(
        views, parallel(delayed(look)(view) for view in views), strict=True
    ):
        assert (in_store, writeable, total) == (True, False, float(view.sum()))
    assert len(near.list()) == 1, "nothing else was put"


def test_a_deleted_object_is_put_again(parallel: Any, near: plasmon.Client) -> None:
    id = near.put(np.arange(N))
    array = near.get(id)
    near.delete(id)
    assert [result[3] for result in parallel(delayed(look)(array) for _ in range(2))] == [array.sum()] * 2


def test_frames_and_memmaps_are_shared_as_well(parallel: Any, tmp_path: Any) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": np.arange(float(N))})
    assert parallel([delayed(within)(frame)] * 2) == [(True, float(frame["a"].sum()))] * 2
    mapped = np.memmap(tmp_path / "file", np.uint8, "w+", shape=(2 << 20,))
    assert [result[1] for result in parallel([delayed(look)(mapped)] * 2)] == [True] * 2


def test_results_come_through_the_store(parallel: Any, near: plasmon.Client) -> None:
    arrays = [np.full(N, float(number)) for number in range(4)]
    results = parallel(delayed(twice)(array) for array in arrays)
    assert all(is_in_store(result.ctypes.data) for result in results)
    assert [float(result[0]) for result in results] == [0, 2, 4, 6]
    assert {row.state for row in near.list()} == {"doomed"}, "nobody else finds them"
    del results
    until("no object to be left", lambda: not near.list())


def test_a_result_that_is_a_part_of_an_object_is_no_copy(parallel: Any, near: plasmon.Client) -> None:
    array = near.get(near.put(np.arange(N)))
    for result in parallel([delayed(part)(array)] * 2):
        assert np.array_equal(result, array[1:-1:3])
        assert is_in_store(result.ctypes.data)


def test_small_arrays_and_objects_are_pickled(parallel: Any, near: plasmon.Client) -> None:
    assert [result[1] for result in parallel([delayed(look)(np.arange(10))] * 2)] == [False] * 2
    assert parallel([delayed(names)(3)] * 2)[1].tolist() == ["0", "1", "2"]
    big = np.zeros(N)
    pickled = Parallel(n_jobs=2, max_nbytes=None)([delayed(look)(big)] * 2)
    assert [result[1] for result in pickled] == [False] * 2


def test_what_does_not_fit_is_pickled(parallel: Any, near: plasmon.Client) -> None:
    held = near.buffer(near.capacity - (24 << 20))
    array = np.ones(4 << 20)
    assert [result[3] for result in parallel([delayed(look)(array)] * 2)] == [4 << 20] * 2
    del held


def fail(array: Any) -> None:
    raise LookupError(f"with {array.nbytes} bytes")


def test_after_an_error_no_object_is_left(parallel: Any, near: plasmon.Client) -> None:
    with pytest.raises(LookupError, match=f"with {8 * N} bytes"):
        parallel([delayed(fail)(np.zeros(N))] * 4)
    until("no object to be left", lambda: not near.list())
    assert [result[1] for result in parallel([delayed(look)(np.zeros(N))] * 2)] == [True] * 2


def test_views_to_write_to_are_refused(parallel: Any) -> None:
    with pytest.raises(ValueError, match="read-only"):
        Parallel(n_jobs=2, mmap_mode="r+")([delayed(look)(np.zeros(N))] * 2)


def test_loky_goes_on_beside_it(parallel: Any) -> None:
    array = np.ones(N)
    assert [result[1] for result in parallel([delayed(look)(array)] * 2)] == [True] * 2
    assert [result[3] for result in Parallel(n_jobs=2, backend="loky")([delayed(look)(array)] * 2)] == [N] * 2
    assert [result[1] for result in parallel([delayed(look)(array)] * 2)] == [True] * 2


def test_two_threads_have_processes_of_their_own(near: plasmon.Client) -> None:
    seen: dict[int, list[bool]] = {}

    def run(least: int) -> None:
        with joblib.parallel_config("plasmon", socket=near.socket):
            calls = Parallel(n_jobs=2, max_nbytes=least)(delayed(look)(np.ones(N)) for _ in range(6))
        seen[least] = [result[1] for result in calls]

    threads = [threading.Thread(target=run, args=[least]) for least in (1_000_000, 100_000_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {1_000_000: [True] * 6, 100_000_000: [False] * 6}
    until("no object to be left", lambda: not near.list())
    for pool in plasmon.joblib._pools:
        pool.processes.shutdown(wait=True)


prepared: list[Any] = []


def prepare(*what: Any) -> None:
    prepared.append(what)


def look_prepared(_: int) -> Any:
    return prepared


def test_processes_call_the_initializer_of_the_program(parallel: Any) -> None:
    # The arguments have no hash.
    calls = [delayed(look_prepared)(number) for number in range(6)]
    for what in ([1], [2], [1]):
        with Parallel(n_jobs=2, initializer=prepare, initargs=(what, "twice")) as own:
            assert own(calls) == own(calls) == [[(what, "twice")]] * 6
    assert Parallel(n_jobs=2)(calls) == [[]] * 6
    assert prepared == []


def fail_to_prepare() -> None:
    raise LookupError("nothing to prepare")


def test_an_initializer_that_raises_ends_the_call(parallel: Any) -> None:
    with pytest.raises(BrokenExecutor):
        Parallel(n_jobs=2, initializer=fail_to_prepare)(delayed(look_prepared)(0) for _ in range(4))
    assert parallel(delayed(look_prepared)(0) for _ in range(2)) == [[]] * 2


@pytest.fixture
def joblibs(near: plasmon.Client, parallel: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """joblib's own tests, which name a backend, with this one."""
    own = pytest.importorskip("joblib.test.test_parallel")
    monkeypatch.setenv("PLASMON_SOCKET", near.socket)
    monkeypatch.setattr(own, "Parallel", lambda **options: Parallel(**{**options, "backend": "plasmon"}))
    return own


@pytest.mark.parametrize("context", [joblib.parallel_config, joblib.parallel_backend])
def test_joblibs_test_of_initializers_of_a_context(joblibs: Any, context: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(joblibs, "Parallel", Parallel)
    joblibs.test_initializer_context(2, "plasmon", context)


def test_joblibs_tests_of_initializers(joblibs: Any) -> None:
    joblibs.test_initializer_parallel(2, "plasmon")
    joblibs.test_initializer_reused(2)
    joblibs.test_initializer_not_reused(2)


PROGRAM = """
import os
import sys
import joblib
import numpy as np
import plasmon.joblib
from joblib import Parallel, delayed

def twice(array):
    return 2 * array

plasmon.joblib.register()
with joblib.parallel_config("plasmon", socket=sys.argv[1]):
    with Parallel(n_jobs=2) as parallel:
        print(*parallel(delayed(os.getpid)() for _ in range(10)), flush=True)
        array = np.ones(300_000)
        while True:
            parallel(delayed(twice)(array) for _ in range(100))
"""


def runs(pid: int) -> bool:
    """Whether there is such a process, other than one that has ended and that nobody has waited for."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_of_a_killed_program_nothing_is_left(near: plasmon.Client) -> None:
    command = [sys.executable, "-c", PROGRAM, near.socket]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        processes = {int(pid) for pid in program.stdout.readline().split()}
        until("an argument to be put", lambda: bool(near.list()))
        # Nobody takes the results of a program that is stopped.
        program.send_signal(signal.SIGSTOP)
        until("results to be put", lambda: len(near.list()) > 2)
        program.kill()
    until("all objects to end", lambda: not near.list())
    until("its processes to end", lambda: not any(runs(pid) for pid in processes))


PROGRAM_WITH_A_KILLED_PROCESS = """
import os
import signal
import sys
import joblib
import numpy as np
import plasmon.joblib
from joblib import Parallel, delayed

def twice(array, number):
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * array

plasmon.joblib.register()
with joblib.parallel_config("plasmon", socket=sys.argv[1]):
    try:
        Parallel(n_jobs=2)(delayed(twice)(np.ones(300_000), number) for number in range(8))
    except Exception as error:
        print(type(error).__name__, flush=True)
        input()
"""


def test_of_a_killed_process_nothing_is_left(near: plasmon.Client) -> None:
    command = [sys.executable, "-c", PROGRAM_WITH_A_KILLED_PROCESS, near.socket]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "TerminatedWorkerError\n"
        # The error holds results that have arrived, which nobody else finds.
        until("objects to end", lambda: {row.state for row in near.list()} <= {"doomed"})
        program.communicate("\n", timeout=ANTI_HANG)
    until("all objects to end", lambda: not near.list())
