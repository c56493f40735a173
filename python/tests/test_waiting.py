"""Tests of waits: for objects, in many threads, with Ctrl-C, across fork, and for nodes that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import plasmon
import plasmon.plasma
import pytest
from conftest import ANTI_HANG, LET_PASS, let_pass, until

MEBI = 1 << 20


def test_a_get_waits_for_a_put_anywhere(near: plasmon.Client, far: plasmon.Client) -> None:
    ids = [plasmon.ObjectId.random() for _ in range(4)]
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(client.get, oid, ANTI_HANG) for oid in ids for client in (near, far)]
        for number, oid in enumerate(ids):
            (near, far)[number % 2].put(str(number).encode() * (MEBI if number > 1 else 1), id=oid)
        values = [future.result() for future in waiting]
    assert [bytes(value[:1]) for value in values] == [b"0", b"0", b"1", b"1", b"2", b"2", b"3", b"3"]
    del waiting


def test_blocked_gets_hold_up_no_other_thread(cluster: plasmon.LocalCluster, near: plasmon.Client) -> None:
    """Eight threads wait while others put, on one connection."""
    client = cluster.connect()
    awaited = [plasmon.ObjectId.random() for _ in range(8)]

    def work(seed: int) -> None:
        for number in range(100):
            data = bytes([seed, number]) * (10 if number % 10 else 100_000)
            oid = client.put(data)
            assert client.get(oid) == data
            client.delete(oid)

    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(lambda oid: bytes(client.get(oid, ANTI_HANG)), oid) for oid in awaited]
        list(pool.map(work, range(6)))
        assert not any(future.done() for future in waiting)
        for oid in awaited:
            client.put(oid.binary(), id=oid)
        assert [future.result() for future in waiting] == [oid.binary() for oid in awaited]
    client.close()


INTERRUPTED = """
import signal, sys, threading, plasmon
client = plasmon.connect(sys.argv[1])
if sys.argv[2] == "follower":  # Another thread reads the connection.
    threading.Thread(target=client.get, args=("never",), daemon=True).start()
try:
    print("waiting", flush=True)
    client.get("never")
except KeyboardInterrupt:
    print("interrupted", client.contains("never"), flush=True)
"""


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_ctrl_c_ends_a_get_and_the_client_goes_on(
    cluster: plasmon.LocalCluster, near: plasmon.Client, role: str
) -> None:
    command = [sys.executable, "-c", INTERRUPTED, cluster.sockets[0], role]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        # The process may not wait yet. The signal has the same effect then.
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted False\n"
        assert child.wait(ANTI_HANG) == 0


FULL = """
import sys, time, plasmon
client = plasmon.connect(sys.argv[1])
held = client.get(client.put(bytes(40 << 20), timeout=60))
try:
    print("waiting", flush=True)
    {call}
