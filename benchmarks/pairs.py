"""Which policy here is which press there, with the arguments that make both the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pair:
    """`theirs` is written in kvpress's names, with `dropped` for the share to drop. `equal`: whether the same tokens stay.

    kvpress pins nothing beyond what a method itself keeps, hence `sink=0, recent=0`.
    """

    name: str
    ours: str
    theirs: str
    equal: bool = True


SNAP = "snapkv(window=4, kernel=5, pool=mean, sink=0, recent=0)"
SNAP_PRESS = "window_size=4, kernel_size=5"

PAIRS = [
    Pair("knorm", "knorm(sink=0, recent=0)", "KnormPress(dropped)"),
    Pair("keydiff", "keydiff(sink=0, recent=0)", "KeyDiffPress(dropped)"),
    Pair("snapkv", SNAP, f"SnapKVPress(dropped, {SNAP_PRESS})"),
    Pair("tova", "tova(sink=0, recent=1)", "TOVAPress(dropped)"),
    Pair("expected attention", "expected_attention(sink=4, recent=0)", "ExpectedAttentionPress(dropped, n_sink=4)"),
    Pair("streaming_llm", "streaming_llm(sink=4, recent=0)", "StreamingLLMPress(dropped, n_sink=4)"),
    Pair("lagkv", "lagkv(lag=32, sink=4, recent=0)", "LagKVPress(dropped, n_sink=4, lag_size=32)"),
    Pair("pyramidkv", f"pyramidkv({SNAP}, beta=20)", f"PyramidKVPress(dropped, {SNAP_PRESS}, beta=20)"),
    Pair(
        "chunkkv",
        "chunkkv(keydiff(sink=0, recent=0), length=20)",
        "ChunkKVPress(KeyDiffPress(dropped), chunk_length=20)",
    ),
    Pair("adakv, no safeguard", f"adakv({SNAP}, safeguard=0)", f"AdaKVPress(SnapKVPress(dropped, {SNAP_PRESS}), 0.0)"),
    Pair(
        "adakv, safeguard 0.2",
        f"adakv({SNAP}, safeguard=0.2)",
        f"AdaKVPress(SnapKVPress(dropped, {SNAP_PRESS}), 0.2)",
        equal=False,
    ),
]
