"""Rotary positions: each pair of coordinates turns by an angle that grows with the token's position.

(x1, x2) at position p -> (x1 cos a - x2 sin a, x2 cos a + x1 sin a), a = p * theta^(-2i/dim), pairs (i, i + dim/2), or
neighbours if `interleaved`. The usual scalings: linear, dynamic, llama3, yarn, longrope.

seam: position
row: -
source: Su et al. 2021 (arXiv:2104.09864); YaRN (arXiv:2309.00071); LongRoPE (arXiv:2402.13753); Llama 3.1's rule from its published config
object: Rope
"""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.mixer import Position

NEEDED = {
    "linear": {"factor"},
    "dynamic": {"factor", "original"},
    "llama3": {"factor", "low", "high", "original"},
    "yarn": {"factor", "original"},
    "longrope": {"short", "long", "original"},
}


class Rope(Position):
    """`fraction` of each head's coordinates rotate. `scaling`: None or a dict with `kind` and that kind's numbers:

    linear: factor · dynamic: factor, original · llama3: factor, low, high, original · yarn: factor, original, [beta_fast,
    beta_slow, attention_factor] · longrope: short, long (a divisor of each pair's frequency), original, [attention_factor];
    `original` is the context length the model was trained at. Past that length `dynamic` turns every new key by the
    frequencies of the longest text so far, and `longrope` by its long divisors, as published, so there cutting a text changes it.
    """

    def __init__(
        self,
        head_dim: int,
        *,
        theta: float = 10_000.0,
        scaling: dict[str, Any] | None = None,
        fraction: float = 1.0,
        interleaved: bool = False,
    ) -> None:
        super().__init__()
        self.dim = int(head_dim * fraction)
        if self.dim % 2 or not 0 < self.dim <= head_dim:
            raise AssayError(f"rope turns pairs: it cannot turn {self.dim} of {head_dim} coordinates")
        self.interleaved = interleaved
        self.turns = _turns(self.dim, float(theta), json.dumps(scaling, sort_keys=True), interleaved)

    def rotate(
        self,
        q: Float[Tensor, "batch heads tokens dim"],
        k: Float[Tensor, "batch kv_heads tokens dim"],
        positions: Int[Tensor, "batch tokens"],
    ) -> tuple[Float[Tensor, "batch heads tokens dim"], Float[Tensor, "batch kv_heads tokens dim"]]:
        cos, sin = self.turns(positions, q.dtype)
        if positions.shape[1] > 1 and not self.interleaved and not torch.is_grad_enabled():
            return self._turn_halves(q, cos, sin), self._turn_halves(k, cos, sin)
        both = torch.cat([q, k], 1)  # one token: fewer kernels count, not what they move
        turned = self._turn(both[..., : self.dim], cos, sin)
        if self.dim < both.shape[-1]:
            turned = torch.cat([turned, both[..., self.dim :]], -1)
        return turned[:, : q.shape[1]], turned[:, q.shape[1] :]

    def _turn_halves(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Many tokens: one new tensor, each half written over."""
        half, out = self.dim // 2, torch.empty_like(x)
        torch.mul(x[..., : self.dim], cos, out=out[..., : self.dim])
        out[..., :half].addcmul_(x[..., half : self.dim], sin[..., :half])
        out[..., half : self.dim].addcmul_(x[..., :half], sin[..., half:])
        out[..., self.dim :] = x[..., self.dim :]
        return out

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.interleaved:
            swapped = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            swapped = x.roll(self.dim // 2, -1)
        return torch.addcmul(x * cos, swapped, sin)


class _Turns:
    """cos and sin of the angles of one kind of rope. All layers of a forward pass ask for the same positions, so the last
    answer is remembered, and layers of one kind share one of these. No buffers: angles need float32 in any model."""

    def __init__(self, dim: int, theta: float, scaling: dict[str, Any] | None, interleaved: bool) -> None:
        self.dim, self.theta, self.scaling, self.interleaved = dim, theta, scaling, interleaved
        with torch.device("cpu"):
            self.frequencies, self.gain = scaled(dim, theta, scaling)
        self.last: tuple[Tensor, torch.dtype, Tensor, Tensor] | None = None

    def __call__(self, positions: Int[Tensor, "batch tokens"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Each "batch 1 tokens dim"; sin has the sign that a turn needs."""
        last = self.last
        if last is None or last[0] is not positions or last[1] != dtype:
            precise = torch.promote_types(dtype, torch.float32)
            frequencies = self._frequencies(positions).to(positions.device, precise)
            angle = positions[:, None, :, None].to(precise) * frequencies
            cos, sin = angle.cos() * self.gain, angle.sin() * self.gain
            if self.interleaved:
                cos, sin = cos.repeat_interleave(2, -1), torch.stack([-sin, sin], -1).flatten(-2)
            else:
                cos, sin = torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)
            self.last = last = (positions, dtype, cos.to(dtype), sin.to(dtype))
        return last[2], last[3]

    def _frequencies(self, positions: Int[Tensor, "batch tokens"]) -> Float[Tensor, "pairs"]:
        if not self.scaling or self.scaling["kind"] not in ("dynamic", "longrope"):
            return self.frequencies
        original = self.scaling["original"]
        longest = max(int(positions.max()) + 1, original)
        if self.scaling["kind"] == "longrope":
            return self.frequencies if longest == original else _divided(self.dim, self.theta, self.scaling["long"])
        factor = self.scaling["factor"]
        stretch = (factor * longest / original - (factor - 1)) ** (self.dim / (self.dim - 2))
        return plain(self.dim, self.theta * stretch)


