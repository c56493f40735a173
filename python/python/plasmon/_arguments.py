"""Arguments as callers give them: what cannot be taken is `WrongType` or `InvalidArgument`."""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Iterable
from typing import Any, TypeVar

from plasmon.errors import InvalidArgument, WrongType

_T = TypeVar("_T")


def whole(given: Any, what: str, least: int, most: int) -> int:
    """Whole number of something, which is not to be out of bounds."""
    try:
        number = operator.index(given)
    except TypeError:
        raise WrongType(f"{what} is an int, not {type(given).__name__}") from None
    if not least <= number <= most:
        raise InvalidArgument(f"{what} is {least} to {most}, not {shown(number)}")
    return number


def text(given: Any, what: str) -> str:
    """Text that UTF-8 can have."""
    if not isinstance(given, str):
        raise WrongType(f"{what} is a str, not {type(given).__name__}")
    try:
        given.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"{what} cannot be {shown(given)}: it has lone surrogates, which UTF-8 has not"
        ) from None
    return given


def one_of(given: Any, choices: Iterable[str | None], what: str) -> Any:
    """One of some texts."""
    for choice in choices:
        if given is choice or (isinstance(given, str) and given == choice):
            return given
    raise InvalidArgument(f"{what}, not {shown(given)}")


def shown(given: Any) -> str:
    """Value of an argument as a message shows it."""
    try:
        whole = repr(given)
    except Exception:
        whole = ""
    return whole if 0 < len(whole) <= _SHOWN_CHARS else f"a value of type {type(given).__name__}"


_SHOWN_CHARS = 80
"""Longest representation of a value in a message."""


def memory(given: Any, what: str) -> memoryview:
    """Memory of an object with the buffer protocol."""
    try:
        return memoryview(given)
    except TypeError as error:
        raise WrongType(f"{what} cannot be read from {shown(given)}: {error}") from None
    except (ValueError, BufferError) as error:
        raise InvalidArgument(f"{what} cannot be read: {error}") from None


def several(given: Any, what: str) -> list[Any]:
    """Values that were given as several."""
    try:
        return list(given)
    except TypeError:
        raise WrongType(f"{what} are given as several, not as {shown(given)}") from None


def instance(given: Any, of: type[_T], what: str) -> _T:
    """Object of a class."""
    if not isinstance(given, of):
        raise WrongType(f"{what} is a {of.__qualname__}, not {shown(given)}")
    return given


def seconds(given: Any) -> float | None:
    """Time-out in seconds. Infinity stays, and so does `None`, which has another meaning in some calls."""
    if given is None:
        return None
    if isinstance(given, (str, bytes, bytearray)):
        raise WrongType(f"a time-out is a number of seconds, not {type(given).__name__}")
    try:
        number = float(given)
    except OverflowError:
        number = math.inf if given > 0 else -math.inf
    except (TypeError, ValueError):
        raise WrongType(f"a time-out is a number of seconds, not {type(given).__name__}") from None
    if not number >= 0:
        raise InvalidArgument(f"a time-out is a number of seconds, 0 or more, not {number}")
    return number


def wait_seconds(given: Any) -> float | None:
    """Time-out for Python's own waits. `None` for no limit."""
    number = seconds(given)
    return number if number is not None and number <= threading.TIMEOUT_MAX else None
