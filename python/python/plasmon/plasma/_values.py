"""Values for Plasma's `put` and `get`, which must come back with the types that Plasma gave them.

They are stored as `plasmon.Client` stores them, but for two kinds:

- `bytes` come back as `bytes`, not as a view: raw data, with the metadata `BYTES`;
- what is put with a serialization context is pickled with it, and that pickle is the value stored.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from plasmon import _values
from plasmon._internal import Buffer
from plasmon.plasma._arrow import ArrowSerializationError

BYTES = b"PLASMA\x01bytes"
"""Metadata of values that were `bytes`. Other readers take the data for plain bytes, and they are right."""


class InContext:
    """A value as a pickle that takes the serialization context to read."""

    def __init__(self, pickled: bytes, buffers: list[pickle.PickleBuffer]) -> None:
        self.pickled = pickled
        self.buffers = buffers

    @staticmethod
    def of(value: object, context: Any) -> InContext:
        """Pickles a value; what the context has been told of is turned into something else by it."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = io.BytesIO()
        _Pickler(pickled, context, buffers).dump(value)
        return InContext(pickled.getvalue(), buffers)

    def value(self, context: Any) -> Any:
        """Reads the pickle."""
        return _Unpickler(io.BytesIO(self.pickled), context, self.buffers).load()

    def __reduce__(self) -> tuple[type[InContext], tuple[bytes, list[pickle.PickleBuffer]]]:
        # The pickle of the whole takes the buffers beside it once more.
        return InContext, (self.pickled, [pickle.PickleBuffer(buffer) for buffer in self.buffers])


class _Pickler(pickle.Pickler):
    """Puts what the context makes of an object in its place, marked as such (a persistent id)."""

    def __init__(self, file: io.BytesIO, context: Any, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._context = context

    def persistent_id(self, obj: Any) -> Any:
        from pyarrow.lib import SerializationCallbackError

        if type(obj).__module__ == "builtins":
            return None
        try:
            return self._context._serialize_callback(obj)
        except SerializationCallbackError:  # Nobody has told it of this type.
            return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, context: Any, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, buffers=buffers)
        self._context = context

    def persistent_load(self, pid: Any) -> Any:
        return self._context._deserialize_callback(pid)


def decode(buffer: Buffer, context: Any) -> Any:
    """The value in an object.

    Raises:
        ArrowSerializationError: It takes a serialization context to read.
        MalformedValue: The data is not what the metadata says.
    """
    if buffer.metadata == BYTES:
        return bytes(memoryview(buffer))
    value = _values.decode(buffer)
    if not isinstance(value, InContext):
        return value
    if context is None:
        raise ArrowSerializationError(
            f"object {buffer.id} was put with a serialization_context: get it with the same"
        )
    return value.value(context)
