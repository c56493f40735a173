"""The client: values of Python in the store of this host."""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, overload

from plasmon import _internal, _values
from plasmon._internal import Buffer, Creation, ObjectId
from plasmon.errors import InvalidArgument

IdLike = ObjectId | bytes | str
"""What stands for an object in calls: an `ObjectId`, its 20 bytes, or a name (hashed to an id)."""

_ONE = (ObjectId, bytes, str)


State = Literal["unsealed", "primary", "cached", "doomed"]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A row of `Client.list`."""

    id: ObjectId
    name: str | None
    """The name it was created with, if any."""
    state: State
    """Being written; the replica its creator made; fetched from another node; deleted but still pinned."""
    private: bool
    """Whether only the user who created it sees it."""
    size: int
    """Bytes of data."""
    metadata_size: int
    """Bytes of metadata."""
    pins: int
    """Pins of clients and other nodes."""
    age: float
    """Seconds since it came to this node."""


class Client:
    """A connection to the node of this host, for any number of threads.

    Made by `plasmon.connect`. As a context manager it closes at the end of the block. What was got through it
    stays readable after that.

    A forked child cannot use a client of its parent, nor rely on objects of its parent: it connects on its
    own. Every call may raise `Disconnected`, and `TimedOut` when the node does not react for a minute.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        path = _internal.default_socket() if socket is None else socket
        program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
        self._native = _internal.Client(os.fspath(path), program)

    def put(
        self, value: object, *, id: IdLike | None = None, name: str | None = None, private: bool = False
    ) -> ObjectId:
        """Stores a value, for everybody in the cluster to get.

        - bytes-like objects (`bytes`, `bytearray`, `memoryview`, `mmap`, `Buffer`): as they are;
        - NumPy arrays of any type but objects: their elements, in C or Fortran order as they lie;
        - PyArrow tables and record batches: as an Arrow IPC stream, written straight into the store;
        - everything else: by pickle, with the memory of arrays within it beside the pickle.

        Args:
            value: What to store.
            id: The id of the object, or its name; a random id if neither this nor `name` is given.
            name: The name of the object: it gets the id `ObjectId.from_name(name)`.
            private: Whether only this user may see the object.

        Returns:
            The id of the object.

        Raises:
            ObjectExists: The id is taken.
            StoreFull: There is no room that could be made.
            ObjectTooLarge: The value is larger than the whole store.
            InvalidArgument: The id or the name makes no sense.
        """
        object_id, name = _identify(id, name)
        encoded = _values.encode(value)
        if encoded.write is None:
            self._native.put(object_id, encoded.size, encoded.parts, encoded.metadata, name, private)
        else:
            with self._native.create(object_id, encoded.size, encoded.metadata, name, private) as creation:
                encoded.write(memoryview(creation))
        return object_id

    @overload
    def get(self, id_or_ids: IdLike, timeout: float | None = None) -> Any: ...
    @overload
    def get(self, id_or_ids: Iterable[IdLike], timeout: float | None = None) -> builtins.list[Any]: ...
    def get(self, id_or_ids: IdLike | Iterable[IdLike], timeout: float | None = None) -> Any:
        """Waits for objects that are here, elsewhere, or not yet created, and gives their values.

        Values are read where they lie in the memory of this host: bytes come as a read-only `memoryview`,
        arrays as read-only arrays over that memory, Arrow data likewise. As long as a value lives, or any
        view or slice of it, its object stays pinned. Copy what is to be written to, or kept for long.

        What was stored by pickle is unpickled. A pickle can run any code: get only objects that users you
        trust have put.

        Args:
            id_or_ids: One id or name, or several.
            timeout: Seconds to wait, for all of them together; `None` waits for ever, 0 takes only
                what is on this node.

        Returns:
            The value; or for several ids, a list of the values in order.

        Raises:
            TimedOut: An object was not there within the time-out.
            ObjectNotFound: With a time-out of 0, an object is not on this node.
            ObjectLost: An object existed, and every node that held it is gone.
            NotAllowed: An object is private to another user.
            StoreFull: There is no room here for an object from another node.
            MalformedValue: An object is not what its metadata says.
        """
        if isinstance(id_or_ids, _ONE):
            return _values.decode(self._native.get([id_or_ids], timeout)[0])
        return [_values.decode(buffer) for buffer in self._native.get(id_or_ids, timeout)]

    def get_buffers(self, ids: Iterable[IdLike], timeout: float | None = None) -> builtins.list[Buffer]:
        """Waits for objects as `get` does, and gives their bytes as they are.

        Args:
            ids: Ids or names.
            timeout: Seconds to wait, for all of them together; `None` waits for ever, 0 takes only
                what is on this node.

        Returns:
            One `Buffer` an id, in order.

        Raises:
            TimedOut, ObjectNotFound, ObjectLost, NotAllowed, StoreFull: As `get`.
        """
        return self._native.get([ids] if isinstance(ids, _ONE) else ids, timeout)

    def create(
        self,
        id: IdLike,
        size: int,
        metadata: bytes = b"",
        *,
        name: str | None = None,
        private: bool = False,
    ) -> Creation:
        """Starts an object that is written in place, and seen by nobody before it is sealed.

        Args:
            id: The id of the object, or its name.
            size: Bytes of data.
            metadata: Anything, up to 64 KiB; empty metadata says that the data is plain bytes.
            name: As in `put`.
            private: Whether only this user may see the object.

        Returns:
            Its data, writable through the buffer protocol; `seal()` or `abort()` ends it, and so does the end
            of a `with` block.

        Raises:
            ObjectExists, StoreFull, ObjectTooLarge, InvalidArgument: As `put`.
        """
        object_id, name = _identify(id, name)
        if not 0 <= size < 1 << 63:
            raise InvalidArgument(f"an object cannot have {size} bytes")
        return self._native.create(object_id, size, metadata, name, private)

    def seal(self, id: IdLike) -> None:
        """Seals what this client has created under an id: makes it immutable and visible to all.

        Raises:
            InvalidArgument: This client is not creating such an object.
        """
        self._native.seal(id)

    def abort(self, id: IdLike) -> None:
        """Gives up what this client has created under an id, so that it can be created again.

        Raises:
            InvalidArgument: This client is not creating such an object.
        """
        self._native.abort(id)

    @overload  # A str is an iterable of str, too: here it is one name.
    def contains(self, id_or_ids: IdLike) -> bool: ...  # type: ignore[overload-overlap]
    @overload
    def contains(self, id_or_ids: Iterable[IdLike]) -> builtins.list[bool]: ...
    def contains(self, id_or_ids: IdLike | Iterable[IdLike]) -> bool | builtins.list[bool]:
        """Whether objects are sealed, here or on another node.

        Args:
            id_or_ids: One id or name, or several.

        Returns:
            Whether it is; or for several ids, a list of that in order.
        """
        if isinstance(id_or_ids, _ONE):
            return self._native.contains([id_or_ids])[0]
        return self._native.contains(id_or_ids)

    @overload
    def delete(self, id_or_ids: IdLike) -> bool: ...  # type: ignore[overload-overlap]
    @overload
    def delete(self, id_or_ids: Iterable[IdLike]) -> builtins.list[bool]: ...
    def delete(self, id_or_ids: IdLike | Iterable[IdLike]) -> bool | builtins.list[bool]:
        """Deletes objects from every node. Values that were got before stay as they are.

        Args:
            id_or_ids: One id or name, or several.

        Returns:
            Whether there was such an object; or for several ids, a list of that in order.

        Raises:
            NotAllowed: An object belongs to another user.
        """
        if isinstance(id_or_ids, _ONE):
            return self._native.delete([id_or_ids])[0]
        return self._native.delete(id_or_ids)

    def list(self) -> builtins.list[ObjectInfo]:
        """The objects on this node that this user may see."""
        return [ObjectInfo(*row) for row in self._native.list()]

    def status(self) -> dict[str, Any]:
        """The state of the node, as `plasmon status --json` prints it; sizes are bytes."""
        status: dict[str, Any] = json.loads(self._native.status())
        return status

    @property
    def node(self) -> str:
        """The id of the node, 32 hexadecimal digits."""
        return self._native.node

    @property
    def socket(self) -> str:
        """The path of the node's socket."""
        return self._native.socket

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native.closed

    def close(self) -> None:
        """Closes the client. Values that were got stay readable; later calls raise `Disconnected`."""
        self._native.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<plasmon.Client, closed>" if self.closed else f"<plasmon.Client of {self.socket}>"


def connect(socket: str | os.PathLike[str] | None = None) -> Client:
    """Connects to the node of this host.

    Args:
        socket: Path of the node's socket; else `$PLASMON_SOCKET`, else `plasmon/plasmon.sock` in
            `$XDG_RUNTIME_DIR`, else in `/run` for root, else `/tmp/plasmon-<uid>/plasmon.sock`.

    Raises:
        Disconnected: No node listens there.
        NotAllowed: This user may not connect to it.
    """
    return Client(socket)


def _identify(id: IdLike | None, name: str | None) -> tuple[ObjectId, str | None]:
    """The id and the name of a new object."""
    if isinstance(id, str):
        if name is not None and name != id:
            raise InvalidArgument(f"two names for one object: {id!r} and {name!r}")
        name = id
        id = None
    if isinstance(id, bytes):
        id = ObjectId(id)
    if name is not None:
        named = ObjectId.from_name(name)
        if id is not None and id != named:
            raise InvalidArgument(f"object {id} cannot have the name {name!r}, which stands for {named}")
        return named, name
    if id is not None and not isinstance(id, ObjectId):
        raise TypeError(f"an object id is an ObjectId, 20 bytes or a name, not {type(id).__name__}")
    return id or ObjectId.random(), None
