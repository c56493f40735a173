"""Values of every type, layout and nesting: got on another node, they are what they were.

They are drawn at random, the same ones each time.
`PLASMON_PYTHON_LONG=1` draws many more.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import plasmon
import plasmon.plasma
import pyarrow as pa
import pytest
from drawing import drawn
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from plasmon import _values


class Nodes(NamedTuple):
    """Clients of two nodes, with both interfaces."""

    near: plasmon.Client
    far: plasmon.Client
    near_plasma: plasmon.plasma.PlasmaClient
    far_plasma: plasmon.plasma.PlasmaClient


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with plasmon.LocalCluster(nodes=2, memory="256MiB") as cluster:
        plasma = [plasmon.plasma.connect(socket) for socket in cluster.sockets]
        yield Nodes(cluster.client(0), cluster.client(1), *plasma)
        gc.collect()
        for client in plasma:
            client.disconnect()


def returns(nodes: Nodes, value: Any, same: Callable[[Any, Any], None]) -> None:
    """Sends a value to the other node in every possible way."""
    id = nodes.near.put(value)
    buffer = nodes.far.get_buffers([id], 30)[0]
    into = bytearray(len(buffer) + 8)
    assert nodes.far.get_into(id, into, 30) == len(buffer)
    assert into[: len(buffer)] == memoryview(buffer)
    same(nodes.far.get(id, 30), value)
    same(nodes.near.get(id, 30), value)
    other = nodes.near_plasma.put(value)
    same(nodes.far_plasma.get(other, 30_000), value)
    del buffer
    nodes.near.delete([id, plasmon.ObjectId(other.binary())])


def same_dtype(got: np.dtype[Any], put: np.dtype[Any]) -> None:
    assert got == put
    assert got.type is put.type
    assert (got.itemsize, got.alignment, got.isalignedstruct) == (
        put.itemsize,
        put.alignment,
        put.isalignedstruct,
    )
    assert dict(got.metadata or {}) == dict(put.metadata or {})
    assert got.shape == put.shape
    assert got.names == put.names
    if put.subdtype is not None:
        same_dtype(got.base, put.base)
    for name, field in (put.fields or {}).items():
        assert got.fields is not None
        same_dtype(got.fields[name][0], field[0])
        assert got.fields[name][1:] == field[1:]


def same_elements(got: np.ndarray[Any, Any], put: np.ndarray[Any, Any]) -> None:
    assert got.shape == put.shape
    if put.dtype.names is not None:
        for name in put.dtype.names:
            same_elements(got[name], put[name])
    elif put.dtype.hasobject:
        for left, right in zip(got.ravel().tolist(), put.ravel().tolist(), strict=True):
            same(left, right)
    elif put.dtype.type in (np.longdouble, np.clongdouble):  # Not all of their bytes mean something.
        assert np.array_equal(got, put, equal_nan=True)
    else:
        assert got.tobytes() == put.tobytes()


def same_array(got: np.ndarray[Any, Any], put: np.ndarray[Any, Any]) -> None:
    assert type(got) is type(put)
    if not put.dtype.isnative and got.dtype.isnative:
        # NumPy's pickles convert some elements of a foreign byte order to the native one.
        put = put.astype(put.dtype.newbyteorder("="))
        assert got.dtype == put.dtype
    else:
        same_dtype(got.dtype, put.dtype)
    if isinstance(put, np.ma.MaskedArray):
        same_elements(np.asarray(np.ma.getmaskarray(got)), np.asarray(np.ma.getmaskarray(put)))
        same_elements(np.asarray(got.data), np.asarray(put.data))
    else:
        same_elements(np.asarray(got), np.asarray(put))


def same_array_in_place(got: np.ndarray[Any, Any], put: np.ndarray[Any, Any]) -> None:
    same_array(got, put)
    if _values._has_literal(put.dtype):
        same_dtype(got.dtype, put.dtype)
        assert not got.flags.writeable
        assert got.flags.aligned
        if put.flags.c_contiguous or put.flags.f_contiguous:
            assert got.flags.c_contiguous == put.flags.c_contiguous
            assert got.flags.f_contiguous == put.flags.f_contiguous


def same_arrow(got: Any, put: Any) -> None:
    assert type(got) is type(put)
    if isinstance(put, pa.Table | pa.RecordBatch):
        got.validate(full=True)
        assert got.schema.equals(put.schema, check_metadata=True)
        assert got.schema.metadata == put.schema.metadata
        for left, right in zip(got.schema, put.schema, strict=True):
            # The metadata of an extension type's field are empty, once its type has been taken out of them.
            assert (left.metadata or None, left.nullable) == (right.metadata or None, right.nullable)
        assert got.equals(put, check_metadata=True)
        for left, right in zip(got.columns, put.columns, strict=True):
            assert left.null_count == right.null_count
    elif isinstance(put, pa.Array | pa.ChunkedArray):
        got.validate(full=True)
        assert got.type == put.type
        assert got.equals(put)
    else:
        assert got == put


def same(got: Any, put: Any) -> None:
    """Compares values of any kind, deeply."""
    if isinstance(put, np.ndarray):
        same_array(got, put)
    elif isinstance(put, (pa.Table, pa.RecordBatch, pa.Array, pa.ChunkedArray)):
        same_arrow(got, put)
    elif isinstance(put, (bytes, bytearray, memoryview)) and isinstance(got, plasmon.Buffer):
        assert got == put
        assert got.readonly
    else:
        assert type(got) is type(put)
        if dataclasses.is_dataclass(put):
            for field in dataclasses.fields(put):
                same(getattr(got, field.name), getattr(put, field.name))
        elif isinstance(put, dict):
            assert list(got) == list(put)
            for key in put:
                same(got[key], put[key])
        elif isinstance(put, list | tuple):
            assert len(got) == len(put)
            for left, right in zip(got, put, strict=True):
                same(left, right)
        elif isinstance(put, complex):
            same((got.real, got.imag), (put.real, put.imag))
        elif isinstance(put, float) and math.isnan(put):
            assert math.isnan(got)
        else:
            assert got == put


# NumPy

UNITS = ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"]


@st.composite
def scalar_dtypes(draw: st.DrawFn) -> np.dtype[Any]:
    dtype: np.dtype[Any] = draw(
        st.one_of(
            hnp.scalar_dtypes(),
            hnp.byte_string_dtypes(min_len=1, max_len=5),
            hnp.unicode_string_dtypes(min_len=1, max_len=5),
            st.sampled_from(["g", "G", "V3", "V1", "S0", "U0"]).map(np.dtype),
            st.builds(
                lambda order, kind, count, unit: np.dtype(f"{order}{kind}8[{count}{unit}]"),
                st.sampled_from("<>"),
                st.sampled_from("mM"),
                st.integers(1, 30),
                st.sampled_from(UNITS),
            ),
        )
    )
    if draw(st.integers(0, 9)) == 0:
        dtype = np.dtype(dtype, metadata={"unit": draw(st.sampled_from(["m", "s"]))})
    return dtype


@st.composite
def structures(draw: st.DrawFn, depth: int = 2) -> np.dtype[Any]:
    inner = scalar_dtypes() if depth == 0 else st.one_of(scalar_dtypes(), structures(depth - 1))
    names = draw(
        st.lists(st.text("abcé\x1b '\"", min_size=1, max_size=3), min_size=1, max_size=4, unique=True)
    )
    fields: list[Any] = []
    for number, name in enumerate(names):
        title = draw(st.integers(0, 9)) == 0
        field = draw(inner)
        shape = draw(st.sampled_from([(), (), (2,), (2, 1)])) if field.itemsize else ()
        label = (f"title {number}", name) if title else name
        fields.append((label, field, shape) if shape else (label, field))
    dtype = np.dtype(fields, align=draw(st.booleans()))
    if draw(st.integers(0, 9)) == 0:
        dtype = np.dtype((np.record, dtype))
    return dtype


def zeroed(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Array whose unused bytes are not zeros."""
    array = np.zeros(shape, dtype)
    if not array.nbytes:
        return array
    if dtype.kind in "iufcmMV" and dtype.names is None and dtype.type is not np.longdouble:
        random = np.random.default_rng(seed).bytes(array.nbytes)
        if dtype.type is not np.clongdouble:
            array = np.frombuffer(random, np.uint8).copy().view(np.uint8).reshape(-1)
            array = np.ndarray(shape, dtype, array.data)
    elif dtype.names is not None:
        for number, name in enumerate(dtype.names):
            part = array[name]
            part[...] = zeroed(part.dtype, part.shape, seed + number)
    elif dtype.kind in "SU":
        array[...] = np.array(str(seed), dtype)
    elif dtype.kind == "b":
        array[...] = seed % 2
    else:
        array[...] = seed
    return array


