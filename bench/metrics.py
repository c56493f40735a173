"""Measures the cost of metrics: gets of 1 KiB on a node that is scraped once a second, and on another.

Rounds on the two nodes take turns, so that other load of the machine affects both. The program prints medians
and the quartiles of their ratio. The goal is 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
import urllib.request
from pathlib import Path

import plasmon

SIZE = 1024
OBJECTS = 1000


def address(cluster: plasmon.LocalCluster) -> str:
    """Address at which a node serves its metrics."""
    announced = Path(cluster.sockets[0]).with_suffix(".out").read_text()
    return str(json.loads(announced.splitlines()[0])["metrics"])


def scrape(where: str, stop: threading.Event, seconds: list[float]) -> None:
    """Scrapes once a second, and notes the time of each scrape."""
    while not stop.wait(1):
        begun = time.perf_counter()
        with urllib.request.urlopen(f"http://{where}/metrics", timeout=10) as answer:
            answer.read()
        seconds.append(time.perf_counter() - begun)


def gets(client: plasmon.Client, ids: list[plasmon.ObjectId], count: int) -> float:
    """Time of a get in seconds."""
    get, known = client.get, len(ids)
    begun = time.perf_counter()
    for number in range(count):
        get(ids[number % known])
    return (time.perf_counter() - begun) / count


def main() -> None:
    """Measures, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--gets", type=int, default=50_000, help="in a round")
    options = parser.parse_args()
    loads = os.getloadavg()
    with (
        plasmon.LocalCluster(memory="256MiB") as plain,
        plasmon.LocalCluster(memory="256MiB", arguments=["--metrics", "127.0.0.1:0"]) as scraped,
    ):
        clients = [plain.client(), scraped.client()]
        ids = [[client.put(bytes(SIZE)) for _ in range(OBJECTS)] for client in clients]
        stop, scrapes = threading.Event(), list[float]()
        scraper = threading.Thread(target=scrape, args=[address(scraped), stop, scrapes])
        scraper.start()
        times: list[tuple[float, float]] = []
        try:
            for number in range(options.rounds):
                order = (0, 1) if number % 2 else (1, 0)
                took = {which: gets(clients[which], ids[which], options.gets) for which in order}
                times.append((took[0], took[1]))
        finally:
            stop.set()
            scraper.join()
    medians = [statistics.median(column) * 1e9 for column in zip(*times, strict=True)]
    ratios = statistics.quantiles([after / before for before, after in times], n=4)
    print(f"{os.cpu_count()} CPUs, load {loads[0]:.2f} before")
    print(f"{options.rounds} rounds of {options.gets} gets of {SIZE} B")
    print(f"without metrics {medians[0]:.0f} ns, scraped once a second {medians[1]:.0f} ns")
    print("ratio " + ", ".join(f"{100 * (ratio - 1):+.2f} %" for ratio in ratios) + " (quartiles)")
    if scrapes:
        print(f"{len(scrapes)} scrapes, median {statistics.median(scrapes) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