@functools.cache
def _turns(dim: int, theta: float, scaling: str, interleaved: bool) -> _Turns:
    return _Turns(dim, theta, json.loads(scaling), interleaved)


def plain(dim: int, theta: float) -> Float[Tensor, "pairs"]:
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)


def scaled(dim: int, theta: float, scaling: dict[str, Any] | None) -> tuple[Float[Tensor, "pairs"], float]:
    """Angles per token for each pair, and what cos and sin are multiplied by."""
    base = plain(dim, theta)
    if not scaling:
        return base, 1.0
    kind = scaling.get("kind")
    if kind not in NEEDED:
        raise AssayError(f"rope scaling {kind!r}: choose {', '.join(NEEDED)}")
    if missing := NEEDED[kind] - scaling.keys():
        raise AssayError(f"rope scaling {kind} needs {', '.join(sorted(missing))}")
    if kind == "yarn":
        return _yarn(base, dim, theta, scaling)
    if kind == "llama3":
        return _llama3(base, scaling), 1.0
    if kind == "longrope":
        # both, so that a list of a wrong length is an error at once
        short, _ = (_divided(dim, theta, scaling[name]) for name in ("short", "long"))
        gain = scaling.get("attention_factor")
        return short, 1.0 if gain is None else gain
    return (base / scaling["factor"] if kind == "linear" else base), 1.0


def _divided(dim: int, theta: float, divisors: list[float]) -> Float[Tensor, "pairs"]:
    if len(divisors) != dim // 2:
        raise AssayError(f"rope scaling longrope: {len(divisors)} divisors for {dim // 2} pairs; give one for each")
    return plain(dim, theta) / torch.tensor(divisors, dtype=torch.float32)


def _llama3(base: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Long waves are slowed by `factor`, short ones are left, between them a linear blend."""
    turns = scaling["original"] * base / (2 * math.pi)
    blend = ((turns - scaling["low"]) / (scaling["high"] - scaling["low"])).clamp(0, 1)
    return base * (blend + (1 - blend) / scaling["factor"])


def _yarn(base: Tensor, dim: int, theta: float, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    factor, original = scaling["factor"], scaling["original"]

    def pair_with(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(pair_with(scaling.get("beta_fast") or 32)), 0)
    high = min(math.ceil(pair_with(scaling.get("beta_slow") or 1)), dim - 1)
    ramp = ((torch.arange(dim // 2) - low) / max(high - low, 1e-3)).clamp(0, 1)
    gain = scaling.get("attention_factor")
    gain = (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0) if gain is None else gain
    return base * (1 - ramp) + base / factor * ramp, gain
