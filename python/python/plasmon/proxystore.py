"""Connector of ProxyStore: proxies of objects in the store.

    from proxystore.store import Store
    from plasmon.proxystore import PlasmonConnector

    with Store("plasmon", PlasmonConnector()) as store:
        proxy = store.proxy(array)

A proxy is resolved on any host of the cluster. ProxyStore copies what it serializes, and again when it
resolves a proxy; the bytes in between are shared by the programs of a host. An object stays until it is
evicted, or until its time to live ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from plasmon import _values
from plasmon._closing import Closing
from plasmon._internal import ObjectId
from plasmon._named import shared_client
from plasmon.errors import ObjectNotFound

if TYPE_CHECKING:
    from typing_extensions import Buffer as Readable

__all__ = ["PlasmonConnector", "PlasmonKey"]


class PlasmonKey(NamedTuple):
    """Key of an object of ProxyStore."""

    object_id: str
    """Id of the object, 40 hexadecimal digits."""


class PlasmonConnector(Closing):
    """Connector to the node of this host, and by that to its cluster.

    A connector that is made from the configuration of another, on another host, connects to the node there.

    Args:
        socket: Path of the node's socket, by default as for `plasmon.connect`.
        replicas: As in `plasmon.Client.put`.
        ttl: As in `plasmon.Client.put`.
        timeout: As in `plasmon.Client.put`.
    """

    def __init__(
        self,
        socket: str | None = None,
        *,
        replicas: int = 1,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> None:
        self._socket = socket
        self._terms: dict[str, Any] = {"replicas": replicas, "ttl": ttl, "timeout": timeout}

    def config(self) -> dict[str, Any]:
        """Arguments that make the same connector."""
        return {"socket": self._socket, **self._terms}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a connector of what `config` returned."""
        return cls(**config)

    def new_key(self, obj: Readable | None = None) -> PlasmonKey:
        """Draws a key, for `set`."""
        return PlasmonKey(ObjectId.random().hex())

    def set(self, key: PlasmonKey, obj: Readable) -> None:
        """Stores an object under a key of `new_key`, in the place of one that was set before.

        The object changes in one step. Proxies that were resolved before keep the old one.
        """
        with shared_client(self._socket) as client:
            client.put(_bytes(obj), id=ObjectId.from_hex(key.object_id), replace=True, **self._terms)

    def put(self, obj: Readable) -> PlasmonKey:
        """Stores an object."""
        key = self.new_key()
        with shared_client(self._socket) as client:
            client.put(_bytes(obj), id=ObjectId.from_hex(key.object_id), **self._terms)
        return key

    def put_batch(self, objs: Sequence[Readable]) -> list[PlasmonKey]:
        """Stores several objects."""
        # The whole cluster knows an id that is given when the call returns, unlike one that `put` draws.
        ids = [ObjectId.random() for _ in objs]
        with shared_client(self._socket) as client:
            client.put_many([_bytes(obj) for obj in objs], ids=ids, **self._terms)
        return [PlasmonKey(id.hex()) for id in ids]

    def get(self, key: PlasmonKey) -> memoryview | None:
        """Bytes of an object in place, or `None` if there is no such object."""
        try:
            with shared_client(self._socket) as client:
                return memoryview(client.get_buffers([ObjectId.from_hex(key.object_id)], timeout=0)[0])
        except ObjectNotFound:
            return None

    def get_batch(self, keys: Sequence[PlasmonKey]) -> list[memoryview | None]:
        """Bytes of several objects in place, with `None` for those that do not exist."""
        return [self.get(key) for key in keys]

    def exists(self, key: PlasmonKey) -> bool:
        """Whether there is such an object."""
        with shared_client(self._socket) as client:
            return client.contains(ObjectId.from_hex(key.object_id))

    def evict(self, key: PlasmonKey) -> None:
        """Deletes an object."""
        with shared_client(self._socket) as client:
            client.delete(ObjectId.from_hex(key.object_id))

    def close(self) -> None:
        """Does nothing: the connectors of a process share a client, and objects stay."""

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.config().items())
        return f"PlasmonConnector({arguments})"


def _bytes(data: Readable) -> memoryview:
    return _values.flat(memoryview(data))
