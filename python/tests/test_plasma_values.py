"""Values in Plasma's objects: the same on `plasmon.plasma` and on PyArrow's own, if that has it."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import PLASMA_MEMORY, until

pytestmark = [
    pytest.mark.filterwarnings("ignore:Plasma is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'serialization_context':FutureWarning"),
]


VALUES = [
    None,
    True,
    -1,
    1 << 70,
    0.5,
    "text",
    b"bytes",
    b"",
    [],
    ["hello", 3, 1.0, None],
    (1, (2,)),
    {"a": [1, {"b": b"c"}]},
    {1, 2},
]


def test_values_come_back_as_they_were(plasma: ModuleType, client: Any, other: Any) -> None:
    ids = [client.put(value) for value in VALUES]
    got = other.get(ids)
    assert got == VALUES
    assert [type(value) for value in got] == [type(value) for value in VALUES]
    assert client.get(ids[5]) == "text"
    assert client.get((ids[5],)) == ["text"]
    oid = plasma.ObjectID.from_random()
    assert client.put([1], oid) == oid
    missing = plasma.ObjectID.from_random()
    assert client.get(missing, 0) is plasma.ObjectNotAvailable
    assert client.get([oid, missing], timeout_ms=10) == [[1], plasma.ObjectNotAvailable]


def test_arrays_are_read_in_place(client: Any, other: Any) -> None:
    array = np.random.default_rng(1).random((100, 300))
    oid = client.put(array)
    got = other.get(oid)
    assert (got == array).all()
    assert (got.dtype, got.shape) == (array.dtype, array.shape)
    assert not got.flags.writeable
    assert not got.flags.owndata
    assert other.list()[oid]["ref_count"] == 1
    part = got[3:5]
    del got
    assert other.list()[oid]["ref_count"] == 1
    assert (part == array[3:5]).all()
    del part
    until("its use to end", lambda: other.list()[oid]["ref_count"] == 0)
    nested = {"x": [array, {"y": array[:3].T}], "z": np.array(["a", None], object)}
    got = other.get(client.put(nested))
    assert (got["x"][0] == array).all()
    assert (got["x"][1]["y"] == array[:3].T).all()
    assert list(got["z"]) == ["a", None]
    assert not got["x"][0].flags.owndata


def test_arrow_data(client: Any, other: Any, new_id: Callable[[], Any]) -> None:
    table = pa.table({"number": list(range(1000)), "text": [str(n) for n in range(1000)]})
    assert other.get(client.put(table)).equals(table)
    [batch] = table.to_batches()
    assert other.get(client.put(batch)).equals(batch)
    assert other.get(client.put(pa.py_buffer(b"raw"))).to_pybytes() == b"raw"
    assert other.get(client.put(table["number"].chunk(0))).equals(table["number"].chunk(0))

    # A table as programs store it by hand: written into the buffer, and read in place.
    oid, counter = new_id(), pa.MockOutputStream()
    for sink in (counter, None):
        sink = sink or pa.FixedSizeBufferWriter(client.create(oid, counter.size()))
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write(table)
    client.seal(oid)
    del sink, writer
    [buffer] = other.get_buffers([oid])
    reader = pa.ipc.open_stream(buffer)
    read = reader.read_all()
    del buffer, reader
    assert client.evict(PLASMA_MEMORY) >= 0
    assert other.list()[oid]["ref_count"] == 1
    assert read.equals(table)

    tensor = pa.Tensor.from_numpy(np.arange(24.0).reshape(4, 6))
    oid = new_id()
    sink = pa.FixedSizeBufferWriter(client.create(oid, pa.ipc.get_tensor_size(tensor)))
    pa.ipc.write_tensor(tensor, sink)
    client.seal(oid)
    assert pa.ipc.read_tensor(pa.BufferReader(other.get_buffers([oid])[0])).equals(tensor)


def test_frames_of_pandas(client: Any, other: Any) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"number": range(100), "text": list("abcd") * 25})
    pandas.testing.assert_frame_equal(other.get(client.put(frame)), frame)


class Custom:
    def __init__(self, value: object) -> None:
        self.value = value


@pytest.mark.skipif(not hasattr(pa.lib, "SerializationContext"), reason="this PyArrow has no such contexts")
def test_serialization_contexts(client: Any, other: Any) -> None:
    context = pa.lib.SerializationContext()
    context.register_type(Custom, "Custom")
    value = Custom([1, Custom(np.arange(1000))])
    oid = client.put(value, None, serialization_context=context)
    with pytest.raises(pa.ArrowSerializationError):
        other.get(oid)
    got = other.get(oid, -1, serialization_context=context)
    assert got.value[0] == 1
    assert (got.value[1].value == np.arange(1000)).all()

    context.register_type(
        Custom,
        "Custom",
        custom_serializer=lambda it: [it.value],
        custom_deserializer=lambda it: Custom(it[0]),
    )
    oid = client.put({"a": Custom(3)}, serialization_context=context)
    assert other.get([oid], serialization_context=context)[0]["a"].value == 3
