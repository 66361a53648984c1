"""`evaluate`: the harness's own tasks and tables, on a model of assay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.bench.harness.cached_lm import CachedLM, Kept
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from assay.core.transformer import Transformer


@dataclass(frozen=True, repr=False)
class Evaluation:
    """`results` are the harness's, unchanged; `kept` is what the policy kept of all contexts."""

    results: dict[str, Any]
    cache: str
    kept: Kept

    def __repr__(self) -> str:
        return f"Evaluation({', '.join(self.results.get('results', {}))} with {self.cache})"

    def table(self) -> str:
        """The harness's table, and what the policy did."""
        from lm_eval.utils import make_table

        return f"{make_table(self.results)}\n{self.says()}"

    def says(self) -> str:
        kept = self.kept
        if not kept.contexts:
            return f"{self.cache}: no context was read"
        return (
            f"{self.cache}: {kept.held / kept.contexts:,.0f} of {kept.read / kept.contexts:,.0f} tokens "
            f"({kept.share:.1%}) kept a head in layers that grow, mean of {kept.contexts:,} contexts"
        )


def evaluate(
    model: str | Transformer,
    tasks: str | Sequence[str],
    *,
    cache: str = "full",
    limit: int | None = None,
    shots: int | None = None,
    include: str | Path | None = None,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
) -> Evaluation:
    """Run tasks of the harness. `limit`: examples a task; `shots`: worked examples before each; `include`: a folder of
    YAML files with tasks of your own.

    Raises AssayError where lm-eval is not installed, a task is unknown, or anything else can be mended.
    """
    harness = _harness()
    names = [name.strip() for name in (tasks.split(",") if isinstance(tasks, str) else tasks) if name.strip()]
    if not names:
        raise AssayError("tasks is empty: name at least one task of the harness")
    if include is not None and not Path(include).is_dir():
        raise AssayError(f"{include}: --include names a folder of YAML files, and there is no such folder")
    manager = harness.tasks.TaskManager(include_path=None if include is None else str(include))
    if missing := [name for name in names if not manager.match_tasks([name])]:
        raise AssayError(f"the harness has no task {', '.join(missing)}; lm-eval ls tasks lists what it has")
    loaded = _load(model, device, dtype)
    asked = CachedLM(loaded, cache)
    try:
        results = harness.simple_evaluate(
            model=adapter(asked), tasks=names, limit=limit, num_fewshot=shots, task_manager=manager, bootstrap_iters=0,
            random_seed=seed, numpy_random_seed=seed, torch_random_seed=seed, fewshot_random_seed=seed,
        )  # fmt: skip
    except (ConnectionError, OSError) as error:
        raise AssayError(f"a task's data cannot be had: {str(error).splitlines()[0]}") from error
    return Evaluation(results, cache, asked.kept)


def adapter(asked: CachedLM) -> Any:
    """The harness's `LM`, whose answers are those of `asked`."""
    _harness()
    from lm_eval.api.model import LM

    class Assay(LM):
        def loglikelihood(self, requests: Any) -> list[tuple[float, bool]]:
            return asked.loglikelihood(requests)

        def loglikelihood_rolling(self, requests: Any) -> list[float]:
            return asked.loglikelihood_rolling(requests)

        def generate_until(self, requests: Any) -> list[str]:
            return asked.generate_until(requests)

        def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
            return asked.model.tokenizer.apply_chat(chat_history, answer=add_generation_prompt)

        @property
        def tokenizer_name(self) -> str:
            return asked.model.name

    return Assay()


def _harness() -> Any:
    try:
        import lm_eval
        import lm_eval.tasks
    except ImportError as error:
        raise AssayError(
            f"lm-eval is not installed ({error.name} is missing): pip install -c constraints.txt 'assay[lm-eval]'"
        ) from error
    return lm_eval


def _load(model: str | Transformer, device: str, dtype: str) -> Transformer:
    if not isinstance(model, str):
        return model.eval()
    from assay.checkpoints import load

    return load(model, device=device, dtype=dtype).eval()
