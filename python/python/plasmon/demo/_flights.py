"""A table of real flights, put on one node and queried in place on another.

Two nodes of this machine form a cluster. The flights of 2013 are put on node A as an
Arrow table. Node B, which has never had them, is asked for the mean arrival delay by airline. The table is
fetched over libfabric once, into memory that node B shares with its programs. Arrow computes on that memory,
and every further get returns the same memory.
"""

import json
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa

import plasmon
from plasmon.demo import _figures

NAME = "flights"

T = TypeVar("T")

# Counters of a node that grow when bytes move, with their names in the output.
COUNTERS = {
    "eager_fetched_bytes": "fetched inside messages",
    "pushed_fetched_bytes": "written here by the other node",
    "rendezvous_fetched_bytes": "fetched by one-sided reads",
    "cpu_copied_bytes": "copied by its processor",
}


def run(table: pa.Table, airlines: dict[str, str], memory: str, repeat: int, *, as_json: bool) -> None:
    """Runs the demo on nodes with so much memory. Prints its course, or its figures as JSON."""
    report: dict[str, Any] = {}
    with plasmon.LocalCluster(nodes=2, memory=memory) as cluster:
        a, b = cluster.client(0), cluster.client(1)
        wait_for_memory(a, b)
        report["flights"] = share(table, airlines, a, b)
        if not as_json:
            tell(report["flights"])
        a.delete(NAME)
        measured = _figures.measure(a, b, repeat)
        report["machine"] = _figures.machine(b.status())
    report["figures"] = [vars(figure) for figure in measured]

    if as_json:
        print(json.dumps(report, indent=2))
        return
    print(f"What it costs: the first time, and the median of {repeat} after it\n")
    print(_figures.table(measured))
    print(f"\n{_figures.describe(report['machine'])}")


def wait_for_memory(*clients: plasmon.Client) -> None:
    """Waits until the nodes have pre-faulted their memory, which they do in the background."""
    for client in clients:
        while (memory := client.status()["memory"])["prefaulted"] < memory["capacity"]:
            time.sleep(0.01)


def share(table: pa.Table, airlines: dict[str, str], a: plasmon.Client, b: plasmon.Client) -> dict[str, Any]:
    """Puts the table on node A and queries it on node B. Returns the result and the costs."""
    counters = {"before": _counters(b)}
    put_seconds, _ = _timed(lambda: a.put(table, name=NAME))
    get_seconds, flights = _timed(lambda: b.get(NAME))
    counters["first get"] = _counters(b)
    query_seconds, delays = _timed(lambda: mean_delays(flights, airlines))
    again_seconds, again = _timed(lambda: b.get(NAME))
    counters["second get"] = _counters(b)

    # Addresses of the object in this program's memory, and of the columns of both tables.
    (buffer,) = b.get_buffers([NAME])
    places, places_again = _places(flights), _places(again)
    inside = [
        buffer.address <= start and start + size <= buffer.address + len(buffer) for start, size in places
    ]
    if not all(inside) or places != places_again or counters["first get"] != counters["second get"]:
        raise SystemExit(f"node B copied: {inside.count(False)} buffers lie elsewhere, {counters}")
    return {
        "rows": flights.num_rows,
        "put_seconds": put_seconds,
        "first_get_seconds": get_seconds,
        "second_get_seconds": again_seconds,
        "query_seconds": query_seconds,
        "address": buffer.address,
        "bytes": len(buffer),
        "buffers_inside": len(places),
        "counters": counters,
        "delays": delays,
    }


def mean_delays(flights: pa.Table, airlines: dict[str, str]) -> list[dict[str, Any]]:
    """Mean arrival delay by airline, largest first."""
    grouped = flights.group_by("carrier").aggregate([("arr_delay", "mean"), ("arr_delay", "count")])
    return [
        {
            "airline": airlines[row["carrier"]],
            "flights": row["arr_delay_count"],
            "minutes": row["arr_delay_mean"],
        }
        for row in grouped.sort_by([("arr_delay_mean", "descending")]).to_pylist()
    ]


def tell(report: dict[str, Any]) -> None:
    """Prints the result of `share`."""
    print(
        f"Node A: put {report['rows']:,} flights, {report['bytes']:,} bytes of Arrow, in {_ms(report, 'put')}"
    )
    print(f"Node B: got them from node A over libfabric in {_ms(report, 'first_get')}")
    print(f"Node B: computed the mean arrival delay by airline in {_ms(report, 'query')}\n")
    print(f"  {'airline':<30}{'landed':>9}{'minutes':>9}")
    for row in report["delays"]:
        print(f"  {row['airline']:<30}{row['flights']:>9,}{row['minutes']:>9.1f}")

    start, end = report["address"], report["address"] + report["bytes"]
    print("\nNode B computed on the shared memory itself:\n")
    print(f"  the object lies at {start:#x} to {end:#x}")
    print(f"  all {report['buffers_inside']} buffers of the table lie inside")
    print(f"  a second get took {_ms(report, 'second_get')} and gave the same addresses\n")
    columns = report["counters"]
    print(f"  {'bytes at node B':<30}" + "".join(f"{column:>14}" for column in columns))
    for counter, words in COUNTERS.items():
        print(f"  {words:<30}" + "".join(f"{values[counter]:>14,}" for values in columns.values()))
    print()


def _counters(client: plasmon.Client) -> dict[str, int]:
    transfer = client.status()["transfer"]
    return {counter: transfer[counter] for counter in COUNTERS}


def _places(table: pa.Table) -> list[tuple[int, int]]:
    """Address and size of every buffer of a table."""
    chunks = [chunk for column in table.columns for chunk in column.chunks]
    buffers = [buffer for chunk in chunks for buffer in chunk.buffers()]
    return [(buffer.address, buffer.size) for buffer in buffers if buffer is not None and buffer.size > 0]


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def _ms(report: dict[str, Any], what: str) -> str:
    return f"{report[f'{what}_seconds'] * 1e3:.1f} ms"
