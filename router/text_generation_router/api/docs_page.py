"""/docs: the OpenAPI document as one page that loads nothing from elsewhere.

FastAPI's own page fetches its scripts from a public network, which a server without internet cannot, and whose visitors
should not have to. This one needs no scripts; trying things out is what /ui is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import FastAPI
from starlette.responses import Response

Json = dict[str, Any]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem; }
h2 { border-top: 1px solid #8886; padding-top: 1rem; margin-top: 2rem; }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #8884; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
.method { text-transform: uppercase; font-weight: bold; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"


def add_docs_route(app: FastAPI) -> None:
    made: list[bytes] = []

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        if not made:
            made.append(render(app.openapi()).encode())
        return Response(made[0], media_type="text/html", headers={"content-security-policy": _POLICY})


def render(document: Json) -> str:
    """A whole HTML page."""
    return "".join(_page(document))


def _page(document: Json) -> Iterator[str]:
    info = document["info"]
    title = escape(info["title"])
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title><style>{_STYLE}</style></head><body><main>"
    yield f"<h1>{title} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))}</p>"
    yield '<p>As a document for programs: <a href="api-doc/openapi.json">/api-doc/openapi.json</a>.</p>'
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield from _operation(path, method, operation)
    yield "<h2>Objects</h2>"
    for name, schema in document.get("components", {}).get("schemas", {}).items():
        yield f'<h3 id="{escape(name)}">{escape(name)}</h3>'
        yield from _fields(schema)
    yield "</main></body></html>"


def _operation(path: str, method: str, operation: Json) -> Iterator[str]:
    yield f'<h2><span class="method">{escape(method)}</span> <code>{escape(path)}</code></h2>'
    yield f"<p>{escape(operation.get('summary', ''))}</p>"
    for content in operation.get("requestBody", {}).get("content", {}).values():
        yield f"<p>Body: {_type(content.get('schema', {}))}</p>"
    yield "<table><thead><tr><th>Status</th><th>Answer</th><th></th></tr></thead><tbody>"
    for status, response in operation.get("responses", {}).items():
        types = ", ".join(_type(content.get("schema", {})) for content in response.get("content", {}).values())
        yield f"<tr><td>{escape(status)}</td><td>{escape(response.get('description', ''))}</td><td>{types}</td></tr>"
    yield "</tbody></table>"


def _fields(schema: Json) -> Iterator[str]:
    if "properties" not in schema:
        yield f"<p>{_type(schema)}</p>"
        return
    required = schema.get("required", ())
    yield "<table><thead><tr><th>Field</th><th>Type</th><th></th></tr></thead><tbody>"
    for name, field in schema["properties"].items():
        note = "Required. " if name in required else ""
        yield f"<tr><td><code>{escape(name)}</code></td><td>{_type(field)}</td>"
        yield f"<td>{note}{escape(str(field.get('description', '')))}</td></tr>"
    yield "</tbody></table>"


def _type(schema: Json) -> str:
    """In words, with a link to each object named."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(_type(option) for option in schema[key])
    if "const" in schema or "enum" in schema:
        return ", ".join(f"<code>{escape(str(value))}</code>" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    kind = escape(str(schema.get("type", "any")))
    limits = [f"{word} {schema[key]}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema]
    return " ".join([kind, *limits])
