"""Documents about what does not exist, lists to be counted, chains, and names in real code."""

import re
from collections import Counter

import pytest

from assay.core.errors import AssayError
from assay.tasks import resolve
from assay.tasks.text import code


def words(text: str) -> int:
    return len(text.split())


def made(expression: str, n: int = 12, length: int = 700, seed: int = 0):
    return list(resolve(expression).examples(n, seed, length, words))


def test_one_document_answers_and_no_other_does():
    for example in made("documents"):
        [(start, end)] = example.meta["supports"]
        place, answer = example.meta["place"], example.answers[0].strip()
        assert place in example.context[start:end] and place in example.question
        assert example.context.count(place) == 1 == example.context.count(answer)
        assert start <= example.spans[0][0] < end


def test_two_hops_need_a_document_that_does_not_name_the_place():
    for example in made("documents(hops=2)"):
        about = [example.context[a:b] for a, b in example.meta["supports"]]
        [first] = [text for text in about if example.meta["place"] in text]
        [second] = [text for text in about if text != first]
        keeper = re.search(r"Its keeper is (.+?)\.", first)[1]
        assert keeper in second and keeper not in example.question and example.answers[0].strip() in second
        assert example.context.count(example.answers[0].strip()) == 1


def test_needed_documents_lie_anywhere_and_names_differ():
    places = [example.spans[0][0] / len(example.context) for example in made("documents", n=80)]
    assert min(places) < 0.15 and max(places) > 0.85 and 0.35 < sum(places) / 80 < 0.65
    assert len({example.answers for example in made("documents", n=80)}) == 80


@pytest.mark.parametrize("chains, hops", [(1, 4), (3, 2), (2, 0)])
def test_every_chain_is_told_in_order_and_the_first_is_asked_for(chains, hops):
    for example in made(f"variable_tracking(chains={chains}, hops={hops}, shots=0)"):
        statements = re.findall(r"^VAR ([A-Z]{5}) = (?:VAR )?(\w+)$", example.context, re.MULTILINE)
        assert len(statements) == chains * (hops + 1) == len(dict(statements))
        value = {}
        for name, source in statements:  # a source is always assigned before it is passed on
            value[name] = source if source.isdigit() else value[source]
        assert len(set(value.values())) == chains
        holds = [name for name in value if value[name] == example.meta["value"]]
        assert [answer.strip() for answer in example.answers] == holds
        assert example.meta["value"] in example.question
        assert all(
            example.context[a - 4 : a] == "VAR " and example.context[b : b + 3] == " = " for a, b in example.spans
        )


def test_statements_stand_anywhere():
    ends = [example.spans[-1][0] / len(example.context) for example in made("vt(shots=0)", n=60)]
    starts = [example.spans[0][0] / len(example.context) for example in made("vt(shots=0)", n=60)]
    assert min(starts) < 0.1 and max(ends) > 0.9 and max(starts) > 0.4 and min(ends) < 0.6


def test_a_longer_list_holds_the_shorter_ones_words_in_their_order():
    for expression in ("common_words(shots=0)", "frequent_words"):
        for short, long in zip(made(expression, 4, 500), made(expression, 4, 900), strict=True):
            few, many = (re.findall(r"[a-z]+", e.context.splitlines()[1]) for e in (short, long))
            left = iter(many)
            assert all(word in left for word in few) and len(few) < len(many)


def test_common_words_are_told_with_all_their_copies():
    for example in made("common_words(words=4, often=9, rarely=2)"):
        listed = re.findall(r"\d+\. (\w+)", example.context.splitlines()[-1])
        counts = Counter(listed)
        answers = {answer.strip() for answer in example.answers}
        assert {word for word, n in counts.items() if n == 9} == answers and set(counts.values()) == {9, 2}
        assert len(example.spans) == 36 and Counter(example.context[a:b] for a, b in example.spans) == dict.fromkeys(
            answers, 9
        )


def test_a_steeper_fall_gives_the_first_words_more():
    flat, steep = (made(f"frequent_words(alpha={alpha})")[0].meta["counts"] for alpha in (1.5, 3))
    assert steep[0] / sum(steep) > flat[0] / sum(flat) and len(steep) < len(flat)
    assert steep[3] > steep[4]  # the third word asked for comes oftener than what is next


def test_code_is_completed_with_what_it_really_says():
    for example in made("code_completion", n=40, length=400):
        said = example.context + example.question + example.answers[0]
        assert said in code().text
        name = example.answers[0].strip()
        assert (
            name in example.context and name not in example.question and name not in said[-len(name) - 299 : -len(name)]
        )
        back = len(said) - len(name) - example.spans[-1][0]
        assert 300 <= back <= 1500 and not example.question.lstrip().startswith(("#", "def ", "async ", "import "))
        assert not code().text[code().text.index(said) + len(said)].isidentifier()


def test_a_window_too_short_for_the_last_mention_is_refused():
    with pytest.raises(AssayError, match="too short"):
        made("code_completion(far=20000)", n=30, length=120)
