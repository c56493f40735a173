import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, ClassVar, Generic, Literal, Self, SupportsIndex, TypeAlias, TypeVar, final, overload

from typing_extensions import Buffer as Readable

from plasmon._classes import Priority
from plasmon._terms import Terms
from plasmon.errors import Error

IdLike: TypeAlias = ObjectId | bytes | str
Id: TypeAlias = IdLike | Named

State: TypeAlias = Literal["unsealed", "primary", "kept", "cached", "doomed", "spilled"]
Public: TypeAlias = Literal["r", "rw"]
_T = TypeVar("_T")
_R = TypeVar("_R", covariant=True)

Row: TypeAlias = tuple[ObjectId, str | None, State, bool, Public | None, int, int, int, float, int]

__version__: str

def default_socket() -> str:
    """Path of the socket at which the node of this host listens by default."""

def address_of(memory: Readable) -> int:
    """Address of the first byte of a contiguous buffer in this process."""

def printable(text: str) -> str:
    """Escapes every character that controls a terminal or misleads its reader. Line feeds stay."""

@final
class ObjectId:
    """Id of an object: 20 bytes, the same on every node."""

    LENGTH: ClassVar[int]
    """Length of an id in bytes."""
    def __new__(cls, data: bytes) -> Self: ...
    @staticmethod
    def from_name(name: str) -> ObjectId:
        """Id of the object with this name, the same on every host."""
    @staticmethod
    def from_private_name(name: str, user: int) -> ObjectId:
        """Id of a user's private object with this name."""
    @staticmethod
    def from_hex(text: str) -> ObjectId:
        """Id with the given 40 hexadecimal digits."""
    @staticmethod
    def random() -> ObjectId:
        """Draws a random id, which no other object has."""
    def binary(self) -> bytes:
        """Bytes of the id."""
    def hex(self) -> str:
        """Id as 40 hexadecimal digits."""
    def __bytes__(self) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __lt__(self, other: ObjectId, /) -> bool: ...
    def __le__(self, other: ObjectId, /) -> bool: ...
    def __gt__(self, other: ObjectId, /) -> bool: ...
    def __ge__(self, other: ObjectId, /) -> bool: ...
    def __reduce__(self) -> tuple[type[ObjectId], tuple[bytes]]: ...

@final
class Version:
    """Version of an object: which of the objects that its id had one after the other.

    Versions can be compared, hashed and pickled. `str(version)` is a text of 16 digits, of which
    `Version(text)` makes the same version.
    """

    def __new__(cls, text: str) -> Self: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[type[Version], tuple[str]]: ...

@final
class Named:
    """Id with the name by which the caller called the object, for error messages."""

    def __new__(cls, id: ObjectId, name: str) -> Self: ...

