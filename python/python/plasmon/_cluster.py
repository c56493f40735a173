"""Cluster of nodes on this host, for tests and for trying Plasmon out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from plasmon._arguments import one_of, whole
from plasmon._client import Client
from plasmon._closing import Closing
from plasmon.errors import Error, InvalidArgument, WrongType

_MAX_NODES = 1 << 10
"""Largest number of nodes that one host starts."""
_START_SECONDS = 60.0
"""Longest time for a node to serve, and for the nodes to know each other."""
_STOP_SECONDS = 20.0
"""Longest time for a node to end after SIGTERM."""
_POLL_SECONDS = 0.01
"""Time between two checks of a condition."""
_SOCKET_PATH_BYTES = 107
"""Largest number of bytes of the path of a socket, which the kernel sets."""
_LOG_SHOWN_CHARS = 4000
"""Length of the end of a log in an error."""


class LocalCluster(Closing):
    """Nodes on this host that form a cluster over loopback: `plasmon serve` processes of its own.

    The program is `$PLASMON_BIN`, else `plasmon` beside the Python interpreter or where pip has installed it,
    else `plasmon` on the `PATH`.
    Sockets and logs lie in a private temporary directory, in `/tmp` if `TMPDIR` is too long for sockets. The
    nodes end with the cluster, and with this process.

        with plasmon.LocalCluster(nodes=2) as cluster:
            cluster.client(0).put(b"hello", name="greeting")
            print(bytes(cluster.client(1).get("greeting")))

    Args:
        nodes: Number of nodes, at least one.
        memory: Memory of each node, in bytes, or with a unit as in "256MiB".
        provider: libfabric provider for all nodes; by default each node chooses.
        coordinator: "embedded" in the first node, or "etcd": an etcd server of the cluster's own, found on
            the `PATH`, so that any node may be killed.
        arguments: Further arguments of `plasmon serve`.
        environment: Environment variables for the nodes, in addition to those of this process.

    Raises:
        Error: A node did not start; the message ends with its log.
    """

    def __init__(
        self,
        nodes: int = 2,
        memory: int | str = "1GiB",
        provider: str | None = None,
        *,
        coordinator: Literal["embedded", "etcd"] = "embedded",
        arguments: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        nodes = whole(nodes, "the number of nodes", 1, _MAX_NODES)
        one_of(coordinator, ("embedded", "etcd"), 'a coordinator is "embedded" or "etcd"')
        self._binary = find_binary()
        self._options = ["--memory", str(memory), *arguments]
        if provider is not None:
            self._options += ["--provider", provider]
        self._environment = {**_bare_environment(), **(environment or {})}
        for text in (*self._options, *self._environment, *self._environment.values()):
            _check_text(text)
        self._folder = Path(folder_for_sockets("plasmon-", "node-1000.sock"))
        self._nodes: list[_Node] = []
        self._clients: dict[int, Client] = {}
        self._etcd: _Etcd | None = None
        try:
            if coordinator == "etcd":
                self._etcd = _Etcd(self._folder)
                self._options += ["--coordinator", self._etcd.url]
            for _ in range(nodes):
                self.add()
            self._wait_for_members()
        except BaseException:
            self._discard()
            raise

    @property
    def sockets(self) -> list[str]:
        """Paths of the nodes' sockets, in the order of their start."""
        return [node.socket for node in self._nodes]

    @property
    def pids(self) -> list[int]:
        """Process ids of the nodes, in the order of their start."""
        return [node.process.pid for node in self._nodes]

    def log(self, node: int) -> str:
        """Log of a node so far."""
        return self._node(node).log()

    def connect(self, node: int = 0) -> Client:
        """Makes a new connection to a node. The caller closes it."""
        return Client(self._node(node).socket)

    def client(self, node: int = 0) -> Client:
        """Cluster's own connection to a node, which is closed with the cluster."""
        number = self._node(node).number
        if number not in self._clients:
            self._clients[number] = self.connect(number)
        return self._clients[number]

    def add(self) -> int:
        """Starts one more node, which joins the others. Returns its number once it serves."""
        number = len(self._nodes)
        join = ["--join", self._nodes[0].listen] if self._nodes and self._etcd is None else []
        node = _Node(
            number, self._folder, [str(self._binary), "serve", *self._options, *join], self._environment
        )
        self._nodes.append(node)
        node.wait_until_it_serves()
        return number

    def kill(self, node: int) -> None:
        """Kills a node as a crash would (SIGKILL)."""
        self._node(node).end(signal.SIGKILL)

    def stop(self, node: int) -> None:
        """Stops a node as an administrator would (SIGTERM).

        Raises:
            Error: The node did not end, and was killed.
        """
        self._node(node).end(signal.SIGTERM)

    def close(self) -> None:
        """Stops all nodes, the last one first, and removes their files.

        Raises:
            Error: A node had ended by itself, or did not stop and was killed.
        """
        complaints = [complaint for node in self._nodes if (complaint := node.complaint())]
        for client in self._clients.values():
            client.close()
        for node in reversed(self._nodes):
            try:
                node.end(signal.SIGTERM)
            except Error as error:
                complaints.append(str(error))
        self._discard()
        if complaints:
            raise Error("\n".join(complaints))

    def __repr__(self) -> str:
        return f"<plasmon.LocalCluster of {len(self._nodes)} nodes in {self._folder}>"

    def _node(self, number: int) -> _Node:
        """Node of a number, as `add` returned it."""
        return self._nodes[whole(number, "the number of a node", 0, len(self._nodes) - 1)]

    def _wait_for_members(self) -> None:
        """Waits until every node knows all others."""
        deadline = time.monotonic() + _START_SECONDS
        for number, node in enumerate(self._nodes):
            while (known := len(self.client(number).status()["cluster"]["members"])) < len(self._nodes):
                if time.monotonic() > deadline:
                    raise Error(
                        f"node {number} knows {known} of {len(self._nodes)} nodes after "
                        f"{_START_SECONDS:.0f} s."
                        f"{node.shown_log()}"
                    )
                time.sleep(_POLL_SECONDS)

    def _discard(self) -> None:
        """Kills all processes and removes all files, in whatever state they are."""
        for node in self._nodes:
            if node.process.poll() is None:
                node.process.kill()
                node.process.wait()
        if self._etcd is not None:
            self._etcd.end()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Node:
    """Process of `plasmon serve`."""

    def __init__(self, number: int, folder: Path, command: list[str], environment: dict[str, str]) -> None:
        self.number = number
        self.socket = str(folder / f"node-{number}.sock")
        self.listen = ""
        self._output = folder / f"node-{number}.out"
        self._log = folder / f"node-{number}.log"
        self._expected_to_run = True
        command = [
            *command,
            "--socket",
            self.socket,
            "--listen",
            "127.0.0.1:0",
            "--json",
            "--exit-with-parent",
        ]
        with self._output.open("wb") as output, self._log.open("wb") as log:
            # A process group of its own: Ctrl-C is for the program, which then closes the cluster.
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                env=environment,
                process_group=0,
            )

    def wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            ended = self.process.poll()
            # The output is read after the exit status, so that all of it is seen.
            line, complete, _ = self._output.read_text().partition("\n")
            if complete:
                break
            if ended is not None:
                raise Error(f"node {self.number} did not start: it {_how(ended)}.{self.shown_log()}")
            if time.monotonic() > deadline:
                raise Error(
                    f"node {self.number} does not serve after {_START_SECONDS:.0f} s.{self.shown_log()}"
                )
            time.sleep(_POLL_SECONDS)
        announcement: dict[str, Any] = json.loads(line)
        self.listen = announcement["listen"]

    def end(self, how: signal.Signals) -> None:
        """Sends a signal and waits until the process is gone."""
        self._expected_to_run = False
        self.process.send_signal(how)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise Error(
                f"node {self.number} did not end within {_STOP_SECONDS:.0f} s of {how.name} and was "
                f"killed.{self.shown_log()}"
            ) from None

    def complaint(self) -> str | None:
        """Complaint about a node that ended although nothing had stopped it, or `None`."""
        ended = self.process.poll()
        if ended is None or not self._expected_to_run:
            return None
        return f"node {self.number} {_how(ended)} by itself.{self.shown_log()}"

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def shown_log(self) -> str:
        return f" Its log ends with:\n{self.log()[-_LOG_SHOWN_CHARS:]}"


