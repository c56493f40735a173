"""Tests of `plasmon put --as` and `plasmon get --as`, which run the package, and of values at a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import plasmon
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from conftest import ANTI_HANG
from plasmon._cluster import find_binary


def command(
    near: plasmon.Client, *arguments: object, given: bytes = b"", output: int = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [str(find_binary()), "--socket", near.socket, *map(str, arguments)],
        input=given,
        stdout=output,
        stderr=subprocess.PIPE,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        timeout=ANTI_HANG,
        check=False,
    )


def told(near: plasmon.Client, *arguments: object, given: bytes = b"") -> str:
    done = command(near, *arguments, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def test_files_are_put_as_tables(near: plasmon.Client, tmp_path: Path) -> None:
    table = pa.table({"number": [1, 2, 3], "text": ["a", None, "c"]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    pyarrow.feather.write_feather(table, tmp_path / "x.feather")
    (tmp_path / "x.csv").write_text("number,text\n1,a\n")
    (tmp_path / "x.jsonl").write_text('{"number": 1}\n')
    oid = told(near, "put", tmp_path / "x.parquet", "--as", "table").strip()
    assert near.get(oid, 30).equals(table)
    said = json.loads(told(near, "--json", "put", tmp_path / "x.feather", "--as", "table", "--name", "t"))
    name = {"id": str(plasmon.ObjectId.from_name("t")), "name": "t"}
    assert said == {**name, "bytes": len(near.get_buffers(["t"])[0]), "version": None}
    assert near.get("t", 30).equals(table)
    over = ("put", tmp_path / "x.csv", "--as", "table", "--name", "t", "--replace")
    said = json.loads(told(near, "--json", *over))
    assert near.get("t", version=True)[1] == plasmon.Version(said["version"])
    assert said == {**name, "bytes": len(near.get_buffers(["t"])[0]), "version": said["version"]}
    assert near.get("t").to_pylist() == [{"number": 1, "text": "a"}]
    over = ("put", tmp_path / "x.parquet", "--as", "table", "--name", "t", "--replace")
    told(near, *over, "--expected", said["version"])
    assert command(near, *over, "--expected", said["version"]).returncode == 5
    told(near, "put", tmp_path / "x.csv", "--as", "table", "--name", "csv", "--private")
    assert near.get("csv", 30, private=True).to_pylist() == [{"number": 1, "text": "a"}]
    told(near, "put", tmp_path / "x.jsonl", "--as", "table", "--name", "lines")
    assert near.get("lines", 30).to_pylist() == [{"number": 1}]
    assert told(near, "get", "t", "--as", "csv").splitlines()[:2] == ['"number","text"', '1,"a"']
    assert json.loads(told(near, "get", "t", "--as", "json")) == table.to_pylist()


def test_files_are_put_as_arrays_json_and_text(near: plasmon.Client, tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(3, 4)
    np.save(tmp_path / "x.npy", array)
    told(near, "put", tmp_path / "x.npy", "--as", "array", "--name", "array")
    assert np.array_equal(near.get("array", 30), array)
    assert json.loads(told(near, "get", "array", "--as", "json")) == array.tolist()
    told(near, "put", "-", "--as", "json", "--name", "settings", given=b'{"rows": [1, null]}')
    assert near.get("settings", 30) == {"rows": [1, None]}
    assert told(near, "get", "settings", "--as", "json") == '{"rows": [1, null]}\n'
    told(near, "put", "-", "--as", "text", "--name", "text", given="é".encode())
    assert near.get("text", 30) == "é"
    near.put(b"plain", name="bytes")
    assert told(near, "get", "bytes", "--as", "json") == '"plain"\n'


def test_what_cannot_be_put_or_printed_is_told(near: plasmon.Client, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("no table")
    near.put({"a": {1, 2}}, name="set")

    def refused(*arguments: object) -> tuple[int, str]:
        done = command(near, *arguments)
        assert b"Traceback" not in done.stderr
        return done.returncode, done.stderr.decode()

    assert refused("put", tmp_path / "x.txt", "--as", "table")[0] == 1
    assert "ends in .parquet" in refused("put", tmp_path / "x.txt", "--as", "table")[1]
    assert refused("put", tmp_path / "x.txt", "--as", "json")[0] == 1
    assert refused("put", tmp_path / "none.npy", "--as", "array")[0] == 1
    assert refused("put", tmp_path / "x.txt", "--as", "text", "--name", "set")[0] == 5
    assert "type set" in refused("get", "set", "--as", "json")[1]
    assert "is no table" in refused("get", "set", "--as", "csv")[1]
    assert refused("get", "nothing", "--as", "json", "--timeout", "0.1")[0] == 4


def test_values_are_written_as_the_kind_or_the_name_of_the_file_says(
    near: plasmon.Client, tmp_path: Path
) -> None:
    table, array = pa.table({"number": [1, 2, 3], "text": ["a", None, "c"]}), np.arange(6.0).reshape(2, 3)
    near.put(table, name="t")
    near.put(array, name="a")
    near.put({"frame": 1}, name="pickle")

    def written(*arguments: object) -> Path:
        path = tmp_path / str(arguments[-1])
        assert str(path) in told(near, "get", *arguments[:-1], "-o", path)
        return path

    assert pyarrow.parquet.read_table(written("t", "x.parquet")).equals(table)
    assert pyarrow.parquet.read_table(written("t", "--as", "parquet", "y")).equals(table)
    assert pyarrow.feather.read_table(written("t", "x.arrow")).equals(table)
    assert written("t", "x.csv").read_text().splitlines()[1] == '1,"a"'
    assert np.array_equal(np.load(written("a", "x.npy")), array)
    assert json.loads(written("a", "x.json").read_text()) == array.tolist()
    assert json.loads(written("pickle", "--as", "json", "p.json").read_text()) == {"frame": 1}
    # The bytes as they are.
    assert written("t", "--raw", "z.parquet").read_bytes() == bytes(near.get_buffers(["t"])[0])
    assert written("t", "x.bin").read_bytes() == bytes(near.get_buffers(["t"])[0])
    said = json.loads(told(near, "--json", "get", "a", "-o", tmp_path / "j.npy"))
    assert said == {
        "id": str(plasmon.ObjectId.from_name("a")),
        "bytes": (tmp_path / "j.npy").stat().st_size,
        "output": str(tmp_path / "j.npy"),
    }
    # `put --as` reads a file that `get --as` has written.
    told(near, "put", tmp_path / "x.arrow", "--as", "table", "--name", "again")
    assert near.get("again", 30).equals(table)


def test_a_file_is_not_written_if_the_value_is_of_another_kind(near: plasmon.Client, tmp_path: Path) -> None:
    near.put({"a": 1}, name="pickle")
    near.put(np.zeros(3), name="array")
    near.put(pa.table({"a": [1]}), name="table")
    for name, path, code, what in [
        ("pickle", "x.parquet", 1, "`--as parquet` writes it so"),
        ("array", "x.csv", 1, "is no table, but a ndarray"),
        ("table", "x.npy", 1, "is no array, but a Table"),
    ]:
        done = command(near, "get", name, "-o", tmp_path / path)
        assert done.returncode == code
        assert what in done.stderr.decode()
        assert not (tmp_path / path).exists()
    done = command(near, "get", "nothing", "--as", "json", "--timeout", "0", "-o", tmp_path / "x.json")
    assert (done.returncode, list(tmp_path.iterdir())) == (3, [])
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    done = command(near, "put", tmp_path / "table.csv", "--as", "array")
    assert done.returncode == 1
    assert "is no array: it is not in NumPy's format .npy" in done.stderr.decode()


def test_a_reader_that_has_read_enough_is_no_failure(near: plasmon.Client) -> None:
    near.put(pa.table({"a": range(1_000_000)}), name="long")
    shell = subprocess.run(
        ["bash", "-c", '"$0" get long --as csv | head -n 1; exit ${PIPESTATUS[0]}', str(find_binary())],
        env={**os.environ, "PLASMON_SOCKET": near.socket},
        capture_output=True,
        timeout=ANTI_HANG,
        check=False,
    )
    assert (shell.returncode, shell.stdout, shell.stderr) == (0, b'"a"\n', b"")


def test_a_full_store_is_told_in_lines(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("x" * (40 << 20))
    with plasmon.LocalCluster(nodes=1, memory="64MiB") as cluster:
        client = cluster.client()
        held = client.get(client.put(bytes(40 << 20)))
        with pytest.raises(plasmon.StoreFull) as full:
            client.put(bytes(40 << 20))
        lines = str(full.value).splitlines()
        assert "the store is full: 40.0 MiB wanted, 24.0 MiB free" in lines[0]
        assert "  primary: 40.0 MiB" in lines
        assert all(len(line) < 200 for line in lines)
        done = command(client, "put", tmp_path / "x.txt", "--as", "text")
        assert done.returncode == 6
        told = done.stderr.decode().splitlines()
        assert "the store is full: 40.0 MiB wanted" in told[0]
        assert "  primary: 40.0 MiB" in told
        del held


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ({"a": 1}, "a pickled value of Python"),
        (np.zeros((2, 3)), "a NumPy array of shape [2,3]"),
        (pa.table({"a": [1]}), "an Arrow table"),
    ],
)
def test_a_value_is_described_at_a_terminal(near: plasmon.Client, value: object, what: str) -> None:
    near.put(value, name="value")
    stored = bytes(near.get_buffers(["value"])[0])
    assert command(near, "get", "value").stdout == stored
    assert command(near, "get", "value", "--raw").stdout == stored
    screen, terminal = pty.openpty()
    try:
        done = command(near, "get", "value", output=terminal)
        assert done.returncode == 1
        assert what in done.stderr.decode()
        near.put(b"plain text", name="text")
        assert command(near, "get", "text", output=terminal).returncode == 0
        assert os.read(screen, 1000) == b"plain text"
    finally:
        os.close(screen)
        os.close(terminal)


def test_functions_of_values_are_called(near: plasmon.Client) -> None:
    functions: dict[str, Any] = {
        "add": lambda one, other: one + other,
        "table": lambda: pa.table({"a": [1, 2]}),
        "none": lambda: None,
    }
    plain = {"upper": lambda data: b"plain"}
    with near.serve("sums", functions, values=True), near.serve("bytes", plain):
        assert told(near, "call", "sums", "add", "[1, 2.5]", "--values") == "3.5\n"
        assert (
            told(near, "call", "sums", "add", "-", "--values", given=b'["a", "\xc3\xa4"]') == '"a\\u00e4"\n'
        )
        assert json.loads(told(near, "call", "sums", "table", "--values")) == [{"a": 1}, {"a": 2}]
        assert json.loads(told(near, "--json", "call", "sums", "none", "--values")) == {"reply": None}
        for arguments, said in [
            (["sums", "add", "1", "--values"], "write '[1]'"),
            (["sums", "add", "[1", "--values"], "are no JSON"),
            (["sums", "add", '[1, "a"]', "--values"], "TypeError"),
            (["sums", "add", "[1, 2]"], "`plasmon call --values`"),
            (["bytes", "upper", "[]", "--values"], "`plasmon call`"),
        ]:
            done = command(near, "call", *arguments)
            assert done.returncode == 1, done.stderr
            assert said in done.stderr.decode(), done.stderr
            assert "unpack" not in done.stderr.decode(), done.stderr
        assert command(near, "call", "nobody", "x", "--values").returncode == 3
