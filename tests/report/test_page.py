"""The page is one file that asks for nothing, escapes what it is given, and shows every policy, task and reason."""

import html
import json
import re
from dataclasses import replace
from statistics import median

import pytest

from assay.report.page import render
from assay.report.plots import glance, plots, speeds


@pytest.fixture(scope="module")
def page(summary):
    return render(summary)


def markup(page):
    """The page without its scripts and styles."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)


def test_nothing_is_fetched(page):
    own = markup(page)
    assert not re.findall(r'\b(?:src|srcset|action|poster)\s*=|<iframe|<img|<link(?! rel="icon" href="data:,">)', own)
    assert not re.findall(r'href="(?!data:,|#)', own)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    assert "url(" not in style and "@import" not in style
    ours = page[page.rindex("<script>") :]
    assert "fetch(" not in ours and "XMLHttpRequest" not in ours and "http" not in ours


def test_every_policy_task_note_and_refusal_is_shown(page, summary, run):
    own = html.unescape(markup(page))
    for row in (r for t in summary.tasks for r in t.rows):
        assert row.name in own
    facts = ("Some CPU", "2.13.0", "compressed before the question is seen")
    for said in (*run["grid"]["tasks"], run["notes"][0]["says"], run["refused"][0]["why"], *facts):
        assert said in own


def test_what_says_nothing_is_marked_in_table_and_plot(page, summary):
    assert "variables says nothing here" in html.unescape(markup(page))
    assert [t["name"] for t in plots(summary)["tasks"] if t["says_nothing"]] == ["variables"]


def test_texts_of_a_model_cannot_become_markup(summary, run):
    attack = "</script><script>alert(1)</script>"
    failure = replace(summary.failures[0], prompt=attack, answer=attack, wanted=attack)
    named = {**run, "fixed": {**run["fixed"], "model": attack}}
    evil = render(replace(summary, failures=(failure,), policies=(*summary.policies, attack), run=named))
    assert "<script>alert(1)" not in evil
    assert len(re.findall("<script", evil)) == len(re.findall("<script", render(summary)))


def test_a_policy_whose_name_has_quotes_keeps_its_colour(summary):
    page = render(replace(summary, policies=(*summary.policies, "mine(a='b\\'c')")))
    assert r"""[data-policy="mine\28 a\3d \27 b\5c \27 c\27 \29 "] { --light: #""" in page


def test_the_data_in_the_page_is_what_was_measured(page, summary):
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data == json.loads(json.dumps(plots(summary)))
    point = data["tasks"][0]["rows"][0]
    assert point["mean"] == summary.tasks[0].rows[0].quality.mean and point["bytes"] == summary.tasks[0].rows[0].bytes
    assert data["tasks"][2]["full"]["mean"] == pytest.approx(2.718281828 ** summary.tasks[2].full.quality.mean)


def test_the_table_and_the_speed_plot_agree_over_all_tasks(summary):
    slow = replace(summary.tasks[0], rows=tuple(replace(r, tokens_per_second=1.0) for r in summary.tasks[0].rows))
    mixed = replace(summary, tasks=(slow, *summary.tasks[1:]))
    lines = {line["name"]: line for line in glance(mixed)}
    assert {s["name"]: s["rate"] for s in speeds(mixed)} == {name: line["rate"] for name, line in lines.items()}
    rates = [r.tokens_per_second for t in mixed.tasks for r in t.rows if r.name == "snapkv@0.5"]
    assert lines["snapkv@0.5"]["rate"] == median(rates) > 1.0
    assert lines["snapkv@0.5"]["bytes"] == pytest.approx(
        sum(r.bytes for t in mixed.tasks for r in t.rows if r.name == "snapkv@0.5") / 4
    )


def test_an_aware_run_is_labelled(summary, run):
    aware = render(replace(summary, run={**run, "fixed": {**run["fixed"], "aware": True}}))
    assert "aware: policies saw the question" in aware and "aware: policies saw the question" not in render(summary)


def test_an_unfinished_run_says_so(summary):
    assert "12 of 1000 cells are not finished" in render(replace(summary, finished=988, planned=1000))


def test_a_page_of_almost_nothing_still_renders(run, cells):
    from assay.bench.compare.summarise import summarise

    one = [c for c in cells if c["task"] == "needle" and c["policy"] in ("full", "random") and c["example"] == 0][:2]
    assert "needle" in render(summarise(run, one)) and "needle" in render(summarise(run, one[:1]))


def test_plotly_is_in_the_page_once_and_runs_only_when_it_is_asked_for(page):
    assert page.count("plotly.js v") == 1
    assert '<script type="text/plain" id="plotly">' in page


def test_the_leaderboard_stands_best_first_with_its_intervals_and_front(page, summary):
    own = html.unescape(markup(page))
    places = [own.index(f"</i>{m.name}</th>") for m in summary.leaders]
    assert places == sorted(places) and len(places) == 1 + 5 * 3
    assert own.count("on the Pareto front") == sum(m.front for m in summary.leaders) > 1
    first = summary.leaders[1]
    assert f"{100 * first.kept.low:.0f}–{100 * first.kept.high:.0f}" in own


def test_a_failure_shows_what_was_evicted_around_the_answer(page, summary):
    failure = next(f for f in summary.failures if f.passages)
    passage = failure.passages[0]
    shown = html.unescape(re.sub("<[^>]*>", "", markup(page)))
    assert "".join(passage.pieces) in shown
    assert re.search(r'<span class="s\d answer">', page) and '<span class="s0">' in page


def test_a_sweep_shows_each_length_and_names_it(large):
    page = render(large)
    own = html.unescape(markup(page))
    assert "Quality against length" in own and "contexts of 512 and 1024 tokens" in own.lower()
    assert all(name in own for name in ("needle at 512", "needle at 1024", "ppl at 512"))
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert data["lengths"] == [512, 1024] and [t["length"] for t in data["tasks"]] == [512, 1024] * 3


def test_the_page_of_ten_thousand_cells_stays_small(large):
    assert large.finished > 9_800
    page = render(large)
    plotly = re.search(r'id="plotly">(.*?)</script>', page, re.DOTALL)[1]
    assert len(page) - len(plotly) < 4_000_000
