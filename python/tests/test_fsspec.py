"""Tests of the file system: fsspec's own abstract tests, and what they do not ask."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import plasmon
import pytest
from conftest import is_in_store, seen_beside

fsspec = pytest.importorskip("fsspec")

from fsspec.tests import abstract  # noqa: E402
from plasmon.fsspec import PlasmonFileSystem  # noqa: E402


@pytest.fixture
def fs(near: plasmon.Client) -> Any:
    fs = fsspec.filesystem("plasmon", socket=near.socket)
    assert isinstance(fs, PlasmonFileSystem)
    return fs


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, near: plasmon.Client) -> Any:
        return fsspec.filesystem("plasmon", socket=near.socket)

    @pytest.fixture
    def fs_join(self) -> Any:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self) -> str:
        return "tests"

    @pytest.fixture
    def supports_empty_directories(self) -> bool:
        return False


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


def test_files_are_objects(fs: Any, near: plasmon.Client, far: plasmon.Client) -> None:
    near.put(b"12345", name="a/b")
    with fs.open("plasmon://a/b") as file:
        assert file.read() == b"12345"
    fs.pipe_file("/c", b"678")
    assert far.get("c", timeout=30) == b"678"
    assert fs.cat_file("a/b", 1, -1) == b"234"
    assert fs.info("a/b")["size"] == 5
    assert fs.cat_file("a/b", 1).decode() == "2345"
    assert fs.cat(["a/b", "c"]) == {"a/b": b"12345", "c": b"678"}


def test_a_reader_beside_a_writer_of_a_file_always_finds_it(fs: Any, reader: plasmon.Client) -> None:
    there = fsspec.filesystem("plasmon", socket=reader.socket)

    def write(number: int) -> None:
        with fs.open("a/b", "w") as file:
            file.write(f"{number} " + "x" * 70_000 * (number % 2))

    def read() -> int:
        assert there.exists("a/b")
        with there.open("a/b", "r") as file:
            return int(file.read().split()[0])

    seen = seen_beside(write, read, 100)
    assert seen == sorted(seen)


def test_slashes_make_directories(fs: Any) -> None:
    fs.pipe({"a/b/c": b"1", "a/b/d": b"22", "a/e": b"333", "f": b"4444", "a-": b""})
    assert fs.ls("", detail=False) == ["a", "a-", "f"]
    assert fs.ls("a", detail=False) == ["a/b", "a/e"]
    assert [entry["type"] for entry in fs.ls("plasmon://a")] == ["directory", "file"]
    assert fs.ls("a/e", detail=False) == ["a/e"]
    assert fs.find("a") == ["a/b/c", "a/b/d", "a/e"]
    assert fs.find("a", maxdepth=1, withdirs=True) == ["a", "a/b", "a/e"]
    assert fs.glob("a/*/?") == ["a/b/c", "a/b/d"]
    assert fs.du("a") == 6
    assert list(fs.walk("a")) == [("a", ["b"], ["e"]), ("a/b", [], ["c", "d"])]
    assert (fs.isdir("a"), fs.isfile("a"), fs.exists("a"), fs.exists("b")) == (True, False, True, False)
    with pytest.raises(IsADirectoryError):
        fs.rm("a/b")
    fs.rm("a", recursive=True)
    assert fs.find("") == ["a-", "f"]
    for missing in ("a", "g"):
        with pytest.raises(FileNotFoundError):
            fs.ls(missing)
        with pytest.raises(FileNotFoundError):
            fs.rm(missing)


def test_names_that_are_no_paths_are_not_shown(fs: Any, near: plasmon.Client) -> None:
    for name in ("/a", "b/", "c//d"):
        near.put(b"", name=name)
    near.put(b"", name="e*[?")
    assert fs.find("") == ["e*[?"]
    assert fs.info("e*[?")["size"] == 0


def write_and_fail(file: Any, content: Any) -> None:
    with file:
        file.write(content)
        raise ValueError("on purpose")


def test_a_file_appears_when_it_is_closed(fs: Any) -> None:
    file = fs.open("a", "wb")
    file.write(b"1")
    assert not fs.exists("a")
    file.close()
    assert fs.cat_file("a") == b"1"
    with fs.open("a", "ab") as file:
        file.write(b"2")
    with pytest.raises(ValueError, match="on purpose"):
        write_and_fail(fs.open("a", "w"), "lost")
    with pytest.raises(ValueError, match="on purpose"):
        write_and_fail(fs.open("a", "wb"), b"lost")
    for mode, compression in (("wb", None), ("w", None), ("wb", "gzip"), ("w", "gzip")):
        file = fs.open("a", mode, compression=compression)
        file.write(b"never closed" if mode == "wb" else "never closed")
        del file
    assert fs.cat_file("a") == b"12"
    assert fs.read_text("a") == "12"


def test_of_two_that_make_a_file_one_succeeds(fs: Any) -> None:
    first, second = fs.open("a", "xb"), fs.open("a", "xb")
    first.write(b"first")
    first.close()
    second.write(b"second")
    with pytest.raises(FileExistsError):
        second.close()
    assert fs.cat_file("a") == b"first"


def test_a_transaction_writes_at_its_end(fs: Any) -> None:
    with fs.transaction:
        with fs.open("a", "wb") as file:
            file.write(b"1")
        assert not fs.exists("a")
    assert fs.cat_file("a") == b"1"
    with pytest.raises(ValueError, match="on purpose"), fs.transaction:
        write_and_fail(fs.open("a", "wb"), b"2")
    assert fs.cat_file("a") == b"1"


def test_open_files_read_as_files_do(fs: Any) -> None:
    lines = [b"a" * length + b"\n" for length in (0, 1, 8191, 8192, 30000)] + [b"end"]
    fs.pipe_file("a", b"".join(lines))
    with fs.open("a") as file:
        assert list(file) == lines
        assert file.seek(-3, 2) == file.size - 3
        assert file.read() == b"end"
        assert file.read(1) == b""
        file.seek(1)
        assert file.readinto(target := bytearray(3)) == 3
        assert target == b"a\na"
        assert file.tell() == 4
        assert file.readline(2) == b"aa"
        with pytest.raises(ValueError, match="seek"):
            file.seek(-1)
    with pytest.raises(ValueError, match="closed"):
        file.read()
    with pytest.raises(FileNotFoundError):
        fs.open("b")
    with pytest.raises(ValueError, match="never change"):
        fs.open("a", "r+b")


def test_compressed_files(fs: Any) -> None:
    for mode, compression in (("t", "gzip"), ("b", "bz2"), ("b", "infer")):
        text = "text" if mode == "t" else b"bytes"
        with fs.open("a.xz", f"w{mode}", compression=compression) as file:
            file.write(text)
        assert fs.cat_file("a.xz") not in (b"text", b"bytes")
        with pytest.raises(ValueError, match="on purpose"):
            write_and_fail(fs.open("a.xz", f"w{mode}", compression=compression), text * 2)
        with fs.open("a.xz", f"r{mode}", compression=compression) as file:
            assert file.read() == text


def test_a_copy_keeps_the_form_of_a_value(fs: Any, near: plasmon.Client) -> None:
    near.put([1, 2], name="a/list")
    fs.cp("a/list", "b")
    fs.mv("b", "c")
    assert near.get("c") == [1, 2]
    assert fs.find("") == ["a/list", "c"]
    key = fs.ukey("c")
    near.mapping()["c"] = [3]
    assert fs.ukey("c") != key


def test_it_goes_to_other_programs(fs: Any, near: plasmon.Client) -> None:
    again = pickle.loads(pickle.dumps(fs))
    fs.pipe_file("a", b"1")
    assert again.cat_file("a") == b"1"
    mapper = fsspec.get_mapper("plasmon://m", socket=near.socket)
    mapper["k"] = b"v"
    assert (mapper["k"], list(mapper), near.contains("m/k")) == (b"v", ["k"], True)
    private = fsspec.filesystem("plasmon", socket=near.socket, private=True, replicas=2)
    private.pipe_file("a", b"mine")
    assert (fs.cat_file("a"), private.cat_file("a"), private.find("")) == (b"1", b"mine", ["a"])


def test_frames_are_read_and_written_by_their_urls(near: plasmon.Client) -> None:
    options = {"socket": near.socket}
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame = pd.DataFrame({"a": range(1000), "b": [str(number) for number in range(1000)]})
    frame.to_parquet("plasmon://frames/a.parquet", storage_options=options)
    frame.to_csv("plasmon://frames/a.csv", index=False, storage_options=options)
    assert pd.read_parquet("plasmon://frames/a.parquet", storage_options=options).equals(frame)
    assert pd.read_csv("plasmon://frames/a.csv", dtype={"b": "str"}, storage_options=options).equals(frame)
    fs = fsspec.filesystem("plasmon", **options)
    with fs.open("frames/a.parquet") as file:
        assert pl.read_parquet(file)["a"].sum() == 499_500


def test_bytes_are_read_in_place(fs: Any) -> None:
    np = pytest.importorskip("numpy")
    fs.pipe_file("a", bytes(1 << 20))
    with fs.open("a") as file:
        for data in (file.getbuffer(), fs.cat_file("a"), fs.cat_file("a", 10, -10)):
            assert is_in_store(np.frombuffer(data, np.uint8).ctypes.data)
        del data


def test_pyarrow_reads_in_place(fs: Any, near: plasmon.Client) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import dataset, ipc
    from pyarrow.fs import FSSpecHandler, PyFileSystem

    table = pa.table({"a": range(100_000), "b": [float(number) for number in range(100_000)]})
    with fs.open("tables/1.arrow", "wb") as file, ipc.new_file(file, table.schema) as writer:
        writer.write(table)
    with PyFileSystem(FSSpecHandler(fs)).open_input_file("tables/1.arrow") as file:
        read = ipc.open_file(file).read_all()
    assert read == table
    assert is_in_store(read["a"].chunk(0).buffers()[1].address)
    del read, file, writer
    read = dataset.dataset("tables", filesystem=fs, format="ipc").to_table()
    assert read.num_rows == 100_000


def test_it_connects_again_to_a_new_node(tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    fs = fsspec.filesystem("plasmon", socket=str(socket))
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        socket.symlink_to(cluster.sockets[0])
        fs.pipe_file("a", b"1")
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        socket.unlink()
        socket.symlink_to(cluster.sockets[0])
        with pytest.raises(plasmon.Disconnected):
            fs.pipe_file("a", b"2")
        fs.pipe_file("a", b"3")
        assert fs.cat_file("a") == b"3"
