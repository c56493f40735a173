"""Tests of locks and barriers: one holder, guards that know whether they are valid, waits, and asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial

import plasmon
import plasmon.aio
import pytest
from conftest import ANTI_HANG, until


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_a_block_holds_the_lock(near: plasmon.Client, reader: plasmon.Client) -> None:
    lock = near.lock("block", ttl=1)
    other = reader.lock("block", timeout=0)
    with lock as guard:
        assert guard.valid
        assert guard.token > 0
        assert not guard.abandoned
        with pytest.raises(plasmon.Busy, match="block"):
            other.acquire()
    assert not guard.valid
    with other as later:
        assert later.valid
        assert later.token > guard.token
    with pytest.raises(plasmon.InvalidArgument, match="not held"):
        lock.release()
    assert lock.name == "block"
    assert "block" in repr(lock)
    assert "not valid" in repr(guard)


def test_acquire_and_release(near: plasmon.Client, far: plasmon.Client) -> None:
    lock = near.lock("acquired")
    guard = lock.acquire(timeout=ANTI_HANG)
    with pytest.raises(plasmon.TimedOut):
        far.lock("acquired").acquire(timeout=0.1)
    lock.release()
    assert not guard.valid
    guard.release()  # A second call does nothing.
    again = far.lock("acquired").acquire(timeout=0)
    assert again.token > guard.token
    again.release()
    # A guard that nobody has any more unlocks.
    far.lock("acquired").acquire(timeout=0)
    near.lock("acquired").acquire(timeout=0).release()


def test_threads_of_a_process_take_turns(near: plasmon.Client, far: plasmon.Client) -> None:
    shared = {"count": 0, "inside": 0}

    def count(lock: plasmon.Lock) -> None:
        for _ in range(25):
            with lock:
                shared["inside"] += 1
                assert shared["inside"] == 1
                shared["count"] += 1
                shared["inside"] -= 1

    locks = [near.lock("turns"), far.lock("turns")]
    threads = [in_thread(partial(count, lock)) for lock in locks * 3]
    for thread in threads:
        thread.join()
    assert shared == {"count": 150, "inside": 0}


def test_readers_share_a_lock(near: plasmon.Client, far: plasmon.Client) -> None:
    one, other = near.lock("shared", shared=True), far.lock("shared", shared=True, timeout=0)
    with one as first, one as second, other as third:
        assert first.valid
        assert second.valid
        assert third.valid
        with pytest.raises(plasmon.Busy):
            far.lock("shared", timeout=0).acquire()
    with far.lock("shared", timeout=0):
        pass


@pytest.mark.parametrize("home", ["near", "far"])
def test_a_region_refuses_late_writes(
    home: str, near: plasmon.Client, far: plasmon.Client, request: pytest.FixtureRequest
) -> None:
    client: plasmon.Client = request.getfixturevalue(home)
    name = f"fenced at {home}"
    region = client.create_region(name, 1 << 20, ephemeral=True)
    writer = near.map_region(name, "rw")
    lock = near.lock(name)
    guard = lock.acquire()
    for size in (1, 8, 321, 300_000):
        writer.write(b"a" * size, 8, fence=guard)
        assert writer.read(8, size) == b"a" * size
    lock.release()
    with pytest.raises(plasmon.Fenced):
        writer.write(b"b", 8, fence=guard)
    strange = far.lock(name).acquire(timeout=ANTI_HANG)
    with pytest.raises(plasmon.InvalidArgument, match="another client"):
        writer.write(b"b", 8, fence=strange)
    assert writer.read(8, 1) == b"a"
    region.free()


def elsewhere(call: Callable[[], object]) -> BaseException | None:
    """Makes a call in another thread, and returns what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    in_thread(run).join(ANTI_HANG)
    return raised[0] if raised else None


