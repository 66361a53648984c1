"""The passive index of parts: names found by reading the card at the head of each file, without importing it.

A card is the paragraph of a module docstring that holds a `seam:` line; its lines are `key: value`, a line that is
indented continues the one before it. A file without such a paragraph is no part. Names come from three places: the
files of this package, entry points of the group `assay.parts` in other packages, and `./mine.py:MyPart` wherever a name
is allowed."""

import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import re
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError, UnknownPart

_PACKAGE = Path(__file__).resolve().parents[1]
_WITHOUT_PARTS = {"core", "cli", "bench", "report", "__pycache__"}
_KEYS = {"seam", "row", "source", "object", "aliases", "name"}
_DOCSTRING = re.compile(r'\s*(?:#[^\n]*\n\s*)*[rR]?("""|\'\'\')(.*?)\1', re.DOTALL)
_FIELD = re.compile(r"([a-z_]+):\s*(.*?)(?:\s{2,}#.*)?$")


@dataclass(frozen=True)
class Card:
    """What the head of a part's file says about it. `says` is the first line of its docstring, `object` the class or
    function to import."""

    name: str
    seam: str
    row: str
    source: str
    says: str
    object: str
    aliases: tuple[str, ...]
    module: str
    path: Path

    @property
    def room(self) -> str:
        """The folder of the house that the file lies in, such as `efficiency/cache`; the module's name for parts from
        outside."""
        names = self.module.split(".")
        return "/".join(names[1:-1]) if names[0] == "assay" else self.module


def read_card(path: Path, module: str) -> Card | None:
    """The card at the head of a file, or None where the file has none. Raises AssayError for a card that cannot be
    read."""
    head = _DOCSTRING.match(path.read_text(encoding="utf-8"))
    if not head or "seam:" not in head[2]:
        return None
    paragraphs = re.split(r"\n\s*\n", head[2].strip())
    fields = next((f for f in map(_fields, reversed(paragraphs)) if "seam" in f), None)
    if fields is None:
        return None
    if unknown := fields.keys() - _KEYS:
        raise AssayError(
            f"{path}: the card has unknown fields {', '.join(sorted(unknown))}; it may have {', '.join(sorted(_KEYS))}"
        )
    name = fields.get("name", path.stem)
    return Card(
        name=name,
        seam=fields["seam"],
        row=fields.get("row", "-"),
        source=fields.get("source", ""),
        says=paragraphs[0].splitlines()[0].strip(),
        object=fields.get("object", name),
        aliases=tuple(alias.strip() for alias in fields.get("aliases", "").split(",") if alias.strip()),
        module=module,
        path=path,
    )


