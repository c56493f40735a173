"""Calls about the place of objects: on which nodes they are, and whether in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from plasmon import _values
from plasmon._arguments import several, whole
from plasmon._handle import Handle
from plasmon._ids import IdLike
from plasmon._records import Spread


class Places(Handle):
    """Calls of a client about the place of objects."""

    def prefetch(self, ids: Iterable[IdLike], timeout: float | None = 60.0, *, private: bool = False) -> None:
        """Begins to bring objects of other nodes to this host, so that a later `get` finds them here.

        The call returns at once and pins nothing. The node goes on when this client is closed. If an object
        cannot be brought, a later `get` of it fails.

        Args:
            ids: Ids or names of the objects.
            timeout: Time in seconds to wait for objects that do not exist yet. `None` waits without limit; 0
                brings only those that exist.
            private: Whether names are those of this user's private objects.

        Raises:
            Busy: The node is prefetching too many objects already.
        """
        self._native.prefetch(self._all(ids, private), timeout)

    def replicate(
        self, id: IdLike, replicas: int, timeout: float | None = None, *, private: bool = False
    ) -> Spread:
        """Makes several nodes keep an object, as `put(..., replicas=...)` does.

        A smaller number than before turns surplus replicas into cached ones, which are dropped when room is
        needed.

        Args:
            id: Id or name of the object.
            replicas: Number of nodes, at least one. This node need not be one of them.
            timeout: Time in seconds to wait. `None` waits without limit.
            private: Whether a name is that of this user's private object.

        Returns:
            Nodes that keep the object.

        Raises:
            TooFewReplicas: Fewer nodes can keep it: the cluster is too small, or nodes have no room. The
                object stays on the nodes that keep it, and the store goes on trying.
            ObjectNotFound: No node holds the object.
            NotAllowed: The object belongs to another user, who did not put it with `public="rw"`.
        """
        replicas = whole(replicas, "a number of replicas", 1, (1 << 16) - 1)
        return Spread(*self._native.replicate(self._one(id, private), replicas, timeout))

    def migrate(
        self, id: IdLike, node: str, timeout: float | None = None, *, private: bool = False
    ) -> Spread:
        """Moves an object to another node, which becomes its primary.

        The previous primary drops its replica. Readers are not disturbed: views stay valid, and gets find the
        object. As many nodes keep it as before: if the node kept a replica already, the two nodes swap roles.

        Args:
            id: Id or name of the object.
            node: Node: its id (`Client.node` of a client there) or the id's first characters, at least 6; the
                "HOST:PORT" where it listens; or the name or address of its host, if no other node is there.
            timeout: Time in seconds to wait. `None` waits without limit.
            private: Whether a name is that of this user's private object.

        Returns:
            Node that is the primary now.

        Raises:
            InvalidArgument: There is no such node in the cluster, or several are called so: the message has
                their ids.
            StoreFull: The node has no room. The object stays where it is.
            Busy: The object is being moved already, or its primary was ordered meanwhile to keep it.
            ObjectNotFound, NotAllowed: As `replicate`.
        """
        return Spread(*self._native.migrate(self._one(id, private), node, timeout))

    def broadcast(
        self,
        id: IdLike,
        nodes: Iterable[str] | None = None,
        timeout: float | None = None,
        *,
        private: bool = False,
    ) -> Spread:
        """Brings an object to many nodes at the same time; the nodes pass it on to each other.

        Each node gets a cached replica, as a get on that node would make it, and `get` finds it there at
        once.

        Args:
            id: Id or name of the object.
            nodes: Nodes, each as in `migrate`. `None` stands for every node of the cluster.
            timeout: Time in seconds to wait. `None` waits without limit.
            private: Whether a name is that of this user's private object.

        Returns:
            Nodes of the broadcast that hold the object now, and the others, each with the reason.

        Raises:
            InvalidArgument: As `migrate` for a node, or there are more than 1,024 nodes.
            ObjectNotFound, NotAllowed: As `replicate`.
        """
        if isinstance(nodes, str):
            nodes = [nodes]
        some = None if nodes is None else several(nodes, "nodes")
        return Spread(*self._native.broadcast(self._one(id, private), some, timeout))

    def pin(self, id: IdLike, timeout: float | None = None, *, private: bool = False) -> None:
        """Brings an object to this host and keeps it in memory, neither evicted nor spilled.

        The pin ends with `unpin`, or when this client is closed or its process ends. Pinning an object twice
        has the effect of pinning it once. A pin does not prevent a deletion: no later get finds the object,
        and its memory is freed with the last pin. The call waits for the object, and raises, as `get` does.
        """
        self._native.pin(self._one(id, private), timeout)

    def unpin(self, id: IdLike, *, private: bool = False) -> None:
        """Ends the effect of `pin`. An object that this client has not pinned stays as it is."""
        self._native.unpin(self._one(id, private))

    def locations(self, id: IdLike, *, private: bool = False) -> list[tuple[str, str]]:
        """Lists the nodes that hold an object. The list may lag behind puts and evictions by milliseconds.

        Returns:
            Pairs of a node's id (32 hexadecimal digits) and the role of its replica ("primary", "kept" or
            "cached"), this node first. Empty if no node holds the object.
        """
        return self._native.locations(self._one(id, private))

    def explain(self, id: IdLike, *, private: bool = False) -> dict[str, Any]:
        """Explains how an object came to this host, as `plasmon explain --json` prints it.

        `here` is the role of this node's replica, and `version` its version, as text of which
        `plasmon.Version` makes one, or `None`. `fetched` describes the last fetch, or is `None`: the
        `holders` that the object came from, the `protocol` and its reason (`why`), the `provider`, the size
        in `bytes`, the bytes that were copied, the destination (`into`), and the time of each phase in
        microseconds. `arriving` describes a fetch under way of an object of 1 MiB or more, or is `None`: the
        `bytes`, those that have arrived (`arrived_bytes`), and the time since the object was asked for in
        microseconds (`us`). `value` says how this package stored the value of an object in memory here, or is
        `None`: its `kind` (numpy, arrow or pickle), and what was `copied` before it was stored: the number of
        bytes by the reason.

        Raises:
            NotAllowed: The object is private to another user.
        """
        object_id = self._one(id, private)
        explanation: dict[str, Any] = json.loads(self._native.explain(object_id))
        here = self._native.get_local(object_id)
        explanation["value"] = None if here is None else _values.explain(here.metadata)
        return explanation

    def refresh(self, ids: Iterable[IdLike], *, private: bool = False) -> None:
        """Marks objects of this host as just used, so that they are evicted later than others."""
        self._native.refresh(self._all(ids, private))

    def evict(self, size: int) -> int:
        """Evicts least recently used objects from the memory of this host.

        The call evicts objects that are also on other nodes or on disk, and in cache mode any; never a pinned
        object.

        Args:
            size: Number of bytes to free.

        Returns:
            Number of bytes freed, which is smaller than `size` if no more objects may be evicted.
        """
        size = whole(size, "a number of bytes to free", 0, (1 << 64) - 1)
        return self._native.evict(size)
