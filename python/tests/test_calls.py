"""Tests of calls and their errors."""

from __future__ import annotations

import asyncio
import math
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import plasmon
import plasmon.aio
import plasmon.plasma
import pytest
from plasmon import ObjectId

MEBI = 1 << 20


def test_many_are_got_in_order(near: plasmon.Client, reader: plasmon.Client) -> None:
    ids = [near.put(str(number).encode()) for number in range(1500)]
    values = reader.get(ids, timeout=30)
    assert [int(bytes(value)) for value in values] == list(range(1500))
    assert reader.contains(ids) == [True] * 1500
    assert near.delete(ids) == [True] * 1500
    assert not any([near.get([]), near.get_buffers([]), near.contains([]), near.delete([])])


def test_names(near: plasmon.Client, reader: plasmon.Client) -> None:
    oid = near.put(b"named", name="a name")
    assert oid == plasmon.ObjectId.from_name("a name")
    assert reader.get("a name", timeout=30) == reader.get(oid) == reader.get(oid.binary()) == b"named"
    assert [row.name for row in near.list() if row.id == oid] == ["a name"]
    assert near.delete("a name") is True
    assert near.put(b"", id="another") == plasmon.ObjectId.from_name("another")
    assert near.delete("another") is True
    with pytest.raises(plasmon.InvalidArgument, match="two names"):
        near.put(b"", id="one", name="two")
    with pytest.raises(plasmon.InvalidArgument, match="stands for"):
        near.put(b"", id=plasmon.ObjectId.random(), name="two")
    with pytest.raises(plasmon.InvalidArgument, match="limit of 255"):
        near.put(b"", name="n" * 256)


def test_list_tells_of_every_object(near: plasmon.Client) -> None:
    oid = near.put(b"12345", name="listed", private=True)
    half = near.create(plasmon.ObjectId.random(), MEBI, b"md")
    held = near.get(oid)
    rows = {row.id: row for row in near.list()}
    row = rows[oid]
    assert (row.name, row.state, row.private, row.size, row.pins) == ("listed", "primary", True, 5, 1)
    assert row.age >= 0
    row = rows[half.id]
    assert (row.name, row.state, row.private, row.size, row.metadata_size) == (
        None,
        "unsealed",
        False,
        MEBI,
        2,
    )
    half.abort()
    assert half.id not in {row.id for row in near.list()}
    near.delete(oid)
    assert [row.state for row in near.list() if row.id == oid] in (["doomed"], [])
    del held


def test_status(near: plasmon.Client, cluster: plasmon.LocalCluster) -> None:
    status = near.status()
    assert status["node"] == near.node
    assert status["pid"] == cluster.pids[0]
    assert status["socket"] == near.socket == cluster.sockets[0]
    assert len(status["cluster"]["members"]) == 2
    assert status["memory"]["capacity"] == 256 * MEBI


def test_an_id_is_created_once(near: plasmon.Client, far: plasmon.Client) -> None:
    oid = near.put(b"first")
    for data in [b"second", bytes(MEBI)]:
        with pytest.raises(plasmon.ObjectExists, match=oid.hex()):
            near.put(data, id=oid)
    with pytest.raises(plasmon.ObjectExists, match=oid.hex()):
        near.create(oid, 1)
    assert near.get(oid) == b"first"
    creation = near.create(plasmon.ObjectId.random(), 1)
    with pytest.raises(plasmon.ObjectExists):
        near.create(creation.id, 1)
    creation.abort()
    near.create(creation.id, 1).abort()


def test_what_is_deleted_is_gone(near: plasmon.Client, far: plasmon.Client) -> None:
    oid = near.put(b"short-lived")
    assert far.get(oid, timeout=30) == b"short-lived"
    assert near.delete(oid) is True
    assert near.delete(oid) is False
    assert near.contains(oid) is False
    with pytest.raises(plasmon.TimedOut):
        near.get(oid, timeout=0.05)


def test_a_get_ends_with_its_time(near: plasmon.Client) -> None:
    there = near.put(b"there")
    missing = plasmon.ObjectId.random()
    with pytest.raises(plasmon.TimedOut, match=missing.hex()) as late:
        near.get([there, missing], timeout=0.05)
    assert isinstance(late.value, TimeoutError)
    with pytest.raises(plasmon.ObjectNotFound, match=missing.hex()) as absent:
        near.get([there, missing], timeout=0)
    assert isinstance(absent.value, KeyError)
    assert str(absent.value).startswith("object")


