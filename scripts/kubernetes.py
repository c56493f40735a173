"""Runs the pods of deploy/kubernetes as a kubelet would, on hosts of its own, with the image.

    unshare --mount --pid --net --fork --kill-child ... python kubernetes.py IMAGE FOLDER

IMAGE is the OCI archive, FOLDER an empty folder to mount memory at. Hosts and pods are network namespaces on
one switch; names are in /etc/hosts. Commands, arguments, environments, users, groups, capabilities, volumes,
probes and hooks are the files'. Limits of memory are not set, and nothing is scheduled. etcd is this
machine's, in place of etcd's image.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

FILES = Path(__file__).parent.parent / "deploy" / "kubernetes"
DEADLINE = 300.0
"""Seconds in which a condition has to come true, on a machine however busy."""
MEMORY = "128MiB"
"""PLASMON_MEMORY of the nodes here, where several hosts are one."""

Document = dict[str, Any]


def await_that(what: str, condition: Callable[[], bool]) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE:.0f} s"
        time.sleep(0.1)


def run(*words: str, check: bool = True) -> None:
    """Runs a command."""
    subprocess.run(words, check=check)


class Image:
    """The image, unpacked."""

    def __init__(self, archive: Path, root: Path) -> None:
        self.root = root
        with tarfile.open(archive) as tar:

            def blob(digest: str) -> io.BufferedReader:
                file = tar.extractfile("blobs/" + digest.replace(":", "/"))
                assert file is not None
                return file  # type: ignore[return-value]

            index = tar.extractfile("index.json")
            assert index is not None
            manifest = json.load(blob(json.load(index)["manifests"][0]["digest"]))
            self.config = json.load(blob(manifest["config"]["digest"]))["config"]
            for layer in manifest["layers"]:
                with tarfile.open(fileobj=blob(layer["digest"])) as files:
                    files.extractall(root, filter="fully_trusted")
        self.environment = dict(entry.split("=", 1) for entry in self.config["Env"])
        users = [line.split(":") for line in (root / "etc" / "passwd").read_text().splitlines()]
        (self.environment["HOME"],) = (user[5] for user in users if user[0] == "plasmon")


class World:
    """The switch with its hosts, and what they share: names, the secret, the documents."""

    def __init__(self, work: Path, image: Image) -> None:
        self.work = work
        self.image = image
        self.names: dict[str, str] = {}
        self.addresses = 1
        self.documents: dict[tuple[str, str], Document] = {}
        self.secret = subprocess.run(
            [
                "chroot",
                str(image.root),
                "sh",
                "-c",
                "plasmon secret /tmp/secret && cat /tmp/secret && rm /tmp/secret",
            ],
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        self.pods: list[Pod] = []
        Path("/run/netns").mkdir(exist_ok=True)
        run("mount", "-t", "tmpfs", "netns", "/run/netns")
        run("ip", "link", "add", "switch", "type", "bridge")
        run("ip", "address", "add", "10.8.0.1/16", "dev", "switch")
        run("ip", "link", "set", "switch", "up")
        run("ip", "link", "set", "lo", "up")

    def apply(self, name: str) -> None:
        """Takes the documents of a file, each of which has to be right by the schemas of Kubernetes."""
        for document in yaml.safe_load_all((FILES / name).read_text()):
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
            self.documents[document["kind"], document["metadata"]["name"]] = document

    def network(self) -> tuple[str, str]:
        """Makes a network namespace. Returns its name and its address."""
        self.addresses += 1
        name, address = f"n{self.addresses}", f"10.8.0.{self.addresses}"
        run("ip", "netns", "add", name)
        run(
            "ip",
            "link",
            "add",
            f"cable{self.addresses}",
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            name,
        )
        run("ip", "link", "set", f"cable{self.addresses}", "master", "switch", "up")
        run("ip", "-n", name, "address", "add", f"{address}/16", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        return name, address

    def resolve(self, names: dict[str, str]) -> None:
        """Adds names of pods, which all pods know at once."""
        self.names.update(names)
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in self.names.items()), ""]
        (self.work / "hosts").write_text("\n".join(lines))


class Host:
    """A host: a network, and folders."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.network, self.address = world.network()
        self.folder = world.work / name
        self.folder.mkdir()


