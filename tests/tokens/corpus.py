"""The chat templates that TRL ships, checked once per test run with the report's toy tokenizer."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
from pathlib import Path
from types import ModuleType

from drivetrain.tokens.check import TemplateCheck, check_template
from drivetrain.tokens.template import ChatTemplate
from drivetrain.tokens.tokenizer import Tokenizer

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "template-report"


@functools.cache
def script() -> ModuleType:
    """scripts/template-report as a module."""
    loader = importlib.machinery.SourceFileLoader("template_report", str(SCRIPT))
    spec = importlib.util.spec_from_loader("template_report", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@functools.cache
def tokenizer() -> Tokenizer:
    """The toy tokenizer."""
    found: Tokenizer = script().toy_tokenizer()
    return found


@functools.cache
def templates() -> dict[str, ChatTemplate]:
    """Every template of the corpus by name; empty without TRL."""
    return dict(script().corpus())


@functools.cache
def check_of(name: str) -> TemplateCheck:
    """The verdicts on one template."""
    return check_template(templates()[name], tokenizer())


NAMES = tuple(sorted(templates()))
"""All names, and those without the training variants, which differ from them by a line or two."""
ORIGINALS = tuple(name for name in NAMES if not name.endswith("_training"))
