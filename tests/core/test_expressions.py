"""The grammar: what is read, how it is written back, and where the caret points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.core.errors import AssayError, ExpressionError
from assay.core.expressions import Call, parse, parse_layers


def test_reads_nested_calls_options_and_a_budget():
    assert parse("twinkv(adakv(snapkv))@0.25") == Call("twinkv", (Call("adakv", (Call("snapkv"),)),), (), "0.25")
    assert parse("nestedkv(blocks=64)") == Call("nestedkv", (), (("blocks", 64),))
    assert parse("./mine.py:P(x=1)@4MiB") == Call("./mine.py:P", (), (("x", 1),), "4MiB")
    assert parse("gemma-3-270m").name == "gemma-3-270m"
    assert parse("text:./notes-1.txt").name == "text:./notes-1.txt"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("f( b = 1.50 ,a= 1 )@ 0.250", "f(a=1, b=1.5)@0.25"),
        ("snapkv@512TOK", "snapkv@512tok"),
        ("snapkv@4mib", "snapkv@4MiB"),
        ("snapkv@1.0", "snapkv@1"),
        ("snapkv@1e-2", "snapkv@0.01"),
        ("twinkv( snapkv ) + kivi( recent=64,bits=2 ) @ .250", "twinkv(snapkv)+kivi(bits=2, recent=64)@0.25"),
        ("full+int4", "full+int4"),
        ("snapkv()", "snapkv"),
        ('f([1,True],"it\'s",k=None)', "f([1, True], 'it\\'s', k=None)"),
    ],
)
def test_writes_the_canonical_form(text, canonical):
    assert str(parse(text)) == canonical
    assert str(parse(canonical)) == canonical


def test_a_number_format_stands_between_policy_and_budget():
    call = parse("twinkv(snapkv)+kivi(bits=2)@0.25")
    assert call == Call("twinkv", (Call("snapkv"),), (), "0.25", Call("kivi", (), (("bits", 2),)))
    assert str(call.alone()) == "twinkv(snapkv)" and parse("snapkv@0.25").format is None


def test_the_order_of_options_does_not_matter():
    assert parse("f(a=1, b=2)") == parse("f(b=2, a=1)")


@pytest.mark.parametrize(
    ("text", "at", "why"),
    [
        ("", 0, "name is expected"),
        ("snapkv(", 6, "not closed"),
        ("f(g(x)", 1, "not closed"),
        ("snapkv)", 6, "closes nothing"),
        ("twinkv(snapkv@.5)", 13, "whole expression"),
        ("f(a=1, a=2)", 7, "given twice"),
        ("f(a=1, 2)", 7, "without a name"),
        ("f('x", 2, "quote is not closed"),
        ("f(3x)", 3, "number ends here"),
        ("f(a=)", 4, "value is expected"),
        ("f(1, )", 5, "value is expected"),
        ("snapkv@", 7, "budget is expected"),
        ("snapkv@half", 7, "budget is expected"),
        ("snapkv@512token", 7, "budget is expected"),
        ("f(a b)", 4, ", or ) is expected"),
        ("f@0.5@3", 5, "one budget"),
        ("a+", 2, "name is expected"),
        ("a+@0.5", 2, "name is expected"),
        ("a+b+c@0.5", 3, "one number format"),
        ("a@0.5+b", 5, "one number format, before the budget"),
        ("f(a+b)", 3, "number format belongs to the whole expression"),
        ("f(" * 60 + "x" + ")" * 60, 102, "nested deeper"),
        ("f(1e999)", 2, "too large"),
    ],
)
def test_the_caret_points_at_the_fault(text, at, why):
    with pytest.raises(ExpressionError, match=why.replace(")", r"\)")) as caught:
        parse(text)
    assert caught.value.at == at
    _, shown, caret = str(caught.value).split("\n")
    assert shown.strip() == text
    assert caret == " " * (2 + at) + "^"
    assert isinstance(caught.value, AssayError)


def test_a_text_of_several_lines_is_shown_as_one():
    with pytest.raises(ExpressionError) as caught:
        parse("f(\n  a=\n)")
    assert len(str(caught.value).split("\n")) == 3


NAMES = st.from_regex(r"(\./)?[a-z][a-z0-9_\-]{0,6}(\.py:[A-Z][a-z]{0,3})?", fullmatch=True)
WORDS = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
PLAIN = st.one_of(
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\r\t"), max_size=6),
)


def calls(values):
    options = st.dictionaries(WORDS, values, max_size=3).map(lambda found: tuple(found.items()))
    return st.builds(Call, NAMES, st.lists(values, max_size=3).map(tuple), options)


VALUES = st.recursive(
    PLAIN, lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), calls(inner)), max_leaves=8
)
BUDGETS = st.sampled_from([None, "0.25", "1", "512tok", "4MiB", "100B"])


@given(calls(VALUES), BUDGETS)
def test_every_call_is_read_back_from_what_it_writes(call, budget):
    call = Call(call.name, call.args, call.options, budget)
    again = parse(str(call))
    assert again == call
    assert repr(again) == repr(call)  # 1, 1.0 and True are equal but not the same


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text):
    try:
        assert parse(str(parse(text))) == parse(text)
    except ExpressionError as error:
        assert 0 <= error.at <= len(text)


def test_layers_repeat_and_nest():
    names = [call.name for call in parse_layers("2*gated_deltanet + softmax + 2*(a + b(x=1))")]
    assert names == ["gated_deltanet", "gated_deltanet", "softmax", "a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", 0),
        ("3*", 2),
        ("3 softmax", 2),
        ("a + ", 4),
        ("(a + b", 0),
        ("0*a", 0),
        ("9999*a", 0),
        ("a@0.5", 1),
        ("a b", 2),
    ],
)
def test_bad_layers_show_where(text, at):
    with pytest.raises(ExpressionError) as caught:
        parse_layers(text)
    assert caught.value.at == at


@pytest.mark.parametrize("text", ["snapkv@1e99999999tok", "snapkv@1e-99999999", f"snapkv(sink={'9' * 5000})"])
def test_numbers_of_endless_digits_are_refused(text):
    with pytest.raises(ExpressionError, match="digits is not meant"):
        parse(text)


@pytest.mark.parametrize("thing", [None, 5, ["snapkv"], b"snapkv"])
def test_an_expression_is_a_text(thing):
    with pytest.raises(AssayError, match="is a text"):
        parse(thing)
