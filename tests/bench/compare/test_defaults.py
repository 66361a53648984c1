"""Everything but the model has a default that fits it."""

import pytest

from assay.bench.compare.defaults import fitting
from assay.bench.compare.settings import Settings
from assay.core.errors import AssayError
from assay.subjects.words import WordTokenizer
from assay.tasks import resolve


def test_a_model_of_text_gets_tasks_of_text_and_half_its_window(tiny):
    found = fitting(tiny, Settings())
    assert found.tasks == ("needle", "multikey", "ppl") and found.length == (1024,)


@pytest.mark.parametrize("task", ["recall", "restated"])
def test_a_model_of_few_words_gets_the_task_it_has_words_for(tiny, task):
    tiny.tokenizer = WordTokenizer(tuple(resolve(task).vocabulary))
    assert fitting(tiny, Settings()).tasks == (task,)


def test_what_was_asked_for_stays(tiny):
    found = fitting(tiny, Settings.of({"tasks": "ppl", "length": 300}))
    assert found.tasks == ("ppl",) and found.length == (300,)


def test_a_model_that_can_read_no_task_is_an_error(tiny):
    tiny.tokenizer = WordTokenizer(("only", "words"))
    with pytest.raises(AssayError, match="none of the usual tasks"):
        fitting(tiny, Settings())
