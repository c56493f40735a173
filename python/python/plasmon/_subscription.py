"""Events of a node's objects, for threads."""

from __future__ import annotations

from typing import Self

from plasmon import _internal
from plasmon._closing import Closing
from plasmon._records import Event
from plasmon.errors import Disconnected


class Subscription(Closing):
    """Events of a node's objects, in order: an iterator, and a context manager that closes it.

    Made by `Client.subscribe`. It begins with the objects that are there, each as sealed. What the node
    drops to make room is told as deleted, too.
    """

    def __init__(self, native: _internal.Subscription) -> None:
        self._native = native

    def next(self, timeout: float | None = None) -> Event | None:
        """The next event; `None` if none comes within `timeout` seconds.

        Raises:
            Disconnected: The node is gone, or the subscription closed.
        """
        row = self._native.next(timeout)
        return None if row is None else Event(*row)

    def fileno(self) -> int:
        """A descriptor for `select`: readable when there may be an event. Read all with `next(0)` then."""
        return self._native.fileno()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native.closed

    def close(self) -> None:
        """Ends it, and with it the wait of another thread."""
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