class _Etcd:
    """Server of etcd on loopback, with its data in the cluster's folder."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("etcd")
        if program is None:
            raise Error(
                'etcd, which coordinator="etcd" starts, is not on the PATH: install it (on Debian, '
                "etcd-server)"
            )
        clients, peers = _free_ports(2)
        self._log = folder / "etcd.log"
        self.url = f"etcd://127.0.0.1:{clients}/plasmon"
        own, others = f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{peers}"
        command = [program, "--name", "local", "--data-dir", str(folder / "etcd")]
        command += ["--listen-client-urls", own, "--advertise-client-urls", own]
        command += ["--listen-peer-urls", others, "--initial-advertise-peer-urls", others]
        command += ["--initial-cluster", f"local={others}"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with self._log.open("wb") as log:
            # The server ends with this process in any case, because the shell waits for the end of the pipe.
            self.process = subprocess.Popen(
                ["sh", "-c", '"$@" & pid=$!; read -r _; kill -KILL $pid; wait', "sh", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,
            )
        self._wait_until_it_answers(clients)

    def _wait_until_it_answers(self, port: int) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
                    if json.load(answer)["health"] == "true":
                        return
            except OSError:
                pass
            if time.monotonic() > deadline:
                self.end()
                log = self._log.read_text(errors="replace")[-_LOG_SHOWN_CHARS:]
                raise Error(f"etcd does not answer after {_START_SECONDS:.0f} s. Its log ends with:\n{log}")
            time.sleep(_POLL_SECONDS)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def folder_for_sockets(prefix: str, longest: str) -> str:
    """Makes a private temporary folder in which a socket may have a name as long as `longest`.

    It lies in `/tmp` if `TMPDIR` is too long: the path of a socket has at most 107 bytes.
    """
    folder = tempfile.mkdtemp(prefix=prefix)
    if len(os.fsencode(os.path.join(folder, longest))) <= _SOCKET_PATH_BYTES:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix=prefix, dir="/tmp")


def _free_ports(count: int) -> list[int]:
    """Ports of loopback that are free at the moment."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [server.getsockname()[1] for server in taken]
    for server in taken:
        server.close()
    return ports


