import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import AssayError, UnknownPart
from assay.tasks import resolve
from assay.tasks.jsonl import JsonLines
from assay.tasks.needle import Needle
from assay.tasks.task import largest
from assay.tasks.text_file import TextFile


@given(
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=80),
    start=st.integers(0, 5),
    limit=st.integers(0, 200),
    guess=st.integers(0, 200),
)
def test_the_largest_that_fits_is_found_for_any_growing_size(steps, start, limit, guess):
    def size(n: int) -> int:
        whole, rest = divmod(n, len(steps))
        return start + whole * sum(steps) + sum(steps[:rest])

    found = largest(size, limit, guess)
    if start > limit:
        assert found == -1
    else:
        assert size(found) <= limit < size(found + 1)


def test_few_sizes_are_measured():
    asked = []

    def size(n: int) -> int:
        asked.append(n)
        return 70 + n * 13 // 10 + n % 3

    found = largest(size, 32_768, 16_000)
    assert size(found) <= 32_768 and size(found) > 32_768 - 5
    assert len(asked) < 25


def test_a_size_that_stops_growing_ends_the_search():
    assert largest(lambda n: min(n, 5), 10, 3) >= 5


def test_expressions_name_tasks_with_arguments(tmp_path):
    assert resolve("needle(digits=4)").digits == 4
    assert resolve(" niah ").digits == Needle().digits
    assert resolve("needle(haystack=code)").haystack.name == resolve("needle(haystack='code')").haystack.name == "code"
    path = tmp_path / "a file (1), odd@name.txt"
    path.write_text("some words of a text " * 50)
    assert isinstance(resolve(f"text:{path}"), TextFile)
    assert resolve(f"text('{path}', continuation=5)").continuation == 5
    path.write_text('{"context": "c", "question": "q", "answers": ["a", "b"]}')
    assert isinstance(resolve(f"jsonl:{path}"), JsonLines)
    assert resolve(f"jsonl('{path}', match=any)").match == "any"


def test_an_unknown_task_has_its_three_nearest_names():
    with pytest.raises(UnknownPart, match="unknown task 'nedle'; nearest: needle, ") as caught:
        resolve("nedle")
    assert len(caught.value.nearest) == 3


@pytest.mark.parametrize(
    "expression, why",
    [
        ("needle(digits=0)", "digits=0: a whole number from 1 to 18"),
        ("needle(digits=2.5)", "digits=2.5"),
        ("needle(depth=1.5)", "depth=1.5"),
        ("needle(haystack=french)", "unknown text 'french'"),
        ("needle(digit=4)", "digit"),
        ("multikey(keys=-1)", "keys=-1"),
        ("ppl(continuation=0)", "continuation=0: a whole number of at least 1"),
        ("ppl(text=french)", "unknown text 'french'"),
        ("episodic(share=1)", "share=1"),
        ("duplicated(facts=1000)", "facts=1000"),
        ("fewshot(classes=1)", "classes=1"),
        ("fewshot(signs=2)", "signs=2"),
        ("recall(keys=4, pairs=5)", "keys=4, pairs=5"),
        ("restated(rho=1.1)", "rho=1.1"),
        ("restated(variables=40)", "names=32"),
        ("restated(asked=both)", "asked='both'"),
        ("restated(asked=trace, derived=0)", "asked='trace'"),
        ("multi_value(values=41)", "values=41"),
        ("multi_query(queries=5)", "queries=5, keys=4"),
        ("variable_tracking(shots=2)", "shots=2"),
        ("vt(hops=-1)", "hops=-1"),
        ("common_words(often=3, rarely=3)", "often=3, rarely=3"),
        ("frequent_words(alpha=1)", "alpha=1"),
        ("passkey(times=0)", "times=0"),
        ("documents(hops=3)", "hops=3"),
        ("code_completion(far=20)", "far=20"),
        ("multi_turn(turns=0)", "turns=0"),
        ("text", "file"),
        ("text:", "no such file|cannot be read"),
        ("jsonl:nowhere.jsonl", "nowhere.jsonl: there is no such file"),
    ],
)
def test_arguments_that_do_not_fit_are_one_clear_line(expression, why):
    with pytest.raises(AssayError, match=why) as caught:
        resolve(expression)
    assert "\n" not in str(caught.value)


def test_too_short_a_length_tells_the_shortest():
    with pytest.raises(AssayError, match="20 tokens is too short .* its shortest prompt has [56][0-9]"):
        next(iter(Needle().examples(1, 0, 20, lambda text: len(text.split()))))
