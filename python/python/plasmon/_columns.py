"""Columns of Arrow and Polars: their memory as large as what they show, and what Arrow cannot keep.

A slice of an Arrow array refers to the whole memory of the array that it was cut from, and PyArrow pickles
that. `cut` makes data of the same elements that refer to no more memory than these need. It copies only what
has to change: offsets that begin elsewhere now, and texts (of types with views) of which few are left in
their memory. PyArrow describes data as a tuple, which it pickles as well:

    type, length, number of nulls or -1, offset, buffers, data of the children, data of the dictionary

Frames of Polars are stored as Arrow data where that gives them back. Otherwise Polars pickles them itself,
and what it cannot pickle either is refused.

Any thread. `cut` needs NumPy, and does nothing without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from plasmon import _memory
from plasmon.errors import WrongType

if TYPE_CHECKING:
    import numpy as np

Data = tuple[Any, int, int, int, list[Any], list[Any], Any]
"""Data of an array, as PyArrow pickles it."""

_CUT = "a slice of Arrow data was cut out"
_SPARE_BYTES = 4096
"""Memory of texts that nothing refers to and that is stored all the same, in bytes."""
_SHARED_BYTES = 64 << 10
"""Memory that columns share and that a stream may have several times, in bytes."""
_INLINE_BYTES = 12
"""Longest text that lies within its view."""
_PART_BYTES = 1 << 30
"""Size in bytes at which gathered texts begin another buffer: a view's offset has 32 bits."""


# Arrow


def reduce_array(array: Any) -> Any:
    """Reduces an Arrow array as PyArrow does, with memory for its elements alone."""
    made = array.__reduce__()
    if not can_cut(array):
        return NotImplemented
    restore, (data,) = made
    return restore, (cut(data, 0, data[1]),)


def can_cut(array: Any) -> bool:
    """Whether an array is described as this module expects it."""
    return importlib.util.find_spec("numpy") is not None and len(array.__reduce__()[1][0]) == 7


def cut_for_stream(value: Any) -> Any:
    """Table or record batch of the same elements, whose stream of Arrow IPC has no memory beside them.

    A stream of most types has none anyway.
    """
    columns = [_cut_column(column) if _is_streamed_whole(column.type) else column for column in value.columns]
    if all(after is before for after, before in zip(columns, value.columns, strict=True)):
        return value
    return type(value).from_arrays(columns, schema=value.schema)


def _cut_column(column: Any) -> Any:
    arrow = sys.modules["pyarrow"]
    after = [_cut_array(chunk) for chunk in _chunks(column)]
    return arrow.chunked_array(after, column.type) if isinstance(column, arrow.ChunkedArray) else after[0]


def _chunks(column: Any) -> list[Any]:
    chunks: list[Any] = getattr(column, "chunks", [column])
    return chunks


def _cut_array(array: Any) -> Any:
    if not can_cut(array):
        return array
    restore, (data,) = array.__reduce__()
    return restore(cut(data, 0, data[1]))


def shares_memory(value: Any) -> bool:
    """Whether columns of a table or a record batch share memory, which a stream would have several times."""
    columns = [
        {buffer.address for chunk in _chunks(column) for buffer in chunk.buffers() if buffer}
        for column in value.columns
    ]
    if len(set().union(*columns)) == sum(map(len, columns)):
        return False
    with _memory.dumping(_memory.Dump()):
        cuts = [_cut_array(chunk) for column in value.columns for chunk in _chunks(column)]
    buffers = [buffer for array in cuts for buffer in array.buffers() if buffer]
    spans = [(buffer.address, buffer.address + buffer.size) for buffer in buffers]
    whole = sum(end - begin for begin, end in spans)
    once = sum(end - begin for (begin, end), _ in _memory.places(spans))
    return bool(whole > once + _SHARED_BYTES)


def _is_streamed_whole(of: Any) -> bool:
    """Whether a stream has more of a slice of this type, or of what is within it, than its elements."""
    return _is_stored_whole(_storage(of))  # The hash of an extension type is the program's own.


@lru_cache(maxsize=1024)
def _is_stored_whole(of: Any) -> bool:
    types, name = sys.modules["pyarrow"].types, _name(of)
    if "_view" in name or (types.is_union(of) and of.mode == "dense"):
        return True
    if types.is_dictionary(of) or name == "run_end_encoded":
        return _is_streamed_whole(of.value_type)
    return any(_is_streamed_whole(of.field(number).type) for number in range(of.num_fields))


