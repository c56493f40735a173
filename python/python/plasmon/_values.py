"""Encoding of Python values as bytes of an object, and decoding without a copy.

The metadata of an object describes its data. It is empty for plain bytes. Metadata that does not begin like
`MAGIC` belongs to the program that wrote it, and such objects are read as plain bytes as well. Otherwise
`MAGIC`, whose last byte is the version of this format, is followed by a JSON object in UTF-8:

    {"kind": "numpy", "dtype": D, "shape": [n, ...], "order": "C" or "F"}
        The data is the array's elements. D is a Python literal, as in the .npy format of NumPy. With
        "strides": [n, ...] and "offset": n, which count bytes, the elements are these of the data.
    {"kind": "arrow", "type": "table", "batch", "frame" or "series"}
        The data is a stream of Arrow IPC: of a "batch", with one record batch; of a "frame" of Polars; of a
        "series" of Polars, with one column.
    {"kind": "pickle", "type": type's name, "pickle": P, "table": T, "buffers": N}
        The data begins with P bytes of pickle protocol 5. From T on, a multiple of 8, there are N pairs of
        64-bit little-endian integers: offset in the data, and length, of every out-of-band buffer in order.
        Buffers lie at multiples of 64. Those that share memory overlap in the data as they do in memory, with
        the same place modulo 64.

"kind" comes first: lists show it, even of metadata that are cut off (`crates/plasmon/src/value.rs`).
"copied" may stand beside them: a list of pairs, why bytes were copied before they were stored, and how many.
"""

from __future__ import annotations

import ast
import json
import mmap
import pickle
import struct
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from plasmon import _columns, _memory, _reduction, _refused
from plasmon._arguments import shown
from plasmon._internal import Buffer
from plasmon.errors import Error, MalformedValue, WrongType

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Buffer as Readable

MAGIC = b"PLPY\x01"
"""First bytes of the metadata of values of this package, version 1."""

_ALIGNMENT = 64
_READ_ONLY = pickle.NEXT_BUFFER + pickle.READONLY_BUFFER
"""Place in a pickle of memory that was read-only when it was pickled."""
_NOTED_BYTES = 64 << 10
"""Size of a pickle from which `explain` tells that its bytes were copied."""
_BYTES = (bytes, bytearray, memoryview, mmap.mmap, Buffer)
Data = Buffer | bytearray | memoryview
"""Memory of a value: an object, a copy of one, or a part of a message."""


class Encoded(NamedTuple):
    """Value that is ready to be stored.

    Its `size` bytes are either `parts`, each with its offset, or written by `write` into a writable buffer.
    """

    metadata: bytes
    size: int
    parts: list[tuple[int, Readable]]
    write: Callable[[memoryview], None] | None = None


def encode(value: Any, *, streams: bool = False) -> Encoded:
    """Encodes a value. A value that lies in one piece is not copied.

    Args:
        value: The value.
        streams: Whether tables and frames are streams of Arrow IPC even if their columns share memory.

    Raises:
        WrongType: The value cannot be stored, or a part of it, which the message names.
    """
    if type(value) is bytes:
        return Encoded(b"", len(value), [(0, value)])
    if isinstance(value, _BYTES):
        data = flat(memoryview(value))
        return Encoded(b"", data.nbytes, [(0, data)])
    # A program with such a value has imported its class. A package that another thread is importing may
    # lack classes: no values of those exist yet.
    if type(value) is getattr(sys.modules.get("numpy"), "ndarray", None):
        encoded = _encode_array(value)
        if encoded is not None:
            return encoded
    arrow = sys.modules.get("pyarrow")
    table, kind = None, ""
    if isinstance(value, (getattr(arrow, "Table", ()), getattr(arrow, "RecordBatch", ()))):
        table, kind = value, "batch" if isinstance(value, getattr(arrow, "RecordBatch", ())) else "table"
    elif (taken := _reduction.to_arrow(value)) is not None:
        table, kind = taken[0], "series" if taken[1] else "frame"
    if table is not None and (streams or not _columns.shares_memory(table)):
        return _encode_arrow(table, kind)
    try:
        return _encode_pickle(value)
    except MemoryError:
        raise
    except _columns.failures() as error:
        other = None if isinstance(error, Error) else _reduction.other_form(value)
        if other is None or type(other) is type(value):
            raise _refused.refusal(value, error) from error
        return encode(other)


