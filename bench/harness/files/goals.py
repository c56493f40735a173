"""Goals of files, compared with the figures of the same run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness import page
from harness.files import bare, project
from harness.files.figures import OTHER, OWN, Figure, Found
from harness.files.run import (
    ANY,
    CROWD,
    DIRECT,
    FAR,
    FIRST,
    NAMES,
    NEAR,
    RANDOM,
    READ,
    SMALL,
    UNALIGNED,
    WRITE,
)
from harness.page import Goal

PLASMON, TWICE, SOCKET = "plasmon", "plasmon-2", "plasmon-socket"
MOOSE, JUICE, TMPFS, NULL = "moosefs", "juicefs", "tmpfs", "null"
_LITTLE = 4 << 10
_OWN_US = 25.0
"""Time in microseconds that Plasmon may add to the mount and to the read of a first touch."""
_CALLED = {
    MOOSE: "MooseFS",
    JUICE: "JuiceFS",
    SOCKET: "`socket`",
    bare.NAME: "libfabric",
    TMPFS: "tmpfs",
    NULL: "the null mount",
}
_FAR = {
    WRITE: ((MOOSE, 3.0), (JUICE, 2.0), (SOCKET, 2.6), (bare.NAME, 0.6)),
    READ: ((MOOSE, 3.0), (JUICE, 2.0), (bare.NAME, 0.6)),
}
_OF_NULL = 0.9
_NEAR = {WRITE: (WRITE, 0.8), DIRECT: (READ, 0.8), READ: (READ, 0.5)}
"""Operations on the own host: that of tmpfs, and the part of its rate that is wanted."""
_NAMES = {"create": 2.0, "stat": 3.0, "unlink": 2.0}
_NAMES_TWICE = {"create": 1.2, "stat": 3.0, "unlink": 1.2}


def check(figures: Iterable[Figure]) -> list[Goal]:
    """All goals for which there are figures."""
    found = Found(figures)
    return [
        *_far(found, FAR, "other host"),
        *_crowd(found),
        *_near(found),
        *_random(found),
        *_names(found),
        *_small(found),
        *_project(found),
    ]


def _far(found: Found, part: str, where: str) -> Iterator[Goal]:
    for operation, others in _FAR.items():
        for other, wanted in others:
            for processes in found.processes(part, operation):
                # Bare reads are what writes are held against, too: a node that stores reads.
                theirs = READ if other == bare.NAME else operation
                yield from _at_least(
                    f"{where}, {operation}, {_by(processes)}: against {_CALLED[other]}",
                    found.find(part, PLASMON, operation, OTHER, processes),
                    found.find(part, other, theirs, OTHER, processes),
                    wanted,
                )


def _crowd(found: Found) -> Iterator[Goal]:
    for operation in (WRITE, READ):
        for processes in found.processes(CROWD, operation):
            yield from _at_least(
                f"{processes} hosts on one, {operation}: against {_CALLED[MOOSE]}",
                found.find(CROWD, PLASMON, operation, OTHER, processes),
                found.find(CROWD, MOOSE, operation, OTHER, processes),
                3.0,
            )


def _near(found: Found) -> Iterator[Goal]:
    for operation, (of_tmpfs, wanted) in _NEAR.items():
        for suffix in ("", UNALIGNED):
            for processes in found.processes(NEAR, operation + suffix):
                ours = found.find(NEAR, PLASMON, operation + suffix, OWN, processes)
                memory = found.find(NEAR, TMPFS, of_tmpfs + suffix, OWN, processes)
                null = found.find(NEAR, NULL, operation + suffix, OWN, processes)
                if ours is None or memory is None:
                    continue
                bounds = [(wanted * memory.median, f"{wanted:g} x tmpfs")]
                if null is not None:
                    bounds.append((_OF_NULL * null.median, f"{_OF_NULL:g} x the null mount"))
                bound, of = min(bounds)
                text = f"{page.short(ours.median)} of {page.short(bound)} MB/s"
                what = f"own host, {operation}{suffix}, {_by(processes)}"
                yield Goal(what, f"≥ {of}", text, ours.median >= bound)


def _random(found: Found) -> Iterator[Goal]:
    first = found.find(RANDOM, PLASMON, FIRST, OTHER, 1, _LITTLE)
    null = found.find(RANDOM, NULL, FIRST, OWN, 1, _LITTLE)
    read = found.find(RANDOM, bare.NAME, READ, OTHER, 1, _LITTLE)
    if first and null and read:
        most = null.median + read.median + _OWN_US
        parts = f"{null.median:.3g} + {read.median:.3g} + {_OWN_US:g}"
        yield Goal(
            "4 KiB at random, other host, first touches",
            f"≤ null mount + libfabric + {_OWN_US:g} µs",
            f"{first.median:.3g} µs of {parts}",
            first.median <= most,
        )
    ours = found.find(RANDOM, PLASMON, ANY, OTHER, 1, _LITTLE)
    theirs = found.find(RANDOM, MOOSE, ANY, OTHER, 1, _LITTLE)
    if ours and theirs:
        ratio = theirs.median / ours.median
        text = f"{ratio:.2f} ({ours.median:.3g} against {theirs.median:.3g} µs)"
        yield Goal("4 KiB at random, other host, all reads: against MooseFS", "≥ 3", text, ratio >= 3)


def _names(found: Found) -> Iterator[Goal]:
    cases = [
        (PLASMON, "", OWN, _NAMES),
        (TWICE, ", names on two nodes", OWN, _NAMES_TWICE),
        (PLASMON, "", OTHER, dict.fromkeys(_NAMES, 1.0)),
    ]
    for store, kind, where, goals in cases:
        for operation, wanted in goals.items():
            for processes in found.processes(NAMES, operation):
                yield from _at_least(
                    f"{where} host{kind}, {operation}, {_by(processes)}: against MooseFS",
                    found.find(NAMES, store, operation, where, processes),
                    found.find(NAMES, MOOSE, operation, where, processes),
                    wanted,
                )


def _small(found: Found) -> Iterator[Goal]:
    for where in (OWN, OTHER):
        for operation in (WRITE, READ):
            yield from _at_least(
                f"{where} host, files of 4,000 bytes, {operation}: against MooseFS",
                found.find(SMALL, PLASMON, operation, where),
                found.find(SMALL, MOOSE, operation, where),
                4.0,
            )


def _project(found: Found) -> Iterator[Goal]:
    ours = found.find(project.PROJECT, PLASMON, project.ALL, OWN)
    memory = found.find(project.PROJECT, TMPFS, project.ALL, OWN)
    if ours and memory:
        ratio = ours.median / memory.median
        text = f"{ratio:.2f} ({ours.median:.3g} against {memory.median:.3g} s)"
        yield Goal("zlib is unpacked and built: against tmpfs", "≤ 1.5", text, ratio <= 1.5)


def _at_least(what: str, ours: Figure | None, theirs: Figure | None, wanted: float) -> Iterator[Goal]:
    if ours is not None and theirs is not None:
        ratio = ours.median / theirs.median
        text = f"{ratio:.2f} ({page.short(ours.median)} against {page.short(theirs.median)})"
        yield Goal(what, f"≥ {wanted:g}", text, ratio >= wanted)


def _by(processes: int) -> str:
    return f"{processes} process{'es' * (processes > 1)}"
