"""Puts together what the site is made of: pages.py PLASMON RUSTDOC FOLDER.

FOLDER gets the pages at the places that they have in the repository, so that their links hold, the files that
they lead to, and what is made here: the references of Python and of the command line, the man pages, and the
documentation of the Rust crate from the folder RUSTDOC.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ["*.md", "docs/*.md", "docs/design/*.md", "examples/*/*.md"]
LINK = re.compile(r"\]\(([^)#\s]+)")

PYTHON = """\
# Python

```python
import plasmon
```

## Connecting

::: plasmon.connect

::: plasmon.default_socket

::: plasmon.Client
    options: {{inherited_members: true, members: [{calls}]}}

## Objects

::: plasmon.ObjectId

::: plasmon.Buffer

::: plasmon.Creation

::: plasmon.Scratch

::: plasmon.IdLike

::: plasmon.NamedObjects

## Regions

[Regions](../tier.md) are memory that changes.

::: plasmon.Region
    options: {{inherited_members: true}}

::: plasmon.PendingOperation

::: plasmon.RegionInfo

::: plasmon.RegionEvents
    options: {{inherited_members: true}}

::: plasmon.RegionEvent

## Services

[Services](../services.md) are functions that programs run for others.

::: plasmon.Server
    options: {{inherited_members: true, filters: ["!^_", "!^(end|receive)$"]}}

::: plasmon.Service
    options: {{inherited_members: true, filters: ["!^_", "!^ask$"]}}

::: plasmon.Call

::: plasmon.current_call

::: plasmon.expose

## Locks

[Locks and barriers](../locks.md) are for one process of the cluster at a time, or for all of them together.

::: plasmon.Lock
    options: {{inherited_members: true, filters: ["!^_", "!^(take|begin|end)$"]}}

::: plasmon.Guard
    options: {{filters: ["!^_", "!^give_up$"]}}

::: plasmon.Barrier
    options: {{inherited_members: true, filters: ["!^_", "!^begin$"]}}

## Types of one's own

::: plasmon.register_type

## Events

::: plasmon.Subscription
    options: {{inherited_members: true}}

::: plasmon.Event

## Records

::: plasmon.ObjectInfo

::: plasmon.Spread

## Errors

::: plasmon.errors
    options: {{show_root_heading: false, show_root_toc_entry: false, show_bases: true}}

## Trying it out

::: plasmon.LocalCluster
    options: {{inherited_members: true}}
"""

ASYNCIO = """\
# asyncio

::: plasmon.aio
    options: {{members: false, show_root_heading: false, show_root_toc_entry: false}}

::: plasmon.aio.connect

::: plasmon.aio.Client
    options: {{filters: ["!^_", "!^({names})$"]}}

These calls are coroutines as well, with the arguments, results and errors of those of `plasmon.Client`:
{links}.

::: plasmon.aio.Subscription
    options: {{inherited_members: true}}

::: plasmon.aio.RegionEvents
    options: {{inherited_members: true}}

::: plasmon.aio.Region
    options: {{members: false}}

Its operations are those of `plasmon.Region`, as coroutines. `view`, `array`, the attributes and `close` are
what they are there.

::: plasmon.aio.Service

::: plasmon.aio.Server

::: plasmon.aio.Lock

::: plasmon.aio.Guard

::: plasmon.aio.Barrier
"""

PLASMA = """\
# plasmon.plasma

::: plasmon.plasma
    options: {members: false, show_root_heading: false, show_root_toc_entry: false}

::: plasmon.plasma.connect

::: plasmon.plasma.PlasmaClient

::: plasmon.plasma.ObjectID

::: plasmon.plasma.start_plasma_store
"""

LIBRARIES = """\
# For other libraries

::: plasmon.fsspec
    options: {members: false, show_root_toc_entry: false}

::: plasmon.fsspec.PlasmonFileSystem

::: plasmon.zarr
    options: {members: false, show_root_toc_entry: false}

::: plasmon.zarr.PlasmonStore

::: plasmon.proxystore
    options: {members: false, show_root_toc_entry: false}

::: plasmon.proxystore.PlasmonConnector

::: plasmon.proxystore.PlasmonKey

::: plasmon.dask
    options: {members: [install, register, unregister, Plugin], show_root_toc_entry: false}

::: plasmon.joblib
    options: {members: [register], show_root_toc_entry: false}
"""

RUST = """\
# Rust

[The crate `plasmon`](../../rust/plasmon/index.html) is the client for Rust. It does not link libfabric. Its
documentation is made by rustdoc and has a search of its own.

