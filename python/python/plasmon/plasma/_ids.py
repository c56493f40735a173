"""Plasma's object ids: 20 bytes, the same as `plasmon.ObjectId`."""

from __future__ import annotations

from collections.abc import Iterable

from plasmon._internal import ObjectId


class ObjectID:
    """Id of an object.

    Args:
        object_id: Bytes of the id, 20 of them.

    Raises:
        ValueError: The argument is not 20 bytes.
    """

    __slots__ = ("__weakref__", "_id")

    _id: ObjectId

    def __init__(self, object_id: bytes) -> None:
        if not isinstance(object_id, bytes) or len(object_id) != ObjectId.LENGTH:
            raise ValueError(f"an object id is {ObjectId.LENGTH} bytes, not {object_id!r}")
        self._id = ObjectId(object_id)

    @staticmethod
    def from_random() -> ObjectID:
        """Draws a random id."""
        return from_native(ObjectId.random())

    def binary(self) -> bytes:
        """Bytes of the id, 20 of them."""
        return self._id.binary()

    def __eq__(self, other: object) -> bool:
        return self._id == other._id if isinstance(other, ObjectID) else NotImplemented

    def __lt__(self, other: ObjectID) -> bool:
        return self._id < other._id if isinstance(other, ObjectID) else NotImplemented

    def __le__(self, other: ObjectID) -> bool:
        return self._id <= other._id if isinstance(other, ObjectID) else NotImplemented

    def __gt__(self, other: ObjectID) -> bool:
        return self._id > other._id if isinstance(other, ObjectID) else NotImplemented

    def __ge__(self, other: ObjectID) -> bool:
        return self._id >= other._id if isinstance(other, ObjectID) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"ObjectID({self._id.hex()})"

    def __reduce__(self) -> tuple[type[ObjectID], tuple[bytes]]:
        return ObjectID, (self.binary(),)


def from_native(native: ObjectId) -> ObjectID:
    """Converts Plasmon's id into Plasma's."""
    object_id = ObjectID.__new__(ObjectID)
    object_id._id = native
    return object_id


def native(object_id: ObjectID) -> ObjectId:
    """Converts Plasma's id into Plasmon's.

    Raises:
        TypeError: The argument is no `ObjectID`.
    """
    try:
        return object_id._id
    except AttributeError:
        raise TypeError(f"expected an ObjectID, not {type(object_id).__name__}") from None


def natives(object_ids: Iterable[ObjectID]) -> list[ObjectId]:
    """Converts several of Plasma's ids into Plasmon's.

    Raises:
        TypeError: An item is no `ObjectID`.
    """
    return [native(object_id) for object_id in object_ids]
