"""Plasma's client.

It holds a `plasmon.Client`, and what Plasma's own client knew beside the store: the objects it is creating,
which live until they are sealed even if the program has dropped their buffers, and its subscription.

Objects are everybody's, as they are with Plasma: whoever may connect deletes them.

After `seal` the buffer that `create` gave stays readable, as with Plasma: it keeps the sealed object pinned
until nobody can see it any more.
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
_RETRY = 0.1
"""How often Plasma tries to connect, and how long it waits between, in seconds."""


class ObjectNotAvailable:
    """Stands, itself and not an instance, for the value of an object that was not there in time."""


class ObjectEntry(TypedDict):
    """What `PlasmaClient.list` tells of an object."""

    data_size: int
    """Bytes of data."""
    metadata_size: int
    """Bytes of metadata."""
    ref_count: int
    """How often it is in use."""
    create_time: int
    """When it was created, in seconds of Unix time."""
    construct_duration: int
    """Whole seconds from its creation to its seal; -1 before it is sealed."""
    state: str
    """`"created"`, or `"sealed"`."""


class PlasmaClient:
    """A connection to a store, as `connect` gives it."""

    def __init__(self, client: plasmon.Client) -> None:
        self._client = client
        self._socket = client.socket
        self._capacity = client.capacity
        self._creating: dict[ObjectId, Creation] = {}
        self._notifications: Notifications | None = None

    @property
    def store_socket_name(self) -> str:
        """The path of the store's socket."""
        return self._socket

    @raises_plasma_errors
    def create(self, object_id: ObjectID, data_size: int, metadata: bytes = b"") -> Any:
        """Starts an object, which nobody else sees before `seal`.

        Args:
            object_id: Its id.
            data_size: Bytes of data.
            metadata: Anything, below 4 GiB.

        Returns:
            A buffer to write the data to. After `seal` it can be read, and must not be written to.

        Raises:
            PlasmaObjectExists: The id is taken.
            PlasmaStoreFull: There is no room that could be made.
        """
        id = native(object_id)
        creation = self._client.create(id, data_size, _bytes(metadata), public="rw", timeout=0)
        self._creating[id] = creation
        return py_buffer(creation)

    @raises_plasma_errors
    def seal(self, object_id: ObjectID) -> None:
        """Makes an object that this client has created immutable, and visible to all.

        Raises:
            PlasmaObjectNotFound: This client is not creating such an object.
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
        """Pins a sealed object for as long as the buffer lives that it was written through."""
        try:
            (buffer,) = self._client.get_buffers([id], 0)
        except errors.ObjectNotFound:  # It was evicted or deleted since.
            return
        weakref.finalize(creation, _release, buffer).atexit = False

    @raises_plasma_errors
    def create_and_seal(self, object_id: ObjectID, data: Readable, metadata: bytes = b"") -> None:
        """Stores bytes in one go.

        Args:
            object_id: The id of the object.
            data: Its data.
            metadata: Anything, below 4 GiB.

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
        """Stores bytes in one go.

        Args:
            value: The bytes, as anything with the buffer protocol.
            object_id: The id of the object; else a random one.
            metadata: Anything, below 4 GiB.
            memcopy_threads: Without meaning: as many threads copy as help.

        Returns:
            The id of the object.

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
            value: The value: what `plasmon.Client.put` takes, which is everything that can be pickled.
            object_id: The id of the object; else a random one.
            memcopy_threads: Without meaning: as many threads copy as help.
            serialization_context: A `pyarrow.SerializationContext` for types it has been told of. `get`
                then takes the same.

        Returns:
            The id of the object.

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
        """Waits for objects, and gives their values.

        Args:
            object_ids: One id, or a sequence of them.
            timeout_ms: Milliseconds to wait, for all of them together: -1 for ever, 0 not at all.
            serialization_context: The context that the values were put with.

        Returns:
            The value, or a list of them in order. Arrays are read where they lie in the store, and are
            read-only. `ObjectNotAvailable` stands for an object that was not there in time.

        Raises:
            ArrowSerializationError: An object was put with a serialization context, and there is none here.
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
        """Waits for objects, and gives their data.

        Args:
            object_ids: The ids.
            timeout_ms: Milliseconds to wait, for all of them together: -1 for ever, 0 not at all.
            with_meta: Give the metadata, too.

        Returns:
            For each id in order a buffer, read-only and in place, or with `with_meta` a tuple of the metadata
            as bytes and that buffer. `None` stands for both where the object was not there in time.
        """
        buffers = self._get(object_ids, timeout_ms)
        if with_meta:
            return [
                (None, None) if buffer is None else (buffer.metadata, py_buffer(buffer)) for buffer in buffers
            ]
        return [None if buffer is None else py_buffer(buffer) for buffer in buffers]

    def get_metadata(self, object_ids: Iterable[ObjectID], timeout_ms: int = -1) -> builtins.list[Any]:
        """Waits for objects, and gives their metadata.

        Args:
            object_ids: The ids.
            timeout_ms: Milliseconds to wait, for all of them together: -1 for ever, 0 not at all.

        Returns:
            For each id in order a buffer with a copy of the metadata, or `None` where the object was not
            there in time.
        """
        return [
            None if buffer is None else py_buffer(buffer.metadata)
            for buffer in self._get(object_ids, timeout_ms)
        ]

    @raises_plasma_errors
    def _get(self, object_ids: Iterable[ObjectID], timeout_ms: int) -> Sequence[Buffer | None]:
        """Pins objects that are there in time."""
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
        """Whether an object is sealed, or this client is creating it."""
        id = native(object_id)
        return id in self._creating or self._client.contains(id)

    @raises_plasma_errors
    def hash(self, object_id: ObjectID) -> bytes:
        """A digest of 8 bytes over data and metadata: the same for the same, on every node.

        Raises:
            PlasmaObjectNotFound: There is no such sealed object.
        """
        return self._client.hash(native(object_id), timeout=0)

    @raises_plasma_errors
    def delete(self, object_ids: Iterable[ObjectID]) -> None:
        """Deletes objects, on every node; ids that stand for none are passed over.

        Buffers and values that were got stay as they are. Their memory is free once they are gone.
        """
        self._client.delete(natives(object_ids))

    @raises_plasma_errors
    def evict(self, num_bytes: int) -> int:
        """Drops what was not used for longest and is not in use, until so many bytes are free that were not.

        Returns:
            How many bytes of objects were dropped.
        """
        return self._client.evict(num_bytes)

    @raises_plasma_errors
    def list(self) -> dict[ObjectID, ObjectEntry]:
        """The objects in the store, and what is known of each."""
        now = time.time()
        return {
            from_native(row.id): {
                "data_size": row.size,
                "metadata_size": row.metadata_size,
                # Whoever is creating an object uses it.
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
        """Asks for notifications: one of each sealed object there is, then of all that are sealed or go."""
        if self._notifications is None:
            self._notifications = Notifications(self._client.subscribe())

    @raises_plasma_errors
    def get_next_notification(self) -> Notification:
        """Waits for the next notification.

        Returns:
            The id of an object that was sealed, and the sizes of its data and metadata; or the id of one that
            is gone, and -1 twice.

        Raises:
            OSError: There is no subscription; the connection broke; or so much has happened meanwhile that
                notifications were lost here. The next call goes on after them.
        """
        return self._subscribed().next()

    @raises_plasma_errors
    def get_notification_socket(self) -> socket.socket:
        """A socket to read notifications from.

        Each is preceded by its length, 8 bytes in native order; `decode_notifications` reads the rest.
        """
        return self._subscribed().as_socket()

    def decode_notifications(
        self, buf: bytes
    ) -> tuple[builtins.list[ObjectID], builtins.list[int], builtins.list[int]]:
        """Reads a notification from the socket, without its length.

        Returns:
            The ids, data sizes and metadata sizes in it. All are empty, and there is a `RuntimeWarning`,
            where notifications were lost.
        """
        return _notifications.decode(bytes(buf))

    def _subscribed(self) -> Notifications:
        if self._notifications is None:
            raise OSError("this client has no subscription: call subscribe() first")
        return self._notifications

    @raises_plasma_errors
    def set_client_options(self, client_name: str, limit_output_memory: int) -> None:
        """Names this client, for logs and errors, and limits what its objects may take.

        Args:
            client_name: The name; an empty one changes nothing.
            limit_output_memory: Bytes.
        """
        self._client.set_options(name=client_name or None, quota=limit_output_memory)

    @raises_plasma_errors
    def debug_string(self) -> str:
        """How full the store is, a line each, for people."""
        return "".join(f"{name}: {value}\n" for name, value in self._client.usage().items())

    def store_capacity(self) -> int:
        """Bytes of memory that the store has."""
        return self._capacity

    def to_capsule(self) -> NoReturn:
        """Refuses: Plasma gave a pointer to a client of its own C++ library.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(
            "Plasma's capsule holds a plasma::PlasmaClient of its C++ library, which Plasmon does not have: "
            "native code uses Plasmon's Rust client"
        )

    def disconnect(self) -> None:
        """Ends the connection. What is not sealed is given up; buffers that were got stay readable."""
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
        store_socket_name: The path of its socket.
        num_retries: How often to try again, every 0.1 seconds; -1 stands for 50.

    Raises:
        OSError: Nobody listens there, or the store does not answer.
    """
    retries = _RETRIES if num_retries < 0 else num_retries
    while True:
        try:
            return PlasmaClient(plasmon.connect(store_socket_name))
        except errors.Disconnected:
            if retries == 0:
                raise
        retries -= 1
        time.sleep(_RETRY)


def _bytes(metadata: bytes | bytearray) -> bytes:
    """Metadata as bytes: a `bytearray` will do, as with Plasma."""
    if not isinstance(metadata, bytes | bytearray):
        raise TypeError(f"expected bytes as metadata, not {type(metadata).__name__}")
    return bytes(metadata)


def _release(buffer: Buffer) -> None:
    """Holds a buffer until it is called."""
