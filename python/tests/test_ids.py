"""Tests of `ObjectId`: its bytes, its names, and what is refused as an id."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import plasmon
import pytest
from plasmon import ObjectId


def test_an_id_is_its_twenty_bytes() -> None:
    data = bytes(range(20))
    oid = ObjectId(data)
    assert oid.binary() == bytes(oid) == data
    assert oid.hex() == str(oid) == data.hex()
    assert ObjectId.from_hex(data.hex()) == oid
    assert eval(repr(oid), {"ObjectId": ObjectId}) == oid
    assert len(data) == ObjectId.LENGTH


def test_ids_compare_hash_sort_and_pickle() -> None:
    low, high = ObjectId(b"a" * 20), ObjectId(b"b" * 20)
    assert low < high
    assert sorted([high, low]) == [low, high]
    assert {low: 1}[ObjectId(b"a" * 20)] == 1
    assert low != high
    assert low != b"a" * 20
    assert pickle.loads(pickle.dumps(low)) == copy.deepcopy(low) == low


def test_a_name_stands_for_the_same_id_everywhere() -> None:
    # Ids are stored, so this value never changes.
    assert ObjectId.from_name("flights").hex() == "f0efbf6af180d2b74f72f08bb109cbacf94714f1"
    assert ObjectId.random() != ObjectId.random()


@pytest.mark.parametrize("data", [b"", b"x" * 19, b"x" * 21])
def test_other_lengths_are_refused(data: bytes) -> None:
    with pytest.raises(plasmon.InvalidArgument, match="20 bytes"):
        ObjectId(data)
    with pytest.raises(plasmon.InvalidArgument, match="40 hexadecimal digits"):
        ObjectId.from_hex(data.hex())


@pytest.mark.parametrize("wrong", [None, 7, bytearray(20), ["name"]])
def test_other_types_are_refused(near: plasmon.Client, wrong: Any) -> None:
    with pytest.raises(TypeError, match="object id"):
        near.get([wrong], timeout=0)
    if wrong is not None:
        with pytest.raises(TypeError, match="object id"):
            near.put(b"", id=wrong)
    with pytest.raises(plasmon.InvalidArgument):
        near.put(b"", name="")


def test_forty_hexadecimal_digits_are_an_id_and_no_name(near: plasmon.Client) -> None:
    oid = near.put(b"value")
    text = str(oid)
    assert near.get(text, timeout=0) == near.get(text.upper(), timeout=0) == b"value"
    assert near.get([text], timeout=0, private=True) == [b"value"]
    assert near.contains(text)
    assert near.wait(text, timeout=0) == ([oid], [])
    assert near.delete(text)
    assert near.put(b"again", id=text) == oid
    assert {row.id: row.name for row in near.list()}[oid] is None
    for make in (ObjectId.from_name, lambda name: near.put(b"", name=name)):
        with pytest.raises(plasmon.InvalidArgument, match="cannot be a name"):
            make("0" * 40)
    assert near.put(b"", name="0" * 39) == ObjectId.from_name("0" * 39)


LONE = "report-\udcff.txt"
"""Name that a file may have: Python gives bytes that are no UTF-8 as lone surrogates."""


def takes_text(client: plasmon.Client) -> list[Callable[[], object]]:
    """Calls that take a text of some kind."""
    options: Any = {"node": LONE}
    return [
        lambda: ObjectId.from_name(LONE),
        lambda: ObjectId.from_private_name(LONE, 0),
        lambda: ObjectId.from_hex(LONE),
        lambda: client.put(b"", name=LONE),
        lambda: client.put(b"", id=LONE, private=True),
        lambda: client.put_many([b""], ids=[LONE]),
        lambda: client.get(LONE, timeout=0),
        lambda: client.get([LONE], default=None),
        lambda: client[LONE],
        lambda: LONE in client,
        lambda: client.delete(LONE),
        lambda: client.wait([LONE], timeout=0),
        lambda: client.list(LONE),
        lambda: len(client.mapping(LONE)),
        lambda: client.mapping()[LONE],
        lambda: client.mapping().update({LONE: 1}),
        lambda: client.broadcast(b"i" * 20, [LONE]),
        lambda: client.migrate(b"i" * 20, LONE),
        lambda: client.set_options(name=LONE),
        lambda: client.create_region(LONE, 10),
        lambda: client.create_region("region", 10, **options),
        lambda: client.map_region(LONE),
        lambda: client.lock(LONE),
        lambda: client.barrier(LONE, 2),
        lambda: client.service(LONE),
        lambda: client.serve(LONE, {"f": bytes}),
        lambda: client.serve("service", {LONE: bytes}),
        lambda: plasmon.connect(client.socket, namespace=LONE),
        lambda: plasmon.connect("/tmp/\ud800"),
        lambda: client.with_class(LONE),  # type: ignore[arg-type]
    ]


def test_texts_without_an_encoding_are_refused(near: plasmon.Client) -> None:
    for number, call in enumerate(takes_text(near)):
        with pytest.raises(plasmon.InvalidArgument) as told:
            call()
        assert "surrogate" in str(told.value), (number, told.value)
        assert str(told.value).isprintable()
    escaped = LONE.encode("utf-8", "backslashreplace").decode()
    near.put(b"found", name=escaped)
    assert near.get(escaped) == b"found"


def test_a_program_of_any_name_connects(near: plasmon.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [LONE])
    with plasmon.connect(near.socket) as client:
        client.subscribe().close()
        assert client.get(near.put(b"here")) == b"here"
    with pytest.raises(plasmon.WrongType, match="path of a socket"):
        plasmon.connect(5)  # type: ignore[arg-type]


def test_users_and_arguments_without_an_encoding_are_refused(near: plasmon.Client) -> None:
    with near.create_region("texts", 10) as region, near.serve("texts", {"f": bytes}):
        for wrong in ("\ud800", "a\0b"):
            arguments: Any = {"arguments": [wrong]}, {"memory": wrong}, {"environment": {"A": wrong}}
            calls: list[Callable[[], object]] = [
                partial(near.serve, "x", {"f": bytes}, allow=[wrong]),
                partial(near.service, "texts", owner=wrong),
                partial(region.grant, wrong, "r"),
                *(partial(plasmon.LocalCluster, 1, **options) for options in arguments),
            ]
            for call in calls:
                with pytest.raises(plasmon.InvalidArgument) as told:
                    call()
                assert str(told.value).isprintable()
        region.free()
