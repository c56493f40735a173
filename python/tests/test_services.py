"""Tests of services: functions of this process that clients of two nodes call, with bytes and with values."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np
import plasmon
import plasmon.aio
import pytest
from conftest import ANTI_HANG, OTHER, admit_others, until

SIZES = [0, 1, 319, 320, 321, 8192, 8193, 256 << 10, (256 << 10) + 1, 3 << 20]


def fail(data: bytes) -> bytes:
    raise ValueError(f"{data.decode()} is wrong")


class Held:
    """A function that waits until the test lets it go on."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()

    def __call__(self, *_: object) -> bytes:
        self.begun.release()
        assert self.go_on.wait(ANTI_HANG)
        return b"went on"


@pytest.fixture
def hold() -> Iterator[Held]:
    held = Held()
    yield held
    held.go_on.set()


@pytest.fixture
def server(near: plasmon.Client, hold: Held) -> Iterator[plasmon.Server]:
    """Functions of bytes, on the first node."""
    functions = {"echo": lambda data: data, "fail": fail, "hold": hold, "nothing": lambda data: None}
    server = near.serve("bytes", functions, threads=2)
    yield server
    hold.go_on.set()
    server.close()
    assert server.closed
    assert server.wait(ANTI_HANG)


@pytest.fixture
def service(server: plasmon.Server, reader: plasmon.Client) -> Iterator[plasmon.Service]:
    """Service with the functions of `server`, found on the same node and on the other."""
    with reader.service("bytes", timeout=ANTI_HANG) as service:
        yield service


def test_bytes_of_all_sizes(service: plasmon.Service) -> None:
    assert (service.name, service.owner) == ("bytes", os.getuid())
    assert service.functions == ["echo", "fail", "hold", "nothing"]
    for size in SIZES:
        data = np.random.default_rng(size).bytes(size)
        reply = service.call("echo", data)
        assert type(reply) is bytes
        assert reply == data
        room = bytearray(size + 10)
        told = service.call("echo", data, into=room)
        assert told == data
        assert room[:size] == data
        assert service.begin("echo", data).result() == data
    assert service.call("nothing", b"x") == b""
    assert service.call("nothing") == b""
    array: Any = np.arange(6, dtype="i2").reshape(2, 3)
    same: Any = np.zeros((2, 3), "i2")
    assert service.call("echo", array, into=same).nbytes == 12
    assert (same == array).all()


def test_a_reply_that_does_not_fit_is_told(service: plasmon.Service) -> None:
    with pytest.raises(plasmon.InvalidArgument, match="was run"):
        service.call("echo", b"12345", into=bytearray(4))
    with pytest.raises(TypeError):
        service.call("echo", b"12345", into=bytes(9))


def test_errors_of_functions_reach_the_caller(service: plasmon.Service) -> None:
    with pytest.raises(plasmon.CallFailed, match="ValueError: äöü is wrong") as told:
        service.call("fail", "äöü".encode())
    assert (told.value.type, told.value.text) == ("ValueError", "äöü is wrong")
    with pytest.raises(plasmon.CallFailed, match="UnicodeDecodeError"):
        service.call("fail", b"\xff")
    with pytest.raises(plasmon.CallFailed) as told:
        service.call("fail", b"long" * 1000)
    assert told.value.type == "ValueError"
    assert len(str(told.value)) == 320
    pending = service.begin("fail", b"begun")
    with pytest.raises(plasmon.CallFailed, match="begun is wrong"):
        pending.result()
    with pytest.raises(plasmon.InvalidArgument, match="no function 'none'"):
        service.call("none")
    assert service.call("echo", b"goes on") == b"goes on"


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise SystemExit


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class Sly(str):
    __slots__ = ()

    def __format__(self, _: str) -> str:
        raise SystemExit

    def __str__(self) -> str:
        return "\udcff"


class Refusing(logging.Filter):
    def filter(self, _: logging.LogRecord) -> bool:
        raise SystemExit


EXCEPTIONS: list[Callable[[], BaseException]] = [
    lambda: FileNotFoundError(2, "no such file", "\udcff\udcfe"),
    lambda: ValueError("\ud800"),
    lambda: ValueError(Sly("sly")),
    lambda: type("Name\udcff", (Exception,), {})("text"),
    lambda: Nameless("Hidden", (Exception,), {})("text"),
    UnprintableError,
    SystemExit,
    KeyboardInterrupt,
    GeneratorExit,
    lambda: ExceptionGroup("\udcff", [ValueError("\udcff")]),
    lambda: plasmon.InvalidArgument("\udcff"),
    lambda: plasmon.TimedOut("\udcff"),
    lambda: plasmon.Disconnected("\udcff"),
]
"""Exceptions whose names and texts are hard to tell."""


