"""Processes that use files, which start at the same moment and are timed together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import paths
from harness.cpu import Spent
from harness.processes import PeerError, Worker, ask_all

PATIENCE = 120.0
"""Longest time in seconds for an answer."""
HEAD_START = 1.0
"""Time in seconds from a request to the start, in which workers make their buffers, on a busy machine."""


@dataclass(frozen=True)
class Span:
    """Range of a file, and how it is used."""

    path: str
    bytes: int
    block: int
    """Bytes in a call."""
    offset: int = 0
    seed: int = 0
    direct: bool = False
    """Whether the file is opened with O_DIRECT."""
    aligned: bool = True
    """Whether the buffer begins with a page."""
    check: bool = True
    """Whether bytes that are read are compared with what was written."""


class Team:
    """Workers, which start when they are needed."""

    def __init__(self, folder: Path, head_start: float = HEAD_START) -> None:
        self._folder, self._head_start = folder, round(head_start * 1e9)
        self._workers: list[Worker] = []
        self.spent = Spent(0.0, 0)
        """Cost to the machine of the last request."""

    def together(self, do: str, requests: Sequence[dict[str, Any]]) -> float:
        """Has a worker for each request begin at the same moment. Returns the seconds until all have ended.

        Raises:
            PeerError: A worker failed.
        """
        workers = {number: self._worker(number) for number in range(len(requests))}
        start = time.monotonic_ns() + self._head_start
        asked = {number: {**request, "start": start} for number, request in enumerate(requests)}
        before = Spent.until_now()
        answers = ask_all(workers, do, asked).values()
        self.spent = Spent.until_now() - before
        begin, end = min(one["begin"] for one in answers), max(one["end"] for one in answers)
        if end <= begin:
            raise PeerError("the clock stood still")
        return float(end - begin) / 1e9

    def spans(self, do: str, spans: Sequence[Span]) -> float:
        """Has workers write or read ranges together. Returns the seconds."""
        return self.together(do, [asdict(span) for span in spans])

    def random(self, span: Span, reads: int, seconds: float) -> list[int]:
        """Reads blocks of a range at random, each once at most. Returns the time of each in nanoseconds."""
        worker = self._worker(0)
        before = Spent.until_now()
        answer = worker.ask("random", **asdict(span), reads=reads, seconds=seconds)
        self.spent = Spent.until_now() - before
        ns: list[int] = answer["ns"]
        return ns

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def renew(self) -> None:
        """Ends all workers, of which some may hang or be gone. Others start when they are needed."""
        self.close()

    def _worker(self, number: int) -> Worker:
        while len(self._workers) <= number:
            log = self._folder / f"worker-{len(self._workers)}.log"
            self._workers.append(Worker([paths.rust_worker(), "files"], log, {}, PATIENCE))
        return self._workers[number]