@final
class Buffer:
    """Bytes of a sealed object in the shared memory of this host, read in place.

    A buffer is used like `bytes`: `==` and `hash` are those of its bytes, and `decode`, `in`, `find`,
    `rfind`, `startswith`, `endswith` and slices without a step copy nothing. It has the attributes and
    methods of a read-only `memoryview` too (`cast`, `nbytes`, `tobytes`), and all other methods of `bytes`,
    which copy the bytes first. `bytes(buffer)` is a copy, and a pickle of a buffer is one of `bytes`.

    The object stays pinned and unchanged as long as this buffer, a slice or any view of it lives. `id`,
    `metadata`, `digest` and `verify` of a slice are those of the whole object.
    """

    @property
    def id(self) -> ObjectId:
        """Id of the object."""
    @property
    def metadata(self) -> bytes:
        """Metadata of the object, as a copy."""
    @property
    def address(self) -> int:
        """Address of the first byte in this process."""
    @property
    def _origin(self) -> int:
        """Address of the first byte of the whole object in this process."""
    @property
    def _encoded(self) -> bool:
        """Whether the object is a value that this package encoded, and no plain bytes."""
    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Text that the bytes encode, as `bytes.decode`."""
    def startswith(
        self, prefix: Readable | tuple[Readable, ...], start: int | None = None, end: int | None = None, /
    ) -> bool:
        """Whether the bytes begin with a prefix, or one of a tuple of prefixes, as `bytes.startswith`."""
    def endswith(
        self, suffix: Readable | tuple[Readable, ...], start: int | None = None, end: int | None = None, /
    ) -> bool:
        """Whether the bytes end with a suffix, or one of a tuple of suffixes, as `bytes.endswith`."""
    def find(self, sub: Readable | int, start: int | None = None, end: int | None = None, /) -> int:
        """First place of a byte or of bytes, or -1, as `bytes.find`."""
    def rfind(self, sub: Readable | int, start: int | None = None, end: int | None = None, /) -> int:
        """Last place of a byte or of bytes, or -1, as `bytes.rfind`."""
    def digest(self) -> bytes:
        """Digest of data and metadata, 8 bytes of XXH3: that of the seal, or else computed now."""
    def verify(self) -> None:
        """Compares the bytes with the digest of the seal, if there is one. Raises `ObjectDamaged`."""
    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, at: SupportsIndex, /) -> int: ...
    @overload
    def __getitem__(self, at: slice, /) -> Buffer | bytes: ...
    def __iter__(self) -> Iterator[int]: ...
    def __contains__(self, part: object, /) -> bool: ...
    def __add__(self, other: Readable, /) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __lt__(self, other: Readable, /) -> bool: ...
    def __le__(self, other: Readable, /) -> bool: ...
    def __gt__(self, other: Readable, /) -> bool: ...
    def __ge__(self, other: Readable, /) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __getattr__(self, name: str, /) -> Any:
        """Other attributes: those of `bytes`, of a copy; else those of `memoryview`."""

@final
class Subscription:
    """Native part of `plasmon.Subscription`."""

    def next(
        self, timeout: float | None
    ) -> (
        tuple[
            Literal["sealed", "replaced", "deleted", "gap"],
            ObjectId | None,
            int,
            int,
            int,
            str | None,
            str,
        ]
        | None
    ): ...
    def fileno(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class RegionEvents:
    """Native part of `plasmon.RegionEvents`."""

    def __new__(cls, client: Client) -> Self: ...
    def next(
        self, timeout: float | None
    ) -> (
        tuple[
            Literal["moved", "freed", "granted", "revoked", "lost", "gap"],
            str | None,
            int | None,
            str | None,
            int | None,
            str | None,
            int,
        ]
        | None
    ): ...
    def fileno(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...

@final
class Creation:
    """Object being written. Its data is writable through the buffer protocol until `seal()`.

    A creation used as a context manager is sealed at the end of the block, and aborted if the block raises.
    Dropping it unsealed aborts it. The initial content of the data is undefined.
    """

    @property
    def id(self) -> ObjectId:
        """Id of the object."""
    @property
    def address(self) -> int:
        """Address of the data in this process.

        Raises:
            InvalidArgument: The creation is over, and there is no view of its memory.
        """
    def seal(self, expected: Version | None = None) -> Version | None:
        """Makes the object immutable and visible to all.

        An object that was created with `replace=True` takes the place of what has its id.

        Args:
            expected: Version that the object is to replace, and no other.

        Returns:
            Version of an object that was created with `replace=True`.

        Raises:
            InvalidArgument: The object is sealed or aborted already, or is to replace nothing.
            Conflict, ObjectNotFound: As `Client.put`. The creation is aborted then.
        """
    def abort(self) -> None:
        """Aborts the creation. Its id is free again."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Scratch:
    """Scratch memory, writable through the buffer protocol: lent by the node, or the program's own.

    `Client.get_into` receives objects directly into it. `Client.put_from` makes an object of lent memory
    without a copy. The memory goes back to the node with its last view.
    """

    @property
    def address(self) -> int:
        """Address of the data in this process."""
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class Client:
    """Native part of `plasmon.Client`."""

    def __new__(cls, socket: str | None, name: str, timeout: float | None, priority: str) -> Self: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def socket(self) -> str: ...
    @property
    def owner(self) -> int: ...
    @property
    def user(self) -> int: ...
    @property
    def node(self) -> str: ...
    def put(
        self,
        id: Id,
        size: int,
        parts: Sequence[tuple[int, Readable]],
        metadata: bytes,
        terms: Terms,
    ) -> Version | None: ...
    def put_many(
        self,
        values: Sequence[tuple[IdLike, int, Sequence[tuple[int, Readable]], bytes]],
        terms: Terms,
    ) -> None: ...
    def create(
        self,
        id: Id,
        size: int,
        metadata: bytes,
        terms: Terms,
    ) -> Creation: ...
    def buffer(self, size: int, private: bool, timeout: float | None) -> Scratch: ...
    def register(self, file: int) -> Scratch: ...
    def get_into(self, id: Id, into: Readable, timeout: float | None, verify: bool) -> int: ...
    def put_from(
        self,
        id: Id,
        source: Readable,
        metadata: bytes,
        terms: Terms,
    ) -> bool | None: ...
    def seal(self, id: Id, expected: Version | None) -> Version | None: ...
    def abort(self, id: Id) -> None: ...
    def get(
        self, ids: Iterable[Id], timeout: float | None, verify: bool = False
    ) -> builtins.list[Buffer]: ...
    def get_existing(
        self, ids: Iterable[Id], timeout: float | None, verify: bool = False
    ) -> builtins.list[Buffer | None]: ...
    def get_versioned(
        self, ids: Iterable[Id], timeout: float | None, verify: bool, existing: bool
    ) -> builtins.list[tuple[Buffer, Version] | None]: ...
    def get_local(self, id: Id) -> Buffer | None: ...
    def get_available(self, ids: Iterable[Id], timeout: float) -> builtins.list[Buffer | None]: ...
    def get_one(self, id: Id, timeout: float | None, verify: bool = False) -> Buffer: ...
    def wait(self, ids: Iterable[Id], count: int, timeout: float | None) -> builtins.list[bool]: ...
    def explain(self, id: Id) -> str: ...
    def replicate(
        self, id: Id, replicas: int, timeout: float | None
    ) -> tuple[builtins.list[str], builtins.list[tuple[str, str]]]: ...
    def migrate(
        self, id: Id, node: str, timeout: float | None
    ) -> tuple[builtins.list[str], builtins.list[tuple[str, str]]]: ...
    def broadcast(
        self, id: Id, nodes: builtins.list[str] | None, timeout: float | None
    ) -> tuple[builtins.list[str], builtins.list[tuple[str, str]]]: ...
    def pin(self, id: Id, timeout: float | None) -> None: ...
    def unpin(self, id: Id) -> None: ...
    def locations(self, id: Id) -> builtins.list[tuple[str, str]]: ...
    def prefetch(self, ids: Iterable[Id], timeout: float | None) -> None: ...
    def refresh(self, ids: Iterable[Id]) -> None: ...
    def evict(self, size: int) -> int: ...
    def set_options(self, name: str | None, quota: int | None) -> None: ...
    def subscribe(self, name: str, cluster: bool) -> Subscription: ...
    @property
    def capacity(self) -> int: ...
    def contains(self, ids: Iterable[Id]) -> builtins.list[bool]: ...
    def contains_one(self, id: Id) -> bool: ...
    def delete(self, ids: Iterable[Id]) -> builtins.list[bool]: ...
    def list(
        self, pattern: str, cluster: bool
    ) -> tuple[
        builtins.list[tuple[Row, str | None, builtins.list[str], Version | None]],
        builtins.list[tuple[str, str]],
    ]: ...
    def status(self) -> str: ...

