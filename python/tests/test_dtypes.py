"""Columns of every type that the installed Polars, pandas and PyArrow have, nested and cut.

Each comes back as it was, or is refused at the put by its name.

Types are asked of the libraries, so that a new one fails a test until it has values here. They are drawn at
random, the same ones each time. `PLASMON_PYTHON_LONG=1` draws many more.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import plasmon
import pyarrow as pa
import pytest
from drawing import drawn
from hypothesis import given
from hypothesis import strategies as st

pl = pytest.importorskip("polars")
pd = pytest.importorskip("pandas")


def leaves(of: Any) -> list[Any]:
    """Classes without subclasses."""
    return [leaf for one in of.__subclasses__() for leaf in leaves(one)] or [of]


class Thing:
    """Object that only Python knows."""

    def __init__(self, number: int) -> None:
        self.number = number


# Polars

NAMES = st.sampled_from(["a", "b", "", "é\x1b", "a\0b"])
ABSTRACT = {"Unknown"}
"""Classes of Polars that no column is of."""

PLAIN: dict[str, Callable[[int], Any]] = {
    **{f"{sign}Int{8 << power}": int for sign in ("", "U") for power in range(5)},
    **dict.fromkeys(["Float16", "Float32", "Float64"], float),
    "Boolean": lambda number: number % 2 == 0,
    "String": lambda number: "ü" * (number % 20),
    "Binary": lambda number: b"\0" * (number % 20),
    "Date": lambda number: datetime.date(2026, 1, 1 + number % 28),
    "Time": lambda number: datetime.time(number % 24, 1, 2, 3),
    "Null": lambda number: None,
    "Object": Thing,
}
"""Elements of types without parameters."""
PARAMETRIC = {"Decimal", "Datetime", "Duration", "Enum", "Categorical", "Extension"}
NESTED = {"List", "Array", "Struct", "Map"}


def polars_dtypes(depth: int = 2) -> st.SearchStrategy[Any]:
    """Types of Polars, with parameters, and their elements."""
    known = {leaf.__name__ for leaf in leaves(pl.DataType)}
    makers = [polars_dtype(name) for name in sorted(known & (PLAIN.keys() | PARAMETRIC))]
    if depth:
        makers += [polars_nested(name, depth) for name in sorted(known & NESTED)]
    return st.one_of(makers)


def test_every_type_of_polars_has_values() -> None:
    known = {leaf.__name__ for leaf in leaves(pl.DataType)}
    assert known - ABSTRACT <= PLAIN.keys() | PARAMETRIC | NESTED, "a type that has no values here"


@st.composite
def polars_dtype(draw: st.DrawFn, name: str) -> tuple[Any, Callable[[int], Any]]:
    if name in PLAIN:
        return getattr(pl, name), PLAIN[name]
    if name == "Decimal":
        return pl.Decimal(draw(st.integers(5, 38)), 2), lambda number: Decimal(number) / 4
    if name == "Datetime":
        unit = draw(st.sampled_from(["ms", "us", "ns"]))
        zone = draw(st.sampled_from([None, "UTC", "Europe/Berlin"]))
        start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC if zone else None)
        return pl.Datetime(unit, zone), lambda number: start + datetime.timedelta(hours=number)
    if name == "Duration":
        unit = draw(st.sampled_from(["ms", "us", "ns"]))
        return pl.Duration(unit), lambda number: datetime.timedelta(seconds=number)
    if name == "Enum":
        return pl.Enum(["x", "y\0", ""]), lambda number: ["x", "y\0", ""][number % 3]
    if name == "Categorical":
        kind = draw(st.sampled_from([pl.Categorical(), pl.Categorical(pl.Categories("plasmon.test"))]))
        return kind, lambda number: f"category {number % 5}"
    return pl.Extension("plasmon.test", pl.Int16, "parameter"), int


@st.composite
def polars_nested(draw: st.DrawFn, name: str, depth: int) -> tuple[Any, Callable[[int], Any]]:
    inner, element = draw(polars_dtypes(depth - 1))
    if name == "List":
        return pl.List(inner), lambda number: [element(number)] * (number % 4)
    if name == "Array":
        width = draw(st.integers(0, 3))
        return pl.Array(inner, width), lambda number: [element(number)] * width
    if name == "Map":
        return pl.Map(pl.String, inner), lambda number: {str(key): element(key) for key in range(number % 3)}
    fields = draw(st.lists(NAMES, max_size=2, unique=True))
    return (
        pl.Struct([pl.Field(field, inner) for field in fields]),
        lambda number: {field: element(number) for field in fields},
    )


@st.composite
def polars_frames(draw: st.DrawFn) -> Any:
    length = draw(st.integers(0, 6))
    columns = []
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        dtype, element = draw(polars_dtypes())
        numbers = draw(st.lists(st.one_of(st.none(), st.integers(0, 100)), min_size=length, max_size=length))
        try:
            values = [None if number is None else element(number) for number in numbers]
            if isinstance(dtype, pl.Extension):
                columns.append(pl.Series(name, values, pl.Int16).ext.to(dtype))
            else:
                columns.append(pl.Series(name, values, dtype))
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError):
            continue  # A type, or a value of it, that Polars does not make.
    frame = pl.DataFrame(columns)
    if draw(st.booleans()) and length:
        start = draw(st.integers(0, length))
        frame = frame.slice(start, draw(st.integers(0, length)))
    if draw(st.booleans()) and not any(has_object(dtype) for dtype in frame.dtypes):
        frame = pl.concat([frame, frame], rechunk=False)
    return frame


def has_object(dtype: Any) -> bool:
    return "Object" in str(dtype)


def cannot_be_kept(dtype: Any) -> bool:
    """Whether neither Arrow nor Polars gives a type back."""
    return has_object(dtype) or re.search(r"shape=\([^)]*\b0\b", str(dtype)) is not None


def same_frame(got: Any, put: Any) -> None:
    assert type(got) is type(put)
    if isinstance(put, pl.Series):
        got, put = got.to_frame(), put.to_frame()
    assert got.schema == put.schema
    assert got.shape == put.shape
    for name in put.columns:
        assert got[name].to_list() == put[name].to_list()


@given(frame=polars_frames())
@drawn(150)
def test_frames_of_polars(near_far: tuple[plasmon.Client, plasmon.Client], frame: Any) -> None:
    near, far = near_far
    refused = [name for name, dtype in frame.schema.items() if cannot_be_kept(dtype)]
    for value in (frame, *frame.get_columns(), [frame], {"frames": (frame.get_columns(),)}):
        is_series = isinstance(value, pl.Series)
        if refused and (not is_series or value.name in refused):
            with pytest.raises(plasmon.WrongType) as told:
                near.put(value)
            named = repr(refused[0]) in str(told.value) or "series" in str(told.value)
            assert named, told.value
            continue
        got = far.get(near.put(value), 30)
        if isinstance(value, list):
            same_frame(got[0], frame)
        elif isinstance(value, dict):
            for left, right in zip(got["frames"][0], frame.get_columns(), strict=True):
                same_frame(left, right)
        else:
            same_frame(got, value)


@pytest.fixture(scope="module")
def near_far(cluster: plasmon.LocalCluster) -> tuple[plasmon.Client, plasmon.Client]:
    return cluster.client(0), cluster.client(1)


# pandas

DAYS = pd.date_range("2026-01-01", periods=6)
PANDAS: dict[str, Callable[[], Any]] = {
    "CategoricalDtype": lambda: pd.Categorical(
        ["x", None, "y", "x", "y", "x"], ["y", "x", "z"], ordered=True
    ),
    "DatetimeTZDtype": lambda: DAYS.tz_localize("Europe/Berlin"),
    "PeriodDtype": lambda: DAYS.to_period("D"),
    "IntervalDtype": lambda: pd.interval_range(0, 6, closed="both"),
    "SparseDtype": lambda: pd.arrays.SparseArray([0, 0, 1.5, 0, float("nan"), 0], fill_value=0),
    "StringDtype": lambda: pd.array(["ä", None, "", "b", "c", "d" * 40], pd.StringDtype("pyarrow")),
    "BooleanDtype": lambda: pd.array([True, None, False, True, None, True], "boolean"),
    "NumpyEADtype": lambda: pd.arrays.NumpyExtensionArray(np.arange(6)),
}
"""Six elements of each type of pandas' own."""


