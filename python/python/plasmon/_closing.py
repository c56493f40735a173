"""Closing at the end of a block, for everything of this package that is closed."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """A context manager that closes itself at the end of the block, whatever ended that."""

    def close(self) -> None:
        """Frees what this object holds; a second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class ClosingAsync:
    """An asynchronous context manager that closes itself at the end of the block, whatever ended that."""

    def close(self) -> None:
        """Frees what this object holds; a second call does nothing."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
