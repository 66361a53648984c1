"""What no interface means is refused in one line, and leaves everything as it was."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from tests.compositions.models import GATED, MODELS, SOFTMAX, built, some_tokens

from assay.checkpoints import load, save
from assay.core import registry
from assay.core.build import build
from assay.core.compression import Compression
from assay.core.config import BlockConfig, Spec
from assay.core.errors import AssayError, Refused
from assay.core.generation import Options, generate_ids
from assay.core.sites import record
from assay.efficiency.quantize.weights import quantize_weights

PINS = "(sink=2, recent=3)"


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


@torch.no_grad()
@pytest.mark.parametrize(
    ("tokens", "why"),
    [
        ([[1, 2]], "not a list"),
        (torch.zeros(1, 3, dtype=torch.bool), "whole numbers"),
        (torch.zeros(0, 3, dtype=torch.long), "at least one token"),
        (torch.tensor([[-1]]), "must lie in 0..49"),
    ],
)
def test_tokens_that_are_none(model, tokens, why):
    with pytest.raises(AssayError, match=why):
        model(tokens)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_token_ids_of_any_width_are_the_same_tokens(model, dtype):
    torch.testing.assert_close(model(some_tokens(5).to(dtype))[0], model(some_tokens(5))[0])


@torch.no_grad()
def test_a_state_of_another_model_is_refused_and_a_copy_of_the_model_takes_it(model):
    for other in MODELS.values():
        if other().config != model.config:
            with pytest.raises(AssayError, match="not of this model"):
                model(some_tokens(3), other().start(1))
    with pytest.raises(AssayError, match="not of this model"):
        model(some_tokens(3), [1])
    copy.deepcopy(model)(some_tokens(3), model.start(1).fork())
    for batch in (0, -1, 1.5):
        with pytest.raises(AssayError, match="batch="):
            model.start(batch)


@torch.no_grad()
def test_reordering_takes_lists_and_refuses_what_names_no_sequence(model):
    state = model.start(2)
    model(some_tokens(9, 2), state)
    given = model(some_tokens(3, 3), state.reorder([1, 1, 0]))[0]
    torch.testing.assert_close(given, model(some_tokens(3, 3), state.reorder(torch.tensor([1, 1, 0])))[0])
    for index in ([2], [-1], [], [True, False], [0.0], [[0]]):
        with pytest.raises(AssayError, match="reorder"):
            state.reorder(torch.tensor(index))
    with pytest.raises(Refused, match="whole number"):
        state.rollback(1.5)


@torch.no_grad()
@pytest.mark.parametrize("expression", ["snapkv", "h2o", "nestedkv", "random"])
def test_a_compression_follows_its_state_when_sequences_are_reordered(expression):
    model = MODELS["looped"]()
    state = model.start(2)
    held = Compression(build(expression + PINS, "policy"), 0.5).attach(state)
    model(some_tokens(40, 2), state)
    held.finish_prefill()
    grown = state.reorder([1, 1, 0])
    with pytest.raises(AssayError, match="give reorder's index"):
        held.fork(grown)
    follows, alone = held.fork(grown, index=[1, 1, 0]), held.fork(single := state.reorder([1]), index=[1])
    for step in range(30):
        token = some_tokens(1, seed=step).expand(3, 1)
        model(token, grown), model(token[:1], single)
        follows.hold(), alone.hold()
    for layer, store in grown.growing().items():
        assert store.counts[:2] == store.counts[2:4] == single.growing()[layer].counts
        assert sum(store.counts) <= 20 * store.owners


@torch.no_grad()
def test_one_state_is_held_by_one_policy_and_others_stop_remembering():
    model = MODELS["looped"]()
    state = model.start(1)
    first = Compression(build("recent" + PINS, "policy"), 0.5).attach(state)
    second = Compression(build("h2o" + PINS, "policy"), 0.5).attach(state)
    model(some_tokens(40), state)
    free = state.fork()
    second.fork(free).finish_prefill()
    first.finish_prefill()
    with pytest.raises(AssayError, match="another policy holds this state"):
        second.finish_prefill()
    model(some_tokens(1), state)
    assert not [name for store in state.growing().values() for name in store.remembered()]


@pytest.mark.parametrize("expression", ["nestedkv", "recent", "adakv(snapkv)"])
def test_a_budget_of_less_than_a_token_is_refused(expression):
    policy = build(expression, "policy", sink=0, recent=0)
    model = MODELS["looped"]()
    state = model.start(1)
    held = Compression(policy, "1B").attach(state)
    with torch.no_grad():
        model(some_tokens(12), state)
    with pytest.raises(AssayError, match="not even one token"):
        held.finish_prefill()


def test_a_reader_is_refused_where_every_score_is_needed():
    ids, options = [some_tokens(40)[0].tolist()], Options(max_tokens=3, attention="quest(pages=2, size=2)")
    capped = built(BlockConfig(Spec("softmax", {**SOFTMAX.options, "softcap": 5.0}), GATED))
    with pytest.raises(Refused, match="capped"):
        generate_ids(capped, ids, options)
    for name in ("hybrid", "latent"):
        model = MODELS[name]()
        with pytest.raises(Refused, match="recorded scores"), record(model, "*.pattern"):
            generate_ids(model, ids, options)


def test_what_has_nothing_to_act_on_says_so(caplog):
    model = MODELS["looped recurrence"]()
    for options in ({"cache": "snapkv@0.5"}, {"attention": "quest"}):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "assay"):
            generate_ids(model, [[1, 2, 3]], Options(max_tokens=1, **options))
        assert "nothing to act on" in caplog.text
    assert "nothing to compress" in build("snapkv", "policy").explain(model.start(1))
    assert "one key-value head" in build("adakv(snapkv)", "policy").explain(MODELS["latent"]().start(1))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": "hot"}, {"max_tokens": 2.5}, {"top_k": 2.5}, {"top_p": None}, {"stop": None}, {"stop": ["a", 3]}, {"seed": "x"},
        {"seed": 2**70}, {"cache": None}, {"kv_format": 3}, {"attention": "quest@0.5"}, {"kv_format": "int4(group=-2)"},
        {"cache": "snapkv@1e400tok"},
    ],
)  # fmt: skip
def test_generation_names_what_it_cannot_use(options):
    with pytest.raises(AssayError):
        MODELS["latent"]().generate([[1, 2, 3]], **options)


@pytest.mark.parametrize("prompts", [[1, 2], None, 5, ["a", [1]], [[1.5]], torch.tensor([1, 2]), []])
def test_prompts_that_are_none(prompts):
    with pytest.raises(AssayError):
        MODELS["latent"]().generate(prompts)


def test_quantised_weights_are_not_written_as_if_they_were_there(tmp_path):
    with pytest.raises(AssayError, match="quantize_weights"):
        save(quantize_weights(MODELS["looped"](), build("int8", "format")), tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_loading_runs_no_code_that_a_checkpoint_names(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from assay.parts.channels.gated import Gated\n\n\nclass Mine(Gated):\n    pass\n")
    part = f"{path}:Mine"
    model = built(BlockConfig(SOFTMAX, Spec(part, {"hidden": 8})))
    save(model, tmp_path / "made")
    imported = registry._import_file(registry.find(part)).__name__
    load(tmp_path / "made")  # its user has named the file in this process
    del __import__("sys").modules[imported]
    with pytest.raises(AssayError, match="runs no code that a checkpoint names"):
        load(tmp_path / "made")
