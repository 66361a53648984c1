"""SAEs meet every kind of site through `record` and `edit` alone: residual streams, recurrent states, passes of a loop."""

from __future__ import annotations

import pytest
import torch
from tests.compositions.models import hybrid, looped, some_tokens

from assay.analysis.inspect import SAE, collect, evaluate, train_sae
from assay.core.errors import AssayError
from assay.core.sites import edit, record
from assay.training import Training

SHORT = Training(150, learning_rate=1e-2, warmup=10)
PLACES = {
    "residual": (hybrid, "blocks.1.resid_post", (-1,), None),
    "rows of a recurrent state": (hybrid, "blocks.0.attn.state", (-1,), 1),
    "heads of a recurrent state": (hybrid, "blocks.0.attn.state", (-2, -1), 1),
    "all heads of one read": (hybrid, "blocks.2.attn.z", (1, 3), None),
    "second pass of a loop": (looped, "loops.1.blocks.1.resid_post", (-1,), None),
}
every_place = pytest.mark.parametrize("place", PLACES)


def lossless(dim: int) -> SAE:
    """x = relu(x) - relu(-x): nothing is lost, so nothing may change where it is spliced in."""
    sae, one = SAE(dim, 2 * dim, 2 * dim).double(), torch.eye(dim, dtype=torch.float64)
    sae.load_state_dict({"W_enc": torch.cat([one, -one], 1), "W_dec": torch.cat([one, -one])}, strict=False)
    return sae.requires_grad_(False)


@torch.no_grad()
def read(model, tokens, *cut):
    """Logits, piece by piece with a state, and the state."""
    state = model.start(len(tokens))
    return torch.cat([model(part, state)[0] for part in tokens.split(cut or [tokens.shape[1]], 1)], 1), state


@every_place
def test_a_lossless_sae_changes_no_logit_whole_in_pieces_and_token_by_token(place):
    make, site, axes, piece = PLACES[place]
    model, tokens = make(), some_tokens(20, batch=2)
    sae = lossless(collect(model, site, [tokens], axes=axes, piece=piece).shape[1])
    wanted, _ = read(model, tokens)
    for cut in ([20], [1] * 20, [11, 1, 1, 7]):
        with edit(model, {site: sae.splice(axes)}):
            got, _ = read(model, tokens, *cut)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


