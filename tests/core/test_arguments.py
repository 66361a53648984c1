"""Arguments of the wrong kind are named in one line, in expressions and in configs, before a part meets them."""

import pytest

from assay.core.arguments import check_kinds, whole
from assay.core.build import build, build_spec, unbudgeted
from assay.core.config import BlockConfig, NormConfig, Spec, TransformerConfig
from assay.core.errors import AssayError
from assay.core.transformer import Transformer

GATED, SOFTMAX = Spec("gated", {"hidden": 8}), Spec("softmax", {"heads": 2})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("snapkv(window='abc')", "window='abc' does not fit; it takes a whole number"),
        ("snapkv(window=2.5)", "window=2.5"),
        ("snapkv(window=True)", "window=True"),
        ("snapkv(recent=None)", "recent=None"),
        ("snapkv(sink=1.5)", "sink=1.5"),
        ("snapkv(prompt=3)", "prompt=3 does not fit; it takes True or False"),
        ("adakv(3)", "inner=3 does not fit; it takes a Policy"),
        ("adakv('snapkv')", "inner='snapkv'"),
        ("adakv(inner=needle)", "inner=a Needle"),
        ("adakv(snapkv, snapkv)", "safeguard=a SnapKV does not fit; it takes a number"),
        ("twinkv(snapkv, cap=[1])", "cap="),
        ("nestedkv(weights=3)", "weights=3"),
        ("nestedkv(gate='x')", "gate='x' does not fit; it takes a number or None"),
        ("random(seed=1.5)", "seed=1.5"),
    ],
)
def test_an_option_of_the_wrong_kind_is_named(text, why):
    with pytest.raises(AssayError) as error:
        build(text, "policy")
    assert why in str(error.value) and "\n" not in str(error.value)


def test_what_fits_is_let_through():
    for text in (
        "nestedkv(weights=[1, 2, 0.5], gate=None)",
        "adakv(snapkv, 0)",
        "twinkv(inner=h2o, cap=1)",
        "snapkv(pool=mean)",
    ):
        build(text, "policy")
    check_kinds("f", lambda x: None, {"x": object()})  # without annotations anything may fit


@pytest.mark.parametrize("text", ["quest@0.5", "int4@4MiB"])
def test_a_budget_is_refused_where_it_would_be_ignored(text):
    with pytest.raises(AssayError, match="leave out @"):
        unbudgeted(text, "reader" if "quest" in text else "format")


@pytest.mark.parametrize(
    "mixer",
    [
        Spec("softmax", {"heads": 0}), Spec("softmax", {"heads": -2}), Spec("softmax", {"heads": 2, "kv_heads": 0}),
        Spec("softmax", {"heads": 2, "head_dim": 0}), Spec("softmax", {"heads": 2, "window": 2.5}),
        Spec("softmax", {"heads": 2, "position": "rope"}), Spec("softmax", {"heads": 2, "position": {"prt": "rope"}}),
        Spec("softmax", {"heads": 2, "position": {"part": "rope", "options": {"theta": "x"}}}),
        Spec("softmax", {"heads": 2, "position": {"part": "rope", "options": {"thta": 1}}}),
        Spec("gated_deltanet", {"heads": 0}), Spec("gated_deltanet", {"heads": 5}), Spec("gated_deltanet", {"heads": 2, "chunk": 0}),
        Spec("gated_deltanet", {"heads": 2, "taps": 0}), Spec("gated_deltanet", {"heads": 2, "expand": 0.01}),
        Spec("mla", {"heads": 0}), Spec("mla", {"heads": 5}), Spec("mla", {"heads": 2, "latent": 0}),
        Spec("mla", {"heads": 2, "position": "rope"}),
        Spec("softmax", None), Spec(None), Spec("sofmax", {"heads": 2}),
    ],
)  # fmt: skip
def test_a_mixer_that_cannot_be_is_refused_when_it_is_made(mixer):
    with pytest.raises(AssayError):
        Transformer(TransformerConfig(20, 16, (BlockConfig(mixer, GATED),)))


@pytest.mark.parametrize(
    "options",
    [
        {"blocks": (1,)}, {"depth": Spec("looped", {"tims": 2})}, {"depth": Spec("looped", {"times": 1.5})},
        {"norm": NormConfig(eps="x")}, {"norm": NormConfig(eps=-1.0)},
        {"blocks": (BlockConfig(SOFTMAX, Spec("gated", {"hidden": 0})),)}, {"blocks": (BlockConfig(SOFTMAX, Spec("mlp", {"hidden": -1})),)},
        {"blocks": (BlockConfig(SOFTMAX, Spec("moe", {"hidden": 4, "experts": 2.5})),)},
    ],
)  # fmt: skip
def test_a_trunk_that_cannot_be_is_refused_when_it_is_made(options):
    with pytest.raises(AssayError):
        Transformer(
            TransformerConfig(**{"vocab_size": 20, "width": 16, "blocks": (BlockConfig(SOFTMAX, GATED),)} | options)
        )


def test_a_part_of_a_config_is_built_from_a_spec_or_from_json():
    assert build_spec({"part": "rope"}, "position", 8) is not None
    assert build_spec(Spec("rope", {"theta": 100}), "position", 8) is not None
    with pytest.raises(AssayError, match="not prt"):
        build_spec({"prt": "rope"}, "position", 8)


def test_whole_numbers():
    whole("part", 0, a=0, b=None)
    for wrong in (-1, 1.0, True, "1"):
        with pytest.raises(AssayError, match="part: a="):
            whole("part", 0, a=wrong)
