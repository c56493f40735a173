"""Notifications of the store, as Plasma gives them: by calls, or on a socket.

Programs read messages from Plasma's socket themselves. Here a thread writes the messages, and only if the
program asks for the socket; a program that only calls `next` needs no thread. A message is its length, 64-bit
little-endian, and as many bytes:

    missed        8 bytes, signed: notifications that were lost before this one
    then at most one of:
    object id     20 bytes
    data size     8 bytes, signed; -1 for an object that is gone
    metadata size 8 bytes, signed; likewise
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import warnings

from plasmon import Event, Subscription, errors
from plasmon.plasma._ids import ObjectID, from_native

Notification = tuple[ObjectID, int, int]
"""Id, data size and metadata size in bytes. Both sizes are -1 for an object that is gone."""

_LENGTH = struct.Struct("<q")
_MISSED = struct.Struct("<q")
_RECORD = struct.Struct("<20sqq")


class Notifications:
    """Subscription of one client."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._lock = threading.Lock()
        self._reader: socket.socket | None = None

    def next(self) -> Notification:
        """Waits for the next notification.

        Raises:
            OSError: Notifications were lost because this program is slow to read them, or the connection
                broke.
        """
        if self._reader is None:
            event = self._subscription.next()
            if event is None:
                raise errors.Disconnected("the subscription has ended")
            missed, notification = _of(event)
        else:
            (length,) = _LENGTH.unpack(_receive(self._reader, _LENGTH.size))
            missed, notifications = _decode(_receive(self._reader, length))
            notification = notifications[0] if notifications else None
        if notification is None:
            raise OSError(_lost(missed))
        return notification

    def as_socket(self) -> socket.socket:
        """Socket on which messages are sent from now on."""
        with self._lock:
            if self._reader is None:
                self._reader, writer = socket.socketpair()
                pump = threading.Thread(
                    target=self._pump, args=(writer,), name="plasma-notifications", daemon=True
                )
                pump.start()
            return self._reader

    def close(self) -> None:
        """Ends the subscription."""
        if self._reader is None:
            self._subscription.close()
        else:
            with contextlib.suppress(OSError):  # The program has closed it.
                self._reader.shutdown(socket.SHUT_RDWR)

    def _pump(self, writer: socket.socket) -> None:
        """Writes messages until the subscription ends or the program closes the socket.

        If the program does not read, this method waits, and the node keeps events up to a limit.
        """
        with self._subscription as events, writer, contextlib.suppress(OSError):
            while True:
                while (event := events.next(0)) is not None:
                    writer.sendall(_encode(*_of(event)))
                # The reader sends nothing: the socket is readable only at its end.
                ready, _, _ = select.select([events.fileno(), writer.fileno()], [], [])
                if writer.fileno() in ready:
                    return


def decode(message: bytes) -> tuple[list[ObjectID], list[int], list[int]]:
    """Ids, data sizes and metadata sizes of a message without its length."""
    missed, notifications = _decode(message)
    if missed:
        warnings.warn(_lost(missed), RuntimeWarning, stacklevel=3)
    return (
        [notification[0] for notification in notifications],
        [notification[1] for notification in notifications],
        [notification[2] for notification in notifications],
    )


def _of(event: Event) -> tuple[int, Notification | None]:
    """Number of lost notifications, and the notification of an event, if it is one."""
    if event.id is None:
        return event.missed, None
    if event.kind == "deleted":
        return 0, (from_native(event.id), -1, -1)
    return 0, (from_native(event.id), event.size, event.metadata_size)


def _encode(missed: int, notification: Notification | None) -> bytes:
    body = _MISSED.pack(missed)
    if notification is not None:
        object_id, size, metadata_size = notification
        body += _RECORD.pack(object_id.binary(), size, metadata_size)
    return _LENGTH.pack(len(body)) + body


def _decode(message: bytes) -> tuple[int, list[Notification]]:
    try:
        (missed,) = _MISSED.unpack_from(message)
        records = list(_RECORD.iter_unpack(message[_MISSED.size :]))
    except struct.error:
        raise ValueError(
            f"{len(message)} bytes are no notification: its length comes first, in 8 bytes, then the rest"
        ) from None
    return missed, [(ObjectID(binary), size, metadata_size) for binary, size, metadata_size in records]


def _lost(missed: int) -> str:
    return f"{missed} notifications were lost before this one: read them more often"


def _receive(source: socket.socket, length: int) -> bytes:
    """Receives `length` bytes."""
    received = bytearray()
    while len(received) < length:
        more = source.recv(length - len(received))
        if not more:
            raise errors.Disconnected("the subscription has ended")
        received += more
    return bytes(received)
