"""Store for programs that use Plasma: a node of Plasmon that takes Plasma's options.

`plasma-store-server` becomes `plasmon serve`, so that signals and the exit status are the node's.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from plasmon import errors
from plasmon._cluster import find_binary, folder_for_sockets
from plasmon._internal import printable

_START_SECONDS = 60.0
"""Longest time in seconds for a store to serve."""
_STOP_SECONDS = 20.0
"""Longest time in seconds for a store to end after SIGTERM."""
_POLL_SECONDS = 0.01
_EXTRA_BYTES = 4 << 20
_EXTRA_PART = 32
"""Memory in addition to that of the objects: at least so many bytes, or this part of it.

A node divides its memory into segments, and small and large objects lie in different ones. With two more
segments, an object as large as the whole store finds room beside an empty segment. A node needs at least as
many to start, while Plasma had stores of any size.
"""


@contextlib.contextmanager
def start_plasma_store(
    plasma_store_memory: int,
    use_valgrind: bool = False,
    use_profiler: bool = False,
    plasma_directory: str | None = None,
    use_hugepages: bool = False,
    external_store: str | None = None,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Starts a store for a `with` block, and stops it at the end.

    Args:
        plasma_store_memory: Limit in bytes for all objects, data and metadata.
        use_valgrind: Ignored.
        use_profiler: Ignored.
        plasma_directory: Ignored: the memory is not in files of a directory.
        use_hugepages: Ignored: huge pages are used if there are any.
        external_store: Folder for objects that find no room in memory, as a URL `file:///folder`. For
            Plasma's `hashtable://name` it is a folder that is removed with the store.

    Yields:
        Path of the store's socket, and its process.

    Raises:
        RuntimeError: The store did not start, as the standard error output explains; or the external store is
            no such URL.
    """
    if use_valgrind and use_profiler:
        raise ValueError("Plasma does not run under valgrind and a profiler at once")
    folder = folder_for_sockets("plasma-", "plasma.sock")
    process: subprocess.Popen[bytes] | None = None
    try:
        socket = os.path.join(folder, "plasma.sock")
        command = [*_command(socket, plasma_store_memory, external_store), "--exit-with-parent"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        _wait_until_it_serves(process, socket)
        yield socket, process
    finally:
        if process is not None:
            _stop(process)
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The program `plasma-store-server`."""
    options = _parser().parse_args(arguments)
    try:
        command = _command(options.s, options.m, options.e or None)
    except (RuntimeError, errors.Error) as error:
        _fail(str(error))
    if options.d or options.h:
        _say("huge pages are used if there are enough, and the log says so; -d and -h change nothing")
    try:
        os.execv(command[0], command)
    except OSError as error:
        _fail(f"cannot run {command[0]}: {error.strerror}")


def _command(socket: str, memory: int, external_store: str | None) -> list[str]:
    """Command that starts the node."""
    command = [str(find_binary()), "serve", "--socket", socket, "--capacity", str(memory)]
    command += ["--memory", str(memory + max(memory // _EXTRA_PART, _EXTRA_BYTES))]
    # A store is alone in its cluster, and a host may have several.
    command += ["--listen", "127.0.0.1:0"]
    # With Plasma every user who may connect may delete any object.
    command += ["--public", "rw"]
    if external_store is None:
        return [*command, "--cache"]
    return [*command, "--spill-dir", str(_spill_folder(external_store, socket))]


def _spill_folder(external_store: str, socket: str) -> Path:
    """Folder for objects that Plasma would write to an external store."""
    url = urlsplit(external_store)
    if url.scheme == "file" and url.path.startswith("/") and not url.netloc:
        return Path(url.path)
    if url.scheme == "hashtable":
        return Path(f"{socket}.spill")
    raise RuntimeError(
        f"no such external store: {external_store!r}; Plasmon writes to a folder, named as file:///folder"
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "plasma-store-server",
        description="Starts a node of Plasmon with the options of Plasma's store. It drops what was not used "
        "for longest when it is full. SIGTERM ends it.",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("-s", "--s", metavar="SOCKET", required=True, help="path of the socket")
    parser.add_argument("-m", "--m", metavar="BYTES", required=True, type=_memory, help="memory for objects")
    parser.add_argument("-d", "--d", metavar="FOLDER", help="without meaning: memory is in no folder's files")
    parser.add_argument(
        "-h", "--h", action="store_true", help="huge pages: they are used in any case if there are enough"
    )
    parser.add_argument(
        "-e",
        "--e",
        metavar="URL",
        help="where objects go instead of being dropped: file:///folder, or hashtable:// for SOCKET.spill",
    )
    parser.add_argument("--help", "-help", action="help", help="show this and end")
    return parser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Ends the program with status 1, as Plasma's store does."""
        _fail(f"{message}; see --help")


def _memory(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes, without a unit")
    return int(text)


def _say(message: str) -> None:
    print(f"plasma-store-server: {printable(message)}", file=sys.stderr, flush=True)


def _fail(message: str) -> NoReturn:
    _say(message)
    sys.exit(1)


def _wait_until_it_serves(process: subprocess.Popen[bytes], socket: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not os.path.exists(socket):
        if (status := process.poll()) is not None:
            raise RuntimeError(f"the store ended with code {status} instead of serving")
        if time.monotonic() > deadline:
            raise RuntimeError(f"the store does not serve after {_START_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
