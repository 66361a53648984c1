import re

import numpy as np
import pytest

from assay.tasks import resolve
from assay.tasks.haystack import Fact, value_spans, weave
from assay.tasks.text import Corpus, english
from assay.tasks.words import CATEGORIES


def words(text: str) -> int:
    return len(text.split())


def made(expression: str, n: int = 12, length: int = 500, seed: int = 0):
    return list(resolve(expression).examples(n, seed, length, words))


SENTENCE = re.compile(r"One of the special magic numbers for ([a-z-]+) is: (\d+)\.")


def test_a_needle_stands_once_between_sentences_of_real_text():
    for example in made("needle"):
        [(key, value)] = SENTENCE.findall(example.context)
        assert example.answers == (f" {value}",) and len(value) == 7
        assert example.question.count(key) == 2 and value not in example.question
        start = example.context.index("One of the special")
        assert example.context[:start].rstrip()[-1] in ".!?:\"'" and example.context[start - 1].isspace()
        around = (
            example.context[:start].splitlines()[-1].rstrip(),
            example.context[start:].split(".", 1)[1].lstrip()[:60].rstrip(),
        )
        assert around[1].split("\n")[0] in english().text


def test_depth_is_drawn_evenly_and_can_be_fixed():
    depths = [example.meta["depth"] for example in made("needle", n=200, length=200)]
    assert 0.4 < np.mean(depths) < 0.6 and min(depths) < 0.05 and max(depths) > 0.95
    for depth, low, high in ((0, 0, 0.08), (0.5, 0.4, 0.6), (1, 0.95, 1)):
        for example in made(f"needle(depth={depth})", n=4, length=900):
            assert low <= example.spans[0][0] / len(example.context) <= high


def test_the_same_seed_hides_the_same_fact_at_every_length_and_depth():
    short, long = made("needle", length=300), made("needle", length=900)
    assert [e.answers for e in short] == [e.answers for e in long]
    assert [e.answers for e in short] == [e.answers for e in made("needle(depth=0.5)", length=300)]


def test_in_code_a_needle_is_a_line_of_its_own():
    for example in made("needle(haystack=code)"):
        assert len([line for line in example.context.splitlines() if SENTENCE.fullmatch(line)]) == 1


def test_multikey_has_its_keys_once_each_and_asks_one():
    for example in made("multikey(keys=6, digits=4)"):
        facts = dict(SENTENCE.findall(example.context))
        assert len(facts) == 6 == len(set(facts.values())) and example.meta["key"] in facts
        assert facts[example.meta["key"]] == example.answers[0].strip()
    asked = [[key for key, _ in SENTENCE.findall(e.context)].index(e.meta["key"]) for e in made("multikey", n=60)]
    assert set(asked) == {0, 1, 2, 3}


def test_multikey_of_facts_alone_holds_nothing_else():
    for example in made("multikey(keys=0)"):
        lines = example.context.splitlines()[1:]
        assert all(SENTENCE.fullmatch(line) for line in lines) and len(lines) == example.meta["keys"] > 30
        assert dict(SENTENCE.findall(example.context))[example.meta["key"]] == example.answers[0].strip()


def test_an_episodic_needle_stands_alone_in_prose_and_has_look_alikes_elsewhere():
    for example in made("episodic", length=800):
        lines = example.context.splitlines()
        alike = [line for line in lines if SENTENCE.fullmatch(line)]
        assert len(alike) == example.meta["look_alikes"] > 15
        [home] = [line for line in lines if SENTENCE.search(line) and not SENTENCE.fullmatch(line)]
        assert example.meta["key"] in home
        start = example.spans[0][0]
        near = example.context[max(0, start - 260) : start + 200]
        assert len(SENTENCE.findall(near)) == 1


def test_share_moves_words_from_prose_to_look_alikes():
    few, many = (made(f"episodic(share={share})", length=800)[0].meta["look_alikes"] for share in (0.2, 0.7))
    assert made("episodic(share=0)")[0].meta["look_alikes"] == 0 < few < many / 2


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_every_duplicated_fact_is_stated_as_often_as_said_and_told_where(copies):
    for example in made(f"duplicated(facts=5, copies={copies})"):
        found = SENTENCE.findall(example.context)
        assert len(found) == 5 * copies and len(set(found)) == 5
        for fact in example.meta["facts"]:
            assert [example.context[a:b] for a, b in fact["spans"]] == [fact["value"]] * copies
            assert {example.context[a:b] for a, b in fact["sentences"]} == {Fact(fact["key"], fact["value"]).sentence}
        assert example.spans == example.meta["facts"][0]["spans"]


def test_few_shot_labels_are_right_and_the_asked_word_is_new():
    label = {word: name for name, words_of in CATEGORIES.items() for word in words_of}
    for example in [*made("fewshot"), *made("fewshot", length=900)]:  # 900 words: some words come twice
        shots = re.findall(r"Word: (\w+)\nLabel: (\w+)\n", example.context)
        assert len(shots) == example.meta["shots"] and all(label[word] == name for word, name in shots)
        assert example.meta["word"] not in dict(shots) and example.answers == (f" {label[example.meta['word']]}",)
        assert len(example.spans) == sum(name == example.answers[0].strip() for _, name in shots)


def test_signs_hide_the_names_but_keep_the_classes():
    for example in made("fewshot(signs=True, classes=3)"):
        shots = re.findall(r"Word: (\w+)\nLabel: (\w+)\n", example.context)
        label = {word: name for name, words_of in CATEGORIES.items() for word in words_of}
        assert len({(label[word], sign) for word, sign in shots}) == 3
        assert not {sign for _, sign in shots} & set(CATEGORIES)
        assert (label[example.meta["word"]], example.answers[0].strip()) in {(label[w], s) for w, s in shots}


def test_weaving_keeps_text_and_order():
    text = Corpus("x", "One two. Three four. Five six. Seven eight.")
    facts = [Fact("a", "11"), Fact("b", "22"), Fact("c", "33")]
    woven, starts = weave(text, 0, len(text), facts, [1.0, 0.0, 0.5])
    said = [fact.sentence for fact in facts]
    assert woven == f"{said[1]} One two. Three four. {said[2]} Five six. Seven eight. {said[0]}"
    assert [woven[a:b] for a, b in value_spans(woven, starts, facts)] == ["11", "22", "33"]
    alone, starts = weave(text, 0, 0, facts[:2], [0.3, 0.3])
    assert alone == f"{said[0]} {said[1]}" and starts == [0, len(said[0]) + 1]
