"""How a new object is to be kept: what the calls that make objects have in common.

The public methods list these options one by one instead of `**options: Unpack[Options]`: `help` and
`inspect.signature` do not look into a `TypedDict`, so that people would see `**options` and no defaults, and
`plasmon.aio` binds calls by these signatures. Below the public methods there is only `Terms`.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from plasmon.errors import InvalidArgument


class Terms(NamedTuple):
    """How a new object is to be kept. The native half reads the fields by these names."""

    name: str | None
    """The name behind the id, if it has one."""
    rights: str
    """What other users may do with the object: `"private"`, `"r"` or `"rw"`."""
    timeout: float | None
    """Seconds to wait for room."""
    digest: bool
    """Whether to make a digest."""
    fresh: bool
    """Whether the id was drawn at random for the object."""
    replicas: int
    """How many nodes are to keep the object."""
    ttl: float | None
    """Seconds that the object lives; for ever if `None`."""


def rights(private: bool, public: str | None) -> str:
    """What other users may do with a new object, for `Terms.rights`."""
    if public not in (None, "r", "rw"):
        raise InvalidArgument(
            f"others read an object (public='r') or change it (public='rw'), not {public!r}"
        )
    if private and public is not None:
        raise InvalidArgument(f"an object is private or public={public!r}, not both")
    return "private" if private else public or "r"


def left(timeout: float | None, began: float) -> float | None:
    """What is left of a time-out that began at this `time.monotonic()`.

    It becomes 0, which says something else, only if it was.
    """
    if timeout is None or timeout <= 0:
        return timeout
    return max(timeout - (time.monotonic() - began), 1e-6)
