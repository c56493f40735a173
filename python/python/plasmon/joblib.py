"""joblib whose processes read large arrays in the store, in place of files in a folder.

    import plasmon.joblib

    plasmon.joblib.register()
    with joblib.parallel_config("plasmon"):
        joblib.Parallel(n_jobs=4)(joblib.delayed(f)(array, i) for i in range(100))

`initializer=` and `initargs=` of `Parallel` and `parallel_config` work as with loky: each process calls the
function before its first task, and a `Parallel` with others has other processes.

An array that lies in the store goes to a process as a reference, whatever its size. A large array elsewhere,
on its own or within a frame or another value, is put once for all calls of a `Parallel`; its object ends with
that. A large array that a process returns comes back through the store. All of them are read-only where they
arrive. An array for which the store has no room is pickled.

Every object is owned by the process that has put it, and ends with it. A process of loky ends only when the
program has read its results. If the program is killed, its processes end as well.

Threads of joblib run the reducers. `_Arguments` owns the objects of the arguments, under its lock.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Self

import joblib
import numpy as np
from joblib._parallel_backends import FallbackToBackend, LokyBackend, SequentialBackend
from joblib.externals.loky import ProcessPoolExecutor

import plasmon
from plasmon._client import Client
from plasmon._internal import ObjectId
from plasmon._mapped import GET_SECONDS, Reference, client_of, reference, restore

LEAST_BYTES = 1_000_000
"""Size of an array in bytes from which it is put, unless `Parallel(max_nbytes=)` says otherwise."""
IDLE_SECONDS = 300
"""Time in seconds after which a process without tasks ends, as with loky."""
LOOK_SECONDS = 0.5
"""Time in seconds after which a process looks again whether its program still runs."""


def register(name: str = "plasmon") -> None:
    """Registers the backend, for `joblib.parallel_config(name)` and `Parallel(backend=name)`.

    `joblib.parallel_config(name, socket=PATH)` names the node's socket.

    Args:
        name: Name of the backend.
    """
    joblib.register_parallel_backend(name, Backend)


class Backend(LokyBackend):  # type: ignore[misc]
    """Processes of loky, whose arguments and results go through the store."""

    _workers: Any
    _pool: _Pool

    def configure(
        self,
        n_jobs: int = 1,
        parallel: Any = None,
        prefer: str | None = None,
        require: str | None = None,
        idle_worker_timeout: float | None = None,
        **options: Any,
    ) -> int:
        """Takes the processes that a `Parallel` needs. Returns their number."""
        options = {**self.backend_kwargs, **options}
        mmap_mode = options.get("mmap_mode", "r")
        if mmap_mode not in ("r", None):
            raise ValueError(f"arrays in the store are read-only: mmap_mode cannot be {mmap_mode!r}")
        n_jobs = self.effective_n_jobs(n_jobs)
        if n_jobs == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        if idle_worker_timeout is None:
            idle_worker_timeout = options.get("idle_worker_timeout", IDLE_SECONDS)
        self._pool = _begin(
            _Settings(
                n_jobs,
                options.get("socket"),
                options.get("max_nbytes", LEAST_BYTES),
                idle_worker_timeout,
                self._prepare_worker_env(n_jobs=n_jobs),
                options.get("initializer"),
                tuple(options.get("initargs", ())),
            )
        )
        self._workers = self._pool.processes
        self.parallel = parallel
        return n_jobs

    def terminate(self) -> None:
        """Ends the objects of this `Parallel`. The processes stay for the next one."""
        if self._workers is not None:
            self._workers = None
            self._pool.arguments.end()
        self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Kills the processes, after an error."""
        self._workers.shutdown(kill_workers=True)
        self.terminate()
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)


class _Processes(ProcessPoolExecutor):  # type: ignore[misc]
    """Processes of loky without a folder, whose manager joblib tells which `Parallel` is at work."""

    @property
    def _temp_folder_manager(self) -> Self:
        return self

    def set_current_context(self, context_id: str) -> None:
        """Takes note of nothing."""


class _Settings(NamedTuple):
    """Settings of processes. A `Parallel` with the same ones uses the same processes."""

    n_jobs: int
    socket: str | None
    least: float | None
    """Size of an array in bytes from which it is put. `None` for no array."""
    idle: float
    """Time in seconds after which a process without tasks ends."""
    environment: dict[str, str]
    initializer: Callable[..., object] | None
    """Function of the program that each process calls first."""
    initargs: tuple[Any, ...]

    def are(self, others: _Settings) -> bool:
        """Whether others are the same. Arguments that cannot be compared are not."""
        try:
            return bool(self == others)
        except Exception:
            return False


class _Pool:
    """Processes of loky, and the reducer of their arguments."""

    def __init__(self, settings: _Settings) -> None:
        client = client_of(settings.socket)
        self.settings = settings
        self.arguments = _Arguments(client, settings.least)
        results = _Results(client.socket, settings.least)
        self.processes = _Processes(
            settings.n_jobs,
            timeout=settings.idle,
            env=settings.environment,
            initializer=_start,
            initargs=(os.getpid(), settings.initializer, settings.initargs),
            job_reducers={np.ndarray: self.arguments, np.memmap: self.arguments},
            result_reducers={np.ndarray: results, np.memmap: results},
        )

    @property
    def usable(self) -> bool:
        flags = self.processes._flags
        return not flags.shutdown and flags.broken is None