def decode(buffer: Buffer, copy: bool = False) -> Any:
    """Decodes the value in an object: read-only, and in place as far as its kind allows.

    With `copy` the value has writable memory of its own, as far as its kind allows, and holds no object.

    Raises:
        MalformedValue: The data does not match the metadata.
        ModuleNotFoundError: The value needs NumPy, PyArrow or the module of a pickled class.
        MemoryError: There is no memory for the copy.
    """
    data = bytearray(buffer) if copy else buffer
    if not buffer._encoded:
        return data
    wrong = _MALFORMED
    try:
        decoder, wrong, header = _header(buffer.metadata)
        return decoder(header, data)
    except _columns.failures() as error:
        if isinstance(error, Exception) and not isinstance(error, wrong):
            raise
        raise MalformedValue(
            f"object {buffer.id} cannot be read as a Python value ({type(error).__name__}: {error}); "
            "get_buffers() reads its bytes"
        ) from error


def is_pickle(metadata: bytes) -> bool:
    """Whether a value with this metadata is read by unpickling it."""
    return bool(metadata) and _header(metadata)[0] is _decode_pickle


def decode_message(metadata: bytes, data: memoryview, checked: bool) -> Any:
    """Decodes a value of a message as `decode` does, with the exceptions of its decoder.

    With `checked` tables are looked through first: one that is damaged could have their reader read memory
    that is not theirs.
    """
    decoder, _, header = _header(metadata)
    if checked and decoder is _decode_arrow:
        arrow, kind = header
        _reduction.read_stream(arrow.py_buffer(data), kind != "batch").validate(full=True)
    return decoder(header, data)


def check_type(wanted: type | None) -> None:
    """Refuses what `decode_as` cannot compare with the type of a value.

    Raises:
        WrongType: It is no type.
    """
    if wanted is not None and not isinstance(wanted, type):
        raise WrongType(f"type= is a type that the value is to have, such as bytes, and not {shown(wanted)}")


def decode_as(buffer: Buffer, wanted: type | None, copy: bool = False) -> Any:
    """Decodes the value in an object as `decode` does, and converts bytes to a type that is wanted.

    Raises:
        WrongType: The value is not of the type.
    """
    if not buffer._encoded and wanted in (bytes, bytearray):
        return wanted(buffer)
    if not buffer._encoded and wanted is str:
        return buffer.decode()
    value = decode(buffer, copy)
    if wanted is None or isinstance(value, wanted):
        return value
    if not buffer._encoded and wanted is memoryview:
        return memoryview(value)
    error = WrongType(f"object {buffer.id} is of type {type(value).__name__}, not {wanted.__name__}")
    error.id = buffer.id
    raise error


@lru_cache(maxsize=1024)
def _header(metadata: bytes) -> tuple[Callable[[Any, Any], Any], tuple[type[Exception], ...], Any]:
    """Decoder of a value, the exceptions that it raises for a malformed value, and its prepared metadata.

    The result is cached, because many values are of the same kind.
    """
    if not metadata.startswith(MAGIC):
        raise ValueError("it was written by another version of this package")
    header = json.loads(metadata[len(MAGIC) :])
    kind = header["kind"]
    if kind not in _DECODERS:
        raise ValueError(f"unknown kind {kind!r}")
    decoder, wrong, prepare = _DECODERS[kind]
    return decoder, wrong, prepare(header)


# Exceptions of json, numpy and pickle for malformed bytes.
_MALFORMED: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    EOFError,
    MemoryError,
    RecursionError,
    SyntaxError,
    NotImplementedError,
    OSError,
    struct.error,
    pickle.UnpicklingError,
)


