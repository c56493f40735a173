"""Ids of objects, and the values that callers may write in their place."""

from __future__ import annotations

from plasmon._internal import ObjectId
from plasmon.errors import InvalidArgument

IdLike = ObjectId | bytes | str
"""Argument that names an object in calls: an `ObjectId`, its 20 bytes, its 40 hexadecimal digits, or a name,
which is hashed to an id."""

ONE = (ObjectId, bytes, str)
"""Types of `IdLike`. A value of these types is one id, where several may be given as well."""


_HEX_DIGITS = 2 * ObjectId.LENGTH


def is_hex(text: str) -> bool:
    """Whether a text is an id, and no name."""
    return len(text) == _HEX_DIGITS and all(digit in "0123456789abcdefABCDEF" for digit in text)


def identify(id: IdLike | None, name: str | None, user: int | None) -> tuple[ObjectId, str | None]:
    """Id and name of a new object. `user` owns the object if it is private, and is `None` otherwise."""
    if name is None and (id is None or type(id) is ObjectId):
        return id or ObjectId.random(), None
    if isinstance(id, str) and is_hex(id):
        id = ObjectId.from_hex(id)
    if isinstance(id, str):
        if name is not None and name != id:
            raise InvalidArgument(f"two names for one object: {id!r} and {name!r}")
        name = id
        id = None
    if isinstance(id, bytes):
        id = ObjectId(id)
    if name is not None:
        named = ObjectId.from_name(name) if user is None else ObjectId.from_private_name(name, user)
        if id is not None and id != named:
            raise InvalidArgument(f"object {id} cannot have the name {name!r}, which stands for {named}")
        return named, name
    if not isinstance(id, ObjectId):
        raise TypeError(f"an object id is an ObjectId, 20 bytes or a name, not {type(id).__name__}")
    return id, None
