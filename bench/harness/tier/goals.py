"""Goals of regions and calls, compared with the figures."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from harness import page
from harness.figures import Case, Row
from harness.page import Goal
from harness.tier import callers, calls, classes, locks, log, pace
from harness.tier.classes import Apart
from harness.tier.extent import KINDS, Crowd
from harness.tier.many import LARGE, SIZE, Many
from harness.tier.pace import Pace
from harness.tier.pieces import PAIRS, PIECES, WHOLE, Pair, case
from harness.tier.run import BUSY, IN_FLIGHT, KIB, LITTLE, MANY_PYTHON, MANY_RUST, MIB, WORD
from harness.tier.workers import FABRIC, MACHINE, MAPPED, PYTHON, REDIS_RUST, REMOTE, RUST

_SMALL = 4 * KIB
"""Largest size in bytes that is held against round trips; from 1 MiB on, rates are."""
_OVER = 1.35
_UNCHANGED = 1.1
_SAME = 1.02
_OWN_BYTES, _MAPPING_BYTES = 256, 128


class Found:
    """Rows by what they measure."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)
        self._by = {
            (row.mode, row.peer, row.operation, row.size, row.batch, row.memory): row for row in self.rows
        }

    def find(
        self, mode: str, peer: str, operation: str, size: int, batch: int = 1, busy: str = ""
    ) -> Row | None:
        """Row of a measurement, if there is one."""
        return self._by.get((mode, peer, operation, size, batch, busy))

    def of(self, case: Case) -> Row | None:
        """Row of a case, if there is one."""
        return self.find(case.mode, case.peer, case.operation, case.size, case.batch, case.memory)

    def by(self, mode: str, operation: str, clients: int) -> Row | None:
        """Row of what so many clients of Plasmon do together, if there is one."""
        which = (mode, RUST, operation, clients)
        rows = (row for row in self.rows if (row.mode, row.peer, row.operation, row.clients) == which)
        return next(rows, None)

    def sizes(self, operation: str, mode: str = REMOTE, peer: str = RUST) -> list[int]:
        """Sizes at which a peer's operation was measured."""
        return sorted(
            {row.size for row in self.rows if (row.mode, row.peer, row.operation) == (mode, peer, operation)}
        )

    def fabric(self, operation: str, size: int) -> Row | None:
        """Row of libfabric; of several ways to read the fastest."""
        names = ("read", "read_chunks") if operation == "read" else (operation,)
        rows = [self.find(REMOTE, FABRIC, name, size) for name in names]
        return min(filter(None, rows), key=lambda row: row.median_us, default=None)

    @property
    def futex(self) -> Row | None:
        """Round trip between two sleeping processes of one host."""
        return self.find(MAPPED, MACHINE, "futex_round_trip", 0)

    @property
    def message(self) -> Row | None:
        """Message of libfabric there and back."""
        return self.find(REMOTE, FABRIC, "message", WORD)


def check(
    rows: Iterable[Row],
    many: Sequence[Many],
    crowds: Sequence[Crowd] = (),
    apart: Sequence[Apart] = (),
    paced: Sequence[Pace] = (),
) -> list[Goal]:
    """All goals for which there are figures."""
    found = Found(rows)
    goals = [
        *(_mapped(found, *one) for one in _MAPPED),
        _against_redis(found),
        *(_small(found, name, size) for name in ("read", "write") for size in found.sizes(name)),
        _adds(found),
        _busy_adds(found),
        *(_large(found, name, size) for name in ("read", "write") for size in found.sizes(name)),
        _in_flight(found),
        *(_bulk(found, *one) for one in _BULK),
        *(_copy_between(found, size) for size in found.sizes("copy_between")),
        *(_move(found, size) for size in found.sizes("move")),
        _maps(found),
        *(_in_pieces(found, pair) for pair in PAIRS),
        *(_over(found, *kind) for kind in KINDS),
        *log.goals(found.rows),
        *_calls(found),
        *pace.goals(paced),
        *_locks(found),
        *_many(many),
        *_crowds(crowds),
        *classes.goals(apart),
    ]
    return [goal for goal in goals if goal is not None]


_MAPPED = [
    ("read", LITTLE, RUST, MANY_RUST, 0.15),
    ("write", LITTLE, RUST, MANY_RUST, 0.15),
    ("fetch_add", WORD, RUST, MANY_RUST, 0.1),
    ("read", LITTLE, PYTHON, MANY_PYTHON, 0.7),
    ("write", LITTLE, PYTHON, MANY_PYTHON, 0.7),
    ("fetch_add", WORD, PYTHON, MANY_PYTHON, 0.5),
]
_BULK = [
    ("fill", "memset", MAPPED),
    ("fill", "memset", REMOTE),
    ("copy", "memcpy", MAPPED),
    ("copy", "memcpy", REMOTE),
]