- [`Client`](../../rust/plasmon/struct.Client.html): the connection to the node of this host
- [`Object`](../../rust/plasmon/struct.Object.html): an object that is read in place
- [`ObjectId`](../../rust/plasmon/struct.ObjectId.html), [`Socket`](../../rust/plasmon/struct.Socket.html),
  [`CreateOptions`](../../rust/plasmon/struct.CreateOptions.html)
- [`Error`](../../rust/plasmon/struct.Error.html), [`ErrorKind`](../../rust/plasmon/enum.ErrorKind.html)
"""


def pages() -> list[Path]:
    """Pages of the repository."""
    return [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]


def for_site(text: str) -> str:
    """Text of a page as the site needs it: one title, and nothing but the language behind a fence."""
    lines, titles, code = [], 0, False
    for line in text.splitlines():
        if line.startswith("```"):
            code = not code
            line = line.replace("```rust,no_run", "```rust")
        elif line.startswith("#") and not code:
            titles += line.startswith("# ")
            # The menu of a page shows what is below its only title.
            line = line if titles < 2 else f"#{line}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def copy(path: Path, folder: Path) -> None:
    """Copies a file or a folder of the repository to its place in the site."""
    target = folder / path.relative_to(ROOT)
    target.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.copytree(path, target, dirs_exist_ok=True)
    elif path.suffix == ".md":
        target.write_text(for_site(path.read_text()))
    else:
        shutil.copyfile(path, target)


def linked(page: Path) -> set[Path]:
    """Files that a page leads to, which are no pages."""
    targets = {
        (page.parent / target).resolve() for target in LINK.findall(page.read_text()) if ":" not in target
    }
    return {target for target in targets if target.is_file() and target.suffix != ".md"}


def class_of(module: str, name: str) -> ast.ClassDef:
    """Definition of a class of the Python package."""
    tree = ast.parse((ROOT / f"python/python/plasmon/{module}.py").read_text())
    [found] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return found


def python_page() -> str:
    """Page of plasmon. The calls of a client stand in the order in which they are needed."""
    tree = ast.parse((ROOT / "python/python/plasmon/_client.py").read_text())
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    modules = {name.name: str(node.module).split(".")[-1] for node in imports for name in node.names}
    bases = [base.id for base in class_of("_client", "Client").bases if isinstance(base, ast.Name)]
    parts = [(modules[base], base) for base in bases]
    calls = [
        node.name
        for module, name in [*parts, ("_client", "Client"), ("_handle", "Handle")]
        for node in class_of(module, name).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]
    return PYTHON.format(calls=", ".join(dict.fromkeys(calls)))


def asyncio_page() -> str:
    """Page of plasmon.aio. Calls that are made of those of plasmon.Client are links to these."""
    client = class_of("aio", "Client")
    names = [
        target.id
        for node in client.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    links = ", ".join(f"[`{name}`][plasmon.Client.{name}]" for name in names)
    return ASYNCIO.format(names="|".join(names), links=links)


def command_page(plasmon: str, man: Path) -> str:
    """Page of the command line: the help of every command that has a man page."""
    names = sorted(page.stem.removeprefix("plasmon-") for page in man.glob("plasmon-*.1"))
    parts = [
        "# Command line",
        "`plasmon completions SHELL` and the [man pages](man/plasmon.1) say the same.",
        "",
    ]
    for name in ["", *names]:
        words = name.split("-") if name else []
        command = [plasmon, *words, "--help"]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        parts += [f"## {' '.join(['plasmon', *words])}", "", "```text", said.rstrip(), "```", ""]
    files = [f"[{page.name}](man/{page.name})" for page in sorted(man.glob("*.1"))]
    return "\n".join([*parts, "## Man pages", "", ", ".join(files) + "."])


def main(plasmon: str, rustdoc: Path, folder: Path) -> None:
    """Makes the folder anew."""
    shutil.rmtree(folder, ignore_errors=True)
    for page in pages():
        copy(page, folder)
        for target in linked(page):
            copy(target, folder)
    copy(ROOT / "docs/img", folder)
    copy(ROOT / "docs/site.css", folder)
    shutil.copytree(rustdoc, folder / "rust")
    reference = folder / "docs/reference"
    man = reference / "man"
    man.mkdir(parents=True)
    subprocess.run([plasmon, "man", str(man)], check=True)
    made = {
        "python": python_page(),
        "asyncio": asyncio_page(),
        "plasma": PLASMA,
        "libraries": LIBRARIES,
        "rust": RUST,
        "command-line": command_page(plasmon, man),
    }
    for name, text in made.items():
        (reference / f"{name}.md").write_text(text)


main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
