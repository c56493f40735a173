"""Terms on which a new object is kept, which all calls that make objects share.

The public methods list these options one by one instead of `**options: Unpack[Options]`. `help` and
`inspect.signature` do not look into a `TypedDict`, so users would see `**options` and no defaults. Also,
`plasmon.aio` binds calls by these signatures. Below the public methods there is only `Terms`.
"""

from __future__ import annotations

import enum
import time
from typing import NamedTuple

from plasmon._arguments import instance, one_of, seconds
from plasmon._internal import Version
from plasmon.errors import InvalidArgument


class Absent(enum.Enum):
    """Type of `ABSENT`."""

    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return "plasmon.ABSENT"


ABSENT = Absent.ABSENT
"""Version of an object that is not there: what `put(..., expected=ABSENT)` stores replaces nothing."""


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
    replace: bool = False
    """Whether the object takes the place of what has its id."""
    expected: Version | None = None
    """Version that is to be replaced. `None` for whatever is there, or nothing."""


def rights(private: bool, public: str | None) -> str:
    """Rights of other users to a new object, for `Terms.rights`."""
    one_of(public, (None, "r", "rw"), "others read an object (public='r') or change it (public='rw')")
    if private and public is not None:
        raise InvalidArgument(f"an object is private or public={public!r}, not both")
    return "private" if private else public or "r"


def replacing(replace: bool, expected: Version | Absent | None) -> tuple[bool, Version | None]:
    """Whether a new object replaces another, and of which version, for `Terms`."""
    if expected is ABSENT:
        return False, None
    if expected is None:
        return replace, None
    if not replace:
        raise InvalidArgument("a version is expected of what is replaced: give replace=True as well")
    return replace, instance(expected, Version, "the version that is expected")


def left(timeout: float | None, began: float) -> float | None:
    """Rest of a time-out that began at the time `began` of `time.monotonic()`.

    The rest is 0 only if the time-out itself is, because 0 has another meaning.
    """
    timeout = seconds(timeout)
    if timeout is None or timeout <= 0:
        return timeout
    return max(timeout - (time.monotonic() - began), 1e-6)
