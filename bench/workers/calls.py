"""Worker that calls functions: of Plasmon from Python, or of another library, whose server it may be as well.

    calls.py plasmon SOCKET HOME
    calls.py zmq|grpc ADDRESS
    calls.py zmq-serve|grpc-serve ADDRESS

SOCKET is that of the node whose client this is, and HOME that of the node at which functions are served, by
this process. A server prints a line when it serves. Clients exchange lines of JSON, as `worker.py` describes
them, and know only `measure`: `call` returns what it was given, `call_reply` gets 64 bytes and returns as
many as are measured, `call_begun` has a batch of calls under way, `paced` makes a batch of calls by 8
threads, 1,000 a second all together.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from answering import serve

LITTLE = 64
"""Number of bytes that a call brings which is held against its reply."""
PATIENCE = 20.0
THREADS, PACE = 8, 1000
"""Number of threads that call at a pace, and of calls that all of them make in a second."""
_METHOD = "/bench/call"

_clock = time.perf_counter_ns


def reply_to(data: bytes) -> bytes:
    """Reply of the function: what it was given, or as many bytes as its first word says."""
    wanted = int.from_bytes(data[:8], "little")
    return bytes(wanted) if wanted else data


def question(operation: str, size: int) -> tuple[bytes, bytes]:
    """Data of a call, and its reply."""
    if operation == "call_reply":
        return size.to_bytes(8, "little").ljust(LITTLE, b"\1"), bytes(size)
    data = bytes(8) + os.urandom(max(0, size - 8))
    return data, data


class Peer(ABC):
    """Client whose calls are timed."""

    version = ""

    @abstractmethod
    def call(self, data: bytes) -> bytes:
        """Calls the function, and waits for its reply."""

    @abstractmethod
    def call_all(self, data: bytes, count: int) -> bytes:
        """Has so many calls under way, and returns the last reply."""

    def caller(self) -> Callable[[bytes], bytes]:
        """Returns a function that makes the call, for use in a thread of its own."""
        return self.call

    def call_paced(self, data: bytes, count: int) -> bytes:
        """Makes so many calls at a pace, and returns the last reply of a thread."""
        begin, gap = time.monotonic(), 1 / PACE

        def run(first: int) -> bytes:
            call, last = self.caller(), b""
            for number in range(first, count, THREADS):
                time.sleep(max(0.0, begin + number * gap - time.monotonic()))
                last = call(data)
            return last

        with ThreadPoolExecutor(THREADS) as threads:
            first, *_ = threads.map(run, range(THREADS))
        return first


class Plasmon(Peer):
    """Functions that this process serves at one node and calls at another."""

    def __init__(self, socket: str, home: str) -> None:
        import plasmon

        name = f"bench-{os.getpid()}"
        self._server: Any = plasmon.connect(home).serve(name, {"run": reply_to}, threads=3)
        client: Any = plasmon.connect(socket)
        self._service: Any = client.service(name, timeout=PATIENCE)
        self.version = client.status()["version"]

    def call(self, data: bytes) -> bytes:
        """Calls the function, and waits for its reply."""
        reply: bytes = self._service.call("run", data, timeout=PATIENCE)
        return reply

    def call_all(self, data: bytes, count: int) -> bytes:
        """Has so many calls under way, and returns the last reply."""
        begun = [self._service.begin("run", data, timeout=PATIENCE) for _ in range(count)]
        reply: bytes = [one.result() for one in begun][-1]
        return reply


class Zmq(Peer):
    """ZeroMQ: REQ for single calls, DEALER for several."""

    def __init__(self, address: str) -> None:
        import zmq

        self._context: Any = zmq.Context()
        self._address, self._req = address, zmq.REQ
        self._many: Any = self._socket(zmq.DEALER)
        self._one = self.caller()
        self.version = zmq.zmq_version()

    def _socket(self, kind: int) -> Any:
        socket = self._context.socket(kind)
        socket.connect(f"tcp://{self._address}")
        return socket

    def call(self, data: bytes) -> bytes:
        """Calls the function, and waits for its reply."""
        return self._one(data)

    def caller(self) -> Callable[[bytes], bytes]:
        """Returns a function that makes the call, for use in a thread of its own, by a socket of its own."""
        socket = self._socket(self._req)

        def call(data: bytes) -> bytes:
            socket.send(data)
            reply: bytes = socket.recv()
            return reply

        return call

    def call_all(self, data: bytes, count: int) -> bytes:
        """Has so many calls under way, and returns the last reply."""
        for _ in range(count):
            self._many.send_multipart([b"", data])
        reply: bytes = [self._many.recv_multipart() for _ in range(count)][-1][-1]
        return reply


class Grpc(Peer):
    """gRPC, whose core is in C, with bytes as messages."""

    def __init__(self, address: str) -> None:
        import grpc

        self._call: Any = grpc.insecure_channel(address).unary_unary(_METHOD)
        self.version = grpc.__version__

    def call(self, data: bytes) -> bytes:
        """Calls the function, and waits for its reply."""
        reply: bytes = self._call(data, timeout=PATIENCE, wait_for_ready=True)
        return reply

    def call_all(self, data: bytes, count: int) -> bytes:
        """Has so many calls under way, and returns the last reply."""
        begun = [self._call.future(data, timeout=PATIENCE) for _ in range(count)]
        reply: bytes = [one.result() for one in begun][-1]
        return reply


def serve_zmq(address: str) -> None:
    """Answers calls of ZeroMQ."""
    import zmq

    socket: Any = zmq.Context().socket(zmq.ROUTER)
    socket.bind(f"tcp://{address}")
    print("ready", flush=True)
    while True:
        *envelope, data = socket.recv_multipart()
        socket.send_multipart([*envelope, reply_to(data)])


def serve_grpc(address: str) -> None:
    """Answers calls of gRPC."""
    import grpc

    handler = grpc.unary_unary_rpc_method_handler(lambda data, _: reply_to(data))
    service, method = _METHOD[1:].split("/")
    server: Any = grpc.server(ThreadPoolExecutor(3))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(address)
    server.start()
    print("ready", flush=True)
    threading.Event().wait()


def measure(
    peer: Peer,
    operation: str,
    size: int,
    numbers: list[int],
    batch: int = 1,
    calls: int = 1 << 60,
    seconds: float = 3600.0,
    owner: int = 0,
) -> dict[str, Any]:
    """Times every call."""
    data, wanted = question(operation, size)
    ways: dict[str, Callable[[], bytes]] = {
        "call_begun": lambda: peer.call_all(data, batch),
        "paced": lambda: peer.call_paced(data, batch),
    }
    once = ways.get(operation, lambda: peer.call(data))
    ns: list[int] = []
    cpu, begin = time.process_time_ns(), _clock()
    end, last = begin + int(seconds * 1e9), b""
    for _ in range(calls):
        start = _clock()
        last = once()
        stop = _clock()
        ns.append(stop - start)
        if stop > end:
            break
    cpu = time.process_time_ns() - cpu
    if last != wanted:
        raise AssertionError(f"{operation} of {size} bytes returned something else than it should")
    return {"ns": ns, "cpu_ns": cpu}


PEERS: dict[str, Callable[..., Peer]] = {"plasmon": Plasmon, "zmq": Zmq, "grpc": Grpc}
SERVERS = {"zmq-serve": serve_zmq, "grpc-serve": serve_grpc}
OPERATIONS = ("call", "call_reply", "call_begun", "paced")


def main() -> None:
    """Serves, or answers requests until standard input ends."""
    name, *arguments = sys.argv[1:]
    if name in SERVERS:
        return SERVERS[name](*arguments)
    serve(lambda: PEERS[name](*arguments), lambda _: OPERATIONS, measure)
    return None


if __name__ == "__main__":
    main()
