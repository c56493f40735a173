"""Exceptions of this package.

Every exception is an `Error`. If Python has an exception type for the kind of error, it is an instance of
that type too. `help(plasmon)` lists the exceptions in a few lines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from plasmon import _internal

if TYPE_CHECKING:
    from plasmon._records import ObjectInfo


class Error(Exception):
    """Error of Plasmon. Its message says what happened, to which object or socket, and what to do.

    Names in the message were chosen by others. Characters that control a terminal or mislead the reader are
    escaped.
    """

    id: _internal.ObjectId | None = None
    """Object that the error is about, if it is about one."""
    name: str | None = None
    """Name by which the call named the object. `None` if it gave an id."""
    needed: int | None = None
    """Amount that the call asked for: bytes if the store is full, nodes if too few keep the object."""
    held: int | None = None
    """Amount that there is, in the unit of `needed`: bytes that objects hold, or nodes that keep the
    object."""

    def __str__(self) -> str:
        return _internal.printable(Exception.__str__(self))


class ObjectExists(Error):  # noqa: N818
    """An object of this id exists already or is being created."""


class Conflict(Error):  # noqa: N818
    """Another version of the object is there than was expected."""

    version: _internal.Version
    """Version that is there."""


class ObjectNotFound(Error, KeyError):  # noqa: N818
    """No object of this id is known."""


class ObjectLost(Error):  # noqa: N818
    """The object existed, and every node that held it is gone."""


class RegionFreed(ObjectNotFound):
    """The region was freed."""


class RegionLost(ObjectLost):
    """The node on which the region lived is gone, and the region with it."""


class NotHere(Error):  # noqa: N818
    """The region is not in the memory of this process, because it lives on another host or is not mappable.

    `read`, `write` and all other operations work all the same.
    """


class TooFewReplicas(Error):  # noqa: N818
    """Fewer nodes hold the object than were asked for. The object stays where the message says."""


class OutcomeUnknown(Error):  # noqa: N818
    """The outcome is unknown, because the node that the message names does not answer.

    The change of an object or a region may have happened, or may happen later. The function of a service may
    have been run, or may be running.
    """


class Fenced(Error):  # noqa: N818
    """The lock was lost: its guard is not valid any more, or somebody else has held the lock since."""


class BarrierBroken(Error):  # noqa: N818
    """A party of the barrier died, left or waited no longer. The message says who."""


class CallFailed(Error):  # noqa: N818
    """The function of a service was run and failed. The message is what its server says about it."""

    @property
    def type(self) -> str | None:
        """Name of the type of the exception that the function raised, as a server in Python tells it."""
        name, colon, _ = str(self).partition(": ")
        return name if colon and name.isidentifier() else None

    @property
    def text(self) -> str:
        """Text of the exception that the function raised, or all that the server says."""
        whole = str(self)
        return whole if self.type is None else whole.partition(": ")[2]


class ObjectDamaged(Error):  # noqa: N818
    """The object's bytes are not those that were sealed: the file that it was spilled to is damaged."""


class ObjectTooLarge(Error):  # noqa: N818
    """The object is larger than the whole store."""


class StoreFull(Error):  # noqa: N818
    """The store has no room: its objects are pinned or have no other replica.

    The first line of the message says how much was asked for and how much is free. Further lines say what
    holds the room.
    """

    def __str__(self) -> str:
        return "\n".join(_internal.printable(line) for line in Exception.__str__(self).split("\n"))


class TimedOut(Error, TimeoutError):  # noqa: N818
    """The call did not finish within its time-out."""


class IncompleteList(TimedOut):
    """Some nodes of the cluster did not tell all their objects: a list lacks what they alone hold."""

    objects: list[ObjectInfo]
    """Objects that were found."""
    missing: dict[str, str]
    """Ids of the nodes that did not tell, each with the reason."""

    def __init__(self, objects: list[ObjectInfo], missing: dict[str, str]) -> None:
        why = "; ".join(f"node {node}: {reason}" for node, reason in missing.items())
        super().__init__(f"the list lacks what these nodes alone hold: {why}")
        self.objects = objects
        self.missing = missing

    def __reduce__(self) -> tuple[type[Self], tuple[list[ObjectInfo], dict[str, str]]]:
        return type(self), (self.objects, self.missing)


class InvalidArgument(Error, ValueError):  # noqa: N818
    """An argument is invalid."""


class WrongType(Error, TypeError):  # noqa: N818
    """An argument, or a value that was got, is of another type than the call takes."""


class NotAllowed(Error, PermissionError):  # noqa: N818
    """The user may not do this to the object, or may not connect to the node."""


class Busy(Error):  # noqa: N818
    """The client has as many requests under way as the node permits."""


class Disconnected(Error, ConnectionError):  # noqa: N818
    """The node cannot be reached, the connection broke, or the client was closed.

    A node that is being drained also refuses new objects with this error.
    """


class MalformedValue(Error, ValueError):  # noqa: N818
    """The bytes of an object do not match its metadata. `get_buffers` still reads them."""


class ReadOnlyMemory(UserWarning):
    """A value lies in read-only memory of a node, and its type does not know that the memory is read-only.

    A process that writes to the value ends with SIGSEGV.
    """
