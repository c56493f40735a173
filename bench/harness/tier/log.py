"""Appends to the log that is made of regions, held against streams of Redis.

Every case is measured by a program of its own on the second host, whose writers are threads that have
connections of their own. The copies of a log lie on the first host, on both, or on three nodes. Records have
16 bytes. All cases are measured once in a round, in an order that turns.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import page, paths
from harness.figures import Case, Row, Samples
from harness.network import Host
from harness.page import Goal
from harness.processes import PeerError
from harness.progress import Progress
from harness.tier.workers import HOME, OTHER, REDIS_RUST, REMOTE, RUST, Nodes, RedisTcp

RECORD = 16
WINDOW = 64
GROUP = 64
"""Records of a transaction, or commands in a pipeline, of those that are grouped."""
GROUPS = 8
"""Transactions of many records that a writer has under way."""
COMMIT, GROUPED, COMMIT_3 = "commit", "commit_grouped", "commit_3_copies"
"""Operations: a record a transaction, many a transaction, and a record a transaction with three copies."""
_MEMORY = 1024 << 20
_LITTLE = 512 << 20
_PATIENCE = 120.0


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    writers: Sequence[int]
    rounds: int
    seconds: int
    """Time of a turn in seconds."""


FULL = Plan((1, 2, 4, 8), 3, 3)
QUICK = Plan((1, 2), 1, 1)


def cases(plan: Plan) -> Iterator[Case]:
    """All cases."""
    for writers in plan.writers:
        for peer in (RUST, REDIS_RUST):
            yield Case(REMOTE, peer, COMMIT, "", RECORD, 1, writers)
            yield Case(REMOTE, peer, GROUPED, "", RECORD, GROUP, writers)
        yield Case(REMOTE, RUST, COMMIT_3, "", RECORD, 1, writers)


def measure(plan: Plan, hosts: Sequence[Host], folder: Path, say: Progress) -> list[Row]:
    """Measures all cases; those of Redis if it is installed.

    Raises:
        PeerError: A node or a program failed.
    """
    nodes, redis, samples = Nodes(), RedisTcp(), Samples()
    try:
        nodes.start(hosts, folder / "plasmon", _MEMORY)
        nodes.add(hosts[HOME], _MEMORY)
        missing = redis.missing() is not None
        if not missing:
            redis.start(hosts, folder / "redis", _LITTLE)
        every = [case for case in cases(plan) if case.peer == RUST or not missing]
        for number in range(plan.rounds):
            for case in [*every[number:], *every[:number]]:
                say(f"log: {case.operation} by {case.clients} writers, {case.peer}")
                rate = _rate(case, nodes, redis, hosts[OTHER], plan.seconds)
                samples.add(case, [round(1e9 * case.batch / rate)], moves=True, rate=rate)
        return samples.rows()
    finally:
        redis.close()
        nodes.close()


def _rate(case: Case, nodes: Nodes, redis: RedisTcp, host: Host, seconds: int) -> float:
    """Records a second that all writers of a case commit together."""
    if case.peer == REDIS_RUST:
        words = ["xadd", redis.address, case.clients, case.batch, seconds]
    else:
        homes = [node.socket for node in (nodes.nodes if case.operation == COMMIT_3 else nodes.nodes[:1])]
        window = GROUPS if case.operation == GROUPED else WINDOW
        words = ["log", nodes.nodes[OTHER].socket, ",".join(map(str, homes)), case.clients]
        words += [window, case.batch, seconds]
    return run_rate(words, host, f"{case.operation} by {case.peer}")


def run_rate(words: Sequence[object], host: Host, what: str) -> float:
    """Records a second, by a program that appends on a host.

    Raises:
        PeerError: The program failed, or did not end.
    """
    command = host.command([paths.rust_worker(), *map(str, words)])
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired as late:
        raise PeerError(f"{what} did not end in {_PATIENCE:.0f} s") from late
    if done.returncode != 0:
        raise PeerError(f"{what} failed: {done.stderr.strip()}")
    told = json.loads(done.stdout)
    return float(max(1, told["committed"])) / float(told["seconds"])


def goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """Goals of the log for which there are figures."""
    rates = {(row.peer, row.operation, row.clients): row.ops_per_s for row in rows}
    for clients in sorted({row.clients for row in rows if row.operation == COMMIT}):
        pairs = [
            ("window of 64, against XADD", (RUST, COMMIT), (REDIS_RUST, COMMIT), 1.0),
            ("grouped, against XADD in pipelines", (RUST, GROUPED), (REDIS_RUST, GROUPED), 1.0),
            ("three copies, against one", (RUST, COMMIT_3), (RUST, COMMIT), 0.5),
        ]
        for what, mine, theirs, part in pairs:
            ours, other = rates.get((*mine, clients)), rates.get((*theirs, clients))
            if ours and other:
                measured = f"{ours / other:.2f} ({ours:,.0f}/s / {other:,.0f}/s)"
                goal = f"log, {clients} writers: commits of {RECORD} B, {what}"
                yield Goal(goal, f"≥ {part:g}", measured, ours >= part * other)


def table(rows: Sequence[Row]) -> str:
    """Section of the page with the rates."""
    rates = {(row.peer, row.operation, row.clients): f"{row.ops_per_s:,.0f}" for row in rows}
    columns = [
        ("the log", RUST, COMMIT),
        ("with three copies", RUST, COMMIT_3),
        ("XADD", REDIS_RUST, COMMIT),
        ("the log, grouped", RUST, GROUPED),
        ("XADD, in pipelines", REDIS_RUST, GROUPED),
    ]
    clients = sorted({row.clients for row in rows if row.operation == COMMIT})
    lines = [
        [str(number), *(rates.get((peer, operation, number), "") for _, peer, operation in columns)]
        for number in clients
    ]
    text = (
        f"Records of {RECORD} bytes that writers of one host commit in a second, all together, to a log or a "
        f"stream of Redis on another host. A writer of the log has {WINDOW} transactions under way, of one "
        f"record each, or {GROUPS} of {GROUP} records each if they are grouped. XADD is answered before the "
        f"next is sent, or is sent in pipelines of {GROUP}. Three copies lie on three nodes."
    )
    heads = ["writers", *(head for head, *_ in columns)]
    return f"### Appends to a log\n\n{text}\n\n" + page.table(heads, lines) if lines else ""
