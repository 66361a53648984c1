"""Traces of a cell: shades by token, the text they lie over, and the place where an answer was lost."""

import torch

from assay.bench.compare import compare
from assay.bench.compare.prompts import tokenise
from assay.bench.compare.traces import held_matrix, passages, pieces, shades
from assay.core.store import Store
from assay.tasks import Example


def test_a_shade_is_none_and_all_only_where_that_is_so():
    assert shades(torch.tensor([0.0, 1e-3, 0.125, 0.5, 0.876, 0.999, 1.0])) == "0114889"


def prompt(tiny):
    example = Example("The answer is 42, so there.", " What is it?", (" 42",), ((14, 16),), {})
    return tokenise(tiny.tokenizer, example, metric="answer")


def test_pieces_joined_are_the_context_and_each_is_its_tokens_own_text(tiny):
    made = prompt(tiny)
    found = pieces(tiny.tokenizer, made)
    assert "".join(found) == made.example.context and len(found) == len(made.context)
    start, end = made.spans[0]
    assert "".join(found[start:end]) == "42" and pieces(tiny.tokenizer, made, start, end) == found[start:end]


def test_a_passage_shows_the_answer_and_what_stands_around_it(tiny):
    made = prompt(tiny)
    shares = torch.zeros(len(made.context))
    shares[made.spans[0][0]] = 1
    [found] = passages(tiny.tokenizer, made, shares)
    at = found["answer"][0] - found["first"]
    assert "".join(found["pieces"][at : at + 2]) == "42" and found["shades"][at : at + 2] == "90"
    assert len(found["pieces"]) == len(found["shades"])


def test_a_held_matrix_has_the_positions_that_are_stored():
    store = Store(1, 2)
    k = torch.zeros(1, 2, 3, 4)
    store.append(k, k, positions=torch.tensor([[0, 1, 2]]))
    store.keep(torch.tensor([0, 2, 4]))
    assert held_matrix(store, 4).tolist() == [[1, 0, 1, 0], [0, 1, 0, 0]]


def test_what_a_run_records_fits_together(tiny, tmp_path):
    grid = {"tasks": "needle", "budgets": "0.5", "length": 400, "examples": 2, "quiet": True}
    cells = compare(tiny, "recent", out=tmp_path, **grid).cells
    full = next(c for c in cells if c["policy"] == "full" and c["example"] == 0)
    recent = next(c for c in cells if c["policy"] == "recent" and c["example"] == 0)
    assert len(full["pieces"]) == full["tokens"] == len(recent["shades"])
    held = recent["shades"].count("9")
    assert set(recent["shades"]) == {"0", "9"} and held == recent["kept"]  # one global layer, heads alike
    assert recent["shades"].endswith("9" * 100) and "pieces" not in recent
    assert sum(recent["bytes_by_layer"]) == recent["bytes"] and sum(full["bytes_by_layer"]) == full["bytes"]
    later = next(c for c in cells if c["policy"] == "recent" and c["example"] == 1)
    assert "shades" not in later and later["score"] == 0.0
    [passage] = later["passages"]
    answer = slice(*(at - passage["first"] for at in passage["answer"]))
    assert "".join(passage["pieces"][answer]) == later["wanted"].strip()
