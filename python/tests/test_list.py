"""Tests of lists: patterns, what values are, the whole cluster."""

from __future__ import annotations

import asyncio
import fnmatch
import os
import pickle
import signal

import numpy as np
import plasmon
import plasmon.aio
import pyarrow as pa
import pytest
from conftest import ANTI_HANG, until


def names(rows: list[plasmon.ObjectInfo]) -> set[str | None]:
    """Names of the objects of a list."""
    return {row.name for row in rows}


def test_a_pattern_is_one_of_fnmatch(near: plasmon.Client) -> None:
    put = ["l/a", "l/ab", "l/a/b", "l/[x]", "l/ß", "l/A", "l/a-b"]
    for name in put:
        near.put(b"", name=name)
    patterns = ["l/*", "l/?", "l/a*", "*b", "l/[a-z]", "l/[!a-z]", "l/[[]x]", "l/[]ab]", "l/a[b/]*", "l/[a"]
    for pattern in patterns:
        expected = {name for name in put if fnmatch.fnmatchcase(name, pattern)}
        assert names(near.list(pattern)) == expected, pattern
    assert names(near.list("l/a")) == {"l/a"}
    assert names(near.list(str(plasmon.ObjectId.from_name("l/a")))) == {"l/a"}
    assert names(near.list(plasmon.ObjectId.from_name("l/ß"))) == {"l/ß"}
    assert near.list("l/nothing") == []
    with pytest.raises(plasmon.InvalidArgument, match="255 bytes"):
        near.list("x" * 256)


def test_it_says_what_values_are(near: plasmon.Client) -> None:
    structured = np.zeros(2, [(f"field-{number}", "f8") for number in range(40)])
    values = {
        "k/bytes": (b"abc", "bytes"),
        "k/array": (np.zeros((3, 4), np.float32), "numpy float32 (3, 4)"),
        "k/one": (np.arange(5), "numpy int64 (5,)"),
        "k/structured": (structured, "numpy"),
        "k/table": (pa.table({"a": [1]}), "arrow table"),
        "k/dict": ({"a": 1}, "pickle dict"),
        "k/id": (plasmon.ObjectId.random(), "pickle plasmon.ObjectId"),
    }
    for name, (value, _) in values.items():
        near.put(value, name=name)
    assert {row.name: row.kind for row in near.list("k/*")} == {
        name: kind for name, (_, kind) in values.items()
    }


def found_all(client: plasmon.Client) -> bool:
    """Whether all nodes answer, with two objects."""
    try:
        return len(client.list(cluster=True)) == 2
    except plasmon.IncompleteList:
        return False


def test_a_cluster_is_listed_as_a_whole() -> None:
    with plasmon.LocalCluster(nodes=2, memory="64MiB") as cluster:
        near, far = cluster.client(0), cluster.client(1)
        near.put(b"near", name="near")
        far.put(b"far", name="far")
        near.get("far", timeout=ANTI_HANG)
        rows = {row.name: row for row in near.list(cluster=True)}
        assert rows.keys() == {"near", "far"}
        assert rows["near"].nodes == (near.node,)
        assert rows["far"].nodes == (far.node, near.node)
        assert rows["far"].state == "primary"
        assert names(far.list()) == {"far"}
        assert far.list()[0].nodes == (far.node,)

        async def listed() -> list[plasmon.ObjectInfo]:
            async with plasmon.aio.connect(near.socket) as client:
                return await client.list("f*", cluster=True)

        assert names(asyncio.run(listed())) == {"far"}

        os.kill(cluster.pids[1], signal.SIGSTOP)
        try:
            with pytest.raises(plasmon.IncompleteList, match=far.node) as caught:
                near.list(cluster=True)
            assert isinstance(caught.value, plasmon.TimedOut)
            # The first node has a replica of "far" as well.
            assert names(caught.value.objects) == {"near", "far"}
            assert caught.value.missing.keys() == {far.node}
            again = pickle.loads(pickle.dumps(caught.value))
            assert (again.objects, again.missing) == (caught.value.objects, caught.value.missing)
        finally:
            os.kill(cluster.pids[1], signal.SIGCONT)
        until("both nodes answer", lambda: found_all(near) and found_all(far))
