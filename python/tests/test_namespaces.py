"""Tests of namespaces: names of two programs that do not meet."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator

import plasmon
import plasmon.aio
import pytest


@pytest.fixture
def job(near: plasmon.Client) -> Iterator[plasmon.Client]:
    """Client of the first node with a namespace."""
    with plasmon.connect(near.socket, namespace="job") as client:
        yield client


def test_a_name_is_that_of_its_namespace(
    near: plasmon.Client, far: plasmon.Client, job: plasmon.Client
) -> None:
    assert job.namespace == "job"
    assert near.namespace is None
    near.put("without", name="a")
    oid = job.put("within", name="a")
    assert oid == plasmon.ObjectId.from_name("job/a")
    assert (near.get("a"), job.get("a"), far.get("job/a", timeout=30)) == ("without", "within", "within")
    assert near.get(oid) == job.get(oid) == job.get(oid.hex()) == "within"
    assert job.get(["a", oid]) == ["within", "within"]
    assert job.get("b", default=None) is None
    assert job.contains("a")
    assert job.contains(["a", "b"]) == [True, False]
    assert bytes(job.get_buffers(["a"])[0]) == bytes(near.get_buffers([oid])[0])
    assert job.wait(["a"], timeout=0) == ([oid], [])
    job.put("mine", name="a", private=True)
    assert job.get("a", private=True) == near.get("job/a", private=True) == "mine"
    assert job.locations("a")[0][0] == near.node
    job.put_many([1, 2], ids=["x", "y"])
    assert near.get(["job/x", "job/y"]) == [1, 2]
    with job.create("made", 1) as creation:
        memoryview(creation)[:] = b"!"
    assert near.get("job/made") == b"!"
    assert job.delete("a")
    assert not job.contains("a")
    assert near.contains("a")
    with pytest.raises(plasmon.ObjectNotFound, match=r"object 'a' \(") as missed:
        job.get("a", timeout=0)
    assert missed.value.name == "a"


def test_lists_are_those_of_the_namespace(near: plasmon.Client, job: plasmon.Client) -> None:
    near.put(1, name="outside")
    near.put(2)
    job.put(3, name="inside")
    job.put(4, name="inside/deeper")
    assert sorted(row.name or "" for row in job.list()) == ["inside", "inside/deeper"]
    assert sorted(row.name or "" for row in job.list("*/d*", cluster=True)) == ["inside/deeper"]
    assert [row.name for row in near.list("job/inside")] == ["job/inside"]


def test_a_namespace_goes_where_its_client_goes(near: plasmon.Client, job: plasmon.Client) -> None:
    job.put("within", name="a")
    with pickle.loads(pickle.dumps(job)) as copy:
        assert copy.namespace == "job"
        assert copy.get("a") == "within"
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, job.get("a", timeout=30).encode())
        os._exit(0)
    assert os.read(read, 100) == b"within"
    os.wait()
    os.close(read)
    os.close(write)

    async def main() -> None:
        async with plasmon.aio.connect(near.socket, namespace="job") as client:
            assert client.namespace == "job"
            assert await client.get("a") == "within"
            assert await client.get(["a", "b"], default=None) == ["within", None]
            await client.put(1, name="of a task")

    asyncio.run(main())
    assert near.get("job/of a task") == 1


@pytest.mark.parametrize("namespace", ["", "/a", "a/", "/", "a\0b", "x" * 201, "ä" * 101])
def test_what_cannot_be_a_namespace_is_refused(near: plasmon.Client, namespace: str) -> None:
    with pytest.raises(plasmon.InvalidArgument, match="cannot be a namespace"):
        plasmon.connect(near.socket, namespace=namespace)


def test_names_stay_as_strict(job: plasmon.Client) -> None:
    for call in (lambda: job.get(""), lambda: job.put(1, name=""), lambda: job.put(1, name="a" * 40)):
        with pytest.raises(plasmon.InvalidArgument):
            call()
    with pytest.raises(plasmon.InvalidArgument):
        job.put(1, name="y" * 252)


def test_the_command_line_sees_whole_names(job: plasmon.Client) -> None:
    job.put(b"within", name="a")
    plasmon_ = os.environ.get("PLASMON_BIN") or os.path.join(os.path.dirname(sys.executable), "plasmon")
    done = subprocess.run([plasmon_, "get", "job/a", "--socket", job.socket], capture_output=True, check=True)
    assert done.stdout == b"within"
