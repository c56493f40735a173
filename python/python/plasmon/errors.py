"""What can go wrong, as exceptions.

Every exception of this package is an `Error`, and where Python has a type for its kind, one of those too.
"""

from plasmon import _internal


class Error(Exception):
    """Something went wrong in plasmon; its message says what, to which object or socket, and what to do.

    Names in it are others' choice: what would steer a terminal, or deceive its reader, is shown as an escape.
    """

    def __str__(self) -> str:
        return _internal.printable(Exception.__str__(self))


class ObjectExists(Error):  # noqa: N818
    """An object of this id is there already, or is being created."""


class ObjectNotFound(Error, KeyError):  # noqa: N818
    """Nothing of this id is known."""


class ObjectLost(Error):  # noqa: N818
    """The object existed, and every node that held it is gone."""


class TooFewReplicas(Error):  # noqa: N818
    """Fewer nodes hold the object than was asked for; it stays where it is, and the message says where."""


class OutcomeUnknown(Error):  # noqa: N818
    """It may have happened or not, or happen later: a node that knows, and is named, does not answer."""


class ObjectDamaged(Error):  # noqa: N818
    """The object's bytes are no longer those that were sealed: a file it was spilled to is damaged."""


class ObjectTooLarge(Error):  # noqa: N818
    """The object is larger than the whole store."""


class StoreFull(Error):  # noqa: N818
    """The store has no room: what it holds is pinned, or exists nowhere else."""


class TimedOut(Error, TimeoutError):  # noqa: N818
    """It did not happen within the time-out."""


class InvalidArgument(Error, ValueError):  # noqa: N818
    """An argument does not make sense."""


class NotAllowed(Error, PermissionError):  # noqa: N818
    """This user may not do that to this object, or not connect to this node."""


class Busy(Error):  # noqa: N818
    """The node limits what one client may have under way, and this is over the limit."""


class Disconnected(Error, ConnectionError):  # noqa: N818
    """No connection to the node, or the node is being drained and takes nothing new.

    It cannot be reached, the connection broke, or the client was closed.
    """


class MalformedValue(Error, ValueError):  # noqa: N818
    """The bytes of an object are not what its metadata says they are; `get_buffers` still reads them."""
