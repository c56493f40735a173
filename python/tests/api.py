"""The public calls of `plasmon` and `plasmon.aio`, as introspection finds them, and how to make each of them.

A call of the API that takes an argument has a row in `ROWS`, or a reason in `LEFT_OUT`. So a call that is
added is walked by the tests of time-outs (`test_time_outs.py`) and of odd arguments
(`test_odd_arguments.py`), or fails them.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import itertools
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import plasmon
import plasmon.aio
from conftest import ANTI_HANG

_T = TypeVar("_T")

_OPERATORS = ("__getitem__", "__setitem__", "__delitem__", "__contains__")
_MADE_BY_USERS = ("Client", "LocalCluster", "ObjectId", "Version")
"""Classes whose objects are not made by a call of another object."""
_INHERITED = (object, tuple, BaseException)
"""Classes whose methods are Python's own."""

LEFT_OUT = {
    "Buffer": "it is used as bytes are, and raises what they raise",
    "LocalCluster": "it starts processes; test_cluster.py has its wrong arguments",
    "LocalCluster.connect": "as Client",
    "LocalCluster.kill": "it ends nodes",
    "LocalCluster.stop": "it ends nodes",
    "NamedObjects.update": "it is Python's own, of __setitem__",
    "aio.connect": "it is Client, in a thread",
    **dict.fromkeys(
        (
            *("Region.copy_to", "Region.describe", "Region.give", "Region.move_to", "Region.withdraw"),
            *("Server.receive", "Service.ask", "Service.await_call"),
            *("Barrier.begin", "Lock.begin", "Lock.take"),
        ),
        "the native part of another call",
    ),
    "aio.Client": "it takes over a client",
}
"""Calls that are not walked, with the reason."""


class World:
    """Objects of a cluster that calls are made on. The home of regions, services and some locks is another
    node than that of the client."""

    def __init__(self, cluster: plasmon.LocalCluster) -> None:
        self._stack = contextlib.ExitStack()
        # Other tests use the cluster's own clients, and see what these have under way.
        near, far = self._enter(cluster.connect(0)), self._enter(cluster.connect(1))
        self.cluster = cluster
        self.client = near
        self.far = far
        self._numbers = itertools.count()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.tasks = self.run(self._connect())
        self.array = near.put(bytes(1000), name=self.name())
        self.server = self._enter(far.serve(self.name(), {"echo": bytes}, threads=8))
        self.values = self._enter(far.serve(self.name(), {"echo": lambda *args: args}, values=True))
        self.local = self.region(near)
        self.region_of_far = self.region(far)
        self.told = self._enter(near.region_events())
        # The same objects, of the connection that the event loop watches.
        self.inner = copy.copy(self)
        self.inner.client = self.tasks._client
        self.inner.local = self._enter(self.inner.client.map_region(self.local.name, "rw"))
        self.inner.region_of_far = self._enter(self.inner.client.map_region(self.region_of_far.name, "rw"))

    async def _connect(self) -> plasmon.aio.Client:
        return await plasmon.aio.connect(self.client.socket)

    def _enter(self, what: contextlib.AbstractContextManager[_T]) -> _T:
        return self._stack.enter_context(what)

    def run(self, made: Coroutine[Any, Any, _T] | Awaitable[_T]) -> _T:
        """Result of a coroutine, which runs in the loop of this world."""

        async def awaited() -> _T:
            return await made

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(ANTI_HANG)

    def name(self) -> str:
        return f"walk-{os.getpid()}-{id(self)}-{next(self._numbers)}"

    def region(self, owner: plasmon.Client) -> plasmon.Region:
        """A new region on the node of a client, mapped by the client of this world."""
        made = self._enter(owner.create_region(self.name(), 300_000))
        made.fill(1)
        return self._enter(self.client.map_region(made.name, "rw"))

    def close(self) -> None:
        async def end() -> None:
            await self.tasks.close()

        self.run(end())
        self._stack.close()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def another(self) -> plasmon.Client:
        """A new client of the same node."""
        return self._enter(plasmon.connect(self.client.socket))

    def another_for_tasks(self) -> plasmon.aio.Client:
        client = self.run(self._connect())
        self._stack.callback(client._client.close)
        return client

    def scratch(self) -> plasmon.Scratch:
        return self.client.buffer(100_000)

    def service(self) -> plasmon.Service:
        return self._enter(self.client.service(self.server.name, timeout=ANTI_HANG))

    def of_values(self) -> plasmon.Service:
        return self._enter(self.client.service(self.values.name, timeout=ANTI_HANG))

    def lock(self) -> plasmon.Lock:
        return self.client.lock(self.name())

    def barrier(self) -> plasmon.Barrier:
        return self._enter(self.client.barrier(self.name(), 1))

    def subscription(self) -> plasmon.Subscription:
        return self._enter(self.client.subscribe())

    def events(self) -> plasmon.RegionEvents:
        """Events of the regions of the client, of which there is one at least."""
        gone = self.region(self.far)
        gone.free()
        return self.told