def test_a_block_may_end_in_another_thread(near: plasmon.Client, far: plasmon.Client) -> None:
    lock = near.lock("elsewhere")
    stack = contextlib.ExitStack()
    guard = stack.enter_context(lock)
    assert elsewhere(stack.close) is None
    assert not guard.valid
    far.lock("elsewhere").acquire(timeout=0).release()
    entered = contextlib.ExitStack()
    assert elsewhere(lambda: entered.enter_context(lock)) is None
    with pytest.raises(plasmon.Busy):
        far.lock("elsewhere").acquire(timeout=0)
    entered.close()
    far.lock("elsewhere").acquire(timeout=0).release()
    with pytest.raises(plasmon.InvalidArgument, match="no block"):
        lock.__exit__(None, None, None)


def test_who_releases_frees_no_other_threads_guard(near: plasmon.Client) -> None:
    lock = near.lock("released", shared=True)
    own = lock.acquire()
    theirs: list[plasmon.Guard] = []
    acquired, may_end = threading.Event(), threading.Event()

    def other() -> None:
        theirs.append(lock.acquire())
        acquired.set()
        may_end.wait(ANTI_HANG)

    thread = in_thread(other)
    assert acquired.wait(ANTI_HANG)
    lock.release()
    assert theirs[0].valid
    assert own.released
    with pytest.raises(plasmon.InvalidArgument, match="another thread"):
        lock.release()
    assert theirs[0].valid
    may_end.set()
    thread.join()
    # That thread cannot release it any more.
    lock.release()
    assert not theirs[0].valid
    # A guard is released by whoever has it.
    handed = lock.acquire()
    assert elsewhere(handed.release) is None
    assert handed.released
    with pytest.raises(plasmon.InvalidArgument, match="not held"):
        near.lock("released").release()


def test_a_block_gives_back_its_own_guard_alone(near: plasmon.Client) -> None:
    lock = near.lock("one handle")
    theirs: list[plasmon.Guard] = []
    entered, may_end = threading.Event(), threading.Event()

    def other() -> None:
        with lock as guard:
            theirs.append(guard)
            entered.set()
            may_end.wait(ANTI_HANG)

    with lock as own:
        own.release()
        thread = in_thread(other)
        assert entered.wait(ANTI_HANG)
    assert theirs[0].valid
    may_end.set()
    thread.join()
    assert theirs[0].released
    # A guard that was released already is not what was acquired last.
    shared = near.lock("one handle", shared=True)
    first, second = shared.acquire(), shared.acquire()
    second.release()
    shared.release()
    assert first.released
    with pytest.raises(plasmon.InvalidArgument, match="not held"):
        shared.release()


@pytest.mark.parametrize(("outer", "inner"), [(False, False), (False, True), (True, False)])
def test_a_block_that_would_wait_for_itself_is_busy_at_once(
    outer: bool, inner: bool, near: plasmon.Client, cluster: plasmon.LocalCluster
) -> None:
    with cluster.connect(0) as second, near.lock("itself", shared=outer) as guard:
        # Another client of the process is no way out, nor is a time-out needed.
        for client in (near, second):
            with pytest.raises(plasmon.Busy, match="this thread holds lock 'itself'"):
                client.lock("itself", shared=inner).__enter__()
        assert guard.valid
        # Another thread may wait, and its end is told.
        late = elsewhere(near.lock("itself", shared=inner, timeout=0.1).__enter__)
        assert isinstance(late, plasmon.TimedOut)
        assert f"this process ({os.getpid()}) has held it for" in str(late)
    with near.lock("itself", shared=inner):
        pass


def test_blocks_within_blocks_count_if_they_may(near: plasmon.Client, far: plasmon.Client) -> None:
    lock = near.lock("counts", reentrant=True)
    with lock as outer:
        with lock as inner, near.lock("counts", shared=True, reentrant=True) as shared:
            assert inner.token == outer.token == shared.token
        assert outer.valid
        with pytest.raises(plasmon.Busy):
            far.lock("counts").acquire(timeout=0)
    assert not outer.valid
    far.lock("counts").acquire(timeout=0).release()
    # Who shares it can share it again, although somebody waits to have it alone.
    with near.lock("counts", shared=True):
        waiting = in_thread(lambda: far.lock("counts", timeout=ANTI_HANG).acquire().release())
        until("it waits", lambda: far.status()["locks"]["waiting"] == 1)
        with near.lock("counts", shared=True) as again:
            assert again.valid
        with pytest.raises(plasmon.Busy, match="cannot have it alone"):
            lock.__enter__()
    waiting.join()
    # A guard that was lost or released is no reason to refuse.
    with lock as gone:
        gone.release()
        with near.lock("counts") as other:
            assert other.valid


