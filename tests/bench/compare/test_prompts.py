"""Where an example is cut: nothing of the question is compressed, nothing of the answer is read before it is scored."""

import pytest

from assay.bench.compare.prompts import tokenise
from assay.core.errors import AssayError
from assay.tasks import Example


class Pairs:
    """Two characters a token, so that borders fall inside tokens."""

    def spans(self, text, bos=True):
        places = [(i, min(i + 2, len(text))) for i in range(0, len(text), 2)]
        return [0, *range(1, len(places) + 1)], [(0, 0), *places]


def test_a_token_over_the_border_belongs_to_the_later_part():
    prompt = tokenise(Pairs(), Example("abc", "de", ("fgh",)), metric="answer")  # ab | cd e | f.. cut as ab cd ef gh
    assert (prompt.context, prompt.question, prompt.answer) == ((0, 1), (2,), (3, 4))


def test_without_a_question_the_last_token_of_the_context_is_read_after_compressing():
    prompt = tokenise(Pairs(), Example("abcdef", "", ("gh",)), metric="nll")
    assert (prompt.context, prompt.question, prompt.answer) == ((0, 1, 2), (3,), (4,))


def test_aware_moves_the_question_but_its_last_token_into_the_context():
    prompt = tokenise(Pairs(), Example("abcd", "efgh", ("ij",)), metric="answer", aware=True)
    assert (prompt.context, prompt.question, prompt.answer) == ((0, 1, 2, 3), (4,), (5,))


def test_the_answers_places_become_token_positions():
    prompt = tokenise(Pairs(), Example("abcdefgh", "ij", ("kl",), ((3, 5), (6, 8))), metric="answer")
    assert prompt.spans == ((2, 4), (4, 5))


def test_a_generations_prompt_ends_where_the_task_says():
    prompt = tokenise(Pairs(), Example("abcdefgh", "ij", ("kl",), meta={"prompt": 4}), metric="generation")
    assert prompt.prompted == 3 and len(prompt.context) == 5


def test_the_digest_names_the_tokens_and_the_cut():
    digests = {
        tokenise(Pairs(), Example(c, q, ("kl",), meta={"prompt": p}), metric="generation").digest
        for c, q, p in (("abcdefgh", "ij", 4), ("abcdef", "ghij", 4), ("abcdefgh", "ij", 6), ("abcdefghij", "kl", 4))
    }
    assert len(digests) == 4


def test_an_example_without_context_is_an_error():
    with pytest.raises(AssayError, match="no context"):
        tokenise(Pairs(), Example("", "", ("gh",)), metric="nll")
