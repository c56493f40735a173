"""Tests of the buffers that bytes come back as, most by comparison with `bytes`."""

from __future__ import annotations

import array
import copy
import gc
import json
import pickle
from typing import Any

import numpy as np
import plasmon
import pytest
from conftest import held
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plasmon import _mapped

TEXTS = st.text("ab\0é", max_size=6).map(str.encode)
PLACES = st.none() | st.integers(-8, 8)
STEPS = st.none() | st.sampled_from([1, 2, 3, -1, -2, 7])
LONG = b"some words and a line\n" * 1000


def pinned(client: plasmon.Client) -> int:
    gc.collect()
    return held(client)


shared = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def stored(client: plasmon.Client, data: bytes) -> plasmon.Buffer:
    value = client.get(client.put(data))
    assert type(value) is plasmon.Buffer
    return value


def outcome(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (ValueError, TypeError, LookupError, OverflowError) as error:
        return type(error)


@shared
@given(data=TEXTS, part=TEXTS, start=PLACES, end=PLACES, step=STEPS)
def test_a_buffer_answers_as_bytes_do(
    near: plasmon.Client, data: bytes, part: bytes, start: int | None, end: int | None, step: int | None
) -> None:
    buffer: Any = stored(near, data)
    parts: Any = [part, bytearray(part), stored(near, part), 97, (part, b"b"), "text", None]
    for name in ("find", "rfind", "startswith", "endswith", "count", "index", "rindex"):
        for one in parts:
            wanted = outcome(getattr(data, name), part if one is parts[2] else one, start, end)
            assert outcome(getattr(buffer, name), one, start, end) == wanted, (name, one)
    assert (part in buffer, 97 in buffer) == (part in data, 97 in data)
    cut = buffer[start:end:step]
    assert bytes(cut) == data[start:end:step]
    assert type(cut) is (plasmon.Buffer if step in (None, 1) else bytes)
    assert (cut == data[start:end:step], hash(cut)) == (True, hash(data[start:end:step]))
    assert cut.find(part) == data[start:end:step].find(part)
    assert outcome(buffer.__getitem__, start or 0) == outcome(data.__getitem__, start or 0)
    assert outcome(buffer.decode) == outcome(data.decode)
    assert buffer.decode("latin-1") == data.decode("latin-1")
    assert buffer.decode("ascii", "replace") == data.decode("ascii", "replace")
    assert ([*buffer], [*reversed(buffer)], len(buffer)) == ([*data], [*reversed(data)], len(data))
    assert (buffer.split(b"a"), buffer.upper(), buffer.hex()) == (data.split(b"a"), data.upper(), data.hex())
    assert (buffer + part, part + buffer) == (data + part, part + data)


@shared
@given(left=TEXTS, right=TEXTS)
def test_buffers_compare_as_bytes_do(near: plasmon.Client, left: bytes, right: bytes) -> None:
    buffer: Any = stored(near, left)
    for kind in (bytes, bytearray, lambda data: stored(near, data)):
        other = kind(right)
        assert (buffer == other, buffer != other, other == buffer) == (
            left == right,
            left != right,
            left == right,
        )
        assert (buffer < other, buffer <= other) == (left < right, left <= right)
        assert (buffer > other, buffer >= other) == (left > right, left >= right)
        assert (other < buffer, other >= buffer) == (right < left, right >= left)
    assert (buffer == memoryview(right), hash(buffer) == hash(right)) == (left == right, left == right)
    assert {left: 1}.get(buffer) == 1
    assert {buffer: 1}.get(left) == 1


def test_a_buffer_is_no_text_and_no_number(near: plasmon.Client) -> None:
    buffer: Any = stored(near, b"text")
    assert (buffer == "text", buffer != "text", buffer == 7, buffer is None) == (False, True, False, False)
    for wrong in ("text", 7, None):
        with pytest.raises(TypeError):
            buffer < wrong  # noqa: B015
    for call in (lambda: "t" in buffer, lambda: 256 in buffer, lambda: buffer["t"], lambda: buffer + "text"):
        with pytest.raises((TypeError, ValueError)):
            call()
    with pytest.raises(IndexError):
        buffer[4]
    with pytest.raises(UnicodeDecodeError):
        stored(near, b"\xff").decode()
    with pytest.raises(LookupError):
        buffer.decode("no such encoding")


def test_a_buffer_takes_the_place_of_a_view(near: plasmon.Client) -> None:
    numbers = array.array("i", range(12))
    buffer: Any = stored(near, numbers.tobytes())
    assert buffer.cast("i").tolist() == numbers.tolist()
    assert (buffer.readonly, buffer.nbytes, buffer.itemsize, buffer.shape) == (True, 48, 1, (48,))
    assert [buffer.tobytes(), bytes(buffer), bytes(bytearray(buffer))] == [numbers.tobytes()] * 3
    assert np.frombuffer(buffer, "i4").tolist() == numbers.tolist()
    assert np.asarray(buffer).nbytes == 48
    assert memoryview(buffer).readonly
    assert memoryview(buffer) == numbers.tobytes()
    with pytest.raises(AttributeError, match="no attribute 'no_such'"):
        buffer.no_such  # noqa: B018
    assert not hasattr(buffer, "__array_interface__")


def test_a_slice_is_where_its_object_is(near: plasmon.Client) -> None:
    whole = stored(near, LONG)
    part: Any = whole[100:200][10:20]
    assert (part.address, part.id) == (whole.address + 110, whole.id)
    assert (part.digest(), part.metadata) == (whole.digest(), b"")
    part.verify()


def test_any_slice_holds_the_object(near: plasmon.Client) -> None:
    assert pinned(near) == 0
    part: Any = stored(near, LONG)[10:20][2:]
    assert pinned(near) == 1
    view = part.cast("B")
    del part
    assert pinned(near) == 1
    assert view == LONG[12:20]
    del view
    assert pinned(near) == 0


def test_an_array_over_a_slice_is_found_in_its_object(near: plasmon.Client) -> None:
    buffer: Any = stored(near, np.arange(100, dtype="i4").tobytes())
    part = np.frombuffer(buffer[40:80], "i4")
    place = _mapped.reference(part[2:])
    assert place is not None
    assert _mapped.restore(place, buffer).tolist() == [*range(12, 20)]


def test_pickles_and_copies_are_bytes(near: plasmon.Client) -> None:
    buffer = stored(near, LONG)
    copies = [pickle.loads(pickle.dumps(buffer, protocol)) for protocol in range(6)]
    aside: list[Any] = []
    copies.append(pickle.loads(pickle.dumps(buffer, 5, buffer_callback=aside.append), buffers=aside))
    assert len(aside) == 1
    copies += [copy.copy(buffer), copy.deepcopy(buffer), near.get(near.put([buffer]))[0]]
    assert [type(one) for one in copies] == [bytes] * len(copies)
    assert all(one == LONG for one in copies)
    assert stored(near, bytes(near.get(near.put(buffer)))) == LONG


def test_a_get_converts_bytes_and_checks_other_values(near: plasmon.Client) -> None:
    oid, number = near.put(b'{"a": 1}'), near.put(7)
    assert json.loads(near.get(oid, type=bytes)) == {"a": 1}
    assert near.get(oid, type=bytearray) == bytearray(b'{"a": 1}')
    assert near.get(oid, type=str) == '{"a": 1}'
    assert type(near.get(oid, type=memoryview)) is memoryview
    assert type(near.get(oid, type=plasmon.Buffer)) is plasmon.Buffer
    assert near.get(number, type=int) == 7
    assert near.get([oid, oid], type=str) == ['{"a": 1}'] * 2
    assert near.get([], type=str) == []
    mistakes: list[tuple[plasmon.ObjectId, type[Any]]] = [(number, str), (number, bytes), (oid, dict)]
    for id, wrong in mistakes:
        with pytest.raises(TypeError, match=f"object {id} is of type .*, not {wrong.__name__}"):
            near.get(id, type=wrong)


def test_a_buffer_shows_its_beginning(near: plasmon.Client) -> None:
    assert repr(stored(near, b"hello")) == "<plasmon.Buffer b'hello'>"
    shown = repr(stored(near, LONG))
    assert shown.startswith("<plasmon.Buffer b'some words")
    assert shown.endswith("'... of 22000 bytes>")
    assert len(shown) < 100
