"""Reduction of values to parts: how pickles leave the memory of other libraries in place.

A pickle of protocol 5 refers to memory beside it. NumPy, pandas, PyArrow, xarray and SciPy pickle their
arrays that way, others copy them into the pickle. This module pickles values of those others without a copy:

- types that a program has registered (`register_type`);
- PyTorch's tensors on the CPU, also within a `state_dict` or any other value;
- NumPy's arrays that do not lie in one piece, or whose elements are times (`_memory.py`);
- Arrow's arrays, cut to what they show, and Polars' frames and series, by way of Arrow (`_columns.py`);
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
from typing import Any, ClassVar, NamedTuple, TypeVar

import plasmon.errors
from plasmon import _columns, _memory
from plasmon._arguments import shown
from plasmon._columns import from_arrow as from_arrow
from plasmon._columns import to_arrow as to_arrow

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of a module that makes a value again, and its arguments."""
Reduce = Callable[[Any], Any]
"""Function that reduces a value, or returns `NotImplemented` to have it pickled as usual."""

T = TypeVar("T")

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
        raise plasmon.errors.WrongType(f"only types can be registered, not {shown(of)}")
    _registered[of] = reduce
    _reducer.cache_clear()


class Pickled(NamedTuple):
    """Pickle of a value."""

    pickle: bytes
    buffers: list[memoryview]
    """Memory beside the pickle. Some of it may be in several buffers."""
    places: list[_memory.Place]
    """Where the buffers are in the memory of this process."""
    copied: list[tuple[str, int]]
    """Copies that were made: why, and how many bytes."""


def dumps(value: Any) -> Pickled:
    """Pickles a value.

    Raises:
        Exception: As `pickle.dumps`, if the value cannot be pickled.
    """
    dump = _memory.Dump()
    pickled = _dump(value, dump)
    stored = [place.span for place in pickled.places]
    # An array was copied although its memory is stored with another array: both are to share it.
    if any(_memory.Dump(stored).has(span) for span in dump.sparse):
        return _dump(value, _memory.Dump(stored))
    return pickled


def _dump(value: Any, dump: _memory.Dump) -> Pickled:
    file, buffers = BytesIO(), []

    def out_of_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffers.append(buffer.raw())
        except BufferError:  # Not in one piece: it goes into the pickle.
            return True
        return False

    with _memory.dumping(dump):
        _pickler()(file, protocol=5, buffer_callback=out_of_band).dump(value)
    places = _memory.places([_memory.span_of(buffer) for buffer in buffers])
    return Pickled(file.getvalue(), buffers, places, dump.copied)


def loads(
    pickled: memoryview, buffers: list[memoryview], shared: list[memoryview], writable: bool = False
) -> Any:
    """Unpickles a value.

    Args:
        pickled: The pickle.
        buffers: Memory beside it.
        shared: Memory in which several of the buffers overlap.
        writable: Whether buffers are to be writable although the memory was read-only when it was pickled.

    Raises:
        Exception: As `pickle.loads`.
    """
    outer = _loading.shared
    _loading.shared = [_Shared(memory) for memory in shared]
    try:
        if writable:
            return _WritableUnpickler(BytesIO(pickled), buffers=buffers).load()
        return pickle.loads(pickled, buffers=buffers)
    finally:
        _loading.shared = outer


class _WritableUnpickler(pickle._Unpickler):  # The one in C has no table of operations.
    """Unpickler that makes no buffer read-only."""

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.READONLY_BUFFER[0]: lambda unpickler: None,
    }


class _Shared:
    """Memory of several buffers of a value that a thread is reading."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.begin, self.end = _memory.span_of(memory)
        self.tensor: Any = None
        """Tensor of its bytes, of which tensors are parts, once there is one."""


class _Loading(threading.local):
    def __init__(self) -> None:
        self.shared: list[_Shared] = []


_loading = _Loading()


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
    if package == "numpy":
        numpy = sys.modules["numpy"]
        if of in (numpy.ndarray, numpy.memmap):
            return _reduce_ndarray if of is numpy.ndarray else _reduce_memmap
    array = getattr(sys.modules.get("pyarrow"), "Array", None)
    if array is not None and issubclass(of, array):
        return _columns.reduce_array if of.__reduce__ is array.__reduce__ else None
    known = [("numpy", "ndarray"), ("torch", "Tensor")]
    if issubclass(of, tuple(getattr(sys.modules.get(module), name, ()) for module, name in known)):
        return None
    if not (hasattr(of, "__dlpack__") and hasattr(of, "__dlpack_device__")):
        return None
    # A class that says how it is pickled keeps its way, unless it is the array of a whole package.
    pickles = (of.__reduce__, of.__reduce_ex__) != (object.__reduce__, object.__reduce_ex__)
    return _reduce_dlpack if hasattr(of, "__array_namespace__") or not pickles else None


# NumPy


def _reduce_ndarray(array: Any) -> Any:
    """Takes an array apart of which NumPy would copy the elements into the pickle."""
    dtype = array.dtype
    is_whole = array.flags.forc and dtype.kind not in "mM"
    # Types that other packages add have numbers from 256 on. Their elements may be references.
    if is_whole or dtype.hasobject or dtype.num >= 256 or not array.nbytes:
        return NotImplemented
    memory, offset, strides = _memory.layout_of(array, "an array is not in one piece")
    return _ndarray, (pickle.PickleBuffer(memory.data), dtype, array.shape, offset, strides)


def _ndarray(memory: Any, dtype: Any, shape: tuple[int, ...], offset: int, strides: tuple[int, ...]) -> Any:
    """Array over memory."""
    return importlib.import_module("numpy").ndarray(shape, dtype, memory, offset, strides)


def _reduce_memmap(array: Any) -> Any:
    """Takes an array over a file apart, of which NumPy would copy all elements into the pickle."""
    if array.dtype.hasobject:
        return NotImplemented
    return _memmap, (array.view(sys.modules["numpy"].ndarray),)


def _memmap(array: Any) -> Any:
    """Array of the same class over memory, which has no file any more, as after NumPy's own pickle."""
    return array.view(importlib.import_module("numpy").memmap)


