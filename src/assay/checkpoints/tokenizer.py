"""Text to token ids and back, around a `tokenizers.Tokenizer`, whatever file it came from."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.checkpoints.files import read_json
from assay.core.errors import AssayError

if TYPE_CHECKING:
    import tokenizers


class Tokenizer:
    """What a model's text is cut into.

    `bos`, `eos`, `pad`: ids or None. `adds_bos`: whether the model was trained with `bos` in front, which is when `encode` adds it.
    `sep`: what closes every text for an encoder (whose `bos` is its `[CLS]`), None for models that generate.
    `ends`: every id that ends a generation, `eos` first. `chat_template`: a Jinja text or None.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos: int | None = None,
        eos: int | None = None,
        pad: int | None = None,
        adds_bos: bool = False,
        sep: int | None = None,
        ends: tuple[int, ...] = (),
        chat_template: str | None = None,
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend, self.bos, self.eos, self.pad = backend, bos, eos, pad
        self.adds_bos = adds_bos and bos is not None
        self.sep = sep
        self.ends = tuple(dict.fromkeys(([] if eos is None else [eos]) + list(ends)))
        self.chat_template = chat_template

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size()

    def encode(self, text: str, bos: bool = True) -> list[int]:
        """Token ids; `bos=False` leaves out what marks the beginning (and, for an encoder, the end), for text that continues another."""
        return self._prefix(bos) + self.backend.encode(text, add_special_tokens=False).ids + self._suffix(bos)

    def decode(self, ids: list[int]) -> str:
        """Text of the ids, without special tokens such as `<bos>`."""
        return self.backend.decode(list(ids), skip_special_tokens=True)

    def spans(self, text: str, bos: bool = True) -> tuple[list[int], list[tuple[int, int]]]:
        """Token ids and, for each, the characters [start, end) of `text` it covers; (0, 0) for `bos` and `sep`."""
        found = self.backend.encode(text, add_special_tokens=False)
        prefix, suffix = self._prefix(bos), self._suffix(bos)
        return prefix + found.ids + suffix, [(0, 0)] * len(prefix) + found.offsets + [(0, 0)] * len(suffix)

    def apply_chat(self, messages: list[dict[str, str]], *, answer: bool = True) -> str:
        """The conversation as the model was trained to see it; encode it with `bos=False`, since templates write `bos` themselves.

        `messages`: dicts with `role` and `content`. `answer`: end where the model's turn begins. Raises AssayError without a template.
        """
        if self.chat_template is None:
            raise AssayError("this checkpoint has no chat template: it is a base model; give it plain text")
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise AssayError(f"the chat template refuses these messages: {message}")

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
        environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
        names = {
            "bos_token": self._token(self.bos),
            "eos_token": self._token(self.eos),
            "pad_token": self._token(self.pad),
        }
        try:
            return environment.from_string(self.chat_template).render(
                messages=messages, add_generation_prompt=answer, **names
            )
        except TemplateError as error:
            raise AssayError(f"the chat template cannot be used: {error}") from None

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, which transformers reads too."""
        self.backend.save(str(folder / "tokenizer.json"), pretty=False)
        config: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            **{f"{name}_token": self._token(index) or None for name, index in self._special().items()},
            "assay_ends": list(self.ends),
        }
        if self.sep is None:  # an encoder's tokenizer.json says itself what it adds; transformers would replace that
            config["add_bos_token"] = self.adds_bos
        if self.chat_template:
            config["chat_template"] = self.chat_template
        (folder / "tokenizer_config.json").write_text(
            json.dumps(config, indent=1, ensure_ascii=False), encoding="utf-8"
        )

    def _prefix(self, bos: bool) -> list[int]:
        return [self.bos] if bos and self.adds_bos and self.bos is not None else []

    def _suffix(self, bos: bool) -> list[int]:
        return [self.sep] if bos and self.sep is not None else []

    def _special(self) -> dict[str, int | None]:
        if self.sep is None:
            return {"bos": self.bos, "eos": self.eos, "pad": self.pad}
        return {"cls": self.bos, "sep": self.sep, "pad": self.pad}

    def _token(self, index: int | None) -> str:
        return "" if index is None else self.backend.id_to_token(index)


def tokenizer_from_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of a Hugging Face folder, None where the folder has none.

    Raises AssayError for a file that cannot be read, and for a SentencePiece model without its tokenizer.json.
    """
    path = folder / "tokenizer.json"
    if not path.exists():
        if (folder / "tokenizer.model").exists():
            raise AssayError(
                f"{folder} has a tokenizer.model but no tokenizer.json; save it once with transformers' AutoTokenizer"
            )
        return None
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise AssayError(f"{path} cannot be read: {error}") from None
    config = read_json(folder / "tokenizer_config.json", {})
    model = read_json(folder / "config.json", {})
    generation = read_json(folder / "generation_config.json", {})

    def special(name: str) -> int | None:
        token = config.get(f"{name}_token", model.get(f"{name}_token_id"))
        token = token.get("content") if isinstance(token, dict) else token
        token = token[0] if isinstance(token, list) else token
        return backend.token_to_id(token) if isinstance(token, str) else token

    backend.no_padding()
    cls, sep = special("cls"), special("sep")
    added = backend.encode("", add_special_tokens=True).ids
    encoder = sep is not None and added == [cls, sep]
    bos = cls if encoder else special("bos")
    ends = [end for source in (generation, model) for end in _many(source.get("eos_token_id"))]
    template = folder / "chat_template.jinja"
    return Tokenizer(
        backend,
        bos=bos,
        eos=special("eos"),
        pad=special("pad"),
        adds_bos=bool(config.get("add_bos_token", bos is not None and added[:1] == [bos])),
        sep=sep if encoder else None,
        ends=tuple(config.get("assay_ends") or ends),
        chat_template=template.read_text(encoding="utf-8")
        if template.exists()
        else _template(config.get("chat_template")),
    )


def _many(value: Any) -> list[int]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _template(value: Any) -> str | None:
    if isinstance(value, list):  # several named ones
        return next((entry["template"] for entry in value if entry.get("name") == "default"), None)
    return value
