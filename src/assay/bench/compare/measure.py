"""One cell: fork the prefilled cache, compress it, read the question and the right answer from it, and count."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.bench.compare.prefill import Prefill, now
from assay.bench.compare.prompts import Prompt
from assay.bench.compare.traces import binned, held_matrix, passages, pieces, shades
from assay.core.budget import Budget
from assay.core.compression import Compression
from assay.core.format import Format
from assay.core.policy import Policy
from assay.core.state import ModelState

if TYPE_CHECKING:
    from assay.core.transformer import Transformer

STEP = 16  # tokens fed between two calls of `hold` where a context stands for a generation
SHOWN = 240  # characters of the prompt's end kept for reading


@dataclass(frozen=True)
class Extras:
    """What a cell may carry beyond its score."""

    generate: bool = False  # score greedy text instead of the forced answer
    speed_steps: int = 0  # greedy steps that are timed
    picture: bool = False  # record which tokens are kept


class Bench:
    """One example on one model, its context prefilled once for all `policies` (by canonical expression).

    `format`, `chunk`: how the cache is held and filled. `budget_of`: what a budget's text means on this prompt.
    `reference`: the bench that measures `full`, where this one holds the cache in another format.
    """

    def __init__(
        self,
        model: Transformer,
        task: Any,
        prompt: Prompt,
        policies: Mapping[str, Policy],
        *,
        format: Format | None = None,
        chunk: int = 0,
        budget_of: Callable[[str], Budget] = Budget.parse,
        reference: Bench | None = None,
    ) -> None:
        self.model, self.task, self.prompt, self.policies = model, task, prompt, policies
        self.device, self.chunk, self.budget_of, self.reference = model.device, chunk, budget_of, reference or self
        with torch.no_grad():
            context = self._tokens(prompt.context[: prompt.prompted])
            self.prefill = Prefill(model, context, policies, format=format, chunk=chunk)
        self._full: Float[Tensor, "answer vocab"] | None = None
        self._whole: tuple[int, int] | None = None

    def _tokens(self, ids: tuple[int, ...] | list[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self.device)

    @torch.no_grad()
    def measure(self, policy: str, budget: str, extras: Extras) -> dict[str, Any]:
        """The numbers of one cell. `full` gives the reference for the others' KL where the task is a text's likelihood."""
        state, held, reading, compressing = self._begin(policy, budget)
        generating = self._feed_rest(state, held)
        sizes = self._sizes(state, policy)
        survived, shares, kept = self._kept(state, extras.picture and held is not None)
        if extras.picture and policy == "full":
            kept["pieces"] = pieces(self.model.tokenizer, self.prompt)  # the text, once for all policies
        began = now(self.device)
        first, asking = None, None
        if extras.generate or extras.speed_steps:
            first, _ = self.model(self._tokens(self.prompt.question), state, logits="last")
            asking = now(self.device) - began
        told, teller = state, held  # what goes on after the right answer, whatever is written
        if extras.generate:
            told = state.fork()
            teller = held.fork(told) if held is not None and self.prompt.turns else None
        logits = self._answer(self.prompt, first, told)
        answering = now(self.device) - began
        scores = self._scores(self.prompt, extras.generate, first, state, held, logits)
        if self.prompt.turns:
            scores = self._ask_on(scores, told, teller, extras.generate)
        peak = max(sizes["bytes"], state.bytes, held.peak_bytes if held is not None else 0)
        speed = self._speed(first, state, held, extras.speed_steps) if extras.speed_steps else None
        prefilling = reading + generating
        return {
            **scores, **sizes, **kept, "kl": self._kl(logits, policy), "survived": survived,
            "peak_bytes": peak, "seconds_prefill": prefilling, "seconds_compress": compressing, "seconds_answer": answering,
            "first_token": None if asking is None else prefilling + compressing + asking, "tokens_per_second": speed,
            "passages": self._lost(scores["score"], shares), **self._texts(),
        }  # fmt: skip

    def _begin(self, policy: str, budget: str) -> tuple[ModelState, Compression | None, float, float]:
        """The compressed cache with what holds it, and the seconds of prefill and of compressing."""
        tokens = torch.tensor([len(self.prompt.context)], device=self.device)
        acting = policy in self.policies
        if acting and self.chunk:
            return *self.prefill.apart(policy, self.budget_of(budget), tokens), 0.0
        state, held = self.prefill.fork(policy if acting else None, self.budget_of(budget))
        began = now(self.device)
        if held is not None:
            held.finish_prefill(context=tokens)
        reading = self.prefill.seconds + (self.prefill.observing[policy] if acting else 0.0)
        return state, held, reading, now(self.device) - began

    def _feed_rest(self, state: ModelState, held: Compression | None) -> float:
        """What stands for a generation is fed in short steps, each of which the policy may answer by dropping tokens."""
        rest, began = self.prompt.context[self.prompt.prompted :], now(self.device)
        for at in range(0, len(rest), STEP):
            self.model(self._tokens(rest[at : at + STEP]), state, logits="none")
            if held is not None:
                held.hold()
        return now(self.device) - began if rest else 0.0

    def _ask_on(
        self, scores: dict[str, Any], state: ModelState, held: Compression | None, generate: bool
    ) -> dict[str, Any]:
        """The means over all turns. Each is read after the right answers of those before it, so that all policies are
        asked the same; between turns a policy is held to its budget, and may drop tokens of the talk, too."""
        found = [scores]
        for turn in self.prompt.turns:
            if held is not None:
                held.hold()
            first, _ = self.model(self._tokens(turn.question), state, logits="last")
            written = state.fork() if generate else state
            writer = held.fork(written) if generate and held is not None else None
            logits = self._answer(turn, first, state)
            found.append(self._scores(turn, generate, first, written, writer, logits))
        means = {key: sum(turn[key] for turn in found) / len(found) for key in ("score", "logprob")}
        return {**means, "answer": "\n".join(turn["answer"].strip() for turn in found)}

    def _answer(self, asked: Prompt, first: Tensor | None, state: ModelState) -> Float[Tensor, "answer vocab"]:
        """Logits for each token of the answer, each read after the right ones before it.

        Where nobody asks for the time to the first token (`first` is None), question and answer are read in one pass.
        """
        answer = asked.answer
        if first is None:
            both = self._tokens([*asked.question, *answer[:-1]])
            return self.model(both, state, logits=len(answer))[0][0].float()
        if len(answer) == 1:
            return first[0, -1:].float()
        rest, _ = self.model(self._tokens(answer[:-1]), state)
        return torch.cat([first[0, -1:], rest[0]]).float()

    def _scores(
        self, asked: Prompt, generate: bool, first: Tensor | None, state: ModelState, held: Compression | None,
        logits: Float[Tensor, "answer vocab"],
    ) -> dict[str, Any]:  # fmt: skip
        forced = self._forced(asked, logits)
        return {**forced, **self._generated(asked, first, state, held)} if generate else forced

    def _forced(self, asked: Prompt, logits: Float[Tensor, "answer vocab"]) -> dict[str, Any]:
        """Right where greedy decoding would begin with the whole answer."""
        wanted = torch.tensor(asked.answer, device=self.device)
        greedy = logits.argmax(-1)
        wrong = (greedy != wanted).nonzero()
        until = int(wrong[0, 0]) + 1 if len(wrong) else len(wanted)
        logprob = float(logits.log_softmax(-1).gather(1, wanted[:, None]).sum())
        nll = self.task.metric == "nll"
        score = float(torch.tensor(logprob / len(wanted)).exp()) if nll else float(not len(wrong))
        said = "" if nll else self.model.tokenizer.decode(greedy[:until].tolist()) + ("…" if len(wrong) else "")
        return {"score": score, "logprob": logprob, "answer": said}

    def _generated(
        self, asked: Prompt, first: Tensor, state: ModelState, held: Compression | None
    ) -> dict[str, Any]:
        """What greedy decoding writes, scored by the task; the log-probability is that of the forced answer all the same."""
        ids: list[int] = []
        ends = set(getattr(self.model.tokenizer, "ends", None) or ())
        most = asked.example.meta.get("max_tokens", len(asked.answer) + 8)
        token = first[:, -1:].argmax(-1)
        while len(ids) < most and int(token) not in ends:
            ids.append(int(token))
            out, _ = self.model(token, state, logits="last")
            if held is not None:
                held.hold()
            token = out[:, -1:].argmax(-1)
        text = self.model.tokenizer.decode(ids)
        example = replace(asked.example, answers=asked.example.answers[:1]) if self.prompt.turns else asked.example
        return {"score": float(self.task.score(example, text)), "answer": text}

    def _speed(self, first: Tensor, state: ModelState, held: Compression | None, steps: int) -> float:
        """Tokens per second of greedy decoding from this cache, the first step aside."""
        token, began = first[:, -1:].argmax(-1), 0.0
        for step in range(steps + 1):
            if step == 1:
                began = now(self.device)
            out, _ = self.model(token, state, logits="last")
            if held is not None:
                held.hold()
            token = out[:, -1:].argmax(-1)
        return steps / (now(self.device) - began)

    def _kl(self, logits: Float[Tensor, "answer vocab"], policy: str) -> float | None:
        """Mean over the answer's tokens of KL(full || this), in nats; None where the task is not a text's likelihood."""
        if self.task.metric != "nll":
            return None
        predicted = logits.log_softmax(-1)
        if policy == "full":
            self._full = predicted
        full = self.reference._full
        if full is None:
            return None
        return float(torch.nn.functional.kl_div(predicted, full, log_target=True, reduction="sum")) / len(logits)

    def _sizes(self, state: ModelState, policy: str) -> dict[str, Any]:
        stores = state.growing()
        counts = [c for store in stores.values() for c in store.counts]
        if policy == "full":
            self._whole = state.bytes, sum(s.bytes for s in stores.values())
        whole = self.reference._whole
        if whole is None:
            raise RuntimeError("full is measured first: it says what the whole cache holds")
        return {
            "tokens": len(self.prompt.context),
            "kept": sum(counts) / len(counts) if counts else None,
            "bytes": state.bytes,
            "bytes_eligible": sum(s.bytes for s in stores.values()),
            "bytes_full": whole[0],
            "bytes_full_eligible": whole[1],
            "bytes_by_layer": [layer.bytes for layer in state.layers],
        }

    def _kept(self, state: ModelState, picture: bool) -> tuple[float | None, Tensor | None, dict[str, Any]]:
        """The share of the answers' tokens that is held (of each one's best copy, mean over layers and heads), the share of heads
        that hold each token, and for a picture both where they lie by layer and over the text."""
        survived: list[float] = []
        positions: dict[str, list[float]] = {}
        everywhere = []
        answers = self.prompt.copies(any_of=self.task.match == "any")
        for layer, store in state.growing().items():
            held = held_matrix(store, len(self.prompt.context))
            best = [torch.stack([held[:, a:b].mean(1) for a, b in spans]).amax(0) for spans in answers]
            survived += torch.stack(best).mean(0).tolist() if best else []
            everywhere.append(held.mean(0))
            if picture:
                positions[str(layer)] = binned(held.mean(0))
        shares = torch.stack(everywhere).mean(0) if everywhere else None
        seen: dict[str, Any] = {"positions": positions or None}
        if picture and shares is not None:
            seen["shades"] = shades(shares)
        return (sum(survived) / len(survived) if survived else None), shares, seen

    def _lost(self, score: float, shares: Tensor | None) -> list[dict[str, Any]] | None:
        """Where a wrong answer stands in the context, and what is held there; None where it is right or stands nowhere."""
        if self.task.metric == "nll" or score >= 0.5 or shares is None:
            return None
        return passages(self.model.tokenizer, self.prompt, shares) or None

    def _texts(self) -> dict[str, Any]:
        example = self.prompt.example
        prompt = (example.context + example.question)[-SHOWN:]
        wanted = example.answers[0]
        return {
            "answer_tokens": len(self.prompt.answer), "spans": [list(s) for s in self.prompt.spans], "prompt": prompt,
            "wanted": wanted if len(wanted) <= SHOWN else wanted[:SHOWN] + "…",
        }  # fmt: skip