def test_a_second_acquire_waits_and_names_the_holder(near: plasmon.Client, far: plasmon.Client) -> None:
    guard = near.lock("handed on").acquire()
    mine = f"this process ({os.getpid()}) has held it for"
    with pytest.raises(plasmon.TimedOut, match="this process") as late:
        near.lock("handed on").acquire(timeout=0.1)
    assert mine in str(late.value)
    with pytest.raises(plasmon.Busy) as busy:
        near.lock("handed on").acquire(timeout=0)
    assert mine in str(busy.value)
    with pytest.raises(plasmon.TimedOut, match=f"process {os.getpid()} of user .* on node {near.node}"):
        far.lock("handed on").acquire(timeout=0.1)
    timer = threading.Timer(0.05, guard.release)
    timer.start()
    near.lock("handed on").acquire(timeout=ANTI_HANG).release()


def test_a_lost_lock_is_told(near: plasmon.Client, reader: plasmon.Client) -> None:
    code = f"""
import plasmon
client = plasmon.connect({near.socket!r})
guard = client.lock("lost", ttl=0.2).acquire()
print("ready", flush=True)
input()
print(guard.valid, flush=True)
try:
    guard.release()
except plasmon.Fenced:
    print("fenced", flush=True)
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "ready\n"
        holder.send_signal(signal.SIGSTOP)
        with reader.lock("lost", timeout=ANTI_HANG) as guard:
            assert guard.abandoned
            holder.send_signal(signal.SIGCONT)
            told, _ = holder.communicate("\n", timeout=ANTI_HANG)
            assert told == "False\nfenced\n"
            assert guard.valid


def test_a_process_that_dies_leaves_the_lock(near: plasmon.Client, reader: plasmon.Client) -> None:
    code = f"""
import os, plasmon
guard = plasmon.connect({near.socket!r}).lock("left", ttl=60).acquire()
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    with reader.lock("left", timeout=ANTI_HANG) as guard:
        assert guard.abandoned
    with reader.lock("left", timeout=0) as guard:
        assert not guard.abandoned


def test_a_block_that_raises_unlocks(near: plasmon.Client) -> None:
    with pytest.raises(ValueError, match="it raises"), near.lock("raises"):
        raise ValueError("it raises")
    near.lock("raises").acquire(timeout=0).release()


def test_a_closed_client_unlocks(cluster: plasmon.LocalCluster, near: plasmon.Client) -> None:
    client = cluster.connect(1)
    lock = client.lock("closed")
    guard = lock.acquire()
    client.close()
    assert not guard.valid
    assert lock.closed
    near.lock("closed").acquire(timeout=0).release()
    with pytest.raises(plasmon.Disconnected):
        lock.acquire()


