"""Plasma's exceptions, and the exceptions of Plasmon that they stand for.

Each is an exception of PyArrow, as with Plasma, and also one of `plasmon.errors`. Errors that Plasma reports
as an `OSError`, such as a broken connection, are Plasmon's own exceptions, which are `OSError`s too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from plasmon import errors
from plasmon.plasma._arrow import ArrowException, ArrowTypeError


class PlasmaObjectExists(ArrowException, errors.ObjectExists):  # type: ignore[misc]
    """An object of this id exists already or is being created."""


class PlasmaObjectNotFound(ArrowException, errors.ObjectNotFound):  # type: ignore[misc]
    """No such object exists."""


class PlasmaStoreFull(ArrowException, errors.StoreFull):  # type: ignore[misc]
    """The store has no room: the object is larger than the store, or the objects in the store are in use."""


class AlreadySealed(ArrowTypeError, PlasmaObjectNotFound):  # type: ignore[misc] # noqa: N818
    """The object is sealed already.

    Plasma raises a type error if the client uses the object, else `PlasmaObjectNotFound`. This exception is
    both.
    """


_STANDS_FOR: tuple[tuple[type[errors.Error], type[errors.Error]], ...] = (
    (errors.ObjectExists, PlasmaObjectExists),
    (errors.ObjectNotFound, PlasmaObjectNotFound),
    (errors.ObjectLost, PlasmaObjectNotFound),
    (errors.StoreFull, PlasmaStoreFull),
    (errors.ObjectTooLarge, PlasmaStoreFull),
)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def raises_plasma_errors(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Makes a call raise Plasma's exceptions instead of Plasmon's."""

    @functools.wraps(call)
    def translated(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except errors.Error as error:
            for kind, plasma in _STANDS_FOR:
                if isinstance(error, kind) and not isinstance(error, plasma):
                    raise plasma(str(error)) from error
            raise

    return translated
