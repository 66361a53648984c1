"""What the harness is told about a model under a policy, without the harness itself."""

from types import SimpleNamespace

import pytest
import torch
from tests.bench.compare.conftest import make_tiny

from assay.bench.harness.cached_lm import CachedLM, asked, windows
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError
from assay.core.generation import compression
from assay.core.transformer import Transformer

CONTEXT = "The gate opens at noon, and the key of the tower lies under the third stone of the garden wall. " * 3


def request(*args):
    return SimpleNamespace(args=args)


def make_lively(seed: int = 0) -> Transformer:
    """A random model whose attention and words vary enough that greedy decoding does not repeat one letter."""
    model = make_tiny(seed=seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
    return model


def logprobs(model, text, answer):
    """Of each character of the answer, from one pass over everything."""
    ids = model.tokenizer.encode(text + answer)
    with torch.no_grad():
        chances = model(torch.tensor([ids]))[0][0].log_softmax(-1)
    at = len(ids) - len(answer)
    return [float(chances[k - 1, ids[k]]) for k in range(at, len(ids))]


def test_the_whole_cache_gives_the_models_own_probabilities():
    model = make_tiny()
    [(found, greedy)] = CachedLM(model).loglikelihood([request(CONTEXT, "stone wall")])
    assert found == pytest.approx(sum(logprobs(model, CONTEXT, "stone wall")), abs=1e-4) and not greedy


def test_greedy_is_true_exactly_where_greedy_decoding_writes_it():
    model = make_tiny()
    written = model.generate(CONTEXT, max_tokens=3)
    assert len(written) == 3, "the random model does not continue with letters; take another seed"
    lm = CachedLM(model)
    assert [g for _, g in lm.loglikelihood([request(CONTEXT, written), request(CONTEXT, written[:2] + "~")])] == [
        True,
        False,
    ]
    assert lm.generate_until([request(CONTEXT, {"max_gen_toks": 3})]) == [written]


def test_a_budget_of_everything_is_the_whole_cache():
    model = make_tiny()
    asks = [request(CONTEXT, "stone"), request("Short. ", "x")]
    whole, held = (CachedLM(model, cache).loglikelihood(asks) for cache in ("full", "snapkv@1"))
    assert whole == held


@pytest.mark.parametrize("cache", ["snapkv@0.25", "knorm@64tok", "random(prompt=False)@0.5"])
@pytest.mark.parametrize("answer", ["s", "stone wall"])
def test_a_policy_acts_even_on_an_answer_of_one_token(cache, answer):
    model = make_tiny()
    whole, held = CachedLM(model), CachedLM(model, cache)
    [(full, _)], [(fewer, _)] = (lm.loglikelihood([request(CONTEXT, answer)]) for lm in (whole, held))
    assert abs(full - fewer) > 1e-3
    read = len(model.tokenizer.encode(CONTEXT)) - 1
    assert whole.kept.share == 1 and held.kept.read == whole.kept.read == read
    allowed = {"snapkv@0.25": read // 4, "knorm@64tok": 64}.get(cache, read // 2)
    assert held.kept.held == allowed < read


def test_the_answer_is_read_from_exactly_what_the_policy_kept():
    model = make_tiny()
    ids = model.tokenizer.encode(CONTEXT)
    state, held = model.start(1), compression("snapkv@0.25")
    assert held is not None
    held.attach(state)
    with torch.no_grad():
        model(torch.tensor([ids[:-1]]), state, logits="none")
        held.finish_prefill()
        answer = model.tokenizer.encode("stone", bos=False)
        chances = model(torch.tensor([[ids[-1], *answer[:-1]]]), state)[0][0].log_softmax(-1)
    expected = sum(float(chances[k, token]) for k, token in enumerate(answer))
    [(found, _)] = CachedLM(model, "snapkv@0.25").loglikelihood([request(CONTEXT, "stone")])
    assert found == pytest.approx(expected, abs=1e-5)


def test_choices_of_one_context_read_it_once_and_answers_keep_their_order(monkeypatch):
    model = make_tiny()
    lm, read = CachedLM(model, "snapkv@0.25"), []
    original = Transformer.forward

    def spy(self, tokens, *args, **kwargs):
        read.append(tokens.shape[1])
        return original(self, tokens, *args, **kwargs)

    monkeypatch.setattr(Transformer, "forward", spy)
    other = CONTEXT.replace("noon", "dusk")
    asks = [request(c, a) for a in ("stone", "gate", "tower") for c in (CONTEXT, other)]
    together = lm.loglikelihood(asks)
    assert sum(n > 100 for n in read) == 2 and lm.kept.contexts == 2
    assert together == [CachedLM(model, "snapkv@0.25").loglikelihood([ask])[0] for ask in asks]


def test_an_empty_context_begins_with_the_models_own_mark():
    model = make_tiny()
    [(found, _)] = CachedLM(model, "snapkv@0.25").loglikelihood([request("", "stone")])
    assert found == pytest.approx(sum(logprobs(model, "", "stone")), abs=1e-4)


def test_what_does_not_fit_the_window_is_cut_off_on_the_left():
    model = make_tiny(context=128)
    long, last = CONTEXT, CONTEXT[-(128 + 1 - 5) :]
    ids = [3 + ord(c) % 250 for c in last + "stone"]
    with torch.no_grad():
        chances = model(torch.tensor([ids[:-1]]))[0][0].log_softmax(-1)
    expected = sum(float(chances[k - 1, ids[k]]) for k in range(len(ids) - 5, len(ids)))
    [(found, _)] = CachedLM(model).loglikelihood([request(long, "stone")])
    assert found == pytest.approx(expected, abs=1e-4)
    with pytest.raises(AssayError, match="200 tokens, more than the model's window of 128"):
        CachedLM(model).loglikelihood([request("a", "b" * 200)])


def test_windows_predict_each_token_once_from_as_much_as_fits():
    ids = list(range(100, 111))
    assert list(windows(ids, 4)) == [
        ([100], [101, 102, 103, 104]),
        ([104], [105, 106, 107, 108]),
        ([106, 107, 108], [109, 110]),
    ]
    assert list(windows(ids, 50)) == [([100], ids[1:])]


def test_a_whole_text_has_the_models_own_probability_and_a_policy_changes_it():
    model = make_tiny()
    text = CONTEXT * 2
    [whole] = CachedLM(model).loglikelihood_rolling([request(text)])
    assert whole == pytest.approx(sum(logprobs(model, "", text)), abs=2e-3)
    lm = CachedLM(model, "knorm@0.25")
    [held] = lm.loglikelihood_rolling([request(text)])
    assert abs(held - whole) > 0.1
    assert lm.kept.held <= len(text) // 4 + 64
    assert CachedLM(model, "knorm@1").loglikelihood_rolling([request(text)]) == [whole]


def test_writing_ends_at_a_stop_text_and_holds_the_budget():
    model = make_lively()
    written = model.generate(CONTEXT, max_tokens=30)
    assert len(set(written)) > 5
    lm = CachedLM(model)
    stop = written[4:6]
    [text] = lm.generate_until([request(CONTEXT, {"until": [stop], "max_gen_toks": 30})])
    assert text == written[: written.index(stop)]
    [other] = CachedLM(model, "knorm@0.25").generate_until([request(CONTEXT, {"until": [], "max_gen_toks": 30})])
    assert other != written and len(other) <= 30


def test_words_for_writing_are_understood_or_refused():
    greedy = asked({"until": "\n", "do_sample": False, "temperature": 0.7, "max_gen_toks": 5})
    assert (greedy.temperature, greedy.max_tokens, greedy.stops) == (0, 5, ["\n"])
    assert asked({"until": ["a", ""], "do_sample": True}).temperature == 1
    assert asked({"temperature": 0.5, "top_p": 0.9}).top_p == 0.9
    with pytest.raises(AssayError, match="repetition_penalty"):
        asked({"repetition_penalty": 1.1})


def test_what_cannot_be_asked_is_one_clear_line():
    model = make_tiny()
    with pytest.raises(AssayError, match="has no budget"):
        CachedLM(model, "snapkv")
    with pytest.raises(AssayError, match="continuation is empty"):
        CachedLM(model).loglikelihood([request("a", "")])
    with pytest.raises(AssayError, match="are pinned"):
        CachedLM(model, "snapkv@0.25").loglikelihood([request("too short", "a")])
    model.tokenizer = None
    with pytest.raises(AssayError, match="has no tokenizer"):
        CachedLM(model)


def test_an_encoder_is_refused():
    model = make_tiny()
    model.config = TransformerConfig(**{**vars(model.config), "causal": False})
    with pytest.raises(AssayError, match="is an encoder"):
        CachedLM(model)
