"""Between a file's tensors and a model's parameters: names translated, joined ones cut, shapes checked, nothing missing, nothing left."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from assay.checkpoints.families.layout import Layout, Part
from assay.checkpoints.safetensors_files import listed
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError
from assay.core.transformer import Transformer


class _NothingAllocated(TorchFunctionMode):
    """`torch.empty` gives one number seen through the whole shape, and drawing into such a tensor does nothing.

    So parameters about to be replaced cost neither memory nor time; everything else (frequencies of positions, say) is computed
    as ever. torch's `meta` device would do it too, but its first use imports for one to two seconds.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.empty:
            shape = args[0] if len(args) == 1 and not isinstance(args[0], int) else args
            return torch.empty((), **kwargs).expand(*shape)
        drawn = args[0] if args else kwargs.get("tensor")
        if isinstance(drawn, Tensor) and _spread(drawn) and re.fullmatch(r"[a-z]\w*[a-z]_", func.__name__):
            return drawn
        return func(*args, **kwargs)


def _spread(tensor: Tensor) -> bool:
    return tensor.ndim > 0 and not any(tensor.stride())


def hollow(config: TransformerConfig) -> Transformer:
    """A model whose matrices have a shape but no memory yet."""
    with _NothingAllocated():
        return Transformer(config)


def fill(model: Transformer, tensors: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> Transformer:
    """Give the hollow model its parameters. A tensor that already is as wanted is taken as it is, mapped from its file.

    In 16 bits, vectors (norms, biases) stay in float32: they cost nothing and computing is in float32.
    """
    short = dtype in (torch.bfloat16, torch.float16)

    def placed(tensor: Tensor) -> Tensor:
        return tensor.to(device, torch.float32 if short and tensor.ndim < 2 else dtype)

    model.load_state_dict({name: placed(tensor) for name, tensor in tensors.items()}, assign=True)
    return model.to(device).eval()


def ours_from(
    layout: Layout, model: Transformer, names: Iterable[str], read: Callable[[str], Tensor], where: Any
) -> dict[str, Tensor]:
    """Tensors by our names. `names` are those of the file, `read` gives one.

    Raises AssayError naming tensors that are missing, left over or of another shape.
    """
    usual = {layout.usual(name): name for name in names}
    usual.pop(None, None)
    wanted = {name: parameter.shape for name, parameter in model.named_parameters()}
    places = {name: layout.theirs(name) for name in wanted}
    needed = {place.name for place in places.values()} | {absorbed.name for absorbed in layout.absorbed}
    if missing := needed - set(usual):
        raise AssayError(f"{where} lacks {len(missing)} tensors that its config asks for: {listed(list(missing))}")
    unused = set(usual) - needed - ({layout.theirs("unembed.weight").name} if model.config.tied else set())
    if unused:
        raise AssayError(
            f"{where} holds {len(unused)} tensors that its config has no place for: {listed(list(unused))}"
        )
    found = {}
    for name, place in places.items():
        whole = read(usual[place.name])
        if not whole.is_floating_point():
            raise AssayError(
                f"{where}: {usual[place.name]} holds {whole.dtype}, codes of a quantisation that is not known here"
            )
        try:
            tensor = layout.fold(name, layout.turn(name, place.cut(whole, model.config)), model.config)
        except RuntimeError:
            raise AssayError(
                f"{where}: {usual[place.name]} has shape {tuple(whole.shape)}, which its config cannot mean "
                f"({tuple(wanted[name])} is asked for)"
            ) from None
        for absorbed in layout.absorbed:
            if absorbed.into == name:
                tensor = absorbed.add(tensor, read(usual[absorbed.name]))
        if tensor.shape != wanted[name]:
            raise AssayError(
                f"{where}: {usual[place.name]} has shape {tuple(whole.shape)}, "
                f"which gives {tuple(tensor.shape)} where its config asks for {tuple(wanted[name])}"
            )
        found[name] = tensor.contiguous()
    return found


def theirs_from(layout: Layout, model: Transformer) -> dict[str, Tensor]:
    """The model's tensors by the names and in the shapes of the family's files."""
    dtype = model.embed.weight.dtype
    if lacking := {name for name, _ in hollow(model.config).named_parameters()} - dict(model.named_parameters()).keys():
        raise AssayError(
            f"{len(lacking)} weights are not there as they are ({listed(list(lacking), 2)}), as after quantize_weights: "
            "save the model that it was made from"
        )
    parts: dict[str, list[tuple[Part, Tensor]]] = {}
    for name, parameter in model.named_parameters():
        place = layout.theirs(name)
        tensor = layout.turn(name, layout.unfold(name, parameter.detach(), model.config)).to(dtype)
        parts.setdefault(place.name, []).append((place, tensor))
    joined = {}
    for name, found in parts.items():
        found.sort(key=lambda part: part[0].index)
        whole = found[0][0].join([tensor for _, tensor in found], model.config)
        joined[layout.spelled(name, model.config)] = whole.contiguous()
    ours = dict(model.named_parameters())
    return joined | {each.name: each.blank(ours[each.into].detach()).to(dtype) for each in layout.absorbed}