def _metadata(kind: str, copied: Iterable[tuple[str, int]] = (), **header: object) -> bytes:
    totals: dict[str, int] = {}
    for why, size in copied:
        totals[why] = totals.get(why, 0) + size
    told = {"copied": sorted(totals.items())} if totals else {}
    return MAGIC + json.dumps({"kind": kind, **header, **told}, separators=(",", ":")).encode()


def explain(metadata: bytes) -> dict[str, Any] | None:
    """Way in which a value was stored, for `Client.explain`. `None` if this package did not store it."""
    try:
        header = json.loads(metadata.removeprefix(MAGIC)) if metadata.startswith(MAGIC) else None
        return header and {"kind": header["kind"], "copied": dict(header.get("copied", ()))}
    except _MALFORMED:
        return None


def flat(view: memoryview) -> memoryview:
    """Bytes behind a view, in C order."""
    try:
        return view.cast("B")
    except (TypeError, ValueError):  # Not in one piece, empty, or of a format that cannot be cast.
        return memoryview(view.tobytes())


def _encode_array(array: np.ndarray[Any, Any]) -> Encoded | None:
    """Encodes an array as its elements. Returns `None` if no literal can describe its type."""
    import numpy as np

    dtype = array.dtype
    if not _has_literal(dtype):
        return None
    try:
        literal = repr(np.lib.format.dtype_to_descr(dtype))
        if np.lib.format.descr_to_dtype(ast.literal_eval(literal)) != dtype:
            return None
    except (ValueError, TypeError, SyntaxError):
        return None
    header: dict[str, object] = {"dtype": literal, "shape": list(array.shape), "order": "C"}
    copied: list[tuple[str, int]] = []
    if not array.nbytes:
        memory = np.empty(0, np.uint8)
    elif array.flags.forc:
        header["order"] = "C" if array.flags.c_contiguous else "F"
        memory = array.reshape(-1, order="A").view(np.uint8)
    else:
        with _memory.dumping(_memory.Dump()) as dump:
            memory, offset, strides = _memory.layout_of(array, "an array is not in one piece")
        header |= {"strides": list(strides), "offset": offset}
        copied = dump.copied
    return Encoded(_metadata("numpy", copied, **header), memory.nbytes, [(0, memory.data)])


def _has_literal(dtype: np.dtype[Any]) -> bool:
    """Whether a literal can describe an array's type completely.

    There is no literal for objects, nor for types that other packages add, whose numbers begin at 256. A
    literal does not have the metadata of a type, the alignment of a structure, and the class of records.
    """
    if dtype.hasobject or dtype.num >= 256 or dtype.metadata is not None or dtype.isalignedstruct:
        return False
    if dtype.subdtype is not None:
        return _has_literal(dtype.base)
    if dtype.fields is None:
        return True
    import numpy as np

    return dtype.type is np.void and all(_has_literal(field[0]) for field in dtype.fields.values())


class _ArrayHeader(NamedTuple):
    make: Callable[..., Any]
    shape: tuple[int, ...]
    dtype: Any
    offset: int
    strides: tuple[int, ...] | None
    order: str


def _array_header(header: dict[str, Any]) -> _ArrayHeader:
    import numpy as np

    dtype = np.lib.format.descr_to_dtype(ast.literal_eval(header["dtype"]))
    if dtype.hasobject:
        raise ValueError("arrays of objects are not stored this way")
    shape = tuple(header["shape"])
    if min(shape, default=0) < 0:  # NumPy would make up a size.
        raise ValueError("a dimension is negative")
    strides = tuple(header["strides"]) if "strides" in header else None
    return _ArrayHeader(np.ndarray, shape, dtype, header.get("offset", 0), strides, header["order"])


def _decode_array(header: _ArrayHeader, data: Data) -> Any:
    make, shape, dtype, offset, strides, order = header
    # NumPy compares strides with the size of the memory.
    array = make(shape, dtype, data, offset, strides, order)
    if strides is None and array.nbytes != len(data):
        raise ValueError(f"the array has {array.nbytes} bytes and the object {len(data)}")
    return array


