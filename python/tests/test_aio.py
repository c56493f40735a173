"""Tests of the asyncio client: all calls, waits without threads, and cancelled tasks."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import plasmon
import plasmon.aio
import pytest
from conftest import ANTI_HANG, held, let_pass_async, until


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(ANTI_HANG):
            await main

    asyncio.run(bounded())


async def eventually(what: str, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(ANTI_HANG):
        while not condition():
            await asyncio.sleep(0.005)


def test_it_has_every_call_of_the_plain_client() -> None:
    # A mapping has no coroutines.
    public = {name for name in dir(plasmon.Client) if not name.startswith("_")} - {"mapping"}
    assert public <= set(dir(plasmon.aio.Client))


def test_values_come_and_go(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            id = await client.put({"a": 1})
            assert await client.get(id) == {"a": 1}
            assert await client.get([id, id]) == [{"a": 1}] * 2
            assert await client.get(id, type=dict) == {"a": 1}
            assert await client.get([id], type=dict) == [{"a": 1}]
            assert await client.contains(id)
            assert await client.contains([id, b"0" * 20]) == [True, False]
            large = await client.put(bytes(1 << 20), digest=True)
            assert len(await client.get(large)) == 1 << 20
            await client.verify(large)
            assert await client.hash(large) == near.hash(large)
            assert await client.metadata(large) == b""
            assert {row.id for row in await client.list()} == {id, large}
            assert (await client.status())["node"] == client.node == near.node
            assert await client.delete([id, large]) == [True, True]
            assert not client.closed
        assert client.closed
        with pytest.raises(plasmon.Disconnected, match="closed"):
            await client.get(id)
        with pytest.raises(plasmon.Disconnected, match="closed"):
            await client.put(1)

    run(main())


def test_what_is_elsewhere_is_fetched(near: plasmon.Client, far: plasmon.Client) -> None:
    ids = [near.put(bytes([number]) * 100_000) for number in range(50)]

    async def main() -> None:
        client = await plasmon.aio.connect(far.socket)
        async with client:
            values = await client.get(ids)
            assert [bytes(value[:1]) for value in values] == [bytes([number]) for number in range(50)]

    run(main())


def test_a_thousand_tasks_wait_without_a_thread(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            before = threading.active_count()
            tasks = [asyncio.create_task(client.get(f"late {number}")) for number in range(1000)]
            waits = [asyncio.create_task(client.wait([f"late {number}" for number in range(1000)]))]
            await asyncio.sleep(0)
            assert threading.active_count() == before
            await asyncio.to_thread(lambda: [near.put(number, id=f"late {number}") for number in range(1000)])
            assert await asyncio.gather(*tasks) == [*range(1000)]
            ready, rest = await waits[0]
            assert (len(ready), rest) == (1000, [])

    run(main())


def test_more_than_a_request_takes(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            names = [f"many {number}" for number in range(2500)]
            task = asyncio.create_task(client.get(names))
            await asyncio.sleep(0)
            await client.put_many(range(2500), ids=names)
            assert await task == [*range(2500)]

    run(main())


def test_time_outs_and_errors(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            with pytest.raises(plasmon.TimedOut):
                await client.get("never", timeout=0.01)
            with pytest.raises(plasmon.ObjectNotFound):
                await client.get("never", timeout=0)
            assert await client.wait(["never"], timeout=0) == ([], [plasmon.ObjectId.from_name("never")])
            with pytest.raises(plasmon.InvalidArgument):
                await client.wait(["never"], count=2)
            await client.put(1, name="taken")
            with pytest.raises(plasmon.ObjectExists):
                await client.put(2, name="taken")

    run(main())


def test_a_cancelled_get_leaves_nothing(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            for turn in range(20):
                name = f"cancelled {turn}"
                tasks = [asyncio.create_task(client.get(name)) for _ in range(10)]
                await asyncio.sleep(0)
                put = asyncio.create_task(client.put(b"x" * 100_000, name=name))
                # Some answers are on the way when the tasks are cancelled.
                await let_pass_async(0.0005 * turn, "how far the answers have come differs")
                for task in tasks:
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    assert isinstance(outcome, plasmon.Buffer | asyncio.CancelledError)
                del outcome, tasks, task
                await put
            gc.collect()
            await asyncio.to_thread(until, "pins to go", lambda: held(near) == 0)
            assert client._waiting == {}

    run(main())


def test_a_cancelled_call_in_a_thread_ends(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            tasks = [asyncio.create_task(client.get_into("never there", bytearray(10))) for _ in range(8)]
            # The calls take all threads for calls that may wait.
            last = "plasmon-aio-patient_7"
            await eventually("them to run", lambda: last in {thread.name for thread in threading.enumerate()})
            putting = asyncio.create_task(client.put(1))
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(outcome, asyncio.CancelledError)
            assert isinstance(await putting, plasmon.ObjectId), "the threads are free again"

    run(main())


def test_a_loop_and_threads_share_a_connection(near: plasmon.Client) -> None:
    async def main() -> None:
        plain = plasmon.connect(near.socket)
        client = plasmon.aio.Client(plain)
        stop = threading.Event()
        failures: list[BaseException] = []

        def hammer(number: int) -> None:
            try:
                count = 0
                while not stop.is_set():
                    count += 1
                    plain.put(count, name=f"thread {number} {count}")
                    assert plain.contains([f"thread {number} {count}"]) == [True]
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=hammer, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        for number in range(300):
            getting = asyncio.create_task(client.get(f"shared {number}"))
            await asyncio.sleep(0)
            await client.put(number, name=f"shared {number}")
            assert await getting == number
        stop.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert failures == []
        await client.close()

    run(main())


def test_close_ends_those_who_wait(near: plasmon.Client) -> None:
    async def main() -> None:
        client = await plasmon.aio.connect(near.socket)
        task = asyncio.create_task(client.get("never there"))
        await eventually("the get to wait", lambda: near.status()["transfer"]["fetching"] == 1)
        await client.close()
        with pytest.raises(plasmon.Disconnected):
            await task

    run(main())


def test_a_node_that_dies_ends_those_who_wait() -> None:
    async def main(cluster: plasmon.LocalCluster) -> None:
        client = await plasmon.aio.connect(cluster.sockets[0])
        tasks = [asyncio.create_task(client.get(f"never {number}")) for number in range(10)]
        looking = cluster.client(0)
        await eventually("the gets to wait", lambda: looking.status()["transfer"]["fetching"] == 10)
        await asyncio.to_thread(cluster.kill, 0)
        for task in tasks:
            with pytest.raises(plasmon.Disconnected):
                await task
        with pytest.raises(plasmon.Disconnected):
            await client.get("later")
        await client.close()

    with plasmon.LocalCluster(memory="64MiB") as cluster:
        run(main(cluster))


def test_events(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client, await client.subscribe() as events:
            id = await client.put(b"seen")
            assert (event := await anext(events)).kind == "sealed"
            assert event.id == id
            next_one = asyncio.create_task(events.next())
            await let_pass_async(0.01, "that it waits for an event cannot be seen")
            next_one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await next_one
            await client.delete(id)
            assert (await events.next()).kind == "deleted"
        assert [event async for event in events] == []

    run(main())


def test_events_of_all_nodes(near: plasmon.Client, far: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client, client.subscribe(cluster=True) as events:
            id = far.put(b"seen")
            async for event in events:
                if event.id == id:
                    assert (event.kind, event.node) == ("sealed", far.node)
                    break

    run(main())


def test_another_loop_is_refused(near: plasmon.Client) -> None:
    clients: list[plasmon.aio.Client] = []

    async def first() -> None:
        clients.append(await plasmon.aio.connect(near.socket))

    async def second() -> None:
        with pytest.raises(plasmon.InvalidArgument, match="another event loop"):
            await clients[0].get("anything")

    run(first())
    run(second())


def test_a_child_is_told_to_connect_anew(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            id = await client.put(b"of the parent")
            value = await client.get(id)
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    client._loop.get([id], None)
                except plasmon.Disconnected as error:
                    status = 0 if "after fork" in str(error) else 2
                finally:
                    os._exit(status)
            _, ended = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(ended) == 0
            assert value == b"of the parent"
            assert await client.get(id) == b"of the parent"

    run(main())


def test_close_ends_all_that_waits(near: plasmon.Client) -> None:
    async def main() -> None:
        client = await plasmon.aio.connect(near.socket)
        held = await client.get(await client.put(b"held" * 100_000))
        calls: list[Coroutine[Any, Any, Any]] = [client.get("never"), client.wait(["never"])]
        # More calls than threads, so some have not begun.
        calls += [client.get_into("never", bytearray(1)) for _ in range(20)]
        tasks = [asyncio.create_task(call) for call in calls]
        last = "plasmon-aio-patient_7"
        await eventually("them to run", lambda: last in {thread.name for thread in threading.enumerate()})
        await client.close()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(outcome, plasmon.Disconnected), outcome
            assert "this client is closed" in str(outcome)
        assert held == b"held" * 100_000
        del held

    run(main())


def test_a_subscription_that_is_closed_ends_the_wait_of_a_task(near: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            events = await client.subscribe()
            waiting = asyncio.create_task(events.next())
            await asyncio.sleep(0)
            events.close()
            with pytest.raises(plasmon.Disconnected, match="closed"):
                await waiting
            assert [event async for event in events] == []

    run(main())