def test_nothing_that_a_function_raises_or_returns_ends_a_thread(
    near: plasmon.Client, reader: plasmon.Client
) -> None:
    def act(data: bytes) -> Any:
        what = int(data)
        if what < len(EXCEPTIONS):
            raise EXCEPTIONS[what]()
        return ["text", 1, object(), memoryview(bytes(16))[::2], Sly("sly"), [b""]][what - len(EXCEPTIONS)]

    log = logging.getLogger("plasmon")
    refusing = Refusing()
    log.setLevel(logging.DEBUG)
    log.addFilter(refusing)
    try:
        with near.serve("awkward", {"act": act, "echo": bytes}) as server:
            with reader.service("awkward", timeout=ANTI_HANG) as service:
                for what in range(len(EXCEPTIONS) + 6):
                    with pytest.raises(plasmon.CallFailed) if what != len(EXCEPTIONS) + 3 else nullcontext():
                        service.call("act", str(what).encode(), timeout=ANTI_HANG)
                    assert service.call("echo", b"on", timeout=ANTI_HANG) == b"on", what
                with pytest.raises(plasmon.CallFailed, match=r"no such file: '.udcff.udcfe'"):
                    service.call("act", b"0", timeout=ANTI_HANG)
                # An exception may be raised in the thread of a server at any place.
                [thread] = server._threads
                assert thread.ident is not None
                for _ in range(3):
                    raising = ctypes.pythonapi.PyThreadState_SetAsyncExc
                    raising(ctypes.c_ulong(thread.ident), ctypes.py_object(ValueError))
                    with suppress(plasmon.CallFailed):
                        service.call("echo", b"its call is dropped", timeout=ANTI_HANG)
                    assert service.call("echo", b"on", timeout=ANTI_HANG) == b"on"
                assert thread.is_alive()
            assert not server.closed
    finally:
        log.removeFilter(refusing)
        log.setLevel(logging.NOTSET)


def test_what_is_no_bytes_is_refused(near: plasmon.Client) -> None:
    with near.serve("odd", {"text": lambda data: "text", "exit": lambda data: sys.exit(3)}):
        odd = near.service("odd")
        with pytest.raises(plasmon.CallFailed, match="type str, not bytes"):
            odd.call("text")
        with pytest.raises(plasmon.CallFailed, match="SystemExit: 3"):
            odd.call("exit")
        with pytest.raises(plasmon.CallFailed, match="type str, not bytes"):
            odd.call("text", b"the thread goes on")
        with pytest.raises(TypeError):
            odd.call("text", "no bytes")  # type: ignore[call-overload]
        with pytest.raises(plasmon.CallFailed, match="type str, not bytes"):
            odd.invoke("text")


def test_a_reply_without_room_is_told(near: plasmon.Client) -> None:
    with near.serve("large", {"large": lambda data: bytes(300 << 20)}):
        service = near.service("large")
        with pytest.raises(plasmon.CallFailed, match="cannot be sent"):
            service.call("large")
        with pytest.raises((plasmon.StoreFull, plasmon.ObjectTooLarge)):
            service.call("large", bytes(300 << 20))


def test_calls_that_nobody_takes_time_out(service: plasmon.Service, hold: Held) -> None:
    begun = [service.begin("hold", timeout=ANTI_HANG) for _ in range(2)]
    for _ in begun:
        assert hold.begun.acquire(timeout=ANTI_HANG)
    with pytest.raises((plasmon.TimedOut, plasmon.OutcomeUnknown)):
        service.call("echo", timeout=0.3)
    hold.go_on.set()
    assert [one.result() for one in begun] == [b"went on"] * 2


def test_a_function_that_takes_too_long_may_have_been_run(service: plasmon.Service, hold: Held) -> None:
    with pytest.raises(plasmon.OutcomeUnknown):
        service.call("hold", timeout=0.3)
    assert hold.begun.acquire(timeout=ANTI_HANG)


