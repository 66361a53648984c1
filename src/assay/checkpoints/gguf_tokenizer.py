"""Build a tokenizer from a GGUF file's metadata.

Two kinds: SentencePiece-like BPE with byte fallback (Gemma, Llama 2), whose merges are not stored and follow from the vocabulary, and
byte-level BPE (GPT-2, Llama 3, Qwen), whose merges are stored and whose way of splitting text has a name.
"""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from assay.checkpoints import tokenizer as ours
from assay.core.errors import AssayError

_CONTROL, _USER_DEFINED = 3, 4
_SPACE = "\u2581"

_TAIL = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+" + _TAIL
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+" + _TAIL
# words that end in small letters, or else in capitals
_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s"
    r"|%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = _WORDS % ("", "", r"\p{N}")
_GPT4O = _WORDS % (*[r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"] * 2, r"\p{N}{1,3}")
_DIGITS = r"\p{N}"  # numbers digit by digit, the rest by GPT-2's rule
# vocabularies that hold whole words which their merges do not reach, and whose texts begin with `bos` where the file says nothing
_LLAMA3_NAMES = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano"
_WHOLE_WORDS = {*_LLAMA3_NAMES.split(), "tekken"}
_KINDS = {
    _LLAMA3: f"{_LLAMA3_NAMES} dbrx smaug-bpe",
    _QWEN2: "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez",
    _QWEN35: "qwen35",
    _TEKKEN: "tekken",
    _GPT4O: "gpt-4o llama4 kanana2 talkie minimax-m2",
    _DIGITS: "smollm starcoder refact command-r",
    None: "gpt-2 gpt2 default phi-2 mpt olmo jais",  # the rule that the library's ByteLevel has built in
}
SPLITS = {name: pattern for pattern, names in _KINDS.items() for name in names.split()}  # by tokenizer.ggml.pre


def tokenizer_from_gguf(metadata: dict[str, Any]) -> ours.Tokenizer:
    """The tokenizer that `tokenizer.ggml.*` describes. Raises AssayError for a kind that is not supported."""

    def given(key: str, default: Any = None) -> Any:
        return metadata.get(f"tokenizer.ggml.{key}", default)

    kind, split = given("model"), given("pre", "default")
    if given("tokens") is None:
        raise AssayError("this GGUF holds no vocabulary (tokenizer.ggml.tokens)")
    if kind == "llama":
        gemma = str(metadata.get("general.architecture", "")).startswith("gemma")
        backend = _sentencepiece(given, gemma)
    elif kind == "gpt2" and split in SPLITS:
        backend = _byte_level(given, split)
    else:
        known = ", ".join(f"gpt2/{name}" for name in SPLITS)
        raise AssayError(f"this GGUF's tokenizer is {kind}/{split}; supported are llama (SentencePiece BPE), {known}")
    _add_tokens(backend, given)
    bos, eos = given("bos_token_id"), given("eos_token_id")
    # llama.cpp's defaults where the file does not say
    adds_bos = bool(given("add_bos_token", kind == "llama" or split in _WHOLE_WORDS)) and bos is not None
    if adds_bos:
        token = backend.id_to_token(bos)
        backend.post_processor = processors.TemplateProcessing(
            single=[token, "$A"], pair=[token, "$A", token, "$B"], special_tokens=[(token, bos)]
        )
    ends = tuple(end for key in ("eot_token_id", "eom_token_id") if (end := given(key)) is not None)
    template = metadata.get("tokenizer.chat_template")
    return ours.Tokenizer(
        backend, bos=bos, eos=eos, pad=given("padding_token_id"), adds_bos=adds_bos, ends=ends, chat_template=template
    )


def _sentencepiece(given, gemma: bool) -> Tokenizer:
    tokens = given("tokens")
    if gemma:
        # runs of spaces are stored as spaces, but looked up after spaces have become the block character; and the scores do
        # not follow the order in which merges were learned, the indices do
        tokens = [_SPACE * len(token) if token.isspace() and " " in token else token for token in tokens]
        ranks = range(0, -len(tokens), -1)
    else:
        ranks = given("scores").tolist()
    unknown = given("unknown_token_id", 0 if not gemma else 3)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    model = models.BPE(
        vocab=vocabulary, merges=_merges(tokens, ranks), fuse_unk=True, byte_fallback=True, unk_token=tokens[unknown]
    )
    backend = Tokenizer(model)
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    prefix = not gemma and bool(given("add_space_prefix", True))
    if gemma:
        backend.normalizer = normalizers.Replace(" ", _SPACE)
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        scheme = "first" if prefix else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Sequence(decoding + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    return backend


def _merges(tokens: list[str], ranks) -> list[tuple[str, str]]:
    """Every way to put a token together from two others; better ranks first, then longer left halves."""
    known = set(tokens)
    found = [
        (rank, cut, len(token) - cut, token)
        for token, rank in zip(tokens, ranks, strict=True)
        for cut in range(1, len(token))
        if token[:cut] in known and token[cut:] in known
    ]
    found.sort(key=lambda item: item[:3], reverse=True)
    return [(token[:cut], token[cut:]) for _, cut, _, token in found]


def _byte_level(given, split: str) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(given("tokens"))}
    merges = [tuple(merge.split(" ", 1)) for merge in given("merges", [])]
    pattern = SPLITS[split]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=split in _WHOLE_WORDS))
    if pattern is _QWEN2:
        backend.normalizer = normalizers.NFC()
    if pattern is None:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pattern is _DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    else:
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_only])
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_tokens(backend: Tokenizer, given) -> None:
    """Control tokens and user-defined ones are found whole in a text, before anything is split."""
    kinds = given("token_type")
    kinds = [] if kinds is None else kinds.tolist()
    marked = [
        (token, kind) for token, kind in zip(given("tokens"), kinds, strict=False) if kind in (_CONTROL, _USER_DEFINED)
    ]
    known = backend.get_vocab(with_added_tokens=False)
    backend.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in marked if k == _CONTROL and t in known]
    )
    backend.add_tokens(
        [AddedToken(t, normalized=False, special=False) for t, k in marked if k == _USER_DEFINED and t in known]
    )
