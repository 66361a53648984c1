"""What instruments share: the vectors that pass a site, texts run whole or in pieces, and what a change does to the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.sites import edit, matching, record
from assay.core.transformer import Transformer
from assay.training import Batch, masked_cross_entropy


def vectors(value: Float[Tensor, "..."], axes: Sequence[int] = (-1,)) -> Float[Tensor, "n dim"]:
    """What passes a site as vectors: `axes` are flattened into one vector, in the order given; all others count vectors.

    Of a residual stream "batch tokens width" (-1,) gives one vector a token; of heads "batch heads tokens dim", (1, 3) joins
    the heads of a token; of a recurrent state "batch heads key_dim value_dim", (-1,) gives its rows, (-2, -1) whole heads.
    Raises AssayError for axes that the value does not have, and for its first, the batch.
    """
    moved = _last(value, axes)
    return moved.reshape(-1, moved.shape[-len(axes) :].numel())


def restored(
    rows: Float[Tensor, "n dim"], like: Float[Tensor, "..."], axes: Sequence[int] = (-1,)
) -> Float[Tensor, "..."]:
    """The inverse of `vectors`: a value of the shape and dtype of `like`."""
    shape = _last(like, axes).shape
    return rows.reshape(shape).movedim(tuple(range(-len(axes), 0)), tuple(axes)).to(like)


def _last(value: Tensor, axes: Sequence[int]) -> Tensor:
    places = [axis % value.ndim for axis in axes if -value.ndim <= axis < value.ndim]
    if not axes or len(places) < len(axes) or len(set(places)) < len(places) or 0 in places:
        raise AssayError(
            f"axes {tuple(axes)} make no vectors of a value of shape {tuple(value.shape)}: name some of its axes once each,"
            " the batch (0) not among them"
        )
    return value.movedim(tuple(axes), tuple(range(-len(axes), 0)))


def run(
    model: Transformer, tokens: Int[Tensor, "batch tokens"], piece: int | None = None, *, logits: str = "all"
) -> Float[Tensor, "batch tokens vocab"] | None:
    """Logits of a text, read whole or, with a state, in pieces of `piece` tokens: 1 is token by token, as in decoding."""
    if piece is None:
        return model(tokens, logits=logits)[0]
    if piece < 1:
        raise AssayError(f"pieces of {piece} tokens: a piece has at least one")
    state = model.start(len(tokens))
    found = [model(part, state, logits=logits)[0] for part in tokens.split(piece, 1)]
    return None if logits == "none" else torch.cat(found, 1)


@torch.no_grad()
def collect(
    model: Transformer,
    site: str,
    tokens_batches: Iterable[Int[Tensor, "batch tokens"]],
    *,
    axes: Sequence[int] = (-1,),
    piece: int | None = None,
    most: int | None = None,
) -> Float[Tensor, "n dim"]:
    """The vectors that pass one site while the model reads batches of texts, the first `most` of them, in float32 at least.

    Texts are unpadded. A recurrent state passes its site once a piece, so `piece` says how often it is looked at. Raises
    AssayError where the site is none of the model's or does not fire, and where there is no text.
    """
    sites = matching(model, site)
    if len(sites) > 1:
        raise AssayError(f"{site!r} names {len(sites)} sites ({sites[0]}, {sites[1]} ...); name one")
    if sites[0].endswith(".attn.state") and piece is None:
        raise AssayError(f"{site} passes only in a run with a state, once a piece: give piece=1")
    after_blocks = sites[0].startswith(("final_norm", "logits"))
    found: list[Tensor] = []
    for tokens in tokens_batches:
        with record(model, site) as tape:
            run(model, tokens, piece, logits="all" if after_blocks else "none")
        found += [vectors(value, axes) for value in tape.all(sites[0])]
        if most is not None and sum(map(len, found)) >= most:
            break
    if not found:
        raise AssayError(f"no text was given to collect {site} from")
    joined = torch.cat(found)[:most]
    return joined if joined.dtype == torch.float64 else joined.float()


def differences(
    model: Transformer,
    site: str,
    tokens_batches: Sequence[Int[Tensor, "batch tokens"]],
    changes: dict[str, Callable[[Tensor], Tensor]],
    piece: int | None = None,
) -> dict[str, tuple[float, float]]:
    """For each change of what passes `site`, and for the run as it is ("clean"): the loss of predicting the next token, and
    the Kullback-Leibler divergence of the predictions from the clean run's, both in nats, means over the tokens.
    """
    sums = dict.fromkeys(["clean", *changes], (0.0, 0.0))
    total = 0
    for tokens in tokens_batches:
        count = len(tokens) * (tokens.shape[1] - 1)
        if count < 1:
            raise AssayError("a text of one token has no next token to predict")
        batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool))
        clean = None
        for name in sums:
            with edit(model, {site: changes[name]}) if name in changes else nullcontext():
                logits = run(model, tokens, piece)
            loss, _ = masked_cross_entropy(logits, batch)
            given = F.log_softmax(logits[:, :-1].double(), -1)
            clean = given if clean is None else clean
            apart = (clean.exp() * (clean - given)).sum(-1).mean()
            sums[name] = (sums[name][0] + loss.item() * count, sums[name][1] + apart.item() * count)
        total += count
    if not total:
        raise AssayError("no text was given to measure on")
    return {name: (loss / total, apart / total) for name, (loss, apart) in sums.items()}
