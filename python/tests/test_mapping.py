"""Tests of named objects as a mapping, also against zict's own tests where zict is installed."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import plasmon
import pytest
from conftest import ANTI_HANG, seen_beside, until


@pytest.fixture
def mapping(near: plasmon.Client) -> plasmon.NamedObjects:
    return near.mapping("cache/")


def test_a_client_finds_names(near: plasmon.Client, far: plasmon.Client) -> None:
    with pytest.raises(plasmon.ObjectNotFound):
        near["a"]
    with pytest.raises(KeyError):
        del near["a"]
    near.put([1, 2], name="a")
    near.put(b"", name="b")
    near.put("without a name")
    near.put(b"", name="c", private=True)
    for client in (near, far):
        assert client["a"] == [1, 2]
        assert "a" in client
        assert plasmon.ObjectId.from_name("b") in client
        assert "c" not in client
        assert 7 not in client
        assert list(client) == ["a", "b"]
        assert len(client) == 2
    del far["a"]
    assert "a" not in near


def test_a_client_of_an_empty_store_is_true(near: plasmon.Client) -> None:
    assert len(near) == 0
    assert near


def test_a_prefix_is_left_out_of_keys(near: plasmon.Client, far: plasmon.Client) -> None:
    mapping = near.mapping("cache/")
    near.put(b"other", name="other")
    mapping["b"] = 2
    mapping["a"] = 1
    assert near.get("cache/a") == 1
    assert dict(far.mapping("cache/")) == {"a": 1, "b": 2}
    assert list(far.mapping("cache/")) == ["a", "b"]
    del mapping["a"]
    assert "a" not in far.mapping("cache/")
    mapping.clear()
    assert len(mapping) == 0
    assert "other" in near


def test_a_prefix_is_no_pattern(near: plasmon.Client) -> None:
    near.put(b"", name="ab/1")
    near.put(b"", name="a*[b]?/1")
    assert list(near.mapping("a*")) == ["[b]?/1"]
    assert list(near.mapping("a*[b]?/")) == ["1"]
    assert list(near.mapping("a")) == ["*[b]?/1", "b/1"]
    longest = "*" * 254
    near.mapping(longest)["k"] = 1
    assert list(near.mapping(longest)) == ["k"]
    assert list(near.mapping(longest + "k")) == [""]


@pytest.mark.parametrize("size", [10, 1 << 20])
def test_setting_replaces_and_leaves_values_that_were_got(mapping: plasmon.NamedObjects, size: int) -> None:
    mapping["a"] = b"1" * size
    old = mapping["a"]
    mapping["a"] = b"2" * size
    assert old == b"1" * size
    assert mapping["a"] == b"2" * size


def test_values_of_all_kinds_replace_large_ones(mapping: plasmon.NamedObjects) -> None:
    np, pa = pytest.importorskip("numpy"), pytest.importorskip("pyarrow")
    array = np.arange(100_000)
    for value in (array, pa.table({"a": array}), {"b": array, "c": array[:3]}, b"bytes"):
        mapping["a"] = value
        got = mapping["a"]
        if isinstance(value, dict):
            assert (got["b"] == array).all()
            assert (got["c"] == array[:3]).all()
        else:
            same = got == value
            assert same if isinstance(same, bool) else same.all()


def test_a_value_without_room_leaves_the_old_one(mapping: plasmon.NamedObjects) -> None:
    mapping["a"] = bytes(100 << 20)
    with pytest.raises(plasmon.StoreFull):
        mapping["a"] = bytes(200 << 20)
    assert len(mapping["a"]) == 100 << 20


def test_a_setter_waits_for_a_creation(near: plasmon.Client, far: plasmon.Client) -> None:
    creation = near.create("cache/a", 5)
    with ThreadPoolExecutor(1) as pool:
        setting = pool.submit(far.mapping("cache/").__setitem__, "a", b"second")
        memoryview(creation)[:] = b"first"
        creation.seal()
        setting.result(ANTI_HANG)
    until("the second value", lambda: near.mapping("cache/").get("a") == b"second")


def test_a_setter_does_not_wait_for_ever(near: plasmon.Client) -> None:
    with near.create("cache/a", 5), pytest.raises(plasmon.TimedOut):
        near.mapping("cache/", timeout=0.1)["a"] = 1


def test_writers_of_one_key_leave_one_value(near: plasmon.Client, far: plasmon.Client) -> None:
    at_once = threading.Barrier(4)

    def write(number: int) -> None:
        mapping = (near, far)[number % 2].mapping("cache/")
        at_once.wait()
        for turn in range(20):
            mapping["a"] = (number, turn)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    number, turn = near.mapping("cache/")["a"]
    assert (number in range(4), turn) == (True, 19)


@pytest.mark.parametrize("size", [10, 100_000])
def test_a_reader_beside_a_writer_misses_nothing(
    near: plasmon.Client, reader: plasmon.Client, size: int
) -> None:
    written, read = near.mapping("cache/"), reader.mapping("cache/")

    def write(number: int) -> None:
        written["a"] = (number, bytes(size))

    seen = seen_beside(write, lambda: read["a"][0], 200)
    assert seen == sorted(seen)


def test_setdefault_gives_all_the_same_value(near: plasmon.Client, far: plasmon.Client) -> None:
    at_once = threading.Barrier(4)

    def choose(number: int) -> object:
        mapping = (near, far)[number % 2].mapping("cache/")
        at_once.wait()
        return mapping.setdefault("a", number)

    with ThreadPoolExecutor(4) as pool:
        [chosen] = set(pool.map(choose, range(4)))
    assert near.mapping("cache/").setdefault("a", "late") == chosen


def test_one_pops_a_value(near: plasmon.Client, far: plasmon.Client) -> None:
    near.mapping()["a"] = 1
    at_once = threading.Barrier(4)

    def pop(number: int) -> object:
        mapping = (near, far)[number % 2].mapping()
        at_once.wait()
        return mapping.pop("a", None)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(map(str, pool.map(pop, range(4)))) == ["1", "None", "None", "None"]
    with pytest.raises(plasmon.ObjectNotFound):
        near.mapping().pop("a")


def test_items_leave_out_what_is_deleted_meanwhile(mapping: plasmon.NamedObjects) -> None:
    mapping.update(a=1, b=2, c=3)
    items, values = iter(mapping.items()), iter(mapping.values())
    assert (next(items), next(values)) == (("a", 1), 1)
    del mapping["b"]
    assert (next(items), next(values)) == (("c", 3), 3)


def test_private_objects_are_a_mapping_of_their_own(near: plasmon.Client) -> None:
    private = near.mapping(private=True)
    private["a"] = "mine"
    near.mapping()["a"] = "for all"
    assert dict(private) == {"a": "mine"}
    assert dict(near.mapping()) == {"a": "for all"}
    private.clear()
    assert list(near) == ["a"]


def test_a_mapping_keeps_its_terms(near: plasmon.Client) -> None:
    near.mapping(replicas=2)["a"] = 1
    assert len(near.locations("a")) == 2
    near.mapping(ttl=0.01)["b"] = 1
    until("the end of its time", lambda: "b" not in near)


def test_a_mapping_is_pickled_with_its_client(near: plasmon.Client) -> None:
    near.mapping("cache/")["a"] = 1
    with plasmon.connect(near.socket) as client:
        mapping = pickle.loads(pickle.dumps(client.mapping("cache/", public="rw")))
        assert dict(mapping) == {"a": 1}


def test_it_is_a_mapping_as_zict_tests_it(mapping: plasmon.NamedObjects) -> None:
    pytest.importorskip("zict")
    from zict.tests import utils_test

    utils_test.check_mapping(mapping)
    mapping.clear()
    utils_test.check_bad_key_types(mapping)
    utils_test.check_different_keys_threadsafe(mapping)
    utils_test.check_same_key_threadsafe(mapping)


def test_it_is_the_slow_side_of_a_buffer_of_zict(mapping: plasmon.NamedObjects) -> None:
    zict = pytest.importorskip("zict")
    buffer = zict.Buffer({}, mapping, n=10, weight=lambda key, value: len(value))
    buffer["a"] = b"1234"
    buffer["b"] = b"5678"
    buffer["c"] = b"9012"
    assert list(mapping) == ["a"]
    assert buffer["a"] == b"1234"
    assert set(buffer) == {"a", "b", "c"}
    del buffer["a"]
    assert "a" not in mapping
    buffer.close()


def test_it_is_the_data_of_a_cache_of_zict(mapping: plasmon.NamedObjects) -> None:
    zict = pytest.importorskip("zict")
    cache: dict[str, object] = {}
    cached = zict.Cache(mapping, cache, update_on_set=False)
    cached["a"] = [1]
    assert cached["a"] is cached["a"]
    assert mapping["a"] == [1]
    cached.close()
