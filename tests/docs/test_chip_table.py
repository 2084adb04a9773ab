"""The tables of docs/ascend.md say what the code does: what each chip computes with, and which versions are a pair."""

from __future__ import annotations

import re

import pytest

from tests.docs.chip_table import CHINESE, ENGLISH, Words, candidates_table, chosen_table
from tests.docs.markdown import between, sections
from text_generation_kernels.npu.soc import A1, A2, A3, I310P
from text_generation_launcher.doctor.versions import cann_released_with

PAGES = (("docs/ascend.md", ENGLISH), ("docs/ascend.zh.md", CHINESE))


@pytest.mark.parametrize(("page", "words"), PAGES)
def test_what_each_chip_computes_with_is_what_the_code_chooses_there(page: str, words: Words) -> None:
    assert between(page, "chosen") == chosen_table(words), f"put this into {page}:\n{chosen_table(words)}"


@pytest.mark.parametrize(("page", "words"), PAGES)
def test_the_candidates_of_each_op_are_listed_in_their_order(page: str, words: Words) -> None:
    assert between(page, "candidates") == candidates_table(words), f"put this into {page}:\n{candidates_table(words)}"


@pytest.mark.parametrize("page", [page for page, _ in PAGES])
def test_versions_that_belong_together_do_so_for_the_doctor_too(page: str) -> None:
    rows = [row for section in sections(page) for row in section.table_rows if re.match(r"\d+\.\d", row[0])]
    assert len(rows) > 5
    for cann, torch, torch_npu, _ in rows:
        assert torch_npu.split(".post")[0] == torch
        assert cann_released_with(torch_npu) in (cann, None), torch_npu
    assert any(cann_released_with(torch_npu) for _, _, torch_npu, _ in rows)


@pytest.mark.parametrize("page", [page for page, _ in PAGES])
def test_chips_are_told_by_the_ids_that_the_code_goes_by(page: str) -> None:
    rows = [row for section in sections(page) for row in section.table_rows if re.fullmatch(r"\d+–\d+", row[-2])]
    assert [row[2] for row in rows] == [f"{f.ids.start}–{f.ids.stop - 1}" for f in (A1, I310P, A2, A3)]