@pytest.mark.parametrize("timeout", [-1, float("nan"), -0.001])
def test_a_time_that_is_none_is_refused(near: plasmon.Client, timeout: float) -> None:
    with pytest.raises(plasmon.InvalidArgument, match="number of seconds"):
        near.get("x", timeout=timeout)


def test_infinity_is_for_ever(near: plasmon.Client) -> None:
    assert near.get(near.put(b"x"), timeout=float("inf")) == b"x"


@pytest.mark.parametrize("size", [-1, 1 << 63, 1 << 70])
def test_sizes_that_are_none_are_refused(near: plasmon.Client, size: int) -> None:
    with pytest.raises(plasmon.InvalidArgument, match=f"not {size}"):
        near.create("x", size)


def test_arguments_of_other_types_are_refused(near: plasmon.Client) -> None:
    wrong: Any = near
    with pytest.raises(TypeError):
        wrong.create("x", "1")
    with pytest.raises(TypeError):
        wrong.create("x", 1, "text")
    with pytest.raises(TypeError, match="must be real number, not str"):
        wrong.get("x", timeout="1")
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        near.put(lambda: 0)


WRONG: dict[str, tuple[Callable[[Any], object], str]] = {
    "get": (
        lambda client: client.get(5),
        "ids are an ObjectId, 20 bytes or a name, or a list of these, not int",
    ),
    "get of one of many": (lambda client: client.get(["x", 5]), "an object id is an ObjectId, .* not int"),
    "get of none": (lambda client: client.get(None, default=1), "not NoneType"),
    "get_buffers": (lambda client: client.get_buffers(5), "not int"),
    "get_into": (lambda client: client.get_into(5, bytearray(1)), "not int"),
    "wait": (lambda client: client.wait(5), "not int"),
    "contains": (lambda client: client.contains(5.0), "not float"),
    "delete": (lambda client: client.delete(5), "not int"),
    "prefetch": (lambda client: client.prefetch(5), "not int"),
    "of private objects": (lambda client: client.get(5, private=True), "not int"),
    "type": (lambda client: client.get("here", type=7), "type= is a type .* not 7"),
    "types": (lambda client: client.get(["here"], default=1, type=(int, str)), "type= is a type"),
    "put by id": (lambda client: client.put(1, id=5), "an object id is an ObjectId, .* not int"),
    "put by name": (lambda client: client.put(1, name=5), "a name is a str, not int"),
    "ttl": (lambda client: client.put(1, ttl="1"), "^argument 'ttl': must be real number, not str"),
    "replicas": (lambda client: client.put_many([1], replicas=1.5), "^argument 'replicas': .*float"),
    "mapping": (lambda client: client.mapping(5), "the prefix of names is a str, not int"),
    "key": (lambda client: client.mapping().setdefault(5, 1), "a name is a str, not int"),
    "namespace": (
        lambda client: type(client)(client.socket, namespace=5),
        "a namespace is a str, not int",
    ),
    "item": (
        lambda client: client.__setitem__("x", 1),
        r"name='x', replace=True\).*client.mapping\(\)\['x'\] = value",
    ),
    "item by id": (lambda client: client.__setitem__(5, 1), "objects never change: .*name='NAME'"),
    "mapping of values": (
        lambda client: client.put_many({"a": 1}),
        r"put_many\(m.values\(\), ids=m.keys\(\)\)",
    ),
    "a text of values": (lambda client: client.put_many("ab"), "put_many takes values in a list .* not str"),
    "a value": (lambda client: client.put_many(5), "put_many takes values in a list .* not int"),
    "a text of ids": (
        lambda client: client.put_many([1, 2], ids="ab"),
        "put_many takes ids in a list .* not str",
    ),
}


@pytest.mark.parametrize("call", WRONG)
def test_wrong_types_are_errors_that_say_what_is_right(near: plasmon.Client, call: str) -> None:
    near.put(b"here", name="here")
    wrong, text = WRONG[call]
    with pytest.raises(plasmon.WrongType, match=text) as raised:
        wrong(near)
    assert isinstance(raised.value, TypeError)
    assert [row.name for row in near.list()] == ["here"], "nothing was stored"


def test_wrong_types_are_errors_of_tasks_too(near: plasmon.Client) -> None:
    for call in (
        lambda aio: aio.get(5),
        lambda aio: aio.get("x", type=7),
        lambda aio: aio.wait(5),
        lambda aio: aio.put_many({"a": 1}),
    ):
        with pytest.raises(plasmon.WrongType):
            asyncio.run(in_aio(near, call))


