"""Starting weights keep the size of what passes through them."""

import pytest
import torch

from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.transformer import Transformer
from assay.training import initialise


@pytest.mark.parametrize("tied", [False, True])
def test_deviations(tied: bool) -> None:
    block = BlockConfig(Spec("softmax", {"heads": 4}), Spec("gated", {"hidden": 256}))
    model = initialise(Transformer(TransformerConfig(500, 128, (block, block), tied=tied)), 0)
    assert model.embed.weight.std().item() == pytest.approx(128**-0.5 if tied else 1.0, rel=0.03)
    assert model.blocks[0].mixer.q.weight.std().item() == pytest.approx(128**-0.5, rel=0.03)
    assert model.blocks[0].channel.down.weight.std().item() == pytest.approx(256**-0.5 / 2, rel=0.03)
    assert torch.equal(model.blocks[0].norm1.weight, torch.ones(128))
