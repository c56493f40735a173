"""Goals of Plasmon between hosts, compared with the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness import page
from harness.goals import hardly_slower
from harness.page import Goal
from harness.remote.contenders import PLACES
from harness.remote.figures import Fetches

AUTO, PYTHON = "plasmon-auto", "plasmon-python"
SINGLE = ("plasmon-socket", "plasmon-send", "plasmon-read", "plasmon-read-register")
KIB, MIB = 1 << 10, 1 << 20
_HELD_AGAINST_THE_FABRIC = (KIB, MIB, 4 * MIB, 64 * MIB)
_HELD_AGAINST_TCP = (4 * MIB, 64 * MIB)


class Found:
    """Rows by the cases that all contenders have."""

    def __init__(self, rows: Iterable[Fetches]) -> None:
        self.rows = [row for row in rows if row.mode == "remote"]
        self.sizes = sorted({row.size for row in self.rows})
        self.getters = sorted({row.clients for row in self.rows})

    def find(
        self, peer: str, size: int, getters: int = 1, memory: str = "", operation: str = ""
    ) -> Fetches | None:
        """Row of a contender; of several ways to do the same, the fastest."""
        rows = [
            row
            for row in self.rows
            if (row.peer, row.size, row.clients) == (peer, size, getters)
            and row.memory == (memory or row.memory)
            and row.operation == (operation or row.operation)
        ]
        return min(rows, key=lambda row: row.median_us, default=None)

    def cold(self, size: int, getters: int = 1) -> Fetches | None:
        """Row of Plasmon's default for an object whose location is unknown."""
        return self.find(AUTO, size, getters, "cold")


Pair = tuple[Fetches | None, Fetches | None]


def check(rows: Iterable[Fetches]) -> list[Goal]:
    """All goals for which there are figures."""
    rows = list(rows)
    found = Found(rows)
    goals = [
        _never_behind(found),
        *(_over_the_fabric(found, size) for size in _HELD_AGAINST_THE_FABRIC),
        *(_below_redis(found, peer, label) for peer, label in ((PYTHON, "Python"), (AUTO, "Rust"))),
        *(_against_tcp(found, size) for size in _HELD_AGAINST_TCP),
        _ahead(found, "the socket protocol", "plasmon-socket", AUTO, 1.0),
        _ahead(found, "Ray, from Python", "ray", PYTHON, 3.0),
        _ahead(found, "Mooncake, from Python", "mooncake", PYTHON, 1.0),
        *(_beside(rows, memory) for memory in ("cold", "warm")),
    ]
    return [goal for goal in goals if goal is not None]


def _never_behind(found: Found) -> Goal | None:
    def best(size: int, getters: int) -> Fetches | None:
        rows = [found.find(peer, size, getters, "cold") for peer in SINGLE]
        return min(filter(None, rows), key=_cost, default=None)

    worst = _worst(found, lambda size, getters: (found.cold(size, getters), best(size, getters)))
    if worst is None:
        return None
    ratio, where, (ours, theirs) = worst
    measured = (
        f"{ratio:.2f} ({where}: {theirs.peer.removeprefix('plasmon-')} {_shown(theirs)}, auto {_shown(ours)})"
    )
    return Goal("`auto` against the best single protocol, any size", "≤ 1.10", measured, ratio <= 1.10)


def _over_the_fabric(found: Found, size: int) -> Goal | None:
    ours, bare = found.find(AUTO, size, 1, "warm"), found.find("fabric", size, 1, PLACES)
    if ours is None or bare is None:
        return None
    limit = bare.median_us * 1.1 + 10
    return Goal(
        f"{page.size_of(size)} with a warm location, over libfabric's own read",
        f"≤ 1.1 · {bare.median_us:,.4g} + 10 = {limit:,.4g} µs",
        f"{ours.median_us:,.4g} µs",
        ours.median_us <= limit,
    )


def _below_redis(found: Found, peer: str, language: str) -> Goal | None:
    ours, theirs = found.find(peer, KIB, 1, "cold"), found.find("redis", KIB)
    if ours is None or theirs is None:
        return None
    what = f"{language}: 1 KiB with a cold location, against GET of redis-py"
    return Goal(
        what, f"< {theirs.median_us:.3g} µs", f"{ours.median_us:.3g} µs", ours.median_us < theirs.median_us
    )


def _against_tcp(found: Found, size: int) -> Goal | None:
    what = f"{page.size_of(size)} with a cold location, against raw TCP"
    return hardly_slower(what, found.cold(size), found.find("tcp", size, 1, PLACES))


def _ahead(found: Found, what: str, peer: str, own: str, times: float) -> Goal | None:
    worst = _worst(
        found, lambda size, getters: (found.find(own, size, getters, "cold"), found.find(peer, size, getters))
    )
    if worst is None:
        return None
    ratio, where, (ours, theirs) = worst
    ahead = 1 / ratio
    measured = f"{ahead:.2g} times ({where}: {_shown(theirs)}, here {_shown(ours)})"
    wanted = "ahead" if times == 1 else f"≥ {times:g} times"
    reached = ahead >= times if times > 1 else ahead > 1
    return Goal(f"Ahead of {what}, at every size", wanted, measured, reached)


def _beside(rows: Iterable[Fetches], memory: str) -> Goal | None:
    """Goal of small gets while a large object is fetched."""
    by = {row.operation: row for row in rows if (row.mode, row.memory) == ("beside", memory)}
    if not {"idle", "busy", "large"} <= set(by):
        return None
    idle, busy = by["idle"].median_us, by["busy"].median_us
    return Goal(
        f"{page.size_of(by['busy'].size)}, {memory}, beside {page.size_of(by['large'].size)}, against alone",
        "≤ 10",
        f"{busy / idle:.2g} ({busy:,.4g} µs / {idle:,.4g} µs)",
        busy <= 10 * idle,
    )


def _worst(
    found: Found, pair: Callable[[int, int], Pair]
) -> tuple[float, str, tuple[Fetches, Fetches]] | None:
    """Largest factor by which the first of a pair is slower than the second, with its case and the pair."""
    worst = None
    for size in found.sizes:
        for getters in found.getters:
            ours, theirs = pair(size, getters)
            if ours is None or theirs is None:
                continue
            ratio = _cost(ours) / _cost(theirs)
            if worst is None or ratio > worst[0]:
                where = f"{page.size_of(size)}, {getters} getter{'s' * (getters > 1)}"
                worst = ratio, where, (ours, theirs)
    return worst


def _cost(row: Fetches) -> float:
    """Median time for one getter; for several, the time that all together need for one object."""
    return row.median_us if row.clients == 1 else 1e6 / row.ops_per_s


def _shown(row: Fetches) -> str:
    return f"{row.median_us:,.4g} µs" if row.clients == 1 else f"{row.ops_per_s:,.4g}/s"
