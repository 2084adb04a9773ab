"""Options declared once: a field of a program's frozen settings class says everything about one option.

From the declarations come the parser, the environment names, the messages and the arguments that a launcher forwards.
Precedence: command line > environment > default. Knows nothing about any particular option or program.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn, TypeVar

from text_generation_cli import __version__
from text_generation_cli.addresses import can_bind

S = TypeVar("S")

TRUE_WORDS = ("true", "1", "yes", "on")
FALSE_WORDS = ("false", "0", "no", "off")
_METADATA_KEY = "option"


class Source(Enum):
    """Where a value came from."""

    COMMAND_LINE = "command line"
    ENVIRONMENT = "environment"
    DEFAULT = "default"


@dataclass(frozen=True)
class Option:
    """What a field's metadata says. The field's name, type and default say the rest."""

    help: str
    short: str = ""  # "p" for -p
    aliases: tuple[str, ...] = ()  # other names, as fields: "max_input_length" is --max-input-length, MAX_INPUT_LENGTH
    variables: tuple[str, ...] = ()  # other environment variables that no flag is named after
    choices: tuple[str, ...] = ()  # words allowed, in any case
    minimum: float | None = None  # inclusive
    maximum: float | None = None  # inclusive
    positional: bool = False  # has no flag and no variable; without a default it must be given
    reads_environment: bool = True
    by_environment: bool = False  # the launcher forwards it as a variable, not as an argument
    secret: bool = False  # by_environment, and its value is never printed
    internal: bool = False  # filled in by the launcher, so not one of the launcher's own options
    hidden: bool = False  # not in the help
    address: bool = False  # an address to bind; nonsense falls back to the default with a warning
    no_effect: str = ""  # why giving it changes nothing yet
    npu_only: bool = False  # giving it changes nothing on the CPU


def option(*, default: Any = dataclasses.MISSING, **details: Any) -> Any:
    """A dataclass field that is an option; `details` are the fields of `Option`."""
    return dataclasses.field(default=default, metadata={_METADATA_KEY: Option(**details)})


@dataclass(frozen=True)
class Given:
    """One value that was given, and by what: a flag, a variable or the name of a positional argument."""

    value: object
    source: Source
    by: str


@dataclass(frozen=True)
class Declaration:
    """One option of one program: its field together with its metadata."""

    name: str
    kind: type  # of one value: bool, int, float or str
    many: bool  # a comma list
    optional: bool  # None means "not given"
    default: object  # dataclasses.MISSING: must be given
    option: Option

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.option.aliases)

    @property
    def flags(self) -> tuple[str, ...]:
        return () if self.option.positional else tuple("--" + name.replace("_", "-") for name in self.names)

    @property
    def variables(self) -> tuple[str, ...]:
        """Environment variables that set it, the first one found wins."""
        if self.option.positional or not self.option.reads_environment:
            return ()
        return (*(name.upper() for name in self.names), *self.option.variables)

    @property
    def is_switch(self) -> bool:
        """Whether the flag alone, without a value, means true."""
        return self.kind is bool and not self.optional

    @property
    def allowed(self) -> str:
        """What a value, or each of a comma list, may be, in words."""
        limits = self.option
        if self.option.choices:
            what = "one of " + ", ".join(self.option.choices)
        elif self.kind is bool:
            what = "one of " + ", ".join((*TRUE_WORDS, *FALSE_WORDS))
        elif self.kind in (int, float):
            what = "a whole number" if self.kind is int else "a number"
            if limits.minimum is not None and limits.maximum is not None:
                what += f" from {limits.minimum:g} to {limits.maximum:.15g}"
            elif limits.minimum is not None:
                what += f" of at least {limits.minimum:g}"
        else:
            what = "text that is not empty"
        return what

    def parse(self, text: str) -> object:
        """The value that `text` spells.

        Raises:
            ValueError: saying what was seen and what is allowed.
        """
        if self.many:
            return tuple(self._parse_one(part.strip()) for part in text.split(",")) if text.strip() else ()
        return self._parse_one(text)

    def _parse_one(self, text: str) -> object:
        value = self._read(text.strip() if self.kind is not str else text)
        if value is None:
            seen = "its value" if self.option.secret else f"'{text}'"
            raise ValueError(f"{seen} is not {self.allowed}")
        return value

    def _read(self, text: str) -> object | None:
        if self.kind is bool:
            return _read_bool(text)
        if self.kind is int:
            return self._in_range(int(text)) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None
        if self.kind is float:
            try:
                return self._in_range(float(text))
            except ValueError:
                return None
        if self.option.choices:
            return next((choice for choice in self.option.choices if choice.lower() == text.lower()), None)
        return text or None

    def _in_range(self, value: float) -> float | None:
        low, high = self.option.minimum, self.option.maximum
        if not math.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
            return None
        return value


def _read_bool(text: str) -> bool | None:
    if text.lower() in TRUE_WORDS:
        return True
    if text == "" or text.lower() in FALSE_WORDS:
        return False
    return None


def declarations(settings: type) -> tuple[Declaration, ...]:
    """The options of a settings class, in the order of its fields."""
    hints = typing.get_type_hints(settings)
    found = []
    for field in dataclasses.fields(settings):
        kind, many, optional = _take_apart(hints[field.name])
        found.append(Declaration(field.name, kind, many, optional, field.default, field.metadata[_METADATA_KEY]))
    return tuple(found)


def _take_apart(hint: Any) -> tuple[type, bool, bool]:
    """(`int`, many, optional) of a hint such as `int | None` or `tuple[int, ...]`."""
    arguments = typing.get_args(hint)
    if isinstance(hint, types.UnionType):
        inner = [argument for argument in arguments if argument is not type(None)]
        assert len(inner) == 1, f"an option's type is one of int, float, bool, str, not {hint}"
        kind, many, _ = _take_apart(inner[0])
        return kind, many, True
    if typing.get_origin(hint) is tuple:
        return arguments[0], True, False
    assert hint in (int, float, bool, str), f"an option's type is one of int, float, bool, str, not {hint}"
    return hint, False, False


class Values:
    """What a command line and an environment say about some options, and where each value came from."""

    def __init__(self, known: Iterable[Declaration], found: Mapping[str, Given], warnings: Sequence[str]):
        self._known = {declaration.name: declaration for declaration in known}
        self._found = dict(found)
        self.warnings = tuple(warnings)  # lines to log once the log is set up

    def source(self, name: str) -> Source:
        """Where the value of the option came from."""
        return self._found[name].source if name in self._found else Source.DEFAULT

    def get(self, name: str) -> object:
        """The value of the option, given or default; None if there is no such option."""
        if name in self._found:
            return self._found[name].value
        return self._known[name].default if name in self._known else None

    def given(self) -> dict[str, str]:
        """Every option that was given, as text for the log: name -> "value (flag or VARIABLE)". Secrets are hidden."""
        return {
            name: f"{'***' if self._known[name].option.secret else _spell(given.value)} ({given.by})"
            for name, given in self._found.items()
        }

    def build(self, settings: type[S], **filled_in: object) -> S:
        """An instance of `settings` with these values; `filled_in` wins over them."""
        fields: dict[str, object] = {}
        for declaration in declarations(settings):
            name = declaration.name
            if name in filled_in:
                fields[name] = filled_in.pop(name)
            elif name in self._found:
                fields[name] = self._found[name].value
            elif name in self._known:
                fields[name] = self._known[name].default
        assert not filled_in, f"{settings.__name__} has no {', '.join(filled_in)}"
        return settings(**fields)

    def without_effect(self, device: str = "") -> list[str]:
        """One line for each option that was given and changes nothing, at all or on `device` ("cpu" or "npu")."""
        lines = []
        for name, given in self._found.items():
            details = self._known[name].option
            if details.no_effect:
                lines.append(f"{given.by} has no effect: {details.no_effect}")
            elif details.npu_only and device == "cpu":
                lines.append(f"{given.by} has no effect on the CPU")
        return lines


def parse(
    program: str,
    settings: type | Sequence[type],
    argv: Sequence[str],
    environ: Mapping[str, str],
    description: str = "",
) -> Values:
    """Read the options of one settings class, or of several at once.

    A name that several classes declare is one option, and the first declaration counts. Of several classes, fields
    that are `internal` are left out. A bad command line or variable ends the process with exit status 2 and a line on
    stderr that names the flag or variable and what is allowed.
    """
    if isinstance(settings, type):
        known = declarations(settings)
    else:
        merged: dict[str, Declaration] = {}
        for one in settings:
            for declaration in declarations(one):
                if not declaration.option.internal:
                    merged.setdefault(declaration.name, declaration)
        known = tuple(merged.values())

    parser = _make_parser(program, known, description)
    arguments = vars(parser.parse_args(_normalise(argv, known)))
    found: dict[str, Given] = {}
    warnings: list[str] = []
    for declaration in known:
        given: Given | None
        if declaration.name in arguments:
            given = _from_command_line(declaration, arguments[declaration.name])
        else:
            try:
                given = _from_environment(declaration, environ, warnings)
            except ValueError as error:
                parser.error(str(error))
        if given is not None and declaration.option.address and not _is_usable(given):
            warnings.append(f"Invalid hostname, defaulting to {declaration.default} ({given.by} is '{given.value}')")
        elif given is not None:
            found[declaration.name] = given
    return Values(known, found, warnings)


def _from_command_line(declaration: Declaration, value: Any) -> Given:
    """What argparse found; it keeps one tuple for each time that a comma list was given."""
    joined = tuple(item for part in value for item in part) if declaration.many else value
    return Given(joined, Source.COMMAND_LINE, declaration.flags[0] if declaration.flags else declaration.name.upper())


def _from_environment(declaration: Declaration, environ: Mapping[str, str], warnings: list[str]) -> Given | None:
    variable = next((name for name in declaration.variables if name in environ), None)
    if variable is None:
        return None
    text = environ[variable]
    if declaration.kind is int and text.startswith("tcp://"):
        # Kubernetes sets <SERVICE>_PORT=tcp://address:port for every service of a namespace.
        warnings.append(f"{variable}={text} is ignored: it is the address of a service, not a number")
        return None
    if declaration.option.address:
        return Given(text, Source.ENVIRONMENT, variable)
    try:
        return Given(declaration.parse(text), Source.ENVIRONMENT, variable)
    except ValueError as error:
        raise ValueError(f"environment variable {variable}: {error}") from None


def _is_usable(address: Given) -> bool:
    return can_bind(str(address.value), resolve=address.source is Source.COMMAND_LINE)


def to_arguments(settings: object) -> list[str]:
    """The command line that gives a program these settings, positional ones first.

    Values that equal the program's own default are left out, so the program must not see the launcher's variables
    (`all_variables`). Options that are forwarded by environment are in `to_environment` instead.
    """
    positional: list[str] = []
    flags: list[str] = []
    for declaration in declarations(type(settings)):
        value = getattr(settings, declaration.name)
        if declaration.option.positional:
            positional.append(_spell(value))
        elif not (declaration.option.by_environment or declaration.option.secret or value == declaration.default):
            flag, text = declaration.flags[0], _spell(value)
            if declaration.is_switch and value is True:
                flags.append(flag)
            elif declaration.is_switch or text.startswith("-"):
                flags.append(f"{flag}={text}")
            else:
                flags += [flag, text]
    return positional + flags


def to_environment(settings: object) -> dict[str, str]:
    """The variables that give a program those of these settings that are forwarded by environment, secrets included."""
    return {
        declaration.variables[0]: _spell(getattr(settings, declaration.name))
        for declaration in declarations(type(settings))
        if (declaration.option.by_environment or declaration.option.secret)
        and getattr(settings, declaration.name) is not None
    }


def all_variables(*settings: type) -> frozenset[str]:
    """Every environment variable that some option of these classes reads."""
    return frozenset(variable for one in settings for item in declarations(one) for variable in item.variables)


def _spell(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(_spell(item) for item in value)
    return str(value)


def _normalise(argv: Sequence[str], known: Sequence[Declaration]) -> list[str]:
    """Rewrite every way to spell an option to `--some-flag=value`, and leave everything else as it is."""
    by_flag = {flag: declaration for declaration in known for flag in declaration.flags}
    by_short = {"-" + item.option.short: item.flags[0] for item in known if item.option.short}
    rest = list(argv)
    result: list[str] = []
    while rest:
        token = rest.pop(0)
        if token == "--":
            return [*result, token, *rest]
        if token[:2] in by_short:
            value = token[2:].removeprefix("=")
            token = by_short[token[:2]] + ("=" + value if value else "")
        flag, equals, value = token.partition("=")
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
        negated = by_flag.get("--" + flag.removeprefix("--no-"))
        declaration = by_flag.get(flag)
        if (
            declaration is None
            and flag.startswith("--no-")
            and negated is not None
            and negated.is_switch
            and not equals
        ):
            result.append("--" + flag.removeprefix("--no-") + "=false")
        elif declaration is None:
            result.append(token)
        elif equals:
            result.append(f"{flag}={value}")
        elif declaration.is_switch:
            has_word = bool(rest) and rest[0].lower() in (*TRUE_WORDS, *FALSE_WORDS)
            result.append(f"{flag}={rest.pop(0) if has_word else 'true'}")
        elif rest and not rest[0].startswith("--"):
            result.append(f"{flag}={rest.pop(0)}")
        else:
            result.append(flag)
    return result


class _Parser(argparse.ArgumentParser):
    """argparse with one short usage line: the full one would hide the message behind sixty options."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"usage: {self.usage}\n{self.prog}: error: {message} (--help lists every option)\n")


