"""Objects by their names: the mapping of a client, and the base of file systems and stores over names."""

from __future__ import annotations

import time
from collections.abc import Callable, ItemsView, Iterator, MutableMapping, Sequence, ValuesView
from contextlib import contextmanager
from glob import escape
from typing import TYPE_CHECKING, Any, TypeVar, overload

from plasmon import _values
from plasmon._arguments import shown
from plasmon._internal import Buffer, ObjectId, default_socket
from plasmon._records import ObjectInfo, Public
from plasmon._terms import Terms, rights
from plasmon._values import Encoded
from plasmon.errors import Disconnected, ObjectExists, ObjectNotFound, WrongType

if TYPE_CHECKING:
    from plasmon._client import Client

_T = TypeVar("_T")

_PATIENCE_SECONDS = 30.0
"""Time to wait for other writers of a name, where no time-out is given."""
_LOOK_SECONDS = 1.0
"""Time after which a wait for another writer looks whether that writer gave up."""
_DELETED_TOGETHER = 1024
"""Number of objects that one call deletes."""


_NOT_THERE = ("unsealed", "doomed")
"""States of objects that nobody can get."""
_PATTERN_BYTES = 255
"""Longest pattern of a list."""
_shared: dict[str, Client] = {}
"""Clients of this process by their sockets, for file systems and stores, which many threads make anew."""


@contextmanager
def shared_client(socket: str | None) -> Iterator[Client]:
    """Client of this process for a socket, or for the default socket.

    When its node is gone, the next call connects again.
    """
    from plasmon._client import Client

    path = socket or default_socket()
    client = _shared.get(path)
    if client is None:
        # Threads that connect at the same time all use the first one's client. A lock might be held by a
        # thread that a forked child does not have.
        client = _shared.setdefault(path, Client(socket))
    try:
        yield client
    except Disconnected:
        if _shared.get(path) is client:
            _shared.pop(path, None)
        raise


class Names:
    """Named objects of a client, all kept on the same terms."""

    def __init__(
        self,
        client: Client,
        *,
        private: bool = False,
        public: Public | None = None,
        timeout: float | None = None,
        replicas: int = 1,
        ttl: float | None = None,
    ) -> None:
        self.client = client
        self.private = private
        self.terms = Terms(None, rights(private, public), timeout, False, False, replicas, ttl)

    def rows(self, prefix: str) -> list[ObjectInfo]:
        """Sealed objects of the cluster whose names begin with a prefix, each once, in order of their names.

        An object whose id does not follow from its name is left out, because its name does not find it.
        """
        rows = {}
        for row in self.client.list(_pattern(prefix), cluster=True):
            name = row.name
            if name is None or not name.startswith(prefix) or row.private != self.private:
                continue
            if row.state not in _NOT_THERE and self._id(name) == row.id:
                rows[name] = row
        return [rows[name] for name in sorted(rows)]

    def row(self, name: str) -> ObjectInfo | None:
        """Row of the object that has a name, or `None`."""
        id = self._id(name)
        for row in self.client.list(id, cluster=True):
            if row.id == id and row.state not in _NOT_THERE:
                return row
        return None

    def _id(self, name: str) -> ObjectId:
        return self.client._identify(None, name, self.private)[0]

    def contains(self, name: str) -> bool:
        """Whether a name has an object, on any node."""
        return self.client.contains(name, private=self.private)

    def read(self, name: str) -> Buffer:
        """Object of a name, brought to this node.

        Raises:
            ObjectNotFound: The name has no object in the cluster.
        """
        return self.client.get_buffers([name], timeout=0, private=self.private)[0]

    def add(self, name: str, encoded: Encoded) -> None:
        """Stores a value under a name that is free.

        Raises:
            ObjectExists: The name is taken.
        """
        id, name_of_id = self.client._identify(None, name, self.private)
        self.client._store(id, encoded, self.terms._replace(name=name_of_id))

    def replace(self, name: str, encoded: Encoded) -> None:
        """Stores a value under a name, in the place of the object that has it, if there is one.

        The object changes in one step: no reader finds none in between.

        Raises:
            TimedOut: Another program has been creating an object of the name all the time.
        """
        id, name_of_id = self.client._identify(None, name, self.private)
        self.client._store(id, encoded, self.terms._replace(name=name_of_id, replace=True))

    def find_or_add(self, name: str, value: Any) -> Buffer:
        """Object of a name, which gets a value first if it has none.

        Of several programs that do this at the same time all get the same object.
        """
        writers = _Writers(self, name)
        while True:
            try:
                return self.read(name)
            except ObjectNotFound:
                pass
            try:
                self.add(name, _values.encode(value))
            except ObjectExists as error:
                writers.wait(error)

    def delete(self, name: str) -> bool:
        """Deletes the object of a name, and returns whether there was one."""
        return self.client.delete(name, private=self.private)

    def delete_all(self, names: Sequence[str]) -> list[bool]:
        """Deletes the objects of names, and returns which of them there were."""
        answers = []
        for first in range(0, len(names), _DELETED_TOGETHER):
            some = names[first : first + _DELETED_TOGETHER]
            answers += self.client.delete(some, private=self.private)
        return answers

    def clear(self, prefix: str) -> None:
        """Deletes all objects whose names begin with a prefix."""
        self.delete_all([row.name for row in self.rows(prefix) if row.name])


