"""Effect of classes of work on a link of 1 Gbit/s, with each way of keeping them apart.

For each way two nodes are started anew, and `plasmon-bench classes` measures beside one of them: what high
and low reads of a region of the other node get alone and together, how soon low work has its rate again, how
long small calls of class high take, and what a log of class high has beside low writes. The hosts are others
than those of the rest, with slower links.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import page, paths
from harness.figures import rounded
from harness.network import Network
from harness.page import Goal
from harness.processes import PeerError
from harness.progress import Progress
from harness.remote.contenders import GETTER, HOLDER, Plasmon
from harness.series import Series

LINK_GBIT = 1.0
OFF, PRIORITY = "off", "priority"
MODES = (OFF, "separate", PRIORITY)
_MEMORY = 512 << 20
_PHASES = 14
"""More phases than a measurement has."""
_START = 60.0
_SHARE, _WHOLE_MS, _LATER = 0.95, 100.0, 3.0


@dataclass(frozen=True)
class Plan:
    """Extent of the measurement."""

    modes: Sequence[str]
    seconds: float
    """Time in seconds of a phase."""


FULL = Plan(MODES, 5.0)
QUICK = Plan((OFF, PRIORITY), 0.5)


@dataclass(frozen=True)
class Apart:
    """Figures of a way to keep classes apart. Rates are bytes a second."""

    qos: str
    high_alone: float
    low_alone: float
    high: float
    """Rate of high work beside low work."""
    low: float
    """Rate of low work meanwhile."""
    whole_after_ms: float | None
    """Time from the end of high work until low work has its rate again. `None` if it never had."""
    idle_us: float
    """Median time of small calls of class high without other work."""
    idle_p99_us: float
    beside_us: float
    """Median time of such calls beside low work."""
    beside_p99_us: float
    log_alone: float | None = None
    """Commits a second of a log of class high, without other work. `None` in runs that had no log."""
    log: float | None = None
    """Commits a second beside low writes."""
    writes: float | None = None
    """Rate of low writes meanwhile."""


@dataclass(frozen=True)
class Span:
    """Rates of high and low work in a span of the time in which high work comes and goes."""

    qos: str
    end_s: float
    """End of the span in seconds: high work begins at 0."""
    high: float
    """Bytes a second."""
    low: float


CLASSES = Series("tier-classes", Apart)
SPANS = Series("tier-classes-over-time", Span)


def measure(plan: Plan, folder: Path, say: Progress) -> tuple[list[Apart], list[Span]]:
    """Measures all ways, each with hosts and nodes of its own.

    Raises:
        PeerError: No link can be limited here, or a node or the program that measures failed.
    """
    found = {mode: _measure(mode, plan.seconds, folder / mode, say) for mode in plan.modes}
    return [apart(mode, one) for mode, one in found.items()], [
        Span(mode, rounded(end), rounded(high), rounded(low))
        for mode, one in found.items()
        for end, high, low in one["over_time"]
    ]


def _measure(mode: str, seconds: float, folder: Path, say: Progress) -> dict[str, Any]:
    say(f"classes, --qos {mode}")
    cluster = Plasmon("auto", ["--qos", mode])
    with Network(2, link_gbit=LINK_GBIT) as network:
        if network.why_not is not None:
            raise PeerError(f"no link can be limited: {network.why_not}")
        try:
            cluster.start(network.hosts, folder, _MEMORY)
            here, home = cluster.nodes[GETTER], cluster.nodes[HOLDER]
            worker = [paths.rust_worker(), "classes", here.socket, home.socket, str(seconds)]
            command = here.host.command(worker)
            patience = _PHASES * seconds + _START
            done = subprocess.run(command, capture_output=True, text=True, timeout=patience, check=False)
        except subprocess.TimeoutExpired as late:
            raise PeerError(f"--qos {mode} was not measured in {patience:.0f} s") from late
        finally:
            cluster.close()
    if done.returncode != 0:
        raise PeerError(f"--qos {mode} was not measured: {done.stderr.strip()}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def apart(mode: str, found: dict[str, Any]) -> Apart:
    """Figures that the program has printed."""
    after = found["whole_after_ms"]
    (idle, idle_late), (beside, beside_late) = found["calls_idle_us"], found["calls_us"]
    return Apart(
        qos=mode,
        high_alone=rounded(found["high_alone"]),
        low_alone=rounded(found["low_alone"]),
        high=rounded(found["high"]),
        low=rounded(found["low"]),
        whole_after_ms=None if after is None else rounded(after),
        idle_us=rounded(idle),
        idle_p99_us=rounded(idle_late),
        beside_us=rounded(beside),
        beside_p99_us=rounded(beside_late),
        log_alone=rounded(found["log_alone"]),
        log=rounded(found["log"]),
        writes=rounded(found["writes"]),
    )


def goals(found: Sequence[Apart]) -> Iterator[Goal]:
    """Goals of classes that are kept apart by priority."""
    by = {one.qos: one for one in found}
    one, off = by.get(PRIORITY), by.get(OFF)
    if one is None:
        return
    share = one.high / one.high_alone
    measured = f"{share:.2f} ({_mb(one.high)} / {_mb(one.high_alone)} MB/s)"
    yield Goal("`--qos priority`: high work beside low, against alone", "≥ 0.95", measured, share >= _SHARE)
    if off is not None:
        ours, theirs = one.high + one.low, off.high + off.low
        measured = f"{ours / theirs:.2f} ({_mb(ours)} / {_mb(theirs)} MB/s)"
        what = "`--qos priority`: high and low work together, against `--qos off`"
        yield Goal(what, "≥ 0.95", measured, ours >= _SHARE * theirs)
    after = one.whole_after_ms
    whole = after is not None and after <= _WHOLE_MS
    what = "`--qos priority`: low work has its rate again after high work"
    yield Goal(what, "≤ 100 ms", _after(after), whole)
    ratio = one.beside_p99_us / one.idle_p99_us
    measured = f"{ratio:.1f} ({one.beside_p99_us:,.4g} µs / {one.idle_p99_us:,.4g} µs)"
    what = "`--qos priority`: p99 of small calls of class high beside low reads, against none"
    yield Goal(what, "≤ 3", measured, ratio <= _LATER)


def _log_table(found: Sequence[Apart]) -> str:
    lines = [
        [
            one.qos,
            f"{one.log_alone:,.0f}",
            f"{one.log:,.0f} ({one.log / one.log_alone:.2f})",
            _mb(one.writes),
        ]
        for one in found
        if one.log_alone is not None and one.log is not None and one.writes is not None
    ]
    text = (
        "A log on the other host, whose writer is of class high: commits a second with 64 transactions of "
        "one record of 16 bytes under way, alone and beside four threads that write 1 MiB at a time to a "
        "region of that host."
    )
    heads = ["`--qos`", "commits/s alone", "beside low writes", "writes, MB/s"]
    return f"\n\n{text}\n\n" + page.table(heads, lines) if lines else ""


def table(found: Sequence[Apart]) -> str:
    """Section of the page."""
    heads = ["`--qos`", "high alone, MB/s", "high beside low", "low beside high", "low whole after"]
    heads += ["small calls, µs (p99)", "beside low reads"]
    lines = [
        [
            one.qos,
            _mb(one.high_alone),
            f"{_mb(one.high)} ({one.high / one.high_alone:.2f})",
            _mb(one.low),
            _after(one.whole_after_ms),
            f"{page.short(one.idle_us)} ({page.short(one.idle_p99_us)})",
            f"{page.short(one.beside_us)} ({page.short(one.beside_p99_us)})",
        ]
        for one in found
    ]
    text = (
        f"Two hosts whose links have {LINK_GBIT:g} Gbit/s. Four threads read 1 MiB at a time of a region of "
        "the other host, for each class. Small calls are adds to a word of it, of class high."
    )
    if not lines:
        return ""
    plot = "![High and low work over time](img/tier-classes.png)"
    return f"### Classes of work\n\n{text}\n\n{page.table(heads, lines)}\n\n{plot}{_log_table(found)}"


def _mb(rate: float) -> str:
    return f"{rate / 1e6:.1f}"


def _after(after: float | None) -> str:
    return "never" if after is None else f"{after:.0f} ms"
