"""Tests of the demo: it runs with what is in its cache, says what it lacks, and can be interrupted."""

import importlib.metadata
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import plasmon
import pytest
from conftest import until
from plasmon._cluster import find_binary
from plasmon.demo import _dataset, _needs

QUICK = ("--memory", "256MiB", "--repeat", "1")
MODULE = (sys.executable, "-m", "plasmon.demo")


class Demo:
    """Runs of the demo with a cache, a home and temporary files of their own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        # Nothing of the user's is read or written, and nobody answers where packages come from.
        for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
            (folder / name).mkdir()
            monkeypatch.setenv(name, str(folder / name))
        with socket.create_server(("127.0.0.1", 0)) as server:
            nobody = server.getsockname()[1]
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{nobody}/")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PYTHONUNBUFFERED", "1")
        monkeypatch.setenv("PLASMON_BIN", str(find_binary()))
        # The program finds this Python wherever it lies itself.
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        self.cache = _needs.cache()
        assert folder in self.cache.parents

    def provide_flights(self) -> None:
        """Puts an archive of two flights where the demo looks for the one of PyPI."""
        flights = io.BytesIO()
        with zipfile.ZipFile(flights, "w") as packed:
            packed.writestr("flights.csv", "carrier,arr_delay\nUA,5\nUA,7\nB6,1\n")
        self.cache.mkdir(parents=True, exist_ok=True)
        with tarfile.open(self.cache / _dataset.ARCHIVE, "w:gz") as archive:
            airlines = b"carrier,name\nUA,United\nB6,JetBlue\n"
            for name, content in (("flights.csv.zip", flights.getvalue()), ("airlines.csv", airlines)):
                member = tarfile.TarInfo(f"{_dataset.FOLDER}/{name}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))

    def start(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
        )

    def run(self, *command: str) -> tuple[int, str, str]:
        """Exit status, output and errors of a command, after which no process of it is left."""
        with self.start(*command) as process:
            out, errors = process.communicate()
        self.is_over()
        return process.returncode, out, errors

    def gets_to_its_nodes(self) -> None:
        """Checks that the demo has all that it needs, by nodes that do not start."""
        status, _, errors = self.run(*MODULE, "--memory", "much")
        assert status == 1
        assert "much" in errors
        assert "Traceback" not in errors

    def is_over(self) -> None:
        """Waits until no process of a run is left."""
        until("the processes are gone", lambda: self.processes() == [])

    def processes(self) -> list[str]:
        """Command lines of the processes that have this cache in their environment, but for this one."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environment = (process / "environ").read_bytes()
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if process.name != str(os.getpid()) and os.fsencode(self.folder) in environment and command:
                found.append(command)
        return found


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Demo]:
    demo = Demo(tmp_path, monkeypatch)
    yield demo
    # No node keeps files, and no download is left half done.
    assert not list(demo.cache.rglob(".new-*"))
    assert not list((tmp_path / "TMPDIR").glob("plasmon-*"))


def test_it_runs_by_each_of_its_names(demo: Demo) -> None:
    demo.provide_flights()
    status, out, errors = demo.run(*MODULE, "--json", *QUICK)
    assert status == 0, errors
    report = json.loads(out)
    assert [(row["airline"], row["minutes"]) for row in report["flights"]["delays"]] == [
        ("United", 6.0),
        ("JetBlue", 1.0),
    ]
    assert {figure["operation"] for figure in report["figures"]} >= {"local put", "remote get", "raw TCP"}
    status, out, errors = demo.run(str(find_binary()), "demo", *QUICK)
    assert status == 0, errors
    assert "Node B: got them from node A" in out
    assert "United" in out


def test_without_the_network_it_says_what_to_do(demo: Demo) -> None:
    status, _, errors = demo.run(*MODULE, *QUICK)
    assert status == 1
    assert "could not be downloaded" in errors
    assert str(demo.cache) in errors
    assert _dataset.ARCHIVE in errors
    demo.provide_flights()
    demo.gets_to_its_nodes()


def bare(folder: Path) -> list[str]:
    """Command of the demo in a Python that has Plasmon, pip for other processes, and no other package."""
    (folder / "bare").mkdir()
    (folder / "bare/plasmon").symlink_to(Path(plasmon.__file__).parent)
    # Without site there are no installed packages.
    return ["env", f"PYTHONPATH={folder / 'bare'}", sys.executable, "-S", "-m", "plasmon.demo"]


def test_packages_that_are_missing_are_found_in_the_cache(demo: Demo) -> None:
    demo.provide_flights()
    command = bare(demo.folder)
    status, _, errors = demo.run(*command, *QUICK)
    assert status == 1
    assert "Installing numpy" in errors
    assert "MB" in errors
    assert f"install numpy yourself for {sys.executable}" in errors
    # In place of an installation by pip: links to the packages of these tests.
    for name in _needs.PACKAGES:
        folder = _needs.package_folder(name)
        folder.mkdir(parents=True)
        installed = importlib.metadata.distribution(name).locate_file(".")
        for entry in Path(str(installed)).glob(f"{name}*"):
            (folder / entry.name).symlink_to(entry)
    status, out, errors = demo.run(*command, "--json", *QUICK)
    assert status == 0, errors
    assert json.loads(out)["flights"]["rows"] == 3


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_ended_while_it_downloads(
    demo: Demo, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    # The index takes connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/")
        with demo.start(*MODULE, *QUICK) as process:
            connection, _ = index.accept()
            with connection:
                assert any("pip" in command for command in demo.processes())
                process.send_signal(ending)
                _, errors = process.communicate()
    assert process.returncode == 128 + ending, errors
    assert "Traceback" not in errors
    demo.is_over()
    demo.provide_flights()
    demo.gets_to_its_nodes()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_ended_while_its_nodes_run(demo: Demo, ending: signal.Signals) -> None:
    demo.provide_flights()
    # The demo would measure for ever.
    with demo.start(*MODULE, "--memory", "256MiB", "--repeat", "1000000000") as process:
        assert process.stdout is not None
        # The figures follow the flights.
        while "bytes at node B" not in (line := process.stdout.readline()):
            assert line, "it ended"
        process.send_signal(ending)
        _, errors = process.communicate()
    assert process.returncode == 128 + ending, errors
    assert "Traceback" not in errors
    demo.is_over()
