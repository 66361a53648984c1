"""Sites: every one can be heard and changed, what is changed has the effect computed by hand, and wrong names are told."""

from __future__ import annotations

import pytest
import torch
from tests.core.tiny import tiny, tokens

from assay.core import sites
from assay.core.errors import AssayError
from assay.core.sites import ALIASES, edit, record

TEXT = tokens(2, 11)


@pytest.fixture(scope="module")
def model():
    return tiny(block={"norms": "sandwich"})


def close(a, b, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


@torch.no_grad()
def heard(model, *names, state=None):
    with record(model, *names) as tape:
        logits, _ = model(TEXT, state)
    return tape, logits


@pytest.mark.parametrize("wiring", [{}, {"norms": "post"}, {"parallel": True}, {"parallel": True, "shared_norm": True}])
@torch.no_grad()
def test_every_site_can_be_recorded_and_recording_changes_no_logit(wiring):
    model = tiny(block=wiring)
    plain, _ = model(TEXT)
    for state in (None, model.start(2)):
        tape, logits = heard(model, *model.site_names(), state=state)
        assert sorted(tape) == sorted(model.site_names())
        close(logits, plain)
        close(tape["logits"], plain)


@torch.no_grad()
def test_every_site_can_be_edited_and_every_edit_matters(model):
    plain, _ = model(TEXT)
    for name in model.site_names():
        with edit(model, {name: lambda x: x.clone()}):
            close(model(TEXT)[0], plain)
        with edit(model, {name: lambda x: x * 1.5 + 0.25}):
            changed, _ = model(TEXT)
        assert (changed - plain).abs().max() > 1e-6, name
        assert changed.isfinite().all(), name
    close(model(TEXT)[0], plain)


def test_nobody_listens_nothing_is_there(model):
    taps = [module.tap for module in model.sited().values()]
    assert taps == [None] * len(taps)
    with record(model, "blocks.1.attn.z") as tape:
        listening = {prefix for prefix, module in model.sited().items() if module.tap is not None}
        assert listening == {"blocks.1.attn."}
        model(TEXT)
    assert len(tape) == 1
    assert all(module.tap is None for module in model.sited().values())
    with record(model):
        assert all(module.tap is None for module in model.sited().values())


def test_taps_are_gone_after_an_error(model):
    with pytest.raises(ZeroDivisionError), record(model, "embed"):
        raise ZeroDivisionError
    with pytest.raises(AssayError), edit(model, {"embed": lambda x: x[:, :1]}):
        model(TEXT)
    assert all(module.tap is None for module in model.sited().values())
    assert model.listeners == []


@torch.no_grad()
def test_patterns_are_softmaxed_scores_and_weigh_the_values(model):
    tape, _ = heard(model, "blocks.1.attn.*")
    scores, pattern = tape["blocks.1.attn.scores"], tape["blocks.1.attn.pattern"]
    assert pattern.shape == (2, 4, 11, 11)
    close(pattern.sum(-1), torch.ones(2, 4, 11, dtype=torch.float64))
    close(pattern, scores.softmax(-1))
    v = tape["blocks.1.attn.v"].repeat_interleave(2, 1)
    close(pattern @ v, tape["blocks.1.attn.z"])
    back = torch.arange(11)[:, None] - torch.arange(11)
    assert ((pattern > 0) == ((back >= 0) & (back < 6))).all(), "the window of this block is 6"
    q, k = tape["blocks.1.attn.q"], tape["blocks.1.attn.k"].repeat_interleave(2, 1)
    seen = scores > -torch.inf
    close(scores[seen], (q @ k.mT * model.blocks[1].mixer.scale)[seen])


@torch.no_grad()
def test_pattern_with_a_state_covers_what_is_stored_and_no_empty_slot(model):
    state = model.start(2)
    model(TEXT[:, :7], state)
    with record(model, "blocks.0.attn.pattern") as tape:
        model(TEXT[:, 7:], state)
    assert tape["blocks.0.attn.pattern"].shape == (2, 4, 4, 11)
    whole, _ = heard(model, "blocks.0.attn.pattern")
    close(tape["blocks.0.attn.pattern"], whole["blocks.0.attn.pattern"][:, :, 7:])


@torch.no_grad()
def test_the_residual_stream_adds_up(model):
    tape, _ = heard(model, "*")
    close(tape["blocks.0.resid_pre"], tape["embed"])
    for i in range(3):
        at = f"blocks.{i}."
        close(tape[at + "resid_pre"] + tape[at + "attn.out"], tape[at + "resid_mid"])
        close(tape[at + "resid_mid"] + tape[at + "mlp.out"], tape[at + "resid_post"])
    close(tape["blocks.1.resid_pre"], tape["blocks.0.resid_post"])
    last = tape["blocks.2.resid_post"]
    close(last / tape["final_norm.scale"] * model.final_norm.weight, tape["final_norm"])
    close(tape["final_norm"] @ model.embed.weight.T, tape["logits"])
    q, _ = model.blocks[1].mixer.position.rotate(
        tape["blocks.1.attn.q_unrotated"], tape["blocks.1.attn.k_unrotated"], torch.arange(11).expand(2, -1)
    )
    close(q, tape["blocks.1.attn.q"])


@torch.no_grad()
def test_an_edited_head_changes_the_output_by_what_the_head_wrote():
    model = tiny()
    tape, _ = heard(model, "blocks.0.attn.z", "blocks.0.attn.out")

    def without_head_2(z):
        z = z.clone()
        z[:, 2] = 0
        return z

    with edit(model, {"blocks.0.attn.z": without_head_2}):
        without, _ = heard(model, "blocks.0.attn.out")
    share = tape["blocks.0.attn.z"][:, 2] @ model.blocks[0].mixer.out.weight[:, 12:18].T
    close(tape["blocks.0.attn.out"] - without["blocks.0.attn.out"], share)


@torch.no_grad()
def test_an_edited_pattern_weighs_the_values_as_it_says():
    model = tiny()
    with edit(model, {"blocks.2.attn.pattern": torch.zeros_like}), record(model, "blocks.2.attn.out", "logits") as tape:
        model(TEXT)
    assert not tape["blocks.2.attn.out"].any()
    shift = torch.zeros(2, 4, 11, 11, dtype=torch.float64)
    shift[..., 0] = 1
    with edit(model, {"blocks.2.attn.pattern": lambda _: shift}):
        tape, _ = heard(model, "blocks.2.attn.v", "blocks.2.attn.z")
    v = tape["blocks.2.attn.v"].repeat_interleave(2, 1)
    close(tape["blocks.2.attn.z"], v[:, :, :1].expand(-1, -1, 11, -1))


@torch.no_grad()
def test_an_edited_residual_stream_goes_on_from_there():
    model = tiny()
    other = torch.randn(2, 11, 16, dtype=torch.float64)
    with edit(model, {"blocks.2.resid_post": lambda _: other}):
        logits, _ = model(TEXT)
    close(logits, model.final_norm(other) @ model.embed.weight.T)
    tape, _ = heard(model, "blocks.1.resid_pre")
    swapped = tape["blocks.1.resid_pre"].flip(0)
    with edit(model, {"blocks.1.resid_pre": lambda _: swapped}):
        logits, _ = model(TEXT)
    close(logits, model(TEXT)[0].flip(0), 1e-10)


@torch.no_grad()
def test_an_edit_before_the_cache_is_what_the_cache_holds():
    model = tiny()
    state = model.start(2)
    with edit(model, {"blocks.0.attn.v": torch.zeros_like}):
        model(TEXT, state)
    assert not state.layers[0].store.flat().v.any()


@torch.no_grad()
def test_listeners_hear_in_the_order_of_opening(model):
    plain, _ = heard(model, "embed")
    with edit(model, {"embed": lambda x: x + 1}), record(model, "embed") as after:
        model(TEXT)
    with record(model, "embed") as before, edit(model, {"embed": lambda x: x + 1}):
        model(TEXT)
    close(after["embed"], plain["embed"] + 1)
    close(before["embed"], plain["embed"])
    with (
        edit(model, {"embed": lambda x: x * 2}),
        edit(model, {"embed": lambda x: x + 1}),
        record(model, "embed") as tape,
    ):
        model(TEXT)
    close(tape["embed"], plain["embed"] * 2 + 1)


@torch.no_grad()
def test_a_tape_keeps_every_pass(model):
    state = model.start(2)
    with record(model, "blocks.*.resid_post") as tape:
        for piece in TEXT.split([5, 1, 5], 1):
            model(piece, state)
    assert len(tape) == 3
    assert [x.shape[1] for x in tape.all("blocks.1.resid_post")] == [5, 1, 5]
    close(torch.cat(tape.all("blocks.2.resid_post"), 1), heard(model, "blocks.2.resid_post")[0]["blocks.2.resid_post"])


def test_gradients_flow_through_an_undetached_tape(model):
    with record(model, "blocks.0.resid_post", detach=False) as tape:
        logits, _ = model(TEXT)
    (gradient,) = torch.autograd.grad(logits.sum(), tape["blocks.0.resid_post"])
    assert gradient.abs().max() > 0
    with record(model, "embed") as tape:
        model(TEXT)
    assert not tape["embed"].requires_grad


def test_transformer_lens_names_mean_ours(model):
    names = model.site_names()
    for theirs, ours in ALIASES.items():
        outside = ours in names
        name = theirs if outside else f"blocks.1.{theirs}"
        assert sites.matching(model, name) == [ours if outside else f"blocks.1.{ours}"]
    assert sites.matching(model, "blocks.*.hook_resid_post") == [f"blocks.{i}.resid_post" for i in range(3)]
    assert sites.matching(model, "*.attn.hook_pattern") == [f"blocks.{i}.attn.pattern" for i in range(3)]
    with record(model, "blocks.0.hook_resid_mid") as tape:
        model(TEXT)
    assert torch.equal(tape["blocks.0.hook_resid_mid"], tape["blocks.0.resid_mid"])


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (lambda m: record(m, "blocks.1.resid_pots"), "no site 'blocks.1.resid_pots'.*nearest: blocks.1.resid_post"),
        (lambda m: record(m, "blocks.7.resid_post"), r"nearest: blocks.\d.resid_post"),
        (lambda m: edit(m, {"blocks.*.attn.zz": torch.zeros_like}), "nearest: .*attn.z"),
    ],
)
def test_unknown_sites_name_the_nearest(model, use, why):
    with pytest.raises(AssayError, match=why), use(model):
        pass