class Pod:
    """A pod of a template, with its one container."""

    def __init__(self, world: World, host: Host, template: Document, name: str, **more: Any) -> None:
        self.world, self.host, self.name = world, host, name
        self.spec: Document = template["spec"]
        self.container: Document = self.spec["containers"][0]
        self.claims: dict[str, Path] = more.get("claims", {})
        self.annotations: dict[str, str] = more.get("annotations", {})
        own = not self.spec.get("hostNetwork", False)
        self.network, self.address = world.network() if own else (host.network, host.address)
        if service := more.get("service"):
            world.resolve({f"{name}.{service}.plasmon.svc.cluster.local": self.address})
            world.resolve({f"{service}.plasmon.svc.cluster.local": self.address})
        self.log = world.work / f"{name}.log"
        for setup in self.spec.get("initContainers", []):
            assert self.start(setup).wait() == 0, self.log.read_text()
        self.process = self.start(self.container)
        world.pods.append(self)

    def field(self, path: str) -> str:
        """Value of a field that an environment names."""
        known = {"metadata.name": self.name, "status.podIP": self.address, "status.hostIP": self.host.address}
        return known[path]

    def environment(self, container: Document) -> dict[str, str]:
        """Environment of a container."""
        etcd = container["image"].startswith("etcd")
        values = {"PATH": os.environ["PATH"]} if etcd else dict(self.world.image.environment)
        for source in container.get("envFrom", []):
            values |= self.world.documents["ConfigMap", source["configMapRef"]["name"]]["data"]
        for entry in container.get("env", []):
            value = entry.get("value")
            values[entry["name"]] = (
                self.field(entry["valueFrom"]["fieldRef"]["fieldPath"]) if value is None else value
            )
        if "PLASMON_MEMORY" in values:
            values["PLASMON_MEMORY"] = MEMORY
        return values | self.annotations

    def command(self, container: Document, environment: dict[str, str]) -> list[str]:
        """Command of a container, with the image's where it has none."""
        command = container.get("command") or self.world.image.config["Entrypoint"]
        words = [*command, *container.get("args", [])]
        return [re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word) for word in words]

    def mounts(self, container: Document) -> Iterator[tuple[Path, str, bool]]:
        """Folders from outside, each with its path in the container and whether it is read-only."""
        group = self.spec["securityContext"].get("fsGroup")
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            volume = volumes.get(mount["name"], {})
            if "hostPath" in volume:
                path = self.host.folder / volume["hostPath"]["path"].strip("/")
                if volume["hostPath"]["type"] == "DirectoryOrCreate":
                    path.mkdir(mode=0o755, parents=True, exist_ok=True)
                assert path.is_dir(), path
            elif "secret" in volume:
                path = self.world.work / f"{self.name}-secret"
                path.mkdir(exist_ok=True)
                (path / "secret").write_bytes(self.world.secret)
                (path / "secret").chmod(volume["secret"]["defaultMode"])
                shutil.chown(path / "secret", 0, group)
            else:
                path = self.claims[mount["name"]]
                shutil.chown(path, 0, group)
                path.chmod(0o2775)
            yield path, mount["mountPath"], mount.get("readOnly", False)

    def identity(self, container: Document) -> list[str]:
        """Command that takes on the user and the rights of a container."""
        context = self.spec["securityContext"] | container.get("securityContext", {})
        user = context["runAsUser"]
        group = context["runAsGroup"]
        assert not context.get("runAsNonRoot") or user != 0
        groups = [
            *context.get("supplementalGroups", []),
            *([context["fsGroup"]] if "fsGroup" in context else []),
        ]
        words = ["setpriv", f"--reuid={user}", f"--regid={group}"]
        words.append("--groups=" + ",".join(map(str, groups)) if groups else "--clear-groups")
        if context.get("allowPrivilegeEscalation") is False:
            words.append("--no-new-privs")
        if "ALL" in context.get("capabilities", {}).get("drop", []):
            words += ["--bounding-set=-all", "--inh-caps=-all"]
        return words

    def start(self, container: Document) -> subprocess.Popen[bytes]:
        """Starts a container."""
        environment = self.environment(container)
        root = self.world.work / f"{self.name}-{container['name']}"
        root.mkdir(exist_ok=True)
        etcd = container["image"].startswith("etcd")
        read_only = container.get("securityContext", {}).get("readOnlyRootFilesystem", False)
        lower = "/" if etcd else self.world.image.root
        script = [
            f"mount -t tmpfs written {root}; mkdir {root}/upper {root}/work {root}/root; r={root}/root",
            f"mount -t overlay -o lowerdir={lower},upperdir={root}/upper,workdir={root}/work root $r",
        ]
        for path, target, sealed in self.mounts(container):
            script.append(f"mkdir -p $r{target}; mount --bind {path} $r{target}")
            if sealed:
                script.append(f"mount -o remount,bind,ro $r{target}")
        script += [
            "touch $r/etc/hosts",
            f"mount --bind {self.world.work}/hosts $r/etc/hosts",
            "mount -t proc proc $r/proc",
            "mount --rbind /dev $r/dev",
            "mount -t tmpfs shm $r/dev/shm",
            *(["mount -o remount,bind,ro $r"] if read_only else []),
            'exec chroot $r "$@"',
        ]
        words = ["ip", "netns", "exec", self.network, "unshare", "--mount", "--ipc", "--uts"]
        if not self.spec.get("hostPID"):
            words += ["--pid", "--fork", "--kill-child"]
        inner = [
            *self.identity(container),
            "env",
            "-i",
            *(f"{name}={value}" for name, value in environment.items()),
        ]
        words += ["sh", "-euc", "\n".join(script), "sh", *inner, *self.command(container, environment)]
        with self.log.open("ab") as log:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def inside(self) -> int:
        """Number of the container's first process, as this process sees it."""
        if self.spec.get("hostPID"):
            return self.process.pid
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def execute(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Runs a command in the container, as the container's user."""
        pid = self.inside()
        values = [f"{name}={value}" for name, value in self.environment(self.container).items()]
        words = [
            "nsenter",
            f"--target={pid}",
            "--mount",
            "--net",
            "--pid",
            "--uts",
            "--ipc",
            "--root",
            "--wd",
        ]
        words += [*self.identity(self.container), "env", "-i", *values, *command]
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def probe(self, name: str) -> bool:
        """Whether a probe succeeds."""
        get = self.container[name]["httpGet"]
        port = next(port["containerPort"] for port in self.container["ports"] if port["name"] == get["port"])
        url = f"http://{self.address}:{port}{get['path']}"
        self.printed()
        seconds = self.container[name].get("timeoutSeconds", 1)
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=seconds) as answer:
            return bool(answer.status == 200)
        return False

    def printed(self) -> str:
        """Text that a running pod has printed."""
        text = self.log.read_text()
        assert self.process.poll() is None, f"{self.name} ended:\n{text}"
        return text

    def await_ready(self) -> None:
        """Waits until the pod is ready, and sees that it lives."""
        try:
            await_that(f"{self.name} is ready", lambda: self.probe("readinessProbe"))
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log.read_text()}") from error
        if "livenessProbe" in self.container:
            await_that(f"{self.name} is alive", lambda: self.probe("livenessProbe"))

    def stop(self) -> str:
        """Ends the pod as its deletion does. Returns what its hook printed."""
        deadline = time.monotonic() + self.spec.get("terminationGracePeriodSeconds", 30)
        said = ""
        if hook := self.container.get("lifecycle", {}).get("preStop"):
            said = self.execute(hook["exec"]["command"]).stdout
        with contextlib.suppress(ProcessLookupError, IndexError, FileNotFoundError):
            os.kill(self.inside(), 15)
        self.process.wait(max(deadline - time.monotonic(), 0))
        self.world.pods.remove(self)
        return said

    def kill(self) -> None:
        """Ends the pod as the loss of its host does."""
        with contextlib.suppress(ProcessLookupError, IndexError, FileNotFoundError):
            os.kill(self.inside(), 9)
        self.process.wait()
        self.world.pods.remove(self)