def _mapped(found: Found, operation: str, size: int, peer: str, batch: int, most: float) -> Goal | None:
    row = found.find(MAPPED, peer, operation, size, batch)
    if row is None:
        return None
    what = f"mapped, {peer.title()}: `{operation}` of {page.size_of(size)}"
    return Goal(what, f"≤ {most:g} µs", f"{row.median_us:.3g} µs", row.median_us <= most)


def _against_redis(found: Found) -> Goal | None:
    ours = found.find(MAPPED, RUST, "fetch_add", WORD, MANY_RUST)
    theirs = found.find(MAPPED, REDIS_RUST, "fetch_add", WORD)
    if ours is None or theirs is None:
        return None
    ratio = theirs.median_us / ours.median_us
    measured = f"{ratio:,.0f} times ({theirs.median_us:.3g} µs / {ours.median_us:.3g} µs)"
    return Goal("mapped, Rust: `fetch_add`, against INCR of Redis", "≥ 50 times", measured, ratio >= 50)


def _at_most(what: str, times: float, ours: Row | None, parts: Sequence[Row | None]) -> Goal | None:
    """Goal that a call takes at most so many times as long as some others together."""
    known = [part.median_us for part in parts if part]
    if ours is None or len(known) < len(parts):
        return None
    bare = sum(known)
    sums = " + ".join(f"{us:,.4g}" for us in known)
    sums = f"({sums})" if len(known) > 1 else sums
    ratio = ours.median_us / bare
    return Goal(what, f"≤ {times:g}", f"{ratio:.2f} ({ours.median_us:,.4g} µs / {sums} µs)", ratio <= times)


def _small(found: Found, operation: str, size: int) -> Goal | None:
    if size > _SMALL:
        return None
    what = f"remote `{operation}` of {page.size_of(size)}, against libfabric's and a futex round trip"
    parts = [found.fabric(operation, size), found.futex]
    return _at_most(what, _OVER, found.find(REMOTE, RUST, operation, size), parts)


def _adds(found: Found) -> Goal | None:
    what = "remote `fetch_add`, against a message there and back and a futex round trip"
    return _at_most(what, _OVER, found.find(REMOTE, RUST, "fetch_add", WORD), [found.message, found.futex])


def _busy_adds(found: Found) -> Goal | None:
    idle, busy = (found.find(REMOTE, RUST, "fetch_add", WORD, busy=busy) for busy in ("", BUSY))
    what = "remote `fetch_add` while a program of the home computes, against without"
    return _at_most(what, _UNCHANGED, busy, [idle])


def _at_least(what: str, part: float, ours: Row | None, bare: Row | None) -> Goal | None:
    """Goal that a call has at least so much of another's rate."""
    if ours is None or bare is None or ours.gb_per_s is None or bare.gb_per_s is None:
        return None
    # The median call counts, so that one slow call among few does not decide.
    mine, theirs = (row.size / row.median_us / 1e3 for row in (ours, bare))
    measured = f"{mine / theirs:.2f} ({mine:.3g} GB/s / {theirs:.3g} GB/s)"
    return Goal(what, f"≥ {part:g}", measured, mine / theirs >= part)


def _large(found: Found, operation: str, size: int) -> Goal | None:
    if size < MIB:
        return None
    what = f"remote `{operation}` of {page.size_of(size)}, rate against libfabric's"
    return _at_least(what, 0.9, found.find(REMOTE, RUST, operation, size), found.fabric(operation, size))


def _in_flight(found: Found) -> Goal | None:
    ours, bare = (found.find(REMOTE, peer, "read_begun", LITTLE, IN_FLIGHT) for peer in (RUST, FABRIC))
    if ours is None or bare is None:
        return None
    what = f"remote, {IN_FLIGHT} reads of {LITTLE} B in flight, rate against libfabric's"
    part = bare.median_us / ours.median_us
    measured = f"{part:.2f} ({1e6 / ours.median_us:,.0f}/s / {1e6 / bare.median_us:,.0f}/s)"
    return Goal(what, "≥ 0.7", measured, part >= 0.7)


