from hypothesis import given
from hypothesis import strategies as st

from assay.tasks.scorers import contains, string_match_all, string_match_part


def test_match_ignores_case_and_surrounding_space_but_not_breaks_within_an_answer():
    assert contains(" The number is\n4417.", "4417")
    assert contains("a RED apple", "red Apple ") and not contains("red\tapple", "red apple")
    assert contains("red\tapple", "red\napple")
    assert not contains("4 417", "4417")


def test_all_is_a_share_and_part_is_any():
    assert string_match_all("a1 and b2", ["a1", "b2", "c3", "d4"]) == 0.5
    assert string_match_part("a1 and b2", ["c3", "b2"]) == 1
    assert string_match_part("a1", ["c3", "b2"]) == 0


def test_nothing_is_never_an_answer():
    assert not contains("anything", " ")
    assert string_match_all("anything", []) == string_match_part("anything", []) == 0


@given(st.text(), st.lists(st.text(), max_size=5))
def test_scores_lie_in_the_unit_interval(output, answers):
    assert 0 <= string_match_all(output, answers) <= string_match_part(output, answers) <= 1