def _make_parser(program: str, known: Sequence[Declaration], description: str) -> argparse.ArgumentParser:
    positional = " ".join(item.name.upper() for item in known if item.option.positional)
    parser = _Parser(
        prog=program,
        usage=f"{program} [OPTIONS] {positional}".rstrip(),
        description=description,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("-V", "--version", action="version", version=f"{program} {__version__}")
    for declaration in known:
        details = declaration.option
        arguments: dict[str, Any] = {
            "type": _type_for_argparse(declaration),
            "help": argparse.SUPPRESS if details.hidden else _help_line(declaration).replace("%", "%%"),
        }
        if declaration.many:
            arguments["action"] = "append"
        if details.positional:
            if declaration.default is not dataclasses.MISSING:
                arguments["nargs"] = "?"
            parser.add_argument(declaration.name, metavar=declaration.name.upper(), **arguments)
            continue
        short = ("-" + details.short,) if details.short else ()
        metavar = "{" + ",".join(details.choices) + "}" if details.choices else declaration.kind.__name__.upper()
        parser.add_argument(*declaration.flags, *short, dest=declaration.name, metavar=metavar, **arguments)
    return parser


def _type_for_argparse(declaration: Declaration) -> Callable[[str], object]:
    def parse_text(text: str) -> object:
        try:
            return declaration.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_text


def _help_line(declaration: Declaration) -> str:
    parts = [declaration.option.help]
    if declaration.default not in (None, dataclasses.MISSING, (), ""):
        parts.append(f"[default: {_spell(declaration.default)}]")
    if declaration.variables:
        parts.append(f"[env: {', '.join(declaration.variables)}]")
    if declaration.option.no_effect:
        parts.append(f"(no effect: {declaration.option.no_effect})")
    return " ".join(parts)