_pools: list[_Pool] = []
"""Processes that are in use, and those that were last used."""
_choosing = threading.Lock()


def _begin(settings: _Settings) -> _Pool:
    """Begins a `Parallel` on processes of these settings: existing ones if there are any, else new ones."""
    with _choosing:
        found = None
        for pool in list(_pools):
            same = pool.usable and pool.settings.are(settings)
            if same:
                found = pool
            elif not (pool.usable and pool.arguments.users):
                _pools.remove(pool)
                pool.processes.shutdown(wait=False)
        if found is None:
            found = _Pool(settings)
            _pools.append(found)
        found.arguments.begin()
        return found


def _start(program: int, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
    """Prepares this process: it ends with its program, and calls the program's function."""
    _end_with(program)
    if initializer is not None:
        initializer(*initargs)


def _end_with(program: int) -> None:
    """Has this process end when its program has ended, which loky's processes do not notice.

    A process of a program that was killed would keep the arrays that it works on, and wait for ever to hand
    over a result.
    """

    def look() -> None:
        while os.getppid() == program:
            time.sleep(LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=look, name="plasmon-joblib", daemon=True).start()


class _Arguments:
    """Reduces the arrays among arguments, in the program that calls `Parallel`."""

    def __init__(self, client: Client, least: float | None) -> None:
        self._client = client
        self._least = least
        self._lock = threading.Lock()
        self.users = 0
        self._put: dict[int, tuple[weakref.ref[Any], Reference]] = {}
        self._ids: list[ObjectId] = []

    def __reduce__(self) -> Any:
        # The queue of calls takes its reducers along to the processes, where only their own arrays matter.
        return _Results, (self._client.socket, self._least)

    def begin(self) -> None:
        """Begins a `Parallel`."""
        with self._lock:
            self.users += 1

    def end(self) -> None:
        """Ends a `Parallel`. With the last one, all objects end."""
        with self._lock:
            self.users -= 1
            if self.users:
                return
            ids, self._ids = self._ids, []
            self._put.clear()
        with suppress(plasmon.Error):  # The objects end with this process.
            self._client.delete(ids)

    def __call__(self, array: np.ndarray[Any, Any]) -> Any:
        """Reduces an array to a reference if it is in the store, or large."""
        place = reference(array)
        if place is not None and self._client.contains(place.id):
            return _map, (self._client.socket, place)
        if not _is_large(array, self._least):
            return _plain(array)
        with self._lock:
            of, place = self._put.get(id(array), (None, None))
            if of is None or of() is not array:
                place = _put(self._client, array)
                if place is not None:
                    self._ids.append(place.id)
                    self._put[id(array)] = weakref.ref(array), place
        return _plain(array) if place is None else (_map, (self._client.socket, place))


class _Results:
    """Reduces the arrays among results, in a process of the pool."""

    def __init__(self, socket: str, least: float | None) -> None:
        self._socket = socket
        self._least = least

    def __call__(self, array: np.ndarray[Any, Any]) -> Any:
        """Reduces an array to a reference if it is in the store, or large."""
        client = client_of(self._socket)
        place = reference(array)
        if place is not None and client.contains(place.id):
            return _map, (self._socket, place)
        if _is_large(array, self._least):
            place = _put(client, array)
            if place is not None:
                return _take, (self._socket, place)
        return _plain(array)


def _is_large(array: np.ndarray[Any, Any], least: float | None) -> bool:
    return least is not None and array.nbytes > least and not array.dtype.hasobject


def _put(client: Client, array: np.ndarray[Any, Any]) -> Reference | None:
    """Puts an array that ends with this process. `None` if the store does not take it."""
    in_order_of_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    elements = np.asarray(array, order="F" if in_order_of_fortran else "C")
    try:
        id = client.put(elements.reshape(-1, order="A").view(np.uint8), private=True, owned=True)
    except plasmon.Error:
        return None
    return Reference(id, 0, array.dtype, array.shape, elements.strides)


def _plain(array: np.ndarray[Any, Any]) -> Any:
    """Reduces an array to its elements, as NumPy does."""
    return np.asarray(array).__reduce__()


def _map(socket: str, place: Reference) -> np.ndarray[Any, Any]:
    """Array over the memory of an object."""
    (buffer,) = client_of(socket).get_buffers([place.id], timeout=GET_SECONDS)
    return restore(place, buffer)


def _take(socket: str, place: Reference) -> np.ndarray[Any, Any]:
    """Array over the memory of an object that nobody else will read: the object ends with the array."""
    array = _map(socket, place)
    with suppress(plasmon.Error):  # The object ends with its process.
        client_of(socket).delete(place.id)
    return array
