"""A cache in two or four bits: keys by channel over groups of tokens, values by token, the last tokens in full.

code = round((x - low) / scale), scale = (high - low) / (2^bits - 1), over `group` tokens of one channel for keys (some channels of
keys are large in every token) and over `group` neighbouring channels of one token for values. Each key-value head's last `recent`
tokens stay as they are, and so do those older ones that do not fill a group yet.

As in the paper a piece reads its own tokens in full and is encoded afterwards; under a policy, once the policy has chosen, so that
groups are made of what stays. So what is read of a token depends on how far back it lies and in what pieces the text came.
The paper keeps between 0 and `recent` keys in full, encoding all of them at once; here between `recent` and `recent + group`.

seam: format
row: -
source: Liu et al. 2024, KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache (arXiv:2402.02750)
object: Kivi
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from assay.core.arguments import whole
from assay.core.errors import AssayError
from assay.core.format import Encoded, GroupedFormat
from assay.efficiency.quantize.common import Levels, levelled, packed, unpacked


class Kivi(GroupedFormat, Levels):
    """`bits` 2 or 4; `group`: tokens, and channels, that share an offset and a scale, both in float16; `recent`: tokens in full."""

    def __init__(self, bits: int = 2, group: int = 32, recent: int = 128) -> None:
        whole("kivi", group=group)
        whole("kivi", 0, recent=recent)
        if bits not in (2, 4):
            raise AssayError(f"kivi: bits={bits}; choose 2 or 4")
        self.bits, self.recent = bits, recent
        super().__init__(group)

    def encode_keys(self, k: Float[Tensor, "groups group dim"]) -> tuple[Encoded, Encoded]:
        codes, low, scale = levelled(k.float().mT, self.bits)
        return Encoded({"codes": packed(codes.mT, self.bits)}), Encoded({"low": low, "scale": scale})

    def decode_keys(self, own: Encoded, shared: Encoded) -> Float[Tensor, "*rest dim"]:
        codes = unpacked(own.parts["codes"], self.bits).float()
        return codes * shared.parts["scale"].float() + shared.parts["low"].float()
