"""Client with Plasma's interface.

It holds a `plasmon.Client`, and state that Plasma's own client had in addition to the store: its
subscription, and the objects that it is creating, which live until they are sealed even if the program has
dropped their buffers.

Objects belong to all users, as with Plasma: every user who may connect may delete them.

After `seal` the buffer of `create` stays readable, as with Plasma: it keeps the sealed object pinned until
its last view is gone.
"""

from __future__ import annotations

import builtins
import contextlib
import math
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict

import plasmon
from plasmon import errors
from plasmon._internal import Buffer, Creation, ObjectId
from plasmon.plasma import _notifications, _values
from plasmon.plasma._arrow import py_buffer
from plasmon.plasma._errors import AlreadySealed, PlasmaObjectNotFound, raises_plasma_errors
from plasmon.plasma._ids import ObjectID, from_native, native, natives
from plasmon.plasma._notifications import Notification, Notifications

if TYPE_CHECKING:
    import socket

    from typing_extensions import Buffer as Readable

_RETRIES = 50
_RETRY_SECONDS = 0.1
"""Number of attempts of Plasma to connect, and time between them in seconds."""


class ObjectNotAvailable:
    """Mark for the value of an object that did not come in time: the class itself, not an instance."""


class ObjectEntry(TypedDict):
    """Object in the result of `PlasmaClient.list`."""

    data_size: int
    """Size of the data in bytes."""
    metadata_size: int
    """Size of the metadata in bytes."""
    ref_count: int
    """Number of uses."""
    create_time: int
    """Time of the creation, in seconds of Unix time."""
    construct_duration: int
    """Time from creation to seal in whole seconds. -1 before the seal."""
    state: str
    """State of the object: `"created"` or `"sealed"`."""