LAYOUTS: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "as it is": lambda array: array,
    "Fortran order": np.asfortranarray,
    "transposed": lambda array: array.T,
    "every second": lambda array: array[..., ::2] if array.ndim else array,
    "backwards": lambda array: array[::-1] if array.ndim else array,
    "a part": lambda array: array[1:] if array.ndim else array,
    "a new axis": lambda array: array[..., np.newaxis],
    "repeated": lambda array: np.broadcast_to(array, (2, *array.shape)),
    "read-only": lambda array: np.broadcast_to(array, array.shape),
    "axes exchanged": lambda array: np.moveaxis(array, 0, -1) if array.ndim else array,
}


@st.composite
def arrays(draw: st.DrawFn, dtypes: st.SearchStrategy[np.dtype[Any]]) -> np.ndarray[Any, Any]:
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    array = zeroed(draw(dtypes), shape, draw(st.integers(0, 9)))
    for layout in draw(st.lists(st.sampled_from(sorted(LAYOUTS)), max_size=2)):
        array = LAYOUTS[layout](array)
    return array


@given(array=arrays(scalar_dtypes()))
@drawn(120)
def test_arrays_of_scalars(nodes: Nodes, array: np.ndarray[Any, Any]) -> None:
    returns(nodes, array, same_array_in_place)


