"""Budgets are read, refused, written back, and turned into tokens."""

import pytest
import torch

from assay.core.budget import Budget
from assay.core.errors import AssayError
from assay.core.store import Store


@pytest.mark.parametrize(
    ("text", "kind", "amount", "again"),
    [
        ("0.25", "ratio", 0.25, "0.25"),
        (1, "ratio", 1, "1"),
        ("512tok", "tokens", 512, "512tok"),
        (" 64 TOK ", "tokens", 64, "64tok"),
        ("4MiB", "bytes", 4 * 2**20, "4MiB"),
        ("1.5mib", "bytes", 1.5 * 2**20, "1536KiB"),
        ("2kb", "bytes", 2000, "2000B"),
        ("100B", "bytes", 100, "100B"),
        ("1e-1", "ratio", 0.1, "0.1"),
    ],
)
def test_it_is_read_and_written(text, kind, amount, again):
    budget = Budget.parse(text)
    assert (budget.kind, budget.amount, str(budget)) == (kind, amount, again)
    assert Budget.parse(str(budget)) == budget == Budget.parse(budget)


@pytest.mark.parametrize("text", ["0", "-0.5", "1.5", "", "half", "12.5tok", "0tok", "4MB4", "1.2.3", "nan", "0MiB"])
def test_what_is_no_budget_is_refused_in_one_line(text):
    with pytest.raises(AssayError, match="budget") as error:
        Budget.parse(text)
    assert "\n" not in str(error.value)


def test_only_the_whole_ratio_is_everything():
    assert Budget.parse(1.0).everything and Budget.parse("1").everything
    assert not Budget.parse("1tok").everything and not Budget.parse(0.999).everything


def stores(tokens: int = 40) -> list[Store]:
    made = []
    for kv_heads, dim in ((2, 4), (1, 8)):
        store = Store(1, kv_heads)
        zeros = torch.zeros(1, kv_heads, tokens, dim)
        store.append(zeros, zeros, positions=torch.arange(tokens)[None])
        made.append(store)
    return made


def test_a_ratio_is_of_each_context_rounded_down_but_at_least_one_token():
    lengths = torch.tensor([100, 7, 1])
    assert Budget.parse(0.29).tokens(lengths, []).tolist() == [29, 2, 1]
    assert Budget.parse("20tok").tokens(lengths, []).tolist() == [20, 20, 20]


def test_bytes_count_positions_columns_and_notes_over_all_layers():
    held = stores()
    token = 2 * (2 * 16 + 4) + (2 * 32 + 4)
    owners = 3 * 8
    lengths = torch.tensor([40])
    assert Budget("bytes", 32 * token + owners).tokens(lengths, held).tolist() == [32]
    assert Budget("bytes", 32 * token + owners - 1).tokens(lengths, held).tolist() == [16], "slots come by the sixteen"
    assert Budget("bytes", 16 * token + owners - 1).tokens(lengths, held).tolist() == [0]
    held[0].set_column("mine/column", torch.zeros(80))
    held[1].notes["mine/note"] = torch.zeros(1, 25)
    assert Budget("bytes", 32 * (token + 8) + owners + 100).tokens(lengths, held).tolist() == [32]
    assert Budget("bytes", 32 * token + owners + 100).tokens(lengths, held, {"mine"}).tolist() == [32]


def test_a_share_of_bytes_is_of_what_the_whole_cache_would_hold():
    one, many = stores(1), stores(100)
    whole = sum(s.bytes for s in many)
    assert Budget.matching(1, tokens=100, stores=one) == Budget("bytes", whole)
    quarter = Budget.matching(0.25, tokens=100, stores=one)
    assert quarter.amount == whole // 4 and quarter.tokens(torch.tensor([100]), one).tolist() == [16]
    for share, held in ((0, one), (-1, one), (0.5, [])):
        with pytest.raises(AssayError):
            Budget.matching(share, tokens=100, stores=held)


def test_fewer_bytes_than_a_token_are_no_tokens():
    assert Budget("bytes", 10).tokens(torch.tensor([40]), stores()).tolist() == [0]


@pytest.mark.parametrize("text", ["1e400tok", "1e400MiB", "1e30B"])
def test_a_budget_beyond_any_cache_is_refused(text):
    with pytest.raises(AssayError, match="more than any cache"):
        Budget.parse(text)
