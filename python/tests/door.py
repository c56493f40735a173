"""Tries the installed wheel of Plasmon as a new user does: the programs, a cluster, Plasma's store.

With an argument, a libfabric, it has nodes with the wheel's libfabric and with this one, and gets both ways.
It needs nothing but the standard library and the wheel, and is run by scripts/test-door.sh.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import plasmon
from plasmon._cluster import find_binary
from plasmon.plasma import ObjectID, connect, start_plasma_store

PROGRAM = str(find_binary())
LARGE = os.urandom(1 << 20) * 16
"""Object that is fetched by one-sided reads."""


def run(*words: str, data: bytes | None = None) -> bytes:
    """Runs a command of the package to its end. Returns its output."""
    return subprocess.run([PROGRAM, *words], input=data, stdout=subprocess.PIPE, check=True).stdout


@contextlib.contextmanager
def serving(socket: Path, *arguments: str) -> Iterator[str]:
    """Runs a node for a `with` block. Yields the address at which others join it."""
    command = [PROGRAM, "serve", "--socket", str(socket), "--listen", "127.0.0.1:0", "--memory", "256MiB"]
    command += ["--log", "warn", "--json", "--exit-with-parent", *arguments]
    node = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert node.stdout is not None
        line = node.stdout.readline()
        assert line, f"the node ended with status {node.wait()}"
        yield json.loads(line)["listen"]
    finally:
        node.terminate()
        assert node.wait(60) == 0, "the node ends well"


def commands(folder: Path) -> None:
    """Puts and gets by commands."""
    socket = folder / "node.sock"
    with serving(socket):
        run("put", "--socket", str(socket), "-", "--name", "greeting", data=b"hello")
        assert run("get", "--socket", str(socket), "greeting") == b"hello"
        fabric = json.loads(run("status", "--socket", str(socket), "--json"))["fabric"]
        print(f"a node serves with libfabric {fabric['libfabric']} of {fabric['library']}")
        assert "/libexec/plasmon/" in fabric["library"], fabric


def cluster() -> None:
    """Gets an object from another node, in Python."""
    with plasmon.LocalCluster(nodes=2, memory="256MiB") as nodes:
        nodes.client(0).put(LARGE, name="large")
        assert bytes(nodes.client(1).get("large")) == LARGE
    print("a cluster of two nodes moves objects")


def plasma() -> None:
    """Uses Plasma's interface and its store."""
    with start_plasma_store(64 << 20) as (socket, _):
        client = connect(socket)
        object_id = ObjectID(os.urandom(20))
        client.create(object_id, 5)[:] = b"hello"
        client.seal(object_id)
        assert bytes(client.get_buffers([object_id])[0]) == b"hello"
        client.disconnect()
    server = Path(PROGRAM).with_name("plasma-store-server")
    subprocess.run([str(server), "--help"], stdout=subprocess.DEVNULL, check=True)
    print("Plasma's store serves")


def mixed(folder: Path, other: str) -> None:
    """Gets objects both ways between a node with the package's libfabric and one with another."""
    sockets = [folder / "bundled.sock", folder / "other.sock"]
    with (
        serving(sockets[0], "--libfabric", "bundled", "--provider", "tcp;ofi_rxm") as first,
        serving(sockets[1], "--libfabric", other, "--provider", "tcp;ofi_rxm", "--join", first),
    ):
        clients = [plasmon.Client(str(socket)) for socket in sockets]
        fabrics = [client.status()["fabric"] for client in clients]
        print(" and ".join(f"libfabric {fabric['libfabric']} of {fabric['library']}" for fabric in fabrics))
        assert fabrics[0]["library"] != fabrics[1]["library"], fabrics
        for number, client in enumerate(clients):
            for size in (1000, 100_000, len(LARGE)):
                client.put(LARGE[:size], name=f"{number}-{size}")
        for number, client in enumerate(clients):
            for size in (1000, 100_000, len(LARGE)):
                assert bytes(client.get(f"{1 - number}-{size}", timeout=60)) == LARGE[:size]
        for client in clients:
            client.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        if len(sys.argv) > 1:
            mixed(Path(name), sys.argv[1])
        else:
            commands(Path(name))
            cluster()
            plasma()