Made = tuple[Callable[..., Any], dict[str, Any]]
"""A call that is bound to an object, and arguments with which it works."""


def _on(what: Callable[[World], Any], call: str, /, **arguments: Any) -> Callable[[World], Made]:
    """A call of an object of a world. Arguments that are functions are made anew for each call."""

    def made(world: World) -> Made:
        given = {name: one(world) if callable(one) else one for name, one in arguments.items()}
        return getattr(what(world), call), given

    return made


def _of(function: Callable[..., Any], /, **arguments: Any) -> Callable[[World], Made]:
    return lambda world: (function, dict(arguments))


def _client(call: str, /, **arguments: Any) -> Callable[[World], Made]:
    return _on(lambda world: world.client, call, **arguments)


def _name(world: World) -> str:
    return world.name()


def _array(world: World) -> plasmon.ObjectId:
    return world.array


def _creation(world: World) -> plasmon.ObjectId:
    id = plasmon.ObjectId.random()
    # The creation is aborted when it is dropped.
    world.created = world.client.create(id, 10)  # type: ignore[attr-defined]
    return id


def _mapping(world: World) -> plasmon.NamedObjects:
    mapping = world.client.mapping(world.name(), timeout=ANTI_HANG)
    mapping["key"] = b"value"
    return mapping


def _far(world: World) -> plasmon.Region:
    return world.region_of_far


def _echo(world: World) -> dict[str, Callable[..., Any]]:
    return {"echo": bytes}