def test_a_value_of_another_type_names_its_object(near: plasmon.Client) -> None:
    id = near.put({"a": 1})
    with pytest.raises(plasmon.WrongType, match="is of type dict, not list") as raised:
        near.get(id, type=list)
    assert raised.value.id == id


def test_a_mapping_is_put_as_the_message_says(near: plasmon.Client) -> None:
    values = {"one": 1, "two": [2]}
    near.put_many(values.values(), ids=values.keys())
    assert {name: near[name] for name in values} == values


def test_messages_of_python_name_the_client(near: plasmon.Client) -> None:
    wrong: Any = near
    for call in (lambda: wrong.put(1, nme="x"), wrong.put, lambda: wrong.get("x", 1, 2), wrong.migrate):
        with pytest.raises(TypeError, match=r"^Client\.(put|get|migrate)\(\) "):
            call()
    assert pickle.loads(pickle.dumps(plasmon.Client.put)) is plasmon.Client.put

    class Mine(plasmon.Client):
        def mine(self) -> None: ...

    assert Mine.mine.__qualname__.endswith("Mine.mine")


def test_a_full_store_says_so_and_recovers() -> None:
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        client = cluster.client()
        with pytest.raises(plasmon.ObjectTooLarge):
            client.put(bytes(65 * MEBI))
        ids: list[plasmon.ObjectId] = []

        def fill() -> None:
            while len(ids) < 64:
                ids.append(client.put(bytes(4 * MEBI)))

        with pytest.raises(plasmon.StoreFull):
            fill()
        assert len(ids) >= 8
        held = client.get(ids[0])
        client.delete(ids)
        client.put(bytes(4 * MEBI))
        del held


def test_a_closed_client_says_so(cluster: plasmon.LocalCluster, near: plasmon.Client) -> None:
    client = cluster.connect()
    assert not client.closed
    client.close()
    client.close()
    assert client.closed
    with pytest.raises(plasmon.Disconnected, match="closed"):
        client.status()
    with pytest.raises(plasmon.Disconnected, match="closed"):
        client.put(b"")
    with pytest.raises(plasmon.Disconnected, match="closed"):
        client.get("x")
    assert "closed" in repr(client)


def test_a_node_that_is_not_there(tmp_path: Any) -> None:
    with pytest.raises(plasmon.Disconnected, match="plasmon serve") as raised:
        plasmon.connect(tmp_path / "none.sock")
    assert isinstance(raised.value, ConnectionError)


def test_the_default_socket_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.delenv("PLASMON_SOCKET", raising=False)
    assert plasmon.default_socket() == "/run/user/7/plasmon/plasmon.sock"
    monkeypatch.setenv("PLASMON_SOCKET", "/somewhere/p.sock")
    assert plasmon.default_socket() == "/somewhere/p.sock"


TIMED: dict[str, Callable[[plasmon.Client, float], object]] = {
    "get": lambda client, timeout: client.get("here", timeout),
    "get of several": lambda client, timeout: client.get(["here"], timeout=timeout),
    "get of none": lambda client, timeout: client.get([], timeout=timeout),
    "get_buffers": lambda client, timeout: client.get_buffers(["here"], timeout),
    "get_into": lambda client, timeout: client.get_into("here", bytearray(4), timeout),
    "wait": lambda client, timeout: client.wait(["here"], timeout=timeout),
    "metadata": lambda client, timeout: client.metadata("here", timeout),
    "hash": lambda client, timeout: client.hash("here", timeout),
    "verify": lambda client, timeout: client.verify("here", timeout),
    "pin": lambda client, timeout: client.pin("here", timeout),
    "prefetch": lambda client, timeout: client.prefetch(["here"], timeout),
    "replicate": lambda client, timeout: client.replicate("here", 1, timeout),
    "migrate": lambda client, timeout: client.migrate("here", client.node, timeout),
    "broadcast": lambda client, timeout: client.broadcast("here", [client.node], timeout),
    "broadcast to none": lambda client, timeout: client.broadcast("here", [], timeout),
    "put": lambda client, timeout: client.put(b"", timeout=timeout),
    "put_many": lambda client, timeout: client.put_many([b""], timeout=timeout),
    "create": lambda client, timeout: client.create(ObjectId.random(), 1, timeout=timeout).abort(),
    "create_and_seal": lambda client, timeout: client.create_and_seal(
        ObjectId.random(), b"", timeout=timeout
    ),
    "buffer": lambda client, timeout: client.buffer(1, timeout=timeout),
    "put_from": lambda client, timeout: client.put_from(client.buffer(1), timeout=timeout),
    "next": lambda client, timeout: client.subscribe().next(timeout),
    "plasma get": lambda client, timeout: plasma(client).get(named("here"), timeout_ms=timeout * 1000),
    "plasma get_buffers": lambda client, timeout: plasma(client).get_buffers([named("here")], timeout * 1000),
    "plasma get_metadata": lambda client, timeout: plasma(client).get_metadata(
        [named("here")], timeout * 1000
    ),
    "aio get": lambda client, timeout: asyncio.run(in_aio(client, lambda aio: aio.get("here", timeout))),
    "aio get_buffers": lambda client, timeout: asyncio.run(
        in_aio(client, lambda aio: aio.get_buffers(["here"], timeout))
    ),
    "aio wait": lambda client, timeout: asyncio.run(
        in_aio(client, lambda aio: aio.wait(["here"], timeout=timeout))
    ),
    "aio put": lambda client, timeout: asyncio.run(in_aio(client, lambda aio: aio.put(1, timeout=timeout))),
}


