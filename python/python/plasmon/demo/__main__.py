"""The program: its options, and how it ends."""

import argparse
import signal
import sys
from types import FrameType

import plasmon
from plasmon.demo import _needs


def main() -> None:
    """Provides what the demo needs, and runs it."""
    parser = argparse.ArgumentParser(
        prog="plasmon demo", description="Real flights, put on one node and queried in place on another."
    )
    parser.add_argument("--memory", default="1GiB", help="memory of each node (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=30, help="how often to measure (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON document")
    arguments = parser.parse_args()
    if arguments.repeat < 1:
        parser.error("--repeat takes 1 or more")

    _needs.provide_packages()
    # Both modules need the packages.
    from plasmon.demo import _dataset, _flights

    table, airlines = _dataset.load(_needs.cache())
    _flights.run(table, airlines, arguments.memory, arguments.repeat, as_json=arguments.json)


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    # Processes that were started end with the exception. A signal that is ignored (nohup) stays so.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) != signal.SIG_IGN:
            signal.signal(ending, _end)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except plasmon.Error as error:
        sys.exit(f"plasmon demo: it ended early: {error}")
