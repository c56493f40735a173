"""Tests of the zarr store: zarr's own for stores, and what they do not ask."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import plasmon
import pytest
from conftest import is_in_store, seen_beside

zarr = pytest.importorskip("zarr")

import numpy as np  # noqa: E402
from plasmon.zarr import PlasmonStore  # noqa: E402
from zarr.core.buffer import Buffer, cpu, default_buffer_prototype  # noqa: E402
from zarr.testing.store import StoreTests  # noqa: E402


class TestStore(StoreTests[PlasmonStore, cpu.Buffer]):
    store_cls = PlasmonStore
    buffer_cls = cpu.Buffer

    @pytest.fixture
    def store_kwargs(self, near: plasmon.Client) -> dict[str, Any]:
        self.client = near
        return {"prefix": "fields", "socket": near.socket}

    async def set(self, store: PlasmonStore, key: str, value: Buffer) -> None:
        self.client.put(value.to_bytes(), name=f"fields/{key}")

    async def get(self, store: PlasmonStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes(bytes(self.client.get(f"fields/{key}", timeout=0)))

    def test_store_repr(self, store: PlasmonStore) -> None:
        assert repr(store) == "PlasmonStore('fields')"
        assert str(store) == "plasmon://fields"

    def test_store_supports_writes(self, store: PlasmonStore) -> None:
        assert store.supports_writes
        assert store.supports_deletes

    def test_store_supports_listing(self, store: PlasmonStore) -> None:
        assert store.supports_listing


@pytest.mark.parametrize("compressors", [None, "auto"])
def test_an_array_is_read_on_another_node(
    near: plasmon.Client, far: plasmon.Client, compressors: str | None
) -> None:
    made = zarr.create_array(
        PlasmonStore("fields", socket=near.socket),
        name="t",
        shape=(100, 100),
        chunks=(10, 100),
        dtype="f8",
        compressors=compressors,
    )
    made[:] = np.arange(10_000.0).reshape(100, 100)
    made.attrs["unit"] = "K"
    group = zarr.open_group(PlasmonStore("fields", socket=far.socket), mode="r")
    assert group["t"][57, 3] == 5703
    assert group["t"].attrs["unit"] == "K"
    made[50:60] = 0
    assert group["t"][:].sum() == np.arange(10_000.0).sum() - np.arange(5000.0, 6000.0).sum()
    assert sorted(name for name, _ in group.members()) == ["t"]


def test_a_reader_beside_a_writer_of_a_chunk_sees_no_fill_value(
    near: plasmon.Client, reader: plasmon.Client
) -> None:
    terms = {"name": "t", "shape": 20_000, "chunks": 20_000, "dtype": "i4", "compressors": None}
    made = zarr.create_array(PlasmonStore("fields", socket=near.socket), **terms)
    there = zarr.open_group(PlasmonStore("fields", socket=reader.socket), mode="r")["t"]

    def write(number: int) -> None:
        made[:] = number + 1

    def read() -> tuple[int, int]:
        chunk = there[:]
        return int(chunk.min()), int(chunk.max())

    seen = seen_beside(write, read, 100)
    assert [one for one in seen if one[0] == 0] == []
    assert all(least == most for least, most in seen)
    assert seen == sorted(seen)


def test_chunks_are_read_in_place(near: plasmon.Client) -> None:
    near.put(bytes(1 << 20), name="fields/c/0")
    store = PlasmonStore("fields", socket=near.socket)
    got = asyncio.run(store.get("c/0", default_buffer_prototype()))
    for buffer in (got, store.get_sync("c/0")):
        assert buffer is not None
        assert is_in_store(buffer.as_numpy_array().ctypes.data)


def test_one_of_two_writers_is_first(near: plasmon.Client, far: plasmon.Client) -> None:
    stores = [PlasmonStore("fields", socket=client.socket) for client in (near, far)]

    async def write() -> None:
        values = [cpu.Buffer.from_bytes(b"%d" % number) for number in range(2)]
        pairs = zip(stores, values, strict=True)
        await asyncio.gather(*(store.set_if_not_exists("k", value) for store, value in pairs))

    asyncio.run(write())
    assert bytes(near.get("fields/k", timeout=0)) == bytes(far.get("fields/k", timeout=0))


def test_a_store_keeps_its_terms(near: plasmon.Client) -> None:
    store = pickle.loads(pickle.dumps(PlasmonStore("/fields/", socket=near.socket, private=True)))
    store.set_sync("k", cpu.Buffer.from_bytes(b"1"))
    assert store == store.with_read_only()
    assert store != store.with_read_only(True)
    assert near.contains("fields/k", private=True)
    assert "fields/k" not in near


def test_an_array_opens_by_its_url(near: plasmon.Client) -> None:
    options = {"socket": near.socket}
    zarr.create_array("plasmon://fields/t", shape=10, dtype="i4", storage_options=options)[:] = 7
    assert zarr.open_array(PlasmonStore("fields/t", socket=near.socket))[:].sum() == 70