def _bare_environment() -> dict[str, str]:
    """Environment of this process, without settings of nodes that do not belong to this cluster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PLASMON_")}
    host = {name: os.environ[name] for name in ("PLASMON_LOG", "PLASMON_LIBFABRIC") if name in os.environ}
    return kept | host | {"PLASMON_CONFIG": os.devnull}


def find_binary() -> Path:
    """Finds the `plasmon` program.

    Raises:
        Error: There is no such program.
    """
    if given := os.environ.get("PLASMON_BIN"):
        if not os.access(given, os.X_OK):
            raise Error(f"PLASMON_BIN={given} is not a program that can be run")
        return Path(given)
    for folder in _program_folders():
        if os.access(folder / "plasmon", os.X_OK):
            return folder / "plasmon"
    if found := shutil.which("plasmon"):
        return Path(found)
    raise Error(
        f"there is no program plasmon beside {sys.executable}, where pip installs programs, nor on the PATH: "
        "install it there, or name it in PLASMON_BIN"
    )


def _program_folders() -> list[Path]:
    """Folders in which installers put the programs of a package."""
    return [
        Path(sys.executable).parent,
        # `pip install --target`
        Path(__file__).parents[1] / "bin",
        Path(sysconfig.get_path("scripts")),
        # `pip install --user`
        Path(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))),
    ]


def _how(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _check_text(text: object) -> None:
    """Refuses what cannot be an argument of a program, or in its environment."""
    if not isinstance(text, str):
        raise WrongType(f"arguments and environment of a node are texts, not {type(text).__name__}")
    try:
        has_nul = b"\0" in os.fsencode(text)
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{text!r} cannot be given to a program: {error}") from error
    if has_nul:
        raise InvalidArgument(f"{text!r} cannot be given to a program: it has a NUL")