def pandas_columns() -> dict[str, Any]:
    """Six elements of every type."""
    columns: dict[str, Any] = {}
    for dtype in leaves(pd.api.extensions.ExtensionDtype):
        name = dtype.__name__
        if not dtype.__module__.startswith("pandas") or name == "ArrowDtype":
            continue
        if name in PANDAS:
            columns[name] = PANDAS[name]()
        else:  # Numbers with nulls.
            columns[name] = pd.array([1, None, 3, 4, 5, 6], dtype())
    columns["strings of Python"] = pd.array(["a", None, "b", "", "c", "d"], pd.StringDtype("python"))
    for name in sorted({np.dtype(kind).name for kind in np.sctypeDict.values()} - {"void"}):
        if name in ("datetime64", "timedelta64"):
            columns[name] = np.arange(6).astype(f"{name}[ms]")
        else:
            columns[name] = np.arange(6).astype(name)
    for make in ARROW.values():
        array = make()
        columns[f"arrow {array.type}"] = pd.arrays.ArrowExtensionArray(array)
    return columns


def series_of(columns: dict[str, Any], cut: slice) -> dict[str, Any]:
    """Series of the columns, of those types of Arrow that pandas can use."""
    made = {}
    for name, column in columns.items():
        try:
            _ = column.dtype.type
            made[name] = pd.Series(column, name=name)[cut]
        except NotImplementedError:
            continue
    assert len(made) > len(columns) - 10
    return made


