"""Texts of unlike lengths and scripts, for tests that compare tokenizers and encoders."""

TEXTS = [
    "A cat.",
    "",
    "Un été à la plage, naïve Größe!",
    "The quick brown fox jumps over the lazy dog, and nobody minds. " * 9,
    "中文 text 🙂 with [SEP] and [MASK] in it\n\tand antidisestablishmentarianism x_1=3.14",
    "Quarterly revenue rose five per cent.",
]
