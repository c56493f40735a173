"""Values for the command line: `plasmon put --as`, `plasmon get --as` and `plasmon call --values` run this.

Arguments are the call (`put`, `get` or `call`), its options as JSON, `--`, and the file, the object or the
service.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any, BinaryIO

import plasmon
from plasmon import _values, errors
from plasmon._internal import printable
from plasmon._terms import Terms, rights

_CODES: list[tuple[type[Exception], int]] = [
    (errors.ObjectNotFound, 3),
    (errors.TimedOut, 4),
    (errors.ObjectExists, 5),
    (errors.Conflict, 5),
    (errors.StoreFull, 6),
    (errors.ObjectTooLarge, 6),
    (errors.Disconnected, 7),
    (errors.ObjectLost, 8),
    (errors.ObjectDamaged, 9),
    (errors.TooFewReplicas, 10),
    (errors.OutcomeUnknown, 12),
]
"""Exit codes of the command line for errors. Others have 1."""


def _table(file: str) -> Any:
    """Arrow table in a file, whose name tells the format."""
    suffix = Path(file).suffix.lower()
    if suffix in (".parquet", ".pq"):
        from pyarrow import parquet

        return parquet.read_table(file)
    if suffix == ".csv":
        from pyarrow import csv

        return csv.read_csv(file)
    if suffix in (".json", ".jsonl", ".ndjson"):
        from pyarrow import json as lines

        return lines.read_json(file)
    if suffix in (".arrow", ".feather"):
        from pyarrow import feather

        return feather.read_table(file)
    raise ValueError(f"{file} is no table: its name ends in .parquet, .csv, .json, .arrow or .feather")


def _read(file: str, kind: str) -> Any:
    """Value of a kind in a file, or in standard input."""
    if kind == "table":
        return _table(file)
    data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    if kind == "array":
        import numpy as np

        if not data.startswith(np.lib.format.MAGIC_PREFIX):
            raise ValueError(
                f"{file} is no array: it is not in NumPy's format .npy, which numpy.save writes. A table in "
                "CSV is put by `--as table`"
            )
        return np.load(io.BytesIO(data), allow_pickle=False)
    return json.loads(data) if kind == "json" else data.decode()


def _put(client: plasmon.Client, file: str, options: dict[str, Any]) -> None:
    encoded = _values.encode(_read(file, options["as"]))
    id, name, expected = options["id"], options["name"], options["expected"]
    oid, full_name = client._identify(id and plasmon.ObjectId.from_hex(id), name, options["private"])
    terms = Terms(
        full_name,
        rights(options["private"], options["public"]),
        options["timeout"],
        options["digest"],
        id is None and name is None,
        options["replicas"],
        options["ttl"],
        replace=options["replace"],
        expected=expected and plasmon.Version(expected),
    )
    version = client._store(oid, encoded, terms)
    told = {"id": str(oid), "name": name, "bytes": encoded.size, "version": version and str(version)}
    print(json.dumps(told) if options["json"] else oid)


def _plain(value: Any) -> Any:
    """Value that JSON has, in place of one that it has not."""
    if isinstance(value, (bytes, plasmon.Buffer)):
        return value.decode()
    for form in ("to_pylist", "to_dicts", "tolist"):  # Of Arrow, Polars and NumPy.
        if hasattr(value, form):
            return getattr(value, form)()
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON: get it in Python")


def _as_table(which: str, value: Any) -> Any:
    """Arrow table of a value that is one, or a frame of Polars or pandas."""
    import pyarrow as pa

    pandas = sys.modules.get("pandas")  # Who has got a frame of it has imported it.
    if pandas and isinstance(value, pandas.DataFrame):
        return pa.Table.from_pandas(value)
    table = value.to_arrow() if hasattr(value, "to_arrow") else value
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise TypeError(
            f"{which} is no table, but a {type(value).__name__}: `--as npy` writes arrays, `--as json` other "
            "values"
        )
    return table


def _write(which: str, value: Any, kind: str, out: BinaryIO) -> None:
    """Writes a value in the format of a kind."""
    if kind == "json":
        out.write(json.dumps(value, default=_plain).encode() + b"\n")
    elif kind == "npy":
        import numpy as np

        if not isinstance(value, np.ndarray):
            raise TypeError(f"{which} is no array, but a {type(value).__name__}: `--as json` prints it")
        np.lib.format.write_array(out, value, allow_pickle=False)
    elif kind == "csv":
        from pyarrow import csv

        csv.write_csv(_as_table(which, value), out)
    elif kind == "parquet":
        from pyarrow import parquet

        parquet.write_table(_as_table(which, value), out)
    else:
        import pyarrow as pa

        table = _as_table(which, value)
        with pa.ipc.new_file(out, table.schema) as writer:
            writer.write_table(table)


def _get(client: plasmon.Client, which: str, options: dict[str, Any]) -> None:
    kind, out = options["as"], sys.stdout.buffer
    if kind in ("npy", "parquet", "arrow") and out.isatty():
        raise ValueError(f"{kind} is no text for a terminal: `-o FILE` writes it to a file")
    value = client.get(which, options["timeout"], private=options["private"], verify=options["verify"])
    _write(which, value, kind, out)
    out.flush()


def _call(client: plasmon.Client, service: str, options: dict[str, Any]) -> None:
    """Calls a function of a service of values, and prints what it returns."""
    told, timeout = options["arguments"].strip(), options["timeout"]
    try:
        arguments = json.loads(told) if told else []
    except ValueError as error:
        told = "the arguments are no JSON, such as '[1, \"two\"]'"
        raise ValueError(f"{told}: {error}") from None
    if not isinstance(arguments, list):
        raise ValueError(f"the arguments are one value and no list: write '[{told}]'")
    with client.service(service, owner=options["owner"]) as found:
        value = found.invoke(options["function"], *arguments, timeout=timeout)
        told = json.dumps({"reply": value} if options["json"] else value, default=_plain)
    print(told, flush=True)


def main(arguments: list[str]) -> int:
    """Runs a call of the command line, and returns its exit code."""
    call, options, _, what = arguments
    try:
        with plasmon.connect() as client:
            {"put": _put, "get": _get, "call": _call}[call](client, what, json.loads(options))
        return 0
    except BrokenPipeError:  # Whoever reads has read enough, and what Python still writes goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        told = f"this needs {error.name}, which {sys.executable} does not have: install it there"
        code = 1
    except (errors.Error, OSError, ValueError, TypeError, LookupError, ArithmeticError) as error:
        code = next((code for kind, code in _CODES if isinstance(error, kind)), 1)
        told = str(error)
        if isinstance(error, errors.StoreFull):  # Its lines are printable.
            print(f"plasmon: {told}", file=sys.stderr)
            return code
    print(printable(f"plasmon: {told}"), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
