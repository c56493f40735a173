"""Plasma's interface on Plasmon: programs written for `pyarrow.plasma` of PyArrow 11, with another import.

    import plasmon.plasma as plasma

    client = plasma.connect("/tmp/plasma")
    object_id = client.put(array)
    same = client.get(object_id)

The store is a node of Plasmon. `plasma-store-server -s /tmp/plasma -m 1000000000` starts one that takes
Plasma's options and, like Plasma, drops the least recently used objects when it is full. Any other node
serves as well, and `plasmon.Client` sees the same objects.

docs/migration.md lists the differences call by call. In cases where Plasma would end the process or the whole
store, these calls raise an exception. Buffers are PyArrow's if that is installed, else `memoryview`s.
"""

from typing import NoReturn

from plasmon.plasma._arrow import PlasmaBuffer
from plasmon.plasma._client import ObjectNotAvailable, PlasmaClient, connect
from plasmon.plasma._errors import PlasmaObjectExists, PlasmaObjectNotFound, PlasmaStoreFull
from plasmon.plasma._ids import ObjectID
from plasmon.plasma._store import start_plasma_store

tf_plasma_op = None


def build_plasma_tensorflow_op() -> NoReturn:
    """Raises an error: the TensorFlow operator was C++ code linked with Plasma's own library.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        "Plasma's TensorFlow operator is C++ code linked with Plasma's library, which Plasmon does not have: "
        "put tensors as NumPy arrays, and get them without a copy"
    )


load_plasma_tensorflow_op = build_plasma_tensorflow_op

__all__ = [
    "ObjectID",
    "ObjectNotAvailable",
    "PlasmaBuffer",
    "PlasmaClient",
    "PlasmaObjectExists",
    "PlasmaObjectNotFound",
    "PlasmaStoreFull",
    "build_plasma_tensorflow_op",
    "connect",
    "load_plasma_tensorflow_op",
    "start_plasma_store",
    "tf_plasma_op",
]
