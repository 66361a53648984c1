"""The recall model speaks the task's words and learns from its batches; the trained one recalls."""

import pytest
import torch

from assay.core.errors import AssayError
from assay.subjects import Stage, WordTokenizer
from assay.subjects.recall_small import RecallSmall
from assay.tasks.recall import Recall


def miniature() -> RecallSmall:
    return RecallSmall(stages=(Stage(25, 12, 20, 256), Stage(25, 20, 30, 256)))


def test_fifty_steps_lower_the_loss() -> None:
    _, history = miniature().train()
    assert sum(history.loss[-5:]) < 0.9 * sum(history.loss[:5])


def test_a_batch_is_a_function_of_its_step_and_asks_for_values() -> None:
    subject = miniature()
    tokens = WordTokenizer(subject.recipe().words)
    for step in (0, 7, 49):
        batch, again = subject.batch_at(step), miniature().batch_at(step)
        assert torch.equal(batch.tokens, again.tokens)
        asked = tokens.decode(batch.tokens[batch.asked].tolist()).split()
        assert all(word.startswith("v") for word in asked)
    assert not torch.equal(subject.batch_at(0).tokens[:1, :8], subject.batch_at(1).tokens[:1, :8])
    with pytest.raises(AssayError, match="beyond"):
        subject.batch_at(50)


def test_stages_too_short_to_ask_twice_are_refused() -> None:
    with pytest.raises(AssayError, match="12 words"):
        RecallSmall(stages=(Stage(5, 6, 20, 256),))


def test_later_stages_are_longer() -> None:
    subject = RecallSmall()
    last = sum(stage.steps for stage in subject.stages) - 1
    assert subject.batch_at(last).tokens.shape[1] > subject.batch_at(0).tokens.shape[1]


def test_examples_of_the_task_are_read_word_by_word() -> None:
    tokenizer = WordTokenizer(RecallSmall().recipe().words)
    example = next(Recall().examples(1, 0, 512, lambda text: len(text.split())))
    ids, spans = tokenizer.spans(example.context)
    (start, end) = example.spans[0]
    assert example.answers[0].strip() == tokenizer.decode([ids[spans.index((start, end))]])
    assert 500 < len(ids) + len(tokenizer.encode(example.question, bos=False)) <= 512


@pytest.mark.parametrize("length", [64, 256, 512])
def test_the_trained_model_recalls(length: int) -> None:
    subject = RecallSmall()
    if not subject.cached:
        pytest.skip("recall-small is not trained yet: assay.load('recall-small') trains it in a few minutes")
    model = subject.load()
    right = 0
    for example in Recall().examples(40, 1, length, lambda text: len(text.split())):
        prompt = torch.tensor([model.tokenizer.encode(example.context + example.question)])
        right += model.tokenizer.decode(model(prompt)[0][0, -1:].argmax(-1).tolist()) == example.answers[0].strip()
    assert right >= 38