RegionRow: TypeAlias = tuple[str, int, str, int, str, str, tuple[bool, bool, int], bool, int, int, float]

def regions(
    client: Client,
) -> tuple[builtins.list[RegionRow], builtins.list[tuple[str, str]]]:
    """Rows of the regions that this user may see, and the nodes that did not tell theirs."""

class RegionHandle:
    """Native base of `plasmon.Region`: a handle to a region."""

    def __new__(
        cls,
        client: Client,
        name: str,
        rights: str,
        owner: int | None,
        timeout: float | None,
        making: tuple[int, str | None, str, bool, bool, bool] | None,
    ) -> Self: ...
    @property
    def size(self) -> int:
        """Size in bytes."""
    @property
    def mode(self) -> str:
        """Rights of the handle: "r" to read, "w" to change, "rw" for both."""
    @property
    def owner(self) -> int:
        """User id of the region's owner."""
    @property
    def home(self) -> str:
        """Id of the node on which the region lives, as this handle last heard."""
    @property
    def local(self) -> bool:
        """Whether the region's bytes are mapped in this process."""
    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the client is closed."""
    def close(self) -> None:
        """Gives the handle up. The region stays. Views stay valid."""
    def read(self, offset: int = 0, size: int | None = None, *, timeout: float = 30) -> bytes:
        """Reads bytes.

        An aligned word of 8 bytes is read as a whole; more bytes may have parts of several writes.

        Args:
            offset: Offset of the first byte.
            size: Number of bytes; by default all up to the end.
            timeout: Time in seconds that the call may take.

        Raises:
            InvalidArgument: The bytes are out of bounds.
            RegionFreed, RegionLost: The region is no more.
        """
    def read_into(self, buffer: Readable, offset: int = 0, *, timeout: float = 30) -> int:
        """Reads bytes into a buffer, as many as it has. Returns their number.

        The bytes are received without a copy if the buffer lies in memory of `Client.buffer`.

        Args:
            buffer: Writable buffer.
            offset: Offset of the first byte.
            timeout: Time in seconds that the call may take.
        """
    def write(
        self, data: Readable, offset: int = 0, *, timeout: float = 30, fence: Guard | None = None
    ) -> None:
        """Writes bytes. When the call returns, they are in the region's memory.

        An aligned word of 8 bytes is written as a whole. Other writers may come between the parts of more
        bytes.

        Args:
            data: Bytes to write.
            offset: Offset of the first byte.
            timeout: Time in seconds that the call may take.
            fence: Guard of a lock: nothing is written if the lock is lost, or if the region has seen a later
                guard of it.

        Raises:
            OutcomeUnknown: The bytes may have been written, or in part, or may be later.
            Fenced: The guard is not valid any more, or was followed by another one.
        """
    def fill(self, value: int = 0, offset: int = 0, size: int | None = None, *, timeout: float = 30) -> None:
        """Sets bytes to a value.

        Args:
            value: Value of each byte.
            offset: Offset of the first byte.
            size: Number of bytes; by default all up to the end.
            timeout: Time in seconds that the call may take.
        """
    def copy_from(
        self,
        source: RegionHandle,
        *,
        source_offset: int = 0,
        offset: int = 0,
        size: int | None = None,
        timeout: float = 30,
    ) -> None:
        """Copies bytes of another region, or of this one, as `memmove` does.

        The bytes do not pass through this host, unless one of the regions lives here.

        Args:
            source: Region to copy from, of the same client.
            source_offset: Offset of the first byte there.
            offset: Offset of the first byte here.
            size: Number of bytes; by default all up to the end of the source.
            timeout: Time in seconds that the call may take.
        """
    def fetch_add(self, offset: int, value: int = 1, *, timeout: float = 30) -> int:
        """Adds to a word of 64 bits, and returns what it was before. The sum wraps.

        Args:
            offset: Offset of the word, a multiple of 8.
            value: Number to add; a negative one is subtracted.
            timeout: Time in seconds that the call may take.

        Raises:
            OutcomeUnknown: The word may have been changed, or may be later.
        """
    def swap(self, offset: int, value: int, *, timeout: float = 30) -> int:
        """Replaces a word of 64 bits, and returns what it was before.

        Args:
            offset: Offset of the word, a multiple of 8.
            value: Value that the word gets.
            timeout: Time in seconds that the call may take.
        """
    def compare_swap(self, offset: int, expected: int, value: int, *, timeout: float = 30) -> int:
        """Replaces a word of 64 bits if it is what is expected, and returns what it was before.

        Args:
            offset: Offset of the word, a multiple of 8.
            expected: Value that is expected. The word was replaced if this is returned.
            value: Value that the word gets.
            timeout: Time in seconds that the call may take.
        """
    def test_and_set(self, offset: int, *, timeout: float = 30) -> bool:
        """Sets a word of 64 bits to 1, and returns whether it was set already.

        Args:
            offset: Offset of the word, a multiple of 8.
            timeout: Time in seconds that the call may take.
        """
    def view(self) -> memoryview:
        """Bytes of the region in the memory of this process, writable unless the mode is "r".

        Other threads, processes and hosts read and write them as well. A change does not wake those who
        `wait` for it: `notify` does that.

        Raises:
            NotHere: The region lives on another host, or cannot be mapped by this user.
        """
    def wait(self, offset: int, expected: int, *, timeout: float = 30) -> int:
        """Waits until a word is another than was expected, and returns it.

        Args:
            offset: Offset of the word, a multiple of 8.
            expected: Value that is expected.
            timeout: Time in seconds to wait.

        Raises:
            TimedOut: The word was not changed in time.
        """
    def notify(self, offset: int, *, timeout: float = 30) -> None:
        """Wakes those who wait for a change of a word, after it was changed through a view or an array.

        Args:
            offset: Offset of the word, a multiple of 8.
            timeout: Time in seconds that the call may take.
        """
    def begin_read(self, offset: int, size: int, *, timeout: float = 30) -> PendingOperation[bytes]:
        """Begins to read at most 256 KiB. The result is `bytes`.

        Args:
            offset: Offset of the first byte.
            size: Number of bytes.
            timeout: Time in seconds that the operation may take.
        """
    def begin_write(self, data: Readable, offset: int = 0, *, timeout: float = 30) -> PendingOperation[None]:
        """Begins to write a copy of at most 256 KiB. The result is `None`.

        Args:
            data: Bytes to write.
            offset: Offset of the first byte.
            timeout: Time in seconds that the operation may take.
        """
    def begin_fetch_add(self, offset: int, value: int = 1, *, timeout: float = 30) -> PendingOperation[int]:
        """Begins to add to a word of 64 bits. The result is what the word was before.

        Args:
            offset: Offset of the word, a multiple of 8.
            value: Number to add; a negative one is subtracted.
            timeout: Time in seconds that the operation may take.
        """
    def fence(self) -> None:
        """Waits until all operations that were begun on this handle are over.

        Later operations, anywhere, find the bytes that these have written. The results raise the errors.
        """
    def give(self, user: int | None, rights: str, timeout: float) -> None: ...
    def withdraw(self, user: int | None, timeout: float) -> None: ...
    def move_to(self, client: Client, node: str, timeout: float) -> None: ...
    def copy_to(self, id: ObjectId, terms: Terms, timeout: float) -> ObjectId: ...
    def describe(self, timeout: float) -> RegionRow: ...
    def free(self, *, timeout: float = 30) -> None:
        """Frees the region: its name, and its memory when nobody has it mapped any more.

        Args:
            timeout: Time in seconds that the call may take.

        Raises:
            NotAllowed: This user has not the rights of a master.
        """

@final
class Outgoing:
    """Lent memory in which a value is written that is to be sent. It is writable until then."""

    def __new__(cls, client: Client, size: int) -> Self: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class ServiceHandle:
    """Native base of `plasmon.Service`: a handle to a service."""

    def __new__(cls, client: Client, name: str, owner: int | None, timeout: float) -> Self: ...
    @property
    def owner(self) -> int:
        """User id of the service's owner."""
    @property
    def functions(self) -> builtins.list[str]:
        """Names of the functions."""
    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the client is closed."""
    def close(self) -> None:
        """Gives the handle up. The service stays."""
    @overload
    def call(
        self,
        function: str,
        data: Readable | None = None,
        *,
        timeout: float = 10,
        into: None = None,
        priority: Priority | None = None,
    ) -> bytes:
        """Calls a function, and waits for its reply.

        Args:
            function: Name of the function.
            data: Bytes for the function.
            timeout: Time in seconds that the call may take.
            into: Writable buffer that receives the reply. Then the part that holds it is returned.
            priority: Class of the call: "high", "normal" or "low", instead of the client's.

        Raises:
            CallFailed: The function was run and failed.
            OutcomeUnknown: The function may have been run, or may be running.
            TimedOut: No thread of a server was free in time. The function was not run.
            ObjectNotFound: No process serves it any more. The function was not run.
            InvalidArgument: There is no such function; or the reply, which is lost, does not fit the buffer.
        """
    @overload
    def call(
        self,
        function: str,
        data: Readable | None = None,
        *,
        timeout: float = 10,
        into: Readable,
        priority: Priority | None = None,
    ) -> memoryview: ...
    def ask(
        self, function: str, data: Readable | Outgoing, timeout: float, priority: Priority | None
    ) -> memoryview: ...
    def await_call(
        self, function: str, data: Readable | Outgoing, timeout: float, priority: Priority | None
    ) -> AwaitedOperation | None: ...
    def begin(
        self,
        function: str,
        data: Readable | None = None,
        *,
        timeout: float = 10,
        priority: Priority | None = None,
    ) -> PendingOperation[bytes]:
        """Begins a call. The result is `bytes`.

        Args:
            function: Name of the function.
            data: Bytes for the function.
            timeout: Time in seconds that the call may take.
            priority: Class of the call: "high", "normal" or "low", instead of the client's.
        """
    def send(
        self,
        function: str,
        data: Readable | None = None,
        *,
        confirm: bool = False,
        priority: Priority | None = None,
    ) -> None:
        """Calls a function without waiting for its reply.

        The caller is not told what the function returns or raises, nor whether the function is run at all if
        its server dies.

        Args:
            function: Name of the function.
            data: Bytes for the function.
            confirm: Whether to wait until a server has the call. More than 320 bytes are waited for in any
                case.
            priority: Class of the call: "high", "normal" or "low", instead of the client's.
        """

def multicast(
    client: Client,
    services: Sequence[ServiceHandle],
    function: str,
    data: Readable,
    timeout: float,
    priority: Priority | None,
) -> builtins.list[bytes | Error]:
    """Calls the same function of several services. Returns the reply of each: bytes, or an exception."""

class ServerHandle:
    """Native base of `plasmon.Server`: a port at which calls of a service come to this process."""

    def __new__(
        cls,
        client: Client,
        name: str,
        functions: builtins.list[str],
        users: builtins.list[int] | None,
    ) -> Self: ...
    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the client is closed."""
    def end(self) -> None: ...
    def receive(
        self, answered: ReceivedCall | None = None, reply: Readable | None = None
    ) -> ReceivedCall | None: ...

