"""The connection behind a client, and how ids are told to it: what all groups of calls share."""

from __future__ import annotations

from collections.abc import Iterable

from plasmon import _internal
from plasmon._ids import ONE, IdLike, identify
from plasmon._internal import ObjectId


class Handle:
    """A connection to the node of this host."""

    _native: _internal.Client

    @property
    def user(self) -> int:
        """The uid of the user that this client is to the node: whose the objects are that it puts."""
        return self._native.user

    def _identify(self, id: IdLike | None, name: str | None, private: bool) -> tuple[ObjectId, str | None]:
        """The id and the name of a new object."""
        return identify(id, name, self.user if private else None)

    def _one(self, id: IdLike, private: bool) -> IdLike:
        """What stands for an object, where a name may be that of a private one."""
        if private and isinstance(id, str):
            return ObjectId.from_private_name(id, self.user)
        return id

    def _all(self, ids: Iterable[IdLike], private: bool) -> Iterable[IdLike]:
        """The same of several, or of one alone."""
        some: Iterable[IdLike] = [ids] if isinstance(ids, ONE) else ids
        return [self._one(id, private) for id in some] if private else some
