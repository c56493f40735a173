"""Calls that make objects, and delete them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, overload

from plasmon import _values
from plasmon._handle import Handle
from plasmon._ids import ONE, IdLike
from plasmon._internal import Creation, ObjectId, Scratch
from plasmon._records import Public
from plasmon._terms import Terms, left, rights
from plasmon.errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Buffer as Readable


class Writes(Handle):
    """Calls of a client that make objects, and delete them."""

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
    ) -> ObjectId:
        """Stores a value, for everybody in the cluster to get.

        - bytes-like objects (`bytes`, `bytearray`, `memoryview`, `mmap`, `Buffer`): as they are;
        - NumPy arrays: their elements, in C or Fortran order as they lie, and in C order if neither;
        - PyArrow tables and record batches: as an Arrow IPC stream, written straight into the store;
        - everything else: by pickle, with the memory of arrays within it beside the pickle. So are arrays of
          objects, of subclasses, and of types that a literal of NumPy does not tell: with metadata, aligned
          structures, records, types of other packages. NumPy's own pickles keep all of these, but may turn
          elements of a foreign byte order into native ones.

        Args:
            value: What to store.
            id: The id of the object, or its name; a random id if neither this nor `name` is given.
            name: The name of the object: it gets the id `ObjectId.from_name(name)`, or if it is private
                `ObjectId.from_private_name(name, client.user)`, so that other users may have the same name.
            private: Whether only this user may see the object. By its name it is found with `private=True`.
            public: What other users may do with an object that is not private: `"r"`, read it, or `"rw"`,
                delete and move it as well, as this user and root may in any case. `"r"` if not given; a node
                that was started with `--public rw` takes each of them for `"rw"`.
            timeout: Seconds that the node may take, above all to get room if there is none. Without it, and
                with 0, others that could make room are not waited for, but what the node does itself to make
                some is.
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
            TimedOut: The time is over, or the node that knows whether an id or a name is taken does not
                answer. The value may still be stored.
            StoreFull: There is no room that could be made.
            ObjectTooLarge: The value is larger than the whole store.
            InvalidArgument: The id or the name makes no sense.
        """
        fresh = id is None and name is None
        object_id, name = self._identify(id, name, private)
        terms = Terms(name, rights(private, public), timeout, digest, fresh, replicas, ttl)
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
    ) -> list[ObjectId]:
        """Stores values as `put` does, small ones together: several times as many a second.

        Args:
            values: What to store.
            ids: Their ids, as many as values; random ones if not given. A name here gives the object its id,
                and no name in listings.
            private: As in `put`.
            public: As in `put`.
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
            object_ids = [self._identify(id, None, private)[0] for id in ids]
        if len(object_ids) != len(encoded):
            raise InvalidArgument(f"{len(object_ids)} ids for {len(encoded)} values")
        terms = Terms(None, rights(private, public), timeout, digest, ids is None, replicas, ttl)
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
    ) -> ObjectId:
        """Stores bytes as they are, with metadata of the caller's own.

        Args:
            id: The id of the object, or its name.
            data: Its data: anything with memory to read, of any type, in C order.
            metadata: Anything, below 4 GiB.
            name: As in `put`.
            private: As in `put`.
            public: As in `put`.
            timeout: As in `put`.
            digest: As in `put`.
            replicas: As in `put`.
            ttl: As in `put`.

        Returns:
            The id of the object.

        Raises:
            ObjectExists, StoreFull, ObjectTooLarge, TooFewReplicas, InvalidArgument: As `put`.
        """
        object_id, name = self._identify(id, name, private)
        flat = data if type(data) is bytes else _values.flat(memoryview(data))
        terms = Terms(name, rights(private, public), timeout, digest, False, replicas, ttl)
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
    ) -> Creation:
        """Starts an object that is written in place, and seen by nobody before it is sealed.

        Args:
            id: The id of the object, or its name.
            size: Bytes of data.
            metadata: Anything, below 4 GiB; empty metadata says that the data is plain bytes.
            name: As in `put`.
            private: As in `put`.
            public: As in `put`.
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
        object_id, name = self._identify(id, name, private)
        if not 0 <= size < 1 << 63:
            raise InvalidArgument(f"an object cannot have {size} bytes")
        terms = Terms(name, rights(private, public), timeout, digest, False, replicas, ttl)
        return self._native.create(object_id, size, metadata, terms)

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
            public: As in `put`.
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
        fresh = id is None and name is None
        object_id, name = self._identify(id, name, private)
        terms = Terms(name, rights(private, public), timeout, digest, fresh, replicas, ttl)
        encoded = _values.encode(value)
        metadata, size, parts, _ = encoded
        if len(parts) == 1 and parts[0][0] == 0 and memoryview(parts[0][1]).nbytes == size:
            moved = self._native.put_from(object_id, parts[0][1], metadata, terms)
            if moved is not None:
                return object_id
        self._store(object_id, encoded, terms)
        return object_id

    def _store(self, id: ObjectId, encoded: _values.Encoded, terms: Terms) -> None:
        """Stores an encoded value."""
        metadata, size, parts, write = encoded
        if write is None:
            self._native.put(id, size, parts, metadata, terms)
        else:
            with self._native.create(id, size, metadata, terms) as creation:
                write(memoryview(creation))

    def seal(self, id: IdLike, *, private: bool = False) -> None:
        """Seals what this client has created under an id: makes it immutable and visible to all.

        Raises:
            InvalidArgument: This client is not creating such an object.
        """
        self._native.seal(self._one(id, private))

    def abort(self, id: IdLike, *, private: bool = False) -> None:
        """Gives up what this client has created under an id, so that it can be created again.

        Raises:
            InvalidArgument: This client is not creating such an object.
        """
        self._native.abort(self._one(id, private))

    @overload
    def delete(self, id_or_ids: IdLike, *, private: bool = False) -> bool: ...  # type: ignore[overload-overlap]
    @overload
    def delete(self, id_or_ids: Iterable[IdLike], *, private: bool = False) -> list[bool]: ...
    def delete(self, id_or_ids: IdLike | Iterable[IdLike], *, private: bool = False) -> bool | list[bool]:
        """Deletes objects from every node. Values that were got before stay as they are.

        When it has returned, no node gives them to anybody, and their names are free.

        Args:
            id_or_ids: One id or name, or several.
            private: As in `get`.

        Returns:
            Whether there was such an object; or for several ids, a list of that in order.

        Raises:
            NotAllowed: An object is another user's, who did not put it with `public="rw"`. It stays; the
                others are deleted. Root may delete what it may read.
            OutcomeUnknown: A node that may hold one does not answer, or the node that decides went before
                it answered; they may be there still, or go later.
        """
        if isinstance(id_or_ids, ONE):
            return self._native.delete([self._one(id_or_ids, private)])[0]
        return self._native.delete(self._all(id_or_ids, private))