def test_threads_of_a_server_run_functions_at_the_same_time(near: plasmon.Client) -> None:
    meeting = threading.Barrier(4)

    def meet(data: bytes) -> bytes:
        return b"%d" % meeting.wait(ANTI_HANG)

    with near.serve("threads", {"meet": meet}, threads=4):
        service = near.service("threads")
        begun = [service.begin("meet", timeout=ANTI_HANG) for _ in range(8)]
        assert sorted(one.result() for one in begun) == sorted([b"0", b"1", b"2", b"3"] * 2)


def test_many_threads_call(service: plasmon.Service) -> None:
    wrong: list[object] = []

    def call(number: int) -> None:
        for turn in range(50):
            data = b"%d of %d" % (turn, number) * (1 + turn * 9)
            if service.call("echo", data, timeout=ANTI_HANG) != data:
                wrong.append(data)

    threads = [threading.Thread(target=call, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("size", [0, 320, 321, 10000])
def test_one_way_calls_are_run(near: plasmon.Client, reader: plasmon.Client, size: int) -> None:
    run: list[bytes] = []
    with near.serve("oneway", {"note": run.append}):
        service = reader.service("oneway", timeout=ANTI_HANG)
        for number in range(10):
            service.send("note", bytes([number]) * size, confirm=number % 2 == 0)
        until("all to be run", lambda: len(run) == 10)
    assert sorted(run) == [bytes([number]) * size for number in range(10)]


def test_several_services_are_called_at_a_time(near: plasmon.Client, far: plasmon.Client) -> None:
    with (
        near.serve("one", {"f": lambda data: b"one " + data}),
        far.serve("two", {"f": fail}),
        near.serve("three", {"g": fail}),
    ):
        services = [far.service(name, timeout=ANTI_HANG) for name in ("one", "two", "three", "one")]
        one, two, three, again = far.multicast(services, "f", b"data")
        assert one == again == b"one data"
        assert isinstance(two, plasmon.CallFailed)
        assert two.text == "data is wrong"
        assert isinstance(three, plasmon.InvalidArgument)
        assert far.multicast([], "f") == []


def test_two_servers_of_one_name(near: plasmon.Client, far: plasmon.Client) -> None:
    with near.serve("both", {"node": lambda data: near.node.encode()}) as first:
        service = far.service("both", timeout=ANTI_HANG)
        assert service.call("node") == near.node.encode()
        with far.serve("both", {"node": lambda data: far.node.encode()}):
            # The server on the caller's host is called first.
            assert far.service("both").call("node") == far.node.encode()
            with pytest.raises(plasmon.InvalidArgument):
                far.serve("both", {"other": fail})
            first.close()
            assert service.call("node") == far.node.encode()
            assert near.service("both", timeout=ANTI_HANG).call("node") == far.node.encode()
    with pytest.raises(plasmon.ObjectNotFound):
        service.call("node")


def test_a_closed_server_and_what_it_had_begun(near: plasmon.Client, hold: Held) -> None:
    server = near.serve("closed", {"hold": hold})
    service = near.service("closed")
    begun = service.begin("hold", timeout=ANTI_HANG)
    assert hold.begun.acquire(timeout=ANTI_HANG)
    waits = service.begin("hold", timeout=ANTI_HANG)
    until("it to wait", lambda: near.status()["functions"]["waiting"] == 1)
    server.close(wait=False)
    with pytest.raises(plasmon.ObjectNotFound):
        waits.result()
    assert not server.wait(0)
    hold.go_on.set()
    assert begun.result() == b"went on"
    assert server.wait(ANTI_HANG)
    server.close()
    with pytest.raises(plasmon.ObjectNotFound):
        service.call("hold")
    with pytest.raises(plasmon.ObjectNotFound):
        near.service("closed")


def test_a_server_ends_with_its_client(cluster: plasmon.LocalCluster, near: plasmon.Client) -> None:
    with cluster.connect(0) as client:
        server = client.serve("brief", {"echo": bytes})
        service = client.service("brief")
        assert service.call("echo", b"1") == b"1"
        assert not server.closed
    assert server.closed
    assert server.wait(ANTI_HANG)
    calls: list[Callable[[], object]] = [
        lambda: service.call("echo"),
        lambda: service.begin("echo"),
        lambda: service.send("echo"),
    ]
    for call in calls:
        with pytest.raises(plasmon.Disconnected):
            call()
    with pytest.raises(plasmon.ObjectNotFound):
        near.service("brief")


def test_a_handle_that_is_closed(service: plasmon.Service) -> None:
    service.close()
    assert service.closed
    with pytest.raises(plasmon.InvalidArgument, match="closed"):
        service.call("echo")


def test_who_calls_is_told(near: plasmon.Client, reader: plasmon.Client) -> None:
    calls: list[tuple[Any, ...]] = []

    def note(data: bytes) -> None:
        call = plasmon.current_call()
        calls.append((call.function, call.user, call.node, 0 < call.left <= 50, call.caller_gone()))

    with near.serve("who", {"note": note}):
        reader.service("who", timeout=ANTI_HANG).call("note", timeout=50)
    assert calls == [("note", os.getuid(), reader.node, True, False)]
    with pytest.raises(plasmon.InvalidArgument):
        plasmon.current_call()


def test_wrong_arguments_are_refused(near: plasmon.Client) -> None:
    one = {"f": fail}
    wrong: list[Callable[[], object]] = [
        lambda: near.serve("", one),
        lambda: near.serve("n" * 256, one),
        lambda: near.serve("wrong", {}),
        lambda: near.serve("wrong", {"f" * 256: fail}),
        lambda: near.serve("wrong", {str(number): fail for number in range(257)}),
        lambda: near.serve("wrong", object()),
        lambda: near.serve("wrong", one, threads=0),
        lambda: near.serve("wrong", one, threads=129),
        lambda: near.serve("wrong", one, allow="everybody"),
        lambda: near.serve("wrong", one, allow=["nobody at all"]),
        lambda: near.serve("wrong", one, allow=range(1, 66)),
        lambda: near.serve("wrong", one, allow_pickle=True),
        lambda: near.service("wrong", owner="nobody at all"),
    ]
    for call in wrong:
        with pytest.raises(plasmon.InvalidArgument):
            call()
    for functions in ({"f": 3}, {3: fail}):
        with pytest.raises(plasmon.WrongType):
            near.serve("wrong", functions)
    with pytest.raises(plasmon.ObjectNotFound):
        near.service("wrong")
    with pytest.raises(plasmon.ObjectNotFound):
        near.service("wrong", timeout=0.1)
    with pytest.raises(plasmon.NotAllowed), near.serve("mine", one):
        near.service("mine", owner=os.getuid() + 1)


CALLER = """
import os, plasmon, sys
os.setresuid(*[int(sys.argv[2])] * 3)
with plasmon.connect(sys.argv[1]) as client:
    for name in sys.argv[3:]:
        try:
            print(client.service(name, owner=0).call("f").decode())
        except plasmon.Error as error:
            print(type(error).__name__)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize("where", [0, 1])
def test_who_may_call(near: plasmon.Client, cluster: plasmon.LocalCluster, where: int) -> None:
    def who(data: bytes) -> bytes:
        return b"user %d" % plasmon.current_call().user

    admit_others(cluster.sockets[where])
    with (
        near.serve("own", {"f": who}),
        near.serve("all", {"f": who}, allow="everyone"),
        near.serve("some", {"f": who}, allow=[OTHER]),
        near.serve("others", {"f": who}, allow=[OTHER + 1]),
    ):
        for name in ("own", "all", "some", "others"):
            cluster.client(where).service(name, timeout=ANTI_HANG)
        words = [sys.executable, "-c", CALLER, cluster.sockets[where], str(OTHER)]
        shown = subprocess.run(
            [*words, "own", "all", "some", "others"], capture_output=True, text=True, check=True
        )
    allowed = f"user {OTHER}"
    assert shown.stdout.split() == ["NotAllowed", *allowed.split(), *allowed.split(), "NotAllowed"]


def test_a_namespace_has_services_of_its_own(server: plasmon.Server, cluster: plasmon.LocalCluster) -> None:
    with plasmon.connect(cluster.sockets[0], namespace="job") as client:
        with pytest.raises(plasmon.ObjectNotFound):
            client.service("bytes")
        with client.serve("bytes", {"own": bytes}) as own:
            assert own.name == "bytes"
            assert client.service("bytes").functions == ["own"]
        with cluster.connect(0) as other:
            assert other.service("bytes").functions == list(server.functions)


SERVER = """
import os, plasmon, sys
client = plasmon.connect(sys.argv[1])
server = client.serve("process", {"pid": lambda data: b"%d" % os.getpid(), "die": lambda data: os._exit(1)})
print("ready", flush=True)
server.wait()
"""


@pytest.mark.parametrize("where", [0, 1])
def test_servers_in_processes_of_their_own(
    near: plasmon.Client, cluster: plasmon.LocalCluster, where: int
) -> None:
    words = [sys.executable, "-c", SERVER, cluster.sockets[where]]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        service = near.service("process", timeout=ANTI_HANG)
        assert service.call("pid") == b"%d" % process.pid
        process.send_signal(signal.SIGINT)
        assert process.wait(ANTI_HANG) != 0
        assert process.stderr is not None
        assert b"KeyboardInterrupt" in process.stderr.read()
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        service = near.service("process", timeout=ANTI_HANG)
        with pytest.raises(plasmon.OutcomeUnknown):
            service.call("die", timeout=ANTI_HANG)


def test_ctrl_c_ends_a_call(service: plasmon.Service, hold: Held) -> None:
    def interrupt() -> None:
        assert hold.begun.acquire(timeout=ANTI_HANG)
        os.kill(os.getpid(), signal.SIGINT)

    for _ in range(2):
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            service.call("hold", b"x" * 1000, timeout=ANTI_HANG)
        interrupting.join()
    hold.go_on.set()
    # More calls than there are slots: those of the calls that were interrupted are used again.
    begun = [service.begin("echo", b"%d" % number, timeout=ANTI_HANG) for number in range(250)]
    assert [one.result() for one in begun] == [b"%d" % number for number in range(250)]


def test_a_forked_child_has_no_server(
    server: plasmon.Server, near: plasmon.Client, service: plasmon.Service
) -> None:
    child = os.fork()
    if child == 0:
        wrong = 0
        try:
            server.close()
            wrong += not server.closed or not server.wait(1)
            wrong += near.service("bytes").call("echo", b"child") != b"child"
            service.call("echo")
            wrong += 1
        except plasmon.Disconnected:
            os._exit(wrong)
        except BaseException:
            pass
        os._exit(99)
    assert os.waitpid(child, 0)[1] == 0
    assert service.call("echo", b"the server goes on") == b"the server goes on"


@pytest.mark.parametrize("where", [0, 1])
def test_tasks_call_and_serve(near: plasmon.Client, cluster: plasmon.LocalCluster, where: int) -> None:
    async def slowly(number: int) -> tuple[int, str]:
        await asyncio.sleep(0)
        return number + 1, plasmon.current_call().function

    def plain(number: int) -> int:
        return number * 2

    async def use() -> None:
        async with (
            plasmon.aio.connect(cluster.sockets[0]) as one,
            plasmon.aio.connect(cluster.sockets[where]) as two,
            await one.serve("tasks", {"slowly": slowly, "plain": plain}, values=True, threads=3) as server,
            await one.serve("raw", {"echo": lambda data: data}),
            await two.service("tasks", timeout=ANTI_HANG) as service,
        ):
            assert server.functions == ("slowly", "plain")
            assert service.functions == ["slowly", "plain"]
            told = await asyncio.gather(*(service.invoke("slowly", number) for number in range(30)))
            assert told == [(number + 1, "slowly") for number in range(30)]
            assert await service.invoke("plain", 4) == 8
            with pytest.raises(plasmon.CallFailed):
                await service.invoke("slowly", "text")
            raw = await two.service("raw", timeout=ANTI_HANG)
            assert await raw.call("echo", b"bytes") == b"bytes"
            assert bytes(await raw.call("echo", b"bytes", into=bytearray(9))) == b"bytes"
            await raw.send("echo", b"x", confirm=True)
            assert await two.multicast([raw, raw], "echo", b"y") == [b"y", b"y"]
        assert server.closed

    asyncio.run(use())
    with pytest.raises(plasmon.ObjectNotFound):
        near.service("tasks")


def test_a_cancelled_task_stops_waiting(
    server: plasmon.Server, cluster: plasmon.LocalCluster, hold: Held
) -> None:
    async def use() -> None:
        async with plasmon.aio.connect(cluster.sockets[0]) as client:
            service = await client.service("bytes")
            waiting = asyncio.create_task(service.call("hold", timeout=ANTI_HANG))
            assert await asyncio.to_thread(hold.begun.acquire, timeout=ANTI_HANG)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert await service.call("echo", b"goes on") == b"goes on"

    asyncio.run(use())
