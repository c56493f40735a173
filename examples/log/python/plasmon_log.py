"""A distributed atomic log made of regions of Plasmon: the log of `plasmon-log`, from Python.

    import plasmon
    import plasmon_log

    with plasmon.connect() as client:
        log = plasmon_log.create(client, "events", 64 << 20)
        log.append(b"one transaction", b"of two records")
        for transaction in log.follow():
            print(transaction.position, transaction.records)

Formats and promises are those of the library in Rust (README.md of this example). This module appends one
transaction at a time. It mends nothing: when a node with a copy has died, `Broken` says to run
`plasmon-log clean`, which does, and everything goes on.
"""

from __future__ import annotations

import secrets
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import plasmon

MAGIC = int.from_bytes(b"PLSMLOG1", "little")
_ROOT_LEN, _HEADER, _TOMBSTONE = 4096, 4096, 8
_SEGMENTS, _MAX_COPIES, _MAX_NAME = 8, 8, 200
_ROOT_TRIMMED, _ROOT_LAST, _ROOT_NODES = 40, 48, 64
_BIRTH, _OPEN, _TAIL, _CLOSED, _END, _TRIMMED, _WAITERS = range(0, 56, 8)
_COUNT_BITS, _PLACE_BITS = 24, 29
_VOID, _ENDED = 2, 4
_WORDS, _BATCH_BYTES, _LOOKS = 512, 256 << 10, 16
_LOOK_EVERY = 0.5


class Trimmed(plasmon.ObjectNotFound):
    """The position that was to be read was trimmed. `oldest` is the oldest position that is there."""

    def __init__(self, log: str, position: int, oldest: int) -> None:
        super().__init__(
            f"position {position} of log {log!r} was trimmed: the oldest position is {oldest} now"
        )
        self.oldest = oldest


class Full(plasmon.StoreFull):
    """The log has no room until it is trimmed."""


class Broken(plasmon.ObjectLost):
    """A copy is lost, and the log has to be mended first."""


@dataclass(frozen=True)
class Transaction:
    """Transaction that a log has."""

    position: int
    """Position of the transaction. Positions grow, and some are left out."""
    writer: int
    """Number that the writer drew."""
    records: tuple[bytes, ...]
    """Records of the transaction, in their order."""


def encode(position: int, writer: int, records: tuple[bytes, ...]) -> bytes:
    """Bytes of a transaction at a position."""
    body = b"".join(struct.pack("<I", len(record)) + record for record in records)
    rest = struct.pack("<QII", writer, len(records), len(body)) + body
    rest += bytes(-len(rest) % 8)
    return struct.pack("<Q", zlib.crc32(struct.pack("<Q", position) + rest)) + rest


def decode(position: int, data: bytes) -> Transaction | None:
    """Reads a transaction. `None` if the bytes are not those of one at this position."""
    if len(data) < 24:
        return None
    checksum, writer, count, size = struct.unpack_from("<QQII", data)
    if checksum != zlib.crc32(struct.pack("<Q", position) + data[8:]) or 24 + size > len(data):
        return None
    records, at = [], 24
    for _ in range(count):
        if at + 4 > 24 + size:
            return None
        (length,) = struct.unpack_from("<I", data, at)
        if at + 4 + length > 24 + size:
            return None
        records.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    return Transaction(position, writer, tuple(records)) if at == 24 + size else None


@dataclass(frozen=True)
class _Shape:
    data: int
    entries: int
    segments: int
    copies: int
    nodes: tuple[str, ...]

    def root(self) -> bytes:
        words = struct.pack("<8Q", 0, self.data, self.entries, self.segments, self.copies, 0, 0, 0)
        return words + b"".join(bytes.fromhex(node) for node in self.nodes)

    def index_at(self, number: int) -> int:
        return _HEADER + 8 * number

    def data_at(self, offset: int) -> int:
        return self.index_at(self.entries) + offset


