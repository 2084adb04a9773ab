"""Options: three sources in order, every spelling of each type, and messages that name the culprit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from text_generation_cli.options import Source, Values, all_variables, option, parse, to_arguments, to_environment


@dataclass(frozen=True)
class Example:
    count: int = option(default=1, minimum=0, maximum=9, short="c", help="a count")
    port: int = option(default=3000, minimum=0, maximum=65535, help="a port")
    ratio: float = option(default=0.5, help="100% of a ratio")
    limit: int | None = option(default=None, minimum=1, aliases=("old_limit",), help="a limit")
    word: str | None = option(default=None, choices=("Red", "green"), help="a word")
    name: str = option(default="x", help="a name")
    quick: bool = option(default=False, short="q", help="a switch")
    careful: bool = option(default=True, help="a switch that is on")
    sharded: bool | None = option(default=None, help="not a switch")
    sizes: tuple[int, ...] = option(default=(1, 2), by_environment=True, help="sizes")
    origins: tuple[str, ...] = option(default=(), help="origins")
    hostname: str = option(default="0.0.0.0", address=True, help="an address")
    key: str | None = option(default=None, secret=True, help="a key")
    quiet: bool = option(default=False, reads_environment=False, help="no variable")
    idle: int = option(default=0, help="nothing", no_effect="it is a test")
    chip: int = option(default=0, npu_only=True, help="nothing on a CPU")


@dataclass(frozen=True)
class Command:
    model: str = option(positional=True, help="the model")
    folder: str = option(default="here", positional=True, help="the folder")
    quick: bool = option(default=False, help="a switch")


def read(argv: str = "", **environ: str) -> Example:
    return parse("prog", Example, argv.split(), environ).build(Example)


def fail(capsys: pytest.CaptureFixture[str], argv: list[str], **environ: str) -> str:
    with pytest.raises(SystemExit) as exit_info:
        parse("prog", Example, argv, environ)
    assert exit_info.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: prog [OPTIONS]\nprog: error: ")
    return captured.err.splitlines()[1]


@pytest.mark.parametrize(
    ("field", "flag", "variable", "from_flag", "from_variable"),
    [
        ("count", "--count=7", {"COUNT": "3"}, 7, 3),
        ("ratio", "--ratio -1.5", {"RATIO": "2"}, -1.5, 2.0),
        ("limit", "--limit 5", {"LIMIT": "6"}, 5, 6),
        ("word", "--word red", {"WORD": "GREEN"}, "Red", "green"),
        ("name", "--name a", {"NAME": "b"}, "a", "b"),
        ("quick", "--quick", {"QUICK": "false"}, True, False),
        ("sharded", "--sharded false", {"SHARDED": "true"}, False, True),
        ("sizes", "--sizes 4,8", {"SIZES": "16"}, (4, 8), (16,)),
        ("origins", "--origins a --origins b", {"ORIGINS": "c, d"}, ("a", "b"), ("c", "d")),
    ],
)
def test_command_line_beats_environment_beats_default(
    field: str, flag: str, variable: dict[str, str], from_flag: object, from_variable: object
) -> None:
    for argv, environ, wanted, source in (
        (flag, variable, from_flag, Source.COMMAND_LINE),
        ("", variable, from_variable, Source.ENVIRONMENT),
        ("", {}, getattr(Example(), field), Source.DEFAULT),
    ):
        values = parse("prog", Example, argv.split(), environ)
        assert getattr(values.build(Example), field) == wanted
        assert values.source(field) is source
        assert values.get(field) == wanted


@pytest.mark.parametrize("word", ["true", "1", "yes", "on", "True", "ON"])
def test_switch_takes_every_word_for_true(word: str) -> None:
    assert read(QUICK=word).quick
    assert read(f"--quick {word}").quick
    assert read(f"--quick={word}").quick


@pytest.mark.parametrize("word", ["false", "0", "no", "off", "False", "OFF"])
def test_switch_takes_every_word_for_false(word: str) -> None:
    assert not read(CAREFUL=word).careful
    assert not read(f"--careful {word}").careful
    assert not read(f"--careful={word}").careful


def test_empty_variable_of_a_switch_is_false() -> None:
    assert not read(CAREFUL="").careful


def test_switch_can_be_negated_by_its_name() -> None:
    assert not read("--no-careful").careful


def test_switch_leaves_the_next_word_to_a_positional_argument() -> None:
    settings = parse("prog", Command, ["--quick", "model"], {}).build(Command)
    assert settings == Command(model="model", folder="here", quick=True)


@pytest.mark.parametrize(
    "argv", ["--old_limit 4", "--old-limit=4", "--limit 4", "--old_limit=4", "--limit=+4"], ids=lambda argv: argv
)
def test_dashes_and_underscores_and_older_names_are_the_same(argv: str) -> None:
    assert read(argv).limit == 4


def test_underscores_in_a_value_stay() -> None:
    assert read("--name=a_b").name == "a_b"
    assert read("--name a_b=c").name == "a_b=c"


@pytest.mark.parametrize("argv", ["-c 4", "-c4", "-c=4", "-q -c 4"])
def test_short_options(argv: str) -> None:
    settings = read(argv)
    assert settings.count == 4
    assert settings.quick == ("-q" in argv)


def test_older_name_can_be_a_variable() -> None:
    assert read(OLD_LIMIT="4").limit == 4
    assert read(OLD_LIMIT="4", LIMIT="5").limit == 5


def test_option_without_variable_ignores_the_environment() -> None:
    assert not read(QUIET="true").quiet


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["--count", "ten"], "argument --count/-c: 'ten' is not a whole number from 0 to 9"),
        (["--count", "10"], "argument --count/-c: '10' is not a whole number from 0 to 9"),
        (["--count", "1_0"], "argument --count/-c: '1_0' is not a whole number from 0 to 9"),
        (["--count="], "argument --count/-c: '' is not a whole number from 0 to 9"),
        (["--count"], "argument --count/-c: expected one argument"),
        (["--limit", "0"], "argument --limit/--old-limit: '0' is not a whole number of at least 1"),
        (["--ratio", "nan"], "argument --ratio: 'nan' is not a number"),
        (["--word", "blue"], "argument --word: 'blue' is not one of Red, green"),
        (["--quick=maybe"], "argument --quick/-q: 'maybe' is not one of true, 1, yes, on, false, 0, no, off"),
        (["--sharded", "maybe"], "argument --sharded: 'maybe' is not one of true, 1, yes, on, false, 0, no, off"),
        (["--sharded"], "argument --sharded: expected one argument"),
        (["--sizes", "1,b"], "argument --sizes: 'b' is not a whole number"),
        (["--key", ""], "argument --key: its value is not text that is not empty"),
        (["--nonsense", "1"], "unrecognized arguments: --nonsense 1"),
        (["--coun", "1"], "unrecognized arguments: --coun 1"),
        (["stray"], "unrecognized arguments: stray"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_command_line_names_flag_and_what_is_allowed(
    capsys: pytest.CaptureFixture[str], argv: list[str], wanted: str
) -> None:
    assert fail(capsys, argv).startswith(f"prog: error: {wanted} (")


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("COUNT", "ten", "'ten' is not a whole number from 0 to 9"),
        ("COUNT", "", "'' is not a whole number from 0 to 9"),
        ("RATIO", "", "'' is not a number"),
        ("WORD", "", "'' is not one of Red, green"),
        ("NAME", "", "'' is not text that is not empty"),
        ("QUICK", "2", "'2' is not one of true, 1, yes, on, false, 0, no, off"),
        ("OLD_LIMIT", "-1", "'-1' is not a whole number of at least 1"),
    ],
)
def test_bad_variable_is_named_with_what_is_allowed(
    capsys: pytest.CaptureFixture[str], variable: str, value: str, allowed: str
) -> None:
    assert fail(capsys, [], **{variable: value}).startswith(
        f"prog: error: environment variable {variable}: {allowed} ("
    )


def test_missing_positional_argument_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse("prog", Command, [], {})
    assert exit_info.value.code == 2
    assert "required: MODEL" in capsys.readouterr().err


def test_port_of_a_kubernetes_service_is_ignored_with_a_warning() -> None:
    values = parse("prog", Example, [], {"PORT": "tcp://10.0.0.1:80"})
    assert values.build(Example).port == 3000
    assert values.warnings == ("PORT=tcp://10.0.0.1:80 is ignored: it is the address of a service, not a number",)


@pytest.mark.parametrize("name", ["abc123", "", "localhost"])
def test_host_name_in_the_environment_falls_back_to_the_default(name: str) -> None:
    values = parse("prog", Example, [], {"HOSTNAME": name})
    assert values.build(Example).hostname == "0.0.0.0"
    assert values.warnings == (f"Invalid hostname, defaulting to 0.0.0.0 (HOSTNAME is '{name}')",)


@pytest.mark.parametrize("name", ["127.0.0.1", "::1"])
def test_address_in_the_environment_is_used(name: str) -> None:
    values = parse("prog", Example, [], {"HOSTNAME": name})
    assert values.build(Example).hostname == name
    assert values.warnings == ()


def test_host_name_on_the_command_line_is_used_if_it_resolves() -> None:
    assert read("--hostname localhost").hostname == "localhost"
    assert read("--hostname not..a..name").hostname == "0.0.0.0"


def test_help_lists_options_with_their_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse("prog", Example, ["--help"], {})
    assert exit_info.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--limit INT, --old-limit INT a limit [env: LIMIT, OLD_LIMIT]" in text
    assert "--ratio FLOAT 100% of a ratio [default: 0.5] [env: RATIO]" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse("prog", Example, ["-V"], {})
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith("prog ")


def test_secret_is_forwarded_by_environment_only_and_never_shown() -> None:
    values = parse("prog", Example, ["--key", "s3cret"], {})
    settings = values.build(Example)
    assert to_environment(settings)["KEY"] == "s3cret"
    assert "s3cret" not in " ".join(to_arguments(settings))
    assert values.given() == {"key": "*** (--key)"}


def test_given_options_say_what_gave_them() -> None:
    values = parse("prog", Example, ["--count", "3"], {"OLD_LIMIT": "4"})
    assert values.given() == {"count": "3 (--count)", "limit": "4 (OLD_LIMIT)"}


def test_options_without_effect_are_said_only_if_given() -> None:
    assert parse("prog", Example, [], {}).without_effect("cpu") == []
    values = parse("prog", Example, ["--idle", "0", "--count", "1"], {"CHIP": "0"})
    assert values.without_effect("npu") == ["--idle has no effect: it is a test"]
    assert values.without_effect("cpu") == ["--idle has no effect: it is a test", "CHIP has no effect on the CPU"]


def test_forwarded_variables_are_those_that_options_read() -> None:
    found = all_variables(Example, Command)
    assert {"COUNT", "OLD_LIMIT", "KEY"} <= found
    assert not {"QUIET", "MODEL", "FOLDER"} & found


text = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1, max_size=8)


@settings(deadline=None)  # other programs on the machine may hold up any one example
@given(
    st.builds(
        Example,
        count=st.integers(0, 9),
        port=st.integers(0, 65535),
        ratio=st.floats(allow_nan=False, allow_infinity=False),
        limit=st.none() | st.integers(1, 10**15),
        word=st.sampled_from([None, "Red", "green"]),
        name=text,
        quick=st.booleans(),
        careful=st.booleans(),
        sharded=st.sampled_from([None, True, False]),
        sizes=st.lists(st.integers(-(10**9), 10**9), max_size=3).map(tuple),
        origins=st.lists(text.filter(lambda word: "," not in word), min_size=1, max_size=3).map(tuple),
        key=st.none() | text,
    )
)
def test_forwarded_settings_arrive_as_they_were(example: Example) -> None:
    values: Values = parse("prog", Example, to_arguments(example), to_environment(example))
    assert values.build(Example) == example


def test_first_declaration_of_a_shared_name_counts_and_internal_ones_are_left_out() -> None:
    @dataclass(frozen=True)
    class First:
        ratio: float = option(default=0.3, help="a ratio")

    @dataclass(frozen=True)
    class Second:
        ratio: float = option(default=1.2, help="a ratio")
        inner: int = option(default=5, internal=True, help="filled in")

    values = parse("prog", (First, Second), [], {"INNER": "7"})
    assert values.build(Second) == Second(ratio=0.3, inner=5)
    assert values.build(Second, inner=9).inner == 9
