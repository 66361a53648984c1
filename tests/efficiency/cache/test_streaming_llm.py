"""StreamingLLM: sinks and a window; with re-rotation, token by token what the paper's cache of unrotated keys gives."""

import dataclasses

import pytest
import torch
from tests.compositions.models import latent
from tests.contracts.tiny_models import causal, reference, some_tokens, tiny
from tests.efficiency.cache.stores import fed, observed

from assay.core.build import build
from assay.core.compression import Compression
from assay.core.errors import AssayError
from assay.efficiency.cache.common import Wrapper
from assay.efficiency.cache.streaming_llm import StreamingLLM

CONTEXT, END = 60, 84


def start(model, policy, tokens, budget="20tok", **options):
    state = model.start(len(tokens))
    held = Compression(policy, budget, **options).attach(state)
    with torch.no_grad():
        logits, _ = model(tokens, state, valid=None, logits="last")
    held.finish_prefill()
    return state, held, logits


def step(model, state, held, tokens):
    with torch.no_grad():
        logits, _ = model(tokens, state)
    held.hold()
    return logits


class AsPublished:
    """A cache of unrotated keys. At every step those held are turned to 0 ... n - 1 and the query to n, whatever the text's positions."""

    def __init__(self, model, tokens):
        self.model, self.held = model, {}
        self.feed(tokens)

    def keep(self, at):
        self.held = {layer: tuple(t[:, :, at] for t in pair) for layer, pair in self.held.items()}

    @torch.no_grad()
    def feed(self, tokens):
        model, x = self.model, self.model.embed(tokens) * self.model.config.embed_scale
        for layer, block in enumerate(model.blocks):
            mixer, normed = block.mixer, block.norm1(x)
            q, k, v = (
                linear(normed).unflatten(-1, (-1, mixer.head_dim)).transpose(1, 2)
                for linear in (mixer.q, mixer.k, mixer.v)
            )
            q, k = mixer.q_norm(q), mixer.k_norm(k)
            if layer in self.held:
                k, v = (torch.cat([old, new], 2) for old, new in zip(self.held[layer], (k, v), strict=True))
            self.held[layer] = k, v
            count, new = k.shape[2], q.shape[2]
            within = torch.arange(count)[None]
            q = mixer.position.rotate(q, q, within[:, -new:])[0]
            k = mixer.position.rotate(k, k, within)[0]
            group = mixer.heads // mixer.kv_heads
            scores = q @ k.repeat_interleave(group, 1).mT * mixer.scale
            later = within[0] > within[0, -new:, None]
            pattern = scores.masked_fill(later, -torch.inf).softmax(-1)
            x = x + mixer.out((pattern @ v.repeat_interleave(group, 1)).transpose(1, 2).flatten(2))
            x = x + block.channel(block.norm2(x))
        return model.final_norm(x) @ model.embed.weight.T


def test_padding_is_no_sink():
    seen, policy = observed(10), StreamingLLM(True, sink=2)
    valid, at = torch.arange(10)[None] < 8, torch.arange(10)[None] % 8
    store = fed(policy, dataclasses.replace(seen, positions=at, valid=valid, turn=lambda x, positions: x))
    assert torch.equal(store.notes[policy.named("sinks")][0], seen.k_unrotated[0, :, :2].transpose(0, 1))


class EverySecond(Wrapper):
    """Keeps tokens that leave gaps."""

    def keep(self, layer, store, scores, budget):
        return (store.flat().positions % 2 == 0).nonzero()[:, 0]


@pytest.mark.parametrize("rerotate", [True, False])
@pytest.mark.parametrize("pieces", [[1] * 24, [5, 1, 1, 12, 5]])
def test_rerotated_it_is_the_papers_cache_at_every_step(pieces, rerotate):
    model, tokens = tiny(windows=(None, None)), some_tokens(END)
    state, held, _ = start(model, StreamingLLM(rerotate, sink=3, recent=4), tokens[:, :CONTEXT])
    paper, gaps, now = AsPublished(model, tokens[:, :CONTEXT]), [], CONTEXT
    paper.keep([0, 1, 2, *range(CONTEXT - 17, CONTEXT)])
    for piece in pieces:
        part = tokens[:, now : now + piece]
        got, wanted = step(model, state, held, part), paper.feed(part)
        gaps.append(float((got - wanted).abs().max()))
        now += piece
        kept = state.layers[0].store.counts[0]
        count = paper.held[0][0].shape[2]
        paper.keep([0, 1, 2, *range(count - (kept - 3), count)])
    assert max(gaps) < 1e-9 if rerotate else min(gaps) > 1e-3


def test_sinks_and_a_window_stay_and_only_sinks_keys_change():
    model, tokens = tiny(), some_tokens(80)
    states = [start(model, StreamingLLM(r, sink=3, recent=5), tokens[:, :60], slack=0) for r in (False, True)]
    for now in range(60, 80):
        for layer in (0, 2):
            plain, turned = (state.layers[layer].store.flat() for state, _, _ in states)
            assert plain.positions.tolist() == turned.positions.tolist() == [*range(3), *range(now - 17, now)] * 2
            if now == 60:  # later tokens have read turned keys
                changed = (plain.k != turned.k).any(-1)
                assert torch.equal(changed, plain.positions < 3) and torch.equal(plain.v, turned.v)
        for state, held, _ in states:
            step(model, state, held, tokens[:, now : now + 1])


