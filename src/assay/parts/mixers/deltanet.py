"""DeltaNet: a matrix memory that corrects what it holds under a key instead of adding to it, and never decays.

S_t = S_{t-1} + b_t k_t (v_t - S_{t-1}^T k_t)^T,  o_t = S_t^T q_t, with unit q and k and a writing strength b_t in (0, 1) from
the token. q, k, v pass a short causal convolution and silu; o passes an RMS norm of each head.
x: "batch tokens width"; S: "batch heads key_dim value_dim".

seam: mixer
row: -
source: Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule (arXiv:2406.06484)
object: DeltaNet
aliases: delta_net
"""

from __future__ import annotations

from assay.parts.mixers.delta import DeltaRule
from assay.parts.mixers.recurrent import draw_xavier


class DeltaNet(DeltaRule):
    """`expand`: value_dim over head_dim. `taps`: of the convolution. `chunk`: tokens solved at once."""

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int | None = None,
        expand: float = 1.0,
        taps: int = 4,
        chunk: int = 64,
        eps: float = 1e-5,
    ) -> None:
        super().__init__("deltanet", width, heads, head_dim, expand, taps, chunk, eps)
        draw_xavier(self, 2**-2.5)