def plasma(client: plasmon.Client) -> Any:
    return plasmon.plasma.connect(client.socket)


def named(name: str) -> plasmon.plasma.ObjectID:
    return plasmon.plasma.ObjectID(ObjectId.from_name(name).binary())


async def in_aio(client: plasmon.Client, call: Callable[[plasmon.aio.Client], Awaitable[Any]]) -> Any:
    async with plasmon.aio.connect(client.socket) as aio:
        return await call(aio)


@pytest.mark.parametrize("call", TIMED)
def test_time_outs_are_the_same_everywhere(near: plasmon.Client, call: str) -> None:
    client = plasmon.connect(near.socket)
    client.put(b"here", name="here")
    for wrong in [-2.0, -1e-9, math.nan, -math.inf]:
        with pytest.raises(ValueError, match="a time-out is a number of seconds, 0 or more") as raised:
            TIMED[call](client, wrong)
        assert isinstance(raised.value, plasmon.InvalidArgument)
    for right in [30, 0.5, math.inf, 1e300]:
        TIMED[call](client, right)
    client.close()


def test_an_object_lives_for_more_than_no_time(near: plasmon.Client) -> None:
    for wrong in [0, -1, math.nan, -math.inf]:
        with pytest.raises(plasmon.InvalidArgument, match="lives for more than 0 seconds"):
            near.put(b"", ttl=wrong)
    near.put(b"", ttl=math.inf)


def test_a_replica_that_is_here_takes_no_time(near: plasmon.Client) -> None:
    id = near.put(b"here")
    assert near.replicate(id, 1, timeout=0).holders == [near.node]


DECEIVING = "\x1b[31m \x07\r\n\x7f\x9b \u202e\u2066 \u2028 \u200b\u200f \U000e0041"


def test_messages_show_what_would_deceive_as_escapes(near: plasmon.Client) -> None:
    calls: list[Callable[[], object]] = [
        lambda: near.put(b"", name=DECEIVING * 20),
        lambda: near.put(b"", id=DECEIVING, name="other"),
        lambda: near.get(DECEIVING, timeout=0),
        lambda: plasmon.connect("/nowhere/" + DECEIVING),
        lambda: near.migrate("here", DECEIVING),
        lambda: plasmon.ObjectId.from_hex(DECEIVING),
        lambda: near.get(
            near.create_and_seal(ObjectId.random(), b"", b'PLPY\x01{"kind":"\x1b\xe2\x80\xae"}')
        ),
    ]
    messages = []
    for call in calls:
        with pytest.raises(plasmon.Error) as raised:
            call()
        messages.append(str(raised.value))
    near.set_options(name=DECEIVING)
    held = [near.create(ObjectId.random(), 100 << 20) for _ in range(2)]
    with pytest.raises(plasmon.StoreFull) as full:
        near.put(bytes(100 << 20))
    near.set_options(name="pytest")
    messages.append(str(full.value))
    for creation in held:
        creation.abort()
    messages.append(str(plasmon.Error(DECEIVING + "\ud800")))
    messages.append(repr(near))
    for message in messages:
        assert all(char.isprintable() or char == "\n" for char in message), ascii(message)
    assert r"\u{1b}[31m" in messages[3]
    assert r"\u{202e}" in messages[3]
    assert "\n" not in messages[3]
