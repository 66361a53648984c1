"""Continuing text: prefill, then one token at a time, under any cache policy."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.core import expressions
from assay.core.arguments import check_kinds, whole
from assay.core.build import unbudgeted
from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.core.format import Format
from assay.core.policy import Policy
from assay.core.prefill import prefill
from assay.core.sampling import choose
from assay.core.state import ModelState

if TYPE_CHECKING:
    from assay.core.transformer import Transformer


@dataclass(frozen=True)
class Options:
    """How to continue. `stop`: strings that end a text (not part of it); `cache`: a policy with its budget, or `full`.

    `kv_format`: a number format that keys and values are held in; `cache="snapkv+int4@0.25"` says the same in one.
    `attention`: a reader, for reading part of what is held. `prefill_chunk`: feed the prompts so many tokens at a time, see
    `assay.core.prefill`; None: whole.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop: str | Sequence[str] = ()
    seed: int = 0
    cache: str = "full"
    kv_format: str | None = None
    attention: str | None = None
    prefill_chunk: int | None = None
    add_bos: bool = True

    def __post_init__(self) -> None:
        check_kinds("generation", type(self), {f.name: getattr(self, f.name) for f in fields(self)})
        for name, low, high in (
            ("temperature", 0, 1e9),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("top_k", 0, 1e9),
            ("max_tokens", 1, 1e9),
            ("seed", -(2**63), 2**63 - 1),
        ):
            if not low <= getattr(self, name) <= high:
                raise AssayError(f"{name}={getattr(self, name)} lies outside {low:g}..{high:g}")
        whole("generation", prefill_chunk=self.prefill_chunk)
        if not all(isinstance(one, str) for one in self.stops):
            raise AssayError(f"stop={self.stop!r}: give texts")
        if not all(self.stops):
            raise AssayError("a stop string is empty: leave it out")

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)


def options(**given: Any) -> Options:
    """Raises AssayError for an option that does not exist."""
    known = [f.name for f in fields(Options)]
    if unknown := given.keys() - set(known):
        raise AssayError(f"generation has no option {', '.join(sorted(unknown))}; it takes {', '.join(known)}")
    return Options(**given)


def compression(cache: str | Policy, budget: str | float | None = None) -> Compression | None:
    """What `cache` asks for: `snapkv@0.25`, a policy object with its budget, or `full`, which asks for nothing."""
    if isinstance(cache, Policy):
        return Compression(cache, 1.0 if budget is None else budget)
    call = expressions.parse(cache)
    if call.name == "full":
        if call.budget not in (None, "1"):
            raise AssayError(
                f"cache {cache!r}: full keeps everything; name a policy that drops some, such as snapkv@{call.budget}"
            )
        return None
    if call.budget is None:
        raise AssayError(f"cache {cache!r} has no budget: write {cache}@0.25, {cache}@512tok or {cache}@4MiB")
    return Compression(expressions.build(call.alone(), "policy"), call.budget)


def number_format(options: Options) -> Format | None:
    """The format that keys and values are held in: that of `cache` (`snapkv+int4@0.25`) or of `kv_format`."""
    named = expressions.parse(options.cache).format
    if named is not None and options.kv_format is not None:
        raise AssayError(f"cache {options.cache!r} names a number format already: leave out kv_format")
    if named is not None:
        return expressions.build(named, "format")
    return None if options.kv_format is None else unbudgeted(options.kv_format, "format")


def left_padded(
    rows: Sequence[Sequence[int]], device: Any = "cpu"
) -> tuple[Int[Tensor, "batch tokens"], Bool[Tensor, "batch tokens"]]:
    """Token rows of different lengths as one matrix, padding on the left, and which of it is real."""
    longest = max(map(len, rows), default=0)
    if not all(map(len, rows)) or not longest:
        which = f"prompt {[len(r) for r in rows].index(0) + 1} of {len(rows)}" if len(rows) > 1 else "the prompt"
        raise AssayError(f"{which} is empty: give at least one token")
    tokens = torch.tensor([[0] * (longest - len(r)) + list(r) for r in rows], device=device)
    lengths = torch.tensor([len(r) for r in rows], device=device)
    return tokens, torch.arange(longest, device=device) >= (longest - lengths)[:, None]


def begin(model: Transformer, batch: int, options: Options) -> ModelState:
    """An empty state that holds and reads as the options say."""
    state = model.start(batch)
    if (format := number_format(options)) is not None:
        state.hold_in(format)
    if options.attention is not None:
        state.read_with(unbudgeted(options.attention, "reader"))
    return state


def steps(model: Transformer, rows: Sequence[Sequence[int]], options: Options) -> Iterator[Int[Tensor, "batch"]]:
    """The next token of every row, step after step, without end."""
    # inference mode spares a tenth of the work around kernels; what listeners keep may be trained on, so not for them
    quietly = torch.no_grad if model.listeners else torch.inference_mode
    return quietly()(_steps)(model, rows, options)


