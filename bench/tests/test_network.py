"""Tests of the hosts of a run, and of their removal."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cpu
from harness.network import PREFIX, Network, remove_stale

NAMESPACES = Path("/run/netns")


@pytest.fixture(name="network")
def _network() -> "Network":
    network = Network(2)
    if network.why_not is not None:
        network.close()
        pytest.skip(f"no namespaces here: {network.why_not}")
    return network


def left(name: str) -> list[str]:
    return [path.name for path in NAMESPACES.glob(f"{name}*")]


def test_hosts_reach_each_other_and_nobody_else(network: Network) -> None:
    with network:
        first, second = network.hosts
        assert first.address != second.address
        refused = "import socket, sys; sys.exit(socket.socket().connect_ex((sys.argv[1], 9)))"
        for host, other in ((first, second.address), (second, first.address)):
            done = subprocess.run(host.command([sys.executable, "-c", refused, other]), timeout=30)
            # No process listens, and an existing host refuses the connection.
            assert os.strerror(done.returncode) == "Connection refused"
        outside = first.command(["ip", "-o", "link"])
        links = subprocess.run(outside, check=True, capture_output=True, text=True).stdout
        assert {line.split(": ")[1].partition("@")[0] for line in links.splitlines()} == {"lo", "eth0"}


def test_nothing_is_left_of_a_network_not_even_what_runs_in_it(network: Network) -> None:
    mine = network.hosts[0].namespace.rpartition("-")[0]
    sleeper = subprocess.Popen(network.hosts[1].command(["sleep", "600"]))
    while sleeper.pid not in network.hosts[1].processes():
        assert sleeper.poll() is None
    assert len(left(mine)) == 3
    network.close()
    assert sleeper.wait(30) != 0
    assert left(mine) == []


def test_what_killed_runs_left_is_removed_and_what_others_use_is_not(network: Network) -> None:
    with network:
        ended = subprocess.Popen(["true"])
        ended.wait()
        names = [f"{PREFIX}{ended.pid}-1-host0", f"{PREFIX}{os.getppid()}-1-host0"]
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        try:
            remove_stale()
            assert left(names[0]) == []
            assert left(names[1]) == [names[1]]
            assert left(network.hosts[0].namespace)
        finally:
            subprocess.run(["ip", "netns", "delete", names[1]], check=True)


def test_without_namespaces_all_hosts_are_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLASMON_BENCH_NETNS", "0")
    with Network(3) as network:
        assert [host.command(["true"]) for host in network.hosts] == [["true"]] * 3
        assert "loopback" in network.description


def test_a_link_limits_what_a_host_sends_and_what_it_receives() -> None:
    with Network(2, link_gbit=2.5) as network:
        if network.why_not is not None:
            pytest.skip(f"no links here: {network.why_not}")
        assert "links of 2.5 Gbit/s" in network.description
        switch = f"{network.hosts[0].namespace.rpartition('-')[0]}-switch"
        for number, host in enumerate(network.hosts):
            for namespace, device in ((host.namespace, "eth0"), (switch, f"port{number}")):
                words = ["tc", "-json", "-n", namespace, "qdisc", "show", "dev", device]
                (queue,) = json.loads(subprocess.run(words, check=True, capture_output=True).stdout)
                assert (queue["kind"], queue["options"]["rate"]) == ("tbf", 2.5e9 / 8)


def test_without_tc_there_are_hosts_but_no_links(
    network: Network, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    network.close()
    program = shutil.which("ip")
    assert program is not None
    (tmp_path / "ip").symlink_to(program)
    monkeypatch.setenv("PATH", str(tmp_path))
    with Network(2) as without:
        assert without.why_not is None
    with Network(2, link_gbit=1) as limited:
        assert limited.why_not is not None
        assert "tc" in limited.why_not
        assert [host.namespace for host in limited.hosts] == ["", ""]
    assert left(f"{PREFIX}{os.getpid()}-") == []


def test_processor_time_is_that_of_the_process_and_its_ended_threads() -> None:
    busy = "import threading, time, sys\ndef burn():\n while time.process_time() < 0.3: pass\n"
    busy += "t = threading.Thread(target=burn); t.start(); t.join(); print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", busy], **pipes)  # type: ignore[call-overload]
    assert process.stdout.readline() == b"\n"
    spent = cpu.seconds([process.pid])
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    assert spent >= 0.3
    assert spent == pytest.approx(ticks, abs=0.1)
    assert cpu.family(os.getpid()).count(process.pid) == 1
    process.communicate()
    assert cpu.seconds([process.pid]) == 0.0
    assert cpu.family(process.pid) == []
