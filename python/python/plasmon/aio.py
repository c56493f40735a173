"""Client for asyncio: the same calls as `plasmon.Client`, as coroutines.

    import plasmon.aio

    async with plasmon.aio.connect() as client:
        await client.put(array, name="temperatures")
        same = await client.get("temperatures")

Objects in the memory of this host are got at once. Waiting for objects (`get`, `get_buffers`, `wait`,
`metadata`, `hash`, `verify`) takes no thread, however many tasks wait, because the event loop watches the
connection. Operations on regions, and waits for locks and barriers, take none either. All other calls run in
a few threads of the client's own.

A cancelled task stops waiting, and the node cancels the request; objects that come too late are released.
Other requests may still be carried out.
"""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload
from weakref import WeakSet

import plasmon
from plasmon import _internal, _values
from plasmon._arguments import instance, whole
from plasmon._arguments import several as several_of
from plasmon._classes import Priority
from plasmon._ids import ONE, IdLike, several
from plasmon._internal import Buffer, ObjectId, Version
from plasmon._looping import Looping, patiently, soon
from plasmon._reads import NO_DEFAULT
from plasmon._regions import Mode
from plasmon._regions_aio import Region, Turns
from plasmon._services import Allow, functions_of
from plasmon._services_aio import Server, Service, in_loop
from plasmon._subscription_aio import Opening, RegionEvents, Subscription
from plasmon._sync_aio import Barrier, Guard, Lock
from plasmon._terms import Absent
from plasmon.errors import Error

if TYPE_CHECKING:
    from typing_extensions import Buffer as Readable

__all__ = [
    "Barrier",
    "Client",
    "Guard",
    "Lock",
    "Region",
    "RegionEvents",
    "Server",
    "Service",
    "Subscription",
    "connect",
]

_T = TypeVar("_T")

_REQUEST_OBJECTS = 1024
"""Number of objects in one request."""


def _compare(buffers: Sequence[Buffer | None]) -> None:
    """Compares buffers with the digests of their seals."""
    for buffer in buffers:
        if buffer is not None:
            buffer.verify()


def _take_existing(
    calls: builtins.list[_internal.Pending], last: bool
) -> tuple[builtins.list[Buffer | None], builtins.list[int]]:
    """Objects of calls, `None` for those that do not exist, and positions of those that were late."""
    found: builtins.list[Buffer | None] = []
    late: builtins.list[int] = []
    for call in calls:
        some, positions = call.existing(last)
        late += [len(found) + at for at in positions]
        found += some
    return found, late


