"""What the tests of single mixers share: make one in float64, run it over a whole sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from assay.core.mixer import Mixer

X = torch.randn(2, 70, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def made(kind: type[Mixer], **options: object) -> Mixer:
    """In float64, with every parameter drawn anew, so that norms and biases take part."""
    mixer = kind(16, **{"heads": 2} | options).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in mixer.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64) * 0.3)
    return mixer


def share(source: Mixer, *targets: Mixer) -> None:
    """Give targets the source's parameters of the same name and shape."""
    theirs = dict(source.named_parameters())
    with torch.no_grad():
        for target in targets:
            for name, p in target.named_parameters():
                if name in theirs and theirs[name].shape == p.shape:
                    p.copy_(theirs[name])


def run(mixer: Mixer, x: Tensor = X) -> Tensor:
    return mixer(x, positions=torch.arange(x.shape[1]).expand(len(x), -1))[0]


def heads_of(x: Tensor, heads: int = 2) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
