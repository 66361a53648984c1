"""What a family of checkpoints says about itself: names of tensors, config both ways, reshapes. No forward code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.checkpoints.families.layout import Layout, Part
from assay.core.config import Spec, TransformerConfig
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from assay.checkpoints.gguf_file import GGUFFile


def folder_only(file: GGUFFile) -> dict[str, Any]:
    """The `read_gguf` of a family whose GGUF files are not read."""
    architecture = file.metadata["general.architecture"]
    raise AssayError(f"{file.path}: {architecture} is read from a Hugging Face folder, not from GGUF")


@dataclass(frozen=True)
class Family:
    """One family of checkpoints.

    `architectures`: names in a folder's config.json that it reads, the first is the one it writes. `gguf_architecture`: likewise in GGUF.
    `gguf_architecture` is None where GGUF has no name of its own for the family.
    `read`: config.json's contents → our config. `write`: back; raises AssayError for a model that the family cannot express.
    `read_gguf`: an open GGUF file → config.json's contents. `general`: it expresses anything, and is written only where no other can.
    `causal`: its models predict the next token; otherwise they are encoders, with hidden states alone.
    """

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...]
    gguf_architecture: str | None
    read: Callable[[dict[str, Any]], TransformerConfig]
    write: Callable[[TransformerConfig], dict[str, Any]]
    folder: Layout
    read_gguf: Callable[[GGUFFile], dict[str, Any]] = folder_only
    gguf: Layout = Layout({})
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
        "readout": True,
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
