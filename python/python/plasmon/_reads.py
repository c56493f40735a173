"""Calls that read objects, wait for them, or compute digests of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from plasmon import _values
from plasmon._arguments import whole
from plasmon._handle import Handle
from plasmon._ids import ONE, IdLike, several
from plasmon._internal import Buffer, Named, ObjectId, Version
from plasmon._terms import ABSENT, Absent
from plasmon.errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Buffer as Readable

T = TypeVar("T")


class NoDefault:
    """Value of an argument `default` that was not given."""

    def __repr__(self) -> str:
        return "<none>"


NO_DEFAULT = NoDefault()


class Reads(Handle):
    """Calls of a client that read objects or wait for them."""

    @overload  # A str is an iterable of str, too: here it is one name.
    def get(  # type: ignore[overload-overlap]
        self,
        id_or_ids: IdLike,
        timeout: float | None = None,
        *,
        version: Literal[True],
        default: Any = NO_DEFAULT,
        type: type | None = None,
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> tuple[Any, Version | Absent]: ...
    @overload
    def get(
        self,
        id_or_ids: Iterable[IdLike],
        timeout: float | None = None,
        *,
        version: Literal[True],
        default: Any = NO_DEFAULT,
        type: type | None = None,
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> list[tuple[Any, Version | Absent]]: ...
    @overload
    def get(  # type: ignore[overload-overlap]
        self,
        id_or_ids: IdLike,
        timeout: float | None = None,
        *,
        type: type[T],
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> T: ...
    @overload
    def get(
        self,
        id_or_ids: Iterable[IdLike],
        timeout: float | None = None,
        *,
        type: type[T],
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> list[T]: ...
    @overload
    def get(
        self,
        id_or_ids: IdLike,
        timeout: float | None = None,
        *,
        default: Any = NO_DEFAULT,
        type: type | None = None,
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> Any: ...
    @overload
    def get(
        self,
        id_or_ids: Iterable[IdLike],
        timeout: float | None = None,
        *,
        default: Any = NO_DEFAULT,
        type: type | None = None,
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> list[Any]: ...
    def get(
        self,
        id_or_ids: IdLike | Iterable[IdLike],
        timeout: float | None = None,
        *,
        default: Any = NO_DEFAULT,
        type: type | None = None,
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
        version: bool = False,
    ) -> Any:
        """Gets the values of objects. Waits for objects that are elsewhere or not created yet.

        With a time-out of 0, or a `default`, the call does not wait for an object to be created: of each
        object that is not on this node, the one node that knows whether it exists is asked. An object that
        exists is brought here, however long that takes. An object whose id was drawn at random may be missed
        until a message about its seal has arrived.

        Values are read in place, in the memory of this host. Bytes are returned as a `Buffer`, which is used
        like `bytes`, arrays as read-only arrays, and Arrow data likewise. An object stays pinned as long
        as its value, or any view or slice of it, lives. With `copy` a value can be written to, and holds no
        object.

        Values that were stored by pickle are unpickled. A pickle can run any code: get only objects put by
        users that you trust.

        Args:
            id_or_ids: One id or name, or several.
            timeout: Time in seconds to wait for all of the objects together. `None` waits without limit, or
                does not wait if there is a `default`. 0 does not wait.
            default: Value in place of each object that is not in the cluster, at the end of the time-out if
                there is one.
            type: Type that the values are to have. For `bytes`, `bytearray` and `memoryview`, bytes are
                converted, and for `str` they are decoded; other values are only checked.
            private: Whether names are those of this user's private objects.
            verify: Whether the bytes are compared with the digest that was made at the seal, if one was made
                (`put(..., digest=True)`). Bytes that come from another node are compared before anybody sees
                them, and another holder is tried if they differ; that is done for all gets where the node's
                setting `--verify` says so. This call also reads all bytes once more in this process.
            copy: Whether each value is a copy in this process' own memory, which the caller may write to and
                keep for as long as it likes: bytes become a `bytearray`, and arrays are writable, also those
                within other values. Arrow data cannot be written to, but are copied as well.
            version: Whether a version comes with each value, for `put(..., replace=True, expected=version)`.
                The node is asked for it, also about an object that is here.

        Returns:
            Value of the object; for several ids, a list of the values in order. With `version`, the value and
            its `Version` in a tuple; a `default` has `plasmon.ABSENT`.

        Raises:
            TimedOut: An object did not come within the time-out. With a time-out of 0 or a `default`: the
                node that knows whether an object exists did not answer for a second.
            ObjectNotFound: With a time-out of 0, an object is not in the cluster.
            ObjectLost: An object existed, and every node that held it is gone.
            ObjectDamaged: An object cannot be read back from disk, or its bytes are not those that were
                sealed, and no other node has these.
            NotAllowed: An object is private to another user.
            StoreFull: There is no room here for an object from another node.
            MalformedValue: An object does not match its metadata.
            WrongType: A value is not of the `type`, or the `type` is none.
        """
        if type is None and default is NO_DEFAULT and not version and isinstance(id_or_ids, ONE):
            id = self._one(id_or_ids, private) if private or self._prefix else id_or_ids
            buffer = self._native.get_one(id, timeout, verify)
            return _values.decode(buffer, copy) if copy or buffer._encoded else buffer
        _values.check_type(type)
        ids = self._all(id_or_ids, private)
        found: Sequence[Buffer | None]
        versions: list[Version | Absent] = []
        if version:
            found, versions = self._with_versions(ids, timeout, verify, default is not NO_DEFAULT)
        elif default is NO_DEFAULT:
            found = self._native.get(ids, timeout, verify)
        else:
            found = self._native.get_existing(ids, 0 if timeout is None else timeout, verify)
        values = [default if one is None else _values.decode_as(one, type, copy) for one in found]
        values = list(zip(values, versions, strict=True)) if version else values
        return values[0] if isinstance(id_or_ids, ONE) else values

    def _with_versions(
        self, ids: Iterable[IdLike | Named], timeout: float | None, verify: bool, existing: bool
    ) -> tuple[list[Buffer | None], list[Version | Absent]]:
        """Objects and their versions. With `existing`, `None` for each that is not in the cluster."""
        timeout = 0 if existing and timeout is None else timeout
        found = self._native.get_versioned(ids, timeout, verify, existing)
        return [one and one[0] for one in found], [one[1] if one else ABSENT for one in found]

    def get_buffers(
        self,
        ids: Iterable[IdLike],
        timeout: float | None = None,
        *,
        private: bool = False,
        verify: bool = False,
    ) -> list[Buffer]:
        """Waits for objects as `get` does, and returns their bytes without decoding them.

        Args:
            ids: Ids or names of the objects.
            timeout: As in `get`.
            private: Whether names are those of this user's private objects.
            verify: As in `get`.

        Returns:
            One `Buffer` an id, in order.

        Raises:
            TimedOut, ObjectNotFound, ObjectLost, ObjectDamaged, NotAllowed, StoreFull: As `get`.
        """
        return self._native.get(self._all(ids, private) if private or self._prefix else ids, timeout, verify)

    def get_into(
        self,
        id: IdLike,
        into: Readable,
        timeout: float | None = None,
        *,
        private: bool = False,
        verify: bool = False,
    ) -> int:
        """Copies the data of an object, without its metadata, into memory of the caller.

        If `into` is memory of `buffer` or `register`, an object from another host is received directly into
        it, and leaves no replica on this node. Otherwise the node fetches a replica, and this call copies it.
        `explain` tells which of the two happened.

        Args:
            id: Id or name of the object.
            into: Writable, contiguous memory: a `Scratch`, a `bytearray`, an array.
            timeout: As in `get`.
            private: Whether a name is that of this user's private object.
            verify: As in `get`. Bytes that are received directly into the memory are compared by the node
                alone.

        Returns:
            Size of the object's data in bytes. After an error the content of the memory is undefined. After
            Ctrl-C and `TimedOut` it may still change until the memory is used for another call.

        Raises:
            InvalidArgument: The memory is too small.
            TimedOut, ObjectNotFound, ObjectLost, ObjectDamaged, NotAllowed, StoreFull: As `get`.
        """
        try:
            flat = memoryview(into).cast("B")
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"the memory to receive an object is not in one piece: {error}") from error
        return self._native.get_into(self._one(id, private), flat, timeout, verify)

    @overload  # A str is an iterable of str, too: here it is one name.
    def contains(  # type: ignore[overload-overlap]
        self, id_or_ids: IdLike, *, private: bool = False
    ) -> bool: ...
    @overload
    def contains(self, id_or_ids: Iterable[IdLike], *, private: bool = False) -> list[bool]: ...
    def contains(self, id_or_ids: IdLike | Iterable[IdLike], *, private: bool = False) -> bool | list[bool]:
        """Whether objects are sealed, on this node or another.

        Args:
            id_or_ids: One id or name, or several.
            private: Whether names are those of this user's private objects.

        Returns:
            Whether the object is sealed; for several ids, a list of the answers in order.
        """
        if isinstance(id_or_ids, ONE):
            return self._native.contains_one(
                self._one(id_or_ids, private) if private or self._prefix else id_or_ids
            )
        return self._native.contains(self._all(id_or_ids, private))

    def wait(
        self,
        ids: Iterable[IdLike],
        count: int | None = None,
        timeout: float | None = None,
        *,
        private: bool = False,
    ) -> tuple[list[ObjectId], list[ObjectId]]:
        """Waits until some of the objects are in the memory of this host.

        Args:
            ids: Ids or names of the objects, at most 65,536.
            count: Number of objects to wait for. `None` waits for all of them.
            timeout: Time in seconds to wait. `None` waits without limit; 0 tells what is on this host, and
                asks no other.
            private: Whether names are those of this user's private objects.

        Returns:
            Ids of the objects that are here, and ids of the others, both in order. The objects here are not
            pinned: they may be evicted before they are got.

        Raises:
            InvalidArgument: There are too many ids, or the count is not between 0 and their number.
        """
        object_ids = [self._identify(id, None, private)[0] for id in several(ids)]
        most = len(object_ids)
        count = most if count is None else whole(count, f"the number of {most} objects to wait for", 0, most)
        here = self._native.wait(object_ids, count, timeout)
        ready = [id for id, is_here in zip(object_ids, here, strict=True) if is_here]
        return ready, [id for id, is_here in zip(object_ids, here, strict=True) if not is_here]

    def metadata(self, id: IdLike, timeout: float | None = None, *, private: bool = False) -> bytes:
        """Metadata of an object. The call waits for the object, and raises, as `get` does."""
        return self._native.get_one(self._one(id, private), timeout).metadata

    def hash(self, id: IdLike, timeout: float | None = None, *, private: bool = False) -> bytes:
        """Digest of an object: XXH3 of its data and metadata, 8 bytes, little-endian.

        The digest is the one made when the object was sealed; if none was made, it is computed now. The call
        waits for the object, and raises, as `get` does.
        """
        return self._native.get_one(self._one(id, private), timeout).digest()

    def verify(self, id: IdLike, timeout: float | None = None, *, private: bool = False) -> None:
        """Compares an object's bytes with the digest made when it was sealed, if one was made.

        The call waits for the object as `get` does.

        Raises:
            ObjectDamaged: The digests differ.
            TimedOut, ObjectNotFound, ObjectLost, NotAllowed, StoreFull: As `get`.
        """
        self._native.get_one(self._one(id, private), timeout).verify()