except KeyboardInterrupt:
    while client.status()["memory"]["waiting"]:  # Until the node has given up as well.
        time.sleep(0.01)
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "call",
    [
        "client.put(bytes(40 << 20), timeout=600)",
        "client.put_many([bytes(40 << 20)] * 2, timeout=600)",
        "client.create('large', 40 << 20, timeout=600)",
        "client.wait(['never'])",
        "[event for event in client.subscribe()]",
    ],
)
def test_ctrl_c_ends_every_wait(call: str) -> None:
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        command = [sys.executable, "-c", FULL.replace("{call}", call), cluster.sockets[0]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "waiting\n"
            if "timeout" in call:
                status = cluster.client().status
                until("it to wait for room", lambda: status()["memory"]["waiting"] == 1)
            child.send_signal(signal.SIGINT)
            assert child.stdout.readline() == "interrupted\n"
            assert child.wait(ANTI_HANG) == 0


STOPPED = """
import signal, sys, plasmon
client = plasmon.connect(sys.argv[1])
client.put(b"the rings are in use")
print("ready", flush=True)
sys.stdin.readline()
try:
    {call}
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
# The client goes on as before, and the interrupted call leaves nothing half made.
for number in range(3):
    assert client.get(client.put(bytes([number]) * (1 << 20))) == bytes([number]) * (1 << 20)
    assert client.get(client.put(bytes([number]))) == bytes([number])
print("done", flush=True)
sys.stdin.readline()
"""


def sleeps(pid: int) -> int:
    """Number of times that a process has gone to sleep."""
    with open(f"/proc/{pid}/status") as status:
        return int(next(line for line in status if line.startswith("voluntary_ctxt_switches")).split()[1])


@pytest.mark.parametrize(
    "call",
    [
        "client.put(b'small')",
        "client.put(bytes(1 << 20))",
        "client.put_many([b'small', bytes(1 << 20)])",
        "client.create('created', 1 << 20)",
        "client.delete('something')",
        "client.list()",
    ],
)
def test_ctrl_c_ends_a_call_on_a_node_that_is_stopped(call: str) -> None:
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        node = cluster.client().status()["pid"]
        command = [sys.executable, "-c", STOPPED.replace("{call}", call), cluster.sockets[0]]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdin is not None
            assert child.stdout.readline() == "ready\n"
            os.kill(node, signal.SIGSTOP)
            try:
                before = sleeps(child.pid)
                child.stdin.write("go\n")
                child.stdin.flush()
                # The waiting call wakes every 50 ms.
                until("the call to wait", lambda: sleeps(child.pid) > before + 5)
                child.send_signal(signal.SIGINT)
                assert child.stdout.readline() == "interrupted\n"
            finally:
                os.kill(node, signal.SIGCONT)
            child.stdin.write("go on\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"
            status = cluster.client().status
            until("what was given up to go", lambda: status()["objects"]["unsealed"] == 0)
            child.stdin.close()
            assert child.wait(ANTI_HANG) == 0


def test_a_signal_whose_handler_returns_does_not_end_a_get(near: plasmon.Client) -> None:
    handled = []

    def handle(*_: object) -> None:
        handled.append(near.put(b"woken", name="by signal"))

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        assert near.get("by signal", timeout=ANTI_HANG) == b"woken"
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [plasmon.ObjectId.from_name("by signal")]
    near.delete("by signal")


def test_a_child_connects_on_its_own(near: plasmon.Client) -> None:
    oid = near.put(b"of the parent")
    value = near.get(oid)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            del value  # Must not release the pin of the parent.
            status = 0 if near.get(oid) == b"of the parent" else 2
            near.close()
            try:
                near.get(oid)
                status = 3
            except plasmon.Disconnected:
                pass
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert near.status()["objects"]["pinned"] == 1
    assert value == b"of the parent"


def test_a_child_keeps_no_connection_of_its_parent_open(
    cluster: plasmon.LocalCluster, near: plasmon.Client
) -> None:
    before = near.status()["clients"]
    client = cluster.connect()
    assert near.status()["clients"] == before + 1
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        client.close()
        until("the connection to end", lambda: near.status()["clients"] == before)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


CRASHED = """
import os, signal, sys, plasmon
client = plasmon.connect(sys.argv[1])
ids = [client.put(bytes(size)) for size in (10, 1 << 20)]
values = [client.get(id) for id in ids]
created = client.create("unsealed", 1 << 20)
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()
"""


def test_what_a_crashed_process_held_goes_although_its_child_has_the_connection(
    cluster: plasmon.LocalCluster, near: plasmon.Client
) -> None:
    def holds() -> tuple[int, int]:
        objects = near.status()["objects"]
        return objects["pinned"], objects["unsealed"]

    clients = near.status()["clients"]
    command = [sys.executable, "-c", CRASHED, cluster.sockets[0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            assert holds() == (2, 1)
            parent.kill()
            until("what it held to go", lambda: holds() == (0, 0))
            assert near.status()["clients"] == clients
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


def test_when_the_node_dies_waits_end_and_values_stay() -> None:
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        client = cluster.client()
        value = client.get(client.put(b"kept" * MEBI))
        with ThreadPoolExecutor() as pool:
            waiting = [pool.submit(client.get, "never") for _ in range(3)]
            cluster.kill(0)
            for future in waiting:
                with pytest.raises(plasmon.Disconnected, match="connect again") as raised:
                    future.result(ANTI_HANG)
                assert cluster.sockets[0] in str(raised.value)
        with pytest.raises(plasmon.Disconnected):
            client.put(b"")
        assert value == b"kept" * MEBI


def test_an_object_whose_only_node_died_is_lost_or_late_but_does_not_hang() -> None:
    with plasmon.LocalCluster(nodes=2, memory="64MiB") as cluster:
        client = cluster.client(0)
        oid = cluster.client(1).put(b"only there" * MEBI)
        cluster.kill(1)
        with pytest.raises((plasmon.ObjectLost, plasmon.TimedOut)):
            client.get(oid, timeout=5)
        assert client.get(client.put(b"still here")) == b"still here"


def test_a_get_ends_even_if_the_node_has_stopped() -> None:
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        client = cluster.client()
        oid = client.put(b"out of reach for a while")
        os.kill(cluster.pids[0], signal.SIGSTOP)
        try:
            with pytest.raises(plasmon.TimedOut, match="did not answer"):
                client.get(oid, timeout=0)  # The node gets some seconds beyond that.
        finally:
            os.kill(cluster.pids[0], signal.SIGCONT)
        assert client.get(oid) == b"out of reach for a while"
        until("the late reply to be undone", lambda: client.status()["objects"]["pinned"] == 0)


WAITS: dict[str, Callable[[plasmon.Client], object]] = {
    "get": lambda client: client.get("never"),
    "get of several": lambda client: client.get(["never", "here"]),
    "get with a time-out": lambda client: client.get("never", timeout=600),
    "get_buffers": lambda client: client.get_buffers(["never"]),
    "get_into": lambda client: client.get_into("never", bytearray(1)),
    "wait": lambda client: client.wait(["never"]),
    "metadata": lambda client: client.metadata("never"),
    "pin": lambda client: client.pin("never"),
    "put": lambda client: client.put(bytes(200 * MEBI), timeout=600),
    "create": lambda client: client.create(plasmon.ObjectId.random(), 200 * MEBI, timeout=600),
    "buffer": lambda client: client.buffer(200 * MEBI, timeout=600),
}


@pytest.mark.parametrize("call", WAITS)
def test_close_ends_the_calls_of_other_threads(
    cluster: plasmon.LocalCluster, near: plasmon.Client, call: str
) -> None:
    client = cluster.connect()
    client.put(b"", name="here")
    value = client.get(client.put(b"x" * (100 * MEBI)))
    made = client.create(plasmon.ObjectId.random(), 1)
    begun = threading.Semaphore(0)
    outcomes: list[object] = []

    def wait() -> None:
        begun.release()
        try:
            outcomes.append(WAITS[call](client))
        except BaseException as error:
            outcomes.append(error)

    for _ in range(5):
        threading.Thread(target=wait, daemon=True).start()
        assert begun.acquire(timeout=ANTI_HANG)
    let_pass(0.1, "that they wait cannot be seen; whoever comes too late gets the same")
    client.close()
    until("all calls to end", lambda: len(outcomes) == 5)
    for outcome in outcomes:
        assert isinstance(outcome, plasmon.Disconnected), outcome
        assert "this client is closed" in str(outcome)
    assert value == b"x" * (100 * MEBI)
    near.evict(256 * MEBI)
    assert value[-1:] == b"x", "it is pinned"
    made.seal()
    assert near.get(made.id, timeout=0).nbytes == 1
    outcomes.clear()
    del value


def test_disconnect_ends_the_calls_of_other_threads_with_plasma(
    cluster: plasmon.LocalCluster, near: plasmon.Client
) -> None:
    client = plasmon.plasma.connect(cluster.sockets[0])
    begun = threading.Event()
    ended: list[BaseException] = []

    def wait() -> None:
        begun.set()
        try:
            client.get(plasmon.plasma.ObjectID.from_random())
        except OSError as error:
            ended.append(error)

    threading.Thread(target=wait, daemon=True).start()
    assert begun.wait(ANTI_HANG)
    until("the get to wait", lambda: near.status()["transfer"]["fetching"] == 1)
    client.disconnect()
    until("the get to end", lambda: bool(ended))


LEFT_BEHIND = f"""{LET_PASS}
import sys, threading, plasmon
client = plasmon.connect(sys.argv[1])
events = client.subscribe()
while events.next(0):
    pass

CALLS = [
    lambda: client.get("never"),
    lambda: client.get("never", timeout=0.2),
    lambda: client.wait(["never"], timeout=0.1),
    lambda: events.next(0.2),
    lambda: next(events),
    lambda: client.delete(client.put(bytes(1 << 20))),
    lambda: plasmon.connect(sys.argv[1]).status(),
]

def again_and_again(call):
    while True:
        try:
            call()
        except plasmon.TimedOut:
            pass

for call in eval(sys.argv[2]):
    threading.Thread(target=again_and_again, args=(call,), daemon=True).start()
let_pass(0.1, "that they wait in their calls cannot be seen")

class Slow:
    def __del__(self, let_pass=let_pass):
        let_pass(0.3, "calls end while the interpreter does: threads that want it back find none")

slow = Slow()
"""


@pytest.mark.parametrize("calls", [f"CALLS[{number}:{number + 1}]" for number in range(7)] + ["CALLS * 4"])
def test_daemon_threads_that_wait_do_not_disturb_the_end(near: plasmon.Client, calls: str) -> None:
    command = [sys.executable, "-c", LEFT_BEHIND, near.socket, calls]
    programs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    for program in programs:
        _, errors = program.communicate(timeout=ANTI_HANG)
        assert (program.returncode, errors) == (0, "")


CHILD = """
import os, sys, threading, plasmon
client = plasmon.connect(sys.argv[1])
for _ in range(4):
    call = lambda: [client.wait(["never"], timeout=0) for _ in iter(int, 1)]
    threading.Thread(target=call, daemon=True).start()
for _ in range(8):
    if os.fork() == 0:
        sys.exit()
    assert os.wait()[1] == 0
"""


def test_a_forked_child_ends_without_the_threads_of_its_parent(near: plasmon.Client) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, near.socket],
        capture_output=True,
        text=True,
        timeout=ANTI_HANG,
    )
    assert (done.returncode, done.stderr) == (0, "")
