"""Subscriptions, for threads: to the objects of a node or of all nodes, and to what happens to regions."""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, Protocol, Self, TypeVar

from plasmon import _internal
from plasmon._closing import Closing
from plasmon._records import Event, RegionEvent
from plasmon.errors import Disconnected

_E = TypeVar("_E")


class _Native(Protocol):
    """Interface that the native parts of all subscriptions have."""

    def fileno(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...


class Events(Closing, Generic[_E]):
    """Events of one kind: an iterator, and a context manager that closes it."""

    _native: _Native

    @abstractmethod
    def next(self, timeout: float | None = None) -> _E | None:
        """Waits for the next event. Returns `None` if none comes within `timeout` seconds."""

    def fileno(self) -> int:
        """Descriptor for `select`: readable if an event may have come. Read all with `next(0)` then."""
        return self._native.fileno()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native.closed

    def close(self) -> None:
        """Ends the subscription, and with it the wait of another thread."""
        self._native.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _E:
        try:
            event = None if self.closed else self.next()
        except Disconnected:
            if not self.closed:
                raise
            event = None
        if event is None:
            raise StopIteration
        return event


class Subscription(Events[Event]):
    """Events of a node's objects, or of all nodes': an iterator, and a context manager that closes it.

    `Client.subscribe` makes subscriptions. The first events are those of the objects that are there, as if
    they were sealed now. An object that the node drops to make room counts as deleted. An object that takes
    the place of another has one event, "replaced", on the node on which it was put; other nodes that held the
    former object tell that it is deleted there. The events of each node are in order.
    """

    _native: _internal.Subscription

    def __init__(self, native: _internal.Subscription) -> None:
        self._native = native

    def next(self, timeout: float | None = None) -> Event | None:
        """Waits for the next event. Returns `None` if none comes within `timeout` seconds.

        Raises:
            Disconnected: The node is gone, or the subscription was closed.
        """
        row = self._native.next(timeout)
        return None if row is None else Event(*row)


class RegionEvents(Events[RegionEvent]):
    """Events of the regions to which a client has handles: an iterator, and a context manager that closes it.

    `Client.region_events` makes them. The events are of all regions of the client at the time, wherever these
    live and whoever causes the events: the client itself, others, or the end of a node. The events of a
    region are in order. The iterator ends when the client is closed.
    """

    _native: _internal.RegionEvents

    def __init__(self, native: _internal.RegionEvents, prefix: str) -> None:
        self._native = native
        self._prefix = prefix

    def next(self, timeout: float | None = None) -> RegionEvent | None:
        """Waits for the next event. Returns `None` if none comes within `timeout` seconds.

        Raises:
            Disconnected: The node is gone, or the events or the client were closed.
        """
        row = self._native.next(timeout)
        if row is None:
            return None
        kind, name, owner, home, user, rights, missed = row
        name = None if name is None else name.removeprefix(self._prefix)
        everyone = rights is not None and user is None
        return RegionEvent(kind, name, owner, home, "everyone" if everyone else user, rights, missed)