class SharedNames:
    """Named objects of whoever is at a socket, kept on the same terms: for file systems and stores.

    It has no connection of its own, so that it can be pickled and copied.
    """

    def __init__(
        self,
        socket: str | None,
        *,
        private: bool,
        public: Public | None,
        timeout: float | None,
        replicas: int,
        ttl: float | None,
    ) -> None:
        self.socket = socket
        self.terms: dict[str, Any] = {"private": private, "public": public, "timeout": timeout}
        self.terms |= {"replicas": replicas, "ttl": ttl}
        rights(private, public)

    def of(self, client: Client) -> Names:
        """The names with the same terms, used through a client."""
        return Names(client, **self.terms)

    def run(self, call: Callable[[Names], _T]) -> _T:
        """Makes a call by the client that this process has for the socket."""
        with shared_client(self.socket) as client:
            return call(self.of(client))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedNames) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def _pattern(prefix: str) -> str:
    """Pattern of names that begin with a prefix, or with a part of it if the pattern were too long."""
    while len((pattern := escape(prefix) + "*").encode("utf-8", "surrogatepass")) > _PATTERN_BYTES:
        prefix = prefix[:-1]
    return pattern


class _Writers:
    """Other programs that are writing an object of the same name, and the time that they are given."""

    def __init__(self, names: Names, name: str) -> None:
        self._names = names
        self._name = name
        self._end = time.monotonic() + (names.terms.timeout or _PATIENCE_SECONDS)

    def wait(self, error: ObjectExists) -> None:
        """Waits until one of them is done, or may have given up. Raises `error` when the time is over."""
        rest = self._end - time.monotonic()
        if rest <= 0:
            raise error
        names = self._names
        names.client.wait([self._name], timeout=min(rest, _LOOK_SECONDS), private=names.private)


class NamedObjects(MutableMapping[str, Any]):
    """The named objects of the cluster as a mapping: keys are names, without the prefix of the mapping.

    `Client.mapping` makes mappings. A mapping has no state of its own: several programs on any hosts may use
    the same prefix at the same time.

    - `m[key]` gets a value in place, as `Client.get` does, but does not wait: a miss is `ObjectNotFound`,
      which is a `KeyError`.
    - `m[key] = value` replaces the object of the name in one step: a reader gets the old value or the new
      one. Values that were got before stay as they were. Of several programs that set a key at the same time,
      one is the last, and its value stays.
    - `m.setdefault(key, value)` puts only if there is no object. Of several programs that call it at the same
      time, all get the same value.
    - `m.pop(key)` gets and deletes. Of several programs that pop a key at the same time, one gets the value.
    - Iteration is over the names that the cluster has at the start, in their order. `items()` and `values()`
      leave out what is deleted meanwhile. `len` lists as well: it is no cheap call.
    """

    def __init__(self, names: Names, prefix: str) -> None:
        self._names = names
        self._prefix = prefix

    @property
    def prefix(self) -> str:
        """Beginning of the names of all objects of this mapping."""
        return self._prefix

    def __getitem__(self, key: str) -> Any:
        if not isinstance(key, str):
            raise ObjectNotFound(f"{shown(key)} is no name")
        return _values.decode(self._names.read(self._prefix + key))

    def __setitem__(self, key: str, value: Any) -> None:
        self._names.replace(self._name(key), _values.encode(value))

    def __delitem__(self, key: str) -> None:
        if not isinstance(key, str):
            raise ObjectNotFound(f"{shown(key)} is no name")
        if not self._names.delete(self._prefix + key):
            raise ObjectNotFound(f"there is no object {self._prefix + key!r} in the cluster to delete")

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._names.contains(self._prefix + key)

    def __iter__(self) -> Iterator[str]:
        skipped = len(self._prefix)
        return iter([row.name[skipped:] for row in self._names.rows(self._prefix) if row.name])

    def __len__(self) -> int:
        return len(self._names.rows(self._prefix))

    def items(self) -> ItemsView[str, Any]:
        """Names and values, without objects that are deleted while this iterates."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Values, without objects that are deleted while this iterates."""
        return _Values(self)

    @overload
    def pop(self, key: str, /) -> Any: ...
    @overload
    def pop(self, key: str, /, default: _T) -> Any | _T: ...
    def pop(self, key: str, /, default: Any = ...) -> Any:
        """Gets a value and deletes its object."""
        try:
            value = self[key]
            del self[key]
        except KeyError:
            if default is ...:
                raise
            return default
        return value

    def setdefault(self, key: str, default: Any = None, /) -> Any:
        """Value of a key, which gets `default` first if it has none."""
        return _values.decode(self._names.find_or_add(self._name(key), default))

    def clear(self) -> None:
        """Deletes all objects of this mapping."""
        self._names.clear(self._prefix)

    def _name(self, key: str) -> str:
        if not isinstance(key, str):
            raise WrongType(f"a name is a str, not {type(key).__name__}")
        return self._prefix + key

    def __repr__(self) -> str:
        return f"<plasmon.NamedObjects {self._prefix + '*'!r} of {self._names.client!r}>"


class _Items(ItemsView[str, Any]):
    """Names and values of a mapping whose objects may be deleted by others."""

    _mapping: NamedObjects

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for key in self._mapping:
            try:
                yield key, self._mapping[key]
            except ObjectNotFound:
                continue


class _Values(ValuesView[Any]):
    """Values of a mapping whose objects may be deleted by others."""

    _mapping: NamedObjects

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping.items())

    def __contains__(self, value: object) -> bool:
        return any(one is value or one == value for one in self)
