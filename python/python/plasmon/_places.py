"""Calls about where objects are: on which nodes, and in whose memory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from plasmon._handle import Handle
from plasmon._ids import IdLike
from plasmon._records import Spread
from plasmon.errors import InvalidArgument


class Places(Handle):
    """Calls of a client about where objects are."""

    def prefetch(self, ids: Iterable[IdLike], timeout: float | None = 60.0, *, private: bool = False) -> None:
        """Begins to bring objects of other nodes to this host, so that a later `get` finds them here.

        Returns at once, pins nothing, and goes on when this client is closed. What does not come is found out
        by whoever gets it.

        Args:
            ids: Ids or names.
            timeout: Seconds to wait for objects that do not exist yet; `None` waits for ever.
            private: As in `get`.

        Raises:
            Busy: The node prefetches too many objects already.
        """
        self._native.prefetch(self._all(ids, private), timeout)

    def replicate(
        self, id: IdLike, replicas: int, timeout: float | None = None, *, private: bool = False
    ) -> Spread:
        """Has so many nodes hold an object and keep it, as `put(..., replicas=...)` does.

        Fewer than before make what is beyond them ordinary cached replicas, which leave when room is needed.

        Args:
            id: An id or a name.
            replicas: How many nodes, at least one; wherever the object is, this node or not among them.
            timeout: Seconds to wait; `None` waits for as long as it takes.
            private: As in `get`.

        Returns:
            The nodes that keep it.

        Raises:
            TooFewReplicas: Fewer can: the cluster is too small, or nodes have no room. The object stays on
                those that do, and the store goes on trying.
            ObjectNotFound: No node holds it.
            NotAllowed: It is another user's, who did not put it with `public="rw"`.
        """
        if not 0 < replicas < 1 << 16:
            raise InvalidArgument(f"there cannot be {replicas} replicas")
        return Spread(*self._native.replicate(self._one(id, private), replicas, timeout))

    def migrate(
        self, id: IdLike, node: str, timeout: float | None = None, *, private: bool = False
    ) -> Spread:
        """Moves an object to another node: its primary is there then, and no longer where it was.

        Whoever reads it does not notice: views stay valid, and gets find it. As many nodes keep it as before:
        if the node kept a replica already, the two change places.

        Args:
            id: An id or a name.
            node: The node's id, as `Client.node` of a client there, or `status`, tells it.
            timeout: As in `replicate`.
            private: As in `get`.

        Returns:
            The node that has it.

        Raises:
            InvalidArgument: There is no such node in the cluster.
            StoreFull: It has no room. The object stays where it is.
            Busy: The object is being moved already, or the node that had it was told meanwhile to keep it.
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
        """Brings an object to many nodes at the same time, each passing on what it has.

        What comes there is a cached replica, as if somebody on that node had got it: `get` finds it at once.

        Args:
            id: An id or a name.
            nodes: Ids of nodes; every node of the cluster if not given.
            timeout: As in `replicate`.
            private: As in `get`.

        Returns:
            The nodes among them that hold it now, and those that do not, each with the reason.

        Raises:
            InvalidArgument: One of them is no node of the cluster, or there are more than 1,024.
            ObjectNotFound, NotAllowed: As `replicate`.
        """
        if isinstance(nodes, str):
            nodes = [nodes]
        some = None if nodes is None else list(nodes)
        return Spread(*self._native.broadcast(self._one(id, private), some, timeout))

    def pin(self, id: IdLike, timeout: float | None = None, *, private: bool = False) -> None:
        """Brings an object to this host and keeps it in memory there: neither evicted nor spilled to disk.

        It stays so until `unpin`, or until this client is closed or its process ends; pinned twice it is
        pinned once. A deletion is not held up: nobody finds the object any more, and its memory is free with
        the last pin. Waits for the object, and raises, as `get` does.
        """
        self._native.pin(self._one(id, private), timeout)

    def unpin(self, id: IdLike, *, private: bool = False) -> None:
        """Ends what `pin` began. What this client has not pinned stays as it is."""
        self._native.unpin(self._one(id, private))

    def locations(self, id: IdLike, *, private: bool = False) -> list[tuple[str, str]]:
        """The nodes that hold an object, each with its role; this node first.

        The role is "primary"; "kept", of further replicas that were asked for; or "cached".

        What was put or dropped in the last milliseconds may not be known yet.
        """
        return self._native.locations(self._one(id, private))

    def explain(self, id: IdLike, *, private: bool = False) -> dict[str, Any]:
        """How an object came to this host, as `plasmon explain --json` prints it.

        `here` says whether it is here. `fetched` is `None`, or says of its last fetch from which `holders` it
        came, by which `protocol`, over which `provider` and `why`, its `bytes` and how many of them were
        copied, `into` what, and how many microseconds the phases took. `arriving` is `None`, or says of an
        object of 1 MiB or more that is on its way how many of its `bytes` have arrived (`arrived_bytes`), and
        for how many microseconds it has been (`us`).

        Raises:
            NotAllowed: It is private to another user.
        """
        explanation: dict[str, Any] = json.loads(self._native.explain(self._one(id, private)))
        return explanation

    def refresh(self, ids: Iterable[IdLike], *, private: bool = False) -> None:
        """Marks objects of this host as used just now, so that they leave memory later than others."""
        self._native.refresh(self._all(ids, private))

    def evict(self, size: int) -> int:
        """Takes least recently used objects out of the memory of this host.

        Those that are elsewhere or on disk as well may go, and in cache mode any; nothing that is pinned.

        Args:
            size: How many bytes are to become free.

        Returns:
            How many did: fewer if no more may go.
        """
        if not 0 <= size < 1 << 64:
            raise InvalidArgument(f"cannot free {size} bytes")
        return self._native.evict(size)
