"""A model under a cache policy, as the harness asks it: how likely is this continuation, what do you write next.

What the policy acts on: of every request the context, all but its last token, is read and then compressed to the budget.
The last token and all that follows are read from the compressed cache, so that even an answer of one token has to come
from what was kept. The harness knows no question apart from the context; a policy therefore sees the question before it
compresses (`--aware` of `assay compare`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from rich.console import Console
from rich.progress import track
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.generation import begin, compression, options
from assay.core.sampling import choose

if TYPE_CHECKING:
    from assay.core.transformer import Transformer

STEP = 64  # tokens of a text that are read between two calls of `hold` where all of it is predicted
MOST = 256  # tokens that are written where a request does not say how many: the harness's own default
_IGNORED = ("do_sample", "max_length")


@dataclass
class Kept:
    """Over all contexts so far: tokens that were read, and that a key-value head held after compressing, on average."""

    contexts: int = 0
    read: int = 0
    held: float = 0.0

    @property
    def share(self) -> float:
        return self.held / self.read if self.read else 1.0


class CachedLM:
    """`cache`: a policy with its budget, such as `snapkv@0.25`, or `full`.

    Requests are anything with `args`, as the harness's are. `kept` says what the policy really kept.
    Raises AssayError for a model without a tokenizer and an encoder.
    """

    def __init__(self, model: Transformer, cache: str = "full") -> None:
        if model.tokenizer is None:
            raise AssayError(f"model {model.name} has no tokenizer, so tasks of text cannot be read")
        if not model.config.causal:
            raise AssayError(f"model {model.name} is an encoder: it gives no probability of a text")
        compression(cache)  # a word that cannot be meant is said now, not at the first request
        self.model, self.cache = model, cache
        self.window = model.config.context
        self.kept = Kept()

    @torch.no_grad()
    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """For each (context, continuation): its log-probability and whether greedy decoding would write it.

        Contexts that come several times, as in multiple choice, are read and compressed once. What does not fit the
        model's window is cut off on the left.
        """
        found: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        pairs = [self._pair(*request.args) for request in requests]
        read, state = None, None
        for k in _shown(sorted(range(len(pairs)), key=lambda k: pairs[k][0]), "scoring"):
            context, answer = pairs[k]
            if context != read:
                read, (state, _) = context, self._compressed(context[:-1])
            logits = self._logits([context[-1], *answer[:-1]], state.fork())
            wanted = torch.tensor(answer, device=logits.device)
            greedy = bool((logits.argmax(-1) == wanted).all())
            found[k] = float(logits.log_softmax(-1).gather(1, wanted[:, None]).sum()), greedy
        return found

    @torch.no_grad()
    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """The log-probability of each whole text, in windows of the model's length, each token predicted once.

        A text has no context that comes first. It is read 64 tokens at a time, and after each the cache is brought back
        to the budget, a share of the window's tokens; so all but the first pieces are predicted from what was kept.
        """
        return [self._rolling(*request.args) for request in _shown(requests, "reading texts")]

    @torch.no_grad()
    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """What is written after each context, up to one of the texts in `until`, the end token or `max_gen_toks`."""
        return [self._written(*request.args) for request in _shown(requests, "writing")]

    def _rolling(self, text: str) -> float:
        ids = self.model.tokenizer.encode(text, bos=False)
        total = 0.0
        for before, piece in windows([self._first(), *ids], self.window):
            total += self._read_through(before, piece)
        return total

    def _read_through(self, before: list[int], piece: list[int]) -> float:
        """`piece` after `before`, which is at least one token. Both are read STEP tokens at a time."""
        ids = before + piece
        state, held = self._start()
        total, ready = 0.0, False
        for at in range(0, len(ids) - 1, STEP):
            logits = self._logits(ids[at : min(at + STEP, len(ids) - 1)], state)
            wanted = torch.tensor(ids[at + 1 : at + 1 + len(logits)], device=logits.device)
            chances = logits.log_softmax(-1).gather(1, wanted[:, None])[:, 0]
            total += float(chances[max(len(before) - 1 - at, 0) :].sum())
            if held is not None and not ready:
                held.finish_prefill(context=torch.tensor([len(ids) - 1], device=logits.device))
                ready = True
            elif held is not None:
                held.hold()
        self._note(len(ids) - 1, state)
        return total

    def _written(self, context: str, wanted: dict[str, Any]) -> str:
        chosen = asked(wanted)
        ids = self.model.tokenizer.encode(context) or [self._first()]
        ids = ids[-max(self.window - chosen.max_tokens, 1) :]
        state, held = self._compressed(ids[:-1])
        generator = torch.Generator(device=self.model.device).manual_seed(chosen.seed)
        ends = set(getattr(self.model.tokenizer, "ends", None) or ())
        made: list[int] = []
        logits = self._logits(ids[-1:], state)
        text = ""
        while len(made) < chosen.max_tokens:
            token = int(
                choose(
                    logits[-1:], temperature=chosen.temperature, top_k=chosen.top_k, top_p=chosen.top_p, min_p=chosen.min_p,
                    generator=generator,
                )
            )  # fmt: skip
            if token in ends:
                break
            made.append(token)
            text = self.model.tokenizer.decode(made)
            if any(stop in text for stop in chosen.stops):
                break
            logits = self._logits([token], state)
            if held is not None:
                held.hold()
        return text[: min((text.find(stop) for stop in chosen.stops if stop in text), default=len(text))]

    def _pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Token ids of both, cut from the whole text at once: a token over the border belongs to the continuation."""
        if not continuation:
            raise AssayError("a continuation is empty: there is nothing to score")
        ids, places = self.model.tokenizer.spans(context + continuation)
        cut = next((i for i, (_, end) in enumerate(places) if end > len(context)), len(ids) - 1)
        before, answer = (ids[:cut], ids[cut:]) if cut else ([self._first()], ids)
        room = self.window + 1 - len(answer)
        if room < 1:
            raise AssayError(f"a continuation has {len(answer)} tokens, more than the model's window of {self.window}")
        return before[-room:], answer

    def _first(self) -> int:
        """What stands before the first token of a text where the model has no mark of its own for that: its end token."""
        tokenizer = self.model.tokenizer
        first = next((t for t in (tokenizer.bos, tokenizer.eos) if t is not None), None)
        if first is None:
            raise AssayError(f"model {self.model.name} has no token that begins a text, and a request has no context")
        return first

    def _start(self) -> tuple[Any, Any]:
        state, held = begin(self.model, 1, options()), compression(self.cache)
        return state, None if held is None else held.attach(state)

    def _compressed(self, context: list[int]) -> tuple[Any, Any]:
        """The state after the context, held to the budget; nothing is compressed where nothing comes before."""
        state, held = self._start()
        if not context:
            return state, None
        self.model(torch.tensor([context], device=self.model.device), state, logits="none")
        if held is not None:
            held.finish_prefill()
        self._note(len(context), state)
        return state, held

    def _note(self, tokens: int, state: Any) -> None:
        counts = [count for store in state.growing().values() for count in store.counts]
        self.kept.contexts += 1
        self.kept.read += tokens
        self.kept.held += sum(counts) / len(counts) if counts else tokens

    def _logits(self, ids: list[int], state: Any) -> Float[Tensor, "tokens vocab"]:
        return self.model(torch.tensor([ids], device=self.model.device), state)[0][0].float()


