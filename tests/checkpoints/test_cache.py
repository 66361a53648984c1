"""Where converted copies lie and what names them."""

from __future__ import annotations

from pathlib import Path

from assay.checkpoints import cache


def test_the_folder_follows_the_environment(monkeypatch):
    monkeypatch.delenv("ASSAY_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache.cache_folder() == Path.home() / ".cache" / "assay"
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.cache_folder() == Path("/somewhere/assay")
    monkeypatch.setenv("ASSAY_CACHE", "/own")
    assert cache.cache_folder() == Path("/own")


def test_checksums_see_changes_in_large_files_too(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(400_000))
    whole = cache.checksum(path)
    monkeypatch.setattr(cache, "_WHOLE", 1000)
    sampled = cache.checksum(path)
    assert sampled != whole
    for at in (0, 200_000, 399_999):
        data = bytearray(400_000)
        data[at] = 1
        path.write_bytes(data)
        assert cache.checksum(path) != sampled
    path.write_bytes(bytes(400_001))
    assert cache.checksum(path) != sampled


def test_a_copy_appears_whole_or_not_at_all(tmp_path):
    def half(folder):
        (folder / "a").write_text("half")
        raise OSError("broken off")

    assert not cache.store_copy(tmp_path / "x" / "copy", 10, half)
    assert list((tmp_path / "x").iterdir()) == []
    assert cache.store_copy(tmp_path / "x" / "copy", 10, lambda folder: (folder / "a").write_text("whole"))
    assert (tmp_path / "x" / "copy" / "a").read_text() == "whole"


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    assert not cache.store_copy(tmp_path / "file" / "copy", 10, lambda folder: None)
