"""Tests of `ObjectId`: its bytes, its names, and what is refused as an id."""

from __future__ import annotations

import copy
import pickle
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
