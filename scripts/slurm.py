"""Runs deploy/slurm/plasmon.sbatch on a Slurm cluster of its own: a controller and three hosts.

    unshare --mount --pid --net --fork --kill-child ... python3 slurm.py VENV SCRIPT

It runs as root in a Debian system that nothing else uses, with the packages of Slurm, in namespaces of its
own. Each host is a slurmd with a network, a name, a /tmp and a /run of its own. Jobs run as an ordinary user
whose folder all hosts see. VENV is the environment with Plasmon.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HOSTS = 3
USER = 1000
HOME = Path("/home/user")
LONG = 105
"""Characters of a path. That of a socket has at most 107, with its name."""
DEADLINE = 300.0
"""Seconds in which a condition has to come true, on a machine however busy."""

CONFIGURATION = f"""\
ClusterName=test
SlurmctldHost=controller
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/var/spool/slurmctld
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SlurmdTimeout=600
MessageTimeout=100
ReturnToService=2
KillWait=10
NodeName=host[0-{HOSTS - 1}] CPUs=8 RealMemory=4096 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
"""

RANK = """\
set -e
echo "$SLURMD_NODENAME" | plasmon put - --name "of $SLURM_PROCID" >/dev/null
for ((rank = 0; rank < SLURM_NTASKS; rank++)); do
    plasmon get "of $rank" --timeout 250 >"$RESULTS/$SLURM_PROCID-$rank"
done
plasmon status --json >"$RESULTS/status-$SLURM_PROCID"
"""
"""Program that puts an object in each task, and gets those of all others."""


def run(*words: str, check: bool = True) -> str:
    """Runs a command. Returns what it prints."""
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=check)
    return done.stdout


def await_that(what: str, condition: Callable[[], bool]) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE:.0f} s"
        time.sleep(0.1)


class Cluster:
    """A controller and its hosts, which end with this process, as they are in its PID namespace."""

    def __init__(self) -> None:
        Path("/etc/slurm/slurm.conf").write_text(CONFIGURATION)
        Path("/etc/slurm/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        names = ["10.9.0.1 controller", *(f"10.9.0.{2 + host} host{host}" for host in range(HOSTS))]
        Path("/etc/hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        Path("/etc/munge/munge.key").write_bytes(os.urandom(128))
        shutil.chown("/etc/munge/munge.key", "munge", "munge")
        os.chmod("/etc/munge/munge.key", 0o400)
        for folder in ("/run/munge", "/var/spool/slurmctld", "/var/spool/slurmd"):
            os.makedirs(folder, exist_ok=True)
        shutil.chown("/run/munge", "munge", "munge")
        run("hostname", "controller")
        run("ip", "link", "add", "switch", "type", "bridge")
        run("ip", "address", "add", "10.9.0.1/24", "dev", "switch")
        run("ip", "link", "set", "switch", "up")
        run("ip", "link", "set", "lo", "up")
        run("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged")
        run("slurmctld")
        self.hosts = [self.start_host(number) for number in range(HOSTS)]
        await_that("hosts are idle", self.idle)

    def idle(self) -> bool:
        """Whether all hosts wait for jobs."""
        for host in self.hosts:
            assert host.poll() is None, f"slurmd ended with status {host.returncode}"
        return run("sinfo", "-h", "-o", "%T %D", check=False) == f"idle {HOSTS}\n"

    def start_host(self, number: int) -> subprocess.Popen[bytes]:
        """Starts slurmd on a host of its own."""
        inside = f"""
            hostname host{number}
            mount -t tmpfs tmp /tmp; chmod 1777 /tmp
            mkdir /tmp/munge; mount --bind /run/munge /tmp/munge
            mount -t tmpfs run /run; mkdir /run/munge; mount --move /tmp/munge /run/munge; rmdir /tmp/munge
            mount -t tmpfs spool /var/spool/slurmd
            read -r _
            ip link set lo up
            ip address add 10.9.0.{2 + number}/24 dev eth0
            ip link set eth0 up
            exec slurmd -D -N host{number} 2>/dev/null
        """
        command = ["unshare", "--net", "--uts", "--mount", "sh", "-ec", inside]
        host = subprocess.Popen(command, stdin=subprocess.PIPE)
        own = os.readlink("/proc/self/ns/net")
        await_that("the host has a network", lambda: os.readlink(f"/proc/{host.pid}/ns/net") != own)
        cable = f"cable{number}"
        run("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
        run("ip", "link", "set", cable, "master", "switch", "up")
        assert host.stdin is not None
        host.stdin.write(b"\n")
        host.stdin.close()
        return host

    def folder(self, host: int, path: str) -> Path:
        """Path of a host's own file, as this process sees it."""
        return Path(f"/proc/{self.hosts[host].pid}/root{path}")

    def kill_node(self, host: int) -> None:
        """Kills the node of Plasmon on a host."""
        network = os.readlink(f"/proc/{self.hosts[host].pid}/ns/net")
        nodes = [int(pid) for pid in run("pgrep", "plasmon-node").split()]
        (pid,) = (pid for pid in nodes if os.readlink(f"/proc/{pid}/ns/net") == network)
        os.kill(pid, signal.SIGKILL)

    def leftovers(self) -> list[str]:
        """Files and processes of Plasmon on the hosts."""
        files = [str(path) for host in range(HOSTS) for path in self.folder(host, "/tmp").iterdir()]
        processes = run("ps", "-eo", "pid,stat,args").splitlines()
        return files + [line for line in processes if "plasmon-node" in line or "plasmon serve" in line]