@pytest.mark.parametrize("cut", [slice(None), slice(1, 4), slice(None, None, 2)])
def test_frames_of_pandas(near_far: tuple[plasmon.Client, plasmon.Client], cut: slice) -> None:
    near, far = near_far
    columns = series_of(pandas_columns(), cut)
    for series in columns.values():
        pd.testing.assert_series_equal(far.get(near.put(series), 30), series)
        frame = pd.DataFrame({"a": series, "b": 1})
        pd.testing.assert_frame_equal(far.get(near.put({"frame": [frame]}), 30)["frame"][0], frame)
    whole = pd.DataFrame(columns)
    pd.testing.assert_frame_equal(far.get(near.put(whole), 30), whole)


INDICES = [
    pd.RangeIndex(2, 8),
    DAYS,
    DAYS.tz_localize("UTC"),
    pd.MultiIndex.from_product([["a", "b"], [1, 2, 3]], names=["x", None]),
    pd.CategoricalIndex(list("abcabc")),
    pd.timedelta_range("1h", periods=6),
    pd.Index([1, "b", None, 2.5, (1,), b"x"], dtype=object),
]


@pytest.mark.parametrize("index", INDICES, ids=lambda index: type(index).__name__)
def test_indices_of_pandas(near_far: tuple[plasmon.Client, plasmon.Client], index: Any) -> None:
    near, far = near_far
    frame = pd.DataFrame({"a": range(6), ("b", 1): list("uvwxyz")}, index=index)
    for value in (frame, frame[2:5]):
        pd.testing.assert_frame_equal(far.get(near.put(value), 30), value)


# Arrow

