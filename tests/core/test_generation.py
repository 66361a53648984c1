"""Generation is the full forward, step by step: greedy, padded, stopped, streamed, seeded, under a bounded cache."""

from __future__ import annotations

import pytest
import torch
from tests.core.tiny import tiny

from assay.core.errors import AssayError, UnknownPart
from assay.core.generation import Options, generate_ids, left_padded
from assay.core.policy import Policy


class Bytes:
    """UTF-8 bytes as tokens 1..256; 0 begins a text. Half a character decodes to the replacement character."""

    bos, eos = 0, None

    def encode(self, text: str, bos: bool = True) -> list[int]:
        return [0] * bos + [byte + 1 for byte in text.encode()]

    def decode(self, ids: list[int]) -> str:
        return bytes(i - 1 for i in ids if i).decode(errors="replace")


@pytest.fixture(scope="module")
def model():
    made = tiny(vocab_size=257, context=128)
    made.tokenizer, made.name = Bytes(), "tiny"
    return made


@torch.no_grad()
def by_argmax(model, ids, count):
    """Greedy continuation with a whole forward pass for each token."""
    made = []
    for _ in range(count):
        logits, _ = model(torch.tensor([ids + made]))
        made.append(int(logits[0, -1].argmax()))
    return made


PROMPTS = [[5, 9, 200], [7], list(range(40, 75)), [1, 1, 2]]


def test_greedy_equals_the_argmax_of_full_passes(model):
    for ids in PROMPTS:
        wanted = by_argmax(model, ids, 20)
        assert generate_ids(model, [ids], Options(max_tokens=20)) == [wanted]
        assert len(set(wanted)) > 3, "a constant continuation would show nothing"


def test_a_batch_with_left_padding_equals_singles(model):
    assert generate_ids(model, PROMPTS, Options(max_tokens=15)) == [by_argmax(model, ids, 15) for ids in PROMPTS]


def test_a_prompt_in_pieces_is_continued_the_same(model):
    wanted = generate_ids(model, PROMPTS, Options(max_tokens=15))
    for chunk in (1, 8, 1000):
        assert generate_ids(model, PROMPTS, Options(max_tokens=15, prefill_chunk=chunk)) == wanted
    with pytest.raises(AssayError, match="prefill_chunk=0"):
        Options(prefill_chunk=0)


def test_text_in_text_out(model):
    one = model.generate("héllo", max_tokens=12)
    assert one == Bytes().decode(by_argmax(model, Bytes().encode("héllo"), 12))
    assert model.generate(["héllo", "x"], max_tokens=12) == [one, model.generate("x", max_tokens=12)]
    assert model.generate("x", max_tokens=12, add_bos=False) != model.generate("x", max_tokens=12)


def test_rows_of_token_ids_give_rows_of_token_ids(model):
    wanted = [by_argmax(model, ids, 9) for ids in PROMPTS[:2]]
    assert model.generate(PROMPTS[:2], max_tokens=9) == wanted
    assert model.generate(torch.tensor(PROMPTS[:1]), max_tokens=9) == wanted[:1]


def sampled(model, seed, **options):
    return generate_ids(model, PROMPTS[:2], Options(max_tokens=12, temperature=1.5, seed=seed, **options))


def test_seeds_decide(model):
    assert sampled(model, 3) == sampled(model, 3)
    assert sampled(model, 3) != sampled(model, 4)
    assert sampled(model, 3, top_k=1) == generate_ids(model, PROMPTS[:2], Options(max_tokens=12))
    assert sampled(model, 3, top_p=0.0) == sampled(model, 9, min_p=1.0)


