"""The list of what is known to be broken names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
README = Path(__file__).with_name("README.md")
NODE = re.compile(r"`([\w/]+\.py)::(\w+)`")
NUM_COMBINATIONS = 23


def tables() -> list[list[list[str]]]:
    """The cells of each table's rows, without its heading."""
    parts = README.read_text().split("\n## ")[1:]
    rows = [[line.strip("|").split("|") for line in part.splitlines() if line.startswith("|")][2:] for part in parts]
    return [[[cell.strip() for cell in row] for row in table] for table in rows]


NODES = sorted({node for table in tables() for row in table for cell in row for node in NODE.findall(cell)})


@cache
def named_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("node", NODES, ids="::".join)
def test_every_test_that_is_named_exists(node: tuple[str, str]) -> None:
    assert node[1] in named_in(TESTS / node[0])


def test_every_combination_is_shown_and_kept_away() -> None:
    combinations, checks = tables()
    assert len(combinations) == NUM_COMBINATIONS
    for combination, _, shown, never in combinations:
        assert NODE.search(shown), combination
        assert NODE.search(never), combination
    for check, refused in checks:
        assert NODE.search(refused), check