def _steps(model: Transformer, rows: Sequence[Sequence[int]], options: Options) -> Iterator[Int[Tensor, "batch"]]:
    tokens, valid = left_padded(rows, model.device)
    longest = int(valid.sum(1).max())
    if longest + options.max_tokens > model.config.context:
        raise AssayError(
            f"{longest} prompt tokens and {options.max_tokens} new ones are more than the model's context of {model.config.context}"
        )
    generator = torch.Generator(device=model.device).manual_seed(options.seed)
    state, held = begin(model, len(rows), options), compression(options.cache)
    if not state.growing() and (held is not None or options.attention is not None):
        what = options.attention if held is None else options.cache
        logging.getLogger("assay").warning(
            "no layer's cache of %s grows without end: %s has nothing to act on", model.name, what
        )
    if held is not None:
        held.attach(state)
    logits = prefill(model, tokens, state, valid=valid, chunk=options.prefill_chunk, held=held)
    while True:
        token = choose(
            logits[:, -1],
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            generator=generator,
        )
        yield token
        logits, _ = model(token[:, None], state, logits="last")
        if held is not None:
            held.hold()


def generate_ids(model: Transformer, rows: Sequence[Sequence[int]], options: Options) -> list[list[int]]:
    """New tokens of each row, ended by `max_tokens` or the tokenizer's end token (which is left out)."""
    made: list[list[int]] = [[] for _ in rows]
    for row, ids in _grow(model, rows, options):
        made[row] = ids
    return [_without_end(model, ids) for ids in made]


def _grow(model: Transformer, rows: Sequence[Sequence[int]], options: Options) -> Iterator[tuple[int, list[int]]]:
    """Each row that goes on, with what it has so far, after every token that it gets."""
    made: list[list[int]] = [[] for _ in rows]
    going = list(range(len(rows)))
    for token in islice(steps(model, rows, options), options.max_tokens):
        for row in going:
            made[row].append(int(token[row]))
            yield row, made[row]
        going = [row for row in going if not _finished(model, made[row], options)]
        if not going:
            return


def _finished(model: Transformer, ids: list[int], options: Options) -> bool:
    return ids[-1] in _ends(model) or _stop_at(model, ids, options) is not None


def _ends(model: Transformer) -> set[int]:
    """Every token that ends a text: `ends` of the tokenizer, or its `eos` alone."""
    ends = getattr(model.tokenizer, "ends", None) or getattr(model.tokenizer, "eos", None)
    return set() if ends is None else {ends} if isinstance(ends, int) else set(ends)


def _stop_at(model: Transformer, ids: list[int], options: Options) -> int | None:
    """Where in the text the first stop string begins."""
    if not options.stops:
        return None
    if model.tokenizer is None:
        raise AssayError(f"stop strings need a tokenizer, which model {model.name!r} has not")
    text = model.tokenizer.decode(ids)
    found = [text.find(s) for s in options.stops if s in text]
    return min(found, default=None)


def _without_end(model: Transformer, ids: list[int]) -> list[int]:
    return ids[:-1] if ids and ids[-1] in _ends(model) else ids


def generate(
    model: Transformer, prompts: str | Sequence[str] | Sequence[Sequence[int]], options: Options
) -> str | list[str] | list[list[int]]:
    """A continuation for each prompt: text for text, token ids for rows of token ids."""
    try:
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = None if all(isinstance(text, str) for text in texts) else [[*map(operator.index, row)] for row in texts]
    except TypeError:
        raise AssayError("prompts are a text, a list of texts, or rows of token ids such as [[1, 2, 3]]") from None
    if ids is not None:
        return generate_ids(model, ids, options)
    rows = _encode(model, texts, options)
    made = [_text(model, ids, options) for ids in generate_ids(model, rows, options)]
    return made[0] if isinstance(prompts, str) else made


def stream(model: Transformer, prompt: str, options: Options) -> Iterator[str]:
    """Pieces of the continuation; joined they are what `generate` gives."""
    said = ""
    held_back = max(map(len, options.stops), default=1) - 1
    ids: list[int] = []
    for _, ids in _grow(model, _encode(model, [prompt], options), options):
        text = _text(model, _without_end(model, ids), options)
        # the tail may be half a character, or the beginning of a stop string
        ready = text[: len(text) - held_back].rstrip("\ufffd")
        if len(ready) > len(said):
            yield ready[len(said) :]
            said = ready
    rest = _text(model, _without_end(model, ids), options)[len(said) :]
    if rest:
        yield rest


def _encode(model: Transformer, texts: list[str], options: Options) -> list[list[int]]:
    if model.tokenizer is None:
        raise AssayError(f"model {model.name!r} has no tokenizer: give rows of token ids")
    return [model.tokenizer.encode(text, bos=options.add_bos) for text in texts]


def _text(model: Transformer, ids: list[int], options: Options) -> str:
    text = model.tokenizer.decode(ids)
    at = _stop_at(model, ids, options)
    return text if at is None else text[:at]
