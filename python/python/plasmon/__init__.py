"""Plasmon: objects shared in place by the programs of a host, and moved between hosts.

    import plasmon

    with plasmon.connect() as client:
        client.put(array, name="temperatures")
        same = client.get("temperatures")  # On any node; read-only, in place.

`help(plasmon.Client)`, `help(plasmon.Client.put)` and so on describe what is only named here. Sizes are in
bytes, times in seconds. An object is named by an `ObjectId`, by its 20 bytes or 40 hexadecimal digits, or by
a name (`str`).

FUNCTIONS AND CLASSES
    connect(socket=None, timeout=None)   connects to the node of this host; returns a Client
    default_socket(), priority(priority) path at which it listens; a block of operations of a class
    LocalCluster(nodes=2, memory="1GiB") a cluster on this host, for tests and for trying Plasmon out
    Client                               connection to a node: the calls below
    ObjectId                             id of an object: random(), from_name(name), from_hex(text)
    Buffer                               bytes of an object, read in place and used like `bytes`
    Creation                             object that is written in place: seal() or abort() ends it
    Scratch                              writable memory of `Client.buffer` or `Client.register`
    NamedObjects                         mapping over names, of `Client.mapping`
    Region, RegionInfo, PendingOperation memory with a name that programs of all hosts read and write
    Lock, Guard, Barrier                 one process of the cluster at a time, or all of them together
    Service, Server, expose, Call, current_call()  functions that processes run for others; who calls them
    Subscription, Event, RegionEvents, RegionEvent  what comes and leaves; what happens to regions
    ObjectInfo, Spread, Version, ABSENT, IdLike  what `list`, `replicate`, `get` return; what names objects
    register_type(of, reduce)            has values of a type stored without a copy of their memory

CALLS OF A CLIENT
    put, put_many, create_and_seal       store values, or bytes as they are
    create, seal, abort                  write an object in place
    buffer, register, get_into, put_from work in memory of the node, or let it know the program's own
    get, get_buffers, metadata           read values, bytes, metadata; wait for objects to come
    contains, wait, locations, list      which objects exist, and where
    mapping, client[name]                named objects as a mapping, which replaces values
    delete, evict, refresh               free the id, the memory; keep in memory for longer
    pin, unpin, prefetch                 bring objects to this host
    replicate, migrate, broadcast        bring objects to other hosts
    create_region, map_region, regions, region_events  named memory that changes: `Region`
    serve, service, multicast, lock, barrier  functions of programs on any host; one process at a time
    hash, verify, explain                the digest of an object, and how it came here
    subscribe, status, usage, capacity   what happens on the node, and what it has
    set_options, with_class, close, closed  the client: its name, quota, namespace, user, owner, node, socket

ERRORS
    Every exception is an `Error`. Those in brackets are Python's own that it also is.

    ObjectExists, Conflict  the id or name is taken; another version is there than was expected
    ObjectNotFound    no such object is known [KeyError]
    ObjectLost        every node that held the object is gone
    ObjectDamaged     the bytes are not those that were sealed
    RegionFreed, RegionLost, NotHere  the region was freed; its node is gone; it is not mapped here
    StoreFull, ObjectTooLarge  there is no room; the message says who holds it; there will never be
    TimedOut, IncompleteList  the call, or a part of a list, did not come in time [TimeoutError]
    TooFewReplicas    fewer nodes keep the object than were asked for
    OutcomeUnknown, CallFailed  it may have happened, but a node does not answer; the function failed
    Fenced, BarrierBroken, Busy  the lock was lost; a party died or left; too many requests, or it is held
    Disconnected      the node is gone, or the client was closed [ConnectionError]
    NotAllowed        this user may not do that [PermissionError]
    InvalidArgument   an argument is wrong [ValueError]
    WrongType         an argument, or a value, is of another type [TypeError]
    MalformedValue    the bytes of an object do not match its metadata [ValueError]

    ReadOnlyMemory    is a warning: a value's type does not know that its memory is read-only

SUBMODULES FOR USERS
    plasmon.aio       the same client for asyncio
    plasmon.plasma    the interface of `pyarrow.plasma`
    plasmon.fsspec, plasmon.zarr, plasmon.proxystore
                      storage of these libraries, where they are installed
    plasmon.dask      large values between Dask's workers, and plasmon.joblib: arrays in joblib's processes
    plasmon.errors    the exceptions above
    plasmon.demo      `plasmon demo`: flights put on one node and queried in place on another
"""

# Names are exported by `import X as X`, and there is no `__all__`: pydoc describes a class in `__all__` with
# all that it inherits, which would make `help(plasmon)` hundreds of lines about exceptions.
from plasmon import errors as errors
from plasmon._classes import priority as priority
from plasmon._client import Client as Client
from plasmon._client import connect as connect
from plasmon._cluster import LocalCluster as LocalCluster
from plasmon._ids import IdLike as IdLike
from plasmon._internal import Buffer as Buffer
from plasmon._internal import Creation as Creation
from plasmon._internal import Guard as Guard
from plasmon._internal import ObjectId as ObjectId
from plasmon._internal import PendingOperation as PendingOperation
from plasmon._internal import Scratch as Scratch
from plasmon._internal import Version as Version
from plasmon._internal import __version__ as __version__
from plasmon._internal import default_socket as default_socket
from plasmon._named import NamedObjects as NamedObjects
from plasmon._records import Event as Event
from plasmon._records import ObjectInfo as ObjectInfo
from plasmon._records import RegionEvent as RegionEvent
from plasmon._records import Spread as Spread
from plasmon._reduction import register_type as register_type
from plasmon._regions import Region as Region
from plasmon._regions import RegionInfo as RegionInfo
from plasmon._services import Call as Call
from plasmon._services import Server as Server
from plasmon._services import Service as Service
from plasmon._services import current_call as current_call
from plasmon._services import expose as expose
from plasmon._subscription import RegionEvents as RegionEvents
from plasmon._subscription import Subscription as Subscription
from plasmon._sync import Barrier as Barrier
from plasmon._sync import Lock as Lock
from plasmon._terms import ABSENT as ABSENT
from plasmon.errors import BarrierBroken as BarrierBroken
from plasmon.errors import Busy as Busy
from plasmon.errors import CallFailed as CallFailed
from plasmon.errors import Conflict as Conflict
from plasmon.errors import Disconnected as Disconnected
from plasmon.errors import Error as Error
from plasmon.errors import Fenced as Fenced
from plasmon.errors import IncompleteList as IncompleteList
from plasmon.errors import InvalidArgument as InvalidArgument
from plasmon.errors import MalformedValue as MalformedValue
from plasmon.errors import NotAllowed as NotAllowed
from plasmon.errors import NotHere as NotHere
from plasmon.errors import ObjectDamaged as ObjectDamaged
from plasmon.errors import ObjectExists as ObjectExists
from plasmon.errors import ObjectLost as ObjectLost
from plasmon.errors import ObjectNotFound as ObjectNotFound
from plasmon.errors import ObjectTooLarge as ObjectTooLarge
from plasmon.errors import OutcomeUnknown as OutcomeUnknown
from plasmon.errors import ReadOnlyMemory as ReadOnlyMemory
from plasmon.errors import RegionFreed as RegionFreed
from plasmon.errors import RegionLost as RegionLost
from plasmon.errors import StoreFull as StoreFull
from plasmon.errors import TimedOut as TimedOut
from plasmon.errors import TooFewReplicas as TooFewReplicas
from plasmon.errors import WrongType as WrongType