def _shown(asks: Sequence[Any], what: str) -> Iterable[Any]:
    """The same, with a bar on a terminal."""
    console = Console(stderr=True)
    return track(asks, what, console=console, disable=not console.is_terminal)


def asked(wanted: dict[str, Any]) -> Any:
    """The harness's words for how to write, as assay's. Raises AssayError for those that nothing here can do."""
    given = dict(wanted)
    until = given.pop("until", ())
    most = given.pop("max_gen_toks", MOST)
    samples = given.get("do_sample", given.get("temperature", 0) > 0)
    for name in _IGNORED:
        given.pop(name, None)
    temperature = given.pop("temperature", 1.0 if samples else 0.0)
    stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
    return options(max_tokens=most, stop=stops, temperature=temperature if samples else 0.0, **given)


def windows(ids: list[int], window: int) -> Iterator[tuple[list[int], list[int]]]:
    """Cut so that every token but the first is predicted once, from at least the one before it.

    Each pair is (what is read only, what is predicted), together `window + 1` tokens at most; the last pair is as long
    as the others, so that its few tokens have a whole window before them.
    """
    yield ids[:1], ids[1 : window + 1]
    at = window + 1
    while at < len(ids):
        end = min(at + window, len(ids))
        yield ids[end - window - 1 : at], ids[at:end]
        at = end
