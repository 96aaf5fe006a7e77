"""The OpenAPI document as a page to read: plain HTML, no script, nothing from elsewhere."""

from collections.abc import Sequence
from html import escape
from typing import Any, Final

_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; }
code, pre { font: 0.9em/1.4 ui-monospace, monospace; }
details { border: 1px solid #8884; border-radius: 6px; margin: 0.4rem 0; padding: 0.4rem 0.8rem; }
summary { cursor: pointer; }
summary b { display: inline-block; min-width: 4.5rem; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0; }
th, td { border-top: 1px solid #8884; padding: 0.2rem 0.6rem 0.2rem 0; text-align: left;
  vertical-align: top; }
"""


def render(document: dict[str, Any]) -> str:
    info = document["info"]
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    )
    shapes = "".join(
        _shape(name, schema) for name, schema in sorted(document["components"]["schemas"].items())
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{_prose(info['description'])}</p>"
        f'<p>The same as a document: <a href="/openapi.json">/openapi.json</a></p>'
        f"<h2>Requests</h2>{operations}<h2>Shapes</h2>{shapes}</body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"<p>{_prose(operation['description'])}</p>"] if "description" in operation else []
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [
            (f"<code>{escape(one['name'])}</code>", f"in the {one['in']}", _type(one["schema"]))
            for one in parameters
        ]
        parts.append(_table(("parameter", "where", "type"), rows))
    if "requestBody" in operation:
        (content,) = operation["requestBody"]["content"].values()
        parts.append(f"<p>Body: {_type(content['schema'])}</p>")
    rows = [
        (escape(status), _content(answer), _prose(answer["description"]))
        for status, answer in operation["responses"].items()
    ]
    parts.append(_table(("status", "answer", "meaning"), rows))
    return (
        f'<details id="{escape(operation["operationId"])}"><summary><b>{method.upper()}</b> '
        f"<code>{escape(path)}</code> – {_prose(operation['summary'])}</summary>"
        f"{''.join(parts)}</details>"
    )


def _content(answer: dict[str, Any]) -> str:
    return ", ".join(
        _type(content["schema"]) if content["schema"] else f"<code>{escape(media)}</code>"
        for media, content in answer.get("content", {}).items()
    )


def _shape(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        (
            f"<code>{escape(field)}</code>{' *' if field in required else ''}",
            _type(inner),
            _default(inner),
        )
        for field, inner in schema.get("properties", {}).items()
    ]
    words = schema.get("enum")
    body = _table(("field", "type", "default"), rows) if rows else ""
    if words:
        body += "<p>" + ", ".join(f"<code>{escape(str(word))}</code>" for word in words) + "</p>"
    return (
        f'<details id="shape-{escape(name)}"><summary><code>{escape(name)}</code></summary>'
        f"<p>{_prose(schema.get('description', ''))}</p>{body}</details>"
    )


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f'<a href="#shape-{escape(name)}">{escape(name)}</a>'
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(map(_type, schema[several]))
    if "enum" in schema:
        return " or ".join(f"<code>{escape(str(word))}</code>" for word in schema["enum"])
    kind = escape(str(schema.get("type", "any value")))
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"list of {_type(schema['items'])}"
    if "minimum" in schema or "maximum" in schema:
        return f"{kind} from {schema.get('minimum', '')} to {schema.get('maximum', '')}"
    return kind


def _default(schema: dict[str, Any]) -> str:
    return f"<code>{escape(repr(schema['default']))}</code>" if "default" in schema else ""


def _prose(text: str) -> str:
    """Text in which `backticks` mark code."""
    parts = escape(text).split("`")
    return "".join(
        f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(parts)
    )


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{lines}</table>"