def test_a_forked_child_has_no_guard(near: plasmon.Client) -> None:
    lock = near.lock("forked")
    guard = lock.acquire()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            busy = False
            try:
                near.lock("forked").acquire(timeout=0)
            except plasmon.Busy:
                busy = True
            os._exit(0 if busy and not guard.valid else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert guard.valid
    lock.release()


def test_ctrl_c_ends_a_wait_and_leaves_nothing(near: plasmon.Client, far: plasmon.Client) -> None:
    guard = far.lock("interrupted").acquire()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        until("it waits", lambda: near.status()["locks"]["waiting"] == 1)
        signal.pthread_kill(main, signal.SIGINT)

    thread = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        near.lock("interrupted").acquire(timeout=ANTI_HANG)
    thread.join()
    until("nothing waits", lambda: near.status()["locks"]["waiting"] == 0)
    guard.release()
    # The lock's home may be told that nobody waits after it was told of the release.
    far.lock("interrupted").acquire(timeout=ANTI_HANG).release()


def test_wrong_arguments_are_refused(near: plasmon.Client) -> None:
    for name in ("", "n" * 256):
        with pytest.raises(plasmon.InvalidArgument, match="name"):
            near.lock(name)
    for ttl in (0, 0.05, 61, -1, float("nan")):
        with pytest.raises(plasmon.InvalidArgument, match="ttl"):
            near.lock("ttl", ttl=ttl)
    for parties in (0, -1, 1_000_001, 1 << 32):
        with pytest.raises(plasmon.InvalidArgument):
            near.barrier("parties", parties)
    with pytest.raises(TypeError):
        pickle.dumps(near.lock("pickled"))
    lock = near.lock("handle")
    lock.close()
    with pytest.raises(plasmon.InvalidArgument, match="closed"):
        lock.acquire()


def test_a_namespace_has_locks_of_its_own(cluster: plasmon.LocalCluster, near: plasmon.Client) -> None:
    with plasmon.connect(cluster.sockets[1], namespace="job") as client, near.lock("name"):
        client.lock("name").acquire(timeout=0).release()
        with near.lock("job/name"), pytest.raises(plasmon.Busy):
            client.lock("name").acquire(timeout=0)


def test_parties_wait_for_each_other(near: plasmon.Client, far: plasmon.Client) -> None:
    places: list[int] = []

    def arrive(client: plasmon.Client) -> None:
        with client.barrier("pass", 3) as barrier:
            places.extend(barrier.wait(ANTI_HANG) for _ in range(5))
            barrier.wait(ANTI_HANG)

    threads = [in_thread(partial(arrive, client)) for client in (near, far, near)]
    for thread in threads:
        thread.join()
    assert sorted(places) == [0] * 5 + [1] * 5 + [2] * 5


def test_a_party_that_leaves_breaks_the_barrier(near: plasmon.Client, far: plasmon.Client) -> None:
    leaving, waiting = near.barrier("leave", 2), far.barrier("leave", 2)
    assert waiting.parties == 2
    assert waiting.name == "leave"
    errors: list[plasmon.Error] = []

    def wait() -> None:
        try:
            waiting.wait(ANTI_HANG)
        except plasmon.Error as error:
            errors.append(error)

    thread = in_thread(wait)
    until("it waits", lambda: far.status()["locks"]["arrived"] == 1)
    leaving.close()
    assert leaving.closed
    thread.join()
    assert [type(error) for error in errors] == [plasmon.BarrierBroken]
    with near.barrier("alone", 2) as alone, pytest.raises(plasmon.TimedOut):
        alone.wait(0.1)


def test_tasks_take_turns(near: plasmon.Client, cluster: plasmon.LocalCluster) -> None:
    async def main() -> None:
        inside = 0
        async with plasmon.aio.connect(cluster.sockets[1]) as client:
            lock = await client.lock("tasks")

            async def count() -> None:
                nonlocal inside
                async with lock as guard:
                    assert guard.valid
                    inside += 1
                    await asyncio.sleep(0)
                    assert inside == 1
                    inside -= 1

            # Far more tasks than there are threads, and than a client has slots.
            await asyncio.gather(*(count() for _ in range(300)))
            guard = await lock.acquire(timeout=0)
            with pytest.raises(plasmon.Busy):
                near.lock("tasks").acquire(timeout=0)
            await lock.release()
            assert not guard.valid
            with pytest.raises(plasmon.InvalidArgument, match="not held"):
                await lock.release()

    asyncio.run(main())


def test_blocks_of_tasks(near: plasmon.Client, cluster: plasmon.LocalCluster) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(cluster.sockets[1]) as client:
            lock = await client.lock("blocks of tasks")
            # A block may end in another task than it began in.
            guard = await asyncio.create_task(lock.__aenter__())
            assert guard.valid
            await asyncio.create_task(lock.__aexit__(None, None, None))
            assert guard.released
            async with lock as outer:
                again = await client.lock("blocks of tasks", reentrant=True)
                for shared in (False, True):
                    other = await client.lock("blocks of tasks", shared=shared)
                    with pytest.raises(plasmon.Busy, match="this task holds"):
                        await other.__aenter__()
                async with again as inner:
                    assert inner.token == outer.token
                assert outer.valid
                # The loop stands still while this waits, so that no task would ever end its block.
                with pytest.raises(plasmon.Busy, match="this thread holds"):
                    client._client.lock("blocks of tasks").__enter__()

                async def wait() -> int:
                    async with again as guard:
                        return guard.token

                waiting = asyncio.create_task(wait())
                while not (await client.status())["locks"]["waiting"]:
                    pass
            assert await waiting > outer.token
            # What a task has acquired that has ended, as a fixture does, another one releases.
            fixture = await asyncio.create_task(lock.acquire())
            await lock.release()
            assert fixture.released
            # One that goes on keeps it.
            held: asyncio.Future[plasmon.aio.Guard] = asyncio.get_running_loop().create_future()
            may_end = asyncio.Event()

            async def hold() -> None:
                held.set_result(await lock.acquire())
                await may_end.wait()
                await lock.release()

            holder = asyncio.create_task(hold())
            guard = await held
            with pytest.raises(plasmon.InvalidArgument, match="another"):
                await lock.release()
            assert guard.valid
            may_end.set()
            await holder
            assert guard.released

    asyncio.run(main())
    near.lock("blocks of tasks").acquire(timeout=ANTI_HANG).release()


def test_a_cancelled_task_leaves_nothing(near: plasmon.Client, cluster: plasmon.LocalCluster) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(cluster.sockets[1]) as client:
            lock = await client.lock("cancelled")
            for pause in range(40):
                held = near.lock("cancelled").acquire(timeout=ANTI_HANG)
                waiting = asyncio.create_task(lock.acquire())
                for _ in range(pause % 4):
                    await asyncio.sleep(0)
                # Some are granted before they are cancelled.
                held.release()
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await (await waiting).release()

    asyncio.run(main())
    near.lock("cancelled").acquire(timeout=ANTI_HANG).release()


def test_tasks_write_with_a_guard_and_wait_at_barriers(
    near: plasmon.Client, cluster: plasmon.LocalCluster
) -> None:
    region = near.create_region("of tasks", 4096, ephemeral=True)

    async def main() -> None:
        async with plasmon.aio.connect(cluster.sockets[1]) as client:
            mapped = await client.map_region("of tasks", "rw")
            async with await client.lock("of tasks") as guard:
                await mapped.write(b"held", 0, fence=guard)
                assert guard.token > 0
                assert not guard.abandoned
            with pytest.raises(plasmon.Fenced):
                await mapped.write(b"lost", 0, fence=guard)
            barriers = [await client.barrier("of tasks", 3) for _ in range(3)]
            places = await asyncio.gather(*(barrier.wait(ANTI_HANG) for barrier in barriers))
            assert sorted(places) == [0, 1, 2]
            waiting = asyncio.create_task(barriers[0].wait())
            while not (await client.status())["locks"]["arrived"]:
                pass
            barriers[1].close()
            with pytest.raises(plasmon.BarrierBroken):
                await waiting

    asyncio.run(main())
    assert region.read(0, 4) == b"held"


def test_locks_of_a_closed_client_are_free(near: plasmon.Client, cluster: plasmon.LocalCluster) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(cluster.sockets[1]) as client:
            await (await client.lock("of a closed one")).acquire()

    asyncio.run(main())
    until("it is free", lambda: _is_free(near, "of a closed one"))


def _is_free(client: plasmon.Client, name: str) -> bool:
    try:
        client.lock(name).acquire(timeout=0).release()
    except plasmon.Busy:
        return False
    return True
