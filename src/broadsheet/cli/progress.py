"""Progress: a bar on standard error for commands that take long, if that is a terminal."""

import sys
from typing import Any, Self


class Progress:
    """A progress bar on standard error, if that is a terminal."""

    def __init__(self, title: str, total_bytes: int | None) -> None:
        """Show `title`; without a title, nothing.

        Args:
            total_bytes: None: not known.
        """
        self._title, self._total = title, total_bytes
        self._bar: Any = None
        self._task: Any = None

    def advance(self, count: int) -> None:
        """Move the bar by `count` bytes."""
        if self._bar is not None:
            self._bar.advance(self._task, count)

    def __enter__(self) -> Self:
        if self._title and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(self._title, total=self._total)
        return self

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
