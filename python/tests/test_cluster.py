"""Tests of the nodes that `LocalCluster` starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import plasmon
import pytest
from conftest import ANTI_HANG, until


def alive(pid: int) -> bool:
    """Whether a process runs, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_nodes_join_stop_and_leave_nothing_behind() -> None:
    with plasmon.LocalCluster(nodes=2, memory="64MiB") as cluster:
        added = cluster.add()
        assert added == 2
        oid = cluster.client(0).put(b"for the new one")
        assert cluster.client(added).get(oid, timeout=ANTI_HANG) == b"for the new one"
        assert len({client.node for client in map(cluster.client, range(3))}) == 3
        pids, folder = cluster.pids, Path(cluster.sockets[0]).parent
        assert all(map(alive, pids))
        assert folder.stat().st_mode & 0o777 == 0o700
        cluster.stop(1)
        assert not alive(pids[1])
        assert cluster.client(added).get(oid) == b"for the new one"
    assert not any(map(alive, pids))
    assert not folder.exists()


def test_a_long_temporary_folder_is_none_for_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job's TMPDIR may be so long that no path in it can be that of a socket."""
    long = tmp_path / ("a" * (105 - len(str(tmp_path)) - 1))
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        folder = Path(cluster.sockets[0]).parent
        assert folder.parent == Path("/tmp")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert cluster.client().get(cluster.client().put(b"x")) == b"x"
    assert not folder.exists()
    assert not list(long.iterdir())
    with pytest.raises(plasmon.InvalidArgument, match="at most 107"):
        plasmon.connect(long / "plasmon.sock")


def test_a_node_that_ends_by_itself_is_told() -> None:
    cluster = plasmon.LocalCluster(nodes=1, memory="64MiB")
    os.kill(cluster.pids[0], signal.SIGKILL)
    os.waitid(os.P_PID, cluster.pids[0], os.WEXITED | os.WNOWAIT)
    with pytest.raises(plasmon.Error, match="node 0 was ended by SIGKILL by itself"):
        cluster.close()


def test_a_node_that_does_not_start_shows_its_log() -> None:
    with pytest.raises(plasmon.Error, match=r"(?s)node 0 did not start.*--no-such-flag"):
        plasmon.LocalCluster(nodes=2, memory="64MiB", arguments=["--no-such-flag"])
    with pytest.raises(plasmon.Error, match=r"(?s)node 0 did not start.*no-such-provider"):
        plasmon.LocalCluster(nodes=1, memory="64MiB", provider="no-such-provider")
    with pytest.raises(plasmon.InvalidArgument):
        plasmon.LocalCluster(nodes=0)


def test_without_the_program_it_says_where_it_looked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLASMON_BIN", str(tmp_path / "nothing"))
    with pytest.raises(plasmon.Error, match="PLASMON_BIN"):
        plasmon.LocalCluster()
    monkeypatch.delenv("PLASMON_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path))
    with pytest.raises(plasmon.Error, match="PLASMON_BIN"):
        plasmon.LocalCluster()


ABANDONED = """
import sys, threading, plasmon
clusters = []
# Made by a thread that ends: the nodes live as long as the process, not the thread.
thread = threading.Thread(target=lambda: clusters.append(plasmon.LocalCluster(nodes=2, memory="64MiB")))
thread.start()
thread.join()
clusters[0].client(0).put(b"x")
print(*clusters[0].pids, flush=True)
sys.stdin.read()
"""


def test_nodes_end_with_the_program_that_started_them() -> None:
    command = [sys.executable, "-c", ABANDONED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pids = [int(pid) for pid in child.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
        child.kill()
    for pid in pids:
        until(f"node {pid} to end", lambda pid=pid: not alive(pid))  # type: ignore[misc]


def test_where_an_object_is_and_how_it_came() -> None:
    with plasmon.LocalCluster(nodes=2, memory="64MiB") as cluster:
        holder, reader = cluster.client(0), cluster.client(1)
        large = holder.put(b"x" * 1_000_000)
        assert holder.locations(large) == [(holder.node, "primary")]
        absent = {"id": str(large), "here": "absent", "fetched": None, "arriving": None, "value": None}
        assert reader.explain(large) == {**absent, "version": None}
        reader.prefetch([large])
        ready, rest = reader.wait([large], timeout=ANTI_HANG)
        assert (ready, rest) == ([large], [])
        explanation = reader.explain(large)
        fetched = explanation["fetched"]
        assert explanation["here"] == "cached"
        assert (fetched["protocol"], fetched["holders"]) == ("read", [holder.node])
        assert fetched["bytes"] >= 1_000_000
        assert (fetched["copied_bytes"], fetched["registrations"]) == (0, 0)
        phases = [fetched[f"{phase}_us"] for phase in ("lookup", "allocate", "move", "seal")]
        assert all(phase >= 0 for phase in phases)
        assert sum(phases) == pytest.approx(fetched["total_us"], abs=1)
        assert reader.locations(large)[0] == (reader.node, "cached")
        until("the directory to know of both", lambda: len(holder.locations(large)) == 2)
        assert holder.locations("nothing of this name") == []
        with pytest.raises(plasmon.InvalidArgument):
            reader.prefetch([large], timeout=-1)


def test_etcd_coordinates_and_any_node_may_die() -> None:
    with plasmon.LocalCluster(
        nodes=3, memory="64MiB", coordinator="etcd", arguments=["--lease", "2"]
    ) as cluster:
        folder = Path(cluster.sockets[0]).parent
        oid = cluster.client(1).put(b"kept")
        assert cluster.client(2).status()["cluster"]["coordinator_kind"] == "etcd"
        cluster.kill(0)
        until("the others know", lambda: len(cluster.client(2).status()["cluster"]["members"]) == 2)
        assert cluster.client(2).get(oid, timeout=ANTI_HANG) == b"kept"
        added = cluster.add()
        assert cluster.client(added).get(oid, timeout=ANTI_HANG) == b"kept"
    assert not folder.exists()


def test_without_etcd_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(plasmon.Error, match="etcd-server"):
        plasmon.LocalCluster(nodes=1, memory="64MiB", coordinator="etcd")
    with pytest.raises(plasmon.InvalidArgument, match="zookeeper"):
        plasmon.LocalCluster(nodes=1, memory="64MiB", coordinator="zookeeper")  # type: ignore[arg-type]
