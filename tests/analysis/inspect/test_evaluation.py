"""An evaluation agrees with the same numbers taken by hand, and sees a loss recovered where there is one."""

from __future__ import annotations

import pytest
import torch
from rich.console import Console
from tests.core.tiny import tiny, tokens

from assay.analysis.inspect import collect, evaluate, explained_variance, gaussian_like, train_sae
from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.transformer import Transformer
from assay.training import Batch, Training, initialise, train

SHORT = Training(400, learning_rate=1e-2, warmup=20)


@torch.no_grad()
def test_an_evaluation_says_what_its_table_says():
    model, texts = tiny(), [tokens(4, 12, seed=8), tokens(2, 9, seed=9)]
    sae = train_sae(collect(model, "blocks.1.resid_post", [tokens(60, 12)]), features=32, k=6, training=SHORT)
    found = evaluate(sae, model, "blocks.1.resid_post", texts)
    assert found.vectors == 4 * 12 + 2 * 9 and 0 < found.l0 <= 6
    assert 0 < found.divergence_spliced < found.divergence_zero
    x = collect(model, "blocks.1.resid_post", texts)
    assert found.explained_variance == pytest.approx(explained_variance(x, sae(x)))
    logits = torch.cat([model(t)[0][:, :-1].flatten(0, 1) for t in texts])
    wanted = torch.cat([t[:, 1:].flatten() for t in texts])
    assert found.loss_clean == pytest.approx(torch.nn.functional.cross_entropy(logits, wanted).item(), rel=1e-5)
    console = Console(record=True, width=100)
    console.print(found.table())
    shown = console.export_text()
    assert f"{found.explained_variance:.3f}" in shown and f"{found.dead} of 32" in shown


def test_loss_is_recovered_on_a_trained_model_and_by_chance_is_not():
    def successor(step: int) -> Batch:
        """Count upwards modulo 8 from anywhere."""
        first = torch.randint(8, (16, 1), generator=torch.Generator().manual_seed(step))
        texts = (first + torch.arange(6)) % 8
        return Batch(texts, torch.ones_like(texts, dtype=torch.bool))

    block = BlockConfig(Spec("softmax", {"heads": 2}), Spec("gated", {"hidden": 16}))
    model = initialise(Transformer(TransformerConfig(8, 16, (block,), tied=False)), 0)
    train(model, successor, Training(80, learning_rate=1e-2, warmup=5))
    site, texts = "blocks.0.resid_post", [successor(1000).tokens]
    x = collect(model, site, [successor(2000 + step).tokens for step in range(20)])
    found, in_noise = (
        evaluate(train_sae(v, features=32, k=4, training=SHORT), model, site, texts)
        for v in (x, gaussian_like(x, len(x), seed=1))
    )
    assert found.loss_zero > 10 * found.loss_clean  # the loss has something to recover
    assert found.recovered > 0.9
    assert found.recovered > in_noise.recovered and found.explained_variance > in_noise.explained_variance
