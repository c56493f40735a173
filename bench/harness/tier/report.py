"""Section of the page for regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness import page
from harness.figures import Row
from harness.page import short, size_of, table
from harness.tier import (
    bodies,
    callers,
    calls,
    classes,
    extent,
    goals,
    locks,
    log,
    log_nodes,
    mpi,
    pace,
    pieces,
    ucx,
)
from harness.tier.classes import CLASSES
from harness.tier.extent import CROWD, Crowd
from harness.tier.goals import Found
from harness.tier.many import MANY, SIZE, Many
from harness.tier.pace import PACE
from harness.tier.run import BUSY, IN_FLIGHT, LITTLE, MANY_PYTHON, MANY_RUST, MIB, WORD
from harness.tier.workers import (
    FABRIC,
    MACHINE,
    MAPPED,
    PYTHON,
    REDIS_PYTHON,
    REDIS_RUST,
    REMOTE,
    RUST,
    SLOT,
    TCP,
)

# Column, and the row that it shows.
_HERE = [
    ("mapped, Rust", MAPPED, RUST, MANY_RUST),
    ("mapped, Python", MAPPED, PYTHON, MANY_PYTHON),
    ("by slot, Rust", SLOT, RUST, 1),
    ("by slot, Python", SLOT, PYTHON, 1),
    ("Redis, Rust", MAPPED, REDIS_RUST, 1),
    ("Redis, Python", MAPPED, REDIS_PYTHON, 1),
    ("processor", MAPPED, MACHINE, MANY_RUST),
]
_AFAR = [
    ("Rust", RUST),
    ("Python", PYTHON),
    ("libfabric", FABRIC),
    ("TCP", TCP),
    ("Redis, Rust", REDIS_RUST),
    ("Redis, Python", REDIS_PYTHON),
    ("MPI", mpi.NAME),
]
_NAMED = {"fetch_add": "locked_add"}
"""Operation of the processor that stands beside one on a region."""


def text(rows: list[Row], run: dict[str, Any]) -> list[str]:
    """The section."""
    found, (many, _), (crowds, _) = Found(rows), MANY.last() or ([], {}), CROWD.last() or ([], {})
    (apart, _), (paced, _) = CLASSES.last() or ([], {}), PACE.last() or ([], {})
    return [
        _points(run),
        page.goals("Goals of regions", "median", goals.check(rows, many, crowds, apart, paced)),
        "![Regions of another host](img/tier.png)",
        _here(found),
        *(_afar(found, operation) for operation in ("read", "write")),
        _words(found),
        _parts(found),
        _in_flight(found),
        _bulk(found),
        _in_pieces(found),
        _over(found),
        log.table(rows),
        log_nodes.table(rows),
        _calls(found),
        bodies.table(rows),
        pace.table(paced),
        _locks(found),
        classes.table(apart),
        _many(many),
        _crowds(crowds),
        _ucx(found),
    ]


def _points(run: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.get("versions", {}).items())
    points = [
        *page.machine(run),
        f"{run['network']}; libfabric's provider: {run['facts']['provider']}.",
        f"Stores of {run['store_bytes'] >> 20} MiB. {versions}. Rounds counted: {run.get('rounds', 0)}.",
        *page.quick(run),
    ]
    if not run["whole"]:
        points.append("**The run was ended before its time: this is what there was until then.**")
    points += [f"{name} was not installed: {reason}" for name, reason in run.get("missing", {}).items()]
    for name, reasons in run["failures"].items():
        points.append(f"**{name} failed {len(reasons)} times**, first: {reasons[0].splitlines()[0]}")
    return page.points(points)


def _time(row: Row | None) -> str:
    return f"{short(row.median_us)} ({short(row.p99_us)})" if row else ""


def _here(found: Found) -> str:
    lines = []
    for operation, size in (("read", LITTLE), ("write", LITTLE), ("fetch_add", WORD)):
        cells = [
            _time(
                found.find(
                    mode,
                    peer,
                    _NAMED.get(operation, operation) if peer == MACHINE else operation,
                    size,
                    batch,
                )
            )
            for _, mode, peer, batch in _HERE
        ]
        lines.append([f"`{operation}`, {size_of(size)}", *cells])
    futex = found.futex
    text = (
        "Microseconds: median (p99). Of mapped regions, and of the processor's locked add, the clock is read "
        f"once for {MANY_RUST:,} operations ({MANY_PYTHON} in Python), so that p99 is that of their mean. A "
        f"futex round trip between two sleeping processes takes {_time(futex)} µs."
    )
    return f"### Regions of this host\n\n{text}\n\n" + table(["", *(head for head, *_ in _HERE)], lines)


def _afar(found: Found, operation: str) -> str:
    columns = []
    sizes = found.sizes(operation)
    for head, peer in _AFAR:
        rows = [
            found.fabric(operation, size) if peer == FABRIC else found.find(REMOTE, peer, operation, size)
            for size in sizes
        ]
        if any(rows):
            columns.append((head, [_time(row) for row in rows], rows))
    lines = []
    for at, size in enumerate(sizes):
        ours = columns[0][2][at]
        rate = f"{size / ours.median_us / 1e3:.3g}" if ours and size >= MIB else ""
        lines.append([size_of(size), *(cells[at] for _, cells, _ in columns), rate])
    heads = ["", *(head for head, *_ in columns), "Rust, GB/s"]
    text = "Microseconds: median (p99). All sides sleep while they wait, except those of MPI."
    title = f"`{operation}` of a region of another host"
    return f"### {title[0].upper()}{title[1:]}\n\n{text}\n\n" + table(heads, lines)


def _words(found: Found) -> str:
    adds = [
        (f"`fetch_add`, {head}", found.find(REMOTE, peer, "fetch_add", WORD))
        for head, peer in _AFAR
        if found.find(REMOTE, peer, "fetch_add", WORD)
    ]
    busy = [
        (f"`fetch_add`, {head}, while a program of the home computes", row)
        for head, peer in _AFAR
        if (row := found.find(REMOTE, peer, "fetch_add", WORD, busy=BUSY))
    ]
    lines = [
        *adds,
        *busy,
        ("libfabric: a message there and back", found.message),
        ("wake-up of a `wait`, on the region's host", found.find(SLOT, RUST, "wake", WORD)),
        ("wake-up of a `wait`, on another host", found.find(REMOTE, RUST, "wake", WORD)),
    ]
    text = (
        "Microseconds: median (p99). A wake-up is the time from before the change of the word, by a process "
        "of its home, until the call that waits for it has returned."
    )
    cells = [[what, _time(row)] for what, row in lines]
    return f"### Words of another host\n\n{text}\n\n" + table(["", "µs"], cells)


def _parts(found: Found) -> str:
    """Table of the time of an add from another host by its parts."""
    add, futex, message = found.find(REMOTE, RUST, "fetch_add", WORD), found.futex, found.message
    if add is None or futex is None or message is None:
        return ""
    parts = {
        "client to node and back: a futex round trip, both asleep": futex.median_us,
        "node to node and back: a message of libfabric, both asleep": message.median_us,
        "what the nodes do, and wakes that cost more beside other processes": add.median_us
        - futex.median_us
        - message.median_us,
        "**`fetch_add` from another host**": add.median_us,
    }
    text = (
        "Medians. The first two were measured by themselves, in turn with the adds; the rest is the "
        "difference."
    )
    lines = [[what, f"{us:.1f}"] for what, us in parts.items()]
    return f"### Where the time of an add goes\n\n{text}\n\n" + table(["", "µs"], lines)


def _in_flight(found: Found) -> str:
    whose = [
        (f"{IN_FLIGHT} reads of {LITTLE} B, Rust", RUST, "read_begun", LITTLE),
        (f"{IN_FLIGHT} reads of {LITTLE} B, Python", PYTHON, "read_begun", LITTLE),
        (f"{IN_FLIGHT} reads of {LITTLE} B, libfabric", FABRIC, "read_begun", LITTLE),
        (f"{IN_FLIGHT} adds, Rust", RUST, "add_begun", WORD),
    ]
    lines = []
    for what, peer, operation, size in whose:
        if row := found.find(REMOTE, peer, operation, size, IN_FLIGHT):
            lines.append([what, f"{row.median_us:.3g}", f"{1e6 / row.median_us:,.0f}"])
    return "### Many operations in flight\n\n" + table(["", "µs each", "a second"], lines)


def _bulk(found: Found) -> str:
    whose = [
        ("`fill`, mapped", MAPPED, RUST, "fill"),
        ("`fill`, from another host", REMOTE, RUST, "fill"),
        ("memset", MAPPED, MACHINE, "memset"),
        ("`copy_from`, mapped", MAPPED, RUST, "copy"),
        ("`copy_from`, both regions of another host", REMOTE, RUST, "copy"),
        ("memcpy", MAPPED, MACHINE, "memcpy"),
        ("`copy_from`, from a region of another host", REMOTE, RUST, "copy_between"),
        ("`move` to another host", REMOTE, RUST, "move"),
    ]
    rows = [
        (what, found.find(mode, peer, operation, size))
        for what, mode, peer, operation in whose
        for size in found.sizes(operation, mode, peer)
    ]
    rows += [
        ("libfabric's reads", found.fabric("read", size))
        for size in found.sizes("read", peer=FABRIC)
        if size > 16 * MIB
    ]
    lines = [
        [what, size_of(row.size), f"{row.median_us / 1e3:,.4g}", f"{row.size / row.median_us / 1e3:.3g}"]
        for what, row in rows
        if row
    ]
    return "### Fills, copies and moves\n\n" + table(["", "bytes", "ms, median", "GB/s"], lines)


def _in_pieces(found: Found) -> str:
    lines = []
    for pair in pieces.PAIRS:
        rows = [found.of(pieces.case(pair, kind)) for kind in (pieces.WHOLE, pieces.PIECES)]
        if all(rows):
            what = f"{pair.mode} `{pair.operation}` of {size_of(pair.size)}"
            lines.append([what, *(_time(row) for row in rows)])
    text = (
        "Microseconds: median (p99), of the same calls on two regions of 4 MiB. One lies in one piece of its "
        "home's memory, the other in 32."
    )
    heads = ["", "one piece", "32 pieces"]
    return f"### Regions in pieces\n\n{text}\n\n" + table(heads, lines) if lines else ""


def _over(found: Found) -> str:
    regions = extent.regions_of(found.rows)
    lines = []
    for kind in extent.KINDS:
        rows = [found.of(extent.case(kind, region)) for region in regions]
        if all(rows):
            mode, operation, size, _ = kind
            lines.append([f"{mode} `{operation}` of {size_of(size)}", *(_time(row) for row in rows)])
    text = (
        "Microseconds: median (p99), of operations at 256 places all over a region. It has this many bytes:"
    )
    heads = ["", *(size_of(region) for region in regions)]
    return f"### Large regions\n\n{text}\n\n" + table(heads, lines) if lines else ""


def _crowds(crowds: Sequence[Crowd]) -> str:
    lines = [
        [f"{one.clients:,}", f"{short(one.read_us)} ({short(one.read_p99_us)})", str(one.connections)]
        for one in crowds
    ]
    text = (
        f"So many clients of one host have one region of the other, and read {WORD} bytes of it one after "
        "the other. Connections are all of TCP that the region's home has."
    )
    heads = ["clients", "read, µs (p99)", "connections"]
    return f"### Many clients\n\n{text}\n\n" + table(heads, lines) if crowds else ""


def _ucx(found: Found) -> str:
    lines = []
    for peer, operation, size in ucx.turns(found.sizes("read")):
        if row := found.find(REMOTE, peer, operation, size):
            lines.append([operation, "polling" if peer == ucx.POLL else "asleep", size_of(size), _time(row)])
    text = (
        "Microseconds: median (p99), by `ucx_perftest` of ucx-utils over TCP, with both sides in the "
        "library. A put, and an active message (`am`), is half of one in each direction."
    )
    heads = ["", "both sides", "bytes", "µs"]
    return f"### UCX\n\n{text}\n\n" + table(heads, lines) if lines else ""


def _many(many: Sequence[Many]) -> str:
    lines = [
        [
            f"{one.regions:,}",
            f"{short(one.make_us)} ({short(one.make_p99_us)})",
            short(one.map_home_us),
            f"{short(one.map_us)} ({short(one.map_p99_us)})",
            f"{short(one.read_us)} ({short(one.read_p99_us)})",
            f"{one.own_bytes:.0f}",
            f"{one.directory_bytes:.0f}",
            f"{one.store_bytes:.0f}",
            f"{one.mapping_bytes:.0f}",
        ]
        for one in many
    ]
    heads = [
        "regions",
        "make, µs (p99)",
        "map at home, µs",
        "map, µs (p99)",
        "read, µs (p99)",
        "bytes a region: its own",
        "directory, each keeper",
        "store",
        "bytes a mapping",
    ]
    text = (
        f"Regions of {SIZE} bytes on one of two nodes. What is not said to be at home is done on the other "
        "node's host, the reads on one region after the other. Bytes are those of the two processes that no "
        "other process shares: a region's own are those that its home has beyond the other node, which keeps "
        "as much of the directory."
    )
    return f"### Many regions\n\n{text}\n\n" + table(heads, lines) if many else ""


def _locks(found: Found) -> str:
    where = {MAPPED: "by a client of its home", REMOTE: "by a client of another host"}
    rows = [
        (f"{what}, {hosts}", found.find(mode, RUST, operation, WORD))
        for mode, hosts in where.items()
        for what, operation in (("a free lock is taken", locks.LOCK), ("an add by a call", locks.ADD))
    ]
    rows.append(
        ("a lock goes to another host and back, each", found.find(REMOTE, RUST, locks.HAND_OVER, WORD))
    )
    rows += [
        (f"a free lock of {name} is taken, {hosts}", found.find(mode, peer, locks.LOCK, WORD))
        for mode, hosts in where.items()
        for name, peer in (("etcd", locks.ETCD), ("Redis (SET NX)", REDIS_RUST))
    ]
    rows += [
        (
            f"{what} of {locks.WAITING} who want a lock all the time",
            found.by(REMOTE, operation, locks.WAITING),
        )
        for what, operation in (("mean wait", locks.CONTENDED), ("longest wait", locks.LONGEST))
    ]
    rows += [
        (f"{parties} parties of {hosts} meet at a barrier", found.by(REMOTE, locks.MEET, parties))
        for parties, hosts in ((locks.PARTIES, "two nodes"), (locks.ALL_PARTIES, f"{locks.NODES} nodes"))
    ]
    rows.append(
        ("2 ranks of MPI on two hosts meet, both polling", found.find(REMOTE, mpi.NAME, mpi.BARRIER, WORD))
    )
    lines = [[what, _time(row)] for what, row in rows if row]
    return "### Locks and barriers\n\n" + table(["", "µs"], lines) if lines else ""


def _calls(found: Found) -> str:
    peers = [
        ("Rust", RUST),
        ("Python", PYTHON),
        ("ZeroMQ, Python", callers.ZMQ),
        ("gRPC, Python", callers.GRPC),
        ("gRPC, Rust (tonic)", callers.TONIC),
        ("Redis, LPUSH and BRPOP", callers.QUEUE),
    ]
    lines, where = [], {MAPPED: "one host", REMOTE: "two hosts"}
    for mode, hosts in where.items():
        for operation, size, batch, what in (
            (calls.CALL, LITTLE, 1, f"{size_of(LITTLE)} there and back"),
            (calls.CALL_REPLY, calls.REPLY, 1, f"{size_of(LITTLE)}, reply of {size_of(calls.REPLY)}"),
            (calls.CALL_BEGUN, LITTLE, IN_FLIGHT, f"{size_of(LITTLE)}, {IN_FLIGHT} in flight, each"),
        ):
            cells = [_time(found.find(mode, peer, operation, size, batch)) for _, peer in peers]
            if any(cells):
                lines.append([f"{what}, {hosts}", *cells])
        if wire := found.find(mode, RUST, calls.PHASES, LITTLE):
            lines.append([f"part of it between the nodes, {hosts}", _time(wire), *[""] * (len(peers) - 1)])
    if not lines:
        return ""
    text = "Microseconds: median (p99). All sides sleep while they wait."
    return f"### Calls of functions\n\n{text}\n\n" + table(["", *(head for head, _ in peers)], lines)