def test_what_never_fires_is_an_error(model):
    with pytest.raises(AssayError, match="'logits' never fired in this run; nearest that did: embed"):
        with record(model, "logits", "embed"):
            model(TEXT, logits="none")
    with pytest.raises(AssayError, match="the edit of 'final_norm' never fired"):
        with edit(model, {"final_norm": torch.zeros_like}):
            model(TEXT, logits="none")
    with pytest.raises(AssayError, match="never fired in this run; nearest that did: none"), record(model, "embed"):
        pass


def test_a_site_that_the_wiring_lacks_is_unknown():
    with (
        pytest.raises(AssayError, match="no site 'blocks.0.resid_mid'"),
        record(tiny(block={"parallel": True}), "blocks.0.resid_mid"),
    ):
        pass


def test_reading_a_tape_wrongly_says_why(model):
    tape, _ = heard(model, "blocks.0.resid_pre")
    with pytest.raises(
        AssayError, match="'blocks.0.resid_mid' was not recorded; nearest that fired: blocks.0.resid_pre"
    ):
        tape["blocks.0.resid_mid"]
    with record(model, "embed") as tape:
        with pytest.raises(AssayError, match="'embed' was recorded but never fired"):
            tape["embed"]
        model(TEXT)


def test_an_edit_keeps_the_shape(model):
    with pytest.raises(AssayError, match=r"blocks.1.attn.z returned \(2, 4, 11\); the site has shape \(2, 4, 11, 6\)"):
        with edit(model, {"blocks.1.attn.z": lambda x: x.sum(-1)}):
            model(TEXT)
    with pytest.raises(AssayError, match="returned NoneType"), edit(model, {"embed": lambda x: None}):
        model(TEXT)
