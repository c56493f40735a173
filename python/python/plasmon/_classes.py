"""Classes of work: which of a client's operations go first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from plasmon.errors import InvalidArgument

Priority = Literal["high", "normal", "low"]
"""Class of work."""

CHOSEN: ContextVar[Priority | None] = ContextVar("plasmon.priority", default=None)
"""Class that this thread or task has chosen for the operations that it begins."""


@contextmanager
def priority(priority: Priority) -> Iterator[None]:
    """Has operations on regions and calls of services be of a class, if they are begun in the block.

    It concerns this thread, or this task of an event loop and the tasks that it starts. Operations on a
    region that is mapped in this process have no class. Whoever may not have the class is told so by the
    operation (`NotAllowed`).

    Args:
        priority: "high", "normal" or "low", instead of the class of the client.
    """
    if priority not in get_args(Priority):
        raise InvalidArgument(f"'{priority}' is no class; classes are high, normal and low")
    former = CHOSEN.set(priority)
    try:
        yield
    finally:
        CHOSEN.reset(former)
