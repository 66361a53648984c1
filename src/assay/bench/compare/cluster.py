"""The grid on a Ray cluster: one prompt's cells are one task, and the driver alone writes what they find.

A task gives its cells one by one (a Ray generator), so a killed worker costs only the cells that it had not finished;
those are tried again elsewhere. The model travels to each worker process once. A worker measures with as many threads
as the driver has, so that numbers are those of a local run to the last bit.

source: Moritz et al. 2018, Ray (arXiv:1712.05889); generators and `ray.wait` as in Ray's documentation, "Ray Generators"
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from assay.bench.compare.asked import built, code_of
from assay.bench.compare.group import Group, Lost, measured
from assay.bench.compare.machine import machine, versions
from assay.bench.compare.plan import Plan
from assay.bench.compare.settings import Settings
from assay.core.errors import AssayError
from assay.tasks import resolve

if TYPE_CHECKING:
    from assay.core.transformer import Transformer

TRIES = 3  # workers that one prompt's cells may lose in a row before they are given up
AHEAD = 2  # tasks submitted for each that can run, so that no worker waits for the driver


def address_of(on: str) -> str:
    """The cluster's address in `ray:ADDRESS`, empty for `ray`. Raises AssayError for anything else, or without Ray."""
    name, colon, address = str(on).partition(":")
    if name != "ray" or (colon and not address):
        raise AssayError(f"on={on!r}: write ray for this machine's cores, or ray:ADDRESS for a cluster")
    try:
        import ray  # noqa: F401
    except ImportError:
        raise AssayError("Ray is not installed: pip install 'assay[ray]'") from None
    return address


def measured_on(
    address: str,
    model: Transformer,
    plan: Plan,
    work: Sequence[Group],
    settings: Settings,
    say: Callable[[str], None],
    saw: Callable[[dict[str, Any]], None],
) -> Iterator[dict[str, Any]]:
    """The records of all groups' cells, in the order they are finished. `saw` is told of each machine that measures.

    Raises Lost at the end where cells remain whose workers died again and again.
    """
    import ray

    with _connected(address):
        share, at_once = _room(settings.device)
        task = ray.remote(max_retries=0, **share)(_work)
        sent = ray.put(model)  # once, not with every task
        says = {"cwd": os.getcwd(), "threads": torch.get_num_threads(), "versions": versions()}
        waiting = [(group, 0) for group in reversed(work)]
        running: dict[Any, tuple[Group, int, set[str]]] = {}
        lost: list[str] = []
        try:
            while waiting or running:
                while waiting and len(running) < AHEAD * at_once:
                    group, tries = waiting.pop()
                    code = {c.policy: plan.code.get(c.policy, "") for c in group.cells}
                    running[task.remote([sent], group, settings, {**says, "code": code})] = group, tries, set()
                say(f"{min(len(running), at_once)} prompts at once")
                [stream], _ = ray.wait(list(running), num_returns=1)
                group, tries, finished = running[stream]
                try:
                    found = ray.get(next(stream))
                except StopIteration:
                    del running[stream]
                except ray.exceptions.RayTaskError as error:
                    raise (error.cause or error) from None  # what was raised there is what would have been raised here
                except ray.exceptions.RayError as error:
                    del running[stream]
                    tries = 1 if finished else tries + 1
                    left = group.without(finished)
                    if left is not None and tries < TRIES:
                        waiting.append((left, tries))
                    elif left is not None:
                        lost.append(f"{group.says} ({len(left.cells)} cells: {_reason(error)})")
                else:
                    if "cell" in found:
                        finished.add(found["cell"])
                        yield found
                    else:
                        saw(found)
        finally:
            for stream in running:
                ray.cancel(stream, force=True)
    if lost:
        raise Lost(
            f"workers died {TRIES} times over each of {len(lost)} prompts, such as {lost[0]}; "
            "every other cell is finished and kept, the same command tries these again"
        )


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """A connection to the cluster, or to one that lives as long as this; one that the caller has made is used and kept."""
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        what = f"the Ray cluster at {address}" if address else "a Ray cluster of this machine"
        raise AssayError(f"{what} cannot be used: {str(error).strip().splitlines()[0]}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _room(device: str) -> tuple[dict[str, Any], int]:
    """What one task reserves, and how many fit at once. A task has as many processors as the driver has threads, if a machine has."""
    import ray

    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    largest = max((m.get("CPU", 0) for m in machines), default=0)
    if largest < 1:
        raise AssayError("no machine of the Ray cluster offers a processor: start it with --num-cpus")
    share = {"num_cpus": min(torch.get_num_threads(), int(largest))}
    if device.startswith("cuda"):
        share["num_gpus"] = 1
        if not any(m.get("GPU") for m in machines):
            raise AssayError("no machine of the Ray cluster has an accelerator: choose --device cpu")
    fit = [min(m.get("CPU", 0) // share["num_cpus"], m.get("GPU", 0) if "num_gpus" in share else 1e9) for m in machines]
    return share, max(1, int(sum(fit)))


def _work(sent: list[Any], group: Group, settings: Settings, says: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """On a worker: what machine this is, then the records of the group's cells."""
    torch.set_num_threads(says["threads"])
    if os.path.isdir(says["cwd"]):
        os.chdir(says["cwd"])  # paths of parts and files mean what they mean to the driver
    if versions() != says["versions"]:
        raise AssayError(f"{socket.gethostname()} has {versions()}, the driver {says['versions']}: install the same")
    for policy, code in says["code"].items():
        if policy != "full" and code_of(policy) != code:
            raise AssayError(f"{socket.gethostname()} has another version of {policy}: copy the driver's files there")
    yield machine(settings.device)
    policies = {policy: built(policy) for policy in says["code"]}
    yield from measured(_model(sent[0]), resolve(group.task), policies, group, settings)


@lru_cache(maxsize=1)
def _model(sent: Any) -> Transformer:
    import ray

    return ray.get(sent)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
