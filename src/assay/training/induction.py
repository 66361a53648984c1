"""Starting weights with induction heads in them, which small models otherwise need thousands of steps to find.

Olsson et al. 2022 (arXiv:2209.11895): a head of one layer notes at each token what stood before it, heads of the next look
for the token whose note matches. Both are only where training starts: every weight is trained from there on.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.mixer import Mixer
from assay.core.transformer import Transformer

REST = 0.3  # share of their random weights that planted heads keep, so that no two are alike


@torch.no_grad()
def plant_induction(model: Transformer, seed: int, *, query: int, key: int) -> Transformer:
    """Let the second block look for the token whose predecessor `key` places back is the one `query` places back from here.

    `query=0, key=1` finds what followed earlier copies of the current token. The first block must be softmax attention with
    rotating positions and biases, the second softmax attention with heads of the same size. Raises AssayError otherwise.
    """
    first, second = (block.mixer for block in model.blocks[:2])
    offsets = [offset for offset in (key, query) if offset]
    look_back(first, offsets)
    size, group = second.head_dim, second.heads // second.kv_heads
    if size != first.head_dim:
        raise AssayError(f"heads of {first.head_dim} and of {size} dimensions cannot match each other")
    note = first.out.weight[:, :size].T
    sought = first.out.weight[:, size : 2 * size].T if query else first.v.weight[:size]
    generator = torch.Generator().manual_seed(seed)
    for head in range(second.kv_heads):
        turn = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
        _mix(second.k.weight[head * size : (head + 1) * size], turn @ note)
        for reader in range(head * group, (head + 1) * group):
            _mix(second.q.weight[reader * size : (reader + 1) * size], turn @ sought)
    return model


@torch.no_grad()
def look_back(mixer: Mixer, offsets: Sequence[int], sharpness: float = 8.0) -> None:
    """Let the first heads of a softmax mixer read the token `offsets[head]` places back, each into dimensions of its own.

    Their biases say so: a key's is a constant vector turned to position `max(offsets)`, a query's the same vector turned to
    `max(offsets) - offset`, so that after rotation their product is greatest at that distance; `sharpness` is its height
    over the number of rotating pairs, in nats. Raises AssayError without positions or biases.
    """
    position, size = getattr(mixer, "position", None), getattr(mixer, "head_dim", 0)
    if position is None or mixer.q.bias is None:
        raise AssayError("heads that look back need softmax attention with positions that rotate, and with biases")
    same = torch.full((1, 1, 1, size), (sharpness / (2 * mixer.scale)) ** 0.5)

    def turned(places: int) -> Tensor:
        return position.rotate(same, same, torch.tensor([[places]]))[0].flatten()

    group = mixer.heads // mixer.kv_heads
    for head in range(-(-len(offsets) // group)):
        rows = slice(head * size, (head + 1) * size)
        mixer.k.bias[rows] = turned(max(offsets))
        mixer.k.weight[rows] *= 0.1
        mixer.v.weight[rows] = mixer.v.weight[:size]
    notes = torch.linalg.qr(mixer.out.weight[:, : len(offsets) * size])[0]
    for head, offset in enumerate(offsets):
        rows = slice(head * size, (head + 1) * size)
        mixer.q.bias[rows] = turned(max(offsets) - offset)
        mixer.q.weight[rows] *= 0.1
        mixer.out.weight[:, rows] = notes[:, rows]


def _mix(weight: Tensor, planted: Tensor) -> None:
    weight.mul_(REST).add_(planted)
