"""Ids of objects, and the values that callers may write in their place."""

from __future__ import annotations

from collections.abc import Iterable

from plasmon._arguments import shown, text
from plasmon._internal import ObjectId
from plasmon.errors import InvalidArgument, WrongType

IdLike = ObjectId | bytes | str
"""Argument that names an object in calls: an `ObjectId`, its 20 bytes, its 40 hexadecimal digits, or a name,
which is hashed to an id."""

ONE = (ObjectId, bytes, str)
"""Types of `IdLike`. A value of these types is one id, where several may be given as well."""


def several(ids: IdLike | Iterable[IdLike]) -> Iterable[IdLike]:
    """Ids of a call that takes one or several."""
    if isinstance(ids, ONE):
        return [ids]
    try:
        iter(ids)
    except TypeError:
        raise WrongType(
            f"ids are an ObjectId, 20 bytes or a name, or a list of these, not {type(ids).__name__}"
        ) from None
    return ids


_HEX_DIGITS = 2 * ObjectId.LENGTH


def is_hex(name: str) -> bool:
    """Whether a text is an id, and no name."""
    return len(name) == _HEX_DIGITS and all(digit in "0123456789abcdefABCDEF" for digit in name)


_MAX_NAMESPACE = 200
"""Largest number of bytes of a namespace. It leaves some of the 255 bytes of a name for the rest of the
name."""


def prefix_of(namespace: str | None) -> str:
    """Prefix of all names of a namespace: the namespace and a slash, or empty without a namespace."""
    if namespace is None:
        return ""
    namespace = text(namespace, "a namespace")
    wrong = (
        "it is empty"
        if not namespace
        else "it begins or ends with a slash"
        if namespace[0] == "/" or namespace[-1] == "/"
        else "it has a NUL"
        if "\0" in namespace
        else f"it has more than {_MAX_NAMESPACE} bytes"
        if len(namespace.encode()) > _MAX_NAMESPACE
        else None
    )
    if wrong:
        raise InvalidArgument(f"{namespace!r} cannot be a namespace: {wrong}")
    return namespace + "/"


def named(name: str, user: int | None, prefix: str) -> ObjectId:
    """Id of the object of this name. `user` owns the object if it is private, and is `None` otherwise."""
    name = text(name, "a name")
    if not name:
        raise InvalidArgument("the name of an object cannot be empty")
    if is_hex(name):
        raise InvalidArgument(f"{name} cannot be a name: 40 hexadecimal digits are an id")
    name = prefix + name
    return ObjectId.from_name(name) if user is None else ObjectId.from_private_name(name, user)


def identify(
    id: IdLike | None, name: str | None, user: int | None, prefix: str = ""
) -> tuple[ObjectId, str | None]:
    """Id and name of a new object. `user` owns the object if it is private, and is `None` otherwise.

    The name begins with the prefix of the namespace.
    """
    if name is None and (id is None or type(id) is ObjectId):
        return id or ObjectId.random(), None
    if isinstance(id, str) and is_hex(id):
        id = ObjectId.from_hex(id)
    if isinstance(id, str):
        if name is not None and name != id:
            raise InvalidArgument(f"two names for one object: {shown(id)} and {shown(name)}")
        name = id
        id = None
    if isinstance(id, bytes):
        id = ObjectId(id)
    if name is not None:
        meant = named(name, user, prefix)
        if id is not None and id != meant:
            raise InvalidArgument(f"object {id} cannot have the name {name!r}, which stands for {meant}")
        return meant, prefix + name
    if not isinstance(id, ObjectId):
        raise WrongType(f"an object id is an ObjectId, 20 bytes or a name, not {type(id).__name__}")
    return id, None
