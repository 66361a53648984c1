"""The one trunk: embeddings, blocks, a final norm, logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from assay.core import generation
from assay.core.arguments import whole
from assay.core.block import Block
from assay.core.build import build_spec
from assay.core.config import TransformerConfig
from assay.core.depth import Step
from assay.core.errors import AssayError
from assay.core.linear import Embedding, Linear, product
from assay.core.norms import Norm
from assay.core.sites import Listener, Tap, site
from assay.core.state import ModelState


class Transformer(nn.Module):
    """Tokens in, logits out. Loaded checkpoints and models trained here are the same class.

    `tokenizer` (anything with encode and decode) and `name` are attached by whoever made the model.
    """

    sites = ("embed", "final_norm", "logits")
    tap: Tap | None = None

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.name = "unnamed"
        self.tokenizer: Any = None
        self.listeners: list[dict[str, Listener]] = []
        if not config.readout:
            self.sites = tuple(name for name in Transformer.sites if name != "logits")
        self.embed = Embedding(config.vocab_size, config.width)
        self.positions = Embedding(config.learned_positions, config.width) if config.learned_positions else None
        self.blocks = nn.ModuleList(Block(config.width, b, config.norm) for b in config.blocks)
        self.embed_norm = Norm(config.width, config.norm) if config.embed_norm else nn.Identity()
        self.final_norm = Norm(config.width, config.norm) if config.final_norm else nn.Identity()
        schedule = build_spec(config.depth, "depth")
        self.steps: tuple[Step, ...] = schedule.steps(len(self.blocks))
        self.loop = 0  # which run of its block the forward pass is at
        for at, block in enumerate(self.blocks):
            if block.mixer.causal != config.causal:
                kind = "causal" if block.mixer.causal else "bidirectional"
                raise AssayError(
                    f"block {at}: mixer {block.config.mixer.part} is {kind}, the config says causal={config.causal}"
                )
        self.unembed = None if config.tied else Linear(config.width, config.vocab_size)

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    def start(self, batch: int = 1) -> ModelState:
        """The state of `batch` sequences that have seen nothing."""
        whole("start", batch=batch)
        return ModelState([self.blocks[step.block].mixer.start(batch) for step in self.steps], self.config)

    def forward(
        self,
        tokens: Int[Tensor, "batch tokens"],
        state: ModelState | None = None,
        *,
        valid: Bool[Tensor, "batch tokens"] | None = None,
        logits: Literal["all", "last", "none"] | int = "all",
    ) -> tuple[Float[Tensor, "batch tokens vocab"] | None, ModelState | None]:
        """Logits of the new tokens, and the state, moved on. Without a state the sequence ends here.

        `logits`: of which tokens; `last` means the last column, a number that many last columns. `valid` marks real tokens;
        padding stands on the left or anywhere and leaves no trace.
        Raises AssayError for an empty input, tokens outside the vocabulary or, of a model with learned positions, past the last.
        """
        if logits != "none" and not self.config.readout:
            raise AssayError(
                f"{self.name} has no readout: it was trained for its hidden states; take model.hidden(tokens), or assay.embed(model, texts)"
            )
        if logits not in ("all", "last", "none") and not (type(logits) is int and 0 < logits <= tokens.shape[-1]):
            raise AssayError(f"logits={logits!r}: choose all, last, none, or how many of the last tokens")
        x = self.hidden(tokens, state, valid=valid)
        if logits == "none":
            return None, state
        if logits != "all":
            x = x[:, -1 if logits == "last" else -logits :]
        x = site(self, "final_norm", self.final_norm(x))
        return self._logits(x), state

    def hidden(
        self,
        tokens: Int[Tensor, "batch tokens"],
        state: ModelState | None = None,
        *,
        valid: Bool[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, "batch tokens width"]:
        """The residual stream after the last block, before the final norm; `state` is moved on. Errors as in `forward`."""
        self._check(tokens, valid, state)
        if tokens.dtype not in (torch.int32, torch.int64):
            tokens = tokens.long()
        if valid is not None and bool(valid.all()):
            valid = None
        positions = self._positions(tokens, state, valid)
        x = self._embed(tokens, positions)
        for at, step in enumerate(self.steps):
            self.loop = step.loop
            held = None if state is None else state.layers[at]
            x, _ = self.blocks[step.block](x, held, positions=positions, valid=valid)
        return x

    def _check(self, tokens: Tensor, valid: Tensor | None, state: ModelState | None) -> None:
        if not isinstance(tokens, Tensor):
            raise AssayError(f"tokens must be a tensor of token ids, not a {type(tokens).__name__}")
        if tokens.ndim != 2 or 0 in tokens.shape:
            raise AssayError(f"tokens must be (batch, tokens) with at least one token, not {tuple(tokens.shape)}")
        if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
            raise AssayError(f"tokens must be whole numbers, not {tokens.dtype}")
        if valid is not None and valid.shape != tokens.shape:
            raise AssayError(f"valid must be {tuple(tokens.shape)}, not {tuple(valid.shape)}")
        if valid is not None and valid.dtype != torch.bool:
            raise AssayError(f"valid must hold truth values, not {valid.dtype}")
        if state is not None and not (isinstance(state, ModelState) and state.belongs(self.config, len(self.steps))):
            raise AssayError("the state is not of this model: take one from its start(batch)")

    def _positions(self, tokens: Tensor, state: ModelState | None, valid: Tensor | None) -> Int[Tensor, "batch tokens"]:
        batch, length = tokens.shape
        seen = torch.zeros(batch, dtype=torch.long, device=tokens.device) if state is None else state.seen
        if len(seen) != batch:
            raise AssayError(f"a batch of {batch} sequences was given a state of {len(seen)}")
        if valid is None:
            return seen[:, None] + torch.arange(length, device=tokens.device)
        return (seen[:, None] + valid.cumsum(1) - 1).clamp(min=0)

    def _embed(self, tokens: Tensor, positions: Tensor) -> Float[Tensor, "batch tokens width"]:
        try:
            x = self.embed(tokens)
            if self.config.embed_scale != 1:
                x = x * self.config.embed_scale
            if self.positions is not None:
                x = x + self.positions(positions)
        except IndexError:
            raise AssayError(self._out_of_range(tokens, positions)) from None
        return site(self, "embed", self.embed_norm(x))

    def _out_of_range(self, tokens: Tensor, positions: Tensor) -> str:
        if int(tokens.min()) < 0 or int(tokens.max()) >= self.config.vocab_size:
            return (
                f"token ids must lie in 0..{self.config.vocab_size - 1}; got {int(tokens.min())}..{int(tokens.max())}"
            )
        return f"the model has {self.config.learned_positions} positions; the text reaches {int(positions.max()) + 1}"

    def _logits(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens vocab"]:
        y = product(x, self.embed.weight) if self.unembed is None else self.unembed(x)
        cap = self.config.logit_softcap
        return site(self, "logits", y if cap is None else cap * (y / cap).tanh())

    def sited(self) -> dict[str, nn.Module]:
        """Modules that have sites, by the prefix of their sites' names."""
        found: dict[str, nn.Module] = {"": self}
        for i, block in enumerate(self.blocks):
            found |= {f"blocks.{i}.{prefix}": module for prefix, module in block.sited().items()}
        ends = {"embed_norm.": self.embed_norm, "final_norm.": self.final_norm}
        return found | {prefix: norm for prefix, norm in ends.items() if isinstance(norm, Norm)}

    def site_names(self) -> list[str]:
        """Names of all sites of this model. `loops.1.blocks.3.resid_post` is the second run of a block; without, any run."""
        plain = [prefix + name for prefix, module in self.sited().items() for name in module.sites]
        loops = max(step.loop for step in self.steps) + 1
        looped = {f"blocks.{step.block}." for step in self.steps if step.loop}
        return plain + [f"loops.{n}.{s}" for n in range(loops) for s in plain if s.startswith(tuple(looped))]

    def generate(
        self, prompts: str | Sequence[str] | Sequence[Sequence[int]], **options: Any
    ) -> str | list[str] | list[list[int]]:
        """What continues each prompt: text for text, ids for rows of token ids.

        Options: see `assay.core.generation.Options`; `cache="snapkv@0.25"` bounds the cache.
        """
        return generation.generate(self, prompts, generation.options(**options))

    def stream(self, prompt: str, **options: Any) -> Iterator[str]:
        """The continuation of one prompt, piece by piece as it is made."""
        return generation.stream(self, prompt, generation.options(**options))
