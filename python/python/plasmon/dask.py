"""Values of Dask's workers go through the store: `distributed` sends a handle, and the bytes are mapped.

    import plasmon.dask

    client = distributed.Client(...)
    plasmon.dask.install(client)

Large arrays of NumPy, and frames and tables of pandas, PyArrow, Polars, xarray and SciPy, are then put into
the node of the sender's host, and read in place by the receiver: on the same host without a copy, on another
host of the cluster by a transfer between the nodes. Values that came that way are read-only, as tasks have to
treat their arguments anyway.

A value goes as usual if it is small, if pickle copies most of it, if the store is full, or if the receiver's
address is neither that of the sender nor that of a node of the cluster. So do all values that Dask writes to
disk.

The process that puts an object owns it: with the process, however that ends, the object ends. The object of a
task's result ends before, when Dask releases the result on the worker that has put it, and objects of other
values (`Client.scatter`, results of actors) end after `IN_FLIGHT_SECONDS`. A receiver reads a value in place:
what has arrived stays readable, whatever becomes of the sender. A value whose sender ends before the receiver
has mapped it is lost like one of which Dask's connection breaks: the receiver raises `SenderEnded`, and Dask
gets the value from another worker, or computes it again.

Any thread: Dask serializes in its event loop and beside it. A thread of this module deletes objects.
"""

from __future__ import annotations

import builtins
import logging
import os
import pickle
import threading
import time
import weakref
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from dask.sizeof import sizeof
from distributed import Client, Worker
from distributed.comm.addressing import get_address_host
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol.serialize import (
    dask_deserialize,
    dask_dumps,
    dask_loads,
    dask_serialize,
    register_serialization_family,
)

import plasmon
from plasmon import _values
from plasmon._internal import ObjectId
from plasmon._mapped import client_of
from plasmon._terms import Terms

LEAST_BYTES = 256 << 10
"""Size of a value in bytes from which it goes through the store."""
IN_FLIGHT_SECONDS = 120.0
"""Time in seconds after which objects end that are no results of tasks."""
ARRIVAL_SECONDS = 10.0
"""Time in seconds for news of an object to come to the receiver's node, before the object counts as gone."""

_GONE = object()
"""Stands for the value of an object that is gone."""
_PACKAGES = frozenset(["numpy", "pandas", "polars", "pyarrow", "scipy", "xarray"])
"""Packages of whose types values go through the store."""
_MEMBERS_SECONDS = 5.0
"""Time in seconds for which the addresses of the cluster's nodes are taken to be the same."""


class SenderEnded(plasmon.Error, ConnectionError):  # noqa: N818
    """The object of a value is gone, because the process has ended that sent the value.

    Dask takes a `ConnectionError` for that of its own connection, and gets or computes the value again.
    """


class Handle:
    """Handle that is sent in place of a value: the id of its object, and the socket of the sender's node."""

    def __init__(self, id: ObjectId, socket: str) -> None:
        self.id = id
        self.socket = socket


