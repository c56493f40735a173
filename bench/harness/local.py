"""`make bench-local`: compares the stores of one host.

The peers take turns within every round, and each round begins with the next peer, so that other load of the
machine affects all peers alike. Three things are measured:

1. puts into memory of the stores that was never used;
2. put, get, contains and delete by one client, one call at a time, in memory that is used again and again;
3. the rate of small objects by one client and by several together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.figures import Case, Row, Samples
from harness.peers import Peer, Raw
from harness.processes import PeerError, Worker, ask_all
from harness.progress import Progress
from harness.series import Series

KIB, MIB = 1 << 10, 1 << 20
SMALL = KIB
"""Size in bytes of the objects that clients put and get together."""
BATCH = 64
BATCHED_UP_TO = 64 * KIB
BYTES_A_TURN = 128 * MIB
"""Limit in bytes for the objects that a peer puts before they are deleted."""
CALLS = 128
"""Number of calls of an operation in a turn; gets are cheap, and there are twice as many."""
FIRST_OBJECTS = 16
"""Number of new small objects of a size in one round of puts into unused memory."""
FIRST_BYTES = 64 * MIB
HEAD_START = 100_000_000
"""Time in nanoseconds from the start signal to the start."""
SIZES = [4**power * KIB for power in range(9)]
LOCAL = Series("local", Row)


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    memory: int
    """Size of every store in bytes."""
    first_rounds: int
    rounds: int
    client_rounds: int
    turn: float
    """Approximate time in seconds for one operation at one size in a round."""
    window: float
    """Time in seconds that clients run together."""
    objects: int
    """Number of new objects that all clients together may put in that time."""
    clients: tuple[int, ...] = (1, 8)


FULL = Plan(
    memory=2048 * MIB, first_rounds=6, rounds=12, client_rounds=3, turn=0.1, window=0.6, objects=400_000
)
QUICK = Plan(
    memory=1024 * MIB, first_rounds=1, rounds=1, client_rounds=1, turn=0.03, window=0.2, objects=60_000
)


class Contestant:
    """Peer in this run: its server, its clients, and its failure."""

    def __init__(self, peer: Peer, plan: Plan, folder: Path) -> None:
        self.peer = peer
        self.failures: list[str] = []
        self._next = 0
        self._clients: dict[int, Worker] = {}
        self.version = ""
        try:
            peer.start(folder / peer.name, plan.memory)
            self.version = self.client().version
        except PeerError as failure:
            self.failures.append(str(failure))

    def client(self, number: int = 0) -> Worker:
        """Client of the peer, which is started when it is first needed."""
        if number not in self._clients:
            self._clients[number] = self.peer.client(number)
        return self._clients[number]

    def numbers(self, count: int) -> tuple[int, int]:
        """Numbers of `count` objects that were not used before."""
        self._next += count
        return self._next - count, count

    def close(self) -> None:
        """Ends the clients and the server."""
        for client in self._clients.values():
            client.close()
        self.peer.stop()


class Run:
    """Run of the benchmark, over peers that may be measured together."""

    def __init__(self, peers: Sequence[Peer], plan: Plan, samples: Samples, folder: Path) -> None:
        self._plan = plan
        self._samples = samples
        self._say = Progress()
        self._contestants: list[Contestant] = []
        for peer in peers:
            self._say(f"starting {peer.label}")
            self._contestants.append(Contestant(peer, plan, folder))
            for failure in self._contestants[-1].failures:
                self._say(f"{peer.label} failed: {failure}\n")

    def measure(self) -> dict[str, list[str]]:
        """Measures everything. Returns the failures by peer."""
        for number in range(self._plan.first_rounds):
            self._say(f"first puts, round {number + 1} of {self._plan.first_rounds}")
            self._round(number, SIZES, self._put_first)
        for contestant in self._contestants:
            self._guarded(contestant, self._forget)
        for number in range(-1, self._plan.rounds):
            self._say(
                f"single calls, round {number + 1} of {self._plan.rounds}" if number >= 0 else "warming up"
            )
            self._round(number, SIZES, self._one_client if number >= 0 else self._warm_up)
        for number in range(self._plan.client_rounds):
            for clients in self._plan.clients:
                who = f"{clients} client{'s' * (clients > 1)} at full speed"
                self._say(f"{who}, round {number + 1} of {self._plan.client_rounds}")
                self._round(number, [clients], self._clients_together)
        return {c.peer.name: c.failures for c in self._contestants if c.failures}

    def versions(self) -> dict[str, str]:
        """Versions of the peers that have one."""
        return {c.peer.name: c.version for c in self._contestants if c.version}

    def close(self) -> None:
        """Ends all peers."""
        for contestant in self._contestants:
            contestant.close()
        self._say.end()

    def _round(self, number: int, steps: Sequence[int], turn: Callable[[Contestant, int], None]) -> None:
        for step in steps:
            for contestant in _rotated(self._contestants, number):
                self._guarded(contestant, turn, step)

    def _guarded(self, contestant: Contestant, turn: Callable[..., None], *arguments: Any) -> None:
        """Excludes a peer that fails; the others go on."""
        if contestant.failures:
            return
        try:
            turn(contestant, *arguments)
        except PeerError as failure:
            contestant.failures.append(str(failure))
            self._say(f"{contestant.peer.label} failed: {failure}\n")

    # 1. Memory that was never used: nothing is deleted until all of it is measured.

    def _put_first(self, contestant: Contestant, size: int) -> None:
        if isinstance(contestant.peer, Raw):
            for operation in ("memcpy_fresh", "memcpy_prefaulted"):
                self._time(contestant, operation, size, (0, 1), calls=FIRST_OBJECTS)
            return
        count = max(1, min(FIRST_OBJECTS, FIRST_BYTES // size))
        self._time(contestant, "put", size, contestant.numbers(count), memory="first")

    def _forget(self, contestant: Contestant) -> None:
        """Deletes the objects of earlier puts."""
        if not isinstance(contestant.peer, Raw):
            everything = contestant.numbers(0)[0]
            contestant.client().ask("discard", owner=0, numbers=[0, everything])

    # 2. One client, and memory that was used before.

    def _warm_up(self, contestant: Contestant, size: int) -> None:
        if not isinstance(contestant.peer, Raw):
            numbers = contestant.numbers(2)
            ask = {"operation": "put", "size": size, "owner": 0, "numbers": numbers}
            contestant.client().ask("measure", **ask)
            contestant.client().ask("discard", owner=0, numbers=numbers)

    def _one_client(self, contestant: Contestant, size: int) -> None:
        count = max(2, min(CALLS, BYTES_A_TURN // size))
        if isinstance(contestant.peer, Raw):
            for operation in ("memcpy", "memcpy_prefaulted", "memcpy_fresh"):
                self._time(contestant, operation, size, (0, count))
            if size == SMALL:
                for operation in ("socket_round_trip", "eventfd_round_trip", "futex_round_trip", "clock"):
                    self._time(contestant, operation, 0, (0, 1))
            return
        many = ["get_many"] if size <= BATCHED_UP_TO else []
        self._life(contestant, "put", ["get", "get_here", *many, "contains", "delete"], size, count)
        self._life(contestant, "put_array", ["get_array"], size, count)
        if many:
            self._life(contestant, "create_and_seal", [], size, count)
            self._life(contestant, "put_many", [], size, 4 * BATCH)

    def _life(self, contestant: Contestant, put: str, then: list[str], size: int, count: int) -> None:
        """Puts objects, runs an operation on them, and deletes them."""
        client = contestant.client()
        if put not in client.operations:
            return
        numbers = contestant.numbers(count)
        calls = self._time(contestant, put, size, numbers, memory="reused")
        numbers = (numbers[0], calls * _batch(put))
        for operation in then:
            if operation in client.operations:
                calls = 2 * CALLS if operation.startswith("get") else CALLS
                done = self._time(contestant, operation, size, numbers, calls=calls)
                if operation == "delete":
                    numbers = (numbers[0] + done, numbers[1] - done)
        client.ask("discard", owner=0, numbers=numbers)

    def _time(
        self,
        contestant: Contestant,
        operation: str,
        size: int,
        numbers: tuple[int, int],
        memory: str = "",
        calls: int = CALLS,
    ) -> int:
        """Times an operation of one client. Returns the number of calls."""
        client, batch = contestant.client(), _batch(operation)
        if (numbers := _whole(numbers, batch))[1] == 0:
            return 0
        ask = {"operation": operation, "size": size, "owner": 0, "numbers": numbers, "batch": batch}
        ns = client.ask("measure", **ask, calls=calls, seconds=self._plan.turn)["ns"]
        case = Case("single", contestant.peer.name, operation, memory, size, batch, 1)
        self._samples.add(case, ns, _moves(operation, client))
        return len(ns)

    # 3. Clients together.

    def _clients_together(self, contestant: Contestant, clients: int) -> None:
        if isinstance(contestant.peer, Raw):
            return
        workers = {number: contestant.client(number) for number in range(1, clients + 1)}
        count = self._plan.objects // clients
        everyone = {number: (number, (0, count)) for number in workers}
        for put, gets in (("put", ["get", "get_many"]), ("put_many", [])):
            if put not in workers[1].operations:
                continue
            calls = self._together(contestant, workers, put, everyone)
            own = {number: (number, (0, min(count, calls[number] * _batch(put)))) for number in workers}
            # Each client gets its neighbour's objects, if it can.
            shared = workers[1].shared
            others = {number: own[number % clients + 1] if shared else own[number] for number in workers}
            for get in gets:
                if get in workers[1].operations:
                    self._together(contestant, workers, get, others)
            ask_all(workers, "discard", {n: {"owner": n, "numbers": own[n][1]} for n in workers})

    def _together(
        self,
        contestant: Contestant,
        workers: dict[int, Worker],
        operation: str,
        objects: dict[int, tuple[int, tuple[int, int]]],
    ) -> dict[int, int]:
        """Runs an operation on all clients for a time. Returns the number of calls of each."""
        batch = _batch(operation)
        work: dict[int, dict[str, Any]]
        work = {n: {"owner": owner, "numbers": _whole(span, batch)} for n, (owner, span) in objects.items()}
        if not all(wanted["numbers"][1] for wanted in work.values()):
            return dict.fromkeys(workers, 0)  # Some client has too few objects for one call.
        ask_all(workers, "prepare", work)
        start = time.monotonic_ns() + HEAD_START
        common = {"operation": operation, "size": SMALL, "batch": batch, "start": start}
        wanted = {n: {**work[n], **common, "seconds": self._plan.window} for n in workers}
        answers = ask_all(workers, "sustain", wanted)
        rate = sum(answer["calls"] * batch / (answer["ns"] / 1e9) for answer in answers.values())
        sample = [ns for answer in answers.values() for ns in answer["sample"]]
        memory = "reused" if operation.startswith("put") else ""
        case = Case("sustained", contestant.peer.name, operation, memory, SMALL, batch, len(workers))
        self._samples.add(case, sample, _moves(operation, workers[1]), rate)
        return {number: answer["calls"] for number, answer in answers.items()}


def measure(
    peers: Sequence[Peer], plan: Plan, folder: Path
) -> tuple[list[Row], dict[str, list[str]], dict[str, str]]:
    """Measures peers. Returns the figures, failures by peer, and versions.

    Peers that use the CPU when idle are measured after the others, because they would disturb them.
    """
    samples = Samples()
    failures: dict[str, list[str]] = {}
    versions: dict[str, str] = {}
    for restless in (False, True):
        together = [peer for peer in peers if peer.restless == restless]
        if not together:
            continue
        run = Run(together, plan, samples, folder)
        try:
            versions |= run.versions()
            failures |= run.measure()
        finally:
            run.close()
    return samples.rows(), failures, versions


def _batch(operation: str) -> int:
    """Number of objects in a call."""
    return BATCH if operation.endswith("many") else 1


def _whole(numbers: tuple[int, int], batch: int) -> tuple[int, int]:
    """Numbers of the objects that fill whole batches."""
    first, count = numbers
    return first, count // batch * batch


def _moves(operation: str, client: Worker) -> bool:
    """Whether bytes are moved, so that a rate in GB/s makes sense."""
    if operation.startswith("get"):
        return not client.in_place
    return operation.startswith(("put", "create", "memcpy"))


def _rotated(contestants: list[Contestant], number: int) -> Iterator[Contestant]:
    for place in range(len(contestants)):
        yield contestants[(place + number) % len(contestants)]
