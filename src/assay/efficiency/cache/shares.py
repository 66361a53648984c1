"""How heads, and layers of one head, share a budget: who shares with whom, and whole tokens that add up."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.store import Store

ONE_HEAD = "one key-value head a layer: there are no heads to share a budget, so the layers share one"


def sharing(stores: Mapping[int, Store]) -> list[list[int]]:
    """Layers that share one total: each by itself where it has several heads, those of one head together."""
    alone = [[layer] for layer, store in stores.items() if store.kv_heads > 1]
    together = [layer for layer, store in stores.items() if store.kv_heads == 1]
    return [*alone, together] if together else alone


def rounded(
    desired: Mapping[int, Float[Tensor, "owners"]], stores: Mapping[int, Store], budget: Int[Tensor, "batch"]
) -> dict[int, Int[Tensor, "owners"]]:
    """Whole numbers next to `desired` that add up, sequence by sequence, to the equal split over these layers.

    No head is given more than it holds; what is left over goes where the fraction cut off is largest, then to any head
    with room.
    """
    batch = len(budget)
    heads = [stores[layer].kv_heads for layer in desired]
    wanted = torch.cat([d.view(batch, -1) for d in desired.values()], 1).double()
    held = torch.cat([torch.tensor(stores[layer].counts).view(batch, -1) for layer in desired], 1)
    held = held.to(wanted.device)
    given = torch.minimum((wanted + 1e-9).floor().long(), held)
    while True:
        left = budget * sum(heads) - given.sum(1)
        room = given < held
        if not bool(((left > 0) & room.any(1)).any()):
            break
        even = (left.clamp(min=0) // room.sum(1).clamp(min=1))[:, None] * room
        if bool(even.any()):
            given = torch.minimum(given + even, held)
            continue
        fraction = (wanted - given).masked_fill(~room, -torch.inf)
        place = fraction.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        given += ((place < left[:, None]) & room).long()
    return {layer: g.reshape(-1) for layer, g in zip(desired, given.split(heads, 1), strict=True)}
