"""What causal mixers say of themselves is so: bytes, cost, precision, sites."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.mixing import WIDTH, close, every_causal_mixer, feed, whole
from tests.contracts.probe import make, randn
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from assay.core.sites import Tap


def _reachable(thing: object, found: dict[int, Tensor]) -> dict[int, Tensor]:
    """Every tensor that an object holds, however deep."""
    if isinstance(thing, Tensor):
        found[id(thing)] = thing
    elif isinstance(thing, dict):
        for value in thing.values():
            _reachable(value, found)
    elif isinstance(thing, list | tuple):
        for value in thing:
            _reachable(value, found)
    elif type(thing).__module__.startswith("assay") or hasattr(thing, "tensors"):
        _reachable(vars(thing), found)
    return found


@every_causal_mixer
@torch.no_grad()
def test_bytes_are_those_of_the_distinct_storages_that_exist(name, chosen):
    mixer, state = make("mixer", name, chosen), None
    for tokens in (1, 7, 40, 120):
        state = mixer.start(2)
        feed(mixer, randn(2, tokens, WIDTH), state, [tokens])
        # counters of one number a sequence are bookkeeping, and do not grow
        held = [t for t in _reachable(state, {}).values() if t.numel() > 2 or t.is_floating_point()]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        assert abs(state.bytes - sum(storages.values())) <= 16


@every_causal_mixer
@torch.no_grad()
def test_cost_says_what_there_is_and_what_is_done(name, chosen):
    mixer, x = make("mixer", name, chosen, torch.float32), randn(2, 127, WIDTH, dtype=torch.float32)
    for tokens in (1, 40, 127):
        state = mixer.start(1)
        feed(mixer, x[:1, :tokens], state, [tokens])
        assert mixer.cost(tokens).state_bytes == state.bytes
    cost = mixer.cost(40)
    assert cost.parameters == sum(p.numel() for p in mixer.parameters())
    with FlopCounterMode(
        display=False
    ) as counter:  # two sequences: torch does not count one row's matrix-vector products
        feed(mixer, x[:, :40], mixer.start(2), [1] * 40)
    # an explicit score matrix also covers keys that have left the window
    explicit = "softcap" in chosen or getattr(getattr(mixer, "position", None), "biased", False)
    assert 0.95 * cost.flops <= counter.get_total_flops() / 2 <= (2 if explicit else 1.05) * cost.flops


@every_causal_mixer
@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_bfloat16_weights_stay_near_float32(name, chosen, stored):
    exact = make("mixer", name, chosen, torch.float32)
    rounded = make("mixer", name, chosen, torch.bfloat16)
    x = randn(2, 40, WIDTH, dtype=stored)
    wanted = whole(exact, x.float())
    for y in (whole(rounded, x), feed(rounded, x, rounded.start(2), [30, 1, 9])):
        assert y.dtype == stored
        assert y.isfinite().all()
        assert (y.float() - wanted).norm() < 0.1 * wanted.norm()


@every_causal_mixer
@torch.no_grad()
def test_every_declared_site_fires_and_listening_changes_nothing(name, chosen):
    mixer, x, heard = make("mixer", name, chosen), randn(2, 30, WIDTH), set()
    wanted = whole(mixer, x)

    def listen(where: str, value: Tensor) -> Tensor:
        heard.add(where)
        return value

    mixer.tap = Tap("", {site: [listen] for site in mixer.sites})
    close(whole(mixer, x), wanted, 1e-12)
    close(feed(mixer, x, mixer.start(2), [20, 1, 9]), wanted, 1e-12)
    assert heard == set(mixer.sites)