class PlasmaClient:
    """Connection to a store, which `connect` makes."""

    def __init__(self, client: plasmon.Client) -> None:
        self._client = client
        self._socket = client.socket
        self._capacity = client.capacity
        self._creating: dict[ObjectId, Creation] = {}
        self._notifications: Notifications | None = None

    def __reduce__(self) -> NoReturn:
        # These are the words of Plasma's own client, whose class is made by Cython.
        raise TypeError(
            "no default __reduce__ due to non-trivial __cinit__: a client of Plasma cannot be pickled or "
            "copied; give the other process the path of the socket, to connect there"
        )

    @property
    def store_socket_name(self) -> str:
        """Path of the store's socket."""
        return self._socket

    @raises_plasma_errors
    def create(self, object_id: ObjectID, data_size: int, metadata: bytes = b"") -> Any:
        """Creates an object, which no other client sees before `seal`.

        Args:
            object_id: Id of the object.
            data_size: Size of the data in bytes.
            metadata: Metadata of the object, any bytes below 4 GiB.

        Returns:
            Buffer to write the data to. After `seal` it can be read, and must not be written to.

        Raises:
            PlasmaObjectExists: The id is taken.
            PlasmaStoreFull: There is no room, and none can be made.
        """
        id = native(object_id)
        creation = self._client.create(id, data_size, _bytes(metadata), public="rw", timeout=0)
        self._creating[id] = creation
        return py_buffer(creation)

    @raises_plasma_errors
    def seal(self, object_id: ObjectID) -> None:
        """Makes an object that this client is creating immutable and visible to all.

        Raises:
            PlasmaObjectNotFound: This client is not creating an object of this id.
            ArrowTypeError: The object is sealed already.
        """
        id = native(object_id)
        creation = self._creating.pop(id, None)
        if creation is None:
            if self._client.contains(id):
                raise AlreadySealed(f"object {id} is sealed already")
            raise PlasmaObjectNotFound(f"this client is not creating object {id}: it cannot seal it")
        creation.seal()
        in_use = weakref.ref(creation)
        del creation
        if (creation := in_use()) is not None:
            self._pin_for(creation, id)

    def _pin_for(self, creation: Creation, id: ObjectId) -> None:
        """Pins a sealed object as long as the buffer lives through which it was written."""
        try:
            (buffer,) = self._client.get_buffers([id], 0)
        except errors.ObjectNotFound:  # It was evicted or deleted since.
            return
        weakref.finalize(creation, _release, buffer).atexit = False

    @raises_plasma_errors
    def create_and_seal(self, object_id: ObjectID, data: Readable, metadata: bytes = b"") -> None:
        """Stores bytes in one call.

        Args:
            object_id: Id of the object.
            data: Data of the object.
            metadata: Metadata of the object, any bytes below 4 GiB.

        Raises:
            PlasmaObjectExists, PlasmaStoreFull: As `create`.
        """
        self._client.create_and_seal(native(object_id), data, _bytes(metadata), public="rw", timeout=0)

    def put_raw_buffer(
        self,
        value: Readable,
        object_id: ObjectID | None = None,
        metadata: bytes = b"",
        memcopy_threads: int = 6,
    ) -> ObjectID:
        """Stores bytes in one call.

        Args:
            value: Bytes to store, as an object with the buffer protocol.
            object_id: Id of the object. `None` for a random one.
            metadata: Metadata of the object, any bytes below 4 GiB.
            memcopy_threads: Ignored: the client chooses the number of threads.

        Returns:
            Id of the object.

        Raises:
            PlasmaObjectExists, PlasmaStoreFull: As `create`.
        """
        target = object_id or ObjectID.from_random()
        self.create_and_seal(target, value, metadata)
        return target

    @raises_plasma_errors
    def put(
        self,
        value: object,
        object_id: ObjectID | None = None,
        memcopy_threads: int = 6,
        serialization_context: Any = None,
    ) -> ObjectID:
        """Stores a value.

        Args:
            value: Value to store: everything that `plasmon.Client.put` takes, which includes all that can be
                pickled.
            object_id: Id of the object. `None` for a random one.
            memcopy_threads: Ignored: the client chooses the number of threads.
            serialization_context: `pyarrow.SerializationContext` for types that are registered with it. `get`
                needs the same.

        Returns:
            Id of the object.

        Raises:
            PlasmaObjectExists, PlasmaStoreFull: As `create`.
        """
        target = object_id or ObjectID.from_random()
        if serialization_context is not None:
            value = _values.InContext.of(value, serialization_context)
        if type(value) is bytes:
            self._client.create_and_seal(native(target), value, _values.BYTES, public="rw", timeout=0)
        else:
            self._client.put(value, id=native(target), public="rw", timeout=0)
        return target

    def get(
        self,
        object_ids: ObjectID | Sequence[ObjectID],
        timeout_ms: int = -1,
        serialization_context: Any = None,
    ) -> Any:
        """Waits for objects and returns their values.

        Args:
            object_ids: One id, or a sequence of ids.
            timeout_ms: Time in milliseconds to wait for all of the objects together; -1 waits without limit,
                0 does not wait.
            serialization_context: Context with which the values were put.

        Returns:
            Value of the object, or a list of the values in order. Arrays are read in place in the store, and
            are read-only. `ObjectNotAvailable` stands for an object that did not come in time.

        Raises:
            ArrowSerializationError: An object was put with a serialization context, and none is given here.
        """
        if not isinstance(object_ids, Sequence):
            return self.get([object_ids], timeout_ms, serialization_context)[0]
        return [
            ObjectNotAvailable if buffer is None else _values.decode(buffer, serialization_context)
            for buffer in self._get(object_ids, timeout_ms)
        ]

    def get_buffers(
        self, object_ids: Iterable[ObjectID], timeout_ms: int = -1, with_meta: bool = False
    ) -> builtins.list[Any]:
        """Waits for objects and returns their data.

        Args:
            object_ids: Ids of the objects.
            timeout_ms: Time in milliseconds to wait for all of the objects together; -1 waits without limit,
                0 does not wait.
            with_meta: Whether to return the metadata, too.

        Returns:
            For each id in order a buffer, read-only and in place; with `with_meta` a tuple of the metadata as
            bytes and that buffer. Both are `None` for an object that did not come in time.
        """
        buffers = self._get(object_ids, timeout_ms)
        if with_meta:
            return [
                (None, None) if buffer is None else (buffer.metadata, py_buffer(buffer)) for buffer in buffers
            ]
        return [None if buffer is None else py_buffer(buffer) for buffer in buffers]

    def get_metadata(self, object_ids: Iterable[ObjectID], timeout_ms: int = -1) -> builtins.list[Any]:
        """Waits for objects and returns their metadata.

        Args:
            object_ids: Ids of the objects.
            timeout_ms: Time in milliseconds to wait for all of the objects together; -1 waits without limit,
                0 does not wait.

        Returns:
            For each id in order a buffer with a copy of the metadata, or `None` for an object that did not
            come in time.
        """
        return [
            None if buffer is None else py_buffer(buffer.metadata)
            for buffer in self._get(object_ids, timeout_ms)
        ]

    @raises_plasma_errors
    def _get(self, object_ids: Iterable[ObjectID], timeout_ms: int) -> Sequence[Buffer | None]:
        """Pins the objects that come in time."""
        ids = natives(object_ids)
        if timeout_ms in (-1, math.inf):
            for id in self._creating.keys() & ids:
                raise errors.InvalidArgument(
                    f"this client is creating object {id} itself: seal it before you wait for it"
                )
            return self._client.get_buffers(ids)
        return self._client._native.get_available(ids, timeout_ms / 1000)

    @raises_plasma_errors
    def contains(self, object_id: ObjectID) -> bool:
        """Whether an object is sealed, or is being created by this client."""
        id = native(object_id)
        return id in self._creating or self._client.contains(id)

    @raises_plasma_errors
    def hash(self, object_id: ObjectID) -> bytes:
        """Digest of 8 bytes of data and metadata. Equal objects have the same digest on every node.

        Raises:
            PlasmaObjectNotFound: There is no such sealed object.
        """
        id = native(object_id)
        found = self._client._native.get_local(id)
        if found is None:
            raise errors.ObjectNotFound(f"object {id} is not on this node")
        return found.digest()

    @raises_plasma_errors
    def delete(self, object_ids: Iterable[ObjectID]) -> None:
        """Deletes objects on every node. Ids without an object are ignored.

        Buffers and values that were got stay readable. The memory is freed once they are gone.
        """
        self._client.delete(natives(object_ids))

    @raises_plasma_errors
    def evict(self, num_bytes: int) -> int:
        """Drops the least recently used objects that are not in use, until `num_bytes` more are free.

        Returns:
            Size in bytes of the objects that were dropped.
        """
        return self._client.evict(num_bytes)

    @raises_plasma_errors
    def list(self) -> dict[ObjectID, ObjectEntry]:
        """Lists the objects in the store with their properties."""
        now = time.time()
        return {
            from_native(row.id): {
                "data_size": row.size,
                "metadata_size": row.metadata_size,
                # An object that is being created is in use by its creator.
                "ref_count": 1 if row.state == "unsealed" else row.pins,
                "create_time": int(now - row.age) - row.construction,
                "construct_duration": -1 if row.state == "unsealed" else row.construction,
                "state": "created" if row.state == "unsealed" else "sealed",
            }
            for row in self._client.list()
            if row.state != "doomed"
        }

    @raises_plasma_errors
    def subscribe(self) -> None:
        """Subscribes to notifications of the sealed objects, then of all seals and deletions."""
        if self._notifications is None:
            self._notifications = Notifications(self._client.subscribe())

    @raises_plasma_errors
    def get_next_notification(self) -> Notification:
        """Waits for the next notification.

        Returns:
            Id of an object that was sealed, and the sizes of its data and metadata in bytes; or the id of an
            object that is gone, and -1 twice.

        Raises:
            OSError: There is no subscription, the connection broke, or notifications were lost here because
                they were not read for too long. The next call returns those that follow.
        """
        return self._subscribed().next()

    @raises_plasma_errors
    def get_notification_socket(self) -> socket.socket:
        """Socket from which notifications can be read.

        Each notification follows its length, 8 bytes in native order. `decode_notifications` reads the rest.
        """
        return self._subscribed().as_socket()

    def decode_notifications(
        self, buf: bytes
    ) -> tuple[builtins.list[ObjectID], builtins.list[int], builtins.list[int]]:
        """Reads a notification from the socket, without its length.

        Returns:
            Ids, data sizes and metadata sizes of the notification. If notifications were lost, all are empty,
            and there is a `RuntimeWarning`.
        """
        return _notifications.decode(bytes(buf))

    def _subscribed(self) -> Notifications:
        if self._notifications is None:
            raise OSError("this client has no subscription: call subscribe() first")
        return self._notifications

    @raises_plasma_errors
    def set_client_options(self, client_name: str, limit_output_memory: int) -> None:
        """Sets the name of this client for logs and errors, and a limit for the memory of its objects.

        Args:
            client_name: Name of the client. An empty name changes nothing.
            limit_output_memory: Limit in bytes.
        """
        self._client.set_options(name=client_name or None, quota=limit_output_memory)

    @raises_plasma_errors
    def debug_string(self) -> str:
        """Use of the store as text for people, a line for each figure."""
        return "".join(f"{name}: {value}\n" for name, value in self._client.usage().items())

    def store_capacity(self) -> int:
        """Size in bytes of the store's memory."""
        return self._capacity

    def to_capsule(self) -> NoReturn:
        """Raises an error: Plasma returned a pointer to a client of its own C++ library.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "Plasma's capsule holds a plasma::PlasmaClient of its C++ library, which Plasmon does not have: "
            "native code uses Plasmon's Rust client"
        )

    def disconnect(self) -> None:
        """Ends the connection. Unsealed objects are aborted. Buffers that were got stay readable."""
        while self._creating:
            _, creation = self._creating.popitem()
            with contextlib.suppress(errors.Error):  # The connection is broken: then it is given up already.
                creation.abort()
        if self._notifications is not None:
            self._notifications.close()
            self._notifications = None
        self._client.close()


def connect(store_socket_name: str, num_retries: int = -1) -> PlasmaClient:
    """Connects to a store.

    Args:
        store_socket_name: Path of the store's socket.
        num_retries: Number of further attempts, every 0.1 s; -1 stands for 50.

    Raises:
        OSError: No store listens there, or the store does not answer.
    """
    retries = _RETRIES if num_retries < 0 else num_retries
    while True:
        try:
            return PlasmaClient(plasmon.connect(store_socket_name))
        except errors.Disconnected:
            if retries == 0:
                raise
        retries -= 1
        time.sleep(_RETRY_SECONDS)


def _bytes(metadata: bytes | bytearray) -> bytes:
    """Metadata as bytes. A `bytearray` is accepted, as with Plasma."""
    if not isinstance(metadata, bytes | bytearray):
        raise TypeError(f"expected bytes as metadata, not {type(metadata).__name__}")
    return bytes(metadata)


def _release(buffer: Buffer) -> None:
    """Holds a buffer until this function is called."""
