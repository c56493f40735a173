"""Locks and barriers: one process of the cluster at a time, or all of them together."""

from __future__ import annotations

from types import TracebackType
from weakref import WeakSet

from plasmon import _blocks, _internal
from plasmon._arguments import instance, whole
from plasmon._blocks import Given, Hold, Key, Taker
from plasmon._closing import Closing
from plasmon._handle import Handle
from plasmon._internal import Guard
from plasmon.errors import Error, InvalidArgument


class Lock(_internal.LockHandle):
    """Lock that one process of the cluster holds at a time, or several that share it.

    `Client.lock` makes locks. A lock used as a context manager is held in the block, and gives the `Guard`
    out. Any number of threads may use it. Who waits gets the lock in the order of asking. A block may end in
    another thread than it began in.

    A block within a block of the same lock, in one thread, would wait for ever, and raises `Busy`. With
    `reentrant=True` it has the guard of the outer block, and the last of them to end releases that. Blocks
    that share the lock do so anyway.

    The lock is held as long as the process runs, however long that takes. The lock passes on when the process
    dies, and when it is stopped for longer than `ttl`. So a program asks `Guard.valid` before it does what
    only the holder may do, and gives the guard to `Region.write`.
    """

    _client: Locks
    _name: str
    _timeout: float | None
    _shared: bool
    _reentrant: bool
    _key: Key
    _acquired: Given
    """Guards of `acquire` that were not released."""
    _entered: Given
    """Guards of the blocks that were not left."""

    @property
    def name(self) -> str:
        """Name of the lock, as the client names it."""
        return self._name

    def acquire(self, timeout: float | None = None) -> Guard:
        """Waits for the lock, and holds it until `release`, or until the guard's own.

        Args:
            timeout: Time in seconds to wait; by default that of the lock. 0 does not wait.

        Raises:
            Busy: The lock is held, and the time-out is 0.
            TimedOut: The lock did not become free in time.
        """
        return self._acquire(self._taken(timeout))

    def release(self) -> None:
        """Unlocks what this thread acquired last, or else what one acquired that has ended.

        A guard that another thread has acquired is released by its own `release`.

        Raises:
            Fenced: The lock was lost before: others may have held it since.
            InvalidArgument: This thread has not acquired the lock, or has released all of its guards.
        """
        self._to_release().release()

    def _acquire(self, guard: Guard) -> Guard:
        """Notes a guard that is to be released."""
        self._acquired.forget_released()
        self._acquired.add(Hold(guard, Taker.here(), self._shared))
        return guard

    def _to_release(self) -> Guard:
        self._acquired.forget_released()
        hold = self._acquired.take(Taker.here(), of_others=False)
        if hold is not None:
            return hold.guard
        if len(self._acquired):
            raise InvalidArgument(
                f"lock {self._name!r} was acquired by another thread or task: release the guard that it got"
            )
        raise InvalidArgument(f"lock {self._name!r} is not held: acquire it first")

    def close(self) -> None:
        """Gives the handle up. Guards stay, until they are released."""
        self.end()

    def _taken(self, timeout: float | None) -> Guard:
        guard = self.take(self._timeout if timeout is None else timeout)
        self._client._guards.add(guard)
        return guard

    def __enter__(self) -> Guard:
        hold = self._joined(Taker.here(), awaits=False)
        if hold is None:
            hold = self._enter(self._taken(None))
        return hold.guard

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        guard = self._left()
        if guard is not None:
            release(guard, value)

    def _joined(self, taker: Taker, *, awaits: bool) -> Hold | None:
        """Guard of a block around one that is entered, if the block may have it."""
        shared, reentrant = self._shared, self._reentrant
        hold = _blocks.join(self._key, self._name, taker, shared=shared, reentrant=reentrant, awaits=awaits)
        if hold is not None:
            self._entered.add(hold)
        return hold

    def _enter(self, guard: Guard) -> Hold:
        """Notes a block, which has a guard of its own."""
        hold = Hold(guard, Taker.here(), self._shared)
        self._entered.add(hold)
        _blocks.enter(self._key, hold)
        return hold

    def _left(self) -> Guard | None:
        """Guard to be released at the end of a block, which is the last that has it."""
        hold = self._entered.take(Taker.here(), of_others=True)
        if hold is None:
            raise InvalidArgument(f"no block of lock {self._name!r} was entered")
        return hold.guard if _blocks.leave(self._key, hold) else None

    def __repr__(self) -> str:
        return f"<plasmon.Lock {self._name!r}{', closed' if self.closed else ''}>"


def release(guard: Guard, raised: BaseException | None) -> None:
    """Unlocks at the end of a block. If that raised, this is told rather than that the lock was lost."""
    try:
        guard.release()
    except Error:
        if raised is None:
            raise


class Barrier(_internal.BarrierHandle, Closing):
    """Barrier at which a number of parties wait for each other, again and again.

    `Client.barrier` makes barriers; each is a party. A party that dies, is closed or waits no longer breaks
    the barrier for those who wait.
    """

    _name: str

    @property
    def name(self) -> str:
        """Name of the barrier, as the client names it."""
        return self._name

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.parties} parties"
        return f"<plasmon.Barrier {self._name!r}, {state}>"


class Locks(Handle):
    """Calls of a client that make locks and barriers."""

    _guards: WeakSet[Guard]
    """Guards of this client, which it releases when it closes."""

    def lock(
        self,
        name: str,
        *,
        ttl: float = 10,
        shared: bool = False,
        timeout: float | None = None,
        public: bool = False,
        reentrant: bool = False,
    ) -> Lock:
        """A lock, to be held in a block: `with client.lock("name") as guard:`.

        Args:
            name: Name of the lock.
            ttl: Time in seconds, of 0.1 to 60, after which the lock passes on if the process that holds it is
                stopped, or its host is cut off. As long as the process runs, it keeps the lock.
            shared: Whether others may hold the lock at the same time that share it as well.
            timeout: Time in seconds to wait for the lock; by default there is no limit. 0 does not wait.
            public: Whether the lock is everybody's. Otherwise it is this user's, and other users have locks
                of the same name of their own.
            reentrant: Whether a block within a block of the lock, in one thread or one task, has the guard of
                the outer block. Otherwise it raises `Busy`, since it would wait for ever.

        Raises:
            InvalidArgument: The name or the time to live cannot be one.
        """
        native, full = self._connected(), self._full(name, "a lock")
        lock = Lock(native, full, ttl, shared, public, timeout)
        lock._client, lock._name, lock._timeout = self, name, timeout
        lock._shared, lock._reentrant = shared, instance(reentrant, bool, "reentrant")
        lock._key = (native.node, native.user, full, public)
        lock._acquired, lock._entered = Given(), Given()
        return lock

    def barrier(self, name: str, parties: int, *, public: bool = False) -> Barrier:
        """A barrier, at which `parties` of these wait for each other.

        Args:
            name: Name of the barrier.
            parties: Number of parties, of which this is one.
            public: Whether the barrier is everybody's, instead of this user's.

        Raises:
            InvalidArgument: Others have it with another number of parties.
        """
        parties = whole(parties, "the number of parties of a barrier", 1, (1 << 32) - 1)
        barrier = Barrier(self._connected(), self._full(name, "a barrier"), parties, public)
        barrier._name = name
        return barrier

    def _release_all(self) -> None:
        """Unlocks what this client holds."""
        for guard in list(self._guards):
            guard.give_up()
