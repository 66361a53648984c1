"""The loop learns, repeats itself to the bit, refuses nonsense, and says what it did."""

import json

import pytest
import torch

from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.errors import AssayError
from assay.core.transformer import Transformer
from assay.training import Batch, Training, initialise, train


def tiny(seed: int = 0) -> Transformer:
    block = BlockConfig(Spec("softmax", {"heads": 2}), Spec("gated", {"hidden": 16}))
    return initialise(Transformer(TransformerConfig(8, 16, (block,), tied=False)), seed)


def successor(step: int) -> Batch:
    """Count upwards modulo 8 from anywhere."""
    first = torch.randint(8, (4, 1), generator=torch.Generator().manual_seed(step))
    tokens = (first + torch.arange(6)) % 8
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool))


def test_fifty_steps_learn_to_count() -> None:
    model = tiny()
    history = train(model, successor, Training(50, learning_rate=1e-2, warmup=5))
    assert history.loss[-1] < 0.1 * history.loss[0]
    assert history.accuracy[-1] == 1.0
    assert not model.training


def test_the_same_seed_gives_the_same_weights_and_another_does_not() -> None:
    def weights(seed: int) -> torch.Tensor:
        model = tiny(seed)
        train(model, successor, Training(5))
        return model.embed.weight.detach()

    torch.manual_seed(1)
    first = weights(0)
    torch.manual_seed(2)
    assert torch.equal(first, weights(0))
    assert not torch.equal(first, weights(1))


def test_only_the_tokens_asked_for_are_learned() -> None:
    def half(step: int) -> Batch:
        batch = successor(step)
        asked = torch.zeros_like(batch.asked)
        asked[:, 1] = True
        tokens = batch.tokens.clone()
        tokens[:, 2:] = 0  # what follows must leave no trace
        return Batch(tokens, asked)

    def first_two(step: int) -> Batch:
        batch = half(step)
        return Batch(batch.tokens[:, :2], batch.asked[:, :2])

    one, other = tiny(), tiny()
    train(one, half, Training(3))
    train(other, first_two, Training(3))
    assert torch.allclose(one.embed.weight, other.embed.weight, atol=1e-6)


def test_every_step_is_logged_as_a_line_of_json(tmp_path) -> None:
    train(tiny(), successor, Training(4, warmup=2, learning_rate=1e-3), log=tmp_path / "log.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert [line["learning_rate"] for line in lines][:2] == pytest.approx([5e-4, 1e-3])
    assert all(line["gradient"] > 0 for line in lines)


def test_a_loss_that_is_no_number_ends_the_run_with_a_line() -> None:
    model = tiny()
    with torch.no_grad():
        model.embed.weight[0, 0] = torch.nan
    with pytest.raises(AssayError, match="lower the learning rate"):
        train(model, successor, Training(3))


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"steps": 3, "learning_rate": 0.0}, {"steps": 3, "clip": 0.0}])
def test_settings_that_cannot_train_are_refused(wrong: dict) -> None:
    with pytest.raises(AssayError):
        Training(**wrong)


def test_a_batch_that_asks_for_nothing_is_refused() -> None:
    tokens = torch.zeros(1, 3, dtype=torch.long)
    asked = torch.tensor([[True, False, False]])  # nothing stands before the first token
    with pytest.raises(AssayError, match="asks for no token"):
        Batch(tokens, asked)