_CLIENT: dict[str, Callable[[World], Made]] = {
    "abort": _client("abort", id=_creation),
    "barrier": _client("barrier", name=_name, parties=1),
    "broadcast": _client("broadcast", id=_array),
    "buffer": _client("buffer", size=1000),
    "contains": _client("contains", id_or_ids=_array),
    "create": _client("create", id=_name, size=1000),
    "create_and_seal": _client("create_and_seal", id=_name, data=b"data"),
    "create_region": _client("create_region", name=_name, size=1000),
    "delete": _client("delete", id_or_ids=_name),
    "evict": _client("evict", size=1),
    "explain": _client("explain", id=_array),
    "get": _client("get", id_or_ids=_array),
    "get_buffers": _client("get_buffers", ids=lambda world: [world.array]),
    "get_into": _client("get_into", id=_array, into=lambda world: bytearray(2000)),
    "hash": _client("hash", id=_array),
    "list": _client("list"),
    "locations": _client("locations", id=_array),
    "lock": _client("lock", name=_name),
    "map_region": _client("map_region", name=lambda world: _far(world).name),
    "mapping": _client("mapping"),
    "metadata": _client("metadata", id=_array),
    "migrate": _client("migrate", id=_array, node=lambda world: world.client.node),
    "multicast": _client(
        "multicast", services=lambda world: [world.service()] * 3, function="echo", data=b"data"
    ),
    "pin": _client("pin", id=_array),
    "prefetch": _client("prefetch", ids=lambda world: [world.array]),
    "put": _client("put", value=b"value"),
    "put_from": _client("put_from", value=World.scratch),
    "put_many": _client("put_many", values=lambda world: [b"x", bytes(1000)]),
    "refresh": _client("refresh", ids=lambda world: [world.array]),
    "register": _client("register", file=lambda world: -1),
    "replicate": _client("replicate", id=_array, replicas=1),
    "seal": _client("seal", id=_creation),
    "serve": _client("serve", name=_name, functions=_echo),
    "service": _client("service", name=lambda world: world.server.name),
    "set_options": _on(lambda world: world.another(), "set_options"),
    "subscribe": _client("subscribe"),
    "unpin": _client("unpin", id=_array),
    "verify": _client("verify", id=_array),
    "wait": _client("wait", ids=lambda world: [world.array]),
    "with_class": _client("with_class", priority="normal"),
    "__contains__": _client("__contains__", id=_array),
    "__delitem__": _client("__delitem__", id=lambda world: world.client.put(b"x")),
    "__getitem__": _client("__getitem__", id=_array),
    "__setitem__": _client("__setitem__", id=_array, value=1),
}
_REGION: dict[str, Callable[[World], Made]] = {
    "array": _on(lambda world: world.local, "array"),
    "begin_fetch_add": _on(_far, "begin_fetch_add", offset=0),
    "begin_read": _on(_far, "begin_read", offset=0, size=100_000),
    "begin_write": _on(_far, "begin_write", data=bytes(100_000)),
    "compare_swap": _on(_far, "compare_swap", offset=0, expected=1, value=1),
    "copy_from": _on(_far, "copy_from", source=_far, size=1000),
    "fetch_add": _on(_far, "fetch_add", offset=0),
    "fill": _on(_far, "fill"),
    "free": _on(lambda world: world.region(world.far), "free"),
    "grant": _on(_far, "grant", user="everyone", mode="r"),
    "info": _on(_far, "info"),
    "move": _on(_far, "move", node=lambda world: world.far.node),
    "notify": _on(_far, "notify", offset=0),
    "read": _on(_far, "read", size=100_000),
    "read_into": _on(_far, "read_into", buffer=lambda world: bytearray(100_000)),
    "revoke": _on(_far, "revoke", user="everyone"),
    "snapshot": _on(_far, "snapshot"),
    "swap": _on(_far, "swap", offset=0, value=1),
    "test_and_set": _on(_far, "test_and_set", offset=0),
    "wait": _on(_far, "wait", offset=8, expected=2**63),
    "write": _on(_far, "write", data=bytes(100_000)),
}
_SERVICE: dict[str, Callable[[World], Made]] = {
    "begin": _on(World.service, "begin", function="echo", data=bytes(400)),
    "call": _on(World.service, "call", function="echo", data=bytes(100_000)),
    "invoke": _on(World.of_values, "invoke", function="echo"),
    "send": _on(World.service, "send", function="echo", data=bytes(400)),
}
_OTHERS: dict[str, Callable[[World], Made]] = {
    "Client": lambda world: (plasmon.Client, {"socket": world.client.socket}),
    "connect": lambda world: (plasmon.connect, {"socket": world.client.socket}),
    "expose": _of(plasmon.expose, function=lambda: None),
    "priority": _of(plasmon.priority, priority="normal"),
    "register_type": _of(plasmon.register_type, of=type("Registered", (), {}), reduce=lambda one: (int, ())),
    "Creation.seal": _on(lambda world: world.client.create(world.name(), 10, replace=True), "seal"),
    "Lock.acquire": _on(World.lock, "acquire"),
    "Barrier.wait": _on(World.barrier, "wait"),
    "ObjectId": _of(plasmon.ObjectId, data=bytes(20)),
    "ObjectId.from_hex": _of(plasmon.ObjectId.from_hex, text="0" * 40),
    "ObjectId.from_name": _of(plasmon.ObjectId.from_name, name="name"),
    "ObjectId.from_private_name": _of(plasmon.ObjectId.from_private_name, name="name", user=0),
    "Version": _of(plasmon.Version, text="0" * 16),
    "RegionEvents.next": _on(World.events, "next"),
    "Server.close": _on(lambda world: world.client.serve(world.name(), _echo(world)), "close"),
    "Server.wait": _on(lambda world: _closed(world.client.serve(world.name(), _echo(world))), "wait"),
    "Subscription.next": _on(World.subscription, "next"),
    "NamedObjects.__contains__": _on(_mapping, "__contains__", key="key"),
    "NamedObjects.__delitem__": _on(_mapping, "__delitem__", key="key"),
    "NamedObjects.__getitem__": _on(_mapping, "__getitem__", key="key"),
    "NamedObjects.__setitem__": _on(_mapping, "__setitem__", key="key", value=b"value"),
    "NamedObjects.get": _on(_mapping, "get", key="key"),
    "NamedObjects.pop": _on(_mapping, "pop", key="key"),
    "NamedObjects.setdefault": _on(_mapping, "setdefault", key="key", default=b"value"),
    "LocalCluster.client": _on(lambda world: world.cluster, "client", node=0),
    "LocalCluster.log": _on(lambda world: world.cluster, "log", node=0),
}


