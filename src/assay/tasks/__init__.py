"""Data and metrics: tasks by name, the text they are made of, scorers and statistics."""

from assay.core.build import build, unbudgeted
from assay.core.errors import AssayError
from assay.core.expressions import Call
from assay.tasks.task import Example, Generated, Task

__all__ = ["Example", "Generated", "Task", "resolve"]

_WITH_FILE = ("text", "jsonl")


def resolve(text: str) -> Task:
    """The task that an expression names: `needle`, `needle(digits=4)`, `text:FILE`, `jsonl:FILE`, `./mine.py:MyTask`.

    Raises AssayError for an unknown name (with the three nearest), arguments that do not fit, or a file that cannot be
    used.
    """
    name, colon, file = text.strip().partition(":")
    if colon and name in _WITH_FILE:
        return build(Call(name, (file,)), "task")
    task = unbudgeted(text, "task")
    if not isinstance(task, Task):
        raise AssayError(f"{text} is no task: its class must derive from assay.tasks.Task")
    return task