def test_how_far_it_is_from_the_whole_model_under_a_mask():
    """The size of what is relaxed, in standard deviations of the logits, once 76 of 96 tokens are gone: as measured."""
    model, tokens = tiny(), some_tokens(97)
    far = {}
    for rerotate in (False, True):
        state, held, _ = start(model, StreamingLLM(rerotate, sink=3, recent=4), tokens[:, :96])
        allowed = causal(model, 97)
        for layer in (0, 2):
            allowed[layer][:, 96, 3:79] = False
        wanted = reference(model, tokens, allowed)[:, -1:]
        far[rerotate] = float((step(model, state, held, tokens[:, 96:]) - wanted).std() / wanted.std())
    assert far[False] < 1e-9
    assert far[True] == pytest.approx(0.461, abs=1e-3)


def test_turns_do_not_add_up_rounding():
    """After a thousand compactions in bfloat16 a sink's key is the key made before rotation, turned once."""
    model, tokens = tiny(windows=(None,), dtype=torch.bfloat16), some_tokens(1040)
    policy = StreamingLLM(True, sink=2, recent=4)
    state, held, _ = start(model, policy, tokens[:, :40], slack=0)
    for now in range(40, 1040):
        step(model, state, held, tokens[:, now : now + 1])
    store = state.layers[0].store
    made = store.notes[policy.named("sinks")]
    at = torch.tensor([[0, 1]]) + 1040 - 20
    wanted = policy.turns[0](made.transpose(1, 2), at).to(torch.bfloat16)
    flat = store.flat()
    assert torch.equal(flat.k[flat.positions < 2].view(1, 2, 2, 8), wanted)


def test_a_padded_batch_and_a_reordered_one_turn_each_sequence_by_its_own():
    model, rows = tiny(), [some_tokens(60, seed=1), some_tokens(41, seed=2)]
    policy = StreamingLLM(True, sink=2, recent=4)
    tokens, valid = torch.cat([rows[0], torch.nn.functional.pad(rows[1], (19, 0))]), torch.ones(2, 60, dtype=torch.bool)
    valid[1, :19] = False
    state = model.start(2)
    held = Compression(policy, "20tok").attach(state)
    with torch.no_grad():
        model(tokens, state, valid=valid)
    held.finish_prefill()
    swapped = state.reorder(torch.tensor([1, 0]))
    other = held.fork(swapped, index=[1, 0])
    more = some_tokens(30, seed=3)
    alone = [start(model, StreamingLLM(True, sink=2, recent=4), row) for row in rows]
    for now in range(30):
        token = more[:, now : now + 1]
        wanted = torch.cat([step(model, *pair[:2], token) for pair in alone])
        torch.testing.assert_close(step(model, state, held, token.expand(2, 1)), wanted, rtol=0, atol=1e-9)
        torch.testing.assert_close(step(model, swapped, other, token.expand(2, 1)), wanted[[1, 0]], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "model",
    [
        tiny(rope=False),
        tiny(position={"part": "rope", "options": {"scaling": {"kind": "yarn", "factor": 4.0, "original": 32}}}),
    ],
)
def test_scaled_rotations_turn_too_and_where_nothing_rotates_nothing_turns(model):
    rotates = model.blocks[0].mixer.position is not None
    tokens, policy = some_tokens(60), StreamingLLM(True, sink=2, recent=4)
    state, held, _ = start(model, policy, tokens)
    plain = start(model, StreamingLLM(sink=2, recent=4), tokens)[0]
    mine, other = state.layers[0].store.flat(), plain.layers[0].store.flat()
    assert torch.equal(mine.k, other.k) != rotates
    torch.testing.assert_close(mine.k.norm(dim=-1), other.k.norm(dim=-1))
    assert ("rerotate changes nothing" in (policy.explain(model.start(1)) or "")) != rotates


@torch.no_grad()
def test_a_latents_rotary_part_turns_alone():
    model, tokens = latent(), some_tokens(60) % 50
    policy = StreamingLLM(True, sink=2, recent=4)
    state, held, _ = start(model, policy, tokens)
    plain = start(model, StreamingLLM(sink=2, recent=4), tokens)[0]
    mixer, mine, other = model.blocks[0].mixer, state.layers[0].store.flat(), plain.layers[0].store.flat()
    before = state.layers[0].store.notes[policy.named("sinks")].transpose(1, 2)[..., mixer.latent :]
    turned = mixer.position.rotate(before, before, torch.tensor([[40, 41]]))[1]
    torch.testing.assert_close(mine.k[:2, mixer.latent :], turned[0, 0], rtol=0, atol=1e-12)
    assert not torch.allclose(mine.k[:2], other.k[:2])
    assert torch.equal(mine.k[2:], other.k[2:]) and torch.equal(mine.v, other.v)


def test_turned_keys_are_held_in_the_states_format():
    model, tokens = tiny(), some_tokens(60)
    state = model.start(1).hold_in(build("int8", "format"))
    held = Compression(StreamingLLM(True, sink=2, recent=4), "20tok").attach(state)
    with torch.no_grad():
        model(tokens, state)
    held.finish_prefill()
    exact, coded = start(model, StreamingLLM(True, sink=2, recent=4), tokens)[0].layers[0].store, state.layers[0].store
    gap = (exact.flat().k - coded.flat().k).norm() / exact.flat().k.norm()
    assert 0 < gap < 0.02


def test_bad_input():
    with pytest.raises(AssayError, match="no prompt is pinned"):
        StreamingLLM(True, prompt=True)
    model, tokens = tiny(windows=(None,)), some_tokens(60)
    with pytest.raises(AssayError, match="other tokens were kept too"):
        start(model, EverySecond(StreamingLLM(True, recent=2)), tokens)