class Sharing:
    """State of this process for sharing: its connection, its workers, and the objects of their results."""

    def __init__(self, client: plasmon.Client, least_bytes: int) -> None:
        self.client = client
        self.least_bytes = least_bytes
        self.workers: weakref.WeakSet[Worker] = weakref.WeakSet()
        self._results: dict[int, tuple[weakref.ref[Any], ObjectId]] = {}
        self._putting = threading.Lock()
        self._ended: SimpleQueue[tuple[int, ObjectId]] = SimpleQueue()
        self._hosts: frozenset[str] = frozenset()
        self._looked = -_MEMBERS_SECONDS
        threading.Thread(target=self._delete_ended, name="plasmon-dask", daemon=True).start()

    def dumps(self, value: Any, context: dict[str, Any] | None = None) -> Any:
        """Serializes a value as the family "dask" does, or its handle if it goes through the store."""
        # Without a context the value is written to disk, or kept.
        if context is not None and self._suits(value) and self._reaches(context):
            handle = self._handle(value)
            if handle is not None:
                return dask_dumps(handle)
        return dask_dumps(value, context=context)

    def _suits(self, value: Any) -> bool:
        if type(value).__module__.partition(".")[0] not in _PACKAGES or self.least_bytes > sizeof(value):
            return False
        try:
            return weakref.ref(value) is not None
        except TypeError:
            return False

    def _reaches(self, context: dict[str, Any]) -> bool:
        """Whether the receiver of a message is on a host that has a node of the cluster."""
        try:
            there = get_address_host(context["recipient"]["address"])
            here = get_address_host(context["sender"]["address"])
        except (KeyError, TypeError, ValueError):
            return False
        if there == here:
            return True
        if time.monotonic() - self._looked > _MEMBERS_SECONDS:
            try:
                members = self.client.status()["cluster"]["members"]
            except plasmon.Error:
                return False
            self._hosts = frozenset(member["listen"].rpartition(":")[0].strip("[]") for member in members)
            self._looked = time.monotonic()
        return there in self._hosts

    def _handle(self, value: Any) -> Handle | None:
        """Puts a value, unless it has an object already. `None` if it should go as usual."""
        try:
            with self._putting:
                is_result = self._is_result(value)
                id = self._put_result(value) if is_result else self._put(value, IN_FLIGHT_SECONDS)
        except plasmon.Error:  # The node is gone, or has no room.
            return None
        return None if id is None else Handle(id, self.client.socket)

    def _put_result(self, value: Any) -> ObjectId | None:
        """Puts the result of a task, unless its object is there. The object ends with the result."""
        key = builtins.id(value)
        if (entry := self._results.get(key)) and entry[0]() is value and self.client.contains(entry[1]):
            return entry[1]
        id = self._put(value, None)
        if id is not None:
            self._results[key] = weakref.ref(value), id
            # The callback runs in any thread, at any of its instructions: it only leaves a note.
            weakref.finalize(value, self._ended.put, (key, id)).atexit = False
        return id

    def _is_result(self, value: Any) -> bool:
        """Whether a value is a task's result in the memory of a worker of this process.

        Such a value does not change, and lives until its receivers have read it. So it needs one object for
        all of them, which ends with it.
        """
        for worker in self.workers:
            memory = getattr(worker.data, "memory", worker.data)
            if any(value is other for other in list(memory.values())):
                return True
        return False

    def _put(self, value: Any, ttl: float | None) -> ObjectId | None:
        """Puts a value that ends with this process. `None` if pickle would copy more than half of it."""
        try:
            encoded = _values.encode(value)
        except Exception:  # Dask tells what cannot be serialized.
            return None
        copied = memoryview(encoded.parts[0][1]).nbytes if b'"kind":"pickle"' in encoded.metadata else 0
        if encoded.size - copied < max(self.least_bytes, encoded.size // 2):
            return None
        id = ObjectId.random()
        self.client._store(id, encoded, Terms(None, "private", None, False, True, 1, ttl, owned=True))
        return id

    def _delete_ended(self) -> None:
        """Deletes the objects of results that ended."""
        while True:
            key, id = self._ended.get()
            with self._putting:
                if (entry := self._results.get(key)) and entry[1] == id:
                    del self._results[key]
            with suppress(plasmon.Error):
                self.client.delete(id)


_sharing: Sharing | None = None


def register(socket: str | os.PathLike[str] | None = None, *, least_bytes: int = LEAST_BYTES) -> Sharing:
    """Has this process send large values of Dask through the store.

    `install` does it in all workers. A process that only receives needs no call.

    Args:
        socket: Path of the node's socket, as for `plasmon.connect`.
        least_bytes: Size of a value in bytes from which it goes through the store.

    Raises:
        Disconnected, NotAllowed, TimedOut: As `plasmon.connect`.
    """
    global _sharing
    if _sharing is None or _sharing.client.closed:
        _sharing = Sharing(plasmon.connect(socket), least_bytes)
    register_serialization_family("dask", _sharing.dumps, dask_loads)
    return _sharing


def unregister() -> None:
    """Has this process send values as Dask does by itself. The objects of its results end with them."""
    register_serialization_family("dask", dask_dumps, dask_loads)


class Plugin(WorkerPlugin):  # type: ignore[misc]
    """Plugin that calls `register` in each worker. A worker on a host without a node shares nothing."""

    name = "plasmon"

    def __init__(self, socket: str | None = None, least_bytes: int = LEAST_BYTES) -> None:
        self._socket = socket
        self._least_bytes = least_bytes

    def setup(self, worker: Worker) -> None:
        """Begins with a worker."""
        try:
            register(self._socket, least_bytes=self._least_bytes).workers.add(worker)
        except plasmon.Disconnected as error:
            logging.getLogger("distributed.worker").warning("values do not go through Plasmon: %s", error)

    def teardown(self, worker: Worker) -> None:
        """Ends with a worker."""
        if _sharing is not None:
            _sharing.workers.discard(worker)


def install(
    client: Client, socket: str | os.PathLike[str] | None = None, *, least_bytes: int = LEAST_BYTES
) -> None:
    """Has a client of Dask, and all workers that it has or will have, send large values through the store.

    Args:
        client: Client of Dask.
        socket: Path of the node's socket on every host. By default each process finds its node by itself, as
            `plasmon.connect` does: by `$PLASMON_SOCKET` of its own environment, else at the default socket.
        least_bytes: Size of a value in bytes from which it goes through the store.

    Raises:
        Disconnected, NotAllowed, TimedOut: As `plasmon.connect`, for this process.
    """
    path = None if socket is None else os.fspath(socket)
    register(path, least_bytes=least_bytes)
    client.register_plugin(Plugin(path, least_bytes))


@dask_serialize.register(Handle)  # type: ignore[untyped-decorator]
def _dump_handle(handle: Handle) -> tuple[dict[str, Any], list[bytes]]:
    return {}, [pickle.dumps((handle.id, handle.socket))]


@dask_deserialize.register(Handle)  # type: ignore[untyped-decorator]
def _load_handle(_header: dict[str, Any], frames: list[Any]) -> Any:
    """Value behind a handle. A process that shares nothing reads from the sender's node if it can."""
    id, socket = pickle.loads(b"".join(frames))
    client = _sharing.client if _sharing else client_of(socket if os.path.exists(socket) else None)
    value = client.get(id, timeout=ARRIVAL_SECONDS, default=_GONE)
    if value is _GONE:
        raise SenderEnded(f"object {id} is gone with the process that sent it: ask for its value again")
    return value