# PyTorch


def _reduce_tensor(tensor: Any) -> Any:
    """Takes a dense tensor on the CPU apart. PyTorch pickles all others itself."""
    torch = sys.modules["torch"]
    plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not plain or tensor.is_conj() or tensor.is_neg() or tensor._backward_hooks or tensor.__dict__:
        return NotImplemented
    if tensor.requires_grad and not tensor.is_leaf:
        return NotImplemented
    elements = tensor.detach()
    about = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.requires_grad
    if elements.is_contiguous():
        memory = elements.reshape(-1).view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(memory), *about)
    import numpy as np

    width, steps = elements.element_size(), elements.stride()
    extent = 1 + sum((size - 1) * step for size, step in zip(elements.shape, steps, strict=True))
    memory = elements.as_strided((extent,), (1,)).view(torch.uint8).numpy()
    array = np.ndarray(elements.shape, f"V{width}", memory, 0, [width * step for step in steps])
    layout = _memory.layout_of(array, "a tensor is not contiguous")
    strides = tuple(stride // width for stride in layout.strides)
    return _tensor, (pickle.PickleBuffer(layout.memory.data), *about, strides, layout.offset // width)


def _tensor(
    memory: Any,
    dtype: str,
    shape: tuple[int, ...],
    requires_grad: bool,
    strides: tuple[int, ...] | None = None,
    offset: int = 0,
) -> Any:
    """Makes a tensor over memory."""
    torch = importlib.import_module("torch")
    kind = getattr(torch, dtype)
    if memoryview(memory).nbytes:
        elements = _flat_tensor(memory, kind)
        tensor = (
            elements.reshape(shape)
            if strides is None
            else elements.as_strided(shape, strides, elements.storage_offset() + offset)
        )
    else:
        tensor = torch.empty(shape, dtype=kind)
    return tensor.requires_grad_() if requires_grad else tensor


def _flat_tensor(memory: Any, kind: Any) -> Any:
    """Tensor of one axis over memory, which shares its storage with other tensors of the value there."""
    begin, end = _memory.span_of(memoryview(memory))
    width = importlib.import_module("torch").empty(0, dtype=kind).element_size()
    for shared in _loading.shared:
        if shared.begin <= begin and end <= shared.end and not (begin - shared.begin) % width:
            if shared.tensor is None:
                shared.tensor = _tensor_of_bytes(shared.memory)
            return shared.tensor[begin - shared.begin : end - shared.begin].view(kind)
    return _tensor_of_bytes(memory).view(kind)


def _tensor_of_bytes(memory: Any) -> Any:
    torch = importlib.import_module("torch")
    return torch.from_numpy(_writable(memory, "a tensor of PyTorch", "clone() it"))


# Arrow and Polars


def read_stream(stream: Any, is_table: bool) -> Any:
    """Table or record batch over the memory of a stream of Arrow IPC."""
    with importlib.import_module("pyarrow").ipc.open_stream(stream) as reader:
        return reader.read_all() if is_table else reader.read_next_batch()


def _reduce_polars(value: Any) -> Any:
    """Takes a frame or a series apart, as Arrow data. Polars pickles what Arrow does not keep."""
    arrow = to_arrow(value)
    if arrow is None:
        return NotImplemented
    return from_arrow, arrow


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
    # Frames of pandas and Polars are more than that, and come back as they are or not at all.
    if type(value).__module__.partition(".")[0] in ("pandas", "polars"):
        return None
    try:
        if hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__"):
            return importlib.import_module("pyarrow").table(value)
        if hasattr(value, "__array_interface__"):
            return importlib.import_module("numpy").asarray(value)
    except Exception:  # It does not keep what it offers.
        return None
    return None


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
    return np.asarray(_memory.Alias(elements, elements.ctypes.data, elements.nbytes, is_writable=True))
