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
