"""Python values as arguments and results of calls: encoding as one message, and decoding in place.

A message is `MAGIC`, the length of a header as a 64-bit little-endian integer, the header, and parts, each
at a multiple of 64 bytes. The header is JSON: `value`, which is a tree, and `parts`, a list of the metadata,
offset and length of each part. Offsets are from the first multiple of 64 bytes after the header. Parts are
encoded as objects are (`_values.py`). A tree is:

    null, true, 3, 0.5, "text", [tree, ...]      the same value of Python
    {"t": [tree, ...]}                           a tuple
    {"d": [[tree, tree], ...]}                   a dict, with its keys and values
    {"p": n}                                     part n
    {"s": n}                                     part n, an array of no dimensions, as a scalar of NumPy

So no class, no function and no reference to one is in a message, except within a part that is a pickle; who
does not allow pickles neither makes nor reads them.

Messages come from other processes. Nothing of one is used before it was checked.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from plasmon import _values
from plasmon.errors import MalformedValue, WrongType

if TYPE_CHECKING:
    from typing_extensions import Buffer as Readable

_W = TypeVar("_W", bound="Readable")

MAGIC = b"PLCALL\x00\x01"
"""First bytes of a message, version 1."""

_START = struct.Struct("<8sQ")
_ALIGNMENT = 64
_MAX_METADATA = 64 << 10
"""Largest number of bytes of the metadata of a part: those that were read are remembered."""
_PLAIN = (type(None), bool, int, float, str)


class _Packing:
    """Parts of a message that is being made."""

    def __init__(self, allow_pickle: bool) -> None:
        self.parts: list[_values.Encoded] = []
        self._allow_pickle = allow_pickle

    def tree(self, value: Any) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is list:
            return [self.tree(item) for item in value]
        if kind is tuple:
            return {"t": [self.tree(item) for item in value]}
        if kind is dict:
            return {"d": [[self.tree(key), self.tree(item)] for key, item in value.items()]}
        numpy: Any = sys.modules.get("numpy")
        if isinstance(value, getattr(numpy, "generic", ())):
            scalar = numpy.asarray(value)
            if type(scalar[()]) is kind and not scalar.dtype.hasobject:
                return {"s": self._part(scalar)}
        return {"p": self._part(value)}

    def _part(self, value: Any) -> int:
        try:
            encoded = _values.encode(value, streams=True)
        except Exception as error:
            if self._allow_pickle:
                raise
            raise _needs_pickle(value) from error
        if not self._allow_pickle and _values.is_pickle(encoded.metadata):
            raise _needs_pickle(value)
        self.parts.append(encoded)
        return len(self.parts) - 1


def pack(value: Any, allow_pickle: bool, memory: Callable[[int], _W]) -> _W:
    """Encodes a value as a message, in writable memory of the size that `memory` is called with.

    Raises:
        WrongType: The value, or a part of it, cannot be sent; or only as a pickle, which is not allowed.
    """
    packing = _Packing(allow_pickle)
    try:
        tree = packing.tree(value)
        places: list[tuple[str, int, int]] = []
        end = 0
        for part in packing.parts:
            begin = _aligned(end)
            places.append((part.metadata.decode("latin-1"), begin, part.size))
            end = begin + part.size
        header = json.dumps({"value": tree, "parts": places}, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as error:
        raise WrongType(f"a value of type {type(value).__name__} cannot be sent: {error}") from None
    origin = _aligned(_START.size + len(header))
    made = memory(origin + end)
    view = memoryview(made)
    _START.pack_into(view, 0, MAGIC, len(header))
    view[_START.size : _START.size + len(header)] = header
    for part, (_, begin, size) in zip(packing.parts, places, strict=True):
        room = view[origin + begin : origin + begin + size]
        if part.write is not None:
            part.write(room)
        for offset, piece in part.parts:
            data = _values.flat(memoryview(piece))
            room[offset : offset + data.nbytes] = data
    return made


def unpack(data: memoryview, allow_pickle: bool, checked: bool) -> Any:
    """Decodes a message. Arrays and tables are over its memory.

    Args:
        data: The message.
        allow_pickle: Whether pickles are read.
        checked: Whether tables are looked through before they are used, because their maker is not trusted.

    Raises:
        MalformedValue: It is no message, or one with a pickle that is not allowed.
    """
    if bytes(data[: len(MAGIC)]) != MAGIC or len(data) < _START.size:
        raise MalformedValue(
            f"{len(data)} bytes came that are no values of Python: services of values are called by `invoke` "
            "and `plasmon call --values`, services of bytes by `call` and `plasmon call`"
        )
    try:
        _, length = _START.unpack_from(data)
        if length > len(data) - _START.size:
            raise ValueError("the header does not end")
        header = json.loads(bytes(data[_START.size : _START.size + length]))
        origin = _aligned(_START.size + length)
        parts = [
            _part(metadata.encode("latin-1"), _within(data, origin, offset, size), allow_pickle, checked)
            for metadata, offset, size in header["parts"]
        ]
        return _value(header["value"], parts)
    except MalformedValue:
        raise
    except Exception as error:
        # Reading a table runs code of its extension types, and a pickle any code.
        raise MalformedValue(
            f"{len(data)} bytes cannot be read as values of Python ({type(error).__name__}: {error})"
        ) from error


def _value(tree: Any, parts: list[Any]) -> Any:
    if type(tree) is list:
        return [_value(item, parts) for item in tree]
    if type(tree) is not dict:
        return tree
    [(tag, inner)] = tree.items()
    if tag == "t":
        return tuple([_value(item, parts) for item in inner])
    if tag == "d":
        return {_value(key, parts): _value(item, parts) for key, item in inner}
    if type(inner) is not int or inner < 0 or tag not in ("p", "s"):
        raise ValueError(f"there is no part {tag} {inner}")
    return parts[inner][()] if tag == "s" else parts[inner]


def _part(metadata: bytes, data: memoryview, allow_pickle: bool, checked: bool) -> Any:
    if len(metadata) > _MAX_METADATA:
        raise ValueError(f"the metadata of a part has {len(metadata)} bytes")
    if not allow_pickle and _values.is_pickle(metadata):
        raise MalformedValue("pickles are not read here: allow_pickle=True would allow it")
    return _values.decode_message(metadata, data, checked) if metadata else bytes(data)


def _within(data: memoryview, origin: int, offset: int, size: int) -> memoryview:
    if type(offset) is not int or type(size) is not int or min(offset, size) < 0 or offset % _ALIGNMENT:
        raise ValueError(f"no part has {size} bytes at {offset}")
    if origin + offset + size > len(data) and size:
        raise ValueError(f"{size} bytes at {offset} are not within the message")
    return data[origin + offset : origin + offset + size]


def _needs_pickle(value: Any) -> WrongType:
    kind = type(value)
    return WrongType(
        f"a value of type {kind.__module__}.{kind.__qualname__} can be sent only as a pickle: give "
        "allow_pickle=True to `serve` and to `invoke`, if both sides trust each other"
    )


def _aligned(offset: int) -> int:
    return (offset + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
