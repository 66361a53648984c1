"""Seam 5: what every cache policy owes, held against every policy that the registry knows and some wrapped in others.

Named exceptions: `full` keeps everything and takes no other budget; what RELAXED names changes the keys it keeps.
"""

import inspect
import weakref

import pytest
import torch
from tests.contracts.tiny_models import VOCABULARY, causal, reference, some_tokens, tiny
from tests.contracts.under_test import one_alone, parts

from assay.core import registry
from assay.core.build import accepted
from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.core.expressions import build
from assay.core.state import Observed
from assay.core.store import Store
from assay.core.transformer import Transformer

CONTEXT, END = 96, 118
PINS = {"sink": 2, "recent": 5, "prompt": False}


def expressions() -> list[str]:
    """Every policy as it is, wrappers around two others, and wrappers around wrappers."""
    found = []
    for card in parts("policy"):
        needs = [
            p for p in accepted(registry.get(card.name, "policy")).values() if p.default is inspect.Parameter.empty
        ]
        wraps = [p for p in needs if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
        found += [f"{card.name}(snapkv)", f"{card.name}(keydiff)"] if wraps else [card.name]
    if one_alone():
        return found
    return [
        *found,
        "twinkv(adakv(snapkv))",
        "adakv(nestedkv(blocks=16, window=24))",
        "twinkv(random, threshold=0.5, cap=0.5, generating=True)",
        "nestedkv(keys=before, mixing=kurtosis, blocks=16)",
        "random_attention(draw=fresh)",
        "pyramidkv(keydiff, beta=3)",
        "expected_attention(covariance=False, epsilon=0.02)",
        "streaming_llm(rerotate=True)",
    ]


EVERY = expressions()
BOUNDED = [e for e in EVERY if build(e, "policy").bounded]
# Kept keys keep their values and true positions, except where a policy is named here, with the reason and what it comes to.
RELAXED = {
    "streaming_llm(rerotate=True)": "counts positions within the cache, as published: sinks' keys are turned towards the "
    "window, and no prompt is pinned. Measured: 0.46 standard deviations of the logits from the whole model under a mask, once "
    "76 of 96 tokens are gone. test_streaming_llm.py holds it to that, and to the paper's own cache at every step",
}
STRICT = [e for e in BOUNDED if e not in RELAXED]
MODELS = {
    "grouped": {},
    "one key-value head": {"kv_heads": 1},
    "a head each": {"kv_heads": 4},
    "capped, not rotated": {"softcap": 2.0, "rope": False},
}


def compression(expression: str, budget: str | float, **given: object) -> Compression:
    return Compression(build(expression, "policy", **{**PINS, **given}), budget)


@torch.no_grad()
def prefilled(model: Transformer, held: Compression | None, tokens: torch.Tensor, valid: torch.Tensor | None = None):
    state = model.start(len(tokens))
    if held is not None:
        held.attach(state)
    logits, _ = model(tokens, state, valid=valid, logits="last")
    if held is not None:
        held.finish_prefill()
    return state, logits[:, -1]


@torch.no_grad()
def decoded(model: Transformer, state, held: Compression | None, tokens: torch.Tensor) -> torch.Tensor:
    rows = []
    for t in range(tokens.shape[1]):
        rows.append(model(tokens[:, t : t + 1], state)[0][:, 0])
        if held is not None:
            held.hold()
    return torch.stack(rows, 1)


def positions(state) -> dict[tuple[int, int], list[int]]:
    """Positions held, by layer and owner."""
    found = {}
    for layer, store in state.growing().items():
        flat = store.flat()
        for owner in range(store.owners):
            found[layer, owner] = flat.positions[flat.owner == owner].tolist()
    return found


def total(state) -> int:
    return sum(sum(store.counts) for store in state.growing().values())


@pytest.mark.parametrize("expression", EVERY)
def test_a_budget_of_everything_changes_no_logit(expression):
    model, tokens = tiny(), some_tokens(END)
    held = compression(expression, 1)
    state, first = prefilled(model, held, tokens[:, :CONTEXT])
    plain, expected = prefilled(model, None, tokens[:, :CONTEXT])
    assert torch.equal(first, expected)
    assert torch.equal(
        decoded(model, state, held, tokens[:, CONTEXT:]), decoded(model, plain, None, tokens[:, CONTEXT:])
    )
    assert state.bytes == plain.bytes


@pytest.mark.parametrize("shape", MODELS)
@pytest.mark.parametrize("expression", STRICT)
def test_kept_sets_replayed_as_a_mask_on_the_full_model_give_the_same_logits_at_every_step(expression, shape):
    model, tokens = tiny(**MODELS[shape]), some_tokens(END + 20)
    held = compression(expression, 0.4)
    state, first = prefilled(model, held, tokens[:, :CONTEXT])
    allowed, given = causal(model, tokens.shape[1]), [first[:, None]]
    # a turn of many tokens, single steps, another turn
    cuts = [CONTEXT, CONTEXT + 12, *range(CONTEXT + 13, END + 1), tokens.shape[1]]
    for begin, end in zip(cuts, cuts[1:], strict=False):
        for (layer, owner), at in positions(state).items():
            allowed[layer][owner, begin:end, :begin] = False
            allowed[layer][owner, begin:end, at] = True
        with torch.no_grad():
            given.append(model(tokens[:, begin:end], state)[0])
        held.hold()
    wanted = reference(model, tokens, allowed)
    assert not torch.allclose(wanted, reference(model, tokens, causal(model, tokens.shape[1])), atol=1e-3)
    torch.testing.assert_close(torch.cat(given, 1), wanted[:, CONTEXT - 1 :], rtol=0, atol=1e-9)


@pytest.mark.parametrize("expression", STRICT)
def test_what_is_kept_is_unchanged_and_at_its_true_position(expression):
    model, tokens = tiny(), some_tokens(CONTEXT)
    whole, _ = prefilled(model, None, tokens)
    state, _ = prefilled(model, compression(expression, 0.3), tokens)
    for layer, store in state.growing().items():
        flat, before = store.flat(), whole.layers[layer].store.flat()
        at = flat.owner * CONTEXT + flat.positions
        assert at.diff().gt(0).all()
        assert torch.equal(flat.k, before.k[at]) and torch.equal(flat.v, before.v[at])


@pytest.mark.parametrize("expression", BOUNDED)
def test_pins_stay_and_the_budget_is_exact_after_prefill_and_held_while_generating(expression):
    model, tokens = tiny(), some_tokens(END)
    held = compression(expression, 0.3)
    state, _ = prefilled(model, held, tokens[:, :CONTEXT])
    limit = int(0.3 * CONTEXT) * 4  # two growing layers of two key-value heads
    assert total(state) == limit
    for now in range(CONTEXT, END):
        for at in positions(state).values():
            assert {0, 1, *range(now - 5, now)} <= set(at)
        decoded(model, state, held, tokens[:, now : now + 1])
        assert limit - 4 * 3 <= total(state) <= limit  # an eighth at most is freed ahead


@pytest.mark.parametrize("expression", STRICT)
def test_the_prompt_can_be_pinned(expression):
    model, tokens = tiny(), some_tokens(END)
    held = compression(expression, "60tok", prompt=True)
    state, _ = prefilled(model, held, tokens[:, :50])
    decoded(model, state, held, tokens[:, 50:])
    assert all(set(range(50)) <= set(at) for at in positions(state).values())
    assert total(state) <= 60 * 4


@pytest.mark.parametrize("expression", BOUNDED)
def test_a_left_padded_batch_equals_its_sequences_alone(expression):
    model, lengths = tiny(), [CONTEXT, 61, 30]
    rows = [some_tokens(length, seed=length) for length in lengths]
    valid = torch.arange(CONTEXT) >= CONTEXT - torch.tensor(lengths)[:, None]
    batch = torch.cat([torch.nn.functional.pad(r, (CONTEXT - r.shape[1], 0)) for r in rows])
    steps = some_tokens(12, seed=9)
    for budget in (0.35, "33tok"):
        held = compression(expression, budget)
        state, first = prefilled(model, held, batch, valid)
        together = torch.cat([first[:, None], decoded(model, state, held, steps.expand(3, -1))], 1)
        for b, row in enumerate(rows):
            alone = compression(expression, budget)
            single, first = prefilled(model, alone, row)
            expected = torch.cat([first[:, None], decoded(model, single, alone, steps)], 1)
            torch.testing.assert_close(together[b : b + 1], expected, rtol=0, atol=1e-9)
            for (layer, owner), at in positions(single).items():
                assert positions(state)[layer, b * 2 + owner] == at


@pytest.mark.parametrize("expression", BOUNDED)
def test_layers_with_a_window_are_left_alone(expression):
    model, tokens = tiny(), some_tokens(END)
    held = compression(expression, 0.3)
    state, _ = prefilled(model, held, tokens[:, :CONTEXT])
    plain, _ = prefilled(model, None, tokens[:, :CONTEXT])
    mine, other = state.layers[1].store, plain.layers[1].store
    assert torch.equal(mine.flat().k, other.flat().k) and not mine.remembered()
    decoded(model, state, held, tokens[:, CONTEXT:])
    decoded(model, plain, None, tokens[:, CONTEXT:])
    assert torch.equal(mine.flat().positions, other.flat().positions)


@pytest.mark.parametrize("kv_heads", [1, 4])
@pytest.mark.parametrize("expression", BOUNDED)
def test_bytes_are_those_of_the_distinct_storages_and_really_fall(expression, kv_heads):
    model, tokens = tiny(kv_heads=kv_heads, windows=(None, 8)), some_tokens(512)
    held = compression(expression, 0.25)
    state = model.start(1)
    held.attach(state)
    with torch.no_grad():
        model(tokens, state, logits="none")
    store, before = state.layers[0].store, state.bytes
    old = [weakref.ref(store.arrays[name]) for name in ("k", "v", "positions")]
    held.finish_prefill()
    assert all(ref() is None for ref in old)
    everything = [t for layer in state.layers for t in (*layer.store.arrays.values(), *layer.store.notes.values())]
    everything += [layer.store.owner for layer in state.layers]
    assert state.bytes == sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in everything}.values()
    )
    assert held.peak_bytes == before > state.bytes
    slots = store.arrays["k"].shape[:2].numel()
    assert sum(store.counts) == 128 * kv_heads <= slots <= 128 * kv_heads + 64 * kv_heads
    assert store.arrays["k"].untyped_storage().nbytes() == slots * 8 * 8


