"""A tiny model that reads characters: random weights, one global and one windowed layer, two key-value heads."""

import pytest
import torch

from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.transformer import Transformer


class Characters:
    """One token a byte-sized character, one in front of every text."""

    bos, eos, pad, ends = 1, 2, 0, (2,)
    vocab_size = 256

    def encode(self, text, bos=True):
        return self.spans(text, bos)[0]

    def spans(self, text, bos=True):
        ids = [3 + ord(c) % 250 for c in text]
        places = [(i, i + 1) for i in range(len(text))]
        return ([1] + ids, [(0, 0), *places]) if bos else (ids, places)

    def decode(self, ids):
        return "".join(chr(i - 3) for i in ids if i >= 3)


def make_tiny(context: int = 2048, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)

    def block(window):
        rope = {"part": "rope", "options": {"theta": 10000.0}}
        options = {"heads": 4, "kv_heads": 2, "head_dim": 8, "window": window, "position": rope}
        return BlockConfig(Spec("softmax", options), Spec("gated", {"hidden": 32, "activation": "silu"}))

    model = Transformer(TransformerConfig(vocab_size=256, width=32, blocks=(block(None), block(16)), context=context))
    model.tokenizer, model.name = Characters(), "tiny"
    return model.eval()


@pytest.fixture
def tiny() -> Transformer:
    return make_tiny()