class Job:
    """A submitted job."""

    def __init__(self, venv: str, script: str, name: str, options: list[str], program: str) -> None:
        self.results = HOME / name
        self.results.mkdir()
        shutil.chown(self.results, USER, USER)
        environment = ["PATH=/usr/bin:/bin", f"HOME={HOME}", f"RESULTS={self.results}"]
        if venv:
            environment = [f"PATH={venv}/bin:/usr/bin:/bin", f"VIRTUAL_ENV={venv}", *environment[1:]]
        as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "env", "-i"]
        submit = ["sbatch", "--parsable", f"--output={self.results}/log"]
        words = [
            *as_user,
            *environment,
            *submit,
            "--open-mode=append",
            *options,
            script,
            "bash",
            "-c",
            program,
        ]
        self.id = run(*words).strip()

    def log(self) -> str:
        """Text that the job has printed."""
        path = self.results / "log"
        return path.read_text() if path.exists() else ""

    def show(self, key: str) -> str:
        """A property of the job as Slurm shows it."""
        found = re.search(rf"\b{key}=(\S*)", run("scontrol", "show", "job", self.id))
        assert found, key
        return found[1]

    def runs_again(self) -> bool:
        """Whether the job was started again, for which Slurm would take two minutes if it was not told."""
        waits = self.show("JobState") == "PENDING"
        if waits:
            run("scontrol", "update", f"JobId={self.id}", "StartTime=now", check=False)
        return not waits and self.show("Restarts") == "1" and self.show("JobState") != "COMPLETING"

    def await_end(self) -> str:
        """Waits until the job has ended. Returns its state."""
        ended = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
        try:
            await_that(f"job {self.id} ends", lambda: self.show("JobState") in ended)
        except AssertionError as error:
            raise AssertionError(f"{error}; its log:\n{self.log()}") from error
        return self.show("JobState")

    def succeed(self) -> None:
        """Waits until the job has ended well."""
        state = self.await_end()
        assert state == "COMPLETED", f"{state}:\n{self.log()}"

    def check_ranks(self, ranks: int, nodes: int, memory: int | None = None) -> None:
        """Checks what RANK has written: all got everything, and each host had one node."""
        self.succeed()
        hosts = set()
        for rank in range(ranks):
            for other in range(ranks):
                hosts.add((self.results / f"{rank}-{other}").read_text().strip())
        assert len(hosts) == nodes, f"{hosts}:\n{self.log()}"
        texts = [(self.results / f"status-{rank}").read_text() for rank in range(ranks)]
        found = {match[1] for text in texts if (match := re.search(r'"node":"(\w+)"', text))}
        assert len(found) == nodes, f"{len(found)} nodes served {ranks} ranks"
        if memory:
            assert all(f'"capacity":{memory},' in text for text in texts), texts


def main(venv: str, script: str) -> None:
    """Runs all tries."""
    run("useradd", f"--uid={USER}", f"--home-dir={HOME}", "--create-home", "--shell=/bin/bash", "user")
    # Jobs are submitted from there.
    os.chdir(HOME)
    tries = Tries(Cluster(), venv, script)
    tries.ranks_share_nodes()
    tries.jobs_share_hosts()
    tries.a_path_is_long()
    tries.a_job_is_requeued()
    tries.a_node_is_killed()
    tries.jobs_end_otherwise()
    tries.what_a_job_needs()


