"""File system of fsspec over named objects: `plasmon://name`.

    import fsspec

    with fsspec.open("plasmon://tables/a.csv", "w") as file:
        file.write("x,y")
    fs = fsspec.filesystem("plasmon")
    fs.ls("tables")

A file is an object of plain bytes whose name is the path. "/" in names makes directories, which exist as long
as they have files. A file appears when it is closed, whole; an exception in its `with` block leaves what was
there. Names that begin or end with "/", or that have empty parts, are no paths: the file system does not show
them.

Reads are in place by `cat_file`, by `getbuffer()` of an open file and by PyArrow; other reads of open files
copy what they return. An object that another program put in another form than bytes is read as the bytes that
it has in the store.
"""

from __future__ import annotations

import functools
import io
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.compression import compr
from fsspec.core import get_compression

from plasmon import _values
from plasmon._internal import Buffer
from plasmon._named import Names, SharedNames
from plasmon._records import ObjectInfo, Public
from plasmon._values import Encoded
from plasmon.errors import ObjectExists, ObjectNotFound

if TYPE_CHECKING:
    from typing_extensions import Buffer as Readable

__all__ = ["PlasmonFileSystem"]

_TEXT_OPTIONS = ("encoding", "errors", "newline")
_LINE_BYTES = 8192
"""Size of the pieces in which the end of a line is looked for."""


@contextmanager
def _errors_of_files(path: str) -> Iterator[None]:
    """Raises the errors of files in place of those of objects."""
    try:
        yield
    except ObjectNotFound as error:
        raise FileNotFoundError(f"there is no object of the name {path!r} in the cluster") from error
    except ObjectExists as error:
        raise FileExistsError(str(error)) from error


