"""Client: a connection to the node of this host, and the calls about the node itself."""

from __future__ import annotations

import builtins
import dataclasses
import glob
import json
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, Self, cast
from weakref import WeakSet

from plasmon import _internal
from plasmon._arguments import text, whole
from plasmon._classes import Priority
from plasmon._closing import Closing
from plasmon._ids import ONE, IdLike, is_hex, prefix_of
from plasmon._internal import ObjectId
from plasmon._named import NamedObjects, Names
from plasmon._places import Places
from plasmon._reads import Reads
from plasmon._records import ObjectInfo, Public
from plasmon._regions import Regions
from plasmon._services import Services
from plasmon._subscription import Subscription
from plasmon._sync import Locks
from plasmon._writes import Writes
from plasmon.errors import Disconnected, IncompleteList, InvalidArgument, ObjectNotFound, WrongType

_clients: WeakSet[Client] = WeakSet()
"""Clients of this process that are open."""
_inherited: list[_internal.Client] = []
"""Connections of the parent, from which this process was forked. They are never touched again: a thread of
the parent may have held their locks."""


class _Inherited:
    """Takes the place of a parent's connection in a forked child, until the first call."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        if self.closed:
            raise Disconnected("this client is closed: connect again")
        return getattr(self._client._reconnect(), name)

    def close(self) -> None:
        self.closed = True


def _follow_fork() -> None:
    """Has the clients of a forked child connect when they are next used."""
    for client in _clients:
        _inherited.append(client._native)
        client._native = cast("_internal.Client", _Inherited(client))


os.register_at_fork(after_in_child=_follow_fork)


class Client(Writes, Reads, Places, Regions, Services, Locks, Closing):
    """A connection to the node of this host, for any number of threads.

    `plasmon.connect` makes clients. A client used as a context manager closes at the end of the block. Values
    that were got through it stay readable after that.

    A name stands for one object that all users share, and for one private object of each user. With
    `private=True`, calls mean the private object. The argument does not matter for ids.

    `client["name"]` gets a value without waiting, or raises `ObjectNotFound`, which is a `KeyError`; `in` and
    `del` are `contains` and `delete`. Iteration is over the names of the objects of the cluster, and `len`
    counts them. `mapping` can also set values.

    A forked child has a connection of its own, made at its first call; values that its parent got are not
    pinned for it. A client can be pickled: the copy connects to the node of the host where it is unpickled,
    by the same socket if one was named. Every call may raise `Disconnected` and `TimedOut`. This process
    itself looks at the clock, so no call outlives its `timeout`, even if the node has stopped. Calls without
    a `timeout` parameter (`contains`, `delete`, `status` and others) wait at most 60 s, or the `timeout` of
    the client, for an answer of the node; so do `put` and similar calls if their `timeout` is `None`. Ctrl-C
    ends all waiting. After an error the request may still be carried out.
    """

    def __init__(
        self,
        socket: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
        namespace: str | None = None,
        priority: Priority = "normal",
    ) -> None:
        path = _path(socket)
        self._prefix = prefix_of(namespace)
        self._native = _internal.Client(path, _program(), timeout, priority)
        self._arguments = path, timeout, namespace, priority
        self._path = self._native.socket
        self._guards = WeakSet()
        _clients.add(self)

    def __reduce__(self) -> tuple[type[Self], tuple[str | None, float | None, str | None, Priority]]:
        if self.closed:
            raise TypeError("a closed client cannot be pickled")
        return type(self), self._arguments

    def _reconnect(self) -> _internal.Client:
        """Connects a forked child to the node of its parent's connection."""
        self._native = _internal.Client(self._path, _program(), self._arguments[1], self._arguments[3])
        return self._native

    def with_class(self, priority: Priority) -> Self:
        """Makes a client on a connection of its own whose work is of another class.

        Args:
            priority: Class of all that the new client asks for, as for `plasmon.connect`.

        Raises:
            InvalidArgument: There is no such class.
            NotAllowed: The node does not give this class to this user (its setting `--classes`).
        """
        _, timeout, namespace, _ = self._arguments
        return type(self)(self._path, timeout, namespace, priority)

    def set_options(self, name: str | None = None, quota: int | None = None) -> None:
        """Changes the name and the quota of this client. A value of `None` leaves the option as it is.

        Args:
            name: Name of the client in reports and messages.
            quota: Limit in bytes for the objects that this client creates from now on; 0 for no limit of its
                own.

        Raises:
            InvalidArgument: The name is empty or longer than 255 bytes, or the quota is out of range.
        """
        quota = None if quota is None else whole(quota, "a quota in bytes", 0, (1 << 64) - 1)
        self._native.set_options(name, quota)

    def subscribe(self, *, cluster: bool = False) -> Subscription:
        """Subscribes to the objects of this node: those that are there, then all that come and leave.

        Args:
            cluster: Whether to subscribe to all nodes (`Event.node`). The events of each node come in order;
                there is no order between nodes. A node that is lost gives a gap, and so does one that comes.

        Raises:
            Disconnected: The node is gone.
        """
        return Subscription(self._native.subscribe(_program(), cluster))

    @property
    def capacity(self) -> int:
        """Size in bytes of the store of this node."""
        return self._native.capacity

    def usage(self) -> dict[str, int]:
        """Use of the store in bytes: `capacity`, `used`, `free`, and `spilled` to disk."""
        status = self.status()
        memory = status["memory"]
        usage = {key: int(memory[key]) for key in ("capacity", "used", "free")}
        return usage | {"spilled": int(status["spill"]["bytes"])}

    def list(
        self, pattern: str | ObjectId | None = None, *, cluster: bool = False
    ) -> builtins.list[ObjectInfo]:
        """Lists the objects on this node, or in the cluster, that this user may see, the oldest first.

        Objects that come, go or move during the call may be in the list or not. The nodes that hold the
        objects compare them with the pattern. To delete what is found, `delete` takes the ids:
        `client.delete([info.id for info in client.list("tmp/*", cluster=True)])`.

        A client with a namespace lists the objects that have a name in it, by their names there.

        Args:
            pattern: Pattern of names by the rules of `fnmatch`: `*` stands for any text, also with slashes,
                `?` for one character, `[abc]` and `[!abc]` for one of these characters or any other. A text
                without these characters is one name, and 40 hexadecimal digits are an id. `None` for all
                objects, also those without a name.
            cluster: Whether the sealed objects of all nodes are listed, each once: `ObjectInfo` is that of
                the primary, if that was found, and has all `nodes`.

        Raises:
            IncompleteList: Nodes did not answer within 5 s, or left meanwhile. The error has the other
                objects.
            InvalidArgument: The pattern is longer than a name may be.
        """
        wanted = "" if pattern is None else _text_of(pattern)
        here = self._prefix if not is_hex(wanted) else ""
        rows, missing = self._native.list(glob.escape(here) + (wanted or "*") if here else wanted, cluster)
        objects = [ObjectInfo(*row, kind, tuple(nodes), version) for row, kind, nodes, version in rows]
        if here:
            objects = [dataclasses.replace(one, name=(one.name or "")[len(here) :]) for one in objects]
        if missing:
            raise IncompleteList(objects, dict(missing))
        return objects

    def mapping(
        self,
        prefix: str = "",
        *,
        private: bool = False,
        public: Public | None = None,
        timeout: float | None = None,
        replicas: int = 1,
        ttl: float | None = None,
    ) -> NamedObjects:
        """Named objects of the whole cluster as a `MutableMapping`, which other programs may use as well.

        Args:
            prefix: Beginning of the names, which the keys of the mapping leave out.
            private: Whether the mapping is of this user's private objects.
            public: As in `put`.
            timeout: As in `put`, for each value that is set. Also the time in seconds that other programs are
                given that are creating an object of the same name; for these `None` means 30 s.
            replicas: As in `put`.
            ttl: As in `put`.
        """
        if not isinstance(prefix, str):
            raise WrongType(f"the prefix of names is a str, not {type(prefix).__name__}")
        names = Names(self, private=private, public=public, timeout=timeout, replicas=replicas, ttl=ttl)
        return NamedObjects(names, prefix)

    def __getitem__(self, id: IdLike) -> Any:
        return self.get(id, timeout=0)

    def __setitem__(self, id: IdLike, value: object) -> NoReturn:
        name = id if isinstance(id, str) else "NAME"
        raise WrongType(
            f"objects never change: client.put(value, name={name!r}, replace=True) puts another in the place "
            f"of the one of that name, as client.mapping()[{name!r}] = value does"
        )

    def __delitem__(self, id: IdLike) -> None:
        if not self.delete(id):
            raise ObjectNotFound(f"there is no object {id!r} in the cluster to delete")

    def __contains__(self, id: object) -> bool:
        return isinstance(id, ONE) and self.contains(id)

    def __iter__(self) -> Iterator[str]:
        return iter(self.mapping())

    def __len__(self) -> int:
        return len(self.mapping())

    def __bool__(self) -> bool:
        # A client of an empty store is a client all the same.
        return True

    def status(self) -> dict[str, Any]:
        """Status report of the node, as `plasmon status --json` prints it. Sizes are in bytes."""
        status: dict[str, Any] = json.loads(self._native.status())
        return status

    @property
    def owner(self) -> int:
        """User id of the node, as the kernel tells it. The node provides every byte that this client reads.

        The user is root, this user or the owner of `/run/plasmon`, unless the socket was named explicitly.
        """
        return self._native.owner

    @property
    def namespace(self) -> str | None:
        """Namespace of the names that this client uses, if it has one."""
        return self._arguments[2]

    @property
    def node(self) -> str:
        """Id of the node, 32 hexadecimal digits."""
        return self._native.node

    @property
    def socket(self) -> str:
        """Path of the node's socket."""
        return self._native.socket

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native.closed

    def close(self) -> None:
        """Closes the client, and unlocks what it holds. Values that were got stay readable.

        Later calls raise `Disconnected`, and so do calls under way in other threads; their requests may still
        be carried out.
        """
        _clients.discard(self)
        self._release_all()
        self._native.close()

    def __repr__(self) -> str:
        return "<plasmon.Client, closed>" if self.closed else f"<plasmon.Client of {self.socket!r}>"