_TEXTS = ["ä", None, "", "b", "a text that is not within its view", "d"]
_DAYS = [datetime.date(2026, 1, day) for day in range(1, 7)]
ARROW: dict[str, Callable[[], Any]] = {
    "NA": lambda: pa.nulls(6),
    "BOOL": lambda: pa.array([True, None, False, True, None, True]),
    **{
        f"{sign}INT{bits}": partial(
            pa.array, [1, None, 3, 4, 5, 6], getattr(pa, f"{sign.lower()}int{bits}")()
        )
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
    "HALF_FLOAT": lambda: pa.array(np.arange(6, dtype="f2")),
    "FLOAT": lambda: pa.array([1, None, 3, 4, 5, 6], pa.float32()),
    "DOUBLE": lambda: pa.array([1, None, 3, 4, 5, 6], pa.float64()),
    "STRING": lambda: pa.array(_TEXTS, pa.string()),
    "LARGE_STRING": lambda: pa.array(_TEXTS, pa.large_string()),
    "STRING_VIEW": lambda: pa.array(_TEXTS, pa.string_view()),
    "BINARY": lambda: pa.array([b"a", None, b"", b"b", b"c" * 40, b"d"], pa.binary()),
    "LARGE_BINARY": lambda: pa.array([b"a", None, b"", b"b", b"c" * 40, b"d"], pa.large_binary()),
    "BINARY_VIEW": lambda: pa.array([b"a", None, b"", b"b", b"c" * 40, b"d"], pa.binary_view()),
    "FIXED_SIZE_BINARY": lambda: pa.array([b"abc"] * 5 + [None], pa.binary(3)),
    "DATE32": lambda: pa.array(_DAYS, pa.date32()),
    "DATE64": lambda: pa.array(_DAYS, pa.date64()),
    "TIME32": lambda: pa.array(range(6), pa.time32("ms")),
    "TIME64": lambda: pa.array(range(6), pa.time64("ns")),
    "TIMESTAMP": lambda: pa.array(range(6), pa.timestamp("ns", "Europe/Berlin")),
    "DURATION": lambda: pa.array(range(6), pa.duration("us")),
    "INTERVAL_MONTH_DAY_NANO": lambda: pa.array([(1, 2, 3)] * 6, pa.month_day_nano_interval()),
    **{
        f"DECIMAL{bits}": partial(pa.array, [Decimal("1.25")] * 6, getattr(pa, f"decimal{bits}")(7, 2))
        for bits in (32, 64, 128, 256)
    },
    "LIST": lambda: pa.array([[1], None, [], [2, 3], [4], [5]], pa.list_(pa.int32())),
    "LARGE_LIST": lambda: pa.array([[1], None, [], [2, 3], [4], [5]], pa.large_list(pa.int32())),
    "LIST_VIEW": lambda: pa.array([[1], None, [], [2, 3], [4], [5]], pa.list_view(pa.int32())),
    "LARGE_LIST_VIEW": lambda: pa.array(
        [["a"], None, [], ["b"], ["c"], ["d"]], pa.large_list_view(pa.string())
    ),
    "FIXED_SIZE_LIST": lambda: pa.array([[1, 2], None, [3, 4]] * 2, pa.list_(pa.int8(), 2)),
    "STRUCT": lambda: pa.array([{"a": 1, "b": ["x"]}, None, {"a": 2, "b": None}] * 2),
    "MAP": lambda: pa.array([[("a", 1)], None, []] * 2, pa.map_(pa.string(), pa.int64())),
    "DICTIONARY": lambda: pa.array(["x", None, "y", "x", "y", "x"]).dictionary_encode(),
    "RUN_END_ENCODED": lambda: pa.RunEndEncodedArray.from_arrays(
        pa.array([2, 3, 6], pa.int32()), pa.array(["a", None, "b"])
    ),
    "SPARSE_UNION": lambda: pa.UnionArray.from_sparse(
        pa.array([0, 1] * 3, pa.int8()), [pa.array(range(6)), pa.array(list("abcdef"))]
    ),
    "DENSE_UNION": lambda: pa.UnionArray.from_dense(
        pa.array([0, 1] * 3, pa.int8()),
        pa.array([0, 0, 1, 1, 2, 2], pa.int32()),
        [pa.array(range(3)), pa.array(list("abc"))],
    ),
}
"""Six elements of each type of Arrow."""
UNMADE = {"INTERVAL_MONTHS", "INTERVAL_DAY_TIME"}
"""Types that PyArrow knows and does not make."""


def test_every_type_of_arrow(near_far: tuple[plasmon.Client, plasmon.Client]) -> None:
    near, far = near_far
    known = {name.removeprefix("Type_") for name in dir(pa.lib) if name.startswith("Type_")}
    assert known - UNMADE == set(ARROW), "a type that has no values here"
    for make in ARROW.values():
        array = make()
        nested = pa.StructArray.from_arrays([array, pa.array([[one] for one in range(6)])], ["a", "b"])
        for one in (array, nested, pa.ListArray.from_arrays([0, 1, 1, 6], nested)):
            for start in range(len(one) + 1):
                cut = one.slice(start, 3)
                for value in (cut, pa.chunked_array([cut, one]), pa.table({"c": cut}), [cut, one]):
                    got = far.get(near.put(value), 30)
                    for left, right in zip(
                        *(v if isinstance(v, list) else [v] for v in (got, value)), strict=True
                    ):
                        left.validate(full=True)
                        assert left.equals(right)