@final
class ReceivedCall:
    """Call that came, until it is answered."""

    @property
    def function(self) -> int: ...
    @property
    def user(self) -> int: ...
    @property
    def node(self) -> str: ...
    def data(self) -> bytes: ...
    def memory(self) -> memoryview: ...
    def left(self) -> float: ...
    def gone(self) -> bool: ...
    def reply(self, data: Readable | Outgoing) -> None: ...
    def fail(self, text: str) -> None: ...

class LockHandle:
    """Native base of `plasmon.Lock`: a handle to a lock."""

    def __new__(
        cls, client: Client, name: str, ttl: float, shared: bool, public: bool, timeout: float | None
    ) -> Self: ...
    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the client is closed."""
    def take(self, timeout: float | None) -> Guard: ...
    def begin(self, timeout: float | None) -> AwaitedSync: ...
    def end(self) -> None: ...

@final
class Guard:
    """Possession of a lock, until it is released, or lost."""

    @property
    def valid(self) -> bool:
        """Whether the lock is held now.

        The look costs less than a microsecond. The answer says nothing of the time after it, in which the
        program may be stopped: `Region.write(fence=guard)` refuses a write that comes too late.
        """
    @property
    def token(self) -> int:
        """Token of the guard: larger than that of every guard of this lock before."""
    @property
    def abandoned(self) -> bool:
        """Whether the holder before died or lost the lock, so that what it changed may be half done."""
    @property
    def released(self) -> bool:
        """Whether `release` was called, or the block was left."""
    def release(self) -> None:
        """Unlocks. A second call does nothing.

        Raises:
            Fenced: The lock was lost before: others may have held it since.
        """
    def give_up(self) -> None: ...

class BarrierHandle:
    """Native base of `plasmon.Barrier`: a handle to a barrier, which is one of its parties."""

    def __new__(cls, client: Client, name: str, parties: int, public: bool) -> Self: ...
    @property
    def parties(self) -> int:
        """Number of parties."""
    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the client is closed."""
    def wait(self, timeout: float | None = None) -> int:
        """Waits until all parties have arrived. Returns the place of this one among them, from 0.

        Args:
            timeout: Time in seconds to wait; by default there is no limit. A party that waits no longer
                breaks the barrier.

        Raises:
            BarrierBroken: A party died, left or waited no longer. The error says who.
            TimedOut: Not all parties arrived in time.
        """
    def begin(self, timeout: float | None) -> AwaitedSync: ...
    def close(self) -> None:
        """Leaves the barrier, which breaks it for those who wait there."""

