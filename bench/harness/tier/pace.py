"""Processor time of calls at a pace, and the bytes that calls take beside what they bring.

Eight threads make 1,000 calls a second all together, of Plasmon and of ZeroMQ; a pair of bare processes that
poll all the time exchanges messages at the same pace. Then functions are called as Facebook's stores are
asked: with the sizes of keys and values of its pool ETC, and with the gaps between requests of that pool, or
gaps that are up to eight times longer (B. Atikoglu et al., "Workload Analysis of a Large-Scale Key-Value
Store", SIGMETRICS 2012).

Processor time is that of all who take part: nodes, callers and servers. Bytes are those of the frames that
come to both nodes, and of what they read in each other's memory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import cpu, page
from harness.figures import rounded
from harness.network import Host
from harness.page import Goal
from harness.processes import PeerError, Worker
from harness.progress import Progress
from harness.remote import others
from harness.remote.contenders import Way
from harness.series import Series
from harness.tier.callers import ZMQ, Callers, missing
from harness.tier.run import LITTLE
from harness.tier.workers import FABRIC, MAPPED, PYTHON, REMOTE, RUST

STEADY = "1,000 a second"
_AT_A_PACE = ((MAPPED, RUST), (REMOTE, RUST), (REMOTE, PYTHON), (REMOTE, ZMQ))
_PATIENCE = 300.0
_SHARE = 0.6
_PART_OF_POLLING = 0.25
_NAMES = {RUST: "Rust", PYTHON: "Python", ZMQ: "ZeroMQ, Python", FABRIC: "two processes that poll"}


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    calls: int
    """Number of calls at a steady pace."""
    requests: int
    """Number of calls as Facebook's stores are asked, without longer gaps."""
    slower: Sequence[int]
    """Factors by which the gaps are longer."""


FULL = Plan(30_000, 200_000, (1, 2, 4, 8))
QUICK = Plan(200, 2_000, (1, 8))


@dataclass(frozen=True)
class Pace:
    """Figures of calls that came at a pace."""

    mode: str
    peer: str
    arrivals: str
    calls: int
    per_s: float
    """Calls a second that were made."""
    cpu_us: float
    """Processor time of a call in microseconds, of all processes that take part."""
    payload: float | None
    """Share of the bytes between the nodes that callers and functions have sent."""


PACE = Series("tier-pace", Pace)