@pytest.mark.parametrize("expression", BOUNDED)
def test_another_turn_keeps_the_ceiling_or_fixes_a_new_one(expression):
    model, tokens = tiny(), some_tokens(200)
    held = compression(expression, 0.3)
    state, _ = prefilled(model, held, tokens[:, :CONTEXT])
    with torch.no_grad():
        model(tokens[:, CONTEXT:150], state)
        held.hold()
        assert total(state) <= 28 * 4
        model(tokens[:, 150:], state)
    held.finish_prefill()
    assert total(state) == min(60, 28 + 50) * 4
    assert all({0, 1, *range(195, 200)} <= set(at) for at in positions(state).values())


@pytest.mark.parametrize("expression", BOUNDED)
def test_half_precision(expression):
    """A model stored in bfloat16, and keys and values that are held in it."""
    model, tokens = tiny(dtype=torch.bfloat16), some_tokens(END)
    held = compression(expression, 0.3)
    state, _ = prefilled(model, held, tokens[:, :CONTEXT])
    assert total(state) == int(0.3 * CONTEXT) * 4
    assert decoded(model, state, held, tokens[:, CONTEXT:]).isfinite().all()

    policy, store = build(expression, "policy", **PINS), Store(2, 2)
    q, k, v = (torch.randn(2, heads, CONTEXT, 8).bfloat16() for heads in (4, 2, 2))
    at = torch.arange(CONTEXT).expand(2, -1)
    store.append(k, v, positions=at)
    policy.observe(0, store, Observed(q, k, v, q.clone(), k.clone(), at, None, scale=0.35))
    scores = policy.score(0, store)
    assert scores.isfinite().all() and scores.dtype != torch.bfloat16
    budget = policy.allot({0: scores}, {0: store}, torch.tensor([20, 20]))[0]
    store.keep(policy.keep(0, store, scores, budget))
    assert sum(store.counts) == 80 and store.arrays["k"].dtype == torch.bfloat16


