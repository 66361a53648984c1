"""A progress bar that appears only once the work has taken two seconds."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar


class Progress:
    """`with Progress("training", steps) as bar: bar.advance("loss 0.3")`; drawn on standard error, with the time left."""

    def __init__(self, says: str, steps: int, *, after: float = 2.0) -> None:
        self.says, self.steps, self.after = says, steps, after
        self.done, self.began = 0, perf_counter()
        self.bar: Bar | None = None

    def __enter__(self) -> Progress:
        return self

    def advance(self, note: str = "") -> None:
        self.done += 1
        if self.bar is None:
            if perf_counter() - self.began < self.after:
                return
            self._show()
        self.bar.update(self.task, completed=self.done, note=note)

    def _show(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Bar(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True), transient=True)
        self.bar.start()
        self.task = self.bar.add_task(self.says, total=self.steps, note="")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
