"""What a Transformer is made of, recorded as plain dataclasses that go to JSON and back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from assay.core.errors import AssayError


@dataclass(frozen=True)
class Spec:
    """A part by its registered name and the arguments it is built with."""

    part: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NormConfig:
    kind: Literal["rms", "layer"] = "rms"
    eps: float = 1e-6
    bias: bool = False


@dataclass(frozen=True)
class BlockConfig:
    """One block. `norms` says where they stand: before each sublayer, after it, both (sandwich), or after the sum.

    `parallel`: mixer and channel read the same residual and are added together; `shared_norm`: through one norm.
    """

    mixer: Spec
    channel: Spec
    norms: Literal["pre", "post", "sandwich", "after_sum"] = "pre"
    parallel: bool = False
    shared_norm: bool = False


@dataclass(frozen=True)
class TransformerConfig:
    vocab_size: int
    width: int
    blocks: tuple[BlockConfig, ...]
    norm: NormConfig = NormConfig()
    context: int = 2048
    tied: bool = True
    embed_scale: float = 1.0
    embed_norm: bool = False
    depth: Spec = Spec("plain")
    learned_positions: int = 0
    final_norm: bool = True
    logit_softcap: float | None = None
    causal: bool = True
    readout: bool = True  # whether it was trained to give logits

    def __post_init__(self) -> None:
        for name, least in (("vocab_size", 1), ("width", 1), ("context", 1), ("learned_positions", 0)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise AssayError(f"{name}={getattr(self, name)!r}: give a whole number from {least} on")
        if not self.blocks:
            raise AssayError("blocks is empty: a Transformer has at least one block")

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> TransformerConfig:
        """Inverse of `to_json`. Raises AssayError on unknown or missing fields."""
        try:
            raw = json.loads(text)
            blocks = tuple(
                _make(BlockConfig, b, mixer=_make(Spec, b["mixer"]), channel=_make(Spec, b["channel"]))
                for b in raw["blocks"]
            )
            return _make(
                cls,
                raw,
                blocks=blocks,
                norm=_make(NormConfig, raw.get("norm", {})),
                depth=_make(Spec, raw.get("depth", {"part": "plain"})),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise AssayError(f"not a Transformer config: {type(error).__name__}: {error}") from None


def _make(cls: type, raw: dict[str, Any], **built: Any) -> Any:
    unknown = set(raw) - {f.name for f in fields(cls)}
    if unknown:
        raise KeyError(f"unknown {cls.__name__} field {', '.join(sorted(unknown))}")
    return cls(**{**raw, **built})