@every_place
def test_a_trained_sae_stands_in_better_than_zeros_and_than_one_hardly_trained(place):
    # On random weights there is no dictionary to find: this asks that the way from site to SAE and back is whole.
    make, site, axes, piece = PLACES[place]
    model, texts = make(), [some_tokens(24, batch=4, seed=9)]
    x = collect(model, site, [some_tokens(24, batch=16, seed=s) for s in range(3)], axes=axes, piece=piece)
    sae = train_sae(x, features=2 * x.shape[1], k=max(2, x.shape[1] // 4), training=SHORT)
    found = evaluate(sae, model, site, texts, axes=axes, piece=piece)
    hardly = evaluate(rough(model, site, axes, piece), model, site, texts, axes=axes, piece=piece)
    assert 0 < found.divergence_spliced < found.divergence_zero
    assert found.explained_variance > max(0.0, hardly.explained_variance)
    assert (found.recovered is None) == (found.loss_zero <= found.loss_clean)


@every_place
def test_a_left_padded_batch_with_an_sae_spliced_in_equals_its_sequences_alone(place):
    make, site, axes, piece = PLACES[place]
    model, tokens = make(), some_tokens(9, batch=2)
    sae = rough(model, site, axes, piece)
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[1, :4] = False
    more = some_tokens(3, batch=2, seed=7)
    with torch.no_grad(), edit(model, {site: sae.splice(axes)}):
        state = model.start(2)
        together = [model(tokens, state, valid=valid)[0][:, -1:], *(model(t, state)[0] for t in more.split(1, 1))]
        for row, start in ((0, 0), (1, 4)):
            own = model.start(1)
            alone = [model(tokens[row : row + 1, start:], own)[0][:, -1:]]
            alone += [model(t, own)[0] for t in more[row : row + 1].split(1, 1)]
            torch.testing.assert_close(torch.cat(together, 1)[row : row + 1], torch.cat(alone, 1), rtol=0, atol=1e-9)


@pytest.mark.parametrize("place", ["residual", "all heads of one read", "second pass of a loop"])
def test_spliced_in_where_tokens_pass_any_cut_gives_the_same_logits(place):
    make, site, axes, piece = PLACES[place]
    model, tokens = make(), some_tokens(20, batch=2)
    sae = rough(model, site, axes, piece)
    plain, _ = read(model, tokens)
    with edit(model, {site: sae.splice(axes)}):
        whole, _ = read(model, tokens)
        for cut in ([1] * 20, [11, 1, 1, 7]):
            torch.testing.assert_close(read(model, tokens, *cut)[0], whole, rtol=0, atol=1e-9)
    assert (whole - plain).abs().max() > 1e-3


def test_a_spliced_state_is_what_decoding_goes_on_from():
    model, tokens, site = hybrid(), some_tokens(12), "blocks.0.attn.state"
    sae = rough(model, site, (-1,), 1)
    prompt, rest = tokens[:, :8], tokens[:, 8:]
    _, state = read(model, prompt)
    by_hand = state.fork()
    with torch.no_grad():
        with record(model, site) as before, edit(model, {site: sae.splice()}), record(model, site) as after:
            spliced = [model(t, state)[0] for t in rest.split(1, 1)]
        wanted = []
        for t in rest.split(1, 1):
            wanted.append(model(t, by_hand)[0])
            held = by_hand.layers[0].held
            held["memory"] = sae(held["memory"])
    torch.testing.assert_close(torch.cat(spliced, 1), torch.cat(wanted, 1), rtol=0, atol=1e-9)
    assert len(before.all(site)) == len(after.all(site)) == 4
    torch.testing.assert_close(sae(before[site]), after[site], rtol=0, atol=1e-12)
    assert torch.equal(state.layers[0]["memory"], after[site])


def test_the_second_pass_alone_is_changed():
    model, tokens = looped(), some_tokens(10)
    first, second = "loops.0.blocks.1.resid_post", "loops.1.blocks.1.resid_post"
    sae = rough(model, second, (-1,), None)
    with torch.no_grad():
        with record(model, first, second) as plain:
            model(tokens)
        with edit(model, {second: sae.splice()}), record(model, first, second) as spliced:
            model(tokens)
    assert torch.equal(plain[first], spliced[first])
    torch.testing.assert_close(spliced[second], sae(plain[second]), rtol=0, atol=1e-12)
    both = collect(model, "blocks.1.resid_post", [tokens])
    assert torch.equal(both, torch.cat([plain[first], plain[second]]).flatten(0, 1))


def test_generation_with_an_sae_spliced_in_is_greedy_decoding_with_it():
    model, prompt = hybrid(), some_tokens(6)
    sae = rough(model, "blocks.1.resid_post", (-1,), None)
    with torch.no_grad(), edit(model, {"blocks.1.resid_post": sae.splice()}):
        got = model.generate(prompt.tolist(), max_tokens=5)[0]
        ids = prompt
        for _ in range(5):
            ids = torch.cat([ids, model(ids)[0][:, -1:].argmax(-1)], 1)
    assert list(got)[-5:] == ids[0, 6:].tolist()


def test_a_state_that_nobody_reads_on_is_an_error_that_says_how():
    model = hybrid()
    sae = rough(model, "blocks.0.attn.state", (-1,), 1)
    with pytest.raises(AssayError, match="give piece=1"):
        evaluate(sae, model, "blocks.0.attn.state", [some_tokens(8)])


def rough(model, site, axes, piece) -> SAE:
    """An SAE that is far from lossless."""
    x = collect(model, site, [some_tokens(12, batch=2, seed=3)], axes=axes, piece=piece)
    return train_sae(x, features=x.shape[1], k=2, training=Training(5, warmup=1))
