"""Reduction of values to parts: how pickles leave the memory of other libraries in place.

A pickle of protocol 5 refers to memory beside it. NumPy, pandas, PyArrow, xarray and SciPy pickle their
arrays that way, others copy them into the pickle. This module pickles values of those others without a copy:

- types that a program has registered (`register_type`);
- PyTorch's tensors on the CPU, also within a `state_dict` or any other value;
- Polars' frames and series, by way of Arrow;
- arrays that offer DLPack in the memory of the CPU, such as JAX's: they come back by `from_dlpack` of their
  own package, or as NumPy arrays if it has none.

A value that cannot be pickled, but offers Arrow's PyCapsule interface or NumPy's `__array_interface__`, comes
back as an Arrow table or a NumPy array.

Where cloudpickle is installed, functions, and classes of the main program, are pickled by value.

Any thread. The table of registered types only grows.
"""

from __future__ import annotations

import importlib.util
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from functools import cache
from io import BytesIO
from typing import Any, TypeVar

import plasmon.errors

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of a module that makes a value again, and its arguments."""
Reduce = Callable[[Any], Any]
"""Function that reduces a value, or returns `NotImplemented` to have it pickled as usual."""

T = TypeVar("T")

_SMALL_SLICE_BYTES = 4096
"""Memory beside a slice that is stored with it, in bytes."""
_CPU = 1
"""Number of the CPU among DLPack's devices."""

_HAS_CLOUDPICKLE = importlib.util.find_spec("cloudpickle") is not None
"""Whether cloudpickle is installed. Looking later would wait for imports of other threads."""

_registered: dict[type, Reduce] = {}


def register_type(of: type[T], reduce: Callable[[T], Reduced]) -> None:
    """Registers how values of a type are stored without a copy of their memory.

    Values of just this type, not of its subclasses, are stored so by all clients of this process, on their
    own and within other values.

        def reduce(image):
            return restore, (image.mode, pickle.PickleBuffer(image.pixels))

        def restore(mode, pixels):          # `pixels` is a read-only buffer in the memory of the node
            return Image(mode, pixels)

        plasmon.register_type(Image, reduce)

    Args:
        of: The type.
        reduce: Function that takes a value and returns a function and its arguments, which make an equal
            value. The memory of `pickle.PickleBuffer`s, NumPy arrays and other values without copies among
            the arguments is stored beside the pickle, and is read in place. Readers import the function by
            the name of its module; they need not register the type.
    """
    if not isinstance(of, type):
        raise TypeError(f"only types can be registered, not {of!r}")
    _registered[of] = reduce
    _reducer.cache_clear()


class _Copies(threading.local):
    """Copies that the thread made for the value that it is pickling: why, and how many bytes."""

    def __init__(self) -> None:
        self.made: list[tuple[str, int]] = []


_copies = _Copies()


def dumps(
    value: Any, out_of_band: Callable[[pickle.PickleBuffer], bool]
) -> tuple[bytes, list[tuple[str, int]]]:
    """Pickles a value. `out_of_band` is called with memory that can stay where it is.

    Returns:
        The pickle, and the copies that were made beside it: why, and how many bytes.

    Raises:
        Exception: As `pickle.dumps`, if the value cannot be pickled.
    """
    file, outer = BytesIO(), _copies.made
    _copies.made = []
    try:
        _pickler()(file, protocol=5, buffer_callback=out_of_band).dump(value)
        return file.getvalue(), _copies.made
    finally:
        _copies.made = outer


@cache
def _pickler() -> type[pickle.Pickler]:
    """Class of picklers: cloudpickle's where it is installed."""
    base: Any = pickle.Pickler
    if _HAS_CLOUDPICKLE:
        base = importlib.import_module("cloudpickle").Pickler
    usual = getattr(base, "reducer_override", None)

    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            kind: type = type(value)
            reduce = _reducer(kind)
            reduced = NotImplemented if reduce is None else reduce(value)
            if reduced is NotImplemented and usual is not None:
                return usual(self, value)
            return reduced

    return Pickler


@cache
def _reducer(of: type) -> Reduce | None:
    """Function that reduces values of a type; `None` for types that are pickled as usual."""
    if of in _registered:
        return _registered[of]
    package = of.__module__.partition(".")[0]
    if package == "torch":
        return _reduce_tensor if of is sys.modules["torch"].Tensor else None
    if package == "polars":
        polars = sys.modules["polars"]
        return _reduce_polars if of in (polars.DataFrame, polars.Series) else None
    if package == "pyarrow":
        arrow = sys.modules["pyarrow"]
        return _reduce_arrow if of in (arrow.Table, arrow.RecordBatch) else None
    known = [("numpy", "ndarray"), ("torch", "Tensor")]
    if issubclass(of, tuple(getattr(sys.modules.get(module), name, ()) for module, name in known)):
        return None
    if not (hasattr(of, "__dlpack__") and hasattr(of, "__dlpack_device__")):
        return None
    # A class that says how it is pickled keeps its way, unless it is the array of a whole package.
    pickles = (of.__reduce__, of.__reduce_ex__) != (object.__reduce__, object.__reduce_ex__)
    return _reduce_dlpack if hasattr(of, "__array_namespace__") or not pickles else None


# PyTorch


