"""Query engines read tables where they lie in the store, as docs/tables.md shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import plasmon
import pytest
from conftest import is_in_store

pa = pytest.importorskip("pyarrow")

import pyarrow.dataset as ds  # noqa: E402

NAMES = ["part-0", "part-1", "part-2"]
N = 100_000


def columns(part: int) -> dict[str, Any]:
    return {"part": [part] * N, "value": [float(number) for number in range(N)]}


def addresses(column: Any) -> Iterator[int]:
    for chunk in column.chunks:
        yield chunk.buffers()[1].address


def test_a_dataset_reads_objects_in_place(near: plasmon.Client, reader: plasmon.Client) -> None:
    for part, name in enumerate(NAMES):
        near.put(pa.table(columns(part)), name=name)
    dataset = ds.dataset(reader.get(NAMES, timeout=30))
    whole = dataset.to_table(columns=["value"])
    assert all(is_in_store(address) for address in addresses(whole["value"]))
    batches = dataset.scanner(columns=["value"]).to_batches()
    assert all(is_in_store(batch["value"].buffers()[1].address) for batch in batches)
    assert dataset.count_rows(filter=ds.field("part") == 1) == N


def test_a_scanner_lets_go_of_what_it_has_read(near: plasmon.Client) -> None:
    for part, name in enumerate(NAMES):
        near.put(pa.table(columns(part)), name=name)

    def batches() -> Iterator[Any]:
        for name in NAMES:
            table = near.get(name)
            assert all(is_in_store(address) for address in addresses(table["value"]))
            yield from table.to_batches()

    scanner = ds.Scanner.from_batches(batches(), schema=near.get(NAMES[0]).schema, columns=["value"])
    assert scanner.count_rows() == 3 * N


def test_polars_reads_objects_in_place(near: plasmon.Client, reader: plasmon.Client) -> None:
    pl = pytest.importorskip("polars")
    for part, name in enumerate(NAMES):
        near.put(pl.DataFrame(columns(part)), name=name)
    whole = pl.concat(reader.get(NAMES, timeout=30), rechunk=False)
    for frame in (whole, whole.lazy().select("value").collect()):
        assert all(is_in_store(part.to_numpy().ctypes.data) for part in frame["value"].get_chunks())
    table = near.get(near.put(pa.table(columns(0))))
    assert is_in_store(pl.from_arrow(table, rechunk=False)["value"].to_numpy().ctypes.data)
