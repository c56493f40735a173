"""Calls that make objects and delete them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar, overload

from plasmon import _values
from plasmon._arguments import memory, whole
from plasmon._handle import Handle
from plasmon._ids import ONE, IdLike
from plasmon._internal import Creation, ObjectId, Scratch, Version
from plasmon._records import Public
from plasmon._terms import Absent, Terms, left, replacing, rights
from plasmon.errors import InvalidArgument, WrongType

if TYPE_CHECKING:
    from typing_extensions import Buffer as Readable

_T = TypeVar("_T")

_MAX_BYTES = (1 << 63) - 1
"""Largest size of an object that any machine has."""


class Writes(Handle):
    """Calls of a client that make objects and delete them."""

    def put(
        self,
        value: object,
        *,
        id: IdLike | None = None,
        name: str | None = None,
        private: bool = False,
        public: Public | None = None,
        timeout: float | None = None,
        digest: bool = False,
        replicas: int = 1,
        ttl: float | None = None,
        owned: bool = False,
        replace: bool = False,
        expected: Version | Absent | None = None,
    ) -> ObjectId:
        """Stores a value, so that it can be got on every node of the cluster.

        - bytes-like objects (`bytes`, `bytearray`, `memoryview`, `mmap`, `Buffer`) are stored as they are;
        - NumPy arrays are stored as their elements, in C or Fortran order if they are contiguous, otherwise
          in C order;
        - PyArrow tables and record batches are stored as an Arrow IPC stream, which is written directly into
          the store, and so are Polars' frames and series;
        - all other values are pickled, with the memory of arrays inside them beside the pickle: those of
          NumPy, pandas, PyArrow, Polars, xarray, SciPy, PyTorch (on the CPU), of packages that offer DLPack,
          and of types given to `plasmon.register_type`. `explain` tells what was copied, and why. Where
          cloudpickle is installed, it pickles functions, and classes of the main program;
        - arrays of objects, of subclasses, and of types that a literal of NumPy cannot describe (metadata,
          aligned structures, records, others' types) are pickled: a foreign byte order may become the native;
        - slices of Arrow data are stored without the rest, and memory that arrays or tensors within a value
          share is stored once;
        - values that cannot be pickled come back as a PyArrow table if they offer Arrow's PyCapsule
          interface, and as a NumPy array if they offer `__array_interface__`.

        Args:
            value: Value to store.
            id: Id or name of the object. If neither this nor `name` is given, the id is random.
            name: Name of the object, which gets the id `ObjectId.from_name(name)`. A private object gets the
                id `ObjectId.from_private_name(name, client.user)`, so that other users may use the same name.
            private: Whether only this user may see the object. The object is found by its name with
                `private=True`.
            public: Rights of other users to an object that is not private: `"r"` to read it, or `"rw"` to
                delete and move it as well. This user and root have all rights. `None` means `"r"`; a node
                that was started with `--public rw` treats it as `"rw"`.
            timeout: Time in seconds that the call may take, including the wait for room. With `None` or 0 the
                call does not wait for others to make room, but waits for the node itself to make room.
            digest: Whether a digest is made, with which `verify` compares the object's bytes later.
            replicas: Number of nodes that keep the object. The call returns when they hold it. Their replicas
                are not evicted. If one of the nodes dies, another takes its place. If somebody deletes the
                object before they hold it, the call returns: the object was put, and deleted afterwards.
            ttl: Time in seconds after which the object is deleted everywhere. `None` for no end.
            owned: Whether the object ends with this client: it is deleted everywhere when the client is
                closed, or its process or its node ends. It cannot be moved to another node.
            replace: Whether the object takes the place of what has its id, in one step: no get between finds
                none. Both need room until then. `replicas=1` means as many as the old object had.
            expected: Version to replace and no other, which `get(..., version=True)` returned. With
                `plasmon.ABSENT` nothing is replaced.

        Returns:
            Id of the object.

        Raises:
            Conflict, ObjectNotFound: Another version than `expected` is there (`Conflict.version`), or none.
            ObjectExists: The id is taken, also by a put of another client, on any node, at the same time.
            TooFewReplicas: The object is stored, but fewer nodes than `replicas` keep it.
            TimedOut, OutcomeUnknown: The time is over, or the node that knows whether an id or a name is
                taken does not answer. The value may still be stored.
            StoreFull, ObjectTooLarge: There is no room, and none can be made, or never that much.
            InvalidArgument: The id or the name is invalid.
            WrongType: The value cannot be stored. The message says which part of it.
        """
        fresh = id is None and name is None
        object_id, name = self._identify(id, name, private)
        over = replacing(replace, expected)
        terms = Terms(name, rights(private, public), timeout, digest, fresh, replicas, ttl, owned, *over)
        if type(value) is bytes:  # As it is, in fewer steps.
            self._native.put(object_id, len(value), [(0, value)], b"", terms)
        else:
            self._store(object_id, _values.encode(value), terms)
        return object_id

    def put_many(
        self,
        values: Iterable[object],
        *,
        ids: Iterable[IdLike] | None = None,
        private: bool = False,
        public: Public | None = None,
        timeout: float | None = None,
        digest: bool = False,
        replicas: int = 1,
        ttl: float | None = None,
        owned: bool = False,
        replace: bool = False,
    ) -> list[ObjectId]:
        """Stores values as `put` does. Small values share requests, which is several times as fast.

        Args:
            values: Values to store. A mapping is refused: `put_many(m.values(), ids=m.keys())` stores each of
                its values under its key.
            ids: Ids of the objects, as many as values. `None` for random ids. A name given here determines
                the object's id, but is not shown in lists.
            private: As in `put`.
            public: As in `put`.
            timeout: As in `put`.
            digest: As in `put`.
            replicas: As in `put`.
            ttl: As in `put`.
            owned: As in `put`.
            replace: As in `put`. Each value replaces by itself: there is no moment at which all do. A version
                of each can be expected by `put` alone.

        Returns:
            Ids of the objects, in order.

        Raises:
            ObjectExists, StoreFull, ObjectTooLarge, TooFewReplicas, InvalidArgument: As `put`, for the first
                value that failed. The other values are stored.
            WrongType: The values are a mapping, or one text or bytes.
        """
        if isinstance(values, Mapping):
            raise WrongType(
                "put_many takes values, and iteration over a mapping gives its keys: put_many(m.values(), "
                "ids=m.keys()) puts each value under its key"
            )
        encoded = [_values.encode(value) for value in _several(values, "values")]
        if ids is None:
            object_ids = [ObjectId.random() for _ in encoded]
        else:
            object_ids = [self._identify(id, None, private)[0] for id in _several(ids, "ids")]
        if len(object_ids) != len(encoded):
            raise InvalidArgument(f"{len(object_ids)} ids for {len(encoded)} values")
        terms = Terms(None, rights(private, public), timeout, digest, ids is None, replicas, ttl, owned)
        terms = terms._replace(replace=replace)
        together = []
        began = time.monotonic()
        for object_id, one in zip(object_ids, encoded, strict=True):
            if one.write is None:
                together.append((object_id, one.size, one.parts, one.metadata))
            else:
                self._store(object_id, one, terms._replace(timeout=left(timeout, began)))
        self._native.put_many(together, terms._replace(timeout=left(timeout, began)))
        return object_ids

    def create_and_seal(
        self,
        id: IdLike,
        data: Readable,
        metadata: bytes = b"",
        *,
        name: str | None = None,
        private: bool = False,
        public: Public | None = None,
        timeout: float | None = None,
        digest: bool = False,
        replicas: int = 1,
        ttl: float | None = None,
        owned: bool = False,
        replace: bool = False,
        expected: Version | Absent | None = None,
    ) -> ObjectId:
        """Stores bytes without encoding, with metadata of the caller's own.

        Args:
            id: Id or name of the object.
            data: Data of the object: any object with the buffer protocol, of any item type. It is stored in C
                order.
            metadata: Metadata of the object, any bytes below 4 GiB.
            name: As in `put`.
            private: As in `put`.
            public: As in `put`.
            timeout: As in `put`.
            digest: As in `put`.
            replicas: As in `put`.
            ttl: As in `put`.
            owned: As in `put`.
            replace: As in `put`.
            expected: As in `put`.

        Returns:
            Id of the object.

        Raises:
            Conflict, ObjectNotFound, ObjectExists, StoreFull, ObjectTooLarge, TooFewReplicas,
                InvalidArgument: As `put`.
        """
        object_id, name = self._identify(id, name, private)
        over = replacing(replace, expected)
        flat = data if type(data) is bytes else _values.flat(memory(data, "the data of an object"))
        terms = Terms(name, rights(private, public), timeout, digest, False, replicas, ttl, owned, *over)
        self._native.put(object_id, len(flat), [(0, flat)], metadata, terms)
        return object_id

    def create(
        self,
        id: IdLike,
        size: int,
        metadata: bytes = b"",
        *,
        name: str | None = None,
        private: bool = False,
        public: Public | None = None,
        timeout: float | None = None,
        digest: bool = False,
        replicas: int = 1,
        ttl: float | None = None,
        owned: bool = False,
        replace: bool = False,
    ) -> Creation:
        """Creates an object that the caller writes in place. No other client sees it before it is sealed.

        Args:
            id: Id or name of the object.
            size: Size of the data in bytes.
            metadata: Metadata of the object, any bytes below 4 GiB. Empty metadata means that the data is
                plain bytes.
            name: As in `put`.
            private: As in `put`.
            public: As in `put`.
            timeout: As in `put`.
            digest: As in `put`. The digest is made when the object is sealed.
            replicas: As in `put`. The seal waits for them.
            ttl: As in `put`.
            owned: As in `put`.
            replace: As in `put`. The object takes the place when it is sealed, if wanted only of one version:
                `seal(expected=version)`.

        Returns:
            Data of the object, writable through the buffer protocol. `seal()` or `abort()` ends the creation,
            and so does the end of a `with` block.

        Raises:
            ObjectExists, StoreFull, ObjectTooLarge, TooFewReplicas, InvalidArgument: As `put`.
        """
        object_id, name = self._identify(id, name, private)
        size = whole(size, "the size of an object in bytes", 0, _MAX_BYTES)
        terms = Terms(name, rights(private, public), timeout, digest, False, replicas, ttl, owned, replace)
        return self._native.create(object_id, size, metadata, terms)

    def buffer(self, size: int, *, private: bool = False, timeout: float | None = None) -> Scratch:
        """Lends memory of the node's store as scratch memory.

        `get_into` receives objects from other hosts directly into it, into slices of it
        (`memoryview(scratch)[a:b]`) and into arrays over it (`numpy.frombuffer(scratch)`). `put_from` makes
        an object of it without a copy.

        Args:
            size: Size of the memory in bytes.
            private: Whether objects put from the memory are private to this user.
            timeout: As in `put`.

        Returns:
            Memory that is writable through the buffer protocol. Its initial content is undefined. It counts
            as an object of this client until its last view is gone.

        Raises:
            StoreFull, ObjectTooLarge: There is no room.
            Busy: This client has too many scratches.
        """
        size = whole(size, "the size of a buffer in bytes", 0, _MAX_BYTES)
        return self._native.buffer(size, private, timeout)

    def register(self, file: int) -> Scratch:
        """Registers memory of this program with the node, to receive objects without a copy.

        Args:
            file: Descriptor of a file in memory (`os.memfd_create` with `MFD_ALLOW_SEALING`) that is sealed
                against shrinking (`fcntl.F_SEAL_SHRINK`). It may be closed after the call.

        Returns:
            Memory of the whole file, writable through the buffer protocol.

        Raises:
            InvalidArgument: The file is not such a file, or is empty.
            Busy: This client has too many scratches.
        """
        return self._native.register(file)

    def put_from(
        self,
        value: object,
        *,
        id: IdLike | None = None,
        name: str | None = None,
        private: bool = False,
        public: Public | None = None,
        timeout: float | None = None,
        digest: bool = False,
        replicas: int = 1,
        ttl: float | None = None,
        owned: bool = False,
        replace: bool = False,
        expected: Version | Absent | None = None,
    ) -> ObjectId:
        """Stores a value as `put` does, and gives up the memory that it is in, if that is a `Scratch`.

        A `Scratch`, or bytes or an array that begin at its start, becomes the object in place. It is copied
        only if it is small (up to 64 KiB), if its metadata is large (over 1 KiB), if it is memory of
        `register`, or with `replace=True`. Views that are still held afterwards can be read as long as the
        object exists, but not written: a write through them ends the process with a segmentation fault.

        Args:
            value: Value to store.
            id: As in `put`.
            name: As in `put`.
            private: As in `put`. The value is copied if this differs from the argument of `buffer`.
            public: As in `put`.
            timeout: As in `put`.
            digest: As in `put`.
            replicas: As in `put`.
            ttl: As in `put`.
            owned: As in `put`.
            replace: As in `put`. The value is copied then.
            expected: As in `put`.

        Returns:
            Id of the object.

        Raises:
            Conflict, ObjectNotFound, ObjectExists, StoreFull, ObjectTooLarge, TooFewReplicas,
                InvalidArgument: As `put`. The memory is unchanged then.
        """
        if isinstance(value, Scratch):
            value = memory(value, "scratch memory")
        fresh = id is None and name is None
        object_id, name = self._identify(id, name, private)
        over = replacing(replace, expected)
        terms = Terms(name, rights(private, public), timeout, digest, fresh, replicas, ttl, owned, *over)
        encoded = _values.encode(value)
        metadata, size, parts, _ = encoded
        if len(parts) == 1 and parts[0][0] == 0 and memoryview(parts[0][1]).nbytes == size:
            moved = self._native.put_from(object_id, parts[0][1], metadata, terms)
            if moved is not None:
                return object_id
        self._store(object_id, encoded, terms)
        return object_id

    def _store(self, id: ObjectId, encoded: _values.Encoded, terms: Terms) -> Version | None:
        """Stores an encoded value. Returns the version of one that replaces another."""
        metadata, size, parts, write = encoded
        if write is None:
            return self._native.put(id, size, parts, metadata, terms)
        with self._native.create(id, size, metadata, terms) as creation:
            write(memoryview(creation))
            return creation.seal(terms.expected)

    def seal(self, id: IdLike, *, private: bool = False, expected: Version | None = None) -> Version | None:
        """Seals an object that this client is creating: makes it immutable and visible to all.

        Args:
            id: Id or name of the object.
            private: Whether a name is that of this user's private object.
            expected: Version that the object is to replace, and no other. The object must have been created
                with `replace=True`.

        Returns:
            Version of an object that was created with `replace=True`.

        Raises:
            InvalidArgument: This client is not creating an object of this id.
            Conflict, ObjectNotFound: As `put`. The creation is aborted then.
        """
        return self._native.seal(self._one(id, private), expected)

    def abort(self, id: IdLike, *, private: bool = False) -> None:
        """Aborts the creation of an object by this client. Its id is free again.

        Raises:
            InvalidArgument: This client is not creating an object of this id.
        """
        self._native.abort(self._one(id, private))

    @overload
    def delete(  # type: ignore[overload-overlap]
        self, id_or_ids: IdLike, *, private: bool = False
    ) -> bool: ...
    @overload
    def delete(self, id_or_ids: Iterable[IdLike], *, private: bool = False) -> list[bool]: ...
    def delete(self, id_or_ids: IdLike | Iterable[IdLike], *, private: bool = False) -> bool | list[bool]:
        """Deletes objects from every node. Values that were got before stay readable.

        After the call no node returns the objects, and their names are free.

        Args:
            id_or_ids: One id or name, or several.
            private: Whether names are those of this user's private objects.

        Returns:
            Whether there was such an object; for several ids, a list of the answers in order.

        Raises:
            NotAllowed: An object belongs to another user, who did not put it with `public="rw"`. It stays,
                and the others are deleted. Root may delete every object that it may read.
            OutcomeUnknown: A node that may hold an object does not answer, or the node that decides left
                before it answered. The objects may still exist, or be deleted later.
        """
        if isinstance(id_or_ids, ONE):
            return self._native.delete([self._one(id_or_ids, private)])[0]
        return self._native.delete(self._all(id_or_ids, private))


def _several(some: Iterable[_T], what: str) -> Iterable[_T]:
    """Values or ids of a call that takes several, refused where iteration would take one to pieces."""
    if isinstance(some, (str, bytes, bytearray, memoryview)) or not isinstance(some, Iterable):
        raise WrongType(f"put_many takes {what} in a list or another iterable, not {type(some).__name__}")
    return some
