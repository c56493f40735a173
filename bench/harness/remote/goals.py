"""Goals of Plasmon between hosts, compared with the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness import page
from harness.goals import hardly_slower
from harness.page import Goal
from harness.remote import making
from harness.remote.contenders import PLACES
from harness.remote.figures import Fetches

AUTO, PYTHON, FOUR = "plasmon-auto", "plasmon-python", "plasmon-four-python"
SINGLE = ("plasmon-socket", "plasmon-send", "plasmon-read", "plasmon-read-register")
KIB, MIB = 1 << 10, 1 << 20
_HELD_AGAINST_THE_FABRIC = (KIB, MIB, 4 * MIB, 64 * MIB)
_HELD_AGAINST_TCP = (4 * MIB, 64 * MIB)
_OWN_US = 10.0
"""Time in microseconds that Plasmon may add to a small warm get."""
_NEAR_REDIS = (KIB, 16 * KIB)
_AHEAD_OF_REDIS_FROM = 64 * KIB
_LARGE = (64 * MIB, 256 * MIB)


class Found:
    """Rows by the cases that all contenders have."""

    def __init__(self, rows: Iterable[Fetches]) -> None:
        self.batches = [row for row in rows if row.mode == "remote" and row.batch > 1]
        """Rows of calls for many objects."""
        self.rows = [row for row in rows if row.mode == "remote" and row.batch == 1]
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
        _getters_together(found),
        *(_over_the_fabric(found, size) for size in _HELD_AGAINST_THE_FABRIC),
        _own_part(found),
        *(_near_redis(found, peer, size) for peer in (PYTHON, FOUR) for size in _NEAR_REDIS),
        *(_ahead_of_redis(found, peer) for peer in (PYTHON, FOUR)),
        *(_batches(found, peer) for peer in (PYTHON, FOUR)),
        *(_first_get(rows, size) for size in (KIB, 4 * MIB)),
        *(_warm_large(found, size) for size in _LARGE),
        *(_processor(found, peer, size) for size in _LARGE for peer in ("redis", "mooncake")),
        *(_against_tcp(found, size) for size in _HELD_AGAINST_TCP),
        _ahead(found, "the socket protocol", "plasmon-socket", AUTO, 1.0),
        _ahead(found, "Ray, from Python", "ray", PYTHON, 3.0),
        _ahead(found, "Mooncake, from Python", "mooncake", PYTHON, 1.0),
        _ahead(found, "Mooncake, from Python, four nodes", "mooncake", FOUR, 1.0),
        *(_beside(rows, memory) for memory in ("cold", "warm")),
        *_made(rows),
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


def _getters_together(found: Found) -> Goal | None:
    size, getters = min(found.sizes, default=0), max(found.getters, default=1)
    ours = found.cold(size, getters)
    others = list(filter(None, (found.find(peer, size, getters, "cold") for peer in SINGLE)))
    if getters == 1 or ours is None or not others:
        return None
    best = max(others, key=lambda row: row.ops_per_s)
    part = ours.ops_per_s / best.ops_per_s
    what = f"{getters} getters of {page.size_of(size)}: rate of `auto` against the best single protocol"
    measured = f"{part:.2f} ({_shown(ours)} / {best.peer.removeprefix('plasmon-')} {_shown(best)})"
    return Goal(what, "≥ 0.95", measured, part >= 0.95)


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


def own_part(found: Found, size: int) -> float | None:
    """Time in microseconds that Plasmon adds to a warm get, from Rust, over its two hops between sleepers."""
    hop = found.find("hop", size, 1)
    read = found.find("fabric", size, 1, PLACES, "read_asleep_places")
    warm = found.find(AUTO, size, 1, "warm")
    if hop is None or read is None or warm is None:
        return None
    return warm.median_us - hop.median_us - read.median_us


def _own_part(found: Found) -> Goal | None:
    own = own_part(found, KIB)
    if own is None:
        return None
    what = "1 KiB with a warm location, less a round trip to the node and libfabric's read, all asleep"
    return Goal(what, f"≤ {_OWN_US:g} µs", f"{own:.3g} µs", own <= _OWN_US)


def _python(peer: str) -> str:
    return "Python" if peer == PYTHON else "Python, four nodes"


def _ratio(what: str, most: float, ours: Fetches | None, theirs: Fetches | None) -> Goal | None:
    """The goal that a call takes at most so many times as long as another one."""
    if ours is None or theirs is None:
        return None
    ratio = ours.median_us / theirs.median_us
    measured = f"{ratio:.2f} ({ours.median_us:,.4g} µs / {theirs.median_us:,.4g} µs)"
    return Goal(what, f"≤ {most:g}", measured, ratio <= most)


def _near_redis(found: Found, peer: str, size: int) -> Goal | None:
    what = f"{_python(peer)}: {page.size_of(size)}, cold, against GET of redis-py"
    return _ratio(what, 1.1, found.find(peer, size, 1, "cold"), found.find("redis", size))


def _ahead_of_redis(found: Found, peer: str) -> Goal | None:
    """Goal against Redis at the sizes where two wakes more no longer decide."""
    sizes = [size for size in found.sizes if size >= _AHEAD_OF_REDIS_FROM]
    pairs = [(size, found.find(peer, size, 1, "cold"), found.find("redis", size)) for size in sizes]
    ratios = [
        (ours.median_us / theirs.median_us, size, ours, theirs)
        for size, ours, theirs in pairs
        if ours and theirs
    ]
    if not ratios:
        return None
    ratio, size, ours, theirs = max(ratios, key=lambda one: one[0])
    what = f"{_python(peer)}: {page.size_of(_AHEAD_OF_REDIS_FROM)} and more, cold, against GET of redis-py"
    measured = f"{ratio:.2f} ({page.size_of(size)}: {ours.median_us:,.4g} µs / {theirs.median_us:,.4g} µs)"
    return Goal(what, "< 1", measured, ratio < 1)


def _batches(found: Found, peer: str) -> Goal | None:
    rows = {row.peer: row for row in found.batches}
    ours, theirs = rows.get(peer), rows.get("redis")
    if ours is None or theirs is None:
        return None
    ratio = ours.ops_per_s / theirs.ops_per_s
    what = f"{_python(peer)}: {ours.batch} x {page.size_of(ours.size)} in a call, against MGET of redis-py"
    return Goal(
        what, "≥ 0.5", f"{ratio:.2f} ({ours.ops_per_s:,.4g}/s / {theirs.ops_per_s:,.4g}/s)", ratio >= 0.5
    )


def _first_get(rows: Iterable[Fetches], size: int) -> Goal | None:
    by = {row.operation: row for row in rows if (row.mode, row.size) == ("connection", size)}
    what = f"First get of {page.size_of(size)} in a new cluster, against the next ones"
    return _ratio(what, 3.0, by.get("first"), by.get("reused"))


def _warm_large(found: Found, size: int) -> Goal | None:
    what = f"{page.size_of(size)} with a warm location, against a cold one"
    return _ratio(what, 1.05, found.find(AUTO, size, 1, "warm"), found.cold(size))


def _processor(found: Found, peer: str, size: int) -> Goal | None:
    """Goal that neither host needs more processor time for the same bytes than with another store."""
    ours, theirs = found.find(PYTHON, size, 1, "cold"), found.find(peer, size)
    if ours is None or theirs is None:
        return None
    sides = [
        (ours.holder_cpu_s_per_gib, theirs.holder_cpu_s_per_gib),
        (ours.getter_cpu_s_per_gib, theirs.getter_cpu_s_per_gib),
    ]
    known = [(mine, other) for mine, other in sides if mine is not None and other is not None]
    measured = " and ".join(f"{mine:.2g} / {other:.2g}" for mine, other in known)
    what = f"{page.size_of(size)}, processor seconds a GiB of holder and getter, against {peer.title()}"
    return Goal(what, "no more", measured, all(mine <= other for mine, other in known))


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


def _made(rows: Iterable[Fetches]) -> list[Goal | None]:
    """Goals of creations, replacements and deletions, against puts on the same cluster."""
    by = {(row.operation, row.memory, row.size): row for row in rows if row.mode == making.MAKING}
    goals = [
        _ratio(
            f"Python: `create`, copy and `seal` of {page.size_of(size)}, {cluster}, against `put`",
            most,
            by.get((making.CREATE, cluster, size)),
            by.get((making.PUT, cluster, size)),
        )
        for cluster in (making.ALONE, making.PAIR)
        for size, most in ((KIB, 2.0), (4 * MIB, 1.1))
    ]
    goals += [
        _replaced(*(by.get((what, cluster, KIB)) for what in (making.REPLACE, making.DELETE, making.PUT)))
        for cluster in (making.ALONE, making.PAIR)
    ]
    small = by.get((making.PUT, making.ALONE, KIB))
    sizes = sorted({size for operation, _, size in by if operation == making.DELETE})
    for size in sizes:
        deletion = by.get((making.DELETE, making.ALONE, size))
        what = f"Python: `delete` of {page.size_of(size)}, alone, against `put` of 1 KiB"
        goals.append(_ratio(what, 2.0, deletion, small))
    deletions = [by[key] for size in sizes if (key := (making.DELETE, making.PAIR, size)) in by]
    if deletions:
        ends = [
            f"{row.median_us:,.3g} µs ({page.size_of(row.size)})" for row in (deletions[0], deletions[-1])
        ]
        goals.append(Goal("Python: `delete` on a node of two, by size", "flat", " → ".join(ends), None))
    return goals


def _replaced(ours: Fetches | None, deletion: Fetches | None, put: Fetches | None) -> Goal | None:
    """The goal that replacing an object takes at most so long as to delete it and to put another one."""
    if ours is None or deletion is None or put is None:
        return None
    both = deletion.median_us + put.median_us
    return Goal(
        f"Python: `put(replace=True)` of {page.size_of(ours.size)}, {ours.memory}, against `delete`, `put`",
        "≤ 1.5",
        f"{ours.median_us / both:.2f} ({ours.median_us:,.4g} µs / {both:,.4g} µs)",
        ours.median_us <= 1.5 * both,
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
