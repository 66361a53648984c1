"""`assay parts`, `assay tasks`, `assay models`: what can be named."""

import typer

from assay.cli.tables import show
from assay.core import registry
from assay.core.errors import AssayError


def parts(
    seam: str = typer.Option(None, help="Only parts of this seam: policy, mixer, task, ..."),
    room: str = typer.Option(None, help="Only parts of this room: cache, mixers, families, ..."),
) -> None:
    """List the parts by name: seam, row, room, and what each does."""
    known = [card for card in registry.cards() if card.seam != "claim" or seam == "claim"]
    _must_be_known("seam", seam, {card.seam for card in registry.cards()})
    _must_be_known("room", room, {word for card in known for word in (card.room, *card.room.split("/"))})
    chosen = [
        card
        for card in known
        if seam in (None, card.seam) and (room is None or room == card.room or room in card.room.split("/"))
    ]
    show(["name", "seam", "row", "room", "says"], [[c.name, c.seam, c.row, c.room, c.says] for c in chosen])


def _must_be_known(kind: str, given: str | None, known: set[str]) -> None:
    if given is not None and given not in known:
        raise AssayError(f"no part is of {kind} {given!r}; there are {', '.join(sorted(known))}")


def tasks() -> None:
    """List the tasks that a comparison can run, your own files among them."""
    show(["name", "says"], [[card.name, card.says] for card in registry.cards("task")])
    print("\nYour own: text:FILE, jsonl:FILE (context, question, answers), ./mine.py:MyTask")


def models() -> None:
    """List what can be loaded with no network, and how to name anything else."""
    from assay.checkpoints import models as known

    rows = [[entry.name, entry.kind, "ready" if entry.ready else entry.mend, entry.says] for entry in known()]
    show(["name", "kind", "ready", "says"], rows)
    families = ", ".join(card.name for card in registry.cards("family"))
    print("\nAnything else: a Hugging Face folder (safetensors), a .gguf file, or a hub id such as Qwen/Qwen3-0.6B.")
    print(f"Families that load: {families}.")