def _reduce_tensor(tensor: Any) -> Any:
    """Takes a dense tensor on the CPU apart. PyTorch pickles all others itself."""
    torch = sys.modules["torch"]
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not plain or tensor.is_conj() or tensor.is_neg() or tensor._backward_hooks or tensor.__dict__:
        return NotImplemented
    if tensor.requires_grad and not tensor.is_leaf:
        return NotImplemented
    if not tensor.is_contiguous():
        _copies.made.append(("a tensor is not contiguous", tensor.nelement() * tensor.element_size()))
    elements = tensor.detach().contiguous()
    memory = elements.reshape(-1).view(torch.uint8).numpy()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return _tensor, (pickle.PickleBuffer(memory), dtype, tuple(tensor.shape), tensor.requires_grad)


def _tensor(memory: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    """Makes a tensor over memory."""
    torch = importlib.import_module("torch")
    if memoryview(memory).nbytes:
        flat = torch.from_numpy(_writable(memory, "a tensor of PyTorch", "clone() it"))
        tensor = flat.view(getattr(torch, dtype)).reshape(shape)
    else:
        tensor = torch.empty(shape, dtype=getattr(torch, dtype))
    return tensor.requires_grad_() if requires_grad else tensor


# Arrow and Polars


def _reduce_arrow(data: Any) -> Any:
    """Copies a slice, of which PyArrow would pickle the whole memory."""
    if data.get_total_buffer_size() <= 2 * data.nbytes + _SMALL_SLICE_BYTES:
        return NotImplemented
    _copies.made.append(("a slice of Arrow data was cut out", data.nbytes))
    arrow = sys.modules["pyarrow"]
    sink = arrow.BufferOutputStream()
    with arrow.ipc.new_stream(sink, data.schema) as writer:
        writer.write(data)
    return read_stream, (sink.getvalue(), isinstance(data, arrow.Table))


def read_stream(stream: Any, is_table: bool) -> Any:
    """Table or record batch over the memory of a stream of Arrow IPC."""
    with importlib.import_module("pyarrow").ipc.open_stream(stream) as reader:
        return reader.read_all() if is_table else reader.read_next_batch()


def _reduce_polars(value: Any) -> Any:
    """Takes a frame or a series apart, as Arrow data. Without PyArrow, Polars pickles both itself."""
    arrow = to_arrow(value)
    return NotImplemented if arrow is None else (from_arrow, arrow)


def to_arrow(value: Any) -> tuple[Any, bool] | None:
    """Arrow table with the memory of a frame of Polars, or of a series, and whether it is a series.

    `None` for other values, and where there is no PyArrow.
    """
    polars = sys.modules.get("polars")
    frame, series = getattr(polars, "DataFrame", None), getattr(polars, "Series", None)
    if type(value) not in (frame, series) or importlib.util.find_spec("pyarrow") is None:
        return None
    is_series = type(value) is series
    whole = value.to_frame() if is_series else value
    return whole.to_arrow(compat_level=polars.CompatLevel.newest()), is_series  # type: ignore[union-attr]


def from_arrow(arrow: Any, is_series: bool) -> Any:
    """Frame of Polars over Arrow data, or its only column."""
    frame = importlib.import_module("polars").from_arrow(arrow, rechunk=False)
    return frame.to_series() if is_series else frame


# DLPack and other interfaces


def _reduce_dlpack(array: Any) -> Any:
    """Takes an array apart that offers DLPack, if it lies in the memory of the CPU."""
    if array.__dlpack_device__()[0] != _CPU:
        return NotImplemented
    import numpy as np

    try:
        elements = np.from_dlpack(array)
    except (BufferError, TypeError, ValueError, RuntimeError):  # A type that NumPy does not have.
        return NotImplemented
    return _from_dlpack, (_namespace(array), elements)


def _namespace(array: Any) -> str | None:
    """Name of the module that makes arrays of this type by `from_dlpack`, if there is one."""
    if hasattr(array, "__array_namespace__"):
        name: str = array.__array_namespace__().__name__
        return name
    package = type(array).__module__.partition(".")[0]
    return package if hasattr(sys.modules.get(package), "from_dlpack") else None


def _from_dlpack(namespace: str | None, elements: Any) -> Any:
    """Array over the memory of a NumPy array."""
    if namespace is None:
        return elements
    make = importlib.import_module(namespace).from_dlpack
    try:
        return make(elements)
    except (BufferError, TypeError, RuntimeError):  # The package, or NumPy, does not export read-only arrays.
        flat = _writable(memoryview(elements.reshape(-1, order="A")).cast("B"), "an array", "copy it")
        return make(flat.view(elements.dtype).reshape(elements.shape))


def other_form(value: Any) -> Any | None:
    """Arrow table or NumPy array with the memory of a value that cannot be pickled, if it offers one."""
    if hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__"):
        return importlib.import_module("pyarrow").table(value)
    if hasattr(value, "__array_interface__"):
        return importlib.import_module("numpy").asarray(value)
    return None


class _Alias:
    """Memory that NumPy takes for writable, for packages that know no read-only memory."""

    def __init__(self, memory: Any, address: int, length: int) -> None:
        self._memory = memory
        self.__array_interface__ = {
            "version": 3,
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, False),
        }


def _writable(memory: Any, what: str, remedy: str) -> Any:
    """Array of bytes over memory. Warns if writing to it would end the process."""
    import numpy as np

    elements = np.frombuffer(memory, np.uint8)
    if elements.flags.writeable:
        return elements
    warnings.warn(
        f"{what} lies in read-only memory: a process that writes to it ends with SIGSEGV; {remedy} first",
        plasmon.errors.ReadOnlyMemory,
        stacklevel=2,
    )
    return np.asarray(_Alias(elements, elements.ctypes.data, elements.nbytes))