def _fields(paragraph: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    last = None
    for line in paragraph.splitlines():
        if line[:1].isspace() and last:
            fields[last] += " " + line.strip()
        elif match := _FIELD.match(line):
            last = match[1]
            fields[last] = match[2].strip()
        else:
            return {}
    return fields


def scan(folder: Path, package: str) -> list[Card]:
    """The cards of all files under a folder whose dotted name is `package`, by name."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder)
        if inner.parts[0] in _WITHOUT_PARTS or len(inner.parts) == 1:
            continue
        if card := read_card(path, ".".join([package, *inner.with_suffix("").parts])):
            found.append(card)
    return sorted(found, key=lambda card: (card.name, card.seam))


@functools.cache
def _known() -> tuple[Card, ...]:
    return (*scan(_PACKAGE, "assay"), *_from_entry_points())


def _from_entry_points() -> list[Card]:
    found = []
    for entry in importlib.metadata.entry_points(group="assay.parts"):
        try:
            card = read_card(_source_of(entry), entry.module)
        except (AssayError, ImportError, OSError) as error:
            warnings.warn(f"entry point {entry.name} = {entry.value} is left out: {error}", stacklevel=2)
            continue
        if card is None:
            warnings.warn(f"entry point {entry.name} = {entry.value} is left out: its file has no card", stacklevel=2)
            continue
        found.append(replace(card, name=entry.name, object=entry.attr or card.object))
    return found


def _source_of(entry: importlib.metadata.EntryPoint) -> Path:
    # Asking importlib would import the parent package (and, most likely, torch); the installed file is where its name
    # says.
    stem = entry.module.replace(".", "/")
    for candidate in (f"{stem}.py", f"{stem}/__init__.py"):
        path = Path(str(entry.dist.locate_file(candidate))) if entry.dist else None
        if path and path.is_file():
            return path
    spec = importlib.util.find_spec(entry.module)
    if spec is None or not spec.origin:
        raise ImportError(f"there is no module {entry.module}")
    return Path(spec.origin)


def cards(seam: str | None = None) -> list[Card]:
    """All parts known by name, or those of one seam, by name. Nothing is imported."""
    return [card for card in _known() if seam in (None, card.seam)]


def find(name: str, seam: str | None = None) -> Card:
    """The card of one part: by name, by alias, or `./mine.py:MyPart`.

    A claim carries its part's name and is found only when `seam="claim"` is asked for. Raises UnknownPart with the
    three nearest names."""
    if ".py" in name and (name.endswith(".py") or ".py:" in name):
        return _from_file(name, seam)
    among = [card for card in cards(seam) if seam is not None or card.seam != "claim"]
    wanted = _plain(name)
    exact = [card for card in among if card.name == name]
    match = exact or [card for card in among if wanted in map(_plain, (card.name, *card.aliases))]
    if len(match) > 1:
        raise AssayError(
            f"{name!r} is the name of a {' and of a '.join(card.seam for card in match)}; say which seam is meant"
        )
    if match:
        return match[0]
    raise UnknownPart(seam or "part", name, _nearest(wanted, among))


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _nearest(wanted: str, among: list[Card]) -> list[str]:
    def resemblance(card: Card) -> float:
        return max(difflib.SequenceMatcher(None, wanted, _plain(known)).ratio() for known in (card.name, *card.aliases))

    likeness = {card.name: resemblance(card) for card in among}
    return sorted(likeness, key=lambda known: (-likeness[known], known))[:3]


def _from_file(name: str, seam: str | None) -> Card:
    file, _, attribute = name.partition(".py")
    path = Path(file + ".py").expanduser()
    attribute = attribute.lstrip(":")
    if not path.is_file():
        raise AssayError(f"{name}: there is no file {path}")
    try:
        card = read_card(path, "")
    except UnicodeDecodeError as error:
        raise AssayError(f"{name}: {path} is not a UTF-8 text file") from error
    if card and seam and card.seam != seam:
        raise AssayError(f"{name}: its card says {card.seam}, but a {seam} is needed here")
    if not attribute and not card:
        raise AssayError(f"{name}: name the class in it, as in {file}.py:MyPart")
    blank = Card(name, seam or "", "-", "", "", "", (), "", path)
    return replace(card or blank, name=name, object=attribute or card.object, path=path.resolve())


def get(name: str, seam: str | None = None) -> Any:
    """The class or function that a name stands for; the one dynamic import of the house."""
    return load(find(name, seam))


def load(card: Card) -> Any:
    """Import what a card stands for. Raises AssayError where a user's own file fails or lacks the object."""
    module = importlib.import_module(card.module) if card.module else _import_file(card)
    try:
        return getattr(module, card.object)
    except AttributeError as error:
        own = [known for known in vars(module) if not known.startswith("_")]
        nearest = ", ".join(difflib.get_close_matches(card.object, own, 3, 0.0))
        raise AssayError(f"{card.path} has no {card.object!r}; nearest: {nearest}") from error


def imported(name: str) -> bool:
    """Whether the file of `./mine.py:MyPart` was imported in this process already, by somebody who named it."""
    path = Path(name.partition(".py")[0] + ".py").expanduser().resolve()
    return _module_name(path) in sys.modules


def _module_name(path: Path) -> str:
    return "assay_user" + re.sub(r"\W", "_", str(path))


def _import_file(card: Card) -> Any:
    # The path is part of the name, so two users' files called mine.py do not meet; registered first, as dataclasses
    # look themselves up there.
    name = _module_name(card.path)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, card.path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise AssayError(f"{card.path} cannot be imported: {type(error).__name__}: {error}") from error
    return module
