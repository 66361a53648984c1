"""One block: a mixer and a channel around a residual stream."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from assay.core.build import build_spec
from assay.core.config import BlockConfig, NormConfig, Spec
from assay.core.errors import AssayError
from assay.core.mixer import Channel, Mixer
from assay.core.norms import Norm
from assay.core.sites import Tap, site
from assay.core.state import State


class Block(nn.Module):
    """f is the mixer, then the channel: pre x + f(norm(x)); post x + norm(f(x)); sandwich x + norm(f(norm(x)));
    after_sum norm(x + f(x)).

    `attn.out` and `mlp.out` are what is added to the residual stream, after a post-norm.
    """

    sites = ("resid_pre", "attn.out", "resid_mid", "mlp.out", "resid_post")
    tap: Tap | None = None

    def __init__(self, width: int, config: BlockConfig, norm: NormConfig) -> None:
        super().__init__()
        if not isinstance(config, BlockConfig):
            raise AssayError(f"a block is described by a BlockConfig, not by a {type(config).__name__}")
        if config.norms not in ("pre", "post", "sandwich", "after_sum"):
            raise AssayError(f"norms {config.norms!r}: choose pre, post, sandwich or after_sum")
        if config.parallel and config.norms == "after_sum":
            raise AssayError("norms 'after_sum': a parallel block has one sum, not two")
        self.config = config
        if config.parallel:
            self.sites = tuple(name for name in Block.sites if name != "resid_mid")
        before, after = config.norms in ("pre", "sandwich"), config.norms != "pre"
        self.mixer: Mixer = _part(config.mixer, "mixer", width)
        self.channel: Channel = _part(config.channel, "channel", width)
        self.norm1 = Norm(width, norm) if before else nn.Identity()
        self.norm2 = Norm(width, norm) if before and not config.shared_norm else nn.Identity()
        self.norm1_post = Norm(width, norm) if after else nn.Identity()
        self.norm2_post = Norm(width, norm) if after else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        state: State | None,
        *,
        positions: Int[Tensor, "batch tokens"],
        valid: Bool[Tensor, "batch tokens"] | None,
    ) -> tuple[Float[Tensor, "batch tokens width"], State | None]:
        x = site(self, "resid_pre", x)
        normed = self.norm1(x)
        mixed, state = self.mixer(normed, state, positions=positions, valid=valid)
        if self.config.norms == "after_sum":
            x = site(self, "resid_mid", self.norm1_post(x + site(self, "attn.out", mixed)))
            x = self.norm2_post(x + site(self, "mlp.out", self.channel(x)))
            return site(self, "resid_post", x), state
        mixed = site(self, "attn.out", self.norm1_post(mixed))
        if self.config.parallel:
            channeled = self._channel(normed if self.config.shared_norm else self.norm2(x))
            return site(self, "resid_post", x + mixed + channeled), state
        x = site(self, "resid_mid", x + mixed)
        return site(self, "resid_post", x + self._channel(self.norm2(x))), state

    def _channel(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        return site(self, "mlp.out", self.norm2_post(self.channel(x)))

    def sited(self) -> dict[str, nn.Module]:
        """Modules with sites by the prefix of their names within the block."""
        found: dict[str, nn.Module] = {"": self, "attn.": self.mixer, "mlp.": self.channel}
        norms = {
            "norm1.": self.norm1,
            "norm1_post.": self.norm1_post,
            "norm2.": self.norm2,
            "norm2_post.": self.norm2_post,
        }
        return found | {prefix: norm for prefix, norm in norms.items() if isinstance(norm, Norm)}


def _part(spec: Spec, seam: str, width: int) -> nn.Module:
    try:
        return build_spec(spec, seam, width)
    except TypeError as error:
        raise AssayError(f"{seam} {getattr(spec, 'part', spec)}: {error}") from None
