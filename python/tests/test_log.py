"""The log of `examples/log`, from Python: its format, and transactions between two nodes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import plasmon
import pytest
from conftest import ANTI_HANG, until

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "log" / "python"))
import plasmon_log

CAPACITY = 1 << 20


@pytest.fixture
def clients(cluster: plasmon.LocalCluster) -> Iterator[tuple[plasmon.Client, plasmon.Client]]:
    with cluster.connect(0) as near, cluster.connect(1) as far:
        yield near, far
        for info in near.regions():
            near.map_region(info.name, "rw").free()


def test_the_format_is_that_of_the_library_in_rust() -> None:
    # The tests of examples/log/src/layout.rs have the same bytes.
    data = plasmon_log.encode(99, 7, (b"one", b""))
    assert data.hex() == "9dff2f81000000000700000000000000020000000b000000030000006f6e65000000000000000000"
    assert plasmon_log.decode(99, data) == plasmon_log.Transaction(99, 7, (b"one", b""))
    assert plasmon_log.decode(98, data) is None
    for at in range(len(data)):
        assert plasmon_log.decode(99, data[:at]) is None
        assert plasmon_log.decode(99, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]) is None


def test_transactions_are_read_on_both_nodes(clients: tuple[plasmon.Client, plasmon.Client]) -> None:
    near, far = clients
    log = plasmon_log.create(near, "both", CAPACITY, [far.node, near.node])
    with pytest.raises(plasmon.ObjectExists):
        plasmon_log.create(near, "both", CAPACITY)
    written: list[tuple[tuple[bytes, ...], int]]
    written = [((b"%d" % number,), log.append(b"%d" % number)) for number in range(100)]
    other = plasmon_log.open(far, "both")
    written.append(((b"a", b"", b"c"), other.append(b"a", b"", b"c")))
    for reader in (log, other):
        assert [(one.records, one.position) for one in reader.read()] == written
    assert other.read(written[99][1])[0].records == (b"99",)
    assert log.end == written[-1][1] + 1
    with pytest.raises(plasmon.ObjectNotFound, match="no log 'other'"):
        plasmon_log.open(near, "other")


def test_a_follower_hears_of_what_comes(clients: tuple[plasmon.Client, plasmon.Client]) -> None:
    near, far = clients
    log = plasmon_log.create(near, "live", CAPACITY)
    seen: list[bytes] = []

    def follow() -> None:
        for transaction in plasmon_log.open(far, "live").follow(timeout=ANTI_HANG):
            seen.extend(transaction.records)
            if seen[-1] == b"last":
                return

    thread = threading.Thread(target=follow)
    thread.start()
    log.append(b"first")
    until("the follower has it", lambda: seen == [b"first"])
    # More than a segment has room for.
    for number in range(20):
        log.append(b"%d" % number, bytes(10_000))
    log.append(b"last")
    thread.join(ANTI_HANG)
    assert seen == [b"first", *(part for n in range(20) for part in (b"%d" % n, bytes(10_000))), b"last"]


def test_a_full_log_is_trimmed(clients: tuple[plasmon.Client, plasmon.Client]) -> None:
    near, far = clients
    log = plasmon_log.create(near, "full", CAPACITY, [far.node])
    positions = []

    def fill() -> None:
        while True:
            positions.append(log.append(bytes(10_000)))

    with pytest.raises(plasmon_log.Full, match="trim it"):
        fill()
    assert CAPACITY * 9 // 10 < 10_000 * len(positions) <= CAPACITY
    kept = positions[len(positions) // 2]
    log.trim(kept)
    with pytest.raises(plasmon_log.Trimmed) as trimmed:
        log.read(positions[0])
    assert trimmed.value.oldest == kept == log.oldest
    positions.append(log.append(b"more"))
    assert [one.position for one in log.read()] == [one for one in positions if one >= kept]
    with pytest.raises(plasmon.InvalidArgument):
        log.trim(log.end + 1)
