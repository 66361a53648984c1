"""Trace models differ in key-value heads alone, learn from restated values, and the trained ones answer."""

import pytest
import torch

from assay.core.errors import AssayError
from assay.core.transformer import Transformer
from assay.subjects import Stage, WordTokenizer
from assay.subjects.trace_small import TraceSmall
from assay.tasks.restated import Restated


def test_all_have_the_same_number_of_parameters_and_their_own_number_of_heads() -> None:
    sizes = set()
    for kv_heads in (1, 2, 4, 8):
        model = Transformer(TraceSmall(kv_heads=kv_heads).recipe().config)
        assert {block.mixer.kv_heads for block in model.blocks} == {kv_heads}
        sizes.add(sum(parameter.numel() for parameter in model.parameters()))
    assert max(sizes) < 1.002 * min(sizes)


def test_other_numbers_of_heads_are_refused() -> None:
    with pytest.raises(AssayError, match="1, 2, 4 or 8"):
        TraceSmall(kv_heads=3)


def test_fifty_steps_lower_the_loss() -> None:
    _, history = TraceSmall(stages=(Stage(50, 24, 40, 384),)).train()
    assert sum(history.loss[-5:]) < 0.9 * sum(history.loss[:5])


def test_batches_ask_for_values_and_repeat_themselves() -> None:
    subject = TraceSmall()
    tokenizer = WordTokenizer(subject.recipe().words)
    for step in (0, 1, subject.recipe().training.steps - 1):
        batch = subject.batch_at(step)
        assert torch.equal(batch.tokens, TraceSmall(kv_heads=1).batch_at(step).tokens)
        assert all(word.startswith("v") for word in tokenizer.decode(batch.tokens[batch.asked].tolist()).split())


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
def test_the_trained_model_answers_with_a_full_cache(kv_heads: int) -> None:
    subject = TraceSmall(kv_heads=kv_heads)
    if not subject.cached:
        pytest.skip(f"{subject.name} is not trained yet: assay.load({subject.name!r}) trains it")
    model = subject.load()
    right = total = 0
    for rho in (0.0, 0.5, 1.0):
        tokens = torch.from_numpy(Restated(rho=rho).batch(32, 400, 3)[0])
        answers = model(tokens[:, :-1], logits="last")[0][:, -1].argmax(-1)
        right, total = right + int((answers == tokens[:, -1]).sum()), total + len(tokens)
    assert right >= 0.9 * total
