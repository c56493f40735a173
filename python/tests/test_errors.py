"""Tests of what exceptions tell programs: the object, by the name that the program gave it, and amounts."""

from __future__ import annotations

import asyncio
import pickle

import plasmon
import plasmon.aio
import pytest


def test_errors_name_what_the_program_named(near: plasmon.Client) -> None:
    flights = plasmon.ObjectId.from_name("flights")
    text = f"object 'flights' ({flights}) is not in the cluster"
    for get in (
        lambda: near.get("flights", timeout=0),
        lambda: near.get(["flights"], timeout=0),
        lambda: near.get_buffers(("flights",), timeout=0),
        lambda: near.pin("flights", timeout=0),
        lambda: near.get_into("flights", bytearray(1), timeout=0),
        lambda: near.metadata("flights", timeout=0),
    ):
        with pytest.raises(plasmon.ObjectNotFound) as missed:
            get()
        error = missed.value
        assert str(error).startswith(text)
        assert (error.id, error.name, error.needed, error.held) == (flights, "flights", None, None)
    with pytest.raises(plasmon.TimedOut) as late:
        near.get(["flights"], timeout=0.01)
    assert (late.value.id, late.value.name) == (flights, "flights")
    again = pickle.loads(pickle.dumps(late.value))
    assert (again.id, again.name, str(again)) == (flights, "flights", str(late.value))


def test_errors_name_private_objects_and_leave_ids_alone(near: plasmon.Client) -> None:
    mine = plasmon.ObjectId.from_private_name("diary", near.user)
    with pytest.raises(plasmon.ObjectNotFound, match=f"object 'diary' \\({mine}\\)") as missed:
        near.get("diary", timeout=0, private=True)
    assert (missed.value.id, missed.value.name) == (mine, "diary")
    for given in (mine, mine.binary(), mine.hex()):
        with pytest.raises(plasmon.ObjectNotFound, match=f"object {mine} is") as missed:
            near.get(given, timeout=0)
        assert (missed.value.id, missed.value.name) == (mine, None)


def test_errors_of_puts(near: plasmon.Client) -> None:
    near.put(1, name="taken")
    with pytest.raises(plasmon.ObjectExists, match=r"object 'taken' \(") as taken:
        near.put(2, name="taken")
    assert (taken.value.id, taken.value.name) == (plasmon.ObjectId.from_name("taken"), "taken")
    with pytest.raises(plasmon.TooFewReplicas, match=r"object 'many' \(") as few:
        near.put(3, name="many", replicas=9, timeout=30)
    assert (few.value.name, few.value.needed) == ("many", 9)
    assert few.value.held is not None
    assert 1 <= few.value.held < 9
    near.delete("many")


def test_a_full_store_tells_bytes() -> None:
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        client = cluster.client()
        client.put(bytes(30 << 20), name="first")
        with pytest.raises(plasmon.StoreFull) as full:
            client.put(bytes(40 << 20), name="second")
        error = full.value
        assert error.needed is not None
        assert error.held is not None
        assert error.needed >= 40 << 20
        assert 30 << 20 <= error.held <= 64 << 20
        assert (error.id, error.name) == (plasmon.ObjectId.from_name("second"), "second")


def test_errors_of_tasks(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            for get in (client.get("flights", timeout=0), client.get(["x", "flights"], timeout=0.01)):
                with pytest.raises(plasmon.Error) as missed:
                    await get
                assert missed.value.name in ("x", "flights")
                assert f"'{missed.value.name}' ({missed.value.id})" in str(missed.value)

    asyncio.run(main())
