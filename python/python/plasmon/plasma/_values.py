"""Values for Plasma's `put` and `get`, which must be returned with the types that Plasma gave them.

They are stored as `plasmon.Client` stores them, with two exceptions:

- `bytes` are returned as `bytes`, not as a view: they are raw data with the metadata `BYTES`;
- a value that is put with a serialization context is pickled with it, and that pickle is the value stored.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from plasmon import _values
from plasmon._internal import Buffer
from plasmon.plasma._arrow import ArrowSerializationError

BYTES = b"PLASMA\x01bytes"
"""Metadata of values that were `bytes`. Other readers correctly take the data for plain bytes."""


class InContext:
    """Value as a pickle that needs the serialization context to be read."""

    def __init__(self, pickled: bytes, buffers: list[pickle.PickleBuffer]) -> None:
        self.pickled = pickled
        self.buffers = buffers

    @staticmethod
    def of(value: object, context: Any) -> InContext:
        """Pickles a value. The context converts objects of the types registered with it."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = io.BytesIO()
        _Pickler(pickled, context, buffers).dump(value)
        return InContext(pickled.getvalue(), buffers)

    def value(self, context: Any) -> Any:
        """Reads the pickle."""
        return _Unpickler(io.BytesIO(self.pickled), context, self.buffers).load()

    def __reduce__(self) -> tuple[type[InContext], tuple[bytes, list[pickle.PickleBuffer]]]:
        # The pickle of the whole value holds the out-of-band buffers again.
        return InContext, (self.pickled, [pickle.PickleBuffer(buffer) for buffer in self.buffers])


class _Pickler(pickle.Pickler):
    """Pickler that replaces objects by the context's conversion of them, marked as such (a persistent id)."""

    def __init__(self, file: io.BytesIO, context: Any, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self._context = context

    def persistent_id(self, obj: Any) -> Any:
        from pyarrow.lib import SerializationCallbackError

        if type(obj).__module__ == "builtins":
            return None
        try:
            return self._context._serialize_callback(obj)
        except SerializationCallbackError:  # The type is not registered.
            return None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, context: Any, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, buffers=buffers)
        self._context = context

    def persistent_load(self, pid: Any) -> Any:
        return self._context._deserialize_callback(pid)


def decode(buffer: Buffer, context: Any) -> Any:
    """Decodes the value in an object.

    Raises:
        ArrowSerializationError: The value needs a serialization context to be read.
        MalformedValue: The data does not match the metadata.
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
