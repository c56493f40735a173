"""Tests of `replace`: objects that take the place of others in one step, and their versions."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import plasmon
import plasmon.aio
import pytest
from conftest import ANTI_HANG, until

KINDS: dict[str, Callable[[int], Any]] = {
    "small": lambda number: b"%d" % number,
    "large": lambda number: b"%d" % number * 100_000,
    "pickled": lambda number: {"number": number},
    "parts": lambda number: {"array": np().arange(50_000) + number, "number": number},
    "table": lambda number: pa().table({"a": np().arange(50_000) + number}),
}
"""Values that are stored in different ways, made from a number."""


def np() -> Any:
    return pytest.importorskip("numpy")


def pa() -> Any:
    return pytest.importorskip("pyarrow")


def plain(value: Any) -> Any:
    """Value in a form that `==` compares as a whole."""
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, plasmon.Buffer):
        return bytes(value)
    return value.tolist() if hasattr(value, "tolist") else value


def version_of(client: plasmon.Client, name: str) -> plasmon.Version:
    _, version = client.get(name, version=True)
    assert isinstance(version, plasmon.Version)
    return version


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_takes_the_place_of_another(near: plasmon.Client, reader: plasmon.Client, kind: str) -> None:
    make, got = KINDS[kind], []
    for number in range(4):
        # The first one replaces nothing.
        assert near.put(make(number), name="a", replace=True) == plasmon.ObjectId.from_name("a")
        got.append(reader.get("a", timeout=0))
    # Who got a value keeps it.
    assert [plain(value) for value in got] == [plain(make(number)) for number in range(4)]
    assert len(near.list("a", cluster=True)) == 1


def test_a_value_replaces_the_version_that_is_expected(near: plasmon.Client, far: plasmon.Client) -> None:
    near.put(b"0", name="a")
    first = version_of(far, "a")
    near.put(b"1", name="a", replace=True, expected=first)
    second = version_of(far, "a")
    assert second != first
    with pytest.raises(plasmon.Conflict) as raised:
        far.put(bytes(100_000), name="a", replace=True, expected=first)
    assert raised.value.version == second
    assert raised.value.id == plasmon.ObjectId.from_name("a")
    assert pickle.loads(pickle.dumps(raised.value)).version == second
    assert near.get("a", version=True) == (b"1", second)
    near.delete("a")
    with pytest.raises(plasmon.ObjectNotFound):
        near.put(b"2", name="a", replace=True, expected=second)
    assert near.get("a", default=None, version=True) == (None, plasmon.ABSENT)


def test_nothing_is_a_version_as_well(near: plasmon.Client) -> None:
    for _ in range(3):
        count, version = near.get("count", default=0, version=True)
        near.put(count + 1, name="count", replace=True, expected=version)
    assert near.get("count") == 3
    with pytest.raises(plasmon.ObjectExists):
        near.put(0, name="count", replace=True, expected=plasmon.ABSENT)
    with pytest.raises(plasmon.ObjectExists):
        near.put(0, name="count", expected=plasmon.ABSENT)
    assert pickle.loads(pickle.dumps(plasmon.ABSENT)) is plasmon.ABSENT
    assert repr(plasmon.ABSENT) == "plasmon.ABSENT"


def test_no_addition_is_lost(near: plasmon.Client, far: plasmon.Client) -> None:
    near.put(0, name="sum")

    def add(client: plasmon.Client) -> None:
        for _ in range(20):
            while True:
                number, version = client.get("sum", version=True)
                try:
                    client.put(number + 1, name="sum", replace=True, expected=version)
                except plasmon.Conflict:
                    continue
                break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, [near, far] * 2))
    assert near.get("sum") == 80


def test_versions_come_with_values(near: plasmon.Client, far: plasmon.Client) -> None:
    near.put([1], name="a")
    far.put(b"2" * 100_000, name="b")
    (one, of_a), (two, of_b) = near.get(["a", "b"], version=True)
    assert (one, two) == ([1], b"2" * 100_000)
    assert (of_a, of_b) == (version_of(far, "a"), version_of(far, "b"))
    assert near.get(["b", "none"], default=0, version=True)[1] == (0, plasmon.ABSENT)
    assert near.get("none", 0.01, default=0, version=True) == (0, plasmon.ABSENT)
    assert near.get("a", version=True, type=list, copy=True, verify=True) == ([1], of_a)
    with pytest.raises(plasmon.ObjectNotFound):
        near.get("none", timeout=0, version=True)
    with pytest.raises(plasmon.TimedOut):
        near.get(["a", "none"], timeout=0.01, version=True)
    with pytest.raises(plasmon.WrongType):
        near.get("a", version=True, type=str)


def test_a_version_is_a_value(near: plasmon.Client) -> None:
    near.put(b"", name="a")
    version = version_of(near, "a")
    assert plasmon.Version(str(version)) == version
    assert pickle.loads(pickle.dumps(version)) == version
    assert len({version, plasmon.Version(str(version)), plasmon.Version("0" * 16)}) == 2
    assert repr(version) == f"Version('{version}')"
    with pytest.raises(plasmon.InvalidArgument, match="is no version"):
        plasmon.Version("1")
    with pytest.raises(plasmon.InvalidArgument, match="replace=True"):
        near.put(b"", name="a", expected=version)
    with pytest.raises(plasmon.WrongType, match="Version"):
        near.put(b"", name="a", replace=True, expected=str(version))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [10, 100_000])
def test_what_is_written_in_place_replaces_at_its_seal(
    near: plasmon.Client, far: plasmon.Client, size: int
) -> None:
    near.put(b"old", name="a")
    first = version_of(near, "a")
    creation = near.create("a", size, replace=True)
    memoryview(creation)[:] = bytes(size)
    assert near.get("a") == far.get("a") == b"old"
    second = creation.seal(expected=first)
    assert far.get("a", version=True) == (bytes(size), second)
    with pytest.raises(plasmon.Conflict), near.create("a", size, replace=True) as creation:
        creation.seal(first)
    with pytest.raises(plasmon.InvalidArgument, match="aborted"):
        creation.seal()
    with near.create("a", 1, replace=True) as creation:
        memoryview(creation)[:] = b"2"
    assert far.get("a") == b"2"
    near.create("a", 1, replace=True).abort()
    assert far.get("a") == b"2"
    creation = near.create("a", 1, replace=True)
    memoryview(creation)[:] = b"3"
    assert near.seal("a", expected=version_of(far, "a")) == version_of(far, "a")
    assert far.get("a") == b"3"
    with pytest.raises(plasmon.InvalidArgument, match="replace=True"), near.create("b", 1) as creation:
        creation.seal(first)


@pytest.mark.parametrize("size", [10, 100_000])
def test_bytes_and_memory_of_the_node_replace_as_well(
    near: plasmon.Client, far: plasmon.Client, size: int
) -> None:
    oid = plasmon.ObjectId.from_name("a")
    near.put(b"old", name="a")
    first = version_of(far, "a")
    with pytest.raises(plasmon.ObjectExists):
        near.create_and_seal("a", bytes(size), b"its own")
    near.create_and_seal("a", bytes(size), b"its own", replace=True, expected=first)
    [buffer] = far.get_buffers(["a"])
    assert (bytes(buffer), buffer.metadata) == (bytes(size), b"its own")
    with pytest.raises(plasmon.Conflict):
        near.create_and_seal(oid, b"", replace=True, expected=first)
    with pytest.raises(plasmon.ObjectExists):
        near.create_and_seal("a", b"", expected=plasmon.ABSENT)
    second, scratch = version_of(near, "a"), near.buffer(size)
    memoryview(scratch)[:] = bytes([7]) * size
    for wrong in ({}, {"expected": plasmon.ABSENT}):
        with pytest.raises(plasmon.ObjectExists):
            near.put_from(scratch, name="a", **wrong)  # type: ignore[arg-type]
    with pytest.raises(plasmon.Conflict):
        near.put_from(scratch, name="a", replace=True, expected=first)
    memoryview(scratch)[:1] = b"8"
    assert near.put_from(scratch, name="a", replace=True, expected=second) == oid
    assert far.get("a") == b"8" + bytes([7]) * (size - 1)
    with pytest.raises(BufferError, match="given up"):
        memoryview(scratch)
    # A value that is in no memory of the node is stored as by `put`.
    near.put_from(b"3", name="a", replace=True)
    assert far.get("a") == b"3"


def test_lists_and_explanations_tell_versions(near: plasmon.Client, far: plasmon.Client) -> None:
    near.put(b"0", name="a")
    for number in range(3):
        [near, far][number % 2].put(b"%d" % number, name="a", replace=True)
        version = version_of(near, "a")
        [row] = far.list("a", cluster=True)
        assert row.version == version
        assert near.list("a")[0].version == version
        assert near.explain("a")["version"] == str(version)
    far.put(b"3", name="a", replace=True, expected=near.list("a", cluster=True)[0].version)
    with near.create("b", 1) as creation:
        [row] = near.list("b")
        assert (row.state, row.version) == ("unsealed", None)
        memoryview(creation)[:] = b"b"
    assert near.explain("none")["version"] is None


def test_a_replacement_is_one_event(near: plasmon.Client, far: plasmon.Client) -> None:
    oid = near.put(b"1", name="a")
    assert far.get("a") == b"1"
    with near.subscribe() as here, far.subscribe() as there, near.subscribe(cluster=True) as everywhere:

        def told(events: plasmon.Subscription) -> plasmon.Event:
            while (event := events.next(ANTI_HANG)) is None or event.id != oid:
                assert event is not None
            return event

        assert [told(here).kind, told(there).kind] == ["sealed", "sealed"]
        assert {told(everywhere).node for _ in range(2)} == {near.node, far.node}
        near.put(b"22", name="a", replace=True)
        replaced = plasmon.Event("replaced", oid, 2, 0, 0, "a", near.node)
        deleted = plasmon.Event("deleted", oid, 0, 0, 0, "a", far.node)
        assert (told(here), told(there)) == (replaced, deleted)
        both = [told(everywhere), told(everywhere)]
        assert sorted(both, key=lambda event: event.kind) == [deleted, replaced]
        assert far.get("a") == b"22"
        assert told(there).kind == "sealed"


def test_plasma_replaces_nothing(near: plasmon.Client) -> None:
    pytest.importorskip("pyarrow")
    from plasmon import plasma

    client = plasma.connect(near.socket)
    oid = plasma.ObjectID(bytes(20))
    client.put([1], oid)
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: client.put([2], oid),
        "put_raw_buffer": lambda: client.put_raw_buffer(b"2", oid),
        "create": lambda: client.create(oid, 1),
        "create_and_seal": lambda: client.create_and_seal(oid, b"2"),
    }
    for call in calls.values():
        with pytest.raises(plasma.PlasmaObjectExists):
            call()
    assert client.get(oid) == [1]
    # What another program replaces is told as Plasma tells a new object.
    client.subscribe()
    assert client.get_next_notification()[0] == oid
    near.put(b"22", id=bytes(20), replace=True)
    assert client.get_next_notification() == (oid, 2, 0)
    client.delete([oid])
    assert client.get_next_notification() == (oid, -1, -1)
    client.disconnect()


def test_many_values_replace_each_by_itself(near: plasmon.Client, far: plasmon.Client) -> None:
    names = ["a", "b", "c", "d"]
    far.put_many([b"0", b"0"], ids=names[:2])
    values = [b"1", b"", b"2" * 100_000, pa().table({"a": [1]})]
    with pytest.raises(plasmon.ObjectExists):
        near.put_many(values, ids=names)
    near.put_many(values, ids=names, replace=True)
    assert far.get(names, timeout=0) == values


def test_tasks_replace_as_well(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client, asyncio.timeout(ANTI_HANG):
            value, version = await client.get("a", default=0, version=True)
            assert (value, version) == (0, plasmon.ABSENT)
            await client.put(1, name="a", replace=True, expected=version)
            [(_, version)] = await client.get(["a"], version=True)
            await client.put(2, name="a", replace=True, expected=version)
            with pytest.raises(plasmon.Conflict):
                await client.put(3, name="a", replace=True, expected=version)
            creation = await client.create("a", 1, replace=True)
            memoryview(creation)[:] = b"4"
            _, version = await client.get("a", version=True)
            assert isinstance(version, plasmon.Version)
            assert await client.seal("a", expected=version) is not None
            assert await client.get("a") == b"4"
            await client.put_many([5], ids=["a"], replace=True)
            assert await client.get("a") == 5

    asyncio.run(main())


def test_a_replacement_has_as_many_replicas(near: plasmon.Client, far: plasmon.Client) -> None:
    near.put(b"1", name="a", replicas=2)
    near.put(b"2", name="a", replace=True)
    until("two nodes keep the object", lambda: len(near.locations("a")) == 2)
    far.put(b"1", name="b")
    near.put(b"2", name="b", replace=True, replicas=2)
    assert len(near.locations("b")) == 2


def test_private_objects_replace_private_ones(near: plasmon.Client) -> None:
    near.put(b"for all", name="a")
    near.put(b"1", name="a", private=True, replace=True)
    near.put(b"2", name="a", private=True, replace=True)
    assert near.get("a", private=True, version=True)[0] == b"2"
    assert near.get("a") == b"for all"