@given(array=arrays(structures()))
@drawn(60)
def test_arrays_of_structures(nodes: Nodes, array: np.ndarray[Any, Any]) -> None:
    returns(nodes, array, same_array_in_place)


class Temperatures(np.ndarray[Any, Any]):
    """Subclass of an array, without additions."""


SUBCLASSES: dict[str, Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]] = {
    "own": lambda array: array.view(Temperatures),
    "records": lambda array: array.view(np.recarray),
    "objects": lambda array: array.astype(object),
}


@given(array=arrays(st.one_of(scalar_dtypes(), structures(0))), kind=st.sampled_from(sorted(SUBCLASSES)))
@drawn(100)
def test_subclasses_of_arrays(nodes: Nodes, array: np.ndarray[Any, Any], kind: str) -> None:
    returns(nodes, SUBCLASSES[kind](array), same_array)


# NumPy cannot read its own pickles of masked dates.
NUMBERS = st.one_of(hnp.integer_dtypes(endianness="="), hnp.floating_dtypes(endianness="=", sizes=(32, 64)))


@given(array=arrays(NUMBERS))
@drawn(40)
def test_masked_arrays(nodes: Nodes, array: np.ndarray[Any, Any]) -> None:
    mask = np.arange(array.size).reshape(array.shape) % 2 == 0
    returns(nodes, np.ma.masked_array(array, mask), same_array)


# Arrow


