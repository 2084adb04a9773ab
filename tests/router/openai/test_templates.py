"""Chat templates render as transformers renders them, from the place where transformers would find them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.checkpoints import make_tokenizer
from text_generation_router.openai.errors import TemplateError
from text_generation_router.openai.templates import ChatTemplate, ChatTemplateFileError, ChatTemplates

Messages = list[dict[str, Any]]

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'"
    " }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "indented blocks": """
    {%- for message in messages %}
        {% if message.role == 'user' %}
            U: {{ message.content }}
        {% else %}
            O: {{ message.content | trim }}{{ eos_token }}
        {% endif %}
    {% endfor %}
    {% if add_generation_prompt %}
    A:
    {%- endif %}
    """,
    "tokens": "{{ bos_token }}{{ unk_token }}{{ pad_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}"
    "{% endfor %}{{ sep_token is defined }}{{ cls_token is defined }}",
    "json": "{{ messages | tojson }}|{{ messages[0] | tojson(indent=2) }}|"
    "{{ messages[0].content | tojson(ensure_ascii=true) }}|{{ {'b': 1, 'a': '<&>'} | tojson(sort_keys=true) }}",
    "date": "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set x = 1 %}{{ m.content }}"
    "{% endgeneration %}{% else %}{{ m.content }}{{ x is defined }}{% endif %}{% endfor %}",
    "break and continue": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}"
    "{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "namespace and neighbours": "{% set ns = namespace(system='', count=0) %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.system = m.content %}{% else %}{% set ns.count = ns.count + 1 %}"
    "{{ loop.previtem.role if loop.previtem is defined else 'first' }}>{{ m.role }}:{{ m.content }};"
    "{{ loop.nextitem.role if loop.nextitem is defined else 'last' }}{% endif %}{% endfor %}{{ ns.system }}"
    "{{ ns.count }}",
    "python methods": "{% for m in messages[::-1] %}{{ m['content'].strip().upper().split(' ')[-1] }}"
    "{{ m.get('name', 'nobody') }}{{ m.items() | list | length }}{% endfor %}{{ messages[1:] | length }}",
    "macro": "{% macro show(m) %}({{ m.role }}: {{ m.content }}){% endmacro %}{% for m in messages %}{{ show(m) }}"
    "{% endfor %}",
    "tools": "{% if tools is defined and tools is not none %}{% for t in tools %}{{ t | tojson(indent=4) }}"
    "{{ t.function.parameters.properties.keys() | list | join(',') }}{% endfor %}{% else %}no tools{% endif %}"
    "{% for m in messages %}{% if m.tool_calls is defined %}{% for c in m.tool_calls %}{{ c.function.name }}"
    "{{ c.function.arguments | tojson }}{% endfor %}{% else %}{{ m.role }}={{ m.content }}"
    "{{ m.tool_call_id }}{% endif %}{% endfor %}",
    "documents": "{{ documents is none }}{{ no_such is defined }}{{ messages[0].content }}",
}
SYSTEM = {"role": "system", "content": " Bę brief. "}
USER = {"role": "user", "content": 'Привет <b>&\n"world"\u2028'}
ASSISTANT = {"role": "assistant", "content": " 你好 "}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": "get_t", "arguments": {"city": "Тверь"}}}],
}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "6"}
CONVERSATIONS: dict[str, Messages] = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ASSISTANT, USER],
    "named": [{**USER, "name": "Ann"}],
    "called": [USER, CALL, RESULT],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_t",
            "description": "Température",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def ours(folder: Path, source: str) -> ChatTemplate:
    templates = ChatTemplates.from_folder(folder)
    return ChatTemplates({"default": source}, templates._tokens).choose(with_tools=False)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_text_is_that_of_transformers(
    folder: Path, tokenizer: Any, name: str, conversation: str, tools: Sequence[dict[str, Any]] | None
) -> None:
    """G23."""
    messages = CONVERSATIONS[conversation]
    expected = tokenizer.apply_chat_template(
        messages, tools=tools, chat_template=TEMPLATES[name], tokenize=False, add_generation_prompt=True
    )
    assert ours(folder, TEMPLATES[name]).render(messages, tools) == expected


@pytest.mark.parametrize("name", ["chatml", "indented blocks", "tokens", "generation", "macro"])
@pytest.mark.parametrize("text", ["Paris is", " Paris", "user", "two\nlines", "Paris is "])
def test_an_answer_is_continued_as_transformers_does(folder: Path, tokenizer: Any, name: str, text: str) -> None:
    """But for white space at the end, which is cut here: tokens seldom begin after a space."""
    messages = [SYSTEM, USER, {"role": "assistant", "content": text}]
    expected = tokenizer.apply_chat_template(
        messages, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True
    )
    rendered = ours(folder, TEMPLATES[name]).render(messages, None)
    assert rendered == expected.rstrip()


def test_an_empty_answer_is_not_continued(folder: Path) -> None:
    messages = [USER, {"role": "assistant", "content": ""}]
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}A: {% endif %}"
    )
    assert ours(folder, template).render(messages, None).endswith("<assistant>A:")


def test_a_template_that_hides_the_last_answer_cannot_continue_it(folder: Path) -> None:
    with pytest.raises(TemplateError, match="does not show the assistant's last message"):
        ours(folder, "{{ messages[0].content }}").render([USER, ASSISTANT], None)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('no system role, ' + messages[0].role) }}", r"^Template error: no system role, user$"),
        ("{% for m in messages %}{{ m.content + 1 }}{% endfor %}", "^Template error: TypeError: "),
        ("{{ messages[0].content.nothing.more }}", "^Template error: 'str object' has no attribute 'nothing'"),
        ("{{ 1 / 0 }}", "^Template error: ZeroDivisionError"),
        ("{% if %}", "^Template error: syntax error: .* \\(in line 1\\)$"),
        ("{{ messages.append(1) }}", "^Template error: "),
        ("{{ ''.__class__.__mro__ }}", "^Template error: "),
        ("{% set ns = namespace(__x=1) %}", "^Template error: .*__x"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "^Template error: .*_x"),
        ("{% for i in range(1000000) %}{% endfor %}", "^Template error: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "^Template error: RecursionError"),
    ],
)
def test_what_a_template_may_not_do_is_an_error_of_its_own(folder: Path, source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        ours(folder, source).render([USER], None)


# ------------------------------------------------------------------------------------------------ where they are


def with_files(folder: Path, files: dict[str, Any]) -> Path:
    """A copy of the tokenizer without a template, and with these files; JSON is merged into what is there."""
    make_tokenizer(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    for name, content in {"tokenizer_config.json": {}, **files}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, dict):
            content = json.dumps({**config, **content} if name == "tokenizer_config.json" else content)
        path.write_text(content)
    return folder


NAMED = [{"name": "default", "template": "D{{ messages[0].content }}"}, {"name": "tool_use", "template": "T"}]
PLACES: dict[str, dict[str, Any]] = {
    "config": {"tokenizer_config.json": {"chat_template": "C"}},
    "file": {"tokenizer_config.json": {"chat_template": "C"}, "chat_template.jinja": "J"},
    "named": {"tokenizer_config.json": {"chat_template": NAMED}},
    "named files": {
        "tokenizer_config.json": {"chat_template": "C"},
        "chat_template.jinja": "J",
        "additional_chat_templates/tool_use.jinja": "JT",
    },
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_places_are_searched_as_transformers_does(
    tmp_path: Path, place: str, tools: Sequence[dict[str, Any]] | None
) -> None:
    folder = with_files(tmp_path / "model", PLACES[place])
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template([USER], tools=tools, tokenize=False)
    template = ChatTemplates.from_folder(folder).choose(with_tools=tools is not None)
    assert template.render([USER], tools) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"chat_template.json": {"chat_template": "P"}, "tokenizer_config.json": {"chat_template": "C"}}, "P"),
        ({"processor_config.json": {"chat_template": "R"}}, "R"),
        ({"processor_config.json": {"chat_template": "R"}, "tokenizer_config.json": {"chat_template": "C"}}, "C"),
        ({"chat_template.json": {"chat_template": "P"}, "chat_template.jinja": "J"}, "J"),
    ],
)
def test_places_that_tgi_knows_are_searched_too(tmp_path: Path, files: dict[str, Any], expected: str) -> None:
    folder = with_files(tmp_path / "model", files)
    assert ChatTemplates.from_folder(folder).choose(with_tools=False).render([USER], None) == expected


def test_tokens_may_be_objects(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<bos>", "special": True},
        "eos_token": None,
        "chat_template": "{{ bos_token }}!",
    }
    templates = ChatTemplates.from_folder(with_files(tmp_path / "model", {"tokenizer_config.json": config}))
    assert templates.choose(with_tools=False).render([USER], None) == "<bos>!"


def test_a_file_that_was_named_goes_before_the_models(tmp_path: Path) -> None:
    folder = with_files(tmp_path / "model", PLACES["file"])
    config = tmp_path / "other.json"
    config.write_text(json.dumps({"chat_template": "{{ bos_token }}X", "bos_token": "<b>"}))
    assert ChatTemplates.from_folder(folder, config).choose(with_tools=False).render([USER], None) == "<b>X"
    source = tmp_path / "other.jinja"
    source.write_text("{{ bos_token }}Y")
    assert ChatTemplates.from_folder(folder, source).choose(with_tools=False).render([USER], None) == "<s>Y"
    config.write_text("{}")  # it says nothing about templates
    assert ChatTemplates.from_folder(folder, config).choose(with_tools=False).render([USER], None) == "J"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.json", None, "there is no such file"),
        ("bad.json", "{", "is not JSON"),
        ("list.json", "[]", "holds list, not an object"),
        ("number.json", '{"chat_template": 1}', "must be a text or a list"),
        ("bytes.jinja", b"\xff", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: str | bytes | None, message: str
) -> None:
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ChatTemplateFileError, match=f"{name}.*{message}"):
        ChatTemplates.from_folder(None, path)


def test_no_template_is_said_so() -> None:
    with pytest.raises(TemplateError, match=r"^Template error: template not found$"):
        ChatTemplates({}, {}).choose(with_tools=False)
    with pytest.raises(TemplateError, match="there is no `default` among rag"):
        ChatTemplates({"rag": "x"}, {}).choose(with_tools=True)
