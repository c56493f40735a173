"""Store of zarr over named objects: each chunk, and each piece of metadata, is an object.

    import zarr
    from plasmon.zarr import PlasmonStore

    array = zarr.create_array(PlasmonStore("fields"), shape=(1000, 1000), chunks=(100, 1000), dtype="f4")

A chunk is read in place, so that uncompressed chunks are copied once: into the array that zarr makes. A chunk
that is written is seen as a whole or not at all.

Each event loop that uses stores has one client of `plasmon.aio` for all of them. Synchronous calls share one
plain client.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Self, TypeVar

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, default_buffer_prototype

import plasmon.aio
from plasmon import _internal, _values
from plasmon._named import Names, SharedNames
from plasmon._records import Public
from plasmon._values import Encoded
from plasmon.errors import ObjectExists, ObjectNotFound

if TYPE_CHECKING:
    from zarr.core.buffer import BufferPrototype

__all__ = ["PlasmonStore"]

_T = TypeVar("_T")

_of_loops: dict[tuple[asyncio.AbstractEventLoop, str], plasmon.aio.Client] = {}
"""Clients of event loops, by loop and socket."""


def _client_of_loop(socket: str | None) -> plasmon.aio.Client:
    """Client of the running event loop. Closes those of loops that have ended."""
    key = asyncio.get_running_loop(), socket or _internal.default_socket()
    client = _of_loops.get(key)
    if client is None or not client._listening:
        for ended in [one for one in list(_of_loops) if one[0].is_closed()]:
            if (unused := _of_loops.pop(ended, None)) is not None:
                unused._client.close()
        client = _of_loops[key] = plasmon.aio.Client(plasmon.connect(socket))
    return client


class PlasmonStore(Store):
    """Zarr store in the objects whose names begin with a prefix.

    A program that was given the store by pickle, on any host of the cluster, sees the same store.

    Args:
        prefix: Directory of the store: names begin with it and "/".
        socket: Path of the node's socket, by default as for `plasmon.connect`.
        read_only: Whether this store refuses to write.
        private: Whether the objects are this user's private ones.
        public: As in `plasmon.Client.put`.
        timeout: As in `plasmon.Client.mapping`.
        replicas: As in `plasmon.Client.put`.
        ttl: As in `plasmon.Client.put`.
    """

    supports_writes: bool = True
    supports_deletes: bool = True
    supports_listing: bool = True

    def __init__(
        self,
        prefix: str = "",
        *,
        socket: str | None = None,
        read_only: bool = False,
        private: bool = False,
        public: Public | None = None,
        timeout: float | None = None,
        replicas: int = 1,
        ttl: float | None = None,
    ) -> None:
        super().__init__(read_only=read_only)
        self.prefix = prefix.strip("/")
        self._begin = self.prefix and self.prefix + "/"
        self._names = SharedNames(
            socket, private=private, public=public, timeout=timeout, replicas=replicas, ttl=ttl
        )

    def with_read_only(self, read_only: bool = False) -> Self:
        """Makes a store of the same objects, with or without the right to write."""
        return type(self)(self.prefix, socket=self._names.socket, read_only=read_only, **self._names.terms)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlasmonStore) and self._described() == other._described()

    def _described(self) -> tuple[object, ...]:
        return self.prefix, self.read_only, self._names

    def __str__(self) -> str:
        return f"plasmon://{self.prefix}"

    def __repr__(self) -> str:
        return f"PlasmonStore({self.prefix!r})"

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """Value of a key in place, or `None` if there is none."""
        await self._ensure_open()
        client = _client_of_loop(self._names.socket)
        try:
            [found] = await client.get_buffers(
                [self._begin + key], timeout=0, private=self._names.terms["private"]
            )
        except ObjectNotFound:
            return None
        return prototype.buffer.from_bytes(_part(memoryview(found), byte_range))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> builtins.list[Buffer | None]:
        """Parts of several values."""
        return await asyncio.gather(*(self.get(key, prototype, part) for key, part in key_ranges))

    async def exists(self, key: str) -> bool:
        """Whether a key has a value."""
        return await self._run(lambda names: names.contains(self._begin + key))

    async def set(self, key: str, value: Buffer) -> None:
        """Stores a value in place of one that may be there."""
        self._check_writable()
        encoded = _encode(value)
        await self._run(lambda names: names.replace(self._begin + key, encoded))

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Stores a value if there is none. Of several writers at the same time, one stores its value."""
        self._check_writable()
        encoded = _encode(value)
        try:
            await self._run(lambda names: names.add(self._begin + key, encoded))
        except ObjectExists:
            return

    async def delete(self, key: str) -> None:
        """Deletes a value, if there is one."""
        self._check_writable()
        await self._run(lambda names: names.delete(self._begin + key))

    async def delete_dir(self, prefix: str) -> None:
        """Deletes all values below a directory."""
        self._check_writable()
        await self._run(lambda names: names.clear(self._begin + _directory(prefix)))

    async def list(self) -> AsyncIterator[str]:
        """All keys."""
        for key in await self._keys(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        """All keys that begin with a prefix."""
        for key in await self._keys(prefix):
            yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """Names of the keys and directories in a directory."""
        begin = _directory(prefix)
        for child in dict.fromkeys(key[len(begin) :].split("/")[0] for key in await self._keys(begin)):
            yield child

    async def getsize(self, key: str) -> int:
        """Size of a value in bytes."""
        row = await self._run(lambda names: names.row(self._begin + key))
        if row is None:
            raise FileNotFoundError(key)
        return row.size

    async def getsize_prefix(self, prefix: str) -> int:
        """Size in bytes of all values in a directory."""
        rows = await self._run(lambda names: names.rows(self._begin + _directory(prefix)))
        return sum(row.size for row in rows)

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Value of a key in place, for callers without an event loop."""
        try:
            found = self._names.run(lambda names: names.read(self._begin + key))
        except ObjectNotFound:
            return None
        prototype = prototype or default_buffer_prototype()
        return prototype.buffer.from_bytes(_part(memoryview(found), byte_range))

    def set_sync(self, key: str, value: Buffer) -> None:
        """Stores a value, for callers without an event loop."""
        self._check_writable()
        encoded = _encode(value)
        self._names.run(lambda names: names.replace(self._begin + key, encoded))

    def delete_sync(self, key: str) -> None:
        """Deletes a value, for callers without an event loop."""
        self._check_writable()
        self._names.run(lambda names: names.delete(self._begin + key))

    async def _keys(self, prefix: str) -> builtins.list[str]:
        rows = await self._run(lambda names: names.rows(self._begin + prefix))
        return [row.name[len(self._begin) :] for row in rows if row.name]

    async def _run(self, call: Callable[[Names], _T]) -> _T:
        """Runs calls about names in a thread of the client of this event loop."""
        await self._ensure_open()
        client = _client_of_loop(self._names.socket)
        names = self._names.of(client._client)
        return await client._run(client._patient, lambda: call(names))


def _directory(prefix: str) -> str:
    """Prefix of the keys in a directory."""
    return prefix if prefix == "" or prefix.endswith("/") else prefix + "/"


def _encode(value: Buffer) -> Encoded:
    if not isinstance(value, Buffer):
        raise TypeError(f"a value of a zarr store is a zarr Buffer, not {type(value).__name__}")
    data = _values.flat(memoryview(value.as_numpy_array()))
    return Encoded(b"", data.nbytes, [(0, data)])


def _part(data: memoryview, byte_range: ByteRequest | None) -> memoryview:
    """Part of a value that is asked for."""
    match byte_range:
        case None:
            return data
        case RangeByteRequest(start, end):
            return data[start:end]
        case OffsetByteRequest(offset):
            return data[offset:]
        case SuffixByteRequest(suffix):
            return data[max(len(data) - suffix, 0) :]
    raise TypeError(f"Unexpected byte_range, got {byte_range}")
