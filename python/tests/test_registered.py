"""Values of types that say themselves how they are stored, and of packages that offer an interface."""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import plasmon
import pytest
from plasmon import _reduction, _values


class Image:
    """Has memory that pickle does not know."""

    def __init__(self, mode: str, pixels: Any) -> None:
        self.mode = mode
        self.pixels = pixels

    def __reduce__(self) -> Any:
        raise TypeError("an image cannot be pickled")


def reduce_image(image: Image) -> Any:
    return restore_image, (image.mode, pickle.PickleBuffer(image.pixels))


def restore_image(mode: str, pixels: Any) -> Image:
    return Image(mode, pixels)


@pytest.fixture
def _registered() -> Iterator[None]:
    plasmon.register_type(Image, reduce_image)
    yield
    del _reduction._registered[Image]
    _reduction._reducer.cache_clear()


@pytest.mark.usefixtures("_registered")
def test_a_registered_type_is_stored_without_a_copy(near: plasmon.Client, reader: plasmon.Client) -> None:
    pixels = np.random.default_rng(1).bytes(1 << 20)
    image = Image("RGB", bytearray(pixels))
    (_, pickled), *_ = _values.encode([image]).parts
    assert memoryview(pickled).nbytes < 1000
    (got,) = reader.get(near.put([image]), timeout=30)
    assert (type(got), got.mode, bytes(got.pixels)) == (Image, "RGB", pixels)
    assert memoryview(got.pixels).readonly


def test_only_types_are_registered() -> None:
    with pytest.raises(plasmon.WrongType, match="only types can be registered"):
        plasmon.register_type(3, reduce_image)  # type: ignore[arg-type]


def test_what_cannot_be_pickled_is_refused_as_pickle_refuses_it(near: plasmon.Client) -> None:
    with pytest.raises(plasmon.WrongType, match="an image cannot be pickled"):
        near.put(Image("L", b""))


class Foreign:
    """An array in foreign memory, which only its interface tells of."""

    def __init__(self, length: int) -> None:
        self._memory = ctypes.create_string_buffer(bytes(range(length)), length)
        self._pointer = ctypes.pointer(self._memory)  # Cannot be pickled.

    @property
    def __array_interface__(self) -> dict[str, Any]:
        data = (ctypes.addressof(self._memory), False)
        return {"version": 3, "shape": (len(self._memory),), "typestr": "|u1", "data": data}


def test_an_array_interface_comes_back_as_an_array(near: plasmon.Client, reader: plasmon.Client) -> None:
    got = reader.get(near.put(Foreign(100)), timeout=30)
    assert type(got) is np.ndarray
    assert got.tolist() == list(range(100))


class Stream:
    """An Arrow table that only its capsule tells of."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __reduce__(self) -> Any:
        raise TypeError("a stream cannot be pickled")

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(schema)


def test_an_arrow_capsule_comes_back_as_a_table(near: plasmon.Client, reader: plasmon.Client) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"a": [1, 2, 3]})
    assert reader.get(near.put(Stream(table)), timeout=30).equals(table)


class Tensor:
    """An array of a package without `from_dlpack`."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._array.__dlpack_device__()
        return device


def test_dlpack_comes_back_as_an_array(near: plasmon.Client, reader: plasmon.Client) -> None:
    array = np.random.default_rng(1).random((100, 200))
    tensor = Tensor(array)
    (_, pickled), *_ = _values.encode({"tensor": tensor}).parts
    assert memoryview(pickled).nbytes < 1000
    got = reader.get(near.put({"tensor": tensor}), timeout=30)["tensor"]
    assert type(got) is np.ndarray
    assert np.array_equal(got, array)


def test_explain_tells_what_was_copied_and_why(near: plasmon.Client) -> None:
    def value(put: Any) -> Any:
        return near.explain(near.put(put))["value"]

    array = np.zeros((200, 100))
    assert value(array) == value(array.T) == {"kind": "numpy", "copied": {}}
    assert value(array[::2]) == {"kind": "numpy", "copied": {"an array is not in one piece": 80_000}}
    assert value({"array": array}) == {"kind": "pickle", "copied": {}}
    within = value([b"x" * 100_000])
    assert next(iter(within["copied"].values())) >= 100_000
    assert value(b"plain") is None
    assert near.explain("nothing of this name")["value"] is None