def test_the_global_random_state_is_left_alone(model):
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    sampled(model, 3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_end_token_ends_a_row_and_is_left_out(model, monkeypatch):
    wanted = [by_argmax(model, ids, 20) for ids in PROMPTS]
    for end in (wanted[0][6], {wanted[1][4], wanted[2][9]}):
        monkeypatch.setattr(Bytes, "eos", end)
        ends = {end} if isinstance(end, int) else end
        cut = [ids[: next((i for i, one in enumerate(ids) if one in ends), 20)] for ids in wanted]
        assert generate_ids(model, PROMPTS, Options(max_tokens=20)) == cut
        assert any(len(c) < 20 for c in cut)


def test_no_step_is_taken_for_nothing(model, monkeypatch):
    lengths, forward = [], type(model).forward

    def counted(self, tokens, *args, **options):
        lengths.append(tokens.shape[1])
        return forward(self, tokens, *args, **options)

    monkeypatch.setattr(type(model), "forward", counted)
    generate_ids(model, [[5, 9, 200]], Options(max_tokens=4))
    assert lengths == [3, 1, 1, 1]
    monkeypatch.setattr(Bytes, "eos", by_argmax(model, [5, 9, 200], 2)[1])
    lengths.clear()
    generate_ids(model, [[5, 9, 200]], Options(max_tokens=40))
    assert lengths == [3, 1]


def test_stop_strings_end_a_text_and_are_no_part_of_it(model):
    text = model.generate("ab", max_tokens=40)
    stop = text[7:9]
    assert model.generate("ab", max_tokens=40, stop=stop) == text[: text.index(stop)]
    both = (text[12:14], stop)
    assert model.generate("ab", max_tokens=40, stop=both) == text[: min(text.index(s) for s in both)]
    assert model.generate(["ab", "ab"], max_tokens=40, stop=[stop]) == [text[: text.index(stop)]] * 2
    assert model.generate("ab", max_tokens=40, stop="never in there") == text


@pytest.mark.parametrize("seed", range(6))
def test_streamed_pieces_join_to_the_text(model, seed):
    options = {"max_tokens": 60, "temperature": 2.0, "seed": seed}
    text = model.generate("ab", **options)
    pieces = list(model.stream("ab", **options))
    assert "".join(pieces) == text
    assert len(pieces) > 5
    stop = text[15:18]
    assert "".join(model.stream("ab", **options, stop=stop)) == text[: text.index(stop)]


def test_characters_of_several_tokens_are_streamed_whole(model, monkeypatch):
    wanted = "a→b\U0001f600ç"
    script = iter(Bytes().encode(wanted, bos=False))
    monkeypatch.setattr("assay.core.generation.choose", lambda logits, **_: torch.tensor([next(script)]))
    assert list(model.stream("x", max_tokens=len(wanted.encode()))) == list(wanted)


def test_a_budget_of_everything_changes_nothing(model):
    for ids in PROMPTS:
        options = Options(max_tokens=20, cache="recent@1")
        assert generate_ids(model, [ids], options) == [by_argmax(model, ids, 20)]


class Last(Policy):
    """Keeps the latest."""

    def score(self, layer, store):
        return store.flat().positions.double()


def test_a_bounded_cache_holds_its_budget_at_every_step(model, monkeypatch):
    held, start = [], type(model).start

    def watched(self, batch=1):
        state = start(self, batch)
        state.layers[0].observers = (lambda store, seen: held.append(max(store.counts)),)
        return state

    monkeypatch.setattr(type(model), "start", watched)
    bounded = generate_ids(model, [list(range(40, 100))], Options(max_tokens=30, cache="recent(sink=0,recent=4)@24tok"))
    assert held[0] == 60
    assert max(held[1:]) <= 25
    mine = Last(sink=0, recent=4)
    monkeypatch.setattr("assay.core.expressions.build", lambda call, seam: mine)
    same = generate_ids(model, [list(range(40, 100))], Options(max_tokens=30, cache="mine@24tok"))
    assert bounded == same
    assert bounded != generate_ids(model, [list(range(40, 100))], Options(max_tokens=30))


def test_left_padding():
    tokens, valid = left_padded([[1, 2, 3], [4]])
    assert tokens.tolist() == [[1, 2, 3], [0, 0, 4]]
    assert valid.tolist() == [[True, True, True], [False, False, True]]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"temperature": -1}, "temperature=-1 lies outside"),
        ({"top_p": 1.5}, "top_p=1.5 lies outside 0..1"),
        ({"min_p": -0.1}, "min_p=-0.1"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"temprature": 1}, "no option temprature; it takes max_tokens, temperature"),
        ({"stop": ["a", ""]}, "a stop string is empty"),
        ({"max_tokens": 126}, "3 prompt tokens and 126 new ones are more than the model's context of 128"),
        ({"cache": "recent"}, "cache 'recent' has no budget: write recent@0.25"),
        ({"cache": "recent@7"}, "a ratio lies in"),
    ],
)
def test_bad_options_are_named(model, options, why):
    with pytest.raises(AssayError, match=why):
        model.generate("ab", **options)


def test_what_cannot_be_generated_from(model):
    with pytest.raises(UnknownPart, match="unknown policy 'recnet'; nearest: recent"):
        model.generate("ab", cache="recnet@0.5")
    with pytest.raises(AssayError, match="the prompt is empty"):
        model.generate("", add_bos=False)
    with pytest.raises(AssayError, match="prompt 2 of 2 is empty"):
        generate_ids(model, [[3], []], Options())
    with pytest.raises(AssayError, match="the prompt is empty"):
        generate_ids(model, [], Options())
    mute = tiny(vocab_size=257)
    with pytest.raises(AssayError, match="'unnamed' has no tokenizer"):
        mute.generate("ab")
    with pytest.raises(AssayError, match="stop strings need a tokenizer"):
        generate_ids(mute, [[1]], Options(stop="x"))