class Client(Looping):
    """Connection to the node of this host, for the tasks of one event loop.

    `plasmon.aio.connect` makes clients. A client used as an asynchronous context manager closes at the end of
    the block. Values that were got through it stay readable after that.
    """

    def __init__(self, client: plasmon.Client) -> None:
        """Makes a client for the running event loop. It takes over `client` and closes it."""
        super().__init__(client)
        self._turns = Turns()
        self._told: WeakSet[RegionEvents] = WeakSet()

    put = patiently(plasmon.Client.put)
    put_many = patiently(plasmon.Client.put_many)
    put_from = patiently(plasmon.Client.put_from)
    create = patiently(plasmon.Client.create)
    create_and_seal = patiently(plasmon.Client.create_and_seal)
    buffer = patiently(plasmon.Client.buffer)
    get_into = patiently(plasmon.Client.get_into)
    register = soon(plasmon.Client.register)
    seal = soon(plasmon.Client.seal)
    abort = soon(plasmon.Client.abort)
    prefetch = soon(plasmon.Client.prefetch)
    replicate = patiently(plasmon.Client.replicate)
    migrate = patiently(plasmon.Client.migrate)
    broadcast = patiently(plasmon.Client.broadcast)
    pin = patiently(plasmon.Client.pin)
    unpin = soon(plasmon.Client.unpin)
    locations = soon(plasmon.Client.locations)
    explain = soon(plasmon.Client.explain)
    refresh = soon(plasmon.Client.refresh)
    evict = soon(plasmon.Client.evict)
    set_options = soon(plasmon.Client.set_options)
    usage = soon(plasmon.Client.usage)
    list = patiently(plasmon.Client.list)
    status = soon(plasmon.Client.status)
    regions = soon(plasmon.Client.regions)

    def with_class(self, priority: Priority) -> Opening[Client]:
        """Makes a client whose work is of another class, as `plasmon.Client.with_class` does.

        The result is awaited, or entered by `async with`.
        """

        async def make() -> Client:
            make = partial(self._client.with_class, priority)
            return Client(await self._run(self._patient, make))

        return Opening(make)

    async def create_region(self, name: str, size: int, **options: Any) -> Region:
        """Makes a region, as `plasmon.Client.create_region` does, with the same options."""

        def make(left: Any) -> plasmon.Region:
            return self._client.create_region(name, size, **options | {"timeout": left})

        return Region(await self._within(self._patient, make, options.get("timeout")), self)

    async def map_region(
        self, name: str, mode: Mode = "r", *, owner: int | str | None = None, timeout: float = 0
    ) -> Region:
        """A handle to a region, as `plasmon.Client.map_region` returns it."""

        def find(left: Any) -> plasmon.Region:
            return self._client.map_region(name, mode, owner=owner, timeout=left)

        return Region(await self._within(self._patient, find, timeout), self)

    def region_events(self) -> Opening[RegionEvents]:
        """Tells what happens to the regions of this client, as `plasmon.Client.region_events` does.

        The result is awaited, or entered by `async with`.
        """

        async def tell() -> RegionEvents:
            events = RegionEvents(await self._run(self._prompt, self._client.region_events))
            self._told.add(events)
            return events

        return Opening(tell)

    async def serve(
        self,
        name: str,
        functions: Mapping[str, Callable[..., Any]] | object,
        *,
        threads: int = 1,
        allow: Allow = "user",
        values: bool = False,
        allow_pickle: bool = False,
    ) -> Server:
        """Runs functions for callers on any host, as `plasmon.Client.serve` does.

        Functions that are coroutines run in the event loop, at most `threads` at a time; others run in these
        threads.
        """
        offered = {name: in_loop(self._asyncio, one) for name, one in functions_of(functions).items()}
        serve = partial(
            self._client.serve,
            name,
            offered,
            threads=threads,
            allow=allow,
            values=values,
            allow_pickle=allow_pickle,
        )
        return Server(await self._run(self._prompt, serve))

    async def service(self, name: str, *, owner: int | str | None = None, timeout: float = 0) -> Service:
        """Finds a service, as `plasmon.Client.service` does."""

        def find(left: Any) -> plasmon.Service:
            return self._client.service(name, owner=owner, timeout=left)

        return Service(await self._within(self._patient, find, timeout), self)

    async def multicast(
        self,
        services: Sequence[Service],
        function: str,
        data: Readable = b"",
        *,
        timeout: float = 10,
        priority: Priority | None = None,
    ) -> builtins.list[bytes | Error]:
        """Calls the same function of several services, as `plasmon.Client.multicast` does."""
        to = [instance(one, Service, "what is called")._service for one in several_of(services, "services")]

        def call(left: Any) -> builtins.list[bytes | Error]:
            return self._client.multicast(to, function, data, timeout=left, priority=priority)

        return await self._within(self._patient, call, timeout)

    async def lock(
        self,
        name: str,
        *,
        ttl: float = 10,
        shared: bool = False,
        timeout: float | None = None,
        public: bool = False,
        reentrant: bool = False,
    ) -> Lock:
        """A lock, as `plasmon.Client.lock` returns it: `async with await client.lock("name") as guard:`."""

        def make(left: Any) -> plasmon.Lock:
            return self._client.lock(
                name, ttl=ttl, shared=shared, timeout=left, public=public, reentrant=reentrant
            )

        made = await self._within(self._prompt, make, timeout)
        # The time-out of a wait for the lock is what the caller gave.
        made._timeout = timeout
        return Lock(made, self)

    async def barrier(self, name: str, parties: int, *, public: bool = False) -> Barrier:
        """A barrier, as `plasmon.Client.barrier` returns it."""
        make = partial(self._client.barrier, name, parties, public=public)
        return Barrier(await self._run(self._prompt, make), self)

    @overload  # A str is an iterable of str, too: here it is one name.
    async def get(  # type: ignore[overload-overlap]
        self,
        id_or_ids: IdLike,
        timeout: float | None = None,
        *,
        version: Literal[True],
        default: Any = NO_DEFAULT,
        type: type | None = None,
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> tuple[Any, Version | Absent]: ...
    @overload
    async def get(
        self,
        id_or_ids: Iterable[IdLike],
        timeout: float | None = None,
        *,
        version: Literal[True],
        default: Any = NO_DEFAULT,
        type: type | None = None,
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> builtins.list[tuple[Any, Version | Absent]]: ...
    @overload
    async def get(  # type: ignore[overload-overlap]
        self,
        id_or_ids: IdLike,
        timeout: float | None = None,
        *,
        type: type[_T],
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> _T: ...
    @overload
    async def get(
        self,
        id_or_ids: Iterable[IdLike],
        timeout: float | None = None,
        *,
        type: type[_T],
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> builtins.list[_T]: ...
    @overload
    async def get(
        self,
        id_or_ids: IdLike,
        timeout: float | None = None,
        *,
        default: Any = NO_DEFAULT,
        type: type | None = None,
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> Any: ...
    @overload
    async def get(
        self,
        id_or_ids: Iterable[IdLike],
        timeout: float | None = None,
        *,
        default: Any = NO_DEFAULT,
        type: type | None = None,
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
    ) -> builtins.list[Any]: ...
    async def get(
        self,
        id_or_ids: IdLike | Iterable[IdLike],
        timeout: float | None = None,
        *,
        default: Any = NO_DEFAULT,
        type: type | None = None,
        private: bool = False,
        verify: bool = False,
        copy: bool = False,
        version: bool = False,
    ) -> Any:
        """Waits for objects and returns their values, as `plasmon.Client.get` does.

        Pickles are unpickled on the thread of the event loop. `verify` and `copy` read the bytes there. With
        `version` the call runs in a thread.
        """
        if version:
            get = partial(
                self._client.get, id_or_ids, default=default, type=type, private=private, version=True
            )
            return await self._within(
                self._patient, lambda left: get(timeout=left, verify=verify, copy=copy), timeout
            )
        _values.check_type(type)
        ids = several(id_or_ids)
        found: Sequence[Buffer | None]
        if default is NO_DEFAULT:
            found = await self.get_buffers(ids, timeout, private=private, verify=verify)
        else:
            found = await self._existing(ids, 0 if timeout is None else timeout, private, verify)
        values = [default if one is None else _values.decode_as(one, type, copy) for one in found]
        return values[0] if isinstance(id_or_ids, ONE) else values

    async def get_buffers(
        self,
        ids: Iterable[IdLike],
        timeout: float | None = None,
        *,
        private: bool = False,
        verify: bool = False,
    ) -> builtins.list[Buffer]:
        """Waits for objects and returns their bytes, as `plasmon.Client.get_buffers` does."""
        self._check()
        wanted = [*self._client._all(ids, private)]
        found = self._loop.get_here(wanted, timeout)
        if found is None:
            found = await self._getting(
                wanted, timeout, lambda calls: [buffer for call in calls for buffer in call.objects()], verify
            )
        if verify:
            _compare(found)
        return found

    async def _existing(
        self, ids: IdLike | Iterable[IdLike], timeout: float, private: bool, verify: bool
    ) -> Sequence[Buffer | None]:
        """Objects, with `None` for those that are not in the cluster at the end of the time-out."""
        self._check()
        wanted = [*self._client._all(ids, private)]
        here = self._loop.get_here(wanted, timeout)
        if here is not None:
            if verify:
                _compare(here)
            return here
        found: builtins.list[Buffer | None] = [None] * len(wanted)
        left = [*range(len(wanted))]
        for last in (False, True) if timeout else (True,):
            take = partial(_take_existing, last=last)
            some, late = await self._getting(
                [wanted[at] for at in left], 0 if last else timeout, take, verify
            )
            for at, buffer in zip(left, some, strict=True):
                found[at] = buffer
            left = [left[at] for at in late]
            if not left:
                break
        if verify:
            _compare(found)
        return found

    async def _getting(
        self,
        wanted: builtins.list[IdLike | _internal.Named],
        timeout: float | None,
        take: Callable[[builtins.list[_internal.Pending]], _T],
        verify: bool,
    ) -> _T:
        """Gets objects, and takes them from the calls when all of these are complete."""
        calls: builtins.list[_internal.Pending] = []
        try:
            # All requests are sent at once, so that they share the time-out.
            for first in range(0, len(wanted), _REQUEST_OBJECTS):
                calls.append(self._loop.get(wanted[first : first + _REQUEST_OBJECTS], timeout, verify))
            await self._complete(calls)
            return take(calls)
        finally:
            self._give_up(calls)

    async def wait(
        self,
        ids: Iterable[IdLike],
        count: int | None = None,
        timeout: float | None = None,
        *,
        private: bool = False,
    ) -> tuple[builtins.list[ObjectId], builtins.list[ObjectId]]:
        """Waits until some of the objects are in the memory of this host, as `plasmon.Client.wait` does."""
        self._check()
        wanted = [self._client._identify(id, None, private)[0] for id in several(ids)]
        most = len(wanted)
        count = most if count is None else whole(count, f"the number of {most} objects to wait for", 0, most)
        call = self._loop.wait(wanted, count, timeout)
        try:
            await self._complete([call])
            here = call.presence()
        finally:
            self._give_up([call])
        ready = [id for id, is_here in zip(wanted, here, strict=True) if is_here]
        return ready, [id for id, is_here in zip(wanted, here, strict=True) if not is_here]

    async def metadata(self, id: IdLike, timeout: float | None = None, *, private: bool = False) -> bytes:
        """Metadata of an object. The call waits for the object, and raises, as `get` does."""
        return (await self.get_buffers([id], timeout, private=private))[0].metadata

    async def hash(self, id: IdLike, timeout: float | None = None, *, private: bool = False) -> bytes:
        """Digest of an object, as `plasmon.Client.hash` returns it."""
        [buffer] = await self.get_buffers([id], timeout, private=private)
        return await self._run(self._prompt, buffer.digest)

    async def verify(self, id: IdLike, timeout: float | None = None, *, private: bool = False) -> None:
        """Compares an object's bytes with its digest, as `plasmon.Client.verify` does."""
        [buffer] = await self.get_buffers([id], timeout, private=private)
        await self._run(self._prompt, buffer.verify)

    @overload  # A str is an iterable of str, too: here it is one name.
    async def contains(  # type: ignore[overload-overlap]
        self, id_or_ids: IdLike, *, private: bool = False
    ) -> bool: ...
    @overload
    async def contains(
        self, id_or_ids: Iterable[IdLike], *, private: bool = False
    ) -> builtins.list[bool]: ...
    async def contains(
        self, id_or_ids: IdLike | Iterable[IdLike], *, private: bool = False
    ) -> bool | builtins.list[bool]:
        """Whether objects are sealed on any node, as `plasmon.Client.contains` returns it."""
        return await self._run(self._prompt, lambda: self._client.contains(id_or_ids, private=private))

    @overload
    async def delete(  # type: ignore[overload-overlap]
        self, id_or_ids: IdLike, *, private: bool = False
    ) -> bool: ...
    @overload
    async def delete(self, id_or_ids: Iterable[IdLike], *, private: bool = False) -> builtins.list[bool]: ...
    async def delete(
        self, id_or_ids: IdLike | Iterable[IdLike], *, private: bool = False
    ) -> bool | builtins.list[bool]:
        """Deletes objects from every node, as `plasmon.Client.delete` does."""
        return await self._run(self._prompt, lambda: self._client.delete(id_or_ids, private=private))

    def subscribe(self, *, cluster: bool = False) -> Opening[Subscription]:
        """Subscribes to the objects of this node, or of all nodes, as `plasmon.Client.subscribe` does.

        The result is awaited, or entered by `async with`.
        """

        async def subscribe() -> Subscription:
            opened = await self._run(self._prompt, partial(self._client.subscribe, cluster=cluster))
            return Subscription(opened)

        return Opening(subscribe)

    @property
    def capacity(self) -> int:
        """Size in bytes of the store of this node."""
        return self._client.capacity

    @property
    def owner(self) -> int:
        """User id of the node, as `plasmon.Client.owner` returns it."""
        return self._client.owner

    @property
    def user(self) -> int:
        """User id of this client as the node knows it, as `plasmon.Client.user` returns it."""
        return self._client.user

    @property
    def namespace(self) -> str | None:
        """Namespace of the names that this client uses, if it has one."""
        return self._client.namespace

    @property
    def node(self) -> str:
        """Id of the node, 32 hexadecimal digits."""
        return self._client.node

    @property
    def socket(self) -> str:
        """Path of the node's socket."""
        return self._client.socket

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._client.closed

    async def close(self) -> None:
        """Closes the client. Values that were got stay readable. Waiting calls raise `Disconnected`."""
        self._stop_listening()
        self._loop.close()
        self._client.close()
        for events in self._told:
            events.close()
        self._end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return "<plasmon.aio.Client, closed>" if self.closed else f"<plasmon.aio.Client of {self.socket!r}>"


def connect(
    socket: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    *,
    namespace: str | None = None,
    priority: Priority = "normal",
) -> Opening[Client]:
    """Connects to the node of this host. The result is awaited, or entered by `async with`.

    Args:
        socket: Path of the node's socket, by default as for `plasmon.connect`.
        timeout: Time in seconds, as for `plasmon.connect`.
        namespace: Namespace of the names that the client uses, as for `plasmon.connect`.
        priority: Class of all that the client asks for, as for `plasmon.connect`.

    Raises:
        InvalidArgument: The namespace cannot be one, or there is no such class.
        Disconnected: No node listens there.
        NotAllowed: This user may not connect, or the node belongs to a user who is not trusted.
        TimedOut: The node does not answer.
    """

    async def connect() -> Client:
        connected = asyncio.to_thread(
            plasmon.connect, socket, timeout, namespace=namespace, priority=priority
        )
        return Client(await connected)

    return Opening(connect)
