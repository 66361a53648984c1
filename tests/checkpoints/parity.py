"""How far a family's logits are from transformers' own, on random tiny models; run as a module it writes docs/parity.md."""

from __future__ import annotations

import tempfile
from dataclasses import astuple, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from assay.checkpoints import load, save
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
    """Largest absolute differences of float32 logits; `largest` is the largest logit, for comparison."""

    prefill: float
    decode: float
    padded: float
    chunked: float
    saved: float
    largest: float


def cases() -> list[tuple[str, str, dict[str, Any]]]:
    """Family, label and config of every model; `CASES` of each family's test file."""
    found = []
    for card in registry.cards("family"):
        if registry.load(card).general:  # has no counterpart in transformers
            continue
        module = import_module(f"tests.checkpoints.families.test_{card.name}")
        found += [(card.name, label, config) for label, config in module.CASES.items()]
    return found


def random_model(config: dict[str, Any], seed: int = 0) -> PreTrainedModel:
    """transformers' model, every parameter drawn anew so that none (norms, biases) is at a value that hides a mistake."""
    options = dict(config)
    shape = AutoConfig.for_model(options.pop("model_type"), **options)
    made = AutoModelForCausalLM.from_config(
        shape, attn_implementation="eager"
    )  # the others leave soft caps of scores out
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
    wanted = theirs(tokens).logits
    save(ours, folder / "ours")
    again = AutoModelForCausalLM.from_pretrained(
        folder / "ours", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    return Errors(
        prefill=gap(ours(tokens)[0], wanted),
        decode=gap(_pieces(ours, tokens, STEPS), _their_pieces(theirs, tokens, STEPS)),
        padded=_padded(ours, theirs, tokens),
        chunked=gap(_pieces(ours, tokens, PIECES), _their_pieces(theirs, tokens, PIECES)),
        saved=gap(again(tokens).logits, wanted),
        largest=float(wanted.abs().max()),
    )


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
    wanted = theirs(tokens, attention_mask=valid.long(), position_ids=positions).logits
    return gap(ours(tokens, valid=valid)[0][valid], wanted[valid])


def table(rows: list[tuple[str, str, Errors]]) -> str:
    """The rows as Markdown."""
    head = ["family", "model", *(field.name for field in fields(Errors))]
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for family, label, errors in rows:
        *gaps, largest = astuple(errors)
        lines.append("| " + " | ".join([family, label, *(f"{value:.1e}" for value in gaps), f"{largest:.1f}"]) + " |")
    return "\n".join(lines)


_TEXT = """# Parity with transformers

Largest absolute differences between logits of `transformers` {version} and of the same random tiny model loaded here, float32, torch
{torch}, 40 tokens, two sequences. *prefill*: all tokens at once (longer than the sliding windows); *decode*: one at a time with a cache;
*padded*: one sequence padded on the left; *chunked*: in uneven pieces with a cache; *saved*: transformers loading what `save` wrote,
against the original; *largest*: the largest logit. The bound that `tests/checkpoints/test_parity.py` holds is 1e-4.

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