@pytest.mark.parametrize("expression", BOUNDED)
@pytest.mark.parametrize("budget", ["0.3", "40tok", "40KiB"])
def test_a_budget_is_a_ratio_tokens_or_bytes(expression, budget):
    model, tokens = tiny(), some_tokens(400)
    held = compression(expression, budget)
    state, _ = prefilled(model, held, tokens)
    decoded(model, state, held, some_tokens(20))
    if budget == "40KiB":
        stores = state.growing().values()
        page = sum(s.owners * s.page * s.arrays["k"][0, 0].numel() * 8 * 2.5 for s in stores if not s.even)
        assert sum(s.bytes for s in stores) <= 40 * 2**10 + page
        assert total(state) > 4 * 16
    else:
        assert total(state) <= {"0.3": 120, "40tok": 40}[budget] * 4


@pytest.mark.parametrize("expression", BOUNDED)
def test_fewer_tokens_than_pins_are_refused_in_one_line(expression):
    model, tokens = tiny(), some_tokens(CONTEXT)
    pinned, nothing = r"7 are pinned \(sink=2, recent=5, prompt=False\)", "holds not even one token"
    for budget, why in (("6tok", pinned), (0.05, pinned), ("1KiB", f"{pinned}|{nothing}")):
        with pytest.raises(AssayError, match=why) as error:
            prefilled(model, compression(expression, budget), tokens)
        assert "\n" not in str(error.value)
    with pytest.raises(AssayError, match="pinned"):
        prefilled(model, compression(expression, 0.5, prompt=True), tokens)


