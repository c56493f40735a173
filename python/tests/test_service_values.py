"""Tests of services whose functions take and return values of Python: arrays in place, pickles, objects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import plasmon
import pyarrow as pa
import pytest
from conftest import ANTI_HANG
from plasmon import _messages


@pytest.fixture
def serve(near: plasmon.Client) -> Iterator[Callable[..., plasmon.Server]]:
    """Serves values of Python on the first node."""
    made: list[plasmon.Server] = []

    def serve(functions: object, **options: Any) -> plasmon.Server:
        made.append(near.serve("values", functions, values=True, **options))
        return made[-1]

    yield serve
    for server in made:
        server.close()


def values() -> list[Any]:
    table = pa.table({"a": [1, 2, None], "b": ["x", None, "zz"]})
    return [
        None,
        True,
        -(2**70),
        0.1,
        float("inf"),
        "text ä \ud800 \0",
        "",
        b"",
        b"bytes",
        b"b" * 300000,
        [],
        (),
        {},
        [1, [2.5, None], (3, "x")],
        {"a": 1, 2: (b"y", {"z": None}), None: [], (1, 2): 3},
        table,
        table.to_batches()[0],
        {"deep": [table, (table,)]},
    ]


ARRAYS: list[Any] = [
    np.arange(10),
    np.arange(12, dtype="f4").reshape(3, 4),
    np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    np.arange(100)[::7],
    np.zeros((0, 3)),
    np.array(5.5),
    np.array(["a", "bcd"]),
    np.array([(1, 2.0)], dtype=[("x", "i4"), ("y", "f8")]),
    np.random.default_rng(0).random(400_000),
]


def test_values_come_back(serve: Callable[..., plasmon.Server], reader: plasmon.Client) -> None:
    serve({"same": lambda *args: args, "count": lambda *args: len(args)})
    service = reader.service("values", timeout=ANTI_HANG)
    assert service.invoke("same") == ()
    assert service.invoke("count", None, None) == 2
    for value in values():
        [back] = service.invoke("same", value)
        assert type(back) is type(value)
        assert back == value
    assert service.invoke("same", *values()) == tuple(values())
    for array in ARRAYS:
        first, [second] = service.invoke("same", array, [array])
        for back in (first, second):
            assert (back.dtype, back.shape) == (array.dtype, array.shape)
            assert (back == array).all()
            assert not back.flags.writeable or back.nbytes == 0
    for scalar in (np.float64(0.1), np.int8(-3), np.bool_(True), np.datetime64("2024-01-01"), np.str_("x")):
        [back] = service.invoke("same", scalar)
        assert type(back) is type(scalar)
        assert back == scalar
    assert np.isnan(service.invoke("same", float("nan"))[0])


def test_arrays_are_not_copied_where_they_arrive(
    serve: Callable[..., plasmon.Server], near: plasmon.Client
) -> None:
    seen: list[Any] = []

    def twice_of(array: Any) -> Any:
        seen.append(array)
        return array * 2

    serve({"twice": twice_of})
    service = near.service("values")
    array = np.arange(500_000.0)
    for _ in range(2):
        twice = service.invoke("twice", array)
        for arrived in (seen.pop(), twice):
            base = arrived
            while isinstance(base, np.ndarray):
                base = base.base
            assert type(base).__module__ == "plasmon._internal"
        # A received value stays as it was, whatever is called afterwards.
        service.invoke("twice", np.zeros(500_000))
        seen.pop()
        assert (twice == array * 2).all()


class Thing:
    """A value that only a pickle can hold."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_pickles_have_to_be_allowed_by_both(
    serve: Callable[..., plasmon.Server], reader: plasmon.Client
) -> None:
    def thing(given: object = None) -> Thing:
        return Thing(getattr(given, "number", 0) + 1)

    with serve({"thing": thing}):
        service = reader.service("values", timeout=ANTI_HANG)
        with pytest.raises(plasmon.WrongType, match="allow_pickle"):
            service.invoke("thing", Thing(1))
        with pytest.raises(plasmon.CallFailed, match="allow_pickle") as told:
            service.invoke("thing", Thing(1), allow_pickle=True)
        assert told.value.type == "MalformedValue"
        with pytest.raises(plasmon.CallFailed, match="WrongType"):
            service.invoke("thing", allow_pickle=True)
    with serve({"thing": thing}, allow_pickle=True):
        service = reader.service("values", timeout=ANTI_HANG)
        assert service.invoke("thing", Thing(1), allow_pickle=True).number == 2
        assert service.invoke("thing", [{1, 2}, 1j], allow_pickle=True).number == 1
        with pytest.raises(plasmon.MalformedValue, match="allow_pickle"):
            service.invoke("thing")


