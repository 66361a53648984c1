"""What loads and what is refused, family by family: run as a module it writes docs/families.md, which a test holds to be current.

The third column is the labels of the models that the parity test measures, the fourth those of the config entries that
test_page.py shows to be refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.checkpoints.families import test_llama
from tests.checkpoints.parity import cases_of, families, random_model

from assay.core import registry

PATH = Path(__file__).parents[2] / "docs" / "families.md"


def refused_by(family: str) -> dict[str, dict[str, Any]]:
    """Config entries that the family refuses, by what the page calls them."""
    return import_module(f"tests.checkpoints.families.test_{family}").REFUSED


def _config(folder: Path, **entries: Any) -> Path:
    random_model(test_llama.CASES["2"]).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    return folder


def _quantised(folder: Path) -> Path:
    return _config(folder, quantization_config={"quant_method": "gptq", "bits": 4})


def _remote(folder: Path) -> Path:
    return _config(folder, architectures=["TheirOwnForCausalLM"], auto_map={"AutoModelForCausalLM": "modeling.Theirs"})


def _adapter(folder: Path) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/base"}))
    return folder


def _pickle(folder: Path) -> Path:
    (_config(folder) / "model.safetensors").rename(folder / "pytorch_model.bin")
    return folder


# what the page says, a folder that shows it, what the error says
ANY_FAMILY: tuple[tuple[str, Callable[[Path], Path], str], ...] = (
    ("Weights that another tool has quantised (GPTQ, AWQ, bitsandbytes, FP8 ...): their codes are not read. Load the "
     "weights that they were made from, or a GGUF file.", _quantised, "was quantised by another tool (gptq)"),
    ("Architectures that bring code of their own (`auto_map`): no code of a checkpoint is ever run. A family of this list "
     "loads natively, whatever its config names besides.", _remote, "code of its own (auto_map), which is never run"),
    ("A LoRA adapter whose base is not here: name it, `assay.load(\"./base\", adapter=\"./lora\")` or `./base+./lora`.",
     _adapter, "is an adapter of someone/base, which is no folder here"),
    ("Pickles (`pytorch_model.bin`, `.pt`): opening one may run code.", _pickle, "may run code when opened and is never read"),
)  # fmt: skip

_HEAD = """# Families of checkpoints

A Hugging Face folder (config.json and safetensors) or a GGUF file of these families loads into the one Transformer, and is written
back as a folder that `transformers` reads. *Models measured*: those whose logits are held to `transformers`' own
([parity.md](parity.md)). *Refused*: what the family's config.json may say that is not supported; loading then ends with one line
that names it. *GGUF*: the architecture as GGUF names it, where such files are read.

{table}

## Refused of any family
{general}

## LoRA
An adapter's folder as PEFT writes it is merged on load: `assay.load("./base", adapter="./lora")`, or by name wherever a model is
named, `assay compare ./base+./lora`. Alone, `./lora` brings the base that its `base_model_name_or_path` names, if that is a folder
here. The base may be a folder, a GGUF file, a bundled model or a hub id. Plain and rank-stabilised LoRA with patterns of ranks and
alphas are merged; DoRA, trained biases, `modules_to_save`, initialisations that change the base (PiSSA, OLoRA ...) and other kinds
of adapters are refused by name.

Written by `python -m tests.checkpoints.page`.
"""


def page() -> str:
    lines = ["| family | what it is | models measured | refused | GGUF |", "|" + " --- |" * 5]
    for name in families():
        family, card = registry.get(name, "family"), registry.find(name, "family")
        gguf = f"`{family.gguf_architecture}`" if family.gguf.names else "–"
        refused = "; ".join(refused_by(name))
        lines.append(
            f"| {name} (`{'`, `'.join(family.architectures)}`) | {card.says} | {'; '.join(cases_of(name))} | {refused} | {gguf} |"
        )
    general = "\n".join(f"- {says}" for says, _, _ in ANY_FAMILY)
    return _HEAD.format(table="\n".join(lines), general=general)


if __name__ == "__main__":
    PATH.write_text(page(), encoding="utf-8")
