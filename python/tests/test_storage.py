"""What is stored of a value: no more than it shows, and memory that its parts share once.

Readers share that memory as well. What is copied on the way is told by `explain`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import plasmon
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import is_in_store
from plasmon import _values

N = 50_000
ROWS = 10
SMALL = 4096
"""Bytes that a slice of few rows takes at most, of all that are stored with it."""
CUT = "a slice of Arrow data was cut out"

TEXTS = [f"row number {number}, which is longer than a view" for number in range(N)]
ARRAYS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: pa.array(range(N)),
    "bits": lambda: pa.array([True, None, False, True] * (N // 4)),
    "texts": lambda: pa.array(TEXTS),
    "large texts": lambda: pa.array(TEXTS, pa.large_string()),
    "views": lambda: pa.array(TEXTS, pa.string_view()),
    "views with nulls": lambda: pa.array([None, *TEXTS[1:]] + ["short"] * 9, pa.string_view()),
    "fixed": lambda: pa.array([b"abc"] * N, pa.binary(3)),
    "lists": lambda: pa.array([[number, number] for number in range(N)]),
    "lists of texts": lambda: pa.array([[text] for text in TEXTS], pa.large_list(pa.string_view())),
    "views of lists": lambda: pa.array([[number] for number in range(N)], pa.list_view(pa.int64())),
    "lists of one size": lambda: pa.array([[number] * 2 for number in range(N)], pa.list_(pa.int64(), 2)),
    "structures": lambda: pa.array([{"a": text, "b": [1]} for text in TEXTS]),
    "maps": lambda: pa.array([[("key", number)] for number in range(N)], pa.map_(pa.string(), pa.int64())),
    "indices": lambda: pa.array(["a", "b"] * (N // 2)).dictionary_encode(),
    "runs": lambda: pc.run_end_encode(pa.array(range(N))),
    "sparse unions": lambda: pa.UnionArray.from_sparse(
        pa.array([0, 1] * (N // 2), pa.int8()), [pa.array(range(N)), pa.array(TEXTS)]
    ),
    "dense unions": lambda: pa.UnionArray.from_dense(
        pa.array([0] * N, pa.int8()), pa.array(range(N), pa.int32()), [pa.array(TEXTS)]
    ),
    "extensions": lambda: pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)] * N, pa.binary(16))),
}


def addresses(data: Any) -> Iterator[int]:
    """Addresses of the memory of an array."""
    for chunk in data.chunks if isinstance(data, pa.ChunkedArray) else [data]:
        yield from (buffer.address for buffer in chunk.buffers() if buffer is not None and buffer.size)


def arrays_in(value: Any) -> list[Any]:
    """Arrays within a value."""
    if isinstance(value, pa.Table | pa.RecordBatch):
        return list(value.columns)
    if isinstance(value, dict):
        return arrays_in(list(value.values()))
    return [array for one in value for array in arrays_in(one)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_slice_of_arrow_data_is_stored_alone_and_read_in_place(
    near: plasmon.Client, far: plasmon.Client, kind: str
) -> None:
    whole = ARRAYS[kind]()
    for start in (0, 1005, len(whole) - ROWS):
        cut = whole[start : start + ROWS]
        table = pa.table({"column": cut})
        chunked = pa.chunked_array([cut, whole[3:3], cut])
        for value in (cut, chunked, table, table.to_batches()[0], [cut], {"a": cut, "b": [table]}):
            assert _values.encode(value).size < SMALL, (type(value), start)
            for reader in (near, far):
                got = reader.get(near.put(value), timeout=30)
                assert type(got) is type(value)
                for left, right in zip(arrays_in(got), arrays_in(value), strict=True):
                    left.validate(full=True)
                    assert left.equals(right)
                    assert all(is_in_store(address) for address in addresses(left))
                del left, got


def test_a_slice_of_texts_is_copied_where_it_has_to_be(near: plasmon.Client) -> None:
    def copied(value: Any) -> Any:
        return near.explain(near.put(value))["value"]["copied"]

    texts = pa.array(TEXTS)
    assert copied(texts) == copied([texts[:ROWS]]) == copied(pa.table({"a": texts[:ROWS]})) == {}
    assert copied([texts[1005:1009]]) == {CUT: 4 * (5 + 5)}, "the offsets, from the last multiple of 8 on"
    views = pa.array(TEXTS, pa.string_view())
    assert 0 < copied(views[5:9])[CUT] < 1000
    assert 0 < copied(pa.table({"a": views[5:9]}))[CUT] < 1000


def test_few_texts_of_many_are_gathered(near: plasmon.Client, reader: plasmon.Client) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"n": range(N), "s": TEXTS})
    few = frame.filter(pl.col("n") % (N // 5) == 1)
    parts = pl.concat([frame[at : at + 2] for at in range(0, N, N // 5)], rechunk=False)
    for value in (few, parts, frame[7:12], frame["s"][7:12], [few], {"s": few["s"]}):
        assert _values.encode(value).size < SMALL
        got = reader.get(near.put(value), timeout=30)
        [left], [right] = (
            [one]
            if isinstance(one, pl.DataFrame | pl.Series)
            else list(getattr(one, "values", lambda o=one: o)())
            for one in (got, value)
        )
        assert left.equals(right)


# Shared memory


def values_that_share() -> dict[str, Any]:
    base = np.arange(300_000.0).reshape(300, 1000)
    flat = base.reshape(-1)
    return {
        "a part": [base, base[100:200]],
        "the part first": [base[100:200], base],
        "every second": {"base": base, "part": base[:, ::2]},
        "every second first": {"part": base[::2, ::3], "base": base},
        "backwards": [base, base[::-1]],
        "transposed": (base, base.T),
        "a column": [base, base[:, 7]],
        "another type": [base, base.view("u1"), base.view("M8[s]")],
        "overlapping": [flat[:200_000], flat[100_000:]],
        "bytes at odd places": [flat.view("u1")[3:], flat[1:]],
    }


@pytest.mark.parametrize("name", values_that_share())
def test_arrays_that_share_memory_are_stored_once(
    near: plasmon.Client, reader: plasmon.Client, name: str
) -> None:
    value = values_that_share()[name]
    assert _values.encode(value).size < 300_000 * 8 + SMALL
    oid = near.put(value)
    assert near.explain(oid)["value"]["copied"] == {}
    got = reader.get(oid, timeout=30)
    left, right = (list(one.values()) if isinstance(one, dict) else list(one) for one in (got, value))
    for one, other in zip(left, right, strict=True):
        assert (one.dtype, one.strides) == (other.dtype, other.strides)
        assert one.tobytes() == other.tobytes()
        assert one.flags.aligned
        assert not one.flags.writeable
        assert is_in_store(one.ctypes.data)
        assert np.may_share_memory(one, left[0])
        # Each lies where it lay beside the first one.
        assert one.ctypes.data - left[0].ctypes.data == other.ctypes.data - right[0].ctypes.data


def test_frames_and_their_columns_share(near: plasmon.Client, reader: plasmon.Client) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": np.arange(100_000.0), "b": 1.5})
    value = {"frame": frame, "a": frame["a"], "rows": frame["a"][100:]}
    assert _values.encode(value).size < 2 * 800_000 + SMALL
    got = reader.get(near.put(value), timeout=30)
    pd.testing.assert_series_equal(got["rows"], value["rows"])
    assert np.shares_memory(got["frame"]["a"].to_numpy(), got["a"].to_numpy())
    assert np.shares_memory(got["frame"]["a"].to_numpy(), got["rows"].to_numpy())


def test_slices_of_one_arrow_array_share(near: plasmon.Client, reader: plasmon.Client) -> None:
    texts = pa.array(TEXTS)
    value = [texts, texts[: N // 2], texts[N // 2 :], pa.table({"a": texts, "b": texts})]
    assert _values.encode(value).size < texts.nbytes + 4 * N + SMALL
    whole, first, second, table = reader.get(near.put(value), timeout=30)
    assert table.equals(value[3])
    assert whole.equals(texts)
    assert (first.to_pylist(), second.to_pylist()) == (TEXTS[: N // 2], TEXTS[N // 2 :])
    assert first.buffers()[2].address == whole.buffers()[2].address
    assert table["a"].chunk(0).buffers()[2].address == table["b"].chunk(0).buffers()[2].address


def test_columns_of_one_table_share(near: plasmon.Client, reader: plasmon.Client) -> None:
    texts = pa.array(TEXTS)
    table = pa.table({"a": texts, "b": texts, "c": texts[: N // 2 * 2]})
    parts = pa.Table.from_batches(pa.table({"a": texts}).to_batches(max_chunksize=1000))
    assert near.explain(near.put(parts))["value"]["kind"] == "arrow", "no part is there twice"
    for value in (table, table.to_batches()[0]):
        assert _values.encode(value).size < texts.nbytes + SMALL
        got = reader.get(near.put(value), timeout=30)
        assert type(got) is type(value)
        assert got.equals(value)
        addresses_of = {column: list(addresses(got[column])) for column in "abc"}
        assert addresses_of["a"] == addresses_of["b"] == addresses_of["c"]
    with near.serve("tables", {"same": lambda one: one}, values=True):
        assert near.service("tables").invoke("same", table).equals(table)


def test_columns_of_one_frame_share(near: plasmon.Client, reader: plasmon.Client) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"a": range(N), "s": TEXTS}).with_columns(
        pl.col("a").alias("b"), pl.col("s").alias("t")
    )
    assert _values.encode(frame).size < frame["s"].to_arrow().get_total_buffer_size() + 8 * N + SMALL
    got = reader.get(near.put(frame), timeout=30)
    assert got.equals(frame)
    assert got["a"].to_numpy().ctypes.data == got["b"].to_numpy().ctypes.data


def test_of_a_value_that_was_got_and_is_put_again_memory_is_shared(near: plasmon.Client) -> None:
    base = np.arange(100_000)
    got = near.get(near.put([base, base[10:], base[::2]]))
    again = near.put(got)
    assert near.explain(again)["value"]["copied"] == {}
    assert _values.encode(got).size < base.nbytes + SMALL
    assert all(np.array_equal(*both) for both in zip(near.get(again), got, strict=True))


# Arrays that are more, or less, than their memory


def test_repeated_elements_are_stored_once(near: plasmon.Client, reader: plasmon.Client) -> None:
    row = np.arange(1000.0)
    windows = np.lib.stride_tricks.sliding_window_view(row, 100)
    sparse = np.broadcast_to(np.arange(100_000.0)[::100], (500, 1000))
    for array in (
        np.broadcast_to(row, (10_000, 1000)),
        windows,
        sparse,
        np.moveaxis(row.reshape(10, 5, 20), 0, 1),
    ):
        for value in (array, [array]):
            assert _values.encode(value).size < row.nbytes + SMALL
            got = reader.get(near.put(value), timeout=30)
            got = got[0] if isinstance(value, list) else got
            assert got.shape == array.shape
            assert np.array_equal(got, array)
            assert is_in_store(got.ctypes.data)
            assert not got.flags.writeable
    assert near.explain(near.put(windows))["value"] == {"kind": "numpy", "copied": {}}


def test_repeated_arrays_are_sent_without_a_pickle(near: plasmon.Client) -> None:
    array = np.broadcast_to(np.arange(10), (5, 10))
    with near.serve("repeated", {"same": lambda one: one}, values=True):
        assert np.array_equal(near.service("repeated").invoke("same", array), array)


def test_sparse_arrays_are_copied_once_and_read_in_place(
    near: plasmon.Client, reader: plasmon.Client
) -> None:
    matrix = np.arange(1_000_000.0).reshape(1000, 1000)
    value = {"column": matrix[:, 3], "again": matrix[:, 3], "other": matrix[:, 4]}
    assert _values.encode(value).size < 2 * 8000 + SMALL
    oid = near.put(value)
    assert near.explain(oid)["value"]["copied"] == {"an array is not in one piece": 2 * 8000}
    got = reader.get(oid, timeout=30)
    assert all(np.array_equal(got[name], value[name]) for name in value)
    assert all(is_in_store(array.ctypes.data) for array in got.values())
    assert np.shares_memory(got["column"], got["again"])
    assert not np.shares_memory(got["column"], got["other"])


def test_times_are_read_in_place(in_place: Any) -> None:
    times = np.arange(100_000).astype("M8[ms]")
    got = in_place({"times": times, "spans": times - times[0]}, lambda value: value["times"].ctypes.data)
    assert np.array_equal(got["times"], times)
    assert got["spans"].dtype == "m8[ms]"


def test_a_value_that_was_got_can_be_copied_and_pickled(near: plasmon.Client) -> None:
    base = np.arange(1000)
    got = near.get(near.put([base, base[::2]]))
    assert np.array_equal(copy.deepcopy(got)[1], base[::2])


def test_arrays_over_files_are_read_in_place_and_share(
    near: plasmon.Client, reader: plasmon.Client, tmp_path: Path
) -> None:
    whole = np.memmap(tmp_path / "file", np.float64, "w+", shape=(300, 1000))
    whole[:] = np.arange(300_000).reshape(300, 1000)
    for value in (whole, [whole, whole[10:], whole[::2, 5]]):
        assert _values.encode(value).size < whole.nbytes + SMALL
        got = reader.get(near.put(value), timeout=30)
        for left, right in zip(*(v if isinstance(v, list) else [v] for v in (got, value)), strict=True):
            assert type(left) is type(right) is np.memmap
            assert np.array_equal(left, right)
            assert is_in_store(left.ctypes.data)
            assert not left.flags.writeable
    assert np.shares_memory(got[0], got[2])