@final
class AwaitedSync:
    """Wait for a lock or at a barrier that was begun for an event loop."""

    @property
    def number(self) -> int: ...
    def patience(self) -> float | None: ...
    def result(self) -> Any: ...
    def late(self) -> BaseException: ...
    def cancel(self) -> None: ...

@final
class PendingOperation(Generic[_R]):
    """Operation on a region, or call of a service, that was begun. `result` waits for it.

    Up to 256 operations of a client are under way at a time. Dropping this gives the result up; a change goes
    on.
    """

    def result(self) -> _R:
        """Waits for the result, and returns it. It can be taken once."""
    def done(self) -> bool:
        """Whether the result has come, so that `result` returns at once."""

@final
class RegionCalls:
    """Operations of a region, begun for an event loop. Each returns `None` if it is to be made in a thread.

    The arguments are those of the operations of `RegionHandle`.
    """

    def __new__(cls, region: RegionHandle) -> Self: ...
    def read(
        self, offset: int = 0, size: int | None = None, *, timeout: float = 30
    ) -> AwaitedOperation | None: ...
    def read_into(
        self, buffer: Readable, offset: int = 0, *, timeout: float = 30
    ) -> AwaitedOperation | None: ...
    def write(
        self, data: Readable, offset: int = 0, *, timeout: float = 30, fence: Guard | None = None
    ) -> AwaitedOperation | None: ...
    def fill(
        self, value: int = 0, offset: int = 0, size: int | None = None, *, timeout: float = 30
    ) -> AwaitedOperation | None: ...
    def copy_from(
        self,
        source: RegionHandle,
        *,
        source_offset: int = 0,
        offset: int = 0,
        size: int | None = None,
        timeout: float = 30,
    ) -> AwaitedOperation | None: ...
    def fetch_add(self, offset: int, value: int = 1, *, timeout: float = 30) -> AwaitedOperation | None: ...
    def swap(self, offset: int, value: int, *, timeout: float = 30) -> AwaitedOperation | None: ...
    def compare_swap(
        self, offset: int, expected: int, value: int, *, timeout: float = 30
    ) -> AwaitedOperation | None: ...
    def test_and_set(self, offset: int, *, timeout: float = 30) -> AwaitedOperation | None: ...
    def wait(self, offset: int, expected: int, *, timeout: float = 30) -> AwaitedOperation | None: ...
    def notify(self, offset: int, *, timeout: float = 30) -> AwaitedOperation | None: ...

