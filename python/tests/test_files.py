"""Tests of `plasmon put --as` and `plasmon get --as`, which run the package, and of values at a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

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
    assert said == {"id": str(plasmon.ObjectId.from_name("t")), "name": "t", "bytes": said["bytes"]}
    assert near.get("t", 30).equals(table)
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
