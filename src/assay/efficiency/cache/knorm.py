"""Keep the tokens whose keys are short: keys of small norm tend to receive much attention.

score = -||k||, for each key-value head, on keys as they are stored. The paper spares the first two layers; here every
growing layer is treated alike.

seam: policy
row: -
source: Devoto et al. 2024, A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression (arXiv:2406.11430)
object: Knorm
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from assay.core.dtypes import wide
from assay.core.policy import Policy
from assay.core.store import Store


class Knorm(Policy):
    """Rotation does not change a norm, so before or after makes no difference."""

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        # the first layer's keys of one word differ by rounding alone: that must not decide between them
        return -wide(store.flat().k).norm(dim=-1).float()
