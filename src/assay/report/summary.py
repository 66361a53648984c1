"""What a comparison says, as plain data: the one thing that tables, pages and pictures are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["better", "worse", "not distinguishable", "too few examples"]


@dataclass(frozen=True)
class Estimate:
    """A mean over `examples` paired examples with its bootstrap interval; the interval is None where examples are too few."""

    mean: float
    low: float | None
    high: float | None
    examples: int


@dataclass(frozen=True)
class Difference:
    """The mean paired difference to a reference (higher is better) and what may be said about it."""

    mean: float
    low: float | None
    high: float | None
    examples: int
    verdict: Verdict
    identical: bool = False  # not one example differs


@dataclass(frozen=True)
class Row:
    """One policy at one budget on one task.

    `quality` is the share of right answers, or nats a token (negative log-likelihood) where `measure` is "nll": `shown()`
    makes perplexity of it. `task` is the name of its `TaskSummary`. Differences are oriented so that
    positive is better, in the units of `quality`.
    `logprob`: of the right answer, in nats a token. Bytes are means over examples; seconds and rates are medians.
    """

    task: str
    policy: str
    budget: str
    measure: Literal["share", "nll"]
    quality: Estimate
    against_full: Difference | None
    against_random: Difference | None
    logprob: Estimate | None
    logprob_against_full: Difference | None
    kl: float | None
    survived: float | None
    kept: float | None  # mean tokens held by an eligible owner
    tokens: float  # mean context tokens
    bytes: float
    bytes_eligible: float
    bytes_full: float
    bytes_full_eligible: float
    peak_bytes: float | None
    first_token: float | None  # seconds
    tokens_per_second: float | None
    seconds_compress: float | None
    bytes_by_layer: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        return self.policy if self.policy == "full" else f"{self.policy}@{self.budget}"

    @property
    def share(self) -> float:
        """Of the full cache's bytes, all layers."""
        return self.bytes / self.bytes_full if self.bytes_full else 1.0

    @property
    def share_eligible(self) -> float:
        return self.bytes_eligible / self.bytes_full_eligible if self.bytes_full_eligible else 1.0


@dataclass(frozen=True)
class TaskSummary:
    """One task at one length. `name` says both where there are several lengths.

    `says_nothing`: why this task tells nothing here (the full cache cannot do it either), else None. `front`: names of
    what nothing else beats in quality without holding more bytes, `full` among them.
    """

    name: str
    measure: Literal["share", "nll"]
    examples: int
    full: Row | None
    rows: tuple[Row, ...]
    says_nothing: str | None = None
    task: str = ""
    length: int = 0
    front: tuple[str, ...] = ()


@dataclass(frozen=True)
class Leader:
    """One policy at one budget over all tasks that say something.

    `kept`: the share of full's quality that is left, mean over those tasks: its right answers, or full's perplexity over
    this one. `front`: nothing else keeps as much with as few bytes.
    """

    policy: str
    budget: str
    kept: Estimate
    bytes: float
    share: float  # of the full cache's bytes, all layers
    front: bool

    @property
    def name(self) -> str:
        return self.policy if self.policy == "full" else f"{self.policy}@{self.budget}"


@dataclass(frozen=True)
class Recommendation:
    """The smallest cache within the allowed loss, and the line of Python that deploys it; `winner` None: none qualifies."""

    max_loss: float
    max_bytes: float
    winner: str | None
    says: str
    code: str | None = None


@dataclass(frozen=True)
class Skip:
    """Cells that were not measured, and why."""

    what: str
    cells: int
    why: str


@dataclass(frozen=True)
class Passage:
    """Consecutive tokens of a context: their text, and by one digit each how many heads hold them (0 none, 9 all).

    `answer`: the (first, past last) of them that state the answer, counted from the first one here.
    """

    first: int
    answer: tuple[int, int]
    pieces: tuple[str, ...]
    shades: str


@dataclass(frozen=True)
class Failure:
    """One answer that full got right and a policy got wrong, for reading."""

    task: str
    policy: str
    budget: str
    example: int
    prompt: str
    wanted: str
    answer: str
    survived: float | None
    passages: tuple[Passage, ...] = ()


@dataclass(frozen=True)
class Kept:
    """Which positions one cell held: for each layer the share of heads that hold each of equally wide bins of the context.

    `shades`: by one digit a token how many heads hold it, over all eligible layers (0 none, 9 all); empty where unknown.
    """

    task: str
    policy: str
    budget: str
    example: int
    tokens: int
    layers: dict[int, list[float]]
    spans: tuple[tuple[int, int], ...]  # where the answer's tokens lie
    shades: str = ""


@dataclass(frozen=True)
class Summary:
    """Everything a report shows. `run` is the folder's run.json; `cells` are the finished cells behind the rows."""

    run: dict[str, Any]
    tasks: tuple[TaskSummary, ...]
    policies: tuple[str, ...]
    budgets: tuple[str, ...]
    recommendation: Recommendation
    findings: tuple[str, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()  # policy, what it cannot do on this model
    skipped: tuple[Skip, ...] = ()
    failures: tuple[Failure, ...] = ()
    kept: tuple[Kept, ...] = ()
    leaders: tuple[Leader, ...] = ()  # best first
    texts: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)  # of tokens, by task's name and example
    cells: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    finished: int = 0
    planned: int = 0