class Celsius(pa.ExtensionType):  # type: ignore[misc]
    """Extension type with a parameter."""

    def __init__(self, storage: pa.DataType, digits: int) -> None:
        self.digits = digits
        super().__init__(storage, "plasmon.test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return str(self.digits).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Celsius:
        return cls(storage, int(serialized))

    def __reduce__(self) -> Any:
        return Celsius, (self.storage_type, self.digits)


@pytest.fixture(scope="module", autouse=True)
def celsius() -> Iterator[None]:
    pa.register_extension_type(Celsius(pa.int8(), 0))
    yield
    pa.unregister_extension_type("plasmon.test.celsius")


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
NUMBERED = [
    *INTEGERS,
    *(
        pa.timestamp(unit, zone)
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Berlin")
    ),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.date32(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
TEXTS = [pa.string(), pa.large_string(), pa.string_view()]
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view()]
DECIMALS = [pa.decimal32(7, 2), pa.decimal64(15, 3), pa.decimal128(30, 5), pa.decimal256(60, 7)]


@st.composite
def leaves(draw: st.DrawFn, length: int) -> pa.Array:
    def values(each: st.SearchStrategy[Any]) -> list[Any]:
        optional = st.one_of(st.none(), each)
        if draw(st.booleans()):
            optional = each
        return draw(st.lists(optional, min_size=length, max_size=length))

    def pick(types: list[pa.DataType]) -> pa.DataType:
        return draw(st.sampled_from(types))

    kinds = ["null", "bool", "number", "float", "text", "bytes", "fixed", "decimal", "date64", "interval"]
    kind = draw(st.sampled_from(kinds))
    if kind == "null":
        return pa.nulls(length)
    if kind == "bool":
        return pa.array(values(st.booleans()), pa.bool_())
    if kind == "number":
        wanted = pick(NUMBERED)
        storage = wanted if wanted in INTEGERS else pa.int32() if wanted.bit_width == 32 else pa.int64()
        return pa.array(values(st.integers(0, 100)), storage).cast(wanted)
    if kind == "float":
        numbers = values(st.floats(allow_nan=False, width=16))
        return pa.array(np.array([0 if number is None else number for number in numbers], "f2")).cast(
            pick(FLOATS)
        )
    if kind == "text":
        return pa.array(values(st.text(max_size=20)), pick(TEXTS))
    if kind == "bytes":
        return pa.array(values(st.binary(max_size=20)), pick(BYTES))
    if kind == "fixed":
        width = draw(st.integers(0, 3))
        return pa.array(values(st.binary(min_size=width, max_size=width)), pa.binary(width))
    if kind == "decimal":
        return pa.array(values(st.decimals(-99, 99, places=2)), pick(DECIMALS))
    if kind == "date64":
        return pa.array(values(st.dates()), pa.date64())
    return pa.array(values(st.tuples(*[st.integers(-9, 9)] * 3)), pa.month_day_nano_interval())


@st.composite
def columns(draw: st.DrawFn, length: int, depth: int = 2) -> pa.Array:
    """Array of any type, perhaps a slice of a longer one."""
    before, behind = draw(st.sampled_from([(0, 0), (0, 0), (1, 0), (3, 2), (9, 1)]))
    whole = draw(unsliced(before + length + behind, depth))
    return whole.slice(before, length)


@st.composite
def canonical(draw: st.DrawFn, length: int) -> pa.Array:
    """Array of an extension type that Arrow itself has."""
    which = draw(st.sampled_from(["uuid", "bool8", "json", "tensor", "opaque"]))
    if which == "uuid":
        return pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * length, pa.binary(16)))
    if which == "bool8":
        return pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1] * length, pa.int8()))
    if which == "json":
        return pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"] * length, pa.string()))
    if which == "opaque":
        opaque = pa.opaque(pa.int8(), "type", "vendor")
        return pa.ExtensionArray.from_storage(opaque, pa.array([5] * length, pa.int8()))
    tensor = pa.fixed_shape_tensor(pa.int16(), [2, 1], dim_names=["x", "y"])
    storage = pa.FixedSizeListArray.from_arrays(pa.array([7] * 2 * length, pa.int16()), 2)
    return pa.ExtensionArray.from_storage(tensor, storage)


