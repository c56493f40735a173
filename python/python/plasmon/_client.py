"""The client: values of Python in the store of this host."""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from plasmon import _internal, _values
from plasmon._internal import Buffer, Creation, ObjectId, Scratch
from plasmon.errors import Disconnected, InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Buffer as Readable

IdLike = ObjectId | bytes | str
"""What stands for an object in calls: an `ObjectId`, its 20 bytes, or a name (hashed to an id)."""

_ONE = (ObjectId, bytes, str)


State = Literal["unsealed", "primary", "kept", "cached", "doomed", "spilled"]


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """A row of `Client.list`."""

    id: ObjectId
    name: str | None
    """The name it was created with, if any."""
    state: State
    """Being written; the replica its creator made; one of several that were asked for; fetched from another
    node; deleted but still pinned; on disk only."""
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


@dataclass(frozen=True, slots=True)
class Spread:
    """Where an object is after `Client.replicate`, `migrate` or `broadcast`."""

    holders: builtins.list[str]
    """The nodes that hold it: of a broadcast those that it was for, else those that keep it."""
    failed: builtins.list[tuple[str, str]]
    """The nodes that were to and do not, each with the reason."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an object of a node."""

    kind: Literal["sealed", "deleted", "gap"]
    """It is here from now on; it no longer is; or events are missing, because they were not read for long."""
    id: ObjectId | None
    """Which object; `None` for a gap."""
    size: int
    """Bytes of data, of a sealed object."""
    metadata_size: int
    """Bytes of metadata, of a sealed object."""
    missed: int
    """How many events a gap stands for."""


