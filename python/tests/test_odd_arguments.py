"""A walk through the API with odd values of every argument: nothing but `plasmon.Error` is raised."""

from __future__ import annotations

import contextlib
import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import plasmon
import pytest
from api import LEFT_OUT, ROWS, World, calls, parameters
from conftest import until

SOON = 0.1
"""Time-out of calls for what does not come."""


class Awkward:
    """An object that refuses whatever it is asked."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __repr__(self) -> str:
        return "\udcff" * 3


def _endless() -> list[Any]:
    """A list that contains itself."""
    one: list[Any] = []
    one.append(one)
    return one


ODD: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "-1": lambda: -1,
    "2**32": lambda: 2**32,
    "2**63": lambda: 2**63,
    "2**64": lambda: 2**64,
    "10**400": lambda: 10**400,
    "10**5000": lambda: 10**5000,
    "0.5": lambda: 0.5,
    "-0.5": lambda: -0.5,
    "NaN": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "1e308": lambda: 1e308,
    "no text": lambda: "",
    "a lone surrogate": lambda: "\udcff",
    "a NUL": lambda: "a\0b",
    "a long text": lambda: "long" * 25_000,
    "bytes": lambda: b"\xff\0",
    "no bytes": lambda: b"",
    "a bytearray": lambda: bytearray(8),
    "a strided view": lambda: memoryview(bytes(16))[::2],
    "a list": lambda: [None],
    "a list of itself": _endless,
    "a tuple": lambda: (),
    "a dict": lambda: {},
    "a set": lambda: {1},
    "an object": Awkward,
    "a class": lambda: Awkward,
    "a function": lambda: len,
}
"""Values that no caller means, by what they are."""


CALLS = dict(calls())
"""All public calls by their names."""


@pytest.fixture(scope="module")
def world(cluster: plasmon.LocalCluster) -> Iterator[World]:
    world = World(cluster)

    def under_way() -> int:
        return int(cluster.client(0).status()["slots"]["under_way"])

    before = under_way()
    yield world
    until("all calls that were begun have ended", lambda: under_way() <= before)
    world.close()


def test_every_call_is_walked() -> None:
    takers = [name for name, call in calls() if parameters(call)]
    assert [name for name in takers if name not in ROWS and name not in LEFT_OUT] == []
    assert sorted(ROWS) == sorted({*ROWS} & {name for name, _ in calls()})


def bound(call: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], Any]:
    """The call with these arguments, each given as it can be."""
    positional: list[Any] = []
    named = dict(arguments)
    for one in parameters(call):
        if one.kind is one.POSITIONAL_ONLY and one.name in named:
            positional.append(named.pop(one.name))
        elif one.kind is one.VAR_POSITIONAL and one.name in named:
            return lambda: call(*arguments_before(call, named), named.pop(one.name), **rest(call, named))
    return lambda: call(*positional, **named)


def arguments_before(call: Callable[..., Any], named: dict[str, Any]) -> list[Any]:
    """Arguments that are given by position, because others follow them."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    return [named[one.name] for one in parameters(call) if one.kind in kinds]


def rest(call: Callable[..., Any], named: dict[str, Any]) -> dict[str, Any]:
    keyword = {one.name for one in parameters(call) if one.kind is one.KEYWORD_ONLY}
    return {name: one for name, one in named.items() if name in keyword}


def close(result: Any, world: World) -> None:
    """Ends what a call may have made."""
    if any(result is world.cluster.client(node) for node in (0, 1)):
        return
    if isinstance(result, plasmon.Creation):
        result.abort()
    elif isinstance(result, contextlib.AbstractContextManager) and not isinstance(result, memoryview):
        with result:
            pass
    elif hasattr(result, "close"):
        made = result.close()
        if inspect.iscoroutine(made):
            world.run(made)


@pytest.mark.parametrize("name", sorted(ROWS))
def test_odd_arguments_raise_errors_of_plasmon(world: World, name: str) -> None:
    wrong = []
    for parameter in parameters(CALLS[name]):
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        for what, odd in ODD.items():
            call, arguments = ROWS[name](world)
            if any(one.name == "timeout" for one in parameters(call)):
                arguments.setdefault("timeout", SOON)
            arguments[parameter.name] = odd()
            try:
                with warnings.catch_warnings(action="ignore"):
                    close(bound(call, arguments)(), world)
            except plasmon.Error as error:
                str(error)
            except BaseException as error:
                wrong.append(f"{name}({parameter.name}={what}): {error!r}")
    assert wrong == []