class PlasmonFileSystem(AbstractFileSystem):
    """Named objects as files.

    Args:
        socket: Path of the node's socket, by default as for `plasmon.connect`.
        private: Whether the files are this user's private objects.
        public: As in `plasmon.Client.put`, for files that are written.
        timeout: As in `plasmon.Client.mapping`.
        replicas: As in `plasmon.Client.put`.
        ttl: As in `plasmon.Client.put`.
        storage_options: As for every file system of fsspec.
    """

    protocol = "plasmon"
    root_marker = ""

    def __init__(
        self,
        socket: str | None = None,
        *,
        private: bool = False,
        public: Public | None = None,
        timeout: float | None = None,
        replicas: int = 1,
        ttl: float | None = None,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        self._names = SharedNames(
            socket, private=private, public=public, timeout=timeout, replicas=replicas, ttl=ttl
        )

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(path)
        return stripped.strip("/") if isinstance(stripped, str) else stripped

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        """Lists a directory, or a single file."""
        path = self._strip_protocol(path)
        found = self._below(path, maxdepth=1, withdirs=True)
        if not found and path:
            found = {path: self.info(path)}
        return list(found.values()) if detail else list(found)

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Lists the files below a path, by one question to the cluster."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        path = self._strip_protocol(path)
        found = self._below(path, maxdepth, withdirs)
        if found and withdirs and path:
            found[path] = _directory(path)
        elif not found and path and (row := self._row(path)) is not None:
            found[path] = _file(path, row)
        return dict(sorted(found.items())) if detail else sorted(found)

    def _below(self, path: str, maxdepth: int | None, withdirs: bool) -> dict[str, dict[str, Any]]:
        """Files below a directory, and directories if wanted, with what `info` tells of them."""
        begin = f"{path}/" if path else ""
        found: dict[str, dict[str, Any]] = {}
        for row in self._names.run(lambda names: names.rows(begin)):
            assert row.name is not None
            parts = row.name[len(begin) :].split("/")
            if "" in parts:
                continue
            if withdirs:
                for depth in range(1, min(len(parts), (maxdepth or len(parts)) + 1)):
                    name = begin + "/".join(parts[:depth])
                    found.setdefault(name, _directory(name))
            if maxdepth is None or len(parts) <= maxdepth:
                found[row.name] = _file(row.name, row)
        return dict(sorted(found.items()))

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        """Name, type and size of a file, or of a directory that has files."""
        path = self._strip_protocol(path)
        if path and (row := self._row(path)) is not None:
            return _file(path, row)
        if self.isdir(path):
            return _directory(path)
        raise FileNotFoundError(f"there is no object of the name {path!r} in the cluster, nor below it")

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether there is such a file, or a file below it."""
        return self.isfile(path) or self.isdir(path)

    def isfile(self, path: str) -> bool:
        """Whether there is an object of this name."""
        path = self._strip_protocol(path)
        return bool(path) and self._names.run(lambda names: names.contains(path))

    def isdir(self, path: str) -> bool:
        """Whether there are files below this path."""
        path = self._strip_protocol(path)
        return not path or bool(self._below(path, maxdepth=1, withdirs=True))

    def ukey(self, path: str) -> str:
        """Digest of a file's bytes, which tells whether the file has been replaced."""
        path = self._strip_protocol(path)
        return self._read(path).digest().hex()

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> Buffer | bytes:
        """Bytes of a file, or a part of them, in place: a `Buffer`, which is used like `bytes`."""
        return self._read(self._strip_protocol(path))[start:end]

    def _read(self, path: str) -> Buffer:
        """Object of a file, brought to this node."""
        with _errors_of_files(path):
            return self._names.run(lambda names: names.read(path))

    def _row(self, path: str) -> ObjectInfo | None:
        return self._names.run(lambda names: names.row(path))

    def pipe_file(self, path: str, value: Readable, mode: str = "overwrite", **kwargs: Any) -> None:
        """Writes a file at once. With the mode "create" the file must be new."""
        data = _values.flat(memoryview(value))
        self._write(self._strip_protocol(path), _plain(data), new=mode == "create")

    def put_file(
        self,
        lpath: str,
        rpath: str,
        callback: Any = DEFAULT_CALLBACK,
        mode: str = "overwrite",
        **kwargs: Any,
    ) -> None:
        """Copies a file of this host into the store."""
        if os.path.isdir(lpath):
            return
        with open(lpath, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            callback.set_size(size)
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) if size else b""
            self.pipe_file(rpath, data, mode=mode)
            callback.relative_update(size)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copies a file within the store, also an object that is not plain bytes."""
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if not self.isfile(path1) and self.isdir(path1):
            return
        source = self._read(path1)
        if path1 != path2:
            self._write(path2, _plain(memoryview(source))._replace(metadata=source.metadata))

    def _rm(self, path: str) -> None:
        path = self._strip_protocol(path)
        if not path or not self._names.run(lambda names: names.delete(path)):
            raise FileNotFoundError(f"there is no object of the name {path!r} in the cluster")

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Deletes files; with `recursive` all files of directories."""
        paths = [one for one in self.expand_path(path, recursive=recursive, maxdepth=maxdepth) if one]
        deleted = self._names.run(lambda names: names.delete_all(paths))
        if recursive:
            return
        for one in (one for one, was_there in zip(paths, deleted, strict=True) if not was_there):
            if self.isdir(one):
                raise IsADirectoryError(f"{one!r} is a directory: rm(..., recursive=True) deletes its files")
            raise FileNotFoundError(f"there is no object of the name {one!r} in the cluster")

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        """Makes a file empty, or leaves it as it is if `truncate` is false."""
        if truncate or not self.isfile(path):
            self.pipe_file(path, b"")

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Opens a file: to read it in place, or to write it as a whole.

        A file that was written appears when it is closed. At the end of a `with` block that raised, nothing
        is written.
        """
        text = {option: kwargs.pop(option) for option in _TEXT_OPTIONS if option in kwargs}
        binary_mode = mode if "b" in mode else mode.replace("t", "") + "b"
        raw = super().open(path, binary_mode, block_size, cache_options, **kwargs)
        file = raw
        if (kind := get_compression(self._strip_protocol(path), compression)) is not None:
            file = compr[kind](raw, mode=binary_mode[0])
            if isinstance(raw, _Writer):
                file = _Compressed(file, raw)
        return file if "b" in mode else _Text(file, raw, **text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> io.BufferedIOBase:
        if mode == "rb":
            return _Reader(memoryview(self._read(path)), path)
        if mode not in ("wb", "xb", "ab"):
            raise ValueError(f"a file cannot be opened in mode {mode!r}: objects never change")
        if not path:
            raise IsADirectoryError("the root is a directory")
        there = mode != "wb" and self.isfile(path)
        if there and mode == "xb":
            raise FileExistsError(f"there is an object of the name {path!r} already")
        begin = self._read(path) if there else b""
        write = functools.partial(self._write, path, new=mode == "xb")
        return _Writer(write, begin, path, autocommit)

    def _write(self, path: str, encoded: Encoded, new: bool = False) -> None:
        """Stores a file, in place of one that is there unless the file has to be new."""
        if not path:
            raise IsADirectoryError("the root is a directory")
        store = Names.add if new else Names.replace
        with _errors_of_files(path):
            self._names.run(lambda names: store(names, path, encoded))


class _Reader(io.BufferedIOBase):
    """File that is read from the memory of the store."""

    mode = "rb"

    def __init__(self, data: memoryview, path: str) -> None:
        self.path = path
        self.size = data.nbytes
        self._data = data
        self._at = 0

    def getbuffer(self) -> memoryview:
        """All bytes of the file, in place."""
        return self._data

    def read_buffer(self, size: int | None = -1, /) -> memoryview:
        """Reads bytes in place. PyArrow calls this method."""
        self._check()
        end = self.size if size is None or size < 0 else min(self._at + size, self.size)
        begin, self._at = min(self._at, end), max(self._at, end)
        return self._data[begin:end]

    def read(self, size: int | None = -1, /) -> bytes:
        return bytes(self.read_buffer(size))

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)

    def readinto(self, into: Any, /) -> int:
        target = memoryview(into).cast("B")
        data = self.read_buffer(target.nbytes)
        target[: data.nbytes] = data
        return data.nbytes

    def readline(self, size: int | None = -1, /) -> bytes:
        self._check()
        end = self.size if size is None or size < 0 else min(self._at + size, self.size)
        line = bytearray()
        while self._at < end:
            piece = bytes(self._data[self._at : min(self._at + _LINE_BYTES, end)])
            length = piece.find(b"\n") + 1
            line += piece[: length or len(piece)]
            self._at += length or len(piece)
            if length:
                break
        return bytes(line)

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._check()
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if begin + offset < 0:
            raise ValueError(f"cannot seek to {begin + offset}, before the begin of the file")
        self._at = begin + offset
        return self._at

    def tell(self) -> int:
        self._check()
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._data = memoryview(b"")
        super().close()

    def _check(self) -> None:
        if self.closed:
            raise ValueError(f"the file {self.path!r} is closed")


class _Aborting(io.IOBase):
    """File that is not stored if its `with` block raises."""

    def abort(self) -> None:
        """Has the file not be stored when it is closed."""
        raise NotImplementedError

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()
        self.close()


class _Writer(_Aborting, io.BytesIO):
    """File that is written: an object appears when it is closed."""

    mode = "wb"

    def __init__(
        self, write: Callable[[Encoded], None], begin: Readable, path: str, autocommit: bool
    ) -> None:
        super().__init__(begin)
        self.seek(0, io.SEEK_END)
        self.path = path
        self._write = write
        self._autocommit = autocommit
        self._value: bytes | None = None

    def close(self) -> None:
        if self.closed:
            return
        self._value = self.getvalue()
        super().close()
        if self._autocommit:
            self.commit()

    def commit(self) -> None:
        """Stores the file, at its close or at the end of a transaction."""
        value, self._value = self._value, None
        if value is not None:
            self._write(_plain(memoryview(value)))

    def discard(self) -> None:
        """Closes the file without storing it."""
        self._autocommit = False
        self.close()
        self._value = None

    def abort(self) -> None:
        """Has the file not be stored when it is closed."""
        self._write = _forget

    def __del__(self) -> None:
        # A file that nobody has closed was not finished.
        self.discard()


class _Compressed(_Aborting, io.BufferedIOBase):
    """File that is written compressed, and closed together with the file below."""

    def __init__(self, file: Any, raw: _Writer) -> None:
        self._file = file
        self._raw = raw

    def write(self, data: Any, /) -> int:
        written: int = self._file.write(data)
        return written

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._file.close()
            self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def __del__(self) -> None:
        self.abort()


class _Text(_Aborting, io.TextIOWrapper):
    """Text in a file, which is not stored if its `with` block raises."""

    def __init__(self, file: Any, raw: io.BufferedIOBase, **options: Any) -> None:
        super().__init__(file, **options)
        self._raw = raw

    def __del__(self) -> None:
        self.abort()

    def abort(self) -> None:
        if isinstance(self._raw, _Writer):
            self._raw.abort()


def _forget(encoded: Encoded) -> None:
    """Stores nothing, in place of a call that stores a file."""


def _plain(data: memoryview) -> Encoded:
    """Plain bytes, ready to be stored."""
    return Encoded(b"", data.nbytes, [(0, data)])


def _directory(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}


def _file(path: str, row: ObjectInfo) -> dict[str, Any]:
    return {"name": path, "size": row.size, "type": "file", "id": row.id.hex()}
