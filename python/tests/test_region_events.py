"""Tests of what clients are told of their regions."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Iterator
from contextlib import suppress

import plasmon
import plasmon.aio
import pytest
from conftest import ANTI_HANG
from plasmon import RegionEvent

NAME = "told"
USER = 70_009


@pytest.fixture
def region(near: plasmon.Client) -> Iterator[plasmon.Region]:
    """A region, which is freed after the test if it is still there."""
    made = near.create_region(NAME, 64)
    yield made
    made.close()
    with suppress(plasmon.ObjectNotFound):
        near.map_region(NAME, "rw").free()
    assert NAME not in [one.name for one in near.regions()]


def told(events: plasmon.RegionEvents) -> RegionEvent:
    event = events.next(ANTI_HANG)
    assert event is not None
    return event


def test_what_happens_to_regions_is_told(
    region: plasmon.Region, near: plasmon.Client, far: plasmon.Client
) -> None:
    with far.map_region(NAME, "rw") as same, near.region_events() as here, far.region_events() as there:
        owner = os.geteuid()

        def both(event: RegionEvent) -> None:
            assert [told(here), told(there)] == [event, event]

        region.grant(USER, "r")
        both(RegionEvent("granted", NAME, owner, user=USER, rights="r"))
        same.grant("everyone", "rw")
        both(RegionEvent("granted", NAME, owner, user="everyone", rights="rw"))
        same.revoke("everyone")
        both(RegionEvent("revoked", NAME, owner, user="everyone", rights=""))
        region.revoke(USER)
        both(RegionEvent("revoked", NAME, owner, user=USER, rights=""))
        region.move(far.node)
        both(RegionEvent("moved", NAME, owner, far.node))
        same.free()
        both(RegionEvent("freed", NAME, owner))
        assert here.next(0) is None
        assert there.next(0.01) is None
    assert here.closed
    with pytest.raises(plasmon.Disconnected, match="closed"):
        here.next(0)
    assert list(here) == []


def test_names_are_those_of_the_namespace(near: plasmon.Client) -> None:
    with plasmon.connect(near.socket, namespace="space") as client, client.region_events() as events:
        client.create_region("named", 8).free()
        assert told(events) == RegionEvent("freed", "named", os.geteuid())


def test_events_can_be_polled(region: plasmon.Region, near: plasmon.Client) -> None:
    with near.region_events() as events:
        assert select.select([events], [], [], 0)[0] == []
        region.grant("everyone", "r")
        assert select.select([events], [], [], ANTI_HANG)[0] == [events]
        assert told(events).kind == "granted"


@pytest.mark.parametrize("by_client", [False, True])
def test_events_that_are_closed_end_the_wait_of_a_thread(near: plasmon.Client, by_client: bool) -> None:
    client = plasmon.connect(near.socket)
    events = client.region_events()
    # A handle keeps the connection of a closed client.
    kept = client.create_region("kept", 8)
    heard: list[RegionEvent] = []
    thread = threading.Thread(target=lambda: heard.extend(events))
    thread.start()
    kept.grant("everyone", "r")
    while not heard:
        thread.join(0.01)
    client.close() if by_client else events.close()
    thread.join(ANTI_HANG)
    assert not thread.is_alive()
    assert [event.kind for event in heard] == ["granted"]
    assert events.closed
    client.close()
    near.map_region("kept", "rw").free()


def test_a_client_has_a_limited_number_of_them(near: plasmon.Client) -> None:
    with plasmon.connect(near.socket) as client:
        several = [client.region_events() for _ in range(16)]
        with pytest.raises(plasmon.Busy):
            client.region_events()
        for events in several:
            events.close()


def test_tasks_hear_what_happens(region: plasmon.Region, near: plasmon.Client, far: plasmon.Client) -> None:
    async def main() -> None:
        async with plasmon.aio.connect(far.socket) as client, client.region_events() as events:
            async with await client.map_region(NAME, "rw") as same:
                await same.grant(USER, "rw")
                event = await anext(events)
                assert (event.kind, event.user, event.rights) == ("granted", USER, "rw")
                region.move(far.node)
                assert (await events.next()).home == far.node
                await same.free()
                assert (await events.next()).kind == "freed"
            # The end of the client ends the wait of a task.
            waiting = asyncio.create_task(rest(events))
            await asyncio.sleep(0)
            other = await client.region_events()
            await client.close()
            assert await waiting == []
            assert [event async for event in other] == []

    async def rest(events: plasmon.aio.RegionEvents) -> list[str]:
        return [event.kind async for event in events]

    asyncio.run(main())
