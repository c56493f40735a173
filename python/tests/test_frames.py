"""Tests of values of Polars, pandas, xarray and SciPy, which are read without a copy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import plasmon
import pyarrow as pa
import pytest
from conftest import ANTI_HANG
from plasmon import _values

N = 200_000


def columns() -> dict[str, Any]:
    texts = [f"text number {number}, longer than what Polars keeps in place" for number in range(1000)]
    return {"a": np.arange(float(N)), "s": [texts[number % 1000] for number in range(N)]}


def test_polars(in_place: Any) -> None:
    pl = pytest.importorskip("polars")

    def address(frame: Any) -> int:
        number: int = frame["a"].to_numpy().ctypes.data
        return number

    frame = pl.DataFrame(columns())
    assert in_place(frame, address).equals(frame)
    assert in_place({"frame": frame}, lambda value: address(value["frame"]))["frame"].equals(frame)
    series = frame["a"]
    assert in_place(series, lambda series: series.to_numpy().ctypes.data).equals(series)


def test_other_values_of_polars(near: plasmon.Client, reader: plasmon.Client) -> None:
    pl = pytest.importorskip("polars")
    frames = [
        pl.DataFrame(),
        pl.DataFrame({"a": pl.Series([], dtype=pl.Int8)}),
        pl.DataFrame({"c": pl.Series(["x", "y", None], dtype=pl.Categorical), "l": [[1], [], [2, 3]]}),
        pl.DataFrame({"d": pl.Series([None, 3], dtype=pl.Datetime("us", "UTC")), "n": [None, None]}),
    ]
    for frame in frames:
        got = reader.get(near.put(frame), timeout=30)
        assert got.schema == frame.schema
        assert got.equals(frame)
    named = pl.Series("name", [1, 2])
    assert reader.get(near.put(named), timeout=30).name == "name"
    lazy = reader.get(near.put(frames[2].lazy()), timeout=30)
    assert lazy.collect().equals(frames[2])


def test_copies_of_frames_can_be_written_to(near: plasmon.Client) -> None:
    pd = pytest.importorskip("pandas")
    xarray = pytest.importorskip("xarray")
    frame = pd.DataFrame({"a": np.arange(5.0), "b": np.arange(5), "s": list("abcde")})
    oid = near.put({"frame": frame, "data": xarray.DataArray(np.arange(4))})
    got = near.get(oid, copy=True)
    got["frame"].loc[1, "a"] = 7
    got["frame"].loc[0, "b"] = 9
    got["data"][2] = 5
    assert got["frame"]["a"].tolist() == [0, 7, 2, 3, 4]
    assert got["frame"]["b"].tolist() == [9, 1, 2, 3, 4]
    assert got["data"].values.tolist() == [0, 1, 5, 3]
    assert near.get(oid)["frame"].equals(frame)


def test_pandas(in_place: Any) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(columns())
    got = in_place(frame, lambda frame: frame["a"].to_numpy().ctypes.data)
    pd.testing.assert_frame_equal(got, frame)
    with pytest.raises(ValueError, match="read-only"):
        got["a"].to_numpy()[0] = 1
    arrow = frame.convert_dtypes(dtype_backend="pyarrow")
    got = in_place(arrow, lambda frame: frame["a"].array.__arrow_array__().chunk(0).buffers()[1].address)
    pd.testing.assert_frame_equal(got, arrow)


def test_xarray(in_place: Any) -> None:
    xr = pytest.importorskip("xarray")
    dataset = xr.Dataset(
        {"a": (("x", "y"), np.random.default_rng(1).random((100, 200)))}, attrs={"unit": "K"}
    )
    got = in_place(dataset, lambda dataset: dataset["a"].values.ctypes.data)
    xr.testing.assert_identical(got, dataset)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr"])
def test_scipy_sparse(in_place: Any, form: str) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.random(300, 300, 0.1, format=form, random_state=1)
    got = in_place(matrix, lambda matrix: matrix.data.ctypes.data)
    assert (got != matrix).nnz == 0
    with pytest.raises(ValueError, match="read-only"):
        got.data[0] = 1


def test_a_slice_within_a_value_does_not_bring_its_whole_table(
    near: plasmon.Client, reader: plasmon.Client
) -> None:
    table = pa.table(columns())
    value = {"table": table.slice(5, 10), "batch": table.to_batches()[0].slice(7, 3)}
    assert _values.encode(value).size < 100_000
    got = reader.get(near.put(value), timeout=30)
    assert got["table"].equals(value["table"])
    assert got["batch"].equals(value["batch"])


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_the_command_line_writes_frames_as_tables(near: plasmon.Client, library: str) -> None:
    frames = pytest.importorskip(library)
    near.put(frames.DataFrame({"number": [1, 2]}), name="frame")
    # `plasmon get --as csv` runs this with the Python beside it, which may not have the library.
    options = json.dumps({"as": "csv", "private": False, "timeout": 30, "verify": False})
    written = subprocess.run(
        [sys.executable, "-m", "plasmon._files", "get", options, "--", "frame"],
        env={**os.environ, "PLASMON_SOCKET": near.socket},
        capture_output=True,
        timeout=ANTI_HANG,
        check=False,
    )
    assert (written.returncode, written.stdout.splitlines()) == (0, [b'"number"', b"1", b"2"]), written.stderr
