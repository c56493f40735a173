"""Guards that handles to locks have given out, and the threads and tasks that took them.

A `with` within a `with` of one lock cannot end if both are of one thread, or of one task of an event loop:
the inner one waits for the outer one. So a process knows the blocks in which its threads and tasks are.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from plasmon._internal import Guard
from plasmon.errors import Busy

Key: TypeAlias = tuple[str, int, str, bool]
"""Lock of a cluster: a node of the cluster, the user, the whole name, and whether the lock is everybody's."""


@dataclass(frozen=True, slots=True)
class Taker:
    """Thread that took a lock, and its task if it ran an event loop."""

    thread: threading.Thread
    task: Any

    @classmethod
    def here(cls) -> Taker:
        """The thread and the task that call this."""
        return cls(threading.current_thread(), _task())

    @property
    def ended(self) -> bool:
        """Whether it cannot release anything any more."""
        return not self.thread.is_alive() if self.task is None else self.task.done()


def _task() -> Any:
    # Without this module no event loop runs.
    asyncio = sys.modules.get("asyncio")
    try:
        return None if asyncio is None else asyncio.current_task()
    except (AttributeError, RuntimeError):
        return None


@dataclass(slots=True, eq=False)
class Hold:
    """Guard of a block or of a call of `acquire`."""

    guard: Guard
    taker: Taker
    shared: bool
    count: int = 1
    """Number of blocks that have the guard."""


class Given:
    """Guards that one handle has given out and that were not given back, in their order."""

    def __init__(self) -> None:
        self._holds: list[Hold] = []
        self._mutex = threading.RLock()

    def add(self, hold: Hold) -> None:
        """Adds a guard."""
        with self._mutex:
            self._holds.append(hold)

    def forget_released(self) -> None:
        """Forgets guards that were released by their own method, which no block gives back."""
        with self._mutex:
            self._holds = [one for one in self._holds if not one.guard.released]

    def take(self, taker: Taker, *, of_others: bool) -> Hold | None:
        """Takes out the last guard of this taker, or else the last of one that has ended.

        With `of_others` it is else the last of all.
        """
        choices: list[Callable[[Hold], bool]] = [
            lambda hold: hold.taker == taker,
            lambda hold: hold.taker.ended,
            lambda hold: of_others,
        ]
        with self._mutex:
            for is_meant in choices:
                for at in range(len(self._holds) - 1, -1, -1):
                    if is_meant(self._holds[at]):
                        return self._holds.pop(at)
        return None

    def __len__(self) -> int:
        return len(self._holds)


_entered: dict[Key, list[Hold]] = {}
"""Guards of the blocks in which threads and tasks of this process are."""
_mutex = threading.RLock()


def join(key: Key, name: str, taker: Taker, *, shared: bool, reentrant: bool, awaits: bool) -> Hold | None:
    """Guard of a block around this one, which this one may have as well. `None` if no such block is there.

    Args:
        key: The lock.
        name: Name of the lock, for messages.
        taker: Thread and task that enter the block.
        shared: Whether the lock is wanted as a shared one.
        reentrant: Whether blocks within blocks are counted.
        awaits: Whether other tasks of the thread go on while this one waits.

    Raises:
        Busy: The block would wait for a block around it.
    """
    with _mutex:
        for hold in reversed(_entered.get(key, ())):
            around = hold.taker == taker or hold.taker == Taker(taker.thread, None)
            if not hold.guard.valid or not (around or (hold.taker.thread is taker.thread and not awaits)):
                continue
            if around and (shared or not hold.shared) and (reentrant or (shared and hold.shared)):
                hold.count += 1
                return hold
            whose = "task" if taker.task is not None and awaits else "thread"
            if around and hold.shared and not shared:
                advice = "it shares the lock there, and cannot have it alone before it has left that block"
            elif around:
                advice = "use the guard of that block, or a lock with reentrant=True"
            else:
                advice = "a task of it is in that block: use plasmon.aio, whose tasks wait for each other"
            raise Busy(
                f"this {whose} holds lock {name!r} in a block already, and would wait for ever: {advice}"
            )
    return None


def enter(key: Key, hold: Hold) -> None:
    """Notes that a block was entered."""
    with _mutex:
        _entered.setdefault(key, []).append(hold)


def leave(key: Key, hold: Hold) -> bool:
    """Notes that a block is left. Returns whether its guard is to be released."""
    with _mutex:
        hold.count -= 1
        if hold.count > 0:
            return False
        holds = _entered.get(key, [])
        if hold in holds:
            holds.remove(hold)
        if not holds:
            _entered.pop(key, None)
        return True
