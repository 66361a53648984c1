"""The trunk against its definition written out by hand, in every wiring; and its errors."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.core.tiny import ROPE, tiny, tiny_config, tokens

from assay.core.config import NormConfig, Spec
from assay.core.errors import AssayError


def by_hand(model, text):
    """The forward pass, written from the definition with nothing but matrix products; no state, no padding."""
    c, w = model.config, dict(model.named_parameters())
    x = w["embed.weight"][text] * c.embed_scale
    if c.learned_positions:
        x = x + w["positions.weight"][: text.shape[1]]
    for i, block in enumerate(c.blocks):
        at, before, after = f"blocks.{i}.", block.norms in ("pre", "sandwich"), block.norms in ("post", "sandwich")
        normed = norm(x, w, at + "norm1", c.norm) if before else x
        mixed = attention(normed, w, at + "mixer.", block.mixer.options)
        mixed = norm(mixed, w, at + "norm1_post", c.norm) if after else mixed
        base = x if block.parallel else x + mixed
        into = normed if block.shared_norm and block.parallel else base
        if before and not block.shared_norm:
            into = norm(base, w, at + "norm2", c.norm)
        out = channel(into, w, at + "channel.", block.channel)
        out = norm(out, w, at + "norm2_post", c.norm) if after else out
        x = x + mixed + out if block.parallel else base + out
    x = norm(x, w, "final_norm", c.norm) if c.final_norm else x
    logits = x @ w["embed.weight" if c.tied else "unembed.weight"].T
    return logits if c.logit_softcap is None else c.logit_softcap * torch.tanh(logits / c.logit_softcap)


def norm(x, w, name, config):
    if config.kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + config.eps).sqrt() * w[f"{name}.weight"] + w.get(f"{name}.bias", 0)


def linear(x, w, name):
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0)


def attention(x, w, at, options):
    heads, kv_heads, length = options["heads"], options["kv_heads"], x.shape[1]
    q, k, v = (linear(x, w, at + n).unflatten(-1, (-1, options["head_dim"])).transpose(1, 2) for n in "qkv")
    if options.get("qk_norm"):
        per_head = NormConfig(**options["qk_norm"])
        q, k = norm(q, w, at + "q_norm", per_head), norm(k, w, at + "k_norm", per_head)
    if options.get("position"):
        q, k = rotate(q, options["position"]["options"]["theta"]), rotate(k, options["position"]["options"]["theta"])
    k, v = k.repeat_interleave(heads // kv_heads, 1), v.repeat_interleave(heads // kv_heads, 1)
    scores = q @ k.mT * (options.get("scale") or options["head_dim"] ** -0.5)
    if cap := options.get("softcap"):
        scores = cap * torch.tanh(scores / cap)
    back = torch.arange(length)[:, None] - torch.arange(length)
    unread = (back < 0) | (back >= (options.get("window") or length))
    z = scores.masked_fill(unread, -torch.inf).softmax(-1) @ v
    return linear(z.transpose(1, 2).flatten(2), w, at + "out")


def rotate(x, theta):
    half = x.shape[-1] // 2
    frequencies = 1.0 / theta ** (torch.arange(half, dtype=torch.float32) / half)  # as in checkpoints: in float32
    angles = torch.arange(x.shape[2])[:, None] * frequencies.double()
    turn = torch.polar(torch.ones_like(angles), angles)
    turned = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([turned.real, turned.imag], -1)


def channel(x, w, at, spec):
    if spec.part == "mlp":
        return linear(torch.nn.functional.gelu(linear(x, w, at + "up")), w, at + "down")
    return linear(torch.nn.functional.silu(linear(x, w, at + "gate")) * linear(x, w, at + "up"), w, at + "down")


WIRINGS = [
    {"norms": norms, "parallel": parallel, "shared_norm": shared}
    for norms, parallel, shared in itertools.product(("pre", "post", "sandwich"), (False, True), (False, True))
    if not shared or (parallel and norms != "post")
]
VARIANTS = {
    "plain": {},
    "layer norm": {"norm": NormConfig("layer", 1e-3, True), "channel": Spec("mlp", {"hidden": 20, "bias": True})},
    "learned positions": {"learned_positions": 50, "mixer": {"position": None, "bias": True}},
    "untied": {"tied": False},
    "soft caps": {"logit_softcap": 3.0, "mixer": {"softcap": 2.0, "scale": 0.7}},
    "qk-norm": {"mixer": {"qk_norm": {"kind": "rms", "eps": 1e-3}}},
    "no final norm": {"final_norm": False},
    "scaled embeddings": {"embed_scale": 4.0},
    "no positions, one key-value head": {"mixer": {"position": None, "kv_heads": 1}},
}


@pytest.mark.parametrize(
    "options",
    [*({"block": wiring} for wiring in WIRINGS), *VARIANTS.values()],
    ids=["-".join(f"{v}" for v in w.values()) for w in WIRINGS] + list(VARIANTS),
)
@torch.no_grad()
def test_logits_follow_the_definition(options):
    model, text = tiny(**options), tokens(2, 23)
    wanted = by_hand(model, text)
    torch.testing.assert_close(model(text)[0], wanted, rtol=0, atol=1e-9)
    state, pieces = model.start(2), []
    for piece in text.split([9, 1, 1, 12], 1):
        pieces.append(model(piece, state)[0])
    torch.testing.assert_close(torch.cat(pieces, 1), model(text)[0], rtol=0, atol=1e-10)


@torch.no_grad()
def test_left_padding_leaves_no_trace_with_learned_positions_either():
    for model in (tiny(), tiny(learned_positions=50, mixer={"position": None})):
        long, short = tokens(1, 21), tokens(1, 8, seed=4)
        text = torch.cat([long, torch.cat([tokens(1, 13, seed=9), short], 1)])
        valid = torch.arange(21) >= torch.tensor([[0], [13]])
        for state in (None, model.start(2)):
            logits, _ = model(text, state, valid=valid)
            torch.testing.assert_close(logits[:1], model(long)[0], rtol=0, atol=1e-10)
            torch.testing.assert_close(logits[1:, 13:], model(short)[0], rtol=0, atol=1e-10)
        step, following = tokens(2, 1, seed=5), model.start(2)
        model(text, following, valid=valid)
        logits, _ = model(step, following)
        torch.testing.assert_close(logits[1:], model(torch.cat([short, step[1:]], 1))[0][:, -1:], rtol=0, atol=1e-10)


@torch.no_grad()
def test_logits_only_where_they_are_wanted():
    model, text = tiny(), tokens(2, 9)
    every, _ = model(text)
    last, _ = model(text, logits="last")
    assert last.shape == (2, 1, 31)
    torch.testing.assert_close(last, every[:, -1:])
    torch.testing.assert_close(model(text, logits=4)[0], every[:, -4:])
    for wrong in (0, 10, True, "some"):
        with pytest.raises(AssayError, match="how many of the last"):
            model(text, logits=wrong)
    state = model.start(2)
    nothing, same = model(text, state, logits="none")
    assert nothing is None
    assert same is state
    assert state.seen.tolist() == [9, 9]


def test_parameter_names():
    names = {n for n, _ in tiny(block={"norms": "sandwich"}, tied=False, learned_positions=9).named_parameters()}
    block = {n.removeprefix("blocks.0.") for n in names if n.startswith("blocks.0.")}
    assert block == {
        "norm1.weight",
        "norm1_post.weight",
        "norm2.weight",
        "norm2_post.weight",
        *(f"mixer.{n}.weight" for n in ("q", "k", "v", "out")),
        *(f"channel.{n}.weight" for n in ("gate", "up", "down")),
    }
    outside = {"embed.weight", "positions.weight", "unembed.weight", "final_norm.weight"}
    assert {n for n in names if not n.startswith("blocks.")} == outside
    assert "unembed.weight" not in dict(tiny().named_parameters())


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda m: m(torch.zeros(1, 0, dtype=torch.long)), r"at least one token, not \(1, 0\)"),
        (lambda m: m(torch.zeros(3, dtype=torch.long)), r"\(batch, tokens\)"),
        (lambda m: m(torch.tensor([[1, 31]])), r"token ids must lie in 0..30; got 1..31"),
        (lambda m: m(torch.tensor([[-1, 3]])), r"got -1..3"),
        (lambda m: m(tokens(1, 13)), "the model has 12 positions; the text reaches 13"),
        (lambda m: m(tokens(2, 3), m.start(3)), "a batch of 2 sequences was given a state of 3"),
        (lambda m: m(tokens(2, 3), valid=torch.ones(2, 4, dtype=torch.bool)), r"valid must be \(2, 3\), not \(2, 4\)"),
        (lambda m: m(torch.tensor([[0.5]])), "whole numbers"),
    ],
)
def test_bad_inputs_are_named(call, why):
    with pytest.raises(AssayError, match=why):
        call(tiny(learned_positions=12))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mixer": {"hedas": 3}}, "softmax has no option hedas"),
        ({"mixer": {"heads": 3}}, "3 heads cannot share 2 key-value heads"),
        ({"mixer": {"heads": 5, "kv_heads": 5, "head_dim": None}}, "width 16 does not divide into 5 heads"),
        ({"windows": (0,)}, "softmax: window=0"),
        ({"channel": Spec("gaetd", {"hidden": 3})}, "unknown channel 'gaetd'; nearest: gated"),
        ({"channel": Spec("mlp", {"hidden": 3, "activation": "gule"})}, "activation 'gule' is unknown"),
        ({"block": {"norms": "around"}}, "norms 'around': choose pre, post, sandwich or after_sum"),
        ({"causal": False}, "block 0: mixer softmax is causal, the config says causal=False"),
        ({"mixer": {"position": {"part": "roep"}}}, "unknown position 'roep'; nearest: rope"),
    ],
)
def test_bad_configs_are_named(options, why):
    with pytest.raises(AssayError, match=why):
        tiny(tiny_config(**options))


def test_a_model_is_trainable_whole_and_in_pieces():
    model, text = tiny(), tokens(2, 20)
    whole = torch.autograd.grad(model(text)[0].square().sum(), list(model.parameters()))
    state = model.start(2)
    pieces = torch.cat([model(p, state)[0] for p in text.split([7, 1, 12], 1)], 1)
    for a, b in zip(torch.autograd.grad(pieces.square().sum(), list(model.parameters())), whole, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@torch.no_grad()
def test_a_model_stored_in_bfloat16_answers_in_float32_and_near():
    model, text = tiny(dtype=torch.float32, block={"norms": "sandwich"}), tokens(2, 90)
    wanted, _ = model(text)
    logits, state = model.bfloat16()(text, model.start(2))
    assert logits.dtype == torch.float32
    assert (logits - wanted).norm() < 0.05 * wanted.norm()
    assert all(layer.store.flat().k.dtype == torch.bfloat16 for layer in state.layers)


def test_position_parts_are_the_same_from_a_spec():
    assert tiny(mixer={"position": Spec(**ROPE)}).state_dict().keys() == tiny().state_dict().keys()
