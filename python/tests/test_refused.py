"""Values that cannot be stored are refused at the put, with the part that is at fault."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plasmon
import plasmon.plasma
import pytest


def generator() -> Iterator[int]:
    yield 1


@dataclass
class Machine:
    """Has a part that cannot be stored."""

    name: str = "machine"
    lock: Any = field(default_factory=threading.Lock)


class Odd:
    """Raises what nobody expects."""

    def __reduce__(self) -> Any:
        raise LookupError("an odd value\nof two lines \x1b[31m")


def deep() -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


VALUES: dict[str, tuple[Callable[[], Any], str]] = {
    "a generator": (generator, "a value of type generator cannot be stored: cannot pickle 'generator'"),
    "a lock": (threading.Lock, "a value of type _thread.lock cannot be stored"),
    "an item": (lambda: [1, {"a": (2, generator())}], r"value\[1\]\['a'\]\[1\], of type generator, cannot"),
    "a key": (
        lambda: {(1, threading.Lock()): 2},
        r"value\[key \(1, <unlocked .*\)\]\[1\], of type _thread.lock",
    ),
    "an element": (lambda: {1, generator()}, r"value\[element <generator .*>\], of type generator"),
    "an attribute": (lambda: [Machine()], r"value\[0\]\.lock, of type _thread\.lock, cannot be stored"),
    "an array": (lambda: np.array([1, generator()], object), r"value\.flat\[1\], of type generator"),
    "an odd value": (
        lambda: [Odd()],
        r"value\[0\], of type test_refused\.Odd, cannot be stored: .*an odd value",
    ),
    "a deep one": (deep, "a value of type list cannot be stored: .*recursion"),
    "a long one": (
        lambda: [*range(20_000), generator()],
        "a value of type list cannot be stored: cannot pickle",
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_the_part_is_named(near: plasmon.Client, name: str) -> None:
    make, text = VALUES[name]
    puts: list[Callable[[], object]] = [
        lambda: near.put(make()),
        lambda: near.put(make(), name="refused"),
        lambda: near.put_many([b"first", make()], ids=["first", "refused"]),
        lambda: near.put_from(make(), id="refused"),
        lambda: near.mapping().update(refused=make()),
    ]
    for put in puts:
        with pytest.raises(plasmon.WrongType, match=text) as told:
            put()
        assert all(line.isprintable() for line in str(told.value).splitlines())
        assert isinstance(told.value.__cause__, BaseException)
    assert not near.contains("refused")
    assert near.list() == []


def test_plasma_refuses_it_as_a_type_error(near: plasmon.Client) -> None:
    client = plasmon.plasma.connect(near.socket)
    with pytest.raises(TypeError, match=r"value\[0\], of type generator"):
        client.put([generator()])
    client.disconnect()


def test_columns_are_named(near: plasmon.Client) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", Machine()]}, index=["one", "two"])
    with pytest.raises(plasmon.WrongType, match=r"value\[column 'b'\]\[row 'two'\]\.lock, of type _thread"):
        near.put(frame)
    with pytest.raises(plasmon.WrongType, match=r"value\['frames'\]\[0\]\[row 'two'\]\.lock"):
        near.put({"frames": [frame["b"]]})


POLARS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "objects": (lambda pl: pl.Series("o", [Machine(), None], pl.Object), "Object"),
    "objects in lists": (lambda pl: pl.Series("o", [None], pl.List(pl.Object)), r"List\(Object\)"),
    "objects in arrays": (lambda pl: pl.Series("o", [None], pl.Array(pl.Object, 1)), r"Array\(Object"),
    "empty arrays": (lambda pl: pl.Series("o", [[]], pl.Array(pl.Int8, 0)), r"Array\(Int8, shape=\(0,\)\)"),
}


# Polars panics when such a series is dropped.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", POLARS)
def test_columns_of_polars_that_nobody_keeps(near: plasmon.Client, name: str) -> None:
    pl = pytest.importorskip("polars")
    make, dtype = POLARS[name]
    series = make(pl)
    frame = pl.DataFrame([pl.Series("k", [1] * len(series)), series])
    for value, text in (
        (frame, "column 'o' of Polars of type"),
        (series, "a series of Polars of type"),
        ([frame], r"value\[0\]: column 'o' of Polars of type"),
        ({"f": (1, frame)}, r"value\['f'\]\[1\]: column 'o'"),
        ({"s": series}, r"value\['s'\]: a series"),
    ):
        with pytest.raises(plasmon.WrongType, match=f"{text}.*{dtype}|{text}"):
            near.put(value)
    assert near.list() == []


def test_columns_of_polars_that_arrow_does_not_keep(near: plasmon.Client, reader: plasmon.Client) -> None:
    pl = pytest.importorskip("polars")
    wide = pl.Series("wide", [1, -(2**100), None], pl.Int128)
    for frame in (
        pl.DataFrame([wide, pl.Series("a", [1, 2, 3])]),
        pl.DataFrame({"with\0": [1]}),
        pl.DataFrame({"a": [{"with\0": 1}]}),
        pl.DataFrame([pl.Series("l", [[1, 2**100]], pl.List(pl.Int128))]),
    ):
        for value in (frame, [frame], frame.to_series()):
            got = reader.get(near.put(value), timeout=30)
            left, right = (got[0], value[0]) if isinstance(value, list) else (got, value)
            assert left.equals(right)
            assert getattr(left, "schema", None) == getattr(right, "schema", None)