def _closed(server: plasmon.Server) -> plasmon.Server:
    server.close()
    return server


def _in_tasks(made: Callable[[World], Made], on: Callable[[World, Any], Any]) -> Callable[[World], Made]:
    """The same call of `plasmon.aio`. `on` makes its object from that of the blocking call."""

    def found(world: World) -> Made:
        call, arguments = made(world.inner)
        method = getattr(on(world, call.__self__), call.__name__)  # type: ignore[attr-defined]
        arguments = {
            name: [_service_of(world, one) if isinstance(one, plasmon.Service) else one for one in given]
            if isinstance(given, list)
            else given
            for name, given in arguments.items()
        }

        @_like(method)
        def run(*args: Any, **kwargs: Any) -> Any:
            async def begin() -> Any:
                made = method(*args, **kwargs)
                return await made if inspect.isawaitable(made) else made

            return world.run(begin())

        return run, arguments

    return found


def _like(method: Callable[..., Any]) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """Decorator that gives a function the signature of another."""

    def decorate(run: Callable[..., _T]) -> Callable[..., _T]:
        run.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
        return run

    return decorate


def _service_of(world: World, service: plasmon.Service) -> plasmon.aio.Service:
    return plasmon.aio.Service(service, world.tasks)


def _region_of(world: World, region: plasmon.Region) -> plasmon.aio.Region:
    return plasmon.aio.Region(region, world.tasks)


def _lock_of(world: World, lock: plasmon.Lock) -> plasmon.aio.Lock:
    return plasmon.aio.Lock(lock, world.tasks)


def _barrier_of(world: World, barrier: plasmon.Barrier) -> plasmon.aio.Barrier:
    return plasmon.aio.Barrier(barrier, world.tasks)


ROWS: dict[str, Callable[[World], Made]] = {
    **{f"Client.{name}": made for name, made in _CLIENT.items()},
    **{f"Region.{name}": made for name, made in _REGION.items()},
    **{f"Service.{name}": made for name, made in _SERVICE.items()},
    **_OTHERS,
    **{
        f"aio.Client.{name}": _in_tasks(made, lambda world, _: world.tasks)
        for name, made in _CLIENT.items()
        if hasattr(plasmon.aio.Client, name) and not name.startswith("_") and name != "set_options"
    },
    "aio.Client.set_options": _in_tasks(_CLIENT["set_options"], lambda world, _: world.another_for_tasks()),
    **{
        f"aio.Region.{name}": _in_tasks(made, _region_of)
        for name, made in _REGION.items()
        if hasattr(plasmon.aio.Region, name)
    },
    **{
        f"aio.Service.{name}": _in_tasks(made, _service_of)
        for name, made in _SERVICE.items()
        if hasattr(plasmon.aio.Service, name)
    },
    "aio.Lock.acquire": _in_tasks(_OTHERS["Lock.acquire"], _lock_of),
    "aio.Barrier.wait": _in_tasks(_OTHERS["Barrier.wait"], _barrier_of),
    "aio.Server.close": _in_tasks(_OTHERS["Server.close"], lambda world, server: plasmon.aio.Server(server)),
}
"""How each call is made."""


def calls() -> Iterator[tuple[str, Any]]:
    """Names of all public calls, and what they are."""
    for module, prefix in ((plasmon, ""), (plasmon.aio, "aio.")):
        public = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        for name in public:
            one = getattr(module, name)
            if inspect.ismodule(one) or (inspect.isclass(one) and issubclass(one, (BaseException, Warning))):
                continue
            if not inspect.isclass(one):
                if callable(one) and one is not plasmon.IdLike:
                    yield prefix + name, one
                continue
            if prefix + name in LEFT_OUT and name == "Buffer":
                continue
            if name in _MADE_BY_USERS:
                yield prefix + name, one
            for attribute in dir(one):
                if attribute.startswith("_") and attribute not in _OPERATORS:
                    continue
                method = inspect.getattr_static(one, attribute)
                inherited = any(
                    getattr(base, attribute, None) is getattr(one, attribute) for base in _INHERITED
                )
                if not isinstance(method, property) and callable(getattr(one, attribute)) and not inherited:
                    yield f"{prefix}{name}.{attribute}", getattr(one, attribute)


def parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters of a call, without `self`."""
    try:
        found = inspect.signature(call).parameters.values()
    except ValueError:  # A builtin that does not tell.
        return []
    return [one for one in found if one.name not in ("self", "slf")]
