"""Tests of every kind of value, put on one node and got on the same and on the other."""

from __future__ import annotations

import array
import datetime
import mmap
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import plasmon
import pyarrow as pa
import pytest
from plasmon import _values

SMALL, LARGE = 10, 3_000_000
TYPES = "? b B h H i I l L q Q e f d g F D G >i4 >f8 >u2 S3 U5 M8[ns] m8[s] V8"


def content(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


@pytest.mark.parametrize("size", [0, 1, 1000, 16 << 10, 1 << 20, 40 << 20])
def test_bytes(near: plasmon.Client, reader: plasmon.Client, size: int) -> None:
    data = content(size)
    value = reader.get(near.put(data), timeout=30)
    assert isinstance(value, plasmon.Buffer)
    assert value.readonly
    assert value == data


def test_what_is_like_bytes_comes_back_as_its_bytes(near: plasmon.Client, reader: plasmon.Client) -> None:
    numbers = memoryview(array.array("i", range(12)))
    strided = numbers.cast("B")[::3]
    with mmap.mmap(-1, 5000) as mapped:
        values: list[Any] = [bytearray(b"abc"), numbers, strided, mapped, memoryview(b"")]
        for value in values:
            assert reader.get(near.put(value), timeout=30) == bytes(memoryview(value))
    buffer = near.get_buffers([near.put(b"again")])[0]
    assert reader.get(near.put(buffer), timeout=30) == b"again"


ARRAYS = {
    **{code: np.arange(SMALL).astype(code) for code in TYPES.split()},
    "no dimensions": np.array(7.5),
    "no elements": np.empty((0, 3), "i4"),
    "no bytes": np.zeros(3, "S0"),
    "two dimensions": np.arange(24).reshape(4, 6),
    "Fortran order": np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
    "strided": np.arange(24)[::-2],
    "transposed slice": np.arange(60).reshape(3, 4, 5)[:, 1:3, ::2].T,
    "structured": np.array([(1, 2.5, [3, 4])], [("a", "<i2"), ("b", ">f8"), ("c", "u1", (2,))]),
    "aligned": np.zeros(3, np.dtype([("a", "u1"), ("b", "f8")], align=True)),
    "large": np.arange(LARGE, dtype="f8").reshape(-1, 1000),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(near: plasmon.Client, reader: plasmon.Client, name: str) -> None:
    array = ARRAYS[name]
    value = reader.get(near.put(array), timeout=30)
    assert type(value) is np.ndarray
    assert (value.dtype, value.shape) == (array.dtype, array.shape)
    assert value.tobytes() == array.tobytes()
    assert not value.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        value.flags.writeable = True
    assert value.flags.f_contiguous == array.flags.f_contiguous or not array.flags.f_contiguous


RICH_TYPES = {
    "metadata": np.dtype("f8", metadata={"unit": "K"}),
    "metadata of a field": np.dtype([("a", np.dtype("i4", metadata={"unit": "m"}))]),
    "aligned": np.dtype([("a", "u1"), ("b", "f8")], align=True),
    "aligned within": np.dtype([("c", np.dtype([("a", "u1"), ("b", "f8")], align=True), (2,))]),
    "records": np.dtype((np.record, [("a", "i4")])),
}


@pytest.mark.parametrize("name", RICH_TYPES)
def test_types_of_arrays_keep_what_no_literal_tells(
    near: plasmon.Client, reader: plasmon.Client, name: str
) -> None:
    dtype = RICH_TYPES[name]
    array = np.zeros((2, 3), dtype)
    got = reader.get(near.put(array), timeout=30)
    assert got.dtype == dtype
    assert pickle.dumps(got.dtype) == pickle.dumps(dtype), "equality does not look at all of a type"
    assert got.shape == array.shape
    assert not got.flags.writeable


def test_arrays_that_numpy_alone_can_read_are_pickled(near: plasmon.Client, reader: plasmon.Client) -> None:
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["u4", "u2"], "offsets": [0, 2]})
    for value in [
        np.array([{"a": 1}, None], dtype=object),
        np.ma.masked_array(np.arange(9.0), mask=[True] + [False] * 8),
        np.arange(6, dtype="u4").view(overlapping)[:3],
    ]:
        got = reader.get(near.put(value), timeout=30)
        assert type(got) is type(value)
        assert got.dtype == value.dtype
        assert got.tolist() == value.tolist()