def _bulk(found: Found, operation: str, bare: str, mode: str) -> Goal | None:
    for size in found.sizes(operation, mode):
        what = f"{mode} `{operation}` of {page.size_of(size)}, against {bare}"
        parts = [found.find(MAPPED, MACHINE, bare, size)]
        if mode == REMOTE:
            what, parts = f"{what} and a message there and back", [*parts, found.message]
        return _at_most(what, 1.15, found.find(mode, RUST, operation, size), parts)
    return None


def _copy_between(found: Found, size: int) -> Goal | None:
    what = f"`copy_from` of {page.size_of(size)} between hosts, rate against libfabric's reads"
    return _at_least(what, 0.9, found.find(REMOTE, RUST, "copy_between", size), found.fabric("read", size))


def _move(found: Found, size: int) -> Goal | None:
    longest = max(found.sizes("read", peer=FABRIC), default=0)
    what = f"`move` of {page.size_of(size)}, rate against libfabric's reads of {page.size_of(longest)}"
    return _at_least(what, 0.85, found.find(REMOTE, RUST, "move", size), found.fabric("read", longest))


def _maps(found: Found) -> Goal | None:
    small, large = (found.find(REMOTE, RUST, "map", size) for size in (SIZE, LARGE))
    what = f"map of {page.size_of(LARGE)} from another host, against that of {page.size_of(SIZE)}"
    return _at_most(what, _UNCHANGED, large, [small])


def _in_pieces(found: Found, pair: Pair) -> Goal | None:
    whole, pieces = (found.of(case(pair, kind)) for kind in (WHOLE, PIECES))
    what = f"{pair.mode} `{pair.operation}` of {page.size_of(pair.size)}: a region in 32 pieces, against one"
    return _at_most(what, _SAME, pieces, [whole])


def _over(found: Found, mode: str, operation: str, size: int, batch: int) -> Goal | None:
    regions = sorted(int(row.memory.split()[0]) for row in found.rows if row.operation == f"{operation}_over")
    if not regions:
        return None
    small, large = (
        found.find(mode, RUST, f"{operation}_over", size, batch, f"{region} bytes")
        for region in (regions[0], regions[-1])
    )
    what = f"{mode} `{operation}` of {page.size_of(size)} all over a region of {page.size_of(regions[-1])}"
    return _at_most(f"{what}, against one of {page.size_of(regions[0])}", _UNCHANGED, large, [small])


def _crowds(crowds: Sequence[Crowd]) -> list[Goal]:
    if len(crowds) < 2:
        return []
    few, most = crowds[0], crowds[-1]
    steps = f"{few.clients:,} → {most.clients:,} clients of a host"
    return [
        Goal(
            f"read from another host: {steps}",
            "≤ 1.1",
            f"{most.read_us / few.read_us:.2f} ({few.read_us:.4g} → {most.read_us:.4g} µs)",
            most.read_us <= 1.1 * few.read_us,
        ),
        Goal(
            f"connections of the region's home: {steps}",
            "the same",
            f"{few.connections} → {most.connections}",
            few.connections == most.connections,
        ),
    ]


def _calls(found: Found) -> list[Goal | None]:
    """Goals of calls of functions."""
    near, far = (found.find(mode, RUST, calls.CALL, LITTLE) for mode in (MAPPED, REMOTE))
    reply = found.find(REMOTE, RUST, calls.CALL_REPLY, calls.REPLY)
    python = found.find(REMOTE, PYTHON, calls.CALL, LITTLE)
    zmq, tonic = (found.find(REMOTE, peer, calls.CALL, LITTLE) for peer in (callers.ZMQ, callers.TONIC))
    called = f"remote `call` of {LITTLE} B"
    return [
        _at_most(
            f"`call` of {LITTLE} B on one host, against two futex round trips", _OVER, near, [found.futex] * 2
        ),
        _at_most(
            f"{called}, against a message there and back and two futex round trips",
            _OVER,
            far,
            [found.message, found.futex, found.futex],
        ),
        _at_most(
            f"{called} with a reply of {page.size_of(calls.REPLY)}, against that of {LITTLE} B",
            1.2,
            reply,
            [far],
        ),
        _at_most(f"{called}, Python, against ZeroMQ", 1.0, python, [zmq]),
        _at_most(f"{called}, Rust, against tonic", 0.5, far, [tonic]),
        *(_call_rate(found, mode) for mode in (MAPPED, REMOTE)),
        *(_against_tonic(found, mode) for mode in (MAPPED, REMOTE)),
        _parked(found),
    ]


