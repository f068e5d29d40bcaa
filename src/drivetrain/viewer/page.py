"""The page itself: one HTML file with its style, its program and its document inside.

What a rollout recorded is data and stays data (a trace holds whatever an agent read or wrote): the document is JSON in
which no ``<`` is spelled out, so that no markup can end or open anything; the program puts text on the page as text
nodes only; and the content security policy allows exactly this style and this program, by hash, and no connection.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec

from drivetrain.viewer.document import ViewDocument

_IMPORT = re.compile(r"^import \{[^}]*\} from \"\./([\w.]+)\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class)\b)", re.MULTILINE)
_ENTRY = "main.js"
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render_page(document: ViewDocument) -> bytes:
    """The file, UTF-8."""
    style, program = page_style(), page_program()
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src '{_hash(program)}'",
            f"style-src '{_hash(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta name="color-scheme" content="light dark">
<title>{escape(document.rollout_id)} - drivetrain trace</title>
<style>{style}</style>
</head>
<body>
<noscript>This page shows a recorded trace and needs JavaScript; it fetches nothing.</noscript>
<div id="app"></div>
<script type="application/json" id="document">{embedded_json(document)}</script>
<script>{program}</script>
</body>
</html>
""".encode()


def embedded_json(document: ViewDocument) -> str:
    """JSON that may stand in a script element: nothing in it can close the element or open a comment in it."""
    text = msgspec.json.encode(document).decode()
    return re.sub("[<>&\u2028\u2029]", lambda found: _ESCAPES[found[0]], text)


@cache
def page_style() -> str:
    """Every stylesheet, in the order of their names."""
    sheets = sorted((file for file in _assets().iterdir() if file.name.endswith(".css")), key=lambda file: file.name)
    return "\n" + "\n".join(sheet.read_text(encoding="utf-8") for sheet in sheets)


@cache
def page_program() -> str:
    """Every module in one scope, each behind those it imports.

    The modules are plain ECMAScript modules that a page from a file could not load one by one; a name is exported by
    one module only, so that imports and the word ``export`` can simply be left out.

    Raises:
        ValueError: modules import each other in a circle, or something is left that only a module may say.
    """
    sources = {name: _assets().joinpath(name).read_text(encoding="utf-8") for name in module_order(_ENTRY)}
    plain = [_EXPORT.sub("", _IMPORT.sub("", text)) for text in sources.values()]
    for name, text in zip(sources, plain, strict=True):
        if re.search(r"^(import|export)\b", text, re.MULTILINE):
            raise ValueError(f"{name} imports or exports in a form that cannot be joined")
    return '\n(() => {\n"use strict";\n' + "\n".join(plain) + "\n})();\n"


def module_order(entry: str, above: Sequence[str] = ()) -> list[str]:
    """Names of a module and of all it needs, each behind what it imports.

    Raises:
        ValueError: modules import each other in a circle.
    """
    if entry in above:
        raise ValueError(f"modules import each other in a circle: {' -> '.join([*above, entry])}")
    order: list[str] = []
    for needed in _IMPORT.findall(_assets().joinpath(entry).read_text(encoding="utf-8")):
        order += [name for name in module_order(needed, [*above, entry]) if name not in order]
    return [*order, entry]


def _assets() -> Traversable:
    return resources.files("drivetrain.viewer") / "assets"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
