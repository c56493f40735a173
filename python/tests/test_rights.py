"""Tests of rights: what another user may do with an object."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

import plasmon
import plasmon.aio
import plasmon.plasma
import pytest
from conftest import OTHER, admit_others

Delete = Callable[[plasmon.ObjectId], str]


@pytest.fixture
def delete_as_other(cluster: plasmon.LocalCluster, near: plasmon.Client) -> Delete:
    """Deletes an object as another user, and returns the outcome."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    admit_others(near.socket)

    def delete(oid: plasmon.ObjectId) -> str:
        # The other user may not be able to read the modules that this user imports.
        program = (
            "import os, sys, plasmon\n"
            f"os.setresuid({OTHER}, {OTHER}, {OTHER})\n"
            "with plasmon.connect(sys.argv[1]) as client:\n"
            "    try:\n"
            "        print(client.delete(plasmon.ObjectId.from_hex(sys.argv[2])))\n"
            "    except plasmon.NotAllowed as error:\n"
            "        print(error)\n"
        )
        command = [sys.executable, "-c", program, near.socket, str(oid)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    return delete


def test_what_others_may_do_is_said_by_a_put(near: plasmon.Client, delete_as_other: Delete) -> None:
    # The creator is the user of this process, root.
    for oid in (near.put(b"1"), near.put(b"1", public="r"), *near.put_many([b"1"])):
        refusal = delete_as_other(oid)
        for word in (str(oid), "user 0's", f"user {OTHER}", 'public="rw"'):
            assert word in refusal
        assert near.delete(oid)
    private = near.put(b"1", private=True)
    assert "private" in delete_as_other(private)
    scratch = near.buffer(1 << 20)
    objects = [
        near.put(b"1", public="rw"),
        near.put(bytes(1 << 20), public="rw"),
        *near.put_many([b"1", b"2"], public="rw"),
        near.create_and_seal(plasmon.ObjectId.random(), b"1", public="rw"),
        near.put_from(scratch, public="rw"),
    ]
    with near.create(plasmon.ObjectId.random(), 1 << 20, public="rw") as creation:
        objects.append(creation.id)
    for oid in objects:
        assert delete_as_other(oid) == "True"


def test_listings_say_what_others_may_do(near: plasmon.Client) -> None:
    objects = [near.put(b"1", private=True), near.put(b"1"), near.put(b"1", public="rw")]
    rows = {row.id: (row.private, row.public) for row in near.list()}
    assert [rows[oid] for oid in objects] == [(True, None), (False, "r"), (False, "rw")]


def test_rights_that_make_no_sense_are_refused(near: plasmon.Client) -> None:
    with pytest.raises(plasmon.InvalidArgument, match="not 'w'"):
        near.put(b"1", public="w")  # type: ignore[arg-type]
    with pytest.raises(plasmon.InvalidArgument, match="not both"):
        near.put(b"1", private=True, public="rw")


def test_everybody_deletes_what_plasma_has_put(near: plasmon.Client, delete_as_other: Delete) -> None:
    client = plasmon.plasma.connect(near.socket)
    try:
        created = plasmon.plasma.ObjectID.from_random()
        client.create(created, 10)
        client.seal(created)
        objects = [created, client.put(b"1"), client.put([1]), client.put_raw_buffer(b"1")]
        for oid in objects:
            assert delete_as_other(plasmon.ObjectId(oid.binary())) == "True"
    finally:
        client.disconnect()


def test_everybody_deletes_what_is_in_a_store_of_plasma() -> None:
    with (
        plasmon.plasma.start_plasma_store(16 << 20) as (socket, _),
        plasmon.connect(socket) as client,
    ):
        oid = client.put(b"1")
        assert [row.public for row in client.list() if row.id == oid] == ["rw"]


def test_a_private_name_is_another_than_everybodys(near: plasmon.Client, far: plasmon.Client) -> None:
    assert near.user == os.geteuid()
    public = near.put(b"public", name="model")
    private = near.put(b"private", name="model", private=True)
    assert private == plasmon.ObjectId.from_private_name("model", near.user) != public
    assert plasmon.ObjectId.from_private_name("model", near.user + 1) not in (public, private)
    for client in (near, far):
        assert bytes(client.get("model", 30)) == b"public"
        assert bytes(client.get("model", 30, private=True)) == b"private"
        assert [bytes(value) for value in client.get(["model", public], 30, private=True)] == [
            b"private",
            b"public",
        ]
        assert [bytes(one) for one in client.get_buffers("model", 30, private=True)] == [b"private"]
        assert client.wait("model", timeout=30, private=True) == ([private], [])
        assert client.contains("model", private=True)
        assert client.contains(["model"], private=True) == [True]
        assert client.hash("model", private=True) == client.hash(private)
        assert client.metadata("model", private=True) == b""
        client.verify("model", private=True)
        client.pin("model", private=True)
        client.unpin("model", private=True)
        client.refresh("model", private=True)
        client.prefetch("model", private=True)
        assert client.explain("model", private=True) == client.explain(private)
        assert client.locations("model", private=True)
        into = bytearray(7)
        assert client.get_into("model", into, 30, private=True) == 7
        assert into == b"private"
    assert near.replicate("model", 2, private=True).failed == []
    assert near.migrate("model", far.node, private=True).holders == [far.node]
    assert near.broadcast("model", private=True).failed == []
    assert near.delete("model", private=True)
    assert near.delete(["model"], private=True) == [False]
    assert bytes(near.get("model")) == b"public"
    assert near.put_many([b"1"], ids=["model"], private=True) == [private]
    assert near.delete("model", private=True)
    creation = near.create("model", 1, private=True)
    near.seal("model", private=True)
    assert near.delete("model", private=True)
    creation = near.create("model", 1, private=True)
    near.abort("model", private=True)
    del creation
    with pytest.raises(plasmon.InvalidArgument, match="empty"):
        near.get("", private=True)


def test_a_private_name_with_asyncio(near: plasmon.Client) -> None:
    async def run() -> None:
        async with plasmon.aio.connect(near.socket) as client:
            assert client.user == near.user
            private = await client.put(b"private", name="model", private=True)
            assert bytes(await client.get("model", 30, private=True)) == b"private"
            assert [bytes(one) for one in await client.get(["model"], 30, private=True)] == [b"private"]
            assert await client.wait("model", timeout=30, private=True) == ([private], [])
            assert await client.hash("model", private=True) == near.hash(private)
            assert await client.metadata("model", private=True) == b""
            await client.verify("model", private=True)
            await client.pin("model", private=True)
            await client.unpin("model", private=True)
            assert await client.contains("model", private=True)
            assert not await client.contains("model")
            assert await client.delete("model", private=True)

    asyncio.run(run())