@final
class KeptReply:
    """Reply to a call that the node keeps until it is taken."""

    def take(self) -> memoryview: ...

@final
class AwaitedOperation:
    """Operation on a region, or call of a function, that was begun for an event loop."""

    @property
    def number(self) -> int: ...
    def patience(self) -> float | None: ...
    def result(self) -> Any: ...
    def late(self) -> BaseException: ...
    def cancel(self) -> None: ...

@final
class Loop:
    """Connection for an event loop, for `plasmon.aio`."""

    def __new__(cls, client: Client) -> Self: ...
    def descriptors(self) -> tuple[int, int]: ...
    def get_here(self, ids: Iterable[Id], timeout: float | None) -> builtins.list[Buffer] | None: ...
    def get(self, ids: Iterable[Id], timeout: float | None, verify: bool = False) -> Pending: ...
    def wait(self, ids: Iterable[Id], count: int, timeout: float | None) -> Pending: ...
    def turn(self) -> tuple[builtins.list[int], bool, bool]: ...
    def close(self) -> None: ...

@final
class Pending:
    """Call under way that was begun by a `Loop`."""

    @property
    def number(self) -> int: ...
    def patience(self) -> float | None: ...
    def objects(self) -> builtins.list[Buffer]: ...
    def existing(self, last: bool) -> tuple[builtins.list[Buffer | None], builtins.list[int]]: ...
    def presence(self) -> builtins.list[bool]: ...
    def cancel(self) -> None: ...

@final
class Cancellation:
    """Handle that cancels a call of another thread."""

    def __new__(cls) -> Self: ...
    def run(self, call: Callable[[], _T]) -> _T: ...
    def cancel(self) -> None: ...