class Tries:
    """Tries on a cluster, one after the other."""

    def __init__(self, cluster: Cluster, venv: str, script: str) -> None:
        self._cluster, self._venv, self._script = cluster, venv, script

    def _submit(self, name: str, options: str, program: str, with_venv: str | None = None) -> Job:
        venv = self._venv if with_venv is None else with_venv
        return Job(venv, self._script, name, options.split(), program)

    def _nothing_left(self) -> None:
        try:
            await_that("nothing is left", lambda: not self._cluster.leftovers())
        except AssertionError as error:
            raise AssertionError(f"{error}, but {self._cluster.leftovers()}") from error

    def ranks_share_nodes(self) -> None:
        """Ranks of a job are served by one node a host."""
        self._submit("plain", "--nodes=3 --mem=512", RANK).check_ranks(3, 3, 256 << 20)
        self._nothing_left()
        print("a node on each of three hosts, with half of the job's memory")

        self._submit("ranks", "--nodes=2 --ntasks=8 --mem=512", RANK).check_ranks(8, 2)
        print("eight ranks on two hosts share two nodes")

    def jobs_share_hosts(self) -> None:
        """Two jobs at a time have nodes of their own on the same hosts."""
        # Each job ends when it has seen the other at work.
        meet = RANK + 'touch "$RESULTS/there"; until [ -e "$OTHER/there" ]; do sleep 0.1; done\n'
        pair = []
        for name, other in (("one", "other"), ("other", "one")):
            program = f"OTHER={HOME}/{other}\n{meet}"
            pair.append(self._submit(name, "--nodelist=host0,host1 --nodes=2 --mem=512", program))
        for job in pair:
            job.check_ranks(2, 2)
        self._nothing_left()
        print("two jobs on the same hosts at a time")

    def a_path_is_long(self) -> None:
        """The folder for temporary files of a job may have a path in which no socket has room."""
        folder = HOME / "t".ljust(LONG - len(f"{HOME}/"), "t")
        folder.mkdir()
        shutil.chown(folder, USER, USER)
        job = self._submit("long", f"--nodes=2 --mem=512 --export=ALL,TMPDIR={folder}", RANK)
        job.check_ranks(2, 2)
        self._nothing_left()
        assert not list(folder.iterdir())
        print("a TMPDIR of more characters than the path of a socket may have")

    def a_job_is_requeued(self) -> None:
        """A job runs again on hosts with what its first run has left."""
        wait = 'touch "$RESULTS/$SLURM_PROCID"; sleep infinity'
        wait = f'if [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then {wait}; fi\n'
        job = self._submit("requeued", "--nodes=2 --mem=512 --requeue", wait + RANK)
        await_that("the job runs", lambda: all((job.results / str(rank)).exists() for rank in range(2)))
        # The first run of the job leaves everything behind, as after a power failure.
        run("pkill", "-KILL", "--full", "^[a-z/]*bash -c node")
        run("pkill", "-KILL", "plasmon-node")
        left = {path.rsplit("/", 1)[1] for path in self._cluster.leftovers() if "/tmp/" in path}
        assert any(name.startswith(f"plasmon-{job.id}-") for name in left), left
        run("scontrol", "requeue", job.id)
        await_that("the job runs again", job.runs_again)
        job.check_ranks(2, 2)
        self._nothing_left()
        print("a job that was requeued, on hosts with what its first run had left")

    def a_node_is_killed(self) -> None:
        """The death of a node leaves the others and the program alone."""
        # The first node coordinates the others, and is not killed.
        go_on = """
            touch "$RESULTS/$SLURM_PROCID"
            until [ -e "$RESULTS/killed" ]; do sleep 0.1; done
            [ "$SLURM_PROCID" = 1 ] || { echo x | plasmon put - --name "$SLURM_PROCID" >/dev/null; }
            [ "$SLURM_PROCID" = 1 ] || plasmon get "$((2 - SLURM_PROCID))" --timeout 250
        """
        job = self._submit("bereaved", "--nodes=3 --mem=512", go_on)
        await_that("the job runs", lambda: all((job.results / str(rank)).exists() for rank in range(3)))
        self._cluster.kill_node(1)
        (job.results / "killed").touch()
        job.succeed()
        self._nothing_left()
        print("a node that is killed leaves the others and the program alone")

    def jobs_end_otherwise(self) -> None:
        """Jobs that are cancelled or fail leave nothing."""
        wait = 'touch "$RESULTS/$SLURM_PROCID"; sleep infinity'
        job = self._submit("cancelled", "--nodes=2 --mem=512", wait)
        await_that("the job runs", lambda: all((job.results / str(rank)).exists() for rank in range(2)))
        run("scancel", job.id)
        assert job.await_end() == "CANCELLED"
        self._nothing_left()
        print("a cancelled job leaves nothing")

        job = self._submit("failing", "--nodes=2 --mem=512", "exit 3")
        assert job.await_end() == "FAILED", job.log()
        assert job.show("ExitCode") == "3:0", job.log()
        self._nothing_left()
        print("a program's exit code is the job's")

    def what_a_job_needs(self) -> None:
        """A job finds plasmon, or says what is missing."""
        # The hosts have not so much memory.
        job = self._submit("large", "--nodes=2 --export=ALL,PLASMON_MEMORY=9000TiB", "exit 0")
        assert job.await_end() == "FAILED", job.log()
        assert "the nodes did not start" in job.log(), job.log()
        job = self._submit("lost", "--nodes=1", "exit 0", with_venv="")
        assert job.await_end() == "FAILED", job.log()
        assert "there is no plasmon on the PATH" in job.log(), job.log()
        (HOME / ".venv").symlink_to(self._venv)
        self._submit("found", "--nodes=1 --mem=512", RANK, with_venv="").check_ranks(1, 1)
        self._nothing_left()
        print("plasmon is found in .venv; a job without it, or whose nodes cannot start, says so")


if __name__ == "__main__":
    main(*sys.argv[1:])
