"""Terms on which a new object is kept, which all calls that make objects share.

The public methods list these options one by one instead of `**options: Unpack[Options]`. `help` and
`inspect.signature` do not look into a `TypedDict`, so users would see `**options` and no defaults. Also,
`plasmon.aio` binds calls by these signatures. Below the public methods there is only `Terms`.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from plasmon._arguments import one_of, seconds
from plasmon.errors import InvalidArgument


class Terms(NamedTuple):
    """Terms on which a new object is kept. The native module reads the fields by these names."""

    name: str | None
    """Name behind the id, if the object has one."""
    rights: str
    """Rights of other users to the object: `"private"`, `"r"` or `"rw"`."""
    timeout: float | None
    """Time-out of the call in seconds, which includes the wait for room."""
    digest: bool
    """Whether a digest is made."""
    fresh: bool
    """Whether the id was drawn at random for the object."""
    replicas: int
    """Number of nodes that keep the object."""
    ttl: float | None
    """Time to live in seconds. `None` for no end."""
    owned: bool = False
    """Whether the object ends with its client."""


def rights(private: bool, public: str | None) -> str:
    """Rights of other users to a new object, for `Terms.rights`."""
    one_of(public, (None, "r", "rw"), "others read an object (public='r') or change it (public='rw')")
    if private and public is not None:
        raise InvalidArgument(f"an object is private or public={public!r}, not both")
    return "private" if private else public or "r"


def left(timeout: float | None, began: float) -> float | None:
    """Rest of a time-out that began at the time `began` of `time.monotonic()`.

    The rest is 0 only if the time-out itself is, because 0 has another meaning.
    """
    timeout = seconds(timeout)
    if timeout is None or timeout <= 0:
        return timeout
    return max(timeout - (time.monotonic() - began), 1e-6)
