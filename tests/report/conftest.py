"""A synthetic comparison, large enough that every part of a report has something to show."""

import math
import random

import pytest

SKILL = {"snapkv": 0.93, "twinkv(snapkv)": 0.97, "nestedkv(blocks=64)": 0.85, "knorm": 0.3, "random": 0.35}


def synthetic_run() -> dict:
    return {
        "fixed": {
            "model": "gemma-3-270m", "checksum": "4f2d", "seed": 0, "aware": False, "generate": False,
            "dtype": "float32", "device": "cpu", "schema": 1,
        },
        "grid": {
            "policies": ["full", "random", *[p for p in SKILL if p != "random"]], "budgets": ["0.5", "0.25", "0.1"],
            "tasks": ["needle", "multikey", "ppl", "variables"], "lengths": [1024], "examples": 20,
        },
        "versions": {"assay": "0.1.0", "torch": "2.13.0", "python": "3.11"},
        "machines": [{"cpu": "Some CPU", "cores": 2}],
        "notes": [{"policy": "adakv(snapkv)", "says": "one key-value head a layer: there is nothing to share out between heads"}],
        "refused": [{"what": "snapkv@0.02", "cells": 60, "why": "20 tokens, but 36 are pinned: raise the budget"}],
        "created": "2026-01-01T00:00:00Z", "vocab_size": 262144,
    }  # fmt: skip


WORDS = "The <special> number for vivid-ox is 7240132 & nothing else in this long text matters to anyone who reads on".split()


def synthetic_cells(run: dict, seed: int = 0) -> list[dict]:
    rng = random.Random(seed)
    cells = []
    for length in run["grid"]["lengths"]:
        for task in run["grid"]["tasks"]:
            for example in range(run["grid"]["examples"]):
                ease = rng.random()
                for policy in run["grid"]["policies"]:
                    for budget in ["1"] if policy == "full" else run["grid"]["budgets"]:
                        cells.append(_cell(length, task, example, policy, budget, ease, rng))
    return cells


def _cell(length: int, task: str, example: int, policy: str, budget: str, ease: float, rng: random.Random) -> dict:
    ratio = float(budget)
    skill = 0.98 if policy == "full" else SKILL.get(policy, 0.8) * ratio**0.15 * (1024 / length) ** 0.1
    nll = task == "ppl"
    right = rng.random() < 0.5 * skill + 0.5 * skill * (0.6 + 0.4 * ease) and task != "variables"
    per_token = -2.6 - (1 - skill) * 0.8 - 0.05 * ease if nll else -0.02 - (0 if right else 2.5 * (1 - skill) + 0.2)
    full_eligible, window = length * 2068 * 3, 512 * 2068 * 15
    eligible = int(full_eligible * ratio)
    start = int(1024 * ease * 0.9)
    positions = None
    if example == 0 and policy != "full":
        held = [1.0 if i < 2 or i > 495 or rng.random() < ratio else 0.0 for i in range(512)]
        positions = {"5": held, "11": held[::-1], "17": held}
    digits = "".join(
        "9" if i < 4 or i > 970 else rng.choice("0012345678") if rng.random() < ratio * 1.5 else "0"
        for i in range(1000)
    )
    spans = [] if nll else [[start, start + 7]]
    seen = {}
    if example == 0:
        seen = (
            {"shades": digits} if policy != "full" else {"pieces": [f" {WORDS[i % len(WORDS)]}" for i in range(1000)]}
        )
    if not nll and not right and policy != "full":
        first = max(0, start - 20)
        pieces = [f" {WORDS[i % len(WORDS)]}" for i in range(47)]
        seen["passages"] = [{"first": first, "answer": spans[0], "pieces": pieces, "shades": digits[:47]}]
    layers = [eligible // 3 if i in (5, 11, 17) else window // 15 for i in range(18)]
    return {
        "cell": f"{task}-{length}-{example}-{policy}-{budget}", "text": f"{task}-{example}",
        "model": "gemma-3-270m", "policy": policy, "budget": budget, "task": task,
        "metric": "nll" if nll else "answer", "length": length, "seed": 0, "example": example, "aware": False,
        "score": math.exp(per_token) if nll else float(right), "answer_tokens": 128 if nll else 7,
        "logprob": per_token * (128 if nll else 7), "kl": (1 - skill) / 3 if nll else None,
        "survived": None if nll else (1.0 if policy == "full" else min(1.0, skill)), "tokens": 1000, "kept": 1000 * ratio,
        "bytes": window + eligible, "bytes_eligible": eligible, "bytes_full": window + full_eligible,
        "bytes_full_eligible": full_eligible, "peak_bytes": window + full_eligible + 4096, "seconds_prefill": 3.4,
        "seconds_compress": 0.01, "seconds_answer": 0.2, "first_token": 3.5 + 0.1 * ratio,
        "tokens_per_second": 8.0 + (1 - ratio) if example == 0 else None, "positions": positions,
        "spans": spans, "skipped": None, "bytes_by_layer": layers, **seen,
        "prompt": "… What is the special magic number for <b>vivid-ox</b> is",
        "answer": " 7249…", "wanted": " 7240132",
    }  # fmt: skip


@pytest.fixture(scope="session")
def run() -> dict:
    return synthetic_run()


@pytest.fixture(scope="session")
def cells(run) -> list[dict]:
    return synthetic_cells(run)


@pytest.fixture(scope="session")
def summary(run, cells):
    from assay.bench.compare.summarise import summarise

    return summarise(run, cells)


@pytest.fixture(scope="session")
def large():
    """The summary of about 10,000 cells: 24 policies at 4 budgets on 3 tasks at 2 lengths, 17 examples each."""
    from assay.bench.compare.summarise import summarise

    run = synthetic_run()
    policies = ["full", "random", *(f"policy{i:02d}(blocks={i})" for i in range(23))]
    run["grid"] = {
        "policies": policies, "budgets": ["0.5", "0.25", "0.1", "0.05"], "tasks": ["needle", "multikey", "ppl"],
        "lengths": [512, 1024], "examples": 17,
    }  # fmt: skip
    return summarise(run, synthetic_cells(run))
