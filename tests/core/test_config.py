"""A config goes to JSON and back unchanged; what cannot be one is named."""

import json

import pytest
from tests.core.tiny import tiny_config

from assay.core.config import BlockConfig, NormConfig, Spec, TransformerConfig
from assay.core.errors import AssayError

RICH = tiny_config(
    block={"norms": "sandwich", "parallel": True, "shared_norm": True},
    mixer={"qk_norm": {"kind": "rms", "eps": 1e-5}, "softcap": 20.0, "bias": True},
    norm=NormConfig("layer", 1e-5, True),
    tied=False,
    embed_scale=4.0,
    learned_positions=64,
    final_norm=False,
    logit_softcap=30.0,
)


@pytest.mark.parametrize("config", [tiny_config(), RICH])
def test_json_round_trip(config):
    again = TransformerConfig.from_json(config.to_json())
    assert again == config
    assert isinstance(again.blocks, tuple)
    assert isinstance(again.blocks[0].mixer, Spec)
    assert again.to_json() == config.to_json()


def test_fields_left_out_take_their_defaults():
    small = {"vocab_size": 5, "width": 4, "blocks": [{"mixer": {"part": "a"}, "channel": {"part": "b"}}]}
    wanted = TransformerConfig(5, 4, (BlockConfig(Spec("a"), Spec("b")),))
    assert TransformerConfig.from_json(json.dumps(small)) == wanted


def _changed(**changes):
    return json.dumps(json.loads(tiny_config().to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not a Transformer config: JSONDecodeError"),
        ("[]", "not a Transformer config"),
        ("{}", "blocks"),
        (_changed(widht=3), "unknown TransformerConfig field widht"),
        (_changed(blocks=[{"mixer": {"part": "softmax"}}]), "channel"),
        (_changed(blocks=[]), "blocks is empty"),
        (_changed(width=0), "width=0: give a whole number from 1 on"),
        (_changed(vocab_size="many"), "vocab_size='many'"),
        (_changed(learned_positions=-1), "learned_positions=-1"),
        (_changed(norm={"kind": "rms", "epsilon": 1}), "unknown NormConfig field epsilon"),
    ],
)
def test_what_is_no_config_is_named(text, why):
    with pytest.raises(AssayError, match=why):
        TransformerConfig.from_json(text)


def test_a_missing_field_is_named():
    raw = json.loads(tiny_config().to_json())
    del raw["width"]
    with pytest.raises(AssayError, match="width"):
        TransformerConfig.from_json(json.dumps(raw))
