"""The page as a file: recorded text cannot become markup or program, and nothing can be fetched."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from importlib import resources

import msgspec
import pytest

from drivetrain.viewer import page
from drivetrain.viewer.document import ViewDocument
from tests.viewer.documents import NASTY, document_of, eventful

_ASSETS = resources.files("drivetrain.viewer") / "assets"


def modules() -> dict[str, str]:
    return {file.name: file.read_text() for file in _ASSETS.iterdir() if file.name.endswith(".js")}


@pytest.fixture(scope="module")
def html() -> str:
    document = document_of(eventful().graph, rollout_id="<b>&\"'", error=NASTY, files={"work.patch": NASTY})
    return page.render_page(document).decode()


def test_the_document_survives_and_cannot_leave_its_element(html: str) -> None:
    (data,) = re.findall(r'<script type="application/json" id="document">(.*?)</script>', html, re.DOTALL)
    assert not set("<>&\u2028\u2029") & set(data)
    document = msgspec.json.decode(data, type=ViewDocument)
    assert (document.error, document.rollout_id) == (NASTY, "<b>&\"'")
    assert html.count("<script") == html.count("</script>") == 2
    assert "<title>&lt;b&gt;&amp;" in html and "<b>" not in html


def test_the_policy_names_exactly_this_program_and_style(html: str) -> None:
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    parts = dict(part.split(" ", 1) for part in policy.replace("&#x27;", "'").split("; "))
    assert parts["default-src"] == "'none'" and set(parts) == {
        "default-src", "script-src", "style-src", "base-uri", "form-action",
    }  # fmt: skip
    for name, pattern in (("script-src", r"<script>(.*?)</script>"), ("style-src", r"<style>(.*?)</style>")):
        (body,) = re.findall(pattern, html, re.DOTALL)
        assert parts[name] == f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"


def test_the_program_parses_no_markup_and_asks_nobody() -> None:
    program = page.page_program()
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "new Function", "fetch(",
                      "XMLHttpRequest", "import(", "WebSocket", "</script", "<!--", ".src =", ".href ="):  # fmt: skip
        assert forbidden not in program, forbidden
    assert re.findall(r"https?://[^\"]*", program + page.page_style()) == ["http://www.w3.org/2000/svg"]
    assert "url(" not in page.page_style() and "@import" not in page.page_style()


def test_every_module_is_in_the_program_and_no_name_is_taken_twice() -> None:
    found = modules()
    assert set(page.module_order("main.js")) == set(found)
    named = r"^(?:export )?(?:async )?(?:function|class|const|let)\s+(\w+)"
    names = Counter(name for text in found.values() for name in re.findall(named, text, re.MULTILINE))
    assert [name for name, count in names.items() if count > 1] == []


def test_imports_name_what_is_exported() -> None:
    found = modules()
    for name, text in found.items():
        for names, source in re.findall(r'^import \{([^}]*)\} from "\./([\w.]+)";$', text, re.MULTILINE):
            for wanted in (each.strip() for each in names.split(",")):
                assert re.search(rf"^export (?:async )?(?:function|class|const) {wanted}\b", found[source], re.M), (
                    f"{name} imports {wanted} from {source}"
                )
                assert len(re.findall(rf"\b{wanted}\b", text)) > 1, f"{name} does not use {wanted}"


def test_modules_in_a_circle_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Circle:
        def joinpath(self, name: str) -> Circle:
            return self

        def read_text(self, encoding: str) -> str:
            return 'import { a } from "./main.js";\n'

    monkeypatch.setattr(page, "_assets", Circle)
    with pytest.raises(ValueError, match=r"circle: main.js -> main.js"):
        page.module_order("main.js")


def test_dark_is_the_same_by_choice_and_by_preference() -> None:
    style = page.page_style()
    (chosen,) = re.findall(r':root\[data-theme="dark"\] \{(.*?)\n\}', style, re.DOTALL)
    (preferred,) = re.findall(r':root:not\(\[data-theme="light"\]\) \{(.*?)\n  \}', style, re.DOTALL)
    assert chosen.split() == preferred.split()
