"""Measures the cost of the store, and what the machine can do without it.

All is measured in one run, from Python, one operation at a time, with the same bytes. The first call of an
operation at a size is reported apart from later calls, which find open connections and touched memory.
"""

import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import plasmon

SENDER_START_SECONDS = 60.0
"""Longest time for another process to connect."""
SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 64 << 20}

Bytes = npt.NDArray[np.uint8]
Seconds = Generator[float, None, None]

# Runs in a process of its own, and answers every length with as many bytes. It ends with the connection.
TCP_SENDER = """
import socket, sys
data = memoryview(bytes(range(256)) * (1 << 18))
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while length := connection.recv(8, socket.MSG_WAITALL):
    connection.sendall(data[: int.from_bytes(length, "little")])
"""


@dataclass(frozen=True)
class Figure:
    """Operation at a size: time of the first call in seconds, and median of the later calls."""

    operation: str
    size: int
    first: float
    median: float
    repeat: int


def measure(a: plasmon.Client, b: plasmon.Client, repeat: int) -> list[Figure]:
    """Measures every operation at every size, `repeat` times after the first call."""
    figures = []
    for size in SIZES.values():
        data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
        operations = {
            "local put": _local_put(a, data),
            "local get": _local_get(a, data),
            "remote get": _remote_get(a, b, data),
            "raw TCP": _raw_tcp(data),
            "memcpy": _memcpy(data),
        }
        for name, operation in operations.items():
            with closing(operation):
                first, *others = islice(operation, repeat + 1)
            figures.append(Figure(name, size, first, statistics.median(others), repeat))
    return figures


def _local_put(client: plasmon.Client, data: Bytes) -> Seconds:
    """Copies bytes of the program into the store of its host."""
    while True:
        start = time.perf_counter()
        object_id = client.put(data.data)
        seconds = time.perf_counter() - start
        try:
            yield seconds
        finally:
            client.delete(object_id)


def _local_get(client: plasmon.Client, data: Bytes) -> Seconds:
    """Gets an object of the own host: no bytes move."""
    object_id = client.put(data.data)
    try:
        while True:
            start = time.perf_counter()
            buffers = client.get_buffers([object_id])
            yield time.perf_counter() - start
            del buffers
    finally:
        client.delete(object_id)


def _remote_get(a: plasmon.Client, b: plasmon.Client, data: Bytes) -> Seconds:
    """Gets an object of another node, each time one that this node has never had."""
    while True:
        object_id = a.put(data.data)
        start = time.perf_counter()
        (buffer,) = b.get_buffers([object_id])
        seconds = time.perf_counter() - start
        if not np.array_equal(np.frombuffer(memoryview(buffer), np.uint8), data):
            raise SystemExit(f"object {object_id} arrived with other bytes than were put")
        del buffer
        a.delete(object_id)
        yield seconds


def _raw_tcp(data: Bytes) -> Seconds:
    """Receives as many bytes from another process over a loopback socket."""
    target = np.ones_like(data)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SENDER_START_SECONDS)
        command = [sys.executable, "-c", TCP_SENDER, str(listener.getsockname()[1])]
        # A process group of its own: Ctrl-C is for this program alone.
        sender = subprocess.Popen(command, process_group=0)
        try:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(None)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    start = time.perf_counter()
                    connection.sendall(data.nbytes.to_bytes(8, "little"))
                    received = 0
                    while received < data.nbytes:
                        received += connection.recv_into(target.data[received:])
                    yield time.perf_counter() - start
        finally:
            sender.kill()
            sender.wait()


def _memcpy(data: Bytes) -> Seconds:
    """Copies the same bytes from one place in memory to another."""
    target = np.ones_like(data)
    while True:
        start = time.perf_counter()
        np.copyto(target, data)
        yield time.perf_counter() - start


def table(figures: list[Figure]) -> str:
    """Formats the figures for people: a row an operation, two columns a size, and the rate at the largest."""
    found = {(figure.operation, figure.size): figure for figure in figures}
    operations = list(dict.fromkeys(figure.operation for figure in figures))
    *_, largest = SIZES
    lines = [
        " " * 12 + "".join(f"{size:>22}" for size in SIZES),
        " " * 12 + f"{'first':>13}{'median':>9}" * len(SIZES) + f"{f'at {largest}':>14}",
    ]
    for operation in operations:
        row = [found[operation, size] for size in SIZES.values()]
        cells = "".join(f"{_time(figure.first):>13}{_time(figure.median):>9}" for figure in row)
        moves = operation != "local get"
        rate = f"{row[-1].size / row[-1].median / 1e9:.1f} GB/s" if moves else "in place"
        lines.append(f"{operation:<12}{cells}{rate:>14}")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            value = seconds * factor
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{seconds:.2f} s"


def machine(status: dict[str, Any]) -> dict[str, Any]:
    """Machine that the figures were measured on; `status` is that of a node."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines() if ":" in line
    )
    names = {key.strip(): value.strip() for key, value in fields.items()}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": names.get("model name", platform.machine()),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "plasmon": status["version"],
        "libfabric": status["fabric"]["libfabric"],
        "provider": status["fabric"]["provider"],
        "pages": "huge" if status["memory"]["huge"] else "base",
    }


def describe(machine: dict[str, Any]) -> str:
    """Machine in two lines of text."""
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB of memory, "
        f"Linux {machine['kernel']},\n"
        f"libfabric {machine['libfabric']} with {machine['provider']}, {machine['pages']} pages, "
        f"plasmon {machine['plasmon']}, Python {machine['python']}"
    )
