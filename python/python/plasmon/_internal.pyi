import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, ClassVar, Literal, Self, SupportsIndex, TypeAlias, TypeVar, final, overload

from typing_extensions import Buffer as Readable

from plasmon._terms import Terms

IdLike: TypeAlias = ObjectId | bytes | str
Id: TypeAlias = IdLike | Named

State: TypeAlias = Literal["unsealed", "primary", "kept", "cached", "doomed", "spilled"]
Public: TypeAlias = Literal["r", "rw"]
_T = TypeVar("_T")

Row: TypeAlias = tuple[ObjectId, str | None, State, bool, Public | None, int, int, int, float, int]

__version__: str

def default_socket() -> str:
    """Path of the socket at which the node of this host listens by default."""

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
        """Id with these 40 hexadecimal digits."""
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
        """Whether the bytes begin with these, or with one of a tuple of such, as `bytes.startswith`."""
    def endswith(
        self, suffix: Readable | tuple[Readable, ...], start: int | None = None, end: int | None = None, /
    ) -> bool:
        """Whether the bytes end with these, or with one of a tuple of such, as `bytes.endswith`."""
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
        tuple[Literal["sealed", "deleted", "gap"], ObjectId | None, int, int, int, str | None, str] | None
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
    def seal(self) -> None:
        """Makes the object immutable and visible to all."""
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

    def __new__(cls, socket: str | None, name: str, timeout: float | None) -> Self: ...
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
    ) -> None: ...
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
    def seal(self, id: Id) -> None: ...
    def abort(self, id: Id) -> None: ...
    def get(
        self, ids: Iterable[Id], timeout: float | None, verify: bool = False
    ) -> builtins.list[Buffer]: ...
    def get_existing(
        self, ids: Iterable[Id], timeout: float | None, verify: bool = False
    ) -> builtins.list[Buffer | None]: ...
    def get_local(self, id: Id) -> Buffer | None: ...
    def get_available(self, ids: Iterable[Id], timeout: float) -> builtins.list[Buffer | None]: ...
    def get_one(self, id: Id, timeout: float | None, verify: bool = False) -> Buffer: ...
    def wait(self, ids: Iterable[Id], count: int, timeout: float | None) -> builtins.list[bool]: ...
    def explain(self, id: Id) -> str: ...
    def replicate(
        self, id: Id, copies: int, timeout: float | None
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
    ) -> tuple[builtins.list[tuple[Row, str | None, builtins.list[str]]], builtins.list[tuple[str, str]]]: ...
    def status(self) -> str: ...

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
