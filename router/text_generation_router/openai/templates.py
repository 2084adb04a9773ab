"""Chat templates: where a model keeps them, and messages to text as transformers' `apply_chat_template` renders them.

Templates come with the model and are not trusted: they run in jinja's immutable sandbox and see plain JSON data only.
Knows nothing about requests or tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from text_generation_router.openai.errors import TemplateError

# The token names that templates may use, as tokenizer_config.json spells them.
_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# Stands after the text that the model shall continue, to find the place again in what was rendered.
_MARK = "\ue000continue here\ue000"


class ChatTemplateFileError(Exception):
    """A file that should hold a template cannot be read. The message is for who started the server."""


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` ... `{% endgeneration %}` marks the assistant's words for training; here it is its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """Without underscored names, which could reach Python's internals."""

    def __init__(*args: Any, **attributes: Any) -> None:
        self, *positional = args
        values = dict(*positional, **attributes)
        for name in values:
            _check_attribute(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}: names must not begin with _")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja's own filter would escape HTML and everything that is not ASCII."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise jinja2.exceptions.TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise, strftime_now=_now, namespace=_Namespace)
    return environment


_ENVIRONMENT = _environment()


class ChatTemplate:
    """One template, with the token texts that it may print."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        """Raises: TemplateError if it is not a template."""
        self._tokens = tokens
        try:
            names = jinja2.meta.find_undeclared_variables(_ENVIRONMENT.parse(source))
            self._template = _ENVIRONMENT.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(_reason(error)) from error
        # Whether it shows tools, and calls made in earlier turns, by itself.
        self.shows_tools = "tools" in names
        self.shows_tool_calls = "tool_calls" in source

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> str:
        """The prompt for the assistant's next message, or, if the last message is the assistant's, for more of it.

        Args:
            messages: plain JSON data; `content` is text.
        Raises: TemplateError.
        """
        last = messages[-1]
        if last["role"] != "assistant":
            return self._render(messages, tools, add_generation_prompt=True)
        text = last["content"]
        if not text.strip():
            return self._render(messages, tools, add_generation_prompt=True).rstrip()
        marked = [*messages[:-1], {**last, "content": text + _MARK}]
        rendered = self._render(marked, tools, add_generation_prompt=False)
        # A template may cut white space at the end of a message: then the mark holds it back, and it is cut here.
        place = rendered.rfind(_MARK)
        if place < 0:
            raise TemplateError("the template does not show the assistant's last message, so it cannot be continued")
        return rendered[:place].rstrip()

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool,
    ) -> str:
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._tokens,
            )
        except Exception as error:  # a template may do anything that fails: TypeError, RecursionError, ...
            raise TemplateError(_reason(error)) from error


class ChatTemplates:
    """A model's templates by name, compiled at first use."""

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._tokens = dict(tokens)
        self._compiled: dict[str, ChatTemplate] = {}

    @classmethod
    def from_folder(cls, folder: Path | None, config_path: Path | None = None) -> ChatTemplates:
        """Read what a model's folder has.

        Args:
            config_path: a tokenizer_config.json, or a .jinja file, that goes before the folder's files.
        Raises: ChatTemplateFileError.
        """
        config = {} if folder is None else _read_json(folder / "tokenizer_config.json")
        sources: dict[str, str] = {}
        if config_path is not None:
            if not config_path.is_file():
                raise ChatTemplateFileError(f"--tokenizer-config-path {config_path}: there is no such file")
            if config_path.suffix == ".jinja":
                sources = {"default": _read(config_path)}
            else:
                given = _read_json(config_path)
                sources = _named(given.get("chat_template"), config_path)
                config = {**config, **given}
        if folder is not None and not sources:
            sources = _folder_sources(folder)
        tokens = {name: text for name in _TOKEN_NAMES if (text := _token_text(config.get(name))) is not None}
        return cls(sources, tokens)

    def choose(self, *, with_tools: bool) -> ChatTemplate:
        """The template for a request. Raises TemplateError if there is none."""
        name = "tool_use" if with_tools and "tool_use" in self._sources else "default"
        if name not in self._sources:
            if self._sources:
                known = ", ".join(sorted(self._sources))
                raise TemplateError(f"template not found: there is no `default` among {known}")
            raise TemplateError("template not found")
        if name not in self._compiled:
            self._compiled[name] = ChatTemplate(self._sources[name], self._tokens)
        return self._compiled[name]


def _folder_sources(folder: Path) -> dict[str, str]:
    """The first place that has templates: files of their own, as new models have them, then the older JSON files."""
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return {name: _read(path) for name, path in files.items()}
    for file_name in ("chat_template.json", "tokenizer_config.json", "processor_config.json"):
        path = folder / file_name
        sources = _named(_read_json(path).get("chat_template"), path)
        if sources:
            return sources
    return {}


def _named(value: Any, path: Path) -> dict[str, str]:
    """Templates by name, from a text, a list of {name, template}, or an object."""
    match value:
        case None:
            return {}
        case str():
            return {"default": value}
        case dict() if all(isinstance(source, str) for source in value.values()):
            return dict(value)
        case list() if all(isinstance(item, dict) and {"name", "template"} <= item.keys() for item in value):
            return {str(item["name"]): str(item["template"]) for item in value}
        case _:
            raise ChatTemplateFileError(f"{path}: chat_template must be a text or a list of {{name, template}}")


def _token_text(value: Any) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ChatTemplateFileError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read(path))
    except ValueError as error:
        raise ChatTemplateFileError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ChatTemplateFileError(f"{path} holds {type(content).__name__}, not an object")
    return content


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"syntax error: {error.message} (in line {error.lineno})"
    if isinstance(error, jinja2.TemplateError):
        return error.message or type(error).__name__
    return f"{type(error).__name__}: {error}"