class _Segment:
    """Copies of a segment, in the order in which words reach them."""

    def __init__(self, shape: _Shape, number: int, copies: list[plasmon.Region], has_first: bool) -> None:
        self.shape, self.number, self.copies, self.has_first = shape, number, copies, has_first

    def position(self, number: int) -> int:
        return self.number * self.shape.entries + number

    def decide(self, number: int, value: int) -> int:
        """Writes an index word in all copies, unless that was done. Returns what was decided."""
        at = self.shape.index_at(number)
        for copy in self.copies:
            value = copy.compare_swap(at, 0, value) or value
            # Others do not hear of stores in memory that is mapped here.
            if copy.local and _word(copy, _WAITERS):
                copy.notify(at)
        return value


def create(client: plasmon.Client, name: str, capacity: int, nodes: list[str] | None = None) -> Log:
    """Makes a log of a capacity in bytes, with a copy on each of these nodes.

    Args:
        client: Client of this host's node.
        name: Name of the log.
        capacity: Bytes of transactions that it has at most; what is trimmed counts no more.
        nodes: Ids of nodes, each with a copy; by default this host's node alone.

    Raises:
        ObjectExists: There is a log of this name.
    """
    _check(name)
    nodes = [client.node] if nodes is None else nodes
    data = capacity // _SEGMENTS // 4096 * 4096
    if not 4096 <= data < 8 << _PLACE_BITS or not 1 <= len(set(nodes)) == len(nodes) <= _MAX_COPIES:
        raise plasmon.InvalidArgument(
            f"a log has 32 KiB or more on 1 to {_MAX_COPIES} nodes, not {capacity} bytes on {nodes}"
        )
    entries = max(64, min(1 << 20, 1 << (data // 64 - 1).bit_length()))
    shape = _Shape(data, entries, _SEGMENTS, len(nodes), tuple(nodes))
    roots = [client.create_region(f"log:{name}:{at}", _ROOT_LEN, node=node) for at, node in enumerate(nodes)]
    for root in roots:
        root.write(shape.root()[8:], 8)
        root.swap(0, MAGIC)
    log = Log(client, name, shape, roots)
    log._make(0)
    return log


def open(client: plasmon.Client, name: str) -> Log:  # noqa: A001
    """Opens a log of this user or of root.

    Raises:
        ObjectNotFound: There is no such log.
    """
    _check(name)
    roots: list[plasmon.Region] = []
    shape = None
    for at in range(_MAX_COPIES):
        try:
            root = client.map_region(f"log:{name}:{at}", "rw")
        except (plasmon.ObjectNotFound, plasmon.ObjectLost):
            continue
        words = struct.unpack("<8Q", root.read(size=_ROOT_NODES))
        if words[0] == MAGIC and 1 <= words[4] <= _MAX_COPIES and words[2] > 0:
            ids = root.read(_ROOT_NODES, 16 * words[4])
            nodes = tuple(ids[start : start + 16].hex() for start in range(0, len(ids), 16))
            shape = _Shape(words[1], words[2], words[3], words[4], nodes)
            roots.append(root)
    if shape is None:
        raise plasmon.ObjectNotFound(f"there is no log {name!r}, or it is just being made")
    return Log(client, name, shape, roots)


class Log:
    """Log that programs of all hosts append to and follow. One thread at a time uses it."""

    def __init__(self, client: plasmon.Client, name: str, shape: _Shape, roots: list[plasmon.Region]) -> None:
        self.name = name
        """Name of the log."""
        self.writer = secrets.randbits(63)
        """Number of this writer, which its transactions bear."""
        self._client, self._shape, self._roots = client, shape, roots
        self._segments: dict[int, _Segment] = {}
        self._current = 0

    @property
    def oldest(self) -> int:
        """Oldest position that is not trimmed."""
        return self._root_word(_ROOT_TRIMMED)

    @property
    def end(self) -> int:
        """Position after all that are reserved."""
        segment = self._last()
        if segment.has_first:
            count = _word(segment.copies[0], _TAIL) & ((1 << _COUNT_BITS) - 1)
        else:
            count = self._count(segment)
        return segment.position(min(count, self._shape.entries))

    def append(self, *records: bytes) -> int:
        """Appends a transaction of these records. Returns its position when all copies have it.

        Raises:
            Full: The log has no room until it is trimmed.
            OutcomeUnknown: The transaction may be in the log, or may come.
            Broken: A copy is lost; the transaction may be in the log, or may come.
        """
        size = len(encode(0, 0, records))
        if size > self._shape.data:
            raise plasmon.InvalidArgument(
                f"a transaction of log {self.name!r} has {self._shape.data} bytes at most"
            )
        while True:
            segment = self._last()
            if not segment.has_first:
                self._make(segment.number + 1)
                continue
            tail = segment.copies[0].fetch_add(_TAIL, (size // 8) << _COUNT_BITS | 1)
            number, offset = tail & ((1 << _COUNT_BITS) - 1), (tail >> _COUNT_BITS) * 8
            if number >= self._shape.entries or offset + size > self._shape.data:
                if number < self._shape.entries:
                    segment.decide(number, _ENDED)
                self._make(segment.number + 1)
                continue
            data = encode(segment.position(number), self.writer, records)
            try:
                if self._commit(segment, number, offset, data):
                    return segment.position(number)
            except (plasmon.ObjectLost, plasmon.ObjectNotFound) as error:
                self._segments.clear()
                raise self._broken(segment.number, error) from error

    def read(self, start: int | None = None) -> list[Transaction]:
        """Transactions from a position on, by default the oldest, that are there now.

        Raises:
            Trimmed: The position was trimmed.
        """
        return list(self._read(self.oldest if start is None else start, timeout=0))

    def follow(self, start: int | None = None, *, timeout: float | None = None) -> Iterator[Transaction]:
        """Transactions from a position on, by default the oldest, and those that come.

        Args:
            start: First position.
            timeout: Time in seconds without a transaction after which it ends; by default it does not.

        Raises:
            Trimmed: What follows was trimmed.
        """
        return self._read(self.oldest if start is None else start, timeout)

    def trim(self, position: int) -> None:
        """Gives up all transactions before a position. The memory of whole segments returns."""
        if position > self.end:
            raise plasmon.InvalidArgument(f"log {self.name!r} ends at position {self.end}")
        before = self.oldest
        if position <= before:
            return
        if len(self._roots) < self._shape.copies:
            raise self._broken(position // self._shape.entries, None)
        for root in self._roots:
            _raise(root, _ROOT_TRIMMED, position)
        first, number = divmod(position, self._shape.entries)
        if segment := self._find(first):
            for copy in segment.copies:
                _raise(copy, _TRIMMED, number)
        for gone in range(before // self._shape.entries, first):
            self._segments.pop(gone, None)
            for at in range(self._shape.copies):
                try:
                    self._client.map_region(self._copy_name(gone, at), "rw").free()
                except (plasmon.ObjectNotFound, plasmon.ObjectLost):
                    continue

    def _commit(self, segment: _Segment, number: int, offset: int, data: bytes) -> bool:
        """Writes a transaction to its place and commits it. False if it was voided."""
        for copy in segment.copies:
            copy.write(data, self._shape.data_at(offset))
        word = 1 | (offset // 8) << 3 | (len(data) // 8) << 32
        if segment.decide(number, word) != word:
            return False
        if len(segment.copies) > 1 and _word(segment.copies[-1], _CLOSED):
            self._segments.clear()
            again = self._find(segment.number)
            if again is None or number >= self._count(again):
                return False
            return _word(again.copies[-1], self._shape.index_at(number)) == word
        return True

    def _read(self, position: int, timeout: float | None) -> Iterator[Transaction]:
        entries = self._shape.entries
        due = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _LOOK_EVERY if due is None else min(_LOOK_EVERY, max(0.0, due - time.monotonic()))
            number, start = divmod(position, entries)
            segment = self._find(number)
            if segment is None:
                self._check_trimmed(position)
                if left == 0:
                    return
                try:
                    self._client.map_region(self._copy_name(number, 0), timeout=left)
                except (plasmon.ObjectNotFound, plasmon.TimedOut):
                    continue
                continue
            try:
                found, position, is_open = self._batch(segment, start)
                if not found and is_open and left > 0:
                    self._wait(segment, position, left)
            except (plasmon.ObjectNotFound, plasmon.ObjectLost) as error:
                self._segments.clear()
                self._check_trimmed(position)
                raise self._broken(number, error) from error
            yield from found
            if found and due is not None and timeout is not None:
                due = time.monotonic() + timeout
            if not found and is_open and left == 0:
                return

    def _batch(self, segment: _Segment, start: int) -> tuple[list[Transaction], int, bool]:
        """Transactions of a segment, the position after them, and whether nothing is decided there."""
        entries, copy = self._shape.entries, segment.copies[-1]
        count = min(entries - start, _WORDS)
        data = copy.read(self._shape.index_at(start), 8 * count)
        words = struct.unpack(f"<{count}Q", data)
        closed, end, trimmed = struct.unpack("<3Q", copy.read(_CLOSED, 24))
        if start < trimmed:
            self._check_trimmed(segment.position(start))
        if closed or end:
            limit = self._count(segment) - start
            if limit <= 0:
                return [], segment.position(entries), False
            words = struct.unpack(f"<{count}Q", copy.read(self._shape.index_at(start), 8 * count))[:limit]
        found: list[Transaction] = []
        at, size = 0, 0
        for at, word in enumerate(words):
            if word & 7 == 1 and size <= _BATCH_BYTES:
                found.append(self._take(segment, start + at, word))
                size += (word >> 32) * 8
            elif word & 7 == _ENDED:
                return found, segment.position(entries), False
            elif word & 7 != _VOID:
                return found, segment.position(start + at), size <= _BATCH_BYTES
        return found, segment.position(start + len(words)), False

    def _take(self, segment: _Segment, number: int, word: int) -> Transaction:
        copy, position = segment.copies[-1], segment.position(number)
        for _ in range(_LOOKS):
            offset, size = (word >> 3 & ((1 << _PLACE_BITS) - 1)) * 8, (word >> 32) * 8
            if offset + size <= self._shape.data:
                transaction = decode(position, copy.read(self._shape.data_at(offset), size))
                if transaction is not None:
                    return transaction
            # The word may have been read while it was written: here it is read as a whole.
            word = _word(copy, self._shape.index_at(number))
        raise plasmon.ObjectDamaged(
            f"position {position} of log {self.name!r} has not the bytes that were written"
        )

    def _wait(self, segment: _Segment, position: int, timeout: float) -> None:
        copy = segment.copies[-1]
        copy.fetch_add(_WAITERS, 1)
        try:
            copy.wait(self._shape.index_at(position % self._shape.entries), 0, timeout=timeout)
        except plasmon.TimedOut:
            return
        finally:
            copy.fetch_add(_WAITERS, -1)

    def _count(self, segment: _Segment) -> int:
        """Number of transactions of a segment that is closed."""
        if segment.has_first:
            self._segments.clear()
            again = self._find(segment.number)
            if again is None or again.has_first:
                raise self._broken(segment.number, None)
            segment = again
        if not (end := _word(segment.copies[-1], _END)):
            raise self._broken(segment.number, None)
        return end - 1

    def _last(self) -> _Segment:
        number = max(self._current, self._root_word(_ROOT_LAST), self.oldest // self._shape.entries)
        segment = self._find(number) or self._make(number)
        while following := self._find(number + 1):
            number, segment = number + 1, following
        self._current = number
        return segment

    def _find(self, number: int) -> _Segment | None:
        """Segment of a number, if it is there and not trimmed."""
        if number in self._segments:
            return self._segments[number]
        copies: list[plasmon.Region | None] = []
        missing = 0
        for at in range(self._shape.copies):
            try:
                copy = self._client.map_region(self._copy_name(number, at), "rw")
                copies.append(None if copy.size == _TOMBSTONE else copy)
            except (plasmon.ObjectNotFound, plasmon.ObjectLost):
                missing += 1
                copies.append(None)
        first = copies[0]
        births = [0 if copy is None else _word(copy, _BIRTH) for copy in copies]
        others = [birth for birth in births[1:] if birth]
        if first is None and not others:
            return None
        has_first = first is not None and _word(first, _OPEN) != 0
        if first is not None and not has_first and (not others or others[0] == births[0]):
            return None
        if missing:
            self._check_trimmed((number + 1) * self._shape.entries - 1)
            raise self._broken(number, None)
        birth = births[0] if has_first else others[0]
        chain = [copy for copy, own in zip(copies, births, strict=True) if copy is not None and own == birth]
        self._segments = {one: segment for one, segment in self._segments.items() if one + 2 >= number}
        self._segments[number] = _Segment(self._shape, number, chain, has_first)
        return self._segments[number]

    def _make(self, number: int) -> _Segment:
        """Makes a segment, unless it is there."""
        oldest = self.oldest
        if number >= oldest // self._shape.entries + self._shape.segments:
            capacity = self._shape.data * self._shape.segments
            raise Full(
                f"log {self.name!r} is full: it has {capacity} bytes from position {oldest} on; trim it"
            )
        if (segment := self._find(number)) is None:
            members = [member["node"] for member in self._client.status()["cluster"]["members"]]
            if not set(self._shape.nodes) <= set(members):
                raise self._broken(number, None)
            size = self._shape.data_at(self._shape.data)
            copies = [
                self._client.create_region(self._copy_name(number, at), size, node=node, exist_ok=True)
                for at, node in enumerate(self._shape.nodes)
            ]
            if not _word(copies[0], _OPEN):
                drawn = secrets.randbits(63) | 1
                birth = copies[0].compare_swap(_BIRTH, 0, drawn) or drawn
                for copy in copies[1:]:
                    copy.compare_swap(_BIRTH, 0, birth)
                copies[0].swap(_OPEN, 1)
            segment = self._find(number)
        for root in self._roots:
            _raise(root, _ROOT_LAST, number)
        if segment is None:
            raise self._broken(number, None)
        return segment

    def _root_word(self, offset: int) -> int:
        words, failure = [], None
        for root in self._roots:
            try:
                words.append(_word(root, offset))
            except plasmon.Error as error:
                failure = error
        if not words:
            raise self._broken(0, failure)
        return max(words)

    def _check_trimmed(self, position: int) -> None:
        if position < (oldest := self.oldest):
            raise Trimmed(self.name, position, oldest)

    def _broken(self, number: int, why: Any) -> Broken:
        what = f"segment {number} of log {self.name!r} has lost a copy"
        return Broken(f"{what}: run `plasmon-log clean {self.name} --once`, and open it again ({why})")

    def _copy_name(self, number: int, copy: int) -> str:
        return f"log:{self.name}:{number}:{copy}"


def _check(name: str) -> None:
    if not 1 <= len(name.encode()) <= _MAX_NAME or ":" in name:
        raise plasmon.InvalidArgument(f"the name of a log has 1 to {_MAX_NAME} bytes and no colon: {name!r}")


def _word(region: plasmon.Region, offset: int) -> int:
    return int.from_bytes(region.read(offset, 8), "little")


def _raise(region: plasmon.Region, offset: int, value: int) -> None:
    """Makes a word at least so large."""
    found = _word(region, offset)
    while found < value:
        before = region.compare_swap(offset, found, value)
        if before == found:
            return
        found = before
