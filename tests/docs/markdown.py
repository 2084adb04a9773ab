"""What the documentation's pages hold, section by section: headings, code, links, and the options that they name.

Knows Markdown as far as these pages use it, and no option of any program.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
OUR_PROGRAMS = (
    "text-generation-launcher",
    "text-generation-router",
    "text-generation-server",
    "text-generation-benchmark",
)

_HEADING = re.compile(r"(#{1,6}) (.+)")
_FENCE = re.compile(r"```(\w*)")
_SPAN = re.compile(r"`([^`]+)`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FLAG = re.compile(r"--[a-z][a-z0-9-]*[a-z0-9]")
# Two words at least: one alone is as often an acronym.
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b(?!\.)")


@dataclass
class CodeBlock:
    """A fenced block."""

    kind: str  # the word behind its fence: "console" for commands; "" for a drawing, whose words may be translated
    lines: list[str] = field(default_factory=list)

    @property
    def without_comments(self) -> str:
        """Its text but for what stands behind a # that follows a blank."""
        return "\n".join(re.sub(r"(^|\s+)# .*", "", line) for line in self.lines)

    @property
    def commands(self) -> list[str]:
        """What is typed, continued lines joined."""
        joined = re.sub(r"\\\n\s*", "", self.without_comments)
        return [line.removeprefix("$ ") for line in joined.splitlines() if line.startswith("$ ")]


@dataclass
class Section:
    """A heading and what stands below it, up to the next heading of any level."""

    level: int  # 0: what stands above the first heading
    title: str
    lines: list[str] = field(default_factory=list)  # but for code blocks
    blocks: list[CodeBlock] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def spans(self) -> list[str]:
        """Code within the text."""
        return [" ".join(span.split()) for span in _SPAN.findall(self.text)]

    @property
    def code_in_title(self) -> list[str]:
        return _SPAN.findall(self.title)

    @property
    def table_rows(self) -> list[list[str]]:
        """The cells of its tables, heads included."""
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in self.lines if line.startswith("|")]
        return [row for row in rows if not set("".join(row)) <= set("-:")]

    @property
    def links(self) -> list[str]:
        return _LINK.findall(f"{self.title}\n{self.text}")

    @property
    def flags(self) -> set[str]:
        """Flags of our programs: in their commands, and in code that begins with a flag."""
        return {flag for _, flag in self.flags_of_programs}

    @property
    def flags_of_programs(self) -> set[tuple[str, str]]:
        """(program and subcommand, flag); ("", flag) where no program is named."""
        found: set[tuple[str, str]] = set()
        commands = [command for block in self.blocks for command in block.commands]
        for text in [*commands, *self.spans]:
            program = program_of(text)
            if program is not None:
                found |= {(program, flag) for flag in _FLAG.findall(text)}
        return found

    @property
    def variables(self) -> set[str]:
        """Names in capitals, in code of any kind."""
        code = [*self.spans, *(line for block in self.blocks for line in block.lines)]
        indented = [line for line in self.lines if line.startswith("    ")]
        return {name for text in [*code, *indented] for name in _VARIABLE.findall(text)}


def program_of(text: str) -> str | None:
    """Whose flags a piece of code names: one of our programs with its subcommand, "" for nobody's, None for others'."""
    words = [word for word in text.split() if "=" not in word or word.startswith("-")]
    if not words or words[0].startswith("--"):
        return ""
    if words[0] not in OUR_PROGRAMS:
        return None
    has_command = len(words) > 1 and re.fullmatch(r"[a-z-]+", words[1]) and not words[1].startswith("-")
    return " ".join(words[: 2 if has_command else 1])


def sections(page: str) -> list[Section]:
    """The sections of a page, by its path within the repository."""
    found = [Section(0, "")]
    block: CodeBlock | None = None
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        fence = _FENCE.fullmatch(line)
        heading = _HEADING.fullmatch(line)
        if block is not None:
            if fence:
                block = None
            else:
                block.lines.append(line)
        elif fence:
            block = CodeBlock(fence[1])
            found[-1].blocks.append(block)
        elif heading:
            found.append(Section(len(heading[1]), heading[2]))
        else:
            found[-1].lines.append(line)
    assert block is None, f"{page}: a code block does not end"
    return found


def anchors(page: str) -> Iterator[str]:
    """What a link may name behind #, as GitHub makes it of headings."""
    for section in sections(page):
        kept = [c for c in section.title.lower() if c in " -_" or unicodedata.category(c)[0] in "LN"]
        yield "".join(kept).replace(" ", "-")


def between(page: str, marker: str) -> str:
    """What stands between a page's comments "marker: begin" and "marker: end"."""
    text = (ROOT / page).read_text(encoding="utf-8")
    match = re.search(rf"<!-- {marker}: begin -->\n(.*?)\n?<!-- {marker}: end -->", text, re.DOTALL)
    assert match is not None, f"{page} has no place for {marker}"
    return match[1]
