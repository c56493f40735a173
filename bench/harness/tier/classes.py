"""What classes of work are worth on a link of 1 Gbit/s, with each way of keeping them apart.

`python -m harness.tier.classes` prints a table. For each way two nodes are started anew, and `plasmon-bench
classes` measures beside one of them: what high and low reads of a region of the other node get alone and
together, how soon low work has its rate again, and how long small calls of class high take.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import paths
from harness.network import Network
from harness.remote.contenders import GETTER, HOLDER, Plasmon

LINK_GBIT = 1.0
MODES = ("off", "separate", "priority")
_MEMORY = 512 << 20
_PHASES = 10
"""More phases than a measurement has."""
_START = 60.0


def measure(mode: str, seconds: float, folder: Path) -> dict[str, Any]:
    """Measures one way of keeping classes apart, with phases of so many seconds."""
    cluster = Plasmon("auto", ["--qos", mode])
    with Network(2, link_gbit=LINK_GBIT) as network:
        if network.why_not is not None:
            raise SystemExit(f"no link can be limited: {network.why_not}")
        try:
            cluster.start(network.hosts, folder / mode, _MEMORY)
            here, home = cluster.nodes[GETTER], cluster.nodes[HOLDER]
            worker = [paths.rust_worker(), "classes", here.socket, home.socket, str(seconds)]
            command = here.host.command(worker)
            patience = _PHASES * seconds + _START
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=patience)
        finally:
            cluster.close()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def row(mode: str, found: dict[str, Any]) -> str:
    """Line of the table."""
    share = found["high"] / found["high_alone"]
    together = (found["high"] + found["low"]) / max(found["high_alone"], found["low_alone"])
    after = found["whole_after_ms"]
    (idle, idle_late), (busy, busy_late) = found["calls_idle_us"], found["calls_us"]
    cells = [
        mode,
        f"{found['high_alone'] / 1e6:.1f}",
        f"{found['high'] / 1e6:.1f} ({share:.2f})",
        f"{found['low'] / 1e6:.1f}",
        f"{together:.2f}",
        "never" if after is None else f"{after:.0f}",
        f"{idle:.0f} ({idle_late:.0f})",
        f"{busy:.0f} ({busy_late:.0f})",
        f"{busy_late / idle_late:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a phase")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    given = parser.parse_args()
    heads = ["--qos", "high alone, MB/s", "high beside low", "low beside high", "sum / alone"]
    heads += ["low whole after, ms", "small calls idle, us: p50 (p99)", "beside low", "p99 / idle"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        for mode in given.modes:
            found = measure(mode, given.seconds, Path(name))
            print(row(mode, found))
            print(json.dumps({"qos": mode, **found}), file=sys.stderr)


if __name__ == "__main__":
    main()
