"""Pages name nothing that is not there: flags, variables, subcommands, messages, files and headings."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.docs.markdown import OUR_PROGRAMS, ROOT, anchors, between, program_of, sections
from text_generation_benchmark.settings import BenchmarkSettings
from text_generation_cli.options import all_variables, declarations
from text_generation_launcher.doctor.command import DoctorSettings
from text_generation_launcher.settings import LauncherSettings
from text_generation_router.settings import RouterSettings
from text_generation_server import __main__ as server
from text_generation_server.report.settings import ReportSettings
from text_generation_server.settings import DownloadSettings, ServeSettings

PAGES = ("README.md", "README.zh.md", "docs/ascend.md", "docs/ascend.zh.md", "docs/doctor.md", "docs/migrating.md")
LINKING = (*PAGES, "CONTRIBUTING.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))

_LAUNCHER = (LauncherSettings, RouterSettings, ServeSettings, DownloadSettings)
# What each program takes; those that are not here take what any of these does.
SETTINGS: dict[str, tuple[type, ...]] = {
    "text-generation-launcher": _LAUNCHER,
    "text-generation-launcher doctor": (DoctorSettings, *_LAUNCHER),
    "text-generation-router": (RouterSettings,),
    "text-generation-server serve": (ServeSettings,),
    "text-generation-server download-weights": (DownloadSettings,),
    "text-generation-server report": (ReportSettings,),
    "text-generation-benchmark": (BenchmarkSettings,),
}
EVERYWHERE = {"--help", "--version"}
# Read by CANN, torch_npu or a library of Python's, and by nothing of ours.
OTHERS_VARIABLES = {"HCCL_CONNECT_TIMEOUT"}
# In capitals, and no variable.
OTHER_NAMES = {"FRACTAL_NZ"}


def flags_of(settings: tuple[type, ...]) -> set[str]:
    return {flag for one in settings for declared in declarations(one) for flag in declared.flags} | EVERYWHERE


@cache
def strings_of_sources() -> tuple[str, ...]:
    """Every constant string of the packages, those within f-strings too."""
    found = []
    for package in ("cli", "launcher", "router", "server", "kernels", "bench"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return tuple(found)


@pytest.mark.parametrize("page", PAGES)
def test_every_flag_is_an_option_of_the_program_that_it_is_shown_with(page: str) -> None:
    anywhere = set().union(*(flags_of(settings) for settings in SETTINGS.values()))
    for section in sections(page):
        for program, flag in section.flags_of_programs:
            allowed = flags_of(SETTINGS[program]) if program in SETTINGS else anywhere
            assert flag in allowed, f"{page}, {section.title}: {program} has no {flag}"


@pytest.mark.parametrize("page", PAGES)
def test_every_variable_is_read_by_an_option_or_stands_in_the_sources(page: str) -> None:
    options = all_variables(*{one for settings in SETTINGS.values() for one in settings})
    for section in sections(page):
        for name in section.variables - OTHERS_VARIABLES - OTHER_NAMES:
            assert name in options or name in strings_of_sources(), f"{page}, {section.title}: nothing reads {name}"


@pytest.mark.parametrize("page", PAGES)
def test_every_subcommand_is_there(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    server.main(["--help"])
    usage = capsys.readouterr().out
    for section in sections(page):
        commands = [command for block in section.blocks for command in block.commands]
        for text in [*commands, *section.spans]:
            program, _, command = (program_of(text) or "").partition(" ")
            if program == "text-generation-server" and command:
                assert f"\n  {command} " in usage, f"{page}, {section.title}: {text}"
            elif program in OUR_PROGRAMS and command:
                assert f"{program} {command}" in SETTINGS, f"{page}, {section.title}: {text}"


@pytest.mark.parametrize("page", ["docs/ascend.md", "docs/ascend.zh.md"])
def test_messages_that_are_explained_are_ones_that_the_programs_say(page: str) -> None:
    table = between(page, "messages").splitlines()[2:]
    messages = [row.split("`")[1] for row in table]
    assert len(messages) > 10
    for message in messages:
        assert any(message in text for text in strings_of_sources()), message


@pytest.mark.parametrize("page", LINKING)
def test_every_link_within_the_repository_leads_somewhere(page: str) -> None:
    for section in sections(page):
        for link in section.links:
            target, _, anchor = link.partition("#")
            if "://" in target:
                continue
            path = Path(page).parent / target if target else Path(page)
            assert (ROOT / path).exists(), f"{page}: {link}"
            if anchor and path.suffix == ".md":
                assert anchor in anchors(str(path)), f"{page}: {link}"
