"""Answers of a worker that knows `measure` alone: lines of JSON, as `worker.py` describes them."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar


class Versioned(Protocol):
    """Client of a peer, whose calls are timed."""

    version: str


_P = TypeVar("_P", bound=Versioned)


def serve(
    make: Callable[[], _P], operations: Callable[[_P], Sequence[str]], measure: Callable[..., dict[str, Any]]
) -> None:
    """Answers requests until standard input ends. The client is made when nothing it prints is an answer."""
    # Libraries may print, so the answers have the pipe for themselves.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    peer = make()
    able = {"version": peer.version, "in_place": False, "shared": True, "operations": operations(peer)}
    print(json.dumps(able), file=answers)
    gc.disable()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request.pop("do") != "measure":
                raise ValueError("only measure is known here")
            answer = measure(peer, **request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        gc.collect()
        print(json.dumps(answer), file=answers)