def connect(
    socket: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    *,
    namespace: str | None = None,
    priority: Priority = "normal",
) -> Client:
    """Connects to the node of this host.

    A node whose socket is named, here or by `$PLASMON_SOCKET`, may belong to any user: see `Client.owner`. A
    node at a default socket must belong to root, to this user, or to the owner of `/run/plasmon`.

    Args:
        socket: Path of the node's socket; by default `$PLASMON_SOCKET`, else `plasmon/plasmon.sock` in
            `$XDG_RUNTIME_DIR`, else `/run/plasmon/plasmon.sock` for root, else
            `/tmp/plasmon-<uid>/plasmon.sock`. If this user has no socket there, the node of the whole host
            at `/run/plasmon/plasmon.sock`.
        timeout: Time in seconds that connecting may take, by default 10; also the time that calls without a
            time-out wait for an answer of the node, by default 60.
        namespace: Namespace of the names that the client uses. The name `"a"` of a client with the namespace
            `"job"` is the name `"job/a"` for everybody else. Ids are the same in every namespace.
        priority: Class of all that the client asks for: "high" work leaves a node before "normal" work, and
            "low" work after it.

    Raises:
        InvalidArgument: The namespace is empty or too long, begins or ends with a slash, or has a NUL; or
            there is no such class.
        Disconnected: No node listens there.
        NotAllowed: This user may not connect, or the node belongs to a user who is not trusted; or this user
            may not have work of this class.
        TimedOut: The node does not answer.
    """
    return Client(socket, timeout, namespace, priority)


def _text_of(pattern: str | ObjectId) -> str:
    return str(pattern) if isinstance(pattern, ObjectId) else text(pattern, "a pattern of names")


def _program() -> str:
    """Name of this client in reports."""
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    # The name of a file may be any bytes.
    return name.encode("utf-8", "backslashreplace").decode()


def _path(path: str | os.PathLike[str] | None) -> str | None:
    """Path of a socket that was named."""
    if path is None:
        return None
    try:
        return os.fsdecode(os.fsencode(path))
    except TypeError as error:
        raise WrongType(f"the path of a socket is a str or a path, not {type(path).__name__}") from error
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{path!r} cannot be the path of a socket: {error}") from error