def node(world: World, host: Host, count: int = 0) -> Pod:
    """Starts the pod of the DaemonSet on a host."""
    template = world.documents["DaemonSet", "plasmon"]["spec"]["template"]
    return Pod(world, host, template, f"plasmon-{host.name}-{count}")


def members(pod: Pod, count: int) -> None:
    """Waits until a node has this many members in its cluster."""
    expected = f"{count} nodes, epoch"
    await_that(expected, lambda: pod.execute(["plasmon", "status", "--cluster"]).stdout.startswith(expected))


def example(world: World, hosts: list[Host]) -> None:
    """Runs the example's pods."""
    template = world.documents["Job", "plasmon-example"]["spec"]["template"]
    pods = []
    for index, host in enumerate(hosts):
        annotations = {"JOB_COMPLETION_INDEX": str(index)}
        name = f"plasmon-example-{index}-{len(world.names)}-{world.addresses}"
        pods.append(Pod(world, host, template, name, annotations=annotations))
    for index, pod in enumerate(pods):
        assert pod.process.wait(DEADLINE) == 0, pod.log.read_text()
        assert f"got: from pod {1 - index} of" in pod.log.read_text(), pod.log.read_text()
        world.pods.remove(pod)


def drain(world: World, hosts: list[Host]) -> None:
    """Ends the node of the first host, whose object another one keeps afterwards, and starts it again."""
    first, second = (next(pod for pod in world.pods if pod.host is host) for host in hosts[:2])
    put = first.execute(["sh", "-c", "echo kept | plasmon put - --name kept"])
    assert put.returncode == 0, put.stdout
    said = first.stop()
    assert "has left; other nodes keep" in said, said
    assert first.process.returncode == 0, first.log.read_text()
    got = second.execute(["plasmon", "get", "kept", "--timeout", "60"])
    assert got.stdout.endswith("kept\n"), got.stdout
    node(world, hosts[0], 1).await_ready()


