"""What kvpress keeps is what the same policies keep here; where the rules differ, theirs applied to our scores gives their tokens.

`tests/fixtures/kvpress.json` is written by `python -m benchmarks.kvpress --fixture`, in an environment that has kvpress.
"""

import json
from pathlib import Path

import pytest
import torch
from benchmarks.models import TINY, some_tokens, write_checkpoint

from assay.checkpoints import load
from assay.core.compression import Compression
from assay.core.expressions import build

RECORDED = json.loads((Path(__file__).parents[2] / "fixtures" / "kvpress.json").read_text())
CONTEXT, KEPT = RECORDED["made"]["context"], RECORDED["made"]["kept"]
CASES = {f"{case['name']}, {case['family']}": case for case in RECORDED["cases"]}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {family: load(write_checkpoint(folder / family, family, TINY)) for family in ("llama", "qwen3")}


@torch.no_grad()
def compressed(model, policy):
    """What each layer scored and each head kept: scores "heads tokens", sets of positions."""
    state = model.start(1)
    held = Compression(build(policy, "policy"), f"{KEPT}tok").attach(state)
    model(torch.tensor([some_tokens(CONTEXT, TINY.vocabulary, seed=1)]), state, logits="none")
    scores = [held.policy.score(at, store).view(TINY.kv_heads, -1) for at, store in state.growing().items()]
    held.finish_prefill()
    kept = []
    for store in state.growing().values():
        flat = store.flat()
        kept.append([set(flat.positions[flat.owner == head].tolist()) for head in range(store.kv_heads)])
    return scores, kept


def values_of(scores, sets):
    """The scores of these positions, in order: what must agree where sets differ by ties."""
    return torch.cat([row[sorted(one)] for row, one in zip(scores, sets, strict=True)]).sort().values


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case["equal"]])
def test_the_same_tokens_stay(models, case):
    case = CASES[case]
    scores, kept = compressed(models[case["family"]], case["policy"])
    different = 0
    for layer, ours, theirs in zip(scores, kept, case["kept"], strict=True):
        theirs = [set(one) for one in theirs]
        ours_alone = [a - b for a, b in zip(ours, theirs, strict=True)]
        theirs_alone = [b - a for a, b in zip(ours, theirs, strict=True)]
        torch.testing.assert_close(values_of(layer, ours_alone), values_of(layer, theirs_alone), rtol=1e-5, atol=1e-7)
        different += sum(map(len, ours_alone))
    # one word's keys have one norm in the first layer, up to rounding: only there do ties decide
    assert different == 0 or (case["name"] == "knorm" and kept[1:] == [[set(h) for h in la] for la in case["kept"][1:]])


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_adakv_mixes_shares_where_kvpress_guarantees_a_floor(models, family):
    """Both let heads compete for the layer's total. Here a head gets 0.8 of what it wins and 0.2 of an equal share, as in the
    authors' code; there the best 0.2 of an equal share are safe in each head, and all heads compete for the rest."""
    case = CASES[f"adakv, safeguard 0.2, {family}"]
    scores, kept = compressed(models[family], case["policy"])
    assert kept != [[set(head) for head in layer] for layer in case["kept"]]
    for layer, ours, theirs in zip(scores, kept, case["kept"], strict=True):
        assert sum(map(len, ours)) == sum(map(len, theirs)) == KEPT * TINY.kv_heads
        safe = layer.scatter(1, layer.topk(int(0.2 * KEPT), 1).indices, torch.inf)
        floor = torch.zeros(layer.numel(), dtype=torch.bool)
        floor[safe.flatten().topk(KEPT * TINY.kv_heads).indices] = True
        assert [row.nonzero()[:, 0].tolist() for row in floor.view_as(layer)] == theirs
