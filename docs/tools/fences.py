"""Runs the code of the documentation: a plugin of pytest that makes each fence of a page a test.

Owns the folder, the environment and the background processes of a page while its fences run, in order and in
one namespace. These fences are run:

- `python`, with `await` at top level as well;
- `sh`, by bash, where a command that is put into the background lives until the end of the page;
- `console`, of which the lines after `$ ` are run; what they print is not compared.

Comments that readers do not see, in Sybil's form, prepare or excuse a fence:

    <!--- invisible-code-block: python
    array = [1, 2, 3]
    -->

    <!--- skip: next "it needs two hosts" -->
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import plasmon
import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 120.0
"""Time after which a fence of a shell counts as hung."""


class Page:
    """Folder, environment and background processes of a page."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="plasmon-docs-")
        self.folder = Path(self._folder.name)
        self._groups: list[int] = []
        self._before = (Path.cwd(), dict(os.environ))
        # Pages speak of files that come with Plasmon.
        (self.folder / "deploy").symlink_to(ROOT / "deploy")
        runtime = self.folder / "run"
        runtime.mkdir(mode=0o700)
        # A page has none of Plasmon's variables but the one that names the program.
        for name in [name for name in os.environ if name.startswith("PLASMON_") and name != "PLASMON_BIN"]:
            del os.environ[name]
        # The folders of settings and state follow from HOME.
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
            os.environ.pop(name, None)
        # The interpreter may be of an environment that lacks the program.
        interpreter = Path(sys.executable).parent
        programs = Path(os.environ.get("PLASMON_BIN") or sys.executable).parent
        os.environ |= {
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(runtime),
            "PATH": f"{interpreter}:{programs}:{os.environ['PATH']}",
        }
        os.chdir(self.folder)

    def run(self, script: str) -> None:
        """Runs a script of bash to its end. Processes in its background go on."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self._groups.append(process.pid)
            try:
                status = process.wait(RUN_SECONDS)
            except subprocess.TimeoutExpired:
                status = None
            output.seek(0)
            said = output.read().decode(errors="replace")
        if status != 0:
            how = f"does not end within {RUN_SECONDS:.0f} s" if status is None else f"ended with {status}"
            raise AssertionError(f"the shell {how}; it printed:\n{said}\nThe script:\n{script}")

    def close(self) -> None:
        """Ends the background processes, and goes back to the folder and the environment of before."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
        folder, environment = self._before
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        self._folder.cleanup()


def run_python(example: Example) -> None:
    """Runs a fence of Python in the namespace of its page."""
    # Empty lines before the code make the line numbers of errors those of the page.
    source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    code = compile(source, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, example.namespace))
    else:
        exec(code, example.namespace)


def run_shell(example: Example) -> None:
    """Runs a fence of a shell."""
    example.namespace["page_"].run(str(example.parsed))


def run_console(example: Example) -> None:
    """Runs the commands of a session in a terminal."""
    commands = [line.removeprefix("$ ") for line in str(example.parsed).splitlines() if line.startswith("$ ")]
    example.namespace["page_"].run("\n".join(commands))


def begin(namespace: dict[str, Any]) -> None:
    """Prepares the namespace of a page."""
    namespace["page_"] = Page()


def end(namespace: dict[str, Any]) -> None:
    """Ends what the fences of a page left running: its clusters, its background processes."""
    for value in list(namespace.values()):
        if isinstance(value, plasmon.Client | plasmon.LocalCluster):
            value.close()
    page = namespace.pop("page_")
    namespace.clear()
    page.close()


pytest_collect_file = Sybil(
    parsers=[
        CodeBlockParser("python", run_python),
        CodeBlockParser("sh", run_shell),
        CodeBlockParser("console", run_console),
        SkipParser(),
    ],
    path=str(ROOT),
    pattern="*.md",
    setup=begin,
    teardown=end,
).pytest()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the fences that were not run, each with the reason."""
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.section(f"fences that were not run: {len(skipped)}")
    for report in skipped:
        page, _, place = report.nodeid.partition("::")
        line = place.removeprefix("line:").partition(",")[0]
        reason = report.longrepr[2].removeprefix("Skipped: ")
        terminalreporter.write_line(f"{page}:{line}: {reason}")
