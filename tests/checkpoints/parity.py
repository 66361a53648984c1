"""How far a family's logits are from transformers' own, on random tiny models; run as a module it writes docs/parity.md.

Of an encoder, whose family says that it is not causal, final hidden states take the place of logits, and nothing is decoded.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel

from assay.checkpoints import load, save
from assay.checkpoints.catalogue import family_of
from assay.core import registry
from assay.core.transformer import Transformer

SHARED = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
STEPS, PIECES = [7, *[1] * 33], [3, 19, 1, 17]


@dataclass(frozen=True)
class Errors:
    """Largest absolute differences of float32 logits; `largest` is the largest logit, for comparison. None: not for encoders."""

    prefill: float
    decode: float | None
    padded: float
    chunked: float | None
    saved: float
    largest: float


def families() -> list[str]:
    """Families that have a counterpart in transformers."""
    return [card.name for card in registry.cards("family") if not registry.load(card).general]


def cases_of(family: str) -> dict[str, dict[str, Any]]:
    """Config by label: `CASES` of the family's test file (empty for one that predicts no next token and is tested there)."""
    return import_module(f"tests.checkpoints.families.test_{family}").CASES


def cases() -> list[tuple[str, str, dict[str, Any]]]:
    """Family, label and config of every model."""
    found = []
    for family in families():
        with suppress(ModuleNotFoundError):  # test_parity.py says so for each family
            found += [(family, label, config) for label, config in cases_of(family).items()]
    return found


def random_model(config: dict[str, Any], seed: int = 0) -> PreTrainedModel:
    """transformers' model, every parameter drawn anew so that none (norms, biases) is at a value that hides a mistake."""
    options = dict(config)
    shape = AutoConfig.for_model(options.pop("model_type"), **options)
    # the other implementations of attention leave soft caps of scores out
    made = _their_class(config).from_config(shape, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * (0.5 if "embed" in name or "wte" in name else parameter.shape[-1] ** -0.5))
            else:
                parameter.add_(0.2 * noise)
    return made.eval()


@torch.no_grad()
def measure(config: dict[str, Any], folder: Path) -> Errors:
    """Errors of the model loaded from what transformers saved, and of transformers loading what we save."""
    theirs = random_model(config)
    theirs.save_pretrained(folder / "theirs")
    ours = load(folder / "theirs")
    tokens = torch.randint(0, config["vocab_size"], (2, 40), generator=torch.Generator().manual_seed(1))
    wanted = _their_output(theirs, tokens)
    save(ours, folder / "ours")
    again = _their_class(config).from_pretrained(folder / "ours", dtype=torch.float32, attn_implementation="eager")

    def pieces(lengths: list[int]) -> float | None:
        return (
            gap(_pieces(ours, tokens, lengths), _their_pieces(theirs, tokens, lengths)) if ours.config.causal else None
        )

    return Errors(
        prefill=gap(_our_output(ours, tokens), wanted),
        decode=pieces(STEPS),
        padded=_padded(ours, theirs, tokens),
        chunked=pieces(PIECES),
        saved=gap(_their_output(again.eval(), tokens), wanted),
        largest=float(wanted.abs().max()),
    )


def _their_class(config: dict[str, Any]) -> type:
    return AutoModelForCausalLM if family_of(config, "a case").causal else AutoModel


def _our_output(model: Transformer, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
    return model(tokens, **options)[0] if model.config.causal else model.final_norm(model.hidden(tokens, **options))


def _their_output(model: PreTrainedModel, tokens: torch.Tensor, **options: Any) -> torch.Tensor:
    out = model(tokens, **options)
    return out.logits if "logits" in out else out.last_hidden_state


def gap(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).detach().abs().max())


def _pieces(model: Transformer, tokens: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    state = model.start(len(tokens))
    return torch.cat([model(piece, state)[0] for piece in tokens.split(lengths, 1)], 1)


def _their_pieces(model: PreTrainedModel, tokens: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    out, cache = [], None
    for piece in tokens.split(lengths, 1):
        step = model(piece, past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        out.append(step.logits)
    return torch.cat(out, 1)


def _padded(ours: Transformer, theirs: PreTrainedModel, tokens: torch.Tensor) -> float:
    valid = torch.ones_like(tokens, dtype=torch.bool)
    valid[1, :13] = False
    positions = (valid.cumsum(1) - 1).clamp(min=0)
    wanted = _their_output(theirs, tokens, attention_mask=valid.long(), position_ids=positions)
    return gap(_our_output(ours, tokens, valid=valid)[valid], wanted[valid])


def table(rows: list[tuple[str, str, Errors]]) -> str:
    """The rows as Markdown."""
    head = ["family", "model", *(field.name for field in fields(Errors))]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for family, label, errors in rows:
        *gaps, largest = astuple(errors)
        lines.append(
            "| "
            + " | ".join(
                [family, label, *("–" if value is None else f"{value:.1e}" for value in gaps), f"{largest:.1f}"]
            )
            + " |"
        )
    return "\n".join(lines)


_TEXT = """# Parity with transformers

Largest absolute differences between logits of `transformers` {version} and of the same random tiny model loaded here, float32, torch
{torch}, 40 tokens, two sequences. *prefill*: all tokens at once (longer than the sliding windows); *decode*: one at a time with a cache;
*padded*: one sequence padded on the left; *chunked*: in uneven pieces with a cache; *saved*: transformers loading what `save` wrote,
against the original; *largest*: the largest logit. Of an encoder, final hidden states are compared.
The bound that `tests/checkpoints/test_parity.py` holds is 1e-4.

{table}

Written by `python -m tests.checkpoints.parity`.
"""


def main() -> None:
    rows = []
    for family, label, config in cases():
        with tempfile.TemporaryDirectory() as folder:
            rows.append((family, label, measure(config, Path(folder))))
    text = _TEXT.format(version=transformers.__version__, torch=torch.__version__, table=table(rows))
    Path("docs/parity.md").write_text(text)
    print(table(rows))


if __name__ == "__main__":
    main()
