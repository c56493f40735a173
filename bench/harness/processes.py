"""Processes of the benchmarks: they end with the harness, and their output is kept."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PATIENCE = 120.0
"""Longest time in seconds for an answer, far more than any takes."""
_STOP = 20.0
"""Longest time in seconds for a process to end after SIGTERM."""
_LOG_SHOWN = 1500
"""Length of the end of a log in an error."""
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None)


class PeerError(Exception):
    """Error of a peer that could not carry out a request."""


def spawn(
    command: Sequence[str | Path], log: Path, environment: dict[str, str] | None = None, **streams: Any
) -> subprocess.Popen[bytes]:
    """Starts a process that gets SIGTERM when the harness ends in any way. It logs into a file."""
    streams.setdefault("stdin", subprocess.DEVNULL)
    with log.open("ab") as output:
        streams.setdefault("stdout", output)
        return subprocess.Popen(
            [str(word) for word in command],
            stderr=output,
            env={**os.environ, **(environment or {})},
            preexec_fn=lambda: _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            **streams,
        )


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a process, by SIGKILL if it does not end after SIGTERM."""
    process.terminate()
    try:
        process.wait(_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def shown(log: Path) -> str:
    """End of a log, for an error."""
    return f"Its log ends with:\n{log.read_text(errors='replace')[-_LOG_SHOWN:]}"


class HungError(PeerError):
    """Error of a worker that did not answer, and was killed."""


class Worker:
    """Client of a peer: a process that answers lines of JSON (see `workers/worker.py`)."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        environment: dict[str, str],
        patience: float = _PATIENCE,
    ) -> None:
        self._log = log
        self._process = spawn(command, log, environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._received = b""
        self.patience = patience
        greeting = self.receive()
        self.version: str = greeting["version"]
        self.in_place: bool = greeting["in_place"]
        self.shared: bool = greeting["shared"]
        self.operations: list[str] = greeting["operations"]

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Sends a request and waits for its answer."""
        self.send(do, **request)
        return self.receive()

    def send(self, do: str, **request: Any) -> None:
        """Sends a request. `receive` takes its answer later."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerError(f"a worker has ended. {shown(self._log)}") from None

    def receive(self) -> dict[str, Any]:
        """Waits for the next answer.

        Raises:
                PeerError: The worker could not carry out the request, has ended, or does not answer.
        """
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._received:
            if not select.select([pipe], [], [], self.patience)[0]:
                self._process.kill()
                raise HungError(f"a worker did not answer for {self.patience:.0f} s. {shown(self._log)}")
            data = os.read(pipe, 1 << 20)
            if not data:
                raise PeerError(f"a worker has ended. {shown(self._log)}")
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(_STOP)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            stop(self._process)
        self._process.stdout.close()


def ask_all(workers: dict[int, Worker], do: str, requests: dict[int, dict[str, Any]]) -> dict[int, Any]:
    """Sends a request to all clients at the same time. Returns their answers."""
    for number, worker in workers.items():
        worker.send(do, **requests[number])
    # Every answer is taken, even after a failure: the next request would get it otherwise.
    answers: dict[int, Any] = {}
    failure: PeerError | None = None
    for number, worker in workers.items():
        try:
            answers[number] = worker.receive()
        except PeerError as failed:
            failure = failed
    if failure:
        raise failure
    return answers