def _encode_arrow(value: Any, kind: str) -> Encoded:
    import pyarrow as pa

    with _memory.dumping(_memory.Dump()) as dump:
        value = _columns.cut_for_stream(value)

    def write_to(sink: Any) -> None:
        with pa.ipc.new_stream(sink, value.schema) as writer:
            writer.write(value)

    def write(memory: memoryview) -> None:
        with pa.FixedSizeBufferWriter(pa.py_buffer(memory)) as sink:
            write_to(sink)

    # A dry run counts the bytes without touching those of the columns.
    counter = pa.MockOutputStream()
    try:
        write_to(counter)
    except (pa.ArrowException, NotImplementedError) as error:
        raise _refused.refusal(value, error) from error
    return Encoded(_metadata("arrow", dump.copied, type=kind), counter.size(), [], write)


def _arrow_header(header: dict[str, Any]) -> tuple[Any, str]:
    import pyarrow as pa

    return pa, header["type"]


def _decode_arrow(header: tuple[Any, str], data: Data) -> Any:
    arrow, kind = header
    read = _reduction.read_stream(arrow.py_buffer(data), kind != "batch")
    return read if kind in ("table", "batch") else _reduction.from_arrow(read, kind == "series")


def _encode_pickle(value: Any) -> Encoded:
    pickled, buffers, places, copied = _reduction.dumps(value)
    if len(pickled) >= _NOTED_BYTES:
        copied.append(("memory is within the pickle, since its type does not hand it over", len(pickled)))
    table = _aligned(len(pickled), 8)
    end = table + 16 * len(buffers)
    parts: list[tuple[int, Readable]] = []
    offsets = [0] * len(buffers)
    for (begin, _), numbers in sorted(places, key=lambda place: min(place.buffers)):
        start = _aligned(end, _ALIGNMENT)
        if len(numbers) > 1:
            start += begin % _ALIGNMENT
        end = start
        for number in numbers:
            buffer = buffers[number]
            offsets[number] = start + _memory.span_of(buffer)[0] - begin
            if (rest := buffer[max(end - offsets[number], 0) :]).nbytes:
                parts.append((end, rest))
                end += rest.nbytes
    entries = b"".join(struct.pack("<QQ", *one) for one in zip(offsets, map(_length, buffers), strict=True))
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    header = {"type": name, "pickle": len(pickled), "table": table, "buffers": len(buffers)}
    metadata = _metadata("pickle", copied, **header)
    return Encoded(metadata, end, [(0, pickled), (table, entries), *parts])


def _length(buffer: memoryview) -> int:
    return buffer.nbytes


def _decode_pickle(header: dict[str, Any], memory: Data) -> Any:
    data = memoryview(memory)
    table = list(struct.Struct("<QQ").iter_unpack(_slice(data, header["table"], 16 * header["buffers"])))
    buffers = [_slice(data, offset, length) for offset, length in table]
    pickled = _slice(data, 0, header["pickle"])
    places = _memory.places([(offset, offset + length) for offset, length in table])
    shared = [data[slice(*place.span)] for place in places if len(place.buffers) > 1]
    # Memory that was read-only at the put is marked in the pickle.
    is_marked = isinstance(memory, bytearray) and memory.find(_READ_ONLY, 0, header["pickle"]) >= 0
    if shared or is_marked:
        return _reduction.loads(pickled, buffers, shared, is_marked)
    return pickle.loads(pickled, buffers=buffers)


def _slice(data: memoryview, offset: int, length: int) -> memoryview:
    if min(offset, length) < 0 or offset + length > len(data):
        raise ValueError(f"{length} bytes at {offset} are not within the {len(data)} of the object")
    return data[offset : offset + length]


def _aligned(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) // alignment * alignment


def _as_it_is(header: dict[str, Any]) -> dict[str, Any]:
    return header


_DECODERS: dict[
    str,
    tuple[Callable[[Any, Data], Any], tuple[type[Exception], ...], Callable[[dict[str, Any]], Any]],
] = {
    "numpy": (_decode_array, _MALFORMED, _array_header),
    # Reading a stream runs code of its extension types, which may raise any exception.
    "arrow": (_decode_arrow, (Exception,), _arrow_header),
    "pickle": (_decode_pickle, _MALFORMED, _as_it_is),
}
