"""What a family of checkpoints says about itself: names of tensors, config both ways, reshapes. No forward code.

Three namings meet here: ours (`blocks.3.mixer.q.weight`), a Hugging Face folder's and a GGUF file's. A layout maps ours to one of
theirs; `*` stands for the block's number, and the last word (weight, bias) is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.core.config import Spec, TransformerConfig
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from torch import Tensor

    from assay.checkpoints.gguf_file import GGUFFile

Reshape = Callable[[str, "Tensor", TransformerConfig], "Tensor"]


def unchanged(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    return tensor


@dataclass(frozen=True)
class Part:
    """Our tensor is part `index` of `of` equal ones that theirs joins along `axis`."""

    name: str
    index: int
    of: int
    axis: int


@dataclass(frozen=True)
class Absorbed:
    """Their tensor `name`, which ours has no place for since adding it to our tensor `into` says the same.

    `add`: (ours, theirs) → ours. `blank`: ours → what is written in its place, which adds nothing.
    """

    name: str
    into: str
    add: Callable[[Tensor, Tensor], Tensor]
    blank: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """Names and shapes in one file format. `fold` turns theirs (already cut out of a joined one) into ours, `unfold` back."""

    names: dict[str, str | Part] | None  # None: the file uses our names
    fold: Reshape = unchanged
    unfold: Reshape = unchanged
    absorbed: tuple[Absorbed, ...] = ()
    ignored: str = r"(?!)"  # a pattern of names that carry nothing for us
    renamed: tuple[tuple[str, str], ...] = ()  # (pattern, replacement) that bring other spellings to the usual one

    def theirs(self, ours: str) -> Part:
        """Where our tensor lies in their file."""
        if self.names is None:
            return Part(ours, 0, 1, 0)
        stem, _, last = ours.rpartition(".")
        number = re.match(r"blocks\.(\d+)\.", stem)
        place = self.names.get(re.sub(r"^blocks\.\d+", "blocks.*", stem))
        if place is None:
            raise AssayError(
                f"{ours} has no place in this family's files; only models of the family's own layout can be written"
            )
        part = place if isinstance(place, Part) else Part(place, 0, 1, 0)
        name = part.name.replace("*", number[1]) if number else part.name
        return Part(f"{name}.{last}", part.index, part.of, part.axis)

    def usual(self, name: str) -> str | None:
        """Their name in its usual spelling, None for a tensor to ignore."""
        for pattern, replacement in self.renamed:
            name = re.sub(pattern, replacement, name)
        return None if re.search(self.ignored, name) else name


@dataclass(frozen=True)
class Family:
    """One family of checkpoints.

    `architectures`: names in a folder's config.json that it reads, the first is the one it writes. `gguf_architecture`: likewise in GGUF.
    `read`: config.json's contents → our config. `write`: back; raises AssayError for a model that the family cannot express.
    `read_gguf`: an open GGUF file → config.json's contents. `general`: it expresses anything, and is written only where no other can.
    `causal`: its models predict the next token; otherwise they are encoders, with hidden states alone.
    """

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    gguf_architecture: str
    read: Callable[[dict[str, Any]], TransformerConfig]
    write: Callable[[TransformerConfig], dict[str, Any]]
    read_gguf: Callable[[GGUFFile], dict[str, Any]]
    folder: Layout
    gguf: Layout
    general: bool = False
    causal: bool = True

    def reads(self, raw: dict[str, Any]) -> bool:
        """Whether a config.json is of this family."""
        named = raw.get("architectures") or []
        return any(n in self.architectures for n in named) if named else raw.get("model_type") in self.model_types


GGUF_NAMES: dict[str, str | Part] = {
    "embed": "token_embd",
    "positions": "position_embd",
    "final_norm": "output_norm",
    "unembed": "output",
    "blocks.*.norm1": "blk.*.attn_norm",
    "blocks.*.norm1_post": "blk.*.post_attention_norm",
    "blocks.*.norm2": "blk.*.ffn_norm",
    "blocks.*.norm2_post": "blk.*.post_ffw_norm",
    **{f"blocks.*.mixer.{ours}": f"blk.*.attn_{ours}" for ours in ("q", "k", "v", "q_norm", "k_norm")},
    "blocks.*.mixer.out": "blk.*.attn_output",
    **{f"blocks.*.channel.{ours}": f"blk.*.ffn_{ours}" for ours in ("gate", "up", "down")},
}


def required(raw: dict[str, Any], *names: str) -> tuple[Any, ...]:
    """The values of config.json entries that must be there. Raises AssayError naming those that are not."""
    missing = [name for name in names if raw.get(name) is None]
    if missing:
        raise AssayError(f"config.json lacks {', '.join(missing)}")
    return tuple(raw[name] for name in names)


def from_gguf(file: GGUFFile, architecture: str, keys: dict[str, str]) -> dict[str, Any]:
    """config.json's contents from `keys`: GGUF key without the architecture → config.json's name, `?` behind optional ones.

    Raises AssayError naming the key that is missing.
    """
    found: dict[str, Any] = {
        "vocab_size": file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else None
    }
    for key, name in keys.items():
        value = file.metadata.get(f"{architecture}.{key.rstrip('?')}")
        if value is not None:
            found[name] = value
        elif not key.endswith("?"):
            raise AssayError(f"this GGUF lacks {architecture}.{key}, without which the model's shape is unknown")
    found["tie_word_embeddings"] = "output.weight" not in file.tensors
    return found


def cannot(family: str, what: str) -> AssayError:
    return AssayError(f"{family} files cannot express {what}; choose another family or save with torch")


def trunk(config: TransformerConfig, family: str, **wanted: Any) -> None:
    """Raise AssayError unless the trunk has what the family's files mean: `wanted`, plain values of a decoder for the rest."""
    plain = {
        "embed_scale": 1.0,
        "learned_positions": 0,
        "logit_softcap": None,
        "causal": True,
        "final_norm": True,
        "embed_norm": False,
        "depth": Spec("plain"),
    } | wanted
    for name, value in plain.items():
        if getattr(config, name) != value:
            raise cannot(family, f"{name}={getattr(config, name)!r} (they mean {value!r})")
    if not config.blocks:
        raise cannot(family, "a model without blocks")


def shared(config: TransformerConfig, family: str, seam: str, part: str, *varying: str, **only: Any) -> dict[str, Any]:
    """The options that all blocks' `seam` parts share, those `varying` left out.

    `only`: the options that may be there besides, with the value that stands for absence; the files cannot express others.
    """
    found = []
    for number, block in enumerate(config.blocks):
        spec = getattr(block, seam)
        if spec.part != part:
            raise cannot(family, f"the {seam} {spec.part} of block {number} (only {part})")
        found.append(only | {key: value for key, value in spec.options.items() if key not in varying})
    for number, options in enumerate(found):
        if options != found[0]:
            raise cannot(family, f"blocks with different {seam}s (0 and {number})")
    foreign = {key: value for key, value in found[0].items() if key not in only and value not in (None, False)}
    if foreign:
        raise cannot(family, f"the {seam} options {foreign}")
    return found[0]
