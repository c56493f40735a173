"""Subscriptions to the objects of a node, or of all nodes, for threads."""

from __future__ import annotations

from typing import Self

from plasmon import _internal
from plasmon._closing import Closing
from plasmon._records import Event
from plasmon.errors import Disconnected


class Subscription(Closing):
    """Events of a node's objects, or of all nodes': an iterator, and a context manager that closes it.

    `Client.subscribe` makes subscriptions. The first events are those of the objects that are there, as if
    they were sealed now. An object that the node drops to make room counts as deleted. The events of each
    node are in order.
    """

    def __init__(self, native: _internal.Subscription) -> None:
        self._native = native

    def next(self, timeout: float | None = None) -> Event | None:
        """Waits for the next event. Returns `None` if none comes within `timeout` seconds.

        Raises:
            Disconnected: The node is gone, or the subscription was closed.
        """
        row = self._native.next(timeout)
        return None if row is None else Event(*row)

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

    def __next__(self) -> Event:
        try:
            event = None if self.closed else self.next()
        except Disconnected:
            if not self.closed:
                raise
            event = None
        if event is None:
            raise StopIteration
        return event
