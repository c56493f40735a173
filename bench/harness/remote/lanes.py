"""Effect of `--lanes` where the network gives one connection less than all of its bandwidth.

Two hosts are on a network of which the rate of each connection is limited, by a class of its own at the
sender (`harness.network`). Clusters whose nodes make more or fewer connections for reads take turns at
getting large objects that only the other node has.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from harness.network import Network
from harness.processes import PeerError
from harness.progress import Progress
from harness.remote.conditions import FAILURES, Kept
from harness.remote.contenders import GETTER, HOLDER, Plasmon
from harness.remote.figures import Fetches
from harness.remote.run import moved, put

MIB = 1 << 20
LANES = "lanes"
"""Mode of the rows. Their operations are the numbers of lanes."""


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    flow_gbit: float = 1
    """Rate of a connection in Gbit/s, in each direction."""
    lanes: Sequence[int] = (1, 2, 4, 8)
    size: int = 64 * MIB
    count: int = 3
    """Number of objects that a cluster gets in a turn."""
    turns: int = 3


FULL = Plan()
QUICK = Plan(lanes=(1, 4), size=16 * MIB, count=2, turns=1)


def measure(folder: Path, plan: Plan, peer: str = "plasmon-auto") -> tuple[list[Fetches], list[str]]:
    """Measures everything. Returns the rows, and the failures."""
    say, kept = Progress(), Kept(peer)
    try:
        with ExitStack() as stack:
            network = stack.enter_context(Network(2, flow_gbit=plan.flow_gbit))
            if network.why_not is not None:
                return [], [f"lanes: no network limits its connections: {network.why_not}"]
            clusters = {lanes: Plasmon("auto", ["--lanes", str(lanes)]) for lanes in plan.lanes}
            for lanes, cluster in clusters.items():
                stack.callback(cluster.close)
                memory = 2 * plan.count * plan.size
                cluster.start(network.hosts, folder / f"lanes-{lanes}", memory)
            for turn in range(-1, plan.turns):
                for lanes, cluster in clusters.items():
                    say(f"{lanes} lanes: turn {turn + 1} of {plan.turns}")
                    _turn(cluster, plan, kept if turn >= 0 else None, lanes)
    except FAILURES as failure:
        say(f"Plasmon failed with several lanes: {failure}\n")
        return kept.rows(), [f"lanes: {failure}"]
    finally:
        say.end()
    return kept.rows(), []


def _turn(cluster: Plasmon, plan: Plan, kept: Kept | None, lanes: int) -> None:
    """Gets objects that only the holder has, and deletes them."""
    holder, getter, numbers = cluster.client(HOLDER, 0), cluster.client(GETTER, 0), (0, plan.count)
    put(holder, plan.size, 0, numbers)
    before = cluster.fetched()
    ask = {"operation": "fetch", "size": plan.size, "owner": 0, "numbers": numbers}
    ns: list[int] = getter.ask("measure", **ask)["ns"]
    by = moved(before, cluster.fetched(), plan.count)
    if len(ns) != plan.count:
        raise PeerError(f"{len(ns)} gets, but there are {plan.count} objects")
    if kept:
        kept.add(LANES, str(lanes), "cold", plan.size, ns, by)
    holder.ask("discard", owner=0, numbers=numbers)
