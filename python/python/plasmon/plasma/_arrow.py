"""Exceptions and functions of PyArrow, or replacements if it is not installed."""

try:
    from pyarrow import Buffer as PlasmaBuffer
    from pyarrow import py_buffer
    from pyarrow.lib import ArrowException, ArrowSerializationError, ArrowTypeError
except ModuleNotFoundError:
    PlasmaBuffer = py_buffer = memoryview

    class ArrowException(Exception):  # type: ignore[no-redef] # noqa: N818
        """Error of PyArrow."""

    class ArrowSerializationError(ArrowException):  # type: ignore[misc, no-redef]
        """A value cannot be stored or read."""

    class ArrowTypeError(TypeError, ArrowException):  # type: ignore[misc, no-redef]
        """An argument or an object has the wrong type."""


__all__ = ["ArrowException", "ArrowSerializationError", "ArrowTypeError", "PlasmaBuffer", "py_buffer"]
