"""The Chinese pages say what the English ones say: the same headings, commands, flags, variables and tables."""

from __future__ import annotations

import re

import pytest

from tests.docs.markdown import Section, sections

PAIRS = (("README.md", "README.zh.md"), ("docs/ascend.md", "docs/ascend.zh.md"))


def counterparts(english: str, chinese: str) -> list[tuple[Section, Section]]:
    return list(zip(sections(english), sections(chinese), strict=True))


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_headings_have_the_same_levels_and_order(english: str, chinese: str) -> None:
    levels = [[section.level for section in sections(page)] for page in (english, chinese)]
    assert levels[0] == levels[1]
    for ours, theirs in counterparts(english, chinese):
        assert ours.code_in_title == theirs.code_in_title, theirs.title


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_commands_are_the_same_but_for_comments(english: str, chinese: str) -> None:
    for ours, theirs in counterparts(english, chinese):
        assert [block.kind for block in ours.blocks] == [block.kind for block in theirs.blocks], theirs.title
        for block, other in zip(ours.blocks, theirs.blocks, strict=True):
            # A drawing without a kind may hold words.
            assert not block.kind or block.without_comments == other.without_comments, theirs.title


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_each_section_names_the_same_flags_and_variables(english: str, chinese: str) -> None:
    for ours, theirs in counterparts(english, chinese):
        assert ours.flags == theirs.flags, theirs.title
        assert ours.variables == theirs.variables, theirs.title


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_tables_have_the_same_rows_and_columns(english: str, chinese: str) -> None:
    for ours, theirs in counterparts(english, chinese):
        shapes = [[len(row) for row in section.table_rows] for section in (ours, theirs)]
        assert shapes[0] == shapes[1], theirs.title


@pytest.mark.parametrize(("english", "chinese"), PAIRS)
def test_both_pages_link_to_each_other_and_to_the_same_places(english: str, chinese: str) -> None:
    def plain(section: Section) -> list[str]:
        """Links, whatever the language of the page and of the headings that they lead to."""
        return sorted(link.partition("#")[0].replace(".zh.md", ".md") for link in section.links)

    for ours, theirs in counterparts(english, chinese):
        assert plain(ours) == plain(theirs), theirs.title
    for page, other in ((english, chinese), (chinese, english)):
        assert other.rpartition("/")[2] in sections(page)[1].links, f"{page} does not lead to {other}"


@pytest.mark.parametrize("page", [chinese for _, chinese in PAIRS])
def test_what_shall_be_bold_is_shown_bold(page: str) -> None:
    """CommonMark does not end bold text behind punctuation where a letter follows, as it does without blanks."""
    for line in (line for section in sections(page) for line in section.lines):
        outside_and_bold = line.split("**")
        assert len(outside_and_bold) % 2 == 1, line
        for bold, after in zip(outside_and_bold[1::2], outside_and_bold[2::2], strict=True):
            assert not (re.search(r"[。，：；！？）”]$", bold) and re.match(r"\w", after)), line