@pytest.mark.parametrize("rows", [0, SMALL, LARGE // 10])
def test_arrow(near: plasmon.Client, reader: plasmon.Client, rows: int) -> None:
    table = pa.table(
        {
            "number": pa.array(range(rows), pa.int64()),
            "text": pa.array([None if n % 3 == 0 else f"row {n}" for n in range(rows)], pa.string()),
            "category": pa.array(["a", "b"] * (rows // 2), pa.string()).dictionary_encode(),
            "when": pa.array([datetime.datetime(2026, 1, 1)] * rows),
        },
        metadata={"source": "test"},
    )
    chunked = pa.concat_tables([table, table])
    for value in [table, chunked, table.slice(rows // 2)]:
        got = reader.get(near.put(value), timeout=30)
        assert isinstance(got, pa.Table)
        got.validate(full=True)
        assert got.equals(value, check_metadata=True)
    batch = table.combine_chunks().to_batches()[0] if rows else pa.RecordBatch.from_pylist([], table.schema)
    got = reader.get(near.put(batch), timeout=30)
    assert isinstance(got, pa.RecordBatch)
    assert got.equals(batch)


class Unreadable(pa.ExtensionType):  # type: ignore[misc]
    """Extension type that cannot be read."""

    def __init__(self) -> None:
        super().__init__(pa.int8(), "plasmon.test.unreadable")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Unreadable:
        raise RuntimeError("the program's own")


def test_an_extension_type_that_raises_makes_a_value_malformed(
    near: plasmon.Client, reader: plasmon.Client
) -> None:
    kind = Unreadable()
    pa.register_extension_type(kind)
    try:
        column = pa.ExtensionArray.from_storage(kind, pa.array([1], pa.int8()))
        id = near.put(pa.table({"column": column}))
        with pytest.raises(plasmon.MalformedValue, match="RuntimeError: the program's own") as raised:
            reader.get(id, timeout=30)
        assert isinstance(raised.value.__cause__, RuntimeError)
        assert len(reader.get_buffers([id])[0]) > 0
    finally:
        pa.unregister_extension_type("plasmon.test.unreadable")


@dataclass
class Record:
    name: str
    values: np.ndarray[Any, Any]


def test_everything_else_is_pickled(near: plasmon.Client, reader: plasmon.Client) -> None:
    for value in [
        None,
        5,
        "text",
        2**100,
        {"a": [1, (2, 3)]},
        {1, 2},
        datetime.date(2026, 1, 1),
        np.float32(2),
    ]:
        got = reader.get(near.put(value), timeout=30)
        assert got == value
        assert type(got) is type(value)
    assert reader.get(near.put(array.array("d", [1, 2])), timeout=30) == array.array("d", [1, 2])


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_arrays_within_a_pickle_are_read_in_place(
    near: plasmon.Client, reader: plasmon.Client, count: int
) -> None:
    records = [Record("a", np.arange(count)), Record("b", np.arange(count, dtype="f4").reshape(2, -1))]
    empty = np.empty(0)
    oid = near.put({"records": records, "empty": empty, "strided": np.arange(9)[::2]})
    value = reader.get(oid, timeout=30)
    buffer = reader.get_buffers([oid])[0]
    inside = range(buffer.address, buffer.address + len(buffer))
    for got, put in zip(value["records"], records, strict=True):
        assert got.name == put.name
        assert np.array_equal(got.values, put.values)
        assert not got.values.flags.writeable
        assert got.values.ctypes.data in inside
        assert got.values.ctypes.data % 64 == 0
    assert value["strided"].tolist() == [0, 2, 4, 6, 8]
    del got


def test_objects_of_others_are_bytes(near: plasmon.Client, reader: plasmon.Client) -> None:
    oid = plasmon.ObjectId.random()
    with near.create(oid, 4, metadata=b"text/plain") as creation:
        memoryview(creation)[:] = b"text"
    assert reader.get(oid, timeout=30) == b"text"
    assert reader.get_buffers([oid])[0].metadata == b"text/plain"


PICKLED = pickle.dumps("x")
MALFORMED = {
    "no header": b"",
    "no JSON": b"{",
    "no UTF-8": b"\xff",
    "no object": b"[1]",
    "no kind": b"{}",
    "unknown kind": b'{"kind":"surprise"}',
    "kind of a strange type": b'{"kind":[]}',
    "deep JSON": b"[" * 50_000,
    "array without fields": b'{"kind":"numpy"}',
    "array too large": b'{"kind":"numpy","dtype":"\'<f8\'","shape":[1000],"order":"C"}',
    "array too small": b'{"kind":"numpy","dtype":"\'<u1\'","shape":[3],"order":"C"}',
    "array of huge shape": b'{"kind":"numpy","dtype":"\'<u1\'","shape":[4611686018427387904,8],"order":"C"}',
    "array of negative shape": b'{"kind":"numpy","dtype":"\'<u1\'","shape":[-1],"order":"C"}',
    "array of strides without an end": (
        b'{"kind":"numpy","dtype":"\'<u1\'","shape":[17],"order":"C","strides":[1],"offset":0}'
    ),
    "array of strides before the data": (
        b'{"kind":"numpy","dtype":"\'<u1\'","shape":[2],"order":"C","strides":[-1],"offset":0}'
    ),
    "array behind the data": (
        b'{"kind":"numpy","dtype":"\'<u1\'","shape":[1],"order":"C","strides":[1],"offset":16}'
    ),
    "array before the data": (
        b'{"kind":"numpy","dtype":"\'<u1\'","shape":[1],"order":"C","strides":[1],"offset":-1}'
    ),
    "array of huge strides": (
        b'{"kind":"numpy","dtype":"\'<u1\'","shape":[3],"order":"C",'
        b'"strides":[4611686018427387904],"offset":0}'
    ),
    "array of too few strides": (
        b'{"kind":"numpy","dtype":"\'<u1\'","shape":[2,2],"order":"C","strides":[1],"offset":0}'
    ),
    "array of strides of text": b'{"kind":"numpy","dtype":"\'<u1\'","shape":[2],"order":"C","strides":"1"}',
    "array of objects": b'{"kind":"numpy","dtype":"\'|O\'","shape":[1],"order":"C"}',
    "array of code": b'{"kind":"numpy","dtype":"__import__(\'os\')","shape":[1],"order":"C"}',
    "array in strange order": b'{"kind":"numpy","dtype":"\'<u1\'","shape":[16],"order":"Z"}',
    "no table": b'{"kind":"arrow","type":"table"}',
    "no batch": b'{"kind":"arrow","type":"batch"}',
    "pickle without fields": b'{"kind":"pickle"}',
    "pickle too long": b'{"kind":"pickle","pickle":100,"table":0,"buffers":0}',
    "pickle of negative length": b'{"kind":"pickle","pickle":-1,"table":0,"buffers":0}',
    "pickle of nothing": b'{"kind":"pickle","pickle":0,"table":0,"buffers":0}',
    "pickle of garbage": b'{"kind":"pickle","pickle":16,"table":0,"buffers":0}',
    "pickle with buffers elsewhere": b'{"kind":"pickle","pickle":16,"table":0,"buffers":1}',
    "pickle with a table of text": b'{"kind":"pickle","pickle":16,"table":"0","buffers":"1"}',
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_metadata_raises_and_the_bytes_remain(near: plasmon.Client, name: str) -> None:
    oid = plasmon.ObjectId.random()
    with near.create(oid, 16, metadata=_values.MAGIC + MALFORMED[name]) as creation:
        memoryview(creation)[:] = b"\xff" * 16
    with pytest.raises(plasmon.MalformedValue, match=oid.hex()):
        near.get(oid)
    assert bytes(near.get_buffers([oid])[0]) == b"\xff" * 16


def test_values_of_a_newer_version_are_refused(near: plasmon.Client) -> None:
    oid = plasmon.ObjectId.random()
    near.create(oid, 0, metadata=b"PLPY\x02{}").seal()
    with pytest.raises(plasmon.MalformedValue, match="another version"):
        near.get(oid)


def test_a_pickle_of_an_unknown_class_says_so(near: plasmon.Client) -> None:
    pickled = b"\x80\x05cno_such_module\nThing\n."
    header = b'{"kind":"pickle","pickle":%d,"table":0,"buffers":0}' % len(pickled)
    oid = plasmon.ObjectId.random()
    with near.create(oid, len(pickled), metadata=_values.MAGIC + header) as creation:
        memoryview(creation)[:] = pickled
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        near.get(oid)
