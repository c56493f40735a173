"""The client: a connection to the node of this host, and what concerns the node rather than its objects."""

from __future__ import annotations

import builtins
import json
import os
import sys
from typing import Any

from plasmon import _internal
from plasmon._closing import Closing
from plasmon._places import Places
from plasmon._reads import Reads
from plasmon._records import ObjectInfo
from plasmon._subscription import Subscription
from plasmon._writes import Writes
from plasmon.errors import InvalidArgument


class Client(Writes, Reads, Places, Closing):
    """A connection to the node of this host, for any number of threads.

    Made by `plasmon.connect`. As a context manager it closes at the end of the block. What was got through it
    stays readable after that.

    A name stands for one object of everybody's, and for another, private one of each user's: with
    `private=True` all calls mean the latter. It makes no difference to ids.

    A forked child cannot use a client of its parent, nor rely on objects of its parent: it connects on its
    own. Every call may raise `Disconnected`, and `TimedOut`: this process looks at the clock itself, so that
    no call outlives its `timeout`, even if the node has stopped. Calls that take none (`contains`, `delete`,
    `status` and the like) wait for an answer of the node for a minute, or for the `timeout` of the client;
    so do `put` and its like without one. Ctrl-C ends all waiting. What was asked for may still happen.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, timeout: float | None = None) -> None:
        path = None if socket is None else os.fspath(socket)
        self._native = _internal.Client(path, _program(), timeout)

    def set_options(self, name: str | None = None, quota: int | None = None) -> None:
        """Changes what the node knows of this client; what is not given stays as it was.

        Args:
            name: What people see of it in reports and messages.
            quota: Most bytes that objects may take that this client creates, from now on; 0 for no limit of
                its own.

        Raises:
            InvalidArgument: The name is empty or longer than 255 bytes, or the quota makes no sense.
        """
        if quota is not None and not 0 <= quota < 1 << 64:
            raise InvalidArgument(f"a quota cannot be {quota} bytes")
        self._native.set_options(name, quota)

    def subscribe(self) -> Subscription:
        """Watches the objects of this node: those that are there, then all that comes and goes.

        Raises:
            Disconnected: The node is gone.
        """
        return Subscription(self._native.subscribe(_program()))

    @property
    def capacity(self) -> int:
        """Bytes of the store of this node."""
        return self._native.capacity

    def usage(self) -> dict[str, int]:
        """How the store is used, in bytes: `capacity`, `used`, `free`, and `spilled` to disk."""
        status = self.status()
        memory = status["memory"]
        usage = {key: int(memory[key]) for key in ("capacity", "used", "free")}
        return usage | {"spilled": int(status["spill"]["bytes"])}

    def list(self) -> builtins.list[ObjectInfo]:
        """The objects on this node that this user may see."""
        return [ObjectInfo(*row) for row in self._native.list()]

    def status(self) -> dict[str, Any]:
        """The state of the node, as `plasmon status --json` prints it; sizes are bytes."""
        status: dict[str, Any] = json.loads(self._native.status())
        return status

    @property
    def owner(self) -> int:
        """The uid of the user who runs the node, by the kernel's word: it gives out all that is read.

        It is another one than root, this user or the owner of `/run/plasmon` only if the socket was named.
        """
        return self._native.owner

    @property
    def node(self) -> str:
        """The id of the node, 32 hexadecimal digits."""
        return self._native.node

    @property
    def socket(self) -> str:
        """The path of the node's socket."""
        return self._native.socket

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._native.closed

    def close(self) -> None:
        """Closes the client. Values that were got stay readable.

        Later calls raise `Disconnected`, and so do those that other threads are making: what they asked for
        may still happen.
        """
        self._native.close()

    def __repr__(self) -> str:
        return "<plasmon.Client, closed>" if self.closed else f"<plasmon.Client of {self.socket!r}>"


def connect(socket: str | os.PathLike[str] | None = None, timeout: float | None = None) -> Client:
    """Connects to the node of this host.

    A node whose socket is named, here or by `$PLASMON_SOCKET`, may be anybody's: `Client.owner` says whose.
    One that is found has to be root's, this user's, or that of the owner of `/run/plasmon`.

    Args:
        socket: Path of the node's socket; else `$PLASMON_SOCKET`, else `plasmon/plasmon.sock` in
            `$XDG_RUNTIME_DIR`, else in `/run` for root, else `/tmp/plasmon-<uid>/plasmon.sock`; and where
            there is none of this user's, `/run/plasmon/plasmon.sock`, the node of the whole host.
        timeout: Seconds that connecting may take, 10 if not given; and that calls of the client which have no
            time-out wait for an answer of the node, 60 if not given.

    Raises:
        Disconnected: No node listens there.
        NotAllowed: This user may not connect to it, or it is a stranger's and was not named.
        TimedOut: It does not answer.
    """
    return Client(socket, timeout)


def _program() -> str:
    """What people see of this client."""
    return os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