def plain(world: World) -> None:
    """Runs a node as who tries the image does, without settings."""
    user, group = map(int, world.image.config["User"].split(":"))
    container = {"name": "plain", "image": "plasmon", "args": ["serve", "--memory=64MiB"]}
    spec = {"securityContext": {"runAsUser": user, "runAsGroup": group}, "containers": [container]}
    pod = Pod(world, Host(world, "plain"), {"spec": spec}, "plain-0")
    await_that("the node serves", lambda: " serves at " in pod.printed())
    put = pod.execute(["sh", "-c", "echo kept | plasmon put - --name kept"])
    assert put.returncode == 0, put.stdout
    assert pod.execute(["plasmon", "get", "kept"]).stdout == "kept\n"
    pod.stop()
    assert pod.process.returncode == 0, pod.log.read_text()
    print("image: a node serves without settings")


def with_etcd(world: World) -> None:
    """Three etcd servers; any node and one server may die."""
    world.apply("coordinator-etcd.yaml")
    world.apply("plasmon.yaml")
    world.apply("example.yaml")
    hosts = [Host(world, name) for name in ("a", "b", "c")]
    servers = []
    stateful = world.documents["StatefulSet", "plasmon-etcd"]["spec"]
    for number, host in zip(range(stateful["replicas"]), hosts, strict=True):
        claim = host.folder / "claim"
        claim.mkdir()
        name = f"plasmon-etcd-{number}"
        more = {"service": stateful["serviceName"], "claims": {"data": claim}}
        servers.append(Pod(world, host, stateful["template"], name, **more))
    for server in servers:
        server.await_ready()
    nodes = [node(world, host) for host in hosts]
    for pod in nodes:
        pod.await_ready()
    members(nodes[0], 3)
    example(world, hosts[:2])
    print("etcd: probes succeed, and the example's pods get each other's objects")
    for server in servers:
        world.pods.remove(server)
    drain(world, hosts)
    print("etcd: a node that ends is drained first, and its host's next pod joins")
    world.pods += servers
    servers[0].kill()
    nodes[2].kill()
    members(nodes[1], 2)
    node(world, hosts[2], 1).await_ready()
    members(nodes[1], 3)
    print("etcd: a server and a node were killed, and the node's next pod joins")


def with_embedded(world: World) -> None:
    """A coordinator in a pod of its own."""
    world.apply("coordinator-embedded.yaml")
    world.apply("plasmon.yaml")
    world.apply("example.yaml")
    hosts = [Host(world, name) for name in ("d", "e")]
    stateful = world.documents["StatefulSet", "plasmon-coordinator"]["spec"]

    def coordinator(host: Host) -> Pod:
        pod = Pod(world, host, stateful["template"], "plasmon-coordinator-0", service=stateful["serviceName"])
        world.pods.remove(pod)
        pod.await_ready()
        return pod

    first = coordinator(hosts[0])
    nodes = [node(world, host) for host in hosts]
    for pod in nodes:
        pod.await_ready()
    members(nodes[0], 3)
    example(world, hosts)
    drain(world, hosts)
    print("embedded: the example's pods get each other's objects, and a node that ends is drained first")
    world.pods.append(first)
    first.stop()
    coordinator(hosts[1])
    members(nodes[1], 3)
    print("embedded: a new pod of the coordinator, at another address, has its nodes again")


def main(archive: str, folder: str) -> None:
    """Runs both coordinators with nodes and the example."""
    work = Path(folder)
    run("mount", "-t", "tmpfs", "-o", "size=4g", "try", str(work))
    image = Image(Path(archive), work / "image")
    world = World(work, image)
    world.resolve({})
    for variant in (plain, with_etcd, with_embedded):
        world.documents.clear()
        variant(world)
        for pod in list(world.pods):
            pod.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