@pytest.mark.parametrize("expression", BOUNDED)
def test_one_head_and_one_token(expression):
    model, tokens = tiny(heads=1, kv_heads=1, windows=(None,)), some_tokens(8)
    for budget in ("1tok", 0.5):
        held = compression(expression, budget, sink=0, recent=0)
        state, _ = prefilled(model, held, tokens[:, :1])
        assert total(state) == 1
        assert decoded(model, state, held, tokens[:, 1:]).isfinite().all()
        assert total(state) == 1


@pytest.mark.parametrize("expression", BOUNDED)
def test_equal_seeds_keep_equal_positions(expression):
    model, tokens = tiny(), some_tokens(CONTEXT)
    first, again = (positions(prefilled(model, compression(expression, 0.3), tokens)[0]) for _ in range(2))
    assert first == again
    held = compression(expression, 0.3)
    held.policy.reseed(1)
    other = positions(prefilled(model, held, tokens)[0])
    assert (other != first) == any("seed" in vars(policy) for policy in held.policy.chain())


def test_one_prefill_serves_every_policy_and_budget():
    """Forks of one prefill that all policies observed equal prefills of their own, bytes included."""
    model, tokens = tiny(), some_tokens(END)
    shared = {e: compression(e, 0.5) for e in BOUNDED}
    state = model.start(1)
    for held in shared.values():
        held.attach(state)
    with torch.no_grad():
        model(tokens[:, :CONTEXT], state)
    for expression, observer in shared.items():
        for budget in (0.5, "20tok"):
            branch = state.fork()
            held = observer.fork(branch, budget)
            held.finish_prefill()
            own = compression(expression, budget)
            alone, _ = prefilled(model, own, tokens[:, :CONTEXT])
            assert positions(branch) == positions(alone) and branch.bytes == alone.bytes
            given = decoded(model, branch, held, tokens[:, CONTEXT : CONTEXT + 6])
            wanted = decoded(model, alone, own, tokens[:, CONTEXT : CONTEXT + 6])
            torch.testing.assert_close(given, wanted, rtol=0, atol=1e-12)
    assert total(state) == CONTEXT * 4


@pytest.mark.parametrize("expression", EVERY)
def test_a_model_it_cannot_act_on_is_explained_in_one_line(expression):
    policy = build(expression, "policy")
    for windows, kv_heads in (((8, 8), 2), ((None, 8), 1), ((None, None), 2)):
        line = policy.explain(tiny(windows=windows, kv_heads=kv_heads).start(1))
        assert line is None or (line and "\n" not in line)
    assert policy.explain(tiny(windows=(8, 8)).start(1))
    assert policy.explain(tiny(kv_heads=4).start(1)) is None


@pytest.mark.parametrize("expression", EVERY)
def test_negative_pins_and_unknown_options_are_refused(expression):
    with pytest.raises(AssayError, match="sink=-1"):
        build(expression, "policy", sink=-1)
    with pytest.raises(AssayError, match="no option vocabulary"):
        build(expression, "policy", vocabulary=VOCABULARY)


@pytest.mark.parametrize("expression", [e for e in EVERY if e not in BOUNDED])
def test_a_policy_that_keeps_everything_refuses_a_smaller_budget(expression):
    with pytest.raises(AssayError, match="keeps everything"):
        compression(expression, 0.5)