def _locks(found: Found) -> Iterator[Goal | None]:
    """Goals of locks."""
    for mode in (MAPPED, REMOTE):
        taken, add = (found.find(mode, RUST, operation, WORD) for operation in (locks.LOCK, locks.ADD))
        yield _at_most(f"{mode}: a free lock is taken, against an add by a call", 1.1, taken, [add])
    handed = found.find(REMOTE, RUST, locks.HAND_OVER, WORD)
    what = "a lock goes to another host, against a message there and back and a futex round trip"
    yield _at_most(what, _OVER, handed, [found.message, found.futex])
    longest, mean = (
        found.by(REMOTE, operation, locks.WAITING) for operation in (locks.LONGEST, locks.CONTENDED)
    )
    yield _at_most(f"the longest wait of {locks.WAITING} for a lock, against the mean", 2.0, longest, [mean])
    taken, theirs = (found.find(REMOTE, peer, locks.LOCK, WORD) for peer in (RUST, locks.ETCD))
    if taken and theirs:
        ratio = theirs.median_us / taken.median_us
        measured = f"{ratio:,.0f} times ({theirs.median_us:,.4g} µs / {taken.median_us:,.4g} µs)"
        yield Goal("remote: a free lock is taken, against etcd", "≥ 20 times", measured, ratio >= 20)
    yield _barrier(found)


def _barrier(found: Found) -> Goal | None:
    """Goal that a barrier takes little more than a message and the wakes of all who come."""
    met, message, futex = found.by(REMOTE, locks.MEET, locks.ALL_PARTIES), found.message, found.futex
    if met is None or message is None or futex is None:
        return None
    cores = os.cpu_count() or 1
    bare = message.median_us + futex.median_us * (1 + locks.ALL_PARTIES / cores)
    ratio = met.median_us / bare
    what = (
        f"a barrier of {locks.NODES} nodes x {locks.ALL_PARTIES // locks.NODES} parties, against a message "
        f"there and back and {locks.ALL_PARTIES} / {cores} + 1 futex round trips"
    )
    return Goal(what, "≤ 1.5", f"{ratio:.2f} ({met.median_us:,.4g} µs / {bare:,.4g} µs)", ratio <= 1.5)


def _call_rate(found: Found, mode: str) -> Goal | None:
    row = found.find(mode, RUST, calls.CALL_BEGUN, LITTLE, IN_FLIGHT)
    if row is None:
        return None
    rate = 1e6 / row.median_us
    return Goal(f"{mode}, {IN_FLIGHT} calls in flight", "≥ 150,000/s", f"{rate:,.0f}/s", rate >= 150_000)


def _against_tonic(found: Found, mode: str) -> Goal | None:
    ours, theirs = (
        found.find(mode, peer, calls.CALL_BEGUN, LITTLE, IN_FLIGHT) for peer in (RUST, callers.TONIC)
    )
    if ours is None or theirs is None:
        return None
    ratio = theirs.median_us / ours.median_us
    measured = f"{ratio:.2f} ({1e6 / ours.median_us:,.0f}/s / {1e6 / theirs.median_us:,.0f}/s)"
    return Goal(f"{mode}, {IN_FLIGHT} calls in flight, against tonic", "≥ 5", measured, ratio >= 5)


def _parked(found: Found) -> Goal | None:
    row = found.find(MAPPED, RUST, calls.PARKED, 0)
    if row is None:
        return None
    ms = row.median_us / 1e3
    return Goal(
        "processor time of two nodes with servers that wait", "< 10 ms in 10 s", f"{ms:.3g} ms", ms < 10
    )


def _many(many: Sequence[Many]) -> list[Goal]:
    if len(many) < 2:
        return []
    few, most = many[0], many[-1]
    steps = f"{few.regions:,} → {most.regions:,} regions"
    times = [
        ("make", few.make_us, most.make_us),
        ("map from another host", few.map_us, most.map_us),
        ("read from another host", few.read_us, most.read_us),
    ]
    own, mapping = most.own_bytes, most.mapping_bytes
    at = f"with {most.regions:,}"
    return [
        *(
            Goal(
                f"{what}: {steps}",
                "≤ 1.1",
                f"{last / first:.2f} ({first:.4g} → {last:.4g} µs)",
                last <= 1.1 * first,
            )
            for what, first, last in times
        ),
        Goal(
            f"memory of a region beside the directory, its name included, {at}",
            f"≤ {_OWN_BYTES} B",
            f"{own:.0f} B",
            own <= _OWN_BYTES,
        ),
        Goal(
            f"memory of a mapping, on both nodes, with its handle, {at}",
            f"≤ {_MAPPING_BYTES} B",
            f"{mapping:.0f} B",
            mapping <= _MAPPING_BYTES,
        ),
    ]
