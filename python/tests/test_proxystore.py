"""Tests of the connector of ProxyStore, by the protocol that ProxyStore documents."""

from __future__ import annotations

import pickle
import subprocess
import sys

import plasmon
import pytest
from conftest import ANTI_HANG, is_in_store, seen_beside

proxystore = pytest.importorskip("proxystore")

import numpy as np  # noqa: E402
from plasmon.proxystore import PlasmonConnector, PlasmonKey  # noqa: E402
from proxystore.connectors.protocols import Connector, DeferrableConnector  # noqa: E402
from proxystore.proxy import Proxy  # noqa: E402
from proxystore.store import Store  # noqa: E402


def got(connector: PlasmonConnector, key: PlasmonKey) -> bytes:
    data = connector.get(key)
    assert data is not None
    return bytes(data)


@pytest.fixture
def connector(near: plasmon.Client) -> PlasmonConnector:
    return PlasmonConnector(near.socket)


def test_it_follows_the_protocols(connector: PlasmonConnector) -> None:
    assert isinstance(connector, Connector)
    assert isinstance(connector, DeferrableConnector)


def test_objects_come_and_go(connector: PlasmonConnector) -> None:
    key = connector.put(b"data")
    assert connector.exists(key)
    assert got(connector, key) == b"data"
    connector.evict(key)
    assert not connector.exists(key)
    assert connector.get(key) is None
    connector.evict(key)


def test_batches(connector: PlasmonConnector) -> None:
    keys = connector.put_batch([b"1", bytearray(b"22"), memoryview(b"333")])
    missing = connector.new_key()
    assert connector.get_batch([*keys, missing]) == [b"1", b"22", b"333", None]
    assert connector.put_batch([]) == []
    assert connector.get_batch([]) == []


def test_an_object_follows_its_key(connector: PlasmonConnector) -> None:
    key = connector.new_key()
    assert not connector.exists(key)
    assert connector.get(key) is None
    connector.set(key, b"later")
    assert got(connector, key) == b"later"
    assert connector.new_key(b"later") != key


def test_a_reader_beside_one_who_sets_a_key_again_always_finds_an_object(
    connector: PlasmonConnector, reader: plasmon.Client
) -> None:
    key, there = connector.new_key(), PlasmonConnector(reader.socket)

    def write(number: int) -> None:
        connector.set(key, b"%d " % number + bytes(70_000 * (number % 2)))

    def read() -> int:
        assert there.exists(key)
        return int(got(there, key).split()[0])

    seen = seen_beside(write, read, 100)
    assert seen == sorted(seen)


def test_keys_and_connectors_travel(
    connector: PlasmonConnector, near: plasmon.Client, far: plasmon.Client
) -> None:
    key = pickle.loads(pickle.dumps(connector.put(b"data")))
    assert isinstance(key, PlasmonKey)
    again = PlasmonConnector.from_config(connector.config())
    assert again.config() == connector.config()
    assert repr(again) == repr(connector)
    assert got(again, key) == b"data"
    assert got(PlasmonConnector(far.socket), key) == b"data"
    assert PlasmonConnector(far.socket, replicas=2, ttl=60).config()["replicas"] == 2


def test_a_closed_connector_leaves_objects(near: plasmon.Client) -> None:
    with PlasmonConnector(near.socket) as connector:
        key = connector.put(b"data")
    connector.close()
    assert got(PlasmonConnector(near.socket), key) == b"data"


def test_bytes_are_read_in_place(connector: PlasmonConnector) -> None:
    data = connector.get(connector.put(bytes(1 << 20)))
    assert data is not None
    assert is_in_store(np.frombuffer(data, np.uint8).ctypes.data)


PROGRAM = """
import pickle, sys
from proxystore.proxy import is_resolved

proxy = pickle.loads(bytes.fromhex(sys.argv[1]))
assert not is_resolved(proxy)
assert proxy.sum() == 499_999_500_000
"""


def test_a_proxy_is_resolved_by_another_program(connector: PlasmonConnector) -> None:
    with Store("tests", connector) as store:
        proxy: Proxy[np.ndarray] = store.proxy(np.arange(1_000_000))
        sent = pickle.dumps(proxy).hex()
        subprocess.run([sys.executable, "-c", PROGRAM, sent], check=True, timeout=ANTI_HANG)
        same = Store.from_config(store.config())
        assert same.connector.config() == connector.config()


def test_a_future_is_set_later(connector: PlasmonConnector) -> None:
    with Store("futures", connector) as store:
        future = store.future(polling_interval=0.01)
        proxy = future.proxy()
        assert not future.done()
        future.set_result({"a": 1})
        assert proxy["a"] == 1