@st.composite
def unsliced(draw: st.DrawFn, length: int, depth: int) -> pa.Array:
    def child(length: int) -> pa.Array:
        return draw(columns(length, depth - 1))

    def mask() -> pa.Array:
        return pa.array(draw(st.lists(st.booleans(), min_size=length, max_size=length)), pa.bool_())

    def sizes() -> list[int]:
        return draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))

    kinds = "leaf leaf dictionary run_end extension canonical"
    if depth > 0:
        kinds += " list large_list list_view large_list_view fixed_size_list struct map sparse dense"
    kind = draw(st.sampled_from(kinds.split()))
    if kind == "leaf":
        return draw(leaves(length))
    if kind == "dictionary":
        entries = draw(leaves(draw(st.integers(1, 4))))
        indices = st.one_of(st.none(), st.integers(0, len(entries) - 1))
        index_type = draw(st.sampled_from(INTEGERS))
        chosen = pa.array(draw(st.lists(indices, min_size=length, max_size=length)), index_type)
        return pa.DictionaryArray.from_arrays(chosen, entries, ordered=draw(st.booleans()))
    if kind == "run_end":
        ends, total = [], 0
        while total < length:
            total = min(length, total + draw(st.integers(1, 3)))
            ends.append(total)
        index_type = draw(st.sampled_from([pa.int16(), pa.int32(), pa.int64()]))
        return pa.RunEndEncodedArray.from_arrays(pa.array(ends, index_type), draw(leaves(len(ends))))
    if kind == "extension":
        storage = draw(leaves(length))
        return pa.ExtensionArray.from_storage(Celsius(storage.type, draw(st.integers(0, 9))), storage)
    if kind == "canonical":
        return draw(canonical(length))
    if kind in ("list", "large_list"):
        offsets = np.concatenate([[0], np.cumsum(sizes())])
        large = kind == "large_list"
        made = pa.LargeListArray if large else pa.ListArray
        offset_type = pa.int64() if large else pa.int32()
        return made.from_arrays(pa.array(offsets, offset_type), child(int(offsets[-1])), mask=mask())
    if kind in ("list_view", "large_list_view"):
        # Views may overlap, and come in any order.
        entries = child(6)
        large = kind == "large_list_view"
        made = pa.LargeListViewArray if large else pa.ListViewArray
        offset_type = pa.int64() if large else pa.int32()
        starts = draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))
        return made.from_arrays(
            pa.array(starts, offset_type), pa.array(sizes(), offset_type), entries, mask=mask()
        )
    if kind == "fixed_size_list":
        width = draw(st.integers(1, 3))
        return pa.FixedSizeListArray.from_arrays(child(width * length), width, mask=mask())
    if kind == "struct":
        children = [child(length) for _ in range(draw(st.integers(1, 3)))]
        metadata = draw(st.sampled_from([None, {"of": "a field"}]))
        fields = [pa.field(f"f{number}", one.type, metadata=metadata) for number, one in enumerate(children)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask())
    if kind == "map":
        offsets = np.concatenate([[0], np.cumsum(sizes())])
        keys = pa.array([f"key {number}" for number in range(int(offsets[-1]))], pa.string())
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, child(len(keys)))
    kinds_of = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
    if kind == "sparse":
        return pa.UnionArray.from_sparse(pa.array(kinds_of, pa.int8()), [child(length), child(length)])
    offsets_of = [kinds_of[:at].count(one) for at, one in enumerate(kinds_of)]
    counts = [max(1, kinds_of.count(0)), max(1, kinds_of.count(1))]
    parts = [child(count) for count in counts]
    return pa.UnionArray.from_dense(pa.array(kinds_of, pa.int8()), pa.array(offsets_of, pa.int32()), parts)


METADATA = st.one_of(
    st.none(), st.dictionaries(st.text(max_size=4), st.binary(max_size=6), min_size=1, max_size=2)
)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    length = draw(st.integers(0, 6))
    parts = draw(st.lists(columns(length), max_size=3))
    fields = [
        pa.field(draw(st.sampled_from(["a", "b", "", "é\x1b"])), one.type, metadata=draw(METADATA))
        for one in parts
    ]
    return pa.RecordBatch.from_arrays(parts, schema=pa.schema(fields, metadata=draw(METADATA)))


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    batch = draw(batches())
    cuts = sorted(draw(st.lists(st.integers(0, batch.num_rows), max_size=3)))
    parts = [
        batch.slice(start, end - start)
        for start, end in zip([0, *cuts], [*cuts, batch.num_rows], strict=True)
    ]
    table = pa.Table.from_batches(parts, batch.schema)
    return table.slice(draw(st.integers(0, batch.num_rows)), draw(st.integers(0, batch.num_rows)))


@given(batch=batches())
@drawn(150)
def test_record_batches(nodes: Nodes, batch: pa.RecordBatch) -> None:
    returns(nodes, batch, same_arrow)


@given(table=tables())
@drawn(120)
def test_tables(nodes: Nodes, table: pa.Table) -> None:
    returns(nodes, table, same_arrow)


# Everything


@dataclasses.dataclass
class Node:
    name: str
    content: Any
    children: list[Any]


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(allow_nan=False),
    st.text(),
    st.binary(),
    st.dates(),
    st.frozensets(st.integers(), max_size=3),
    arrays(scalar_dtypes()),
    arrays(structures(1)),
    columns(4, 1),
    batches(),
    tables(),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.builds(Node, st.text(max_size=3), inner, st.lists(inner, max_size=2)),
    ),
    max_leaves=8,
)


@given(value=VALUES)
@drawn(80)
def test_whatever_is_nested(nodes: Nodes, value: Any) -> None:
    returns(nodes, value, same)
