"""Progress of a run."""

from __future__ import annotations

import sys
import time


class Progress:
    """Progress as one line on a terminal, or as lines elsewhere, with the seconds since the start."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def __call__(self, what: str) -> None:
        """Shows the present step."""
        line = f"{time.monotonic() - self._begin:5.0f} s  {what}"
        print(
            f"\r\033[K{line}" if self._terminal else line, end="" if self._terminal else "\n", file=sys.stderr
        )

    def end(self) -> None:
        """Ends the line."""
        if self._terminal:
            print(file=sys.stderr)