def test_errors_of_functions_of_values(serve: Callable[..., plasmon.Server], near: plasmon.Client) -> None:
    serve({"divide": lambda a, b: a / b, "set": lambda: {1}, "bad": lambda: 10**5000})
    service = near.service("values")
    assert service.invoke("divide", 1, 4) == 0.25
    with pytest.raises(plasmon.CallFailed, match="division by zero") as told:
        service.invoke("divide", 1, 0)
    assert told.value.type == "ZeroDivisionError"
    for function, args in (("divide", (1,)), ("set", ()), ("bad", ())):
        with pytest.raises(plasmon.CallFailed) as told:
            service.invoke(function, *args)
        assert told.value.type in ("TypeError", "WrongType")
    with pytest.raises(plasmon.CallFailed, match="MalformedValue"):
        service.call("divide", b"no message")
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(plasmon.WrongType):
        service.invoke("divide", loop)


def test_damaged_messages_are_refused() -> None:
    value = (1, {"a": np.arange(9.0)}, pa.table({"s": ["x", "yy"]}), b"bytes", np.float32(1))
    whole = bytes(_messages.pack(value, False, bytearray))
    assert _messages.unpack(memoryview(whole), False, True)[0] == 1
    random = np.random.default_rng(7)
    for _ in range(2000):
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), random.integers(1, 4)):
            damaged[place] = random.integers(0, 256)
        cut = memoryview(damaged)[: random.integers(0, len(whole) + 1)] if random.random() < 0.3 else damaged
        with contextlib.suppress(plasmon.MalformedValue):
            _messages.unpack(memoryview(cut), False, True)
    for length in range(len(whole)):
        try:
            _messages.unpack(memoryview(whole)[:length], False, True)
        except plasmon.MalformedValue:
            continue
        assert length >= len(whole) - 64
    header = b'{"value":' + b"[" * 100_000 + b"]" * 100_000 + b',"parts":[]}'
    deep = _messages.MAGIC + len(header).to_bytes(8, "little") + header
    with pytest.raises(plasmon.MalformedValue):
        _messages.unpack(memoryview(deep), False, True)


class Counter:
    """An object with methods to serve, and others."""

    def __init__(self) -> None:
        self.count = 0

    @plasmon.expose
    def add(self, n: int = 1) -> int:
        self.count += n
        return self.count

    @plasmon.expose
    @staticmethod
    def ping() -> str:
        return "pong"

    @classmethod
    @plasmon.expose
    def name(cls) -> str:
        return cls.__name__

    def hidden(self) -> None:
        raise AssertionError


def test_an_object_is_served(serve: Callable[..., plasmon.Server], reader: plasmon.Client) -> None:
    counter = Counter()
    assert serve(counter).functions == ("add", "name", "ping")
    service = reader.service("values", timeout=ANTI_HANG)
    assert (service.invoke("add"), service.invoke("add", 4), counter.count) == (1, 5, 5)
    assert (service.invoke("ping"), service.invoke("name")) == ("pong", "Counter")
    with pytest.raises(plasmon.InvalidArgument):
        service.invoke("hidden")
