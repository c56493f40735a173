"""Values that cannot be stored: which part of a value it is, and why.

Nothing is looked for before a value was refused. Then its parts are pickled one by one: the items of lists,
tuples, sets, dicts and arrays of objects, the columns of frames and tables, and the attributes of others.

Any thread.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from plasmon import _columns, _reduction
from plasmon.errors import Error, WrongType

_DEPTH = 20
"""Number of steps from the value to the part that is told at most."""
_PARTS = 10_000
"""Number of parts of one value that are tried at most."""
_OPAQUE = ("numpy", "pandas", "polars", "pyarrow", "torch")
"""Packages whose attributes tell a user nothing."""


def refusal(value: Any, error: BaseException) -> Error:
    """Error that says which part of a value cannot be stored, and why."""
    path = ""
    is_deep = isinstance(error, RecursionError) or "recursion" in str(error)
    for _ in range(0 if is_deep else _DEPTH):
        if isinstance(error, Error) and not isinstance(error, WrongType):
            return error  # Of a client that was asked while the value was pickled.
        found = next(_refused_parts(value), None)
        if found is None:
            break
        step, value, error = found
        path += step
    if isinstance(error, Error):
        return WrongType(f"value{path}: {error}") if path else error
    what = f"value{path}, of type {_name(value)}," if path else f"a value of type {_name(value)}"
    why = " ".join(str(error).split()) or type(error).__name__
    return WrongType(f"{what} cannot be stored: {why}")


def _refused_parts(value: Any) -> Iterator[tuple[str, Any, BaseException]]:
    """Parts of a value that cannot be stored: the step to each, and why."""
    for step, part in islice(_parts(value), _PARTS):
        try:
            _reduction.dumps(part)
        except _columns.failures() as error:
            yield step, part, error


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"[key {_short(key)}]", key
            yield f"[{_short(key)}]", item
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((f"[element {_short(item)}]", item) for item in value)
    elif _is(value, "numpy", "ndarray"):
        if value.dtype.kind == "O":
            yield from ((f".flat[{number}]", item) for number, item in enumerate(value.flat))
    elif _is(value, "pandas", "DataFrame"):
        columns = enumerate(value.columns)
        yield from ((f"[column {_short(name)}]", value.iloc[:, number]) for number, name in columns)
    elif _is(value, "pandas", "Series") or _is(value, "pandas", "Index"):
        if value.dtype == object:
            yield from ((f"[row {_short(label)}]", item) for label, item in _rows(value))
    elif _is(value, "pyarrow", "Table") or _is(value, "pyarrow", "RecordBatch"):
        names = zip(value.schema.names, value.columns, strict=True)
        yield from ((f"[column {_short(name)}]", column) for name, column in names)
    elif type(value).__module__.partition(".")[0] not in _OPAQUE:
        yield from ((f".{name}", item) for name, item in list(getattr(value, "__dict__", {}).items()))


def _rows(value: Any) -> Iterable[tuple[Any, Any]]:
    items: Iterable[tuple[Any, Any]] = value.items() if hasattr(value, "items") else enumerate(value)
    return items


def _is(value: Any, module: str, name: str) -> bool:
    return isinstance(value, getattr(sys.modules.get(module), name, ()))


def _short(name: Any) -> str:
    try:
        return reprlib.repr(name)
    except Exception:
        return f"of type {_name(name)}"


def _name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