def _name(of: Any) -> str:
    """Name of a type, without its parameters. Older releases of PyArrow have no test for newer types."""
    return str(of).partition("<")[0]


def _storage(of: Any) -> Any:
    """Type of the elements of an extension type; other types as they are."""
    while isinstance(of, sys.modules["pyarrow"].BaseExtensionType):
        of = of.storage_type
    return of


def cut(data: Data, start: int, length: int) -> Data:
    """Data of `length` elements from `start` on, which refer to memory of these alone.

    The result has an offset of less than 8 elements: bits are not moved within their bytes.
    """
    return _Cut(data, start, length).data()


class _Cut:
    """One cut of data. Its methods cut the parts of one kind of type each."""

    def __init__(self, data: Data, start: int, length: int) -> None:
        self.type, whole, self.nulls, offset, buffers, self.children, self.dictionary = data
        self.storage = _storage(self.type)
        self.length = length
        self.at = offset + start
        self.skew = self.at % 8
        """Elements before the first one."""
        self.begin = self.at - self.skew
        self.count = self.skew + length
        self.buffers = list(buffers)
        if (start, length) != (0, whole) and self.nulls:
            self.nulls = -1

    def data(self) -> Data:
        """Data of the elements."""
        types: Any = sys.modules["pyarrow"].types
        of = self.storage
        name = _name(of)
        if name == "run_end_encoded":
            return self._runs()
        if types.is_union(of):
            self._union(is_dense=of.mode == "dense")
            return self._made()
        self._elements(0, 1)
        if name in ("string_view", "binary_view"):
            self._views()
        elif name in ("list_view", "large_list_view"):
            self._list_views("i8" if name.startswith("large") else "i4")
        elif types.is_string(of) or types.is_binary(of):
            self._texts("i4")
        elif types.is_large_string(of) or types.is_large_binary(of):
            self._texts("i8")
        elif types.is_list(of) or types.is_map(of):
            self._lists("i4")
        elif types.is_large_list(of):
            self._lists("i8")
        elif types.is_fixed_size_list(of):
            size = of.list_size
            self.children = [cut(self.children[0], self.begin * size, self.count * size)]
        elif types.is_struct(of):
            self.children = [cut(child, self.begin, self.count) for child in self.children]
        elif types.is_null(of):
            self.nulls = self.length
        else:
            self._elements(1, of.bit_width)
            if self.dictionary is not None:
                self.dictionary = cut(self.dictionary, 0, self.dictionary[1])
        return self._made()

    def _made(self) -> Data:
        return self.type, self.length, self.nulls, self.skew, self.buffers, self.children, self.dictionary

    def _elements(self, number: int, bits: int) -> None:
        """Cuts a buffer of elements of so many bits."""
        buffer = self.buffers[number]
        if buffer is not None:
            begin = min(self.begin * bits // 8, buffer.size)
            self.buffers[number] = buffer.slice(begin, min((self.count * bits + 7) // 8, buffer.size - begin))

    def _numbers(self, number: int, dtype: str, more: int = 0) -> np.ndarray[Any, Any]:
        """Numbers in a buffer, one an element and `more`."""
        import numpy as np

        width = np.dtype(dtype).itemsize
        return np.frombuffer(self.buffers[number], dtype, self.count + more, self.begin * width)

    def _put(self, number: int, changed: np.ndarray[Any, Any]) -> None:
        """Puts changed numbers into the place of a buffer."""
        self.buffers[number] = sys.modules["pyarrow"].py_buffer(changed.tobytes())
        _memory.note(_CUT, changed.nbytes)

    def _shown(self) -> np.ndarray[Any, Any]:
        """Elements that are no nulls, and behind the skew. The buffer of nulls is cut already."""
        import numpy as np

        shown = np.ones(self.count, bool)
        if self.buffers[0] is not None:
            bits = np.frombuffer(self.buffers[0], np.uint8)
            shown = np.unpackbits(bits, count=self.count, bitorder="little").astype(bool)
        shown[: self.skew] = False
        return shown

    def _offsets(self, dtype: str) -> tuple[int, int]:
        """Cuts offsets, and has them begin at 0. Returns which entries they are about."""
        import numpy as np

        if not self.length:
            self.buffers[1] = sys.modules["pyarrow"].py_buffer(np.zeros(self.count + 1, dtype).tobytes())
            return 0, 0
        ends = self._numbers(1, dtype, 1)
        first, last = int(ends[0]), int(ends[-1])
        if first:
            self._put(1, ends - ends[0])
        else:
            width = ends.itemsize
            self.buffers[1] = self.buffers[1].slice(self.begin * width, (self.count + 1) * width)
        return first, last

    def _texts(self, dtype: str) -> None:
        first, last = self._offsets(dtype)
        if self.buffers[2] is not None:
            self.buffers[2] = self.buffers[2].slice(first, last - first)

    def _lists(self, dtype: str) -> None:
        first, last = self._offsets(dtype)
        self.children = [cut(self.children[0], first, last - first)]

    def _list_views(self, dtype: str) -> None:
        import numpy as np

        starts, sizes = self._numbers(1, dtype), self._numbers(2, dtype)
        used = self._shown() & (sizes > 0)
        first = int(starts[used].min()) if used.any() else 0
        last = int((starts + sizes)[used].max()) if used.any() else 0
        if (first, last) != (0, self.children[0][1]) or not used.all():
            self._put(1, np.where(used, starts - first, 0).astype(dtype))
            self._put(2, np.where(used, sizes, 0).astype(dtype))
        else:
            self._elements(1, 8 * starts.itemsize)
            self._elements(2, 8 * starts.itemsize)
        self.children = [cut(self.children[0], first, last - first)]

    def _union(self, is_dense: bool) -> None:
        import numpy as np

        if not is_dense:
            self._elements(1, 8)
            self.children = [cut(child, self.begin, self.count) for child in self.children]
            return
        kinds, places = self._numbers(1, "i1"), self._numbers(2, "i4").copy()
        self._elements(1, 8)
        places[: self.skew] = 0
        children = []
        shown = np.arange(self.count) >= self.skew
        for code, child in zip(self.storage.type_codes, self.children, strict=True):
            used = shown & (kinds == code)
            first = int(places[used].min()) if used.any() else 0
            last = int(places[used].max()) + 1 if used.any() else 0
            places[used] -= first
            children.append(cut(child, first, last - first))
        self._put(2, places)
        self.children = children

    def _runs(self) -> Data:
        """Cuts runs. The offset stays, because the ends of the runs count from it."""
        import numpy as np

        of, runs, _, offset, (_, buffer), *_ = self.children[0]
        ends = np.frombuffer(buffer, of.to_pandas_dtype(), runs, offset * of.bit_width // 8)
        first = int(np.searchsorted(ends, self.at, "right"))
        last = int(np.searchsorted(ends, self.at + self.length - 1, "right")) + 1 if self.length else first
        first -= min(first, (offset + first) % 8)
        self.children = [cut(child, first, last - first) for child in self.children]
        at = self.at if self.length else 0
        return self.type, self.length, self.nulls, at, self.buffers, self.children, self.dictionary

    def _views(self) -> None:
        """Cuts views of texts, and the buffers that they refer to."""
        import numpy as np

        views = np.frombuffer(self.buffers[1], np.int32, 4 * self.count, 16 * self.begin).reshape(-1, 4)
        self._elements(1, 128)
        texts = self.buffers[2:]
        far = self._shown() & (views[:, 0] > _INLINE_BYTES)
        lengths, which, starts = (views[far, column].astype(np.int64) for column in (0, 2, 3))
        used = int(lengths.sum())
        if sum(text.size for text in texts) <= used + used // 8 + _SPARE_BYTES:
            return
        first = np.full(len(texts), np.iinfo(np.int64).max)
        last = np.zeros(len(texts), np.int64)
        np.minimum.at(first, which, starts)
        np.maximum.at(last, which, starts + lengths)
        kept = np.flatnonzero(last)
        if int((last - first)[kept].sum()) > 2 * used + _SPARE_BYTES and (
            gathered := self._gathered(views, far)
        ):
            which, starts, texts = gathered
        else:
            starts = starts - first[which]
            which = np.searchsorted(kept, which)
            texts = [texts[one].slice(int(first[one]), int(last[one] - first[one])) for one in kept]
        changed = np.where((far | (views[:, 0] <= _INLINE_BYTES))[:, None], views, 0).astype(np.int32)
        changed[far, 2], changed[far, 3] = which, starts
        self.buffers[2:] = texts
        self._put(1, changed)

    def _gathered(
        self, views: np.ndarray[Any, Any], far: np.ndarray[Any, Any]
    ) -> tuple[Any, Any, list[Any]] | None:
        """Copies the texts of views into buffers of their own.

        Returns:
            For each text that `far` tells, in which buffer it lies and where; and the buffers. `None` if this
            PyArrow cannot do that.
        """
        import numpy as np

        arrow = sys.modules["pyarrow"]
        of_texts = arrow.py_buffer(views[far].tobytes())
        count = len(of_texts) // 16
        texts = arrow.Array.from_buffers(arrow.binary_view(), count, [None, of_texts, *self.buffers[2:]])
        try:
            texts = texts.cast(arrow.large_binary())
        except arrow.ArrowNotImplementedError:
            return None
        _, ends, memory = texts.buffers()
        places = np.frombuffer(ends, np.int64, count + 1, 8 * texts.offset)
        starts = places[:-1]
        # A part begins with the first text of each so many bytes.
        begins = starts[np.flatnonzero(np.diff(starts // _PART_BYTES, prepend=-1))]
        which = np.searchsorted(begins, starts, "right") - 1
        limits = [*begins[1:].tolist(), int(places[-1])]
        parts = [memory.slice(begin, end - begin) for begin, end in zip(begins.tolist(), limits, strict=True)]
        _memory.note(_CUT, int(places[-1]))
        return which, starts - begins[which], parts


# Polars


def to_arrow(value: Any) -> tuple[Any, bool] | None:
    """Arrow table with the memory of a frame of Polars, or of a series, and whether it is a series.

    `None` for other values, where there is no PyArrow, and for what Polars pickles itself.

    Raises:
        WrongType: A column is of a type that nobody can keep.
    """
    polars: Any = sys.modules.get("polars")
    frame, series = getattr(polars, "DataFrame", None), getattr(polars, "Series", None)
    if type(value) not in (frame, series):
        return None
    is_series = type(value) is series
    whole = value.to_frame() if is_series else value
    by_arrow = importlib.util.find_spec("pyarrow") is not None
    for name, dtype in whole.schema.items():
        if not (by_arrow and "\0" not in name and _is_kept_by_arrow(dtype)):
            by_arrow = False
            if not _is_kept_by_polars(dtype):
                what = "a series" if is_series else f"column {name!r}"
                raise WrongType(
                    f"{what} of Polars of type {dtype} cannot be stored: neither Arrow nor Polars itself "
                    "keeps its values; cast it, or store them as a list"
                )
    if not by_arrow:
        return None
    try:
        return whole.to_arrow(compat_level=polars.CompatLevel.newest()), is_series
    except MemoryError:
        raise
    except failures():
        return None


def from_arrow(arrow: Any, is_series: bool) -> Any:
    """Frame of Polars over Arrow data, or its only column."""
    frame = importlib.import_module("polars").from_arrow(arrow, rechunk=False)
    return frame.to_series() if is_series else frame


@lru_cache(maxsize=4096)
def _is_kept_by_arrow(dtype: Any) -> bool:
    """Whether a column of a type of Polars is the same after a way through Arrow."""
    polars: Any = sys.modules["polars"]
    if any(_makes_polars_panic(one) for one in _within(dtype)):
        return False
    one = polars.Series("a", [None], dtype=dtype).to_frame()
    try:
        back = from_arrow(one.to_arrow(compat_level=polars.CompatLevel.newest()), True)
    except failures():
        return False
    return bool(back.dtype == dtype)


@lru_cache(maxsize=4096)
def _is_kept_by_polars(dtype: Any) -> bool:
    """Whether a column of a type of Polars is the same after it was pickled by Polars."""
    polars: Any = sys.modules["polars"]
    # Polars ends the process at objects within lists.
    if any(one == polars.Object for one in _within(dtype)):
        return False
    try:
        one = polars.Series("a", [None], dtype=dtype)
        return bool(pickle.loads(pickle.dumps(one, 5)).dtype == dtype)
    except failures():
        return False


def _within(dtype: Any) -> list[Any]:
    """A type of Polars and all types within it."""
    inner = [field.dtype for field in getattr(dtype, "fields", ())]
    inner += [getattr(dtype, name) for name in ("inner", "key", "value") if hasattr(dtype, name)]
    return [dtype, *(each for one in inner for each in _within(one))]


def _makes_polars_panic(dtype: Any) -> bool:
    """Whether Polars panics at a type on its way to Arrow or back, or passes pointers."""
    names = [field.name for field in getattr(dtype, "fields", ())]
    has_none = 0 in (getattr(dtype, "shape", None) or ())
    return has_none or any("\0" in name for name in names) or dtype == sys.modules["polars"].Object


def failures() -> tuple[type[BaseException], ...]:
    """Exceptions of code that is not Plasmon's: those of Polars' panics are no `Exception`."""
    panic = getattr(getattr(sys.modules.get("polars"), "exceptions", None), "PanicException", Exception)
    return Exception, panic