class Subscription:
    """Events of a node's objects, in order: an iterator, and a context manager that closes it.

    Made by `Client.subscribe`. It begins with the objects that are there, each as sealed. What the node
    drops to make room is told as deleted, too.
    """

    def __init__(self, native: _internal.Subscription) -> None:
        self._native = native

    def next(self, timeout: float | None = None) -> Event | None:
        """The next event; `None` if none comes within `timeout` seconds.

        Raises:
            Disconnected: The node is gone, or the subscription closed.
        """
        row = self._native.next(timeout)
        return None if row is None else Event(*row)

    def fileno(self) -> int:
        """A descriptor for `select`: readable when there may be an event. Read all with `next(0)` then."""
        return self._native.fileno()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native.closed

    def close(self) -> None:
        """Ends it, and with it the wait of another thread."""
        self._native.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        try:
            event = None if self.closed else self.next()
        except Disconnected:
            if not self.closed:
                raise
            event = None
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Client:
    """A connection to the node of this host, for any number of threads.

    Made by `plasmon.connect`. As a context manager it closes at the end of the block. What was got through it
    stays readable after that.

    A forked child cannot use a client of its parent, nor rely on objects of its parent: it connects on its
    own. Every call may raise `Disconnected`, and `TimedOut` when the node does not react for a minute. Ctrl-C
    ends waiting for objects, for room and for answers; what was asked for may still happen.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None) -> None:
        path = _internal.find_socket() if socket is None else socket
        self._native = _internal.Client(os.fspath(path), _program())

    def put(
        self,
        value: object,
        *,
        id: IdLike | None = None,
        name: str | None = None,
        private: bool = False,
        timeout: float | None = None,
        digest: bool = False,
        replicas: int = 1,
        ttl: float | None = None,
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
            timeout: Seconds to wait for others to make room, if there is none; what the node itself does to
                make room is waited for in any case; `None` does not wait.
            digest: Whether to make a digest, to compare the object's bytes with later: `verify`.
            replicas: How many nodes are to hold the object and keep it: the call returns when they do. No
                eviction drops these replicas, and should a node die, another takes its place.
            ttl: Seconds that the object lives: then it is deleted everywhere. For ever if not given.

        Returns:
            The id of the object.

        Raises:
            ObjectExists: The id is taken. Of two who put one id or name at the same time, on any nodes, one
                gets this.
            TooFewReplicas: The object is stored, but fewer nodes than `replicas` hold it.
            TimedOut: The node that knows whether an id or a name is taken does not answer.
            StoreFull: There is no room that could be made.
            ObjectTooLarge: The value is larger than the whole store.
            InvalidArgument: The id or the name makes no sense.
        """
        terms = (id is None and name is None, replicas, ttl)
        object_id, name = _identify(id, name)
        encoded = _values.encode(value)
        metadata, size, parts, write = encoded
        if write is None:
            self._native.put(object_id, size, parts, metadata, name, private, timeout, digest, terms)
        else:
            created = self._native.create(object_id, size, metadata, name, private, timeout, digest, terms)
            with created as creation:
                write(memoryview(creation))
        return object_id

    def put_many(
        self,
        values: Iterable[object],
        *,
        ids: Iterable[IdLike] | None = None,
        private: bool = False,
        timeout: float | None = None,
        digest: bool = False,
        replicas: int = 1,
        ttl: float | None = None,
    ) -> builtins.list[ObjectId]:
        """Stores values as `put` does, small ones together: several times as many a second.

        Args:
            values: What to store.
            ids: Their ids, as many as values; random ones if not given. A name here gives the object its id,
                and no name in listings.
            private: As in `put`.
            timeout: As in `put`.
            digest: As in `put`.
            replicas: As in `put`.
            ttl: As in `put`.

        Returns:
            The ids, in order.

        Raises:
            ObjectExists, StoreFull, ObjectTooLarge, TooFewReplicas, InvalidArgument: As `put`, for the first
                that failed.
                The others are stored all the same.
        """
        encoded = [_values.encode(value) for value in values]
        if ids is None:
            object_ids = [ObjectId.random() for _ in encoded]
        else:
            object_ids = [_identify(id, None)[0] for id in ids]
        if len(object_ids) != len(encoded):
            raise InvalidArgument(f"{len(object_ids)} ids for {len(encoded)} values")
        terms = (ids is None, replicas, ttl)
        together = []
        for object_id, (metadata, size, parts, write) in zip(object_ids, encoded, strict=True):
            if write is None:
                together.append((object_id, size, parts, metadata))
            else:
                created = self._native.create(
                    object_id, size, metadata, None, private, timeout, digest, terms
                )
                with created as creation:
                    write(memoryview(creation))
        self._native.put_many(together, private, timeout, digest, terms)
        return object_ids

    def create_and_seal(
        self,
        id: IdLike,
        data: Readable,
        metadata: bytes = b"",
        *,
        name: str | None = None,
        private: bool = False,
        timeout: float | None = None,
        digest: bool = False,
        replicas: int = 1,
        ttl: float | None = None,
    ) -> ObjectId:
        """Stores bytes as they are, with metadata of the caller's own.

        Args:
            id: The id of the object, or its name.
            data: Its data: anything with memory to read, of any type, in C order.
            metadata: Anything, up to 64 KiB.
            name: As in `put`.
            private: As in `put`.
            timeout: As in `put`.
            digest: As in `put`.
            replicas: As in `put`.
            ttl: As in `put`.

        Returns:
            The id of the object.

        Raises:
            ObjectExists, StoreFull, ObjectTooLarge, TooFewReplicas, InvalidArgument: As `put`.
        """
        object_id, name = _identify(id, name)
        flat = data if type(data) is bytes else _values.flat(memoryview(data))
        terms = (False, replicas, ttl)
        self._native.put(object_id, len(flat), [(0, flat)], metadata, name, private, timeout, digest, terms)
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
            ObjectDamaged: An object cannot be read back from disk.
            NotAllowed: An object is private to another user.
            StoreFull: There is no room here for an object from another node.
            MalformedValue: An object is not what its metadata says.
        """
        if isinstance(id_or_ids, _ONE):
            return _values.decode(self._native.get_one(id_or_ids, timeout))
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
        timeout: float | None = None,
        digest: bool = False,
        replicas: int = 1,
        ttl: float | None = None,
    ) -> Creation:
        """Starts an object that is written in place, and seen by nobody before it is sealed.

        Args:
            id: The id of the object, or its name.
            size: Bytes of data.
            metadata: Anything, up to 64 KiB; empty metadata says that the data is plain bytes.
            name: As in `put`.
            private: Whether only this user may see the object.
            timeout: As in `put`.
            digest: As in `put`; it is made at the seal.
            replicas: As in `put`; it is the seal that waits for them.
            ttl: As in `put`.

        Returns:
            Its data, writable through the buffer protocol; `seal()` or `abort()` ends it, and so does the end
            of a `with` block.

        Raises:
            ObjectExists, StoreFull, ObjectTooLarge, TooFewReplicas, InvalidArgument: As `put`.
        """
        object_id, name = _identify(id, name)
        if not 0 <= size < 1 << 63:
            raise InvalidArgument(f"an object cannot have {size} bytes")
        terms = (False, replicas, ttl)
        return self._native.create(object_id, size, metadata, name, private, timeout, digest, terms)

    def buffer(self, size: int, *, private: bool = False, timeout: float | None = None) -> Scratch:
        """Memory of the node's store to work in.

        Objects are got into it, into slices of it (`memoryview(scratch)[a:b]`) and into arrays over it
        (`numpy.frombuffer(scratch)`) straight from other hosts: `get_into`. It becomes an object without a
        copy: `put_from`.

        Args:
            size: Bytes.
            private: Whether what is put from it is private to this user.
            timeout: As in `put`.

        Returns:
            The memory, writable through the buffer protocol; its bytes are undefined at first. It counts as
            an object of this client does, until its last view is gone.

        Raises:
            StoreFull, ObjectTooLarge: There is no room.
            Busy: This client has too many of them.
        """
        if not 0 <= size < 1 << 63:
            raise InvalidArgument(f"a buffer cannot have {size} bytes")
        return self._native.buffer(size, private, timeout)

    def register(self, file: int) -> Scratch:
        """Registers memory of this program's own with the node: objects are got into it without a copy.

        Args:
            file: Descriptor of a file in memory (`os.memfd_create` with `MFD_ALLOW_SEALING`) that is sealed
                against shrinking (`fcntl.F_SEAL_SHRINK`). It may be closed then.

        Returns:
            Its memory, all of it, writable through the buffer protocol.

        Raises:
            InvalidArgument: The file is none of these, or empty.
            Busy: This client has registered too many.
        """
        return self._native.register(file)

    def get_into(self, id: IdLike, into: Readable, timeout: float | None = None) -> int:
        """Brings the data of an object into memory of the caller's, as bytes, without its metadata.

        From another host it comes straight there if `into` is memory of `buffer` or `register`, and leaves no
        replica on this node; otherwise by way of one, and a copy. `explain` says which.

        Args:
            id: An id or a name.
            into: Writable memory in one piece: a `Scratch`, a `bytearray`, an array.
            timeout: As in `get`.

        Returns:
            How many bytes the object has. After an error the memory is undefined; after Ctrl-C it may still
            change until it is used for another call.

        Raises:
            InvalidArgument: The memory is too small.
            TimedOut, ObjectNotFound, ObjectLost, NotAllowed, StoreFull: As `get`.
        """
        try:
            flat = memoryview(into).cast("B")
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"the memory to get an object into is not in one piece: {error}") from error
        return self._native.get_into(id, flat, timeout)

    def put_from(
        self,
        value: object,
        *,
        id: IdLike | None = None,
        name: str | None = None,
        private: bool = False,
        timeout: float | None = None,
        digest: bool = False,
        replicas: int = 1,
        ttl: float | None = None,
    ) -> ObjectId:
        """Stores a value as `put` does, and gives up the memory it is in, if that is a `Scratch`.

        A `Scratch`, or bytes or an array that begin where it does, becomes the object where it is: nothing is
        copied, unless it is small (64 KiB), its metadata large (1 KiB), or it is of `register`. Views that
        are still held after that can be read as long as the object is there, and are not writable: writing
        through one ends the process with a segmentation fault.

        Args:
            value: What to store.
            id: As in `put`.
            name: As in `put`.
            private: As in `put`; without a copy only if it is what `buffer` was told.
            timeout: As in `put`.
            digest: As in `put`.
            replicas: As in `put`.
            ttl: As in `put`.

        Returns:
            The id of the object.

        Raises:
            ObjectExists, StoreFull, ObjectTooLarge, TooFewReplicas, InvalidArgument: As `put`; the memory is
                what it was.
        """
        if isinstance(value, Scratch):
            value = memoryview(value)
        terms = (id is None and name is None, replicas, ttl)
        object_id, identified = _identify(id, name)
        metadata, size, parts, _ = _values.encode(value)
        if len(parts) == 1 and parts[0][0] == 0 and memoryview(parts[0][1]).nbytes == size:
            data = parts[0][1]
            moved = self._native.put_from(
                object_id, data, metadata, identified, private, timeout, digest, terms
            )
            if moved is not None:
                return object_id
        if terms[0]:
            return self.put(
                value, private=private, timeout=timeout, digest=digest, replicas=replicas, ttl=ttl
            )
        return self.put(
            value,
            id=object_id,
            name=name,
            private=private,
            timeout=timeout,
            digest=digest,
            replicas=replicas,
            ttl=ttl,
        )

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

    def wait(
        self, ids: Iterable[IdLike], count: int | None = None, timeout: float | None = None
    ) -> tuple[builtins.list[ObjectId], builtins.list[ObjectId]]:
        """Waits until some of the objects are in the memory of this host.

        Args:
            ids: Ids or names, at most 65,536.
            count: How many of them to wait for; all of them if not given.
            timeout: Seconds to wait; `None` waits for ever.

        Returns:
            The ids of those that are here, and of the others, both in order. Those that are here are not
            pinned: they may leave again before they are got.

        Raises:
            InvalidArgument: There are too many ids, or the count is not among 0 and their number.
        """
        object_ids = [_identify(id, None)[0] for id in ([ids] if isinstance(ids, _ONE) else ids)]
        if count is None:
            count = len(object_ids)
        if not 0 <= count <= len(object_ids):
            raise InvalidArgument(f"cannot wait for {count} of {len(object_ids)} objects")
        here = self._native.wait(object_ids, count, timeout)
        ready = [id for id, is_here in zip(object_ids, here, strict=True) if is_here]
        return ready, [id for id, is_here in zip(object_ids, here, strict=True) if not is_here]

    def metadata(self, id: IdLike, timeout: float | None = None) -> bytes:
        """The metadata of an object. Waits for it, and raises, as `get` does."""
        return self._native.get_one(id, timeout).metadata

    def hash(self, id: IdLike, timeout: float | None = None) -> bytes:
        """The digest of an object: XXH3 of its data and metadata, 8 bytes, little-endian.

        It is the one made when the object was sealed, or if none was, computed now. Waits for the object, and
        raises, as `get` does.
        """
        return self._native.get_one(id, timeout).digest()

    def verify(self, id: IdLike, timeout: float | None = None) -> None:
        """Compares an object's bytes with the digest made when it was sealed, if one was.

        Waits for the object as `get` does.

        Raises:
            ObjectDamaged: They differ.
            TimedOut, ObjectNotFound, ObjectLost, NotAllowed, StoreFull: As `get`.
        """
        self._native.get_one(id, timeout).verify()

    def prefetch(self, ids: Iterable[IdLike], timeout: float = 60.0) -> None:
        """Begins to bring objects of other nodes to this host, so that a later `get` finds them here.

        Returns at once, pins nothing, and goes on when this client is closed. What does not come is found out
        by whoever gets it.

        Args:
            ids: Ids or names.
            timeout: Seconds to wait for objects that do not exist yet.

        Raises:
            Busy: The node prefetches too many objects already.
        """
        self._native.prefetch([ids] if isinstance(ids, _ONE) else ids, timeout)

    def replicate(self, id: IdLike, replicas: int, timeout: float | None = None) -> Spread:
        """Has so many nodes hold an object and keep it, as `put(..., replicas=...)` does.

        Fewer than before make what is beyond them ordinary cached replicas, which leave when room is needed.

        Args:
            id: An id or a name.
            replicas: How many nodes, at least one; wherever the object is, this node or not among them.
            timeout: Seconds to wait; `None` waits for as long as it takes.

        Returns:
            The nodes that keep it.

        Raises:
            TooFewReplicas: Fewer can: the cluster is too small, or nodes have no room. The object stays on
                those that do, and the store goes on trying.
            ObjectNotFound: No node holds it.
            NotAllowed: It is private to another user.
        """
        if not 0 < replicas < 1 << 16:
            raise InvalidArgument(f"there cannot be {replicas} replicas")
        return Spread(*self._native.replicate(id, replicas, timeout))

    def migrate(self, id: IdLike, node: str, timeout: float | None = None) -> Spread:
        """Moves an object to another node: its primary is there then, and no longer where it was.

        Whoever reads it does not notice: views stay valid, and gets find it.

        Args:
            id: An id or a name.
            node: The node's id, as `Client.node` of a client there, or `status`, tells it.
            timeout: As in `replicate`.

        Returns:
            The node that has it.

        Raises:
            InvalidArgument: There is no such node in the cluster.
            StoreFull: It has no room. The object stays where it is.
            Busy: The object is being moved already.
            ObjectNotFound, NotAllowed: As `replicate`.
        """
        return Spread(*self._native.migrate(id, node, timeout))

    def broadcast(
        self, id: IdLike, nodes: Iterable[str] | None = None, timeout: float | None = None
    ) -> Spread:
        """Brings an object to many nodes at the same time, each passing on what it has.

        What comes there is a cached replica, as if somebody on that node had got it: `get` finds it at once.

        Args:
            id: An id or a name.
            nodes: Ids of nodes; every node of the cluster if not given.
            timeout: As in `replicate`.

        Returns:
            The nodes among them that hold it now, and those that do not, each with the reason.

        Raises:
            InvalidArgument: One of them is no node of the cluster, or there are more than 1,024.
            ObjectNotFound, NotAllowed: As `replicate`.
        """
        if isinstance(nodes, str):
            nodes = [nodes]
        some = None if nodes is None else builtins.list(nodes)
        if some == []:
            return Spread([], [])
        return Spread(*self._native.broadcast(id, some, timeout))

    def pin(self, id: IdLike, timeout: float | None = None) -> None:
        """Brings an object to this host and keeps it in memory there: neither evicted nor spilled to disk.

        It stays so until `unpin`, or until this client is closed or its process ends; pinned twice it is
        pinned once. A deletion is not held up: nobody finds the object any more, and its memory is free with
        the last pin. Waits for the object, and raises, as `get` does.
        """
        self._native.pin(id, timeout)

    def unpin(self, id: IdLike) -> None:
        """Ends what `pin` began. What this client has not pinned stays as it is."""
        self._native.unpin(id)

    def locations(self, id: IdLike) -> builtins.list[tuple[str, str]]:
        """The nodes that hold an object, each with its role; this node first.

        The role is "primary"; "kept", of further replicas that were asked for; or "cached".

        What was put or dropped in the last milliseconds may not be known yet.
        """
        return self._native.locations(id)

    def explain(self, id: IdLike) -> dict[str, Any]:
        """How an object came to this host, as `plasmon explain --json` prints it.

        `here` says whether it is here. `fetched` is `None`, or says of its last fetch from which `holders` it
        came, by which `protocol`, over which `provider` and `why`, its `bytes` and how many of them were
        copied, `into` what, and how many microseconds the phases took. `arriving` is `None`, or says of an
        object of 1 MiB or more that is on its way how many of its `bytes` have arrived (`arrived_bytes`), and
        for how many microseconds it has been (`us`).

        Raises:
            NotAllowed: It is private to another user.
        """
        explanation: dict[str, Any] = json.loads(self._native.explain(id))
        return explanation

    def refresh(self, ids: Iterable[IdLike]) -> None:
        """Marks objects of this host as used just now, so that they leave memory later than others."""
        self._native.refresh([ids] if isinstance(ids, _ONE) else ids)

    def evict(self, size: int) -> int:
        """Takes least recently used objects out of the memory of this host.

        Those that are elsewhere or on disk as well may go, and in cache mode any; nothing that is pinned.

        Args:
            size: How many bytes are to become free.

        Returns:
            How many did: fewer if no more may go.
        """
        if not 0 <= size < 1 << 64:
            raise InvalidArgument(f"cannot free {size} bytes")
        return self._native.evict(size)

    def set_options(self, name: str | None = None, quota: int | None = None) -> None:
        """Changes what the node knows of this client; what is not given stays as it was.

        Args:
            name: What people see of it in reports and messages.
            quota: Most bytes that objects may take that this client creates, from now on; 0 for no limit of
                its own.

        Raises:
            InvalidArgument: The name is empty or longer than 255 bytes, or the quota makes no sense.
        """
        if quota is not None and not 0 <= quota < 1 << 64:
            raise InvalidArgument(f"a quota cannot be {quota} bytes")
        self._native.set_options(name, quota)

    def subscribe(self) -> Subscription:
        """Watches the objects of this node: those that are there, then all that comes and goes.

        Raises:
            Disconnected: The node is gone.
        """
        return Subscription(self._native.subscribe(_program()))

    @property
    def capacity(self) -> int:
        """Bytes of the store of this node."""
        return self._native.capacity

    def usage(self) -> dict[str, int]:
        """How the store is used, in bytes: `capacity`, `used`, `free`, and `spilled` to disk."""
        status = self.status()
        memory = status["memory"]
        usage = {key: int(memory[key]) for key in ("capacity", "used", "free")}
        return usage | {"spilled": int(status["spill"]["bytes"])}

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
            `$XDG_RUNTIME_DIR`, else in `/run` for root, else `/tmp/plasmon-<uid>/plasmon.sock`; and where
            there is none, `/run/plasmon/plasmon.sock`, the node of the whole host.

    Raises:
        Disconnected: No node listens there.
        NotAllowed: This user may not connect to it.
    """
    return Client(socket)


def _program() -> str:
    """What people see of this client."""
    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"


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
