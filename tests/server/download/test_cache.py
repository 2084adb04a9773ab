"""Folders that are made once: whole or absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from text_generation_server.download import DownloadError
from text_generation_server.download.cache import make_once


def fill(folder: Path) -> None:
    (folder / "file").write_text("whole")


def test_folder_is_built_the_first_time_only(tmp_path: Path) -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        fill(folder)

    target = tmp_path / "cache" / "model"
    assert make_once(target, build) == make_once(target, build) == target
    assert len(built) == 1
    assert (target / "file").read_text() == "whole"


def test_failed_build_leaves_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        fill(folder)
        raise DownloadError("no such thing")

    target = tmp_path / "model"
    with pytest.raises(DownloadError, match="no such thing"):
        make_once(target, build)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    assert (make_once(target, fill) / "file").is_file()


def test_what_a_killed_process_left_is_thrown_away(tmp_path: Path) -> None:
    left = tmp_path / "model.partial"
    left.mkdir()
    (left / "half").write_text("")
    assert [path.name for path in make_once(tmp_path / "model", fill).iterdir()] == ["file"]
    assert not left.exists()


def test_cache_that_cannot_be_written_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match=r"Cannot write .*: set TEXT_GENERATION_CACHE to a folder that can be"):
        make_once(tmp_path / "file" / "model", fill)


def test_full_disk_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        with open("/dev/full", "wb") as full:
            full.write(b"x")

    with pytest.raises(DownloadError, match=r"No space left for .*model: free some, or set TEXT_GENERATION_CACHE"):
        make_once(tmp_path / "model", build)
