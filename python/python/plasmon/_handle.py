"""Connection of a client, and the conversion of ids: the base of all groups of calls."""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType

from plasmon import _internal
from plasmon._arguments import text
from plasmon._ids import IdLike, identify, is_hex, named, several
from plasmon._internal import Named, ObjectId


class Handle:
    """Connection to the node of this host."""

    def __init_subclass__(cls) -> None:
        """Has Python's messages about calls of a group name them as users know them: `Client.put()`."""
        if Handle in cls.__bases__:
            for call in vars(cls).values():
                if isinstance(call, FunctionType):
                    call.__module__, call.__qualname__ = "plasmon._client", f"Client.{call.__name__}"

    _native: _internal.Client
    _prefix: str
    """Prefix of this client's names: the namespace and a slash, or empty without a namespace."""

    @property
    def user(self) -> int:
        """User id of this client as the node knows it, which owns the objects that the client puts."""
        return self._native.user

    def _connected(self) -> _internal.Client:
        """Connection of this client, to be given to native code."""
        _ = self._native.node  # A forked child connects here.
        return self._native

    def _full(self, name: str, what: str) -> str:
        """Name of something in the cluster, by which a caller of this client calls it."""
        return self._prefix + text(name, f"the name of {what}")

    def _identify(self, id: IdLike | None, name: str | None, private: bool) -> tuple[ObjectId, str | None]:
        """Id and name of a new object."""
        return identify(id, name, self.user if private else None, self._prefix)

    def _one(self, id: IdLike, private: bool) -> IdLike | Named:
        """Id for a call. A name of a private object or in a namespace is hashed; other values stay."""
        if (private or self._prefix) and isinstance(id, str) and not is_hex(id):
            return Named(named(id, self.user if private else None, self._prefix), id)
        return id

    def _all(self, ids: IdLike | Iterable[IdLike], private: bool) -> Iterable[IdLike | Named]:
        """Ids for a call, given as several ids or as a single one."""
        some = several(ids)
        return [self._one(id, private) for id in some] if private or self._prefix else some
