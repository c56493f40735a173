"""Memory behind arrays that are being pickled: what of it is stored, once each, and what was copied.

Arrays that do not lie in one piece are stored as they lie in memory, with their strides, if that takes no
more room than their elements: arrays that repeat elements (`numpy.broadcast_to`), windows, and arrays with
axes exchanged. Others are copied, unless the memory that they lie in is stored anyway, because another array
of the value has it.

Any thread. Each thread has the `Dump` that it makes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from plasmon._internal import address_of

if TYPE_CHECKING:
    import numpy as np

Span = tuple[int, int]
"""Addresses of the first byte, and behind the last one."""


class Dump:
    """Pickle that a thread is making."""

    def __init__(self, stored: list[Span] | None = None) -> None:
        self.stored = stored or []
        """Memory that is known to be stored: in ascending order, without overlaps."""
        self.copied: list[tuple[str, int]] = []
        """Copies that were made: why, and how many bytes."""
        self.sparse: list[Span] = []
        """Memory between the elements of which is more than they take, of arrays that were copied."""
        self.copies: dict[Any, np.ndarray[Any, Any]] = {}
        """Elements of these arrays, by what they were copied from."""

    def has(self, span: Span) -> bool:
        """Whether memory is known to be stored."""
        return any(begin <= span[0] and span[1] <= end for begin, end in self.stored)


class _Dumping(threading.local):
    def __init__(self) -> None:
        self.dump = Dump()


_dumping = _Dumping()


@contextmanager
def dumping(dump: Dump) -> Iterator[Dump]:
    """Has this thread make a pickle in the block."""
    outer, _dumping.dump = _dumping.dump, dump
    try:
        yield dump
    finally:
        _dumping.dump = outer


def note(why: str, size: int) -> None:
    """Notes a copy of so many bytes for the pickle that this thread makes."""
    _dumping.dump.copied.append((why, size))


class Layout(NamedTuple):
    """Where the elements of an array lie."""

    memory: np.ndarray[Any, Any]
    """Bytes in one piece."""
    offset: int
    """Place of the first element in bytes."""
    strides: tuple[int, ...]
    """Steps to the next element of each axis in bytes."""


def layout_of(array: np.ndarray[Any, Any], why: str) -> Layout:
    """Layout of an array of elements that are no references. `why` tells a copy, if one has to be made."""
    import numpy as np

    dump = _dumping.dump
    first = array.__array_interface__["data"][0]
    steps = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    span = first + sum(step for step in steps if step < 0), first + array.itemsize + sum(map(_forward, steps))
    repeated = [size > 1 and stride == 0 for size, stride in zip(array.shape, array.strides, strict=True)]
    elements = array[tuple(slice(0, 1) if repeats else slice(None) for repeats in repeated)]
    if span[1] - span[0] <= elements.nbytes or dump.has(span):
        memory = np.asarray(Alias(array, span[0], span[1] - span[0], is_writable=False))
        return Layout(memory, first - span[0], array.strides)
    source = span, array.shape, array.strides, array.dtype.str
    if source not in dump.copies:
        dump.copies[source] = np.ascontiguousarray(elements)
        dump.sparse.append(span)
        note(why, elements.nbytes)
    copy = dump.copies[source]
    strides = tuple(0 if repeats else stride for repeats, stride in zip(repeated, copy.strides, strict=True))
    return Layout(copy.reshape(-1).view(np.uint8), 0, strides)


def _forward(step: int) -> int:
    return max(step, 0)


class Alias:
    """Memory as an array of bytes, for NumPy.

    It may say that read-only memory is writable, for packages that know no read-only memory.
    """

    def __init__(self, memory: Any, address: int, length: int, *, is_writable: bool) -> None:
        self._memory = memory
        self.__array_interface__ = {
            "version": 3,
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, not is_writable),
        }


class Place(NamedTuple):
    """Memory of buffers that share some of it: where each of them is."""

    span: Span
    """Memory of all of them."""
    buffers: list[int]
    """Numbers of the buffers, the first of which begins it."""


def places(spans: list[Span]) -> list[Place]:
    """Finds buffers that share memory. Returns all that are not empty, in the order of their addresses."""
    found: list[Place] = []
    for (begin, end), number in sorted((span, number) for number, span in enumerate(spans)):
        if begin == end:
            continue
        if found and begin < found[-1].span[1]:
            (start, behind), buffers = found[-1]
            found[-1] = Place((start, max(behind, end)), [*buffers, number])
        else:
            found.append(Place((begin, end), [number]))
    return found


def span_of(buffer: memoryview) -> Span:
    """Addresses of a buffer's bytes."""
    begin = address_of(buffer)
    return begin, begin + buffer.nbytes
