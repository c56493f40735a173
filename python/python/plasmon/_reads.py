"""Calls that give objects, wait for them, or say what is in them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

from plasmon import _values
from plasmon._handle import Handle
from plasmon._ids import ONE, IdLike
from plasmon._internal import Buffer, ObjectId
from plasmon.errors import InvalidArgument

if TYPE_CHECKING:
    from typing_extensions import Buffer as Readable


class Reads(Handle):
    """Calls of a client that read objects, or wait for them."""

    @overload
    def get(self, id_or_ids: IdLike, timeout: float | None = None, *, private: bool = False) -> Any: ...
    @overload
    def get(
        self, id_or_ids: Iterable[IdLike], timeout: float | None = None, *, private: bool = False
    ) -> list[Any]: ...
    def get(
        self, id_or_ids: IdLike | Iterable[IdLike], timeout: float | None = None, *, private: bool = False
    ) -> Any:
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
            private: Whether names are those of this user's private objects.

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
        if isinstance(id_or_ids, ONE):
            return _values.decode(self._native.get_one(self._one(id_or_ids, private), timeout))
        return [_values.decode(buffer) for buffer in self._native.get(self._all(id_or_ids, private), timeout)]

    def get_buffers(
        self, ids: Iterable[IdLike], timeout: float | None = None, *, private: bool = False
    ) -> list[Buffer]:
        """Waits for objects as `get` does, and gives their bytes as they are.

        Args:
            ids: Ids or names.
            timeout: Seconds to wait, for all of them together; `None` waits for ever, 0 takes only
                what is on this node.
            private: As in `get`.

        Returns:
            One `Buffer` an id, in order.

        Raises:
            TimedOut, ObjectNotFound, ObjectLost, NotAllowed, StoreFull: As `get`.
        """
        return self._native.get(self._all(ids, private), timeout)

    def get_into(
        self, id: IdLike, into: Readable, timeout: float | None = None, *, private: bool = False
    ) -> int:
        """Brings the data of an object into memory of the caller's, as bytes, without its metadata.

        From another host it comes straight there if `into` is memory of `buffer` or `register`, and leaves no
        replica on this node; otherwise by way of one, and a copy. `explain` says which.

        Args:
            id: An id or a name.
            into: Writable memory in one piece: a `Scratch`, a `bytearray`, an array.
            timeout: As in `get`.
            private: As in `get`.

        Returns:
            How many bytes the object has. After an error the memory is undefined; after Ctrl-C and `TimedOut`
            it may still change until it is used for another call.

        Raises:
            InvalidArgument: The memory is too small.
            TimedOut, ObjectNotFound, ObjectLost, NotAllowed, StoreFull: As `get`.
        """
        try:
            flat = memoryview(into).cast("B")
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"the memory to get an object into is not in one piece: {error}") from error
        return self._native.get_into(self._one(id, private), flat, timeout)

    @overload  # A str is an iterable of str, too: here it is one name.
    def contains(self, id_or_ids: IdLike, *, private: bool = False) -> bool: ...  # type: ignore[overload-overlap]
    @overload
    def contains(self, id_or_ids: Iterable[IdLike], *, private: bool = False) -> list[bool]: ...
    def contains(self, id_or_ids: IdLike | Iterable[IdLike], *, private: bool = False) -> bool | list[bool]:
        """Whether objects are sealed, here or on another node.

        Args:
            id_or_ids: One id or name, or several.
            private: As in `get`.

        Returns:
            Whether it is; or for several ids, a list of that in order.
        """
        if isinstance(id_or_ids, ONE):
            return self._native.contains([self._one(id_or_ids, private)])[0]
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
            ids: Ids or names, at most 65,536.
            count: How many of them to wait for; all of them if not given.
            timeout: Seconds to wait; `None` waits for ever.
            private: As in `get`.

        Returns:
            The ids of those that are here, and of the others, both in order. Those that are here are not
            pinned: they may leave again before they are got.

        Raises:
            InvalidArgument: There are too many ids, or the count is not among 0 and their number.
        """
        object_ids = [self._identify(id, None, private)[0] for id in ([ids] if isinstance(ids, ONE) else ids)]
        if count is None:
            count = len(object_ids)
        if not 0 <= count <= len(object_ids):
            raise InvalidArgument(f"cannot wait for {count} of {len(object_ids)} objects")
        here = self._native.wait(object_ids, count, timeout)
        ready = [id for id, is_here in zip(object_ids, here, strict=True) if is_here]
        return ready, [id for id, is_here in zip(object_ids, here, strict=True) if not is_here]

    def metadata(self, id: IdLike, timeout: float | None = None, *, private: bool = False) -> bytes:
        """The metadata of an object. Waits for it, and raises, as `get` does."""
        return self._native.get_one(self._one(id, private), timeout).metadata

    def hash(self, id: IdLike, timeout: float | None = None, *, private: bool = False) -> bytes:
        """The digest of an object: XXH3 of its data and metadata, 8 bytes, little-endian.

        It is the one made when the object was sealed, or if none was, computed now. Waits for the object, and
        raises, as `get` does.
        """
        return self._native.get_one(self._one(id, private), timeout).digest()

    def verify(self, id: IdLike, timeout: float | None = None, *, private: bool = False) -> None:
        """Compares an object's bytes with the digest made when it was sealed, if one was.

        Waits for the object as `get` does.

        Raises:
            ObjectDamaged: They differ.
            TimedOut, ObjectNotFound, ObjectLost, NotAllowed, StoreFull: As `get`.
        """
        self._native.get_one(self._one(id, private), timeout).verify()
