"""Tests of puts while another thread imports the packages that such values may come from."""

from __future__ import annotations

import subprocess
import sys

import plasmon
import pytest
from conftest import ANTI_HANG

PUTS_WHILE_IMPORTING = """
import importlib.abc, sys, threading
import plasmon

package, socket = sys.argv[1:]
amid, go_on = threading.Event(), threading.Event()

class Halt(importlib.abc.MetaPathFinder):
    # Finds nothing; holds up the first import of a part of the package, whose own module is half made then.
    def find_spec(self, name, path=None, target=None):
        if name.startswith(package + ".") and not amid.is_set():
            amid.set()
            assert go_on.wait(60)

sys.meta_path.insert(0, Halt())
importing = threading.Thread(target=__import__, args=[package], daemon=True)
importing.start()
assert amid.wait(60), "the package has no parts"
with plasmon.connect(socket) as client:
    for value in [{"a": 1}, [1.5], "text", b"bytes", plasmon.ObjectId.random()]:
        assert client.get(client.put(value)) == value
        [put] = client.put_many([value])
        assert client.get(put) == value
go_on.set()
importing.join()
"""


@pytest.mark.parametrize("package", ["numpy", "pyarrow"])
def test_values_are_put_while_another_thread_imports(near: plasmon.Client, package: str) -> None:
    command = [sys.executable, "-c", PUTS_WHILE_IMPORTING, package, near.socket]
    subprocess.run(command, check=True, timeout=ANTI_HANG)
