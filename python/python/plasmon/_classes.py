"""Classes of work: which of a client's operations go first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, get_args

from plasmon._arguments import one_of

Priority = Literal["high", "normal", "low"]
"""Class of work."""

CHOSEN: ContextVar[Priority | None] = ContextVar("plasmon.priority", default=None)
"""Class that this thread or task has chosen for the operations that it begins."""


@contextmanager
def priority(priority: Priority) -> Iterator[None]:
    """Sets the class of operations on regions and of calls of services that are begun in the block.

    The class holds in this thread, or in this task of an event loop and the tasks that it starts. Operations
    on a region that is mapped in this process have no class. An operation of a user who may not have the
    class raises `NotAllowed`.

    Args:
        priority: "high", "normal" or "low", instead of the class of the client.
    """
    one_of(priority, get_args(Priority), "classes are high, normal and low")
    former = CHOSEN.set(priority)
    try:
        yield
    finally:
        CHOSEN.reset(former)