def expected(plan: Plan, absent: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """Turns of the measurement: mode, peer and arrivals."""
    return [
        *((mode, peer, STEADY) for mode, peer in _AT_A_PACE if peer not in absent),
        *((REMOTE, RUST, _gaps(slower)) for slower in plan.slower),
        (REMOTE, FABRIC, STEADY),
    ]


def _gaps(slower: int) -> str:
    return f"gaps x {slower}"


def measure(
    plan: Plan, hosts: Sequence[Host], folder: Path, say: Progress, failures: dict[str, list[str]]
) -> list[Pace]:
    """Measures all of it, one after the other. A peer that fails is left out.

    Raises:
        PeerError: A node or a worker of Plasmon failed.
    """
    found: list[Pace] = []
    peers = [peer for peer in (ZMQ,) if peer not in missing()]
    with contextlib.closing(Callers(hosts, folder / "calls", failures, peers)) as callers:
        for mode, peer in _AT_A_PACE:
            worker = callers.worker(mode, peer)
            if worker is None:
                continue
            say(f"calls at a pace: {mode}, {peer}")
            own = [callers.servers[peer]] if peer in callers.servers else _daemons(callers)
            found.append(_steady(mode, peer, worker, own, plan.calls))
        worker = callers.worker(REMOTE, RUST)
        assert worker is not None
        for slower in plan.slower:
            say(f"calls as Facebook's stores are asked, {_gaps(slower)}")
            found.append(_facebook(worker, callers, plan.requests // slower, slower))
        provider = str(callers.nodes.facts["provider"])
    try:
        say("messages at a pace: two processes that poll")
        found.append(_polling(hosts, folder / "fabric", provider, plan.calls))
    except (PeerError, OSError) as failure:
        failures.setdefault(FABRIC, []).append(str(failure))
    return found


def _daemons(callers: Callers) -> list[int]:
    nodes = callers.nodes.nodes
    return [pid for node in nodes for pid in cpu.family(int(node.status()["pid"]))]


def _ask(worker: Worker, operation: str, size: int, calls: int) -> dict[str, Any]:
    work = {"size": size, "batch": calls, "owner": 0, "numbers": (0, 1)}
    return worker.ask("measure", operation=operation, calls=1, seconds=1.0, **work)


def _steady(
    mode: str, peer: str, worker: Worker, others: Sequence[int], calls: int, operation: str = "paced"
) -> Pace:
    all_of_them = [*others, *cpu.family(worker.pid)]
    # The first calls make connections.
    _ask(worker, operation, LITTLE, 100)
    before, begin = cpu.seconds(all_of_them), time.monotonic()
    _ask(worker, operation, LITTLE, calls)
    took, spent = time.monotonic() - begin, cpu.seconds(all_of_them) - before
    return Pace(mode, peer, STEADY, calls, rounded(calls / took), rounded(spent * 1e6 / calls), None)


def _facebook(worker: Worker, callers: Callers, calls: int, slower: int) -> Pace:
    all_of_them = [*_daemons(callers), *cpu.family(worker.pid)]
    bytes_before, before = _between(callers), cpu.seconds(all_of_them)
    begin = time.monotonic()
    answer = _ask(worker, "facebook", slower, calls)
    took, spent = time.monotonic() - begin, cpu.seconds(all_of_them) - before
    share = answer["bytes"] / (_between(callers) - bytes_before)
    per_s, us = rounded(calls / took), rounded(spent * 1e6 / calls)
    return Pace(REMOTE, RUST, _gaps(slower), calls, per_s, us, rounded(share))


def _between(callers: Callers) -> int:
    """Bytes that have come to both nodes so far, in frames and by reads."""
    classes = [node.status()["classes"] for node in callers.nodes.nodes]
    return sum(of[name]["received_bytes"] for of in classes for name in ("high", "normal", "low"))


def _polling(hosts: Sequence[Host], folder: Path, provider: str, calls: int) -> Pace:
    fabric = others.Fabric()
    fabric.provider = provider
    if reason := fabric.missing():
        raise PeerError(reason)
    try:
        fabric.start(hosts, folder, 0)
        worker = fabric.getter(Way(""), 0)
        worker.patience = _PATIENCE
        return _steady(REMOTE, FABRIC, worker, fabric.servers()[0], calls, "message_paced")
    finally:
        fabric.close()


def goals(found: Sequence[Pace]) -> Iterator[Goal]:
    """Goals of processor time and of bytes for which there are figures."""
    by = {(one.mode, one.peer): one for one in found if one.arrivals == STEADY}
    pairs = [
        (RUST, FABRIC, "a pair of processes that poll", _PART_OF_POLLING),
        (PYTHON, ZMQ, "ZeroMQ", 1.0),
    ]
    for mine, theirs, name, most in pairs:
        ours, other = by.get((REMOTE, mine)), by.get((REMOTE, theirs))
        if ours and other:
            ratio = ours.cpu_us / other.cpu_us
            measured = f"{ratio:.2f} ({ours.cpu_us:,.4g} µs / {other.cpu_us:,.4g} µs)"
            what = f"processor time of a call, {STEADY} by 8 threads, {_NAMES[mine]}, against {name}"
            yield Goal(what, f"≤ {most:g}", measured, ratio <= most)
    for one in found:
        if one.payload is not None:
            what = f"keys and values, of all bytes between the nodes, {one.arrivals}"
            yield Goal(what, f"≥ {_SHARE:g}", f"{one.payload:.2f}", one.payload >= _SHARE)


def table(found: Sequence[Pace]) -> str:
    """Section of the page."""
    where = {MAPPED: "one host", REMOTE: "two hosts"}
    lines = [
        [
            f"{_NAMES.get(one.peer, one.peer)}, {where[one.mode]}",
            one.arrivals,
            f"{one.per_s:,.0f}",
            page.short(one.cpu_us),
            "" if one.payload is None else f"{one.payload:.2f}",
        ]
        for one in found
    ]
    text = (
        "Processor time of a call is that of nodes, callers and servers together. Calls come 1,000 a second, "
        "by 8 threads, with 64 bytes there and back. Or keys and values have the sizes of Facebook's pool "
        "ETC, and come with the gaps between requests of that pool, or longer ones, as far as 8 threads that "
        'wait for their replies can (B. Atikoglu et al., "Workload Analysis of a Large-Scale Key-Value '
        'Store", SIGMETRICS 2012). Of these the last column has the share of keys and values in all bytes '
        "that come to both nodes."
    )
    heads = ["", "arrivals", "calls/s", "µs of processor time a call", "share of the payload"]
    return f"### Calls at a pace\n\n{text}\n\n" + page.table(heads, lines) if lines else ""
