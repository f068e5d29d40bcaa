"""A family of small, real tasks: a Python function that applies the wrong operator.

For learning curves, and for trying things out offline: each task has a repository with one commit, a statement in
words, hidden tests and a reference fix, in the schema of every other task. An instance is drawn from its number and
the seed, so a family of any size can be made again. The names of functions and arguments of the two splits have no
overlap; the words for operators and the sentences are the same in both.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec

from drivetrain.cache import cache_root
from swe_rl_env.building.build import Files, commit_base, diff_between
from swe_rl_env.sources.generated import publish
from swe_rl_env.tasks.model import Archive

Split = Literal["train", "heldout"]

WORDS: dict[str, tuple[str, ...]] = {"+": ("sum",), "-": ("difference",), "*": ("product",), "%": ("remainder",)}
"""Operator -> the words by which statements call its result."""

_SENTENCES = (
    "In shop.py, `{function}({a}, {b})` is wrong. It must return the {word}.",
    "Users of `{function}` in shop.py get a wrong number for `{a}` and `{b}`. It should be the {word}.",
    "Make `{function}` in shop.py compute, from `{a}` and `{b}`, the {word}.",
    "`{function}({a}, {b})` in shop.py gives something else than users expect: the {word}.",
)
"""All end in the word: a model of a million parameters learns sooner to look at a fixed distance than to search."""
_NAMES: dict[Split, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "train": (
        ("charge", "bill", "invoice", "refund", "stock", "budget", "freight", "deposit", "margin", "quota"),
        ("left", "right", "first", "second", "x", "y", "amount", "count", "width", "height"),
    ),
    "heldout": (
        ("ticket", "salary", "voucher", "mileage", "balance", "tariff", "parcel", "pension"),
        ("m", "n", "upper", "lower", "price", "units", "head", "tail"),
    ),
}
_PYTEST = ["pytest==7.4.4", "iniconfig==2.0.0", "packaging==24.2", "pluggy==1.5.0"]


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One task of the family before it becomes files: ``wrong`` stands in the repository, ``right`` in the fix."""

    number: int
    split: Split
    function: str
    a: str
    b: str
    word: str
    wrong: str
    right: str
    sentence: str

    @property
    def instance_id(self) -> str:
        """Unique in the family of a seed."""
        return f"operators__{self.split}-{self.number}"

    @property
    def statement(self) -> str:
        """What the agent reads."""
        return self.sentence.format(function=self.function, a=self.a, b=self.b, word=self.word)


def draw(number: int, split: Split, seed: int) -> Instance:
    """The instance with that number. Operators and words take turns, so that a family is balanced."""
    chance = random.Random(f"{seed}:{split}:{number}")
    operators = list(WORDS)
    right = operators[number % len(operators)]
    words = WORDS[right]
    functions, arguments = _NAMES[split]
    a, b = chance.sample(arguments, 2)
    return Instance(
        number=number,
        split=split,
        function=chance.choice(functions),
        a=a,
        b=b,
        word=words[number // len(operators) % len(words)],
        wrong=chance.choice([operator for operator in operators if operator != right]),
        right=right,
        sentence=chance.choice(_SENTENCES),
    )


def operator_rows(count: int, *, split: Split, seed: int, cache: Path | None = None) -> list[dict[str, Any]]:
    """``count`` rows in the schema of the packaged tasks; their archives are put into the cache.

    Blocking: makes a repository per row. Instances with equal files differ in their id only.
    """
    folder = cache_root(cache)
    return [_row(draw(number, split, seed), folder) for number in range(count)]


def _source(instance: Instance, operator: str) -> bytes:
    return (
        '"""Numbers of the shop."""\n\nNAME = "shop"\n\n\n'
        f"def {instance.function}({instance.a}, {instance.b}):\n    return {instance.a} {operator} {instance.b}\n"
    ).encode()


_OLD_TEST = 'import shop\n\n\ndef test_name():\n    assert shop.NAME == "shop"\n'


def _new_test(instance: Instance) -> bytes:
    values = ((7, 3), (12, 5), (9, 4), (3, 8))
    checks = "".join(
        f"    assert shop.{instance.function}({a}, {b}) == {_apply(instance.right, a, b)}\n" for a, b in values
    )
    return f"{_OLD_TEST}\n\ndef test_{instance.function}():\n{checks}".encode()


def _apply(operator: str, a: int, b: int) -> int:
    return {"+": a + b, "-": a - b, "*": a * b, "%": a % b}[operator]


def _row(instance: Instance, cache: Path) -> dict[str, Any]:
    base = {"shop.py": _source(instance, instance.wrong), "tests/test_shop.py": _OLD_TEST.encode()}
    fix = {"shop.py": _source(instance, instance.right), "tests/test_shop.py": _new_test(instance)}
    name = instance.instance_id.replace("__", "-")
    archives = [publish(name, version, files, cache) for version, files in (("1", base), ("2", fix))]
    with TemporaryDirectory() as temp:
        repo = Path(temp) / "repo"
        commit = commit_base(_regular(base), repo)
        test = diff_between(repo, _regular(fix), ("tests/test_shop.py",))
        gold = diff_between(repo, _regular(fix), ("shop.py",))
    return {
        "instance_id": instance.instance_id,
        "repo": "operators/shop",
        "language": "python",
        "license": "Apache-2.0",
        "base_commit": commit,
        "problem_statement": instance.statement,
        "FAIL_TO_PASS": [f"tests/test_shop.py::test_{instance.function}"],
        "PASS_TO_PASS": ["tests/test_shop.py::test_name"],
        "install_config": {
            "base_image_name": "python:3.11",
            "pip_packages": _PYTEST,
            "pip_args": ["--no-deps"],
            "env": {"PYTHONPATH": "{workdir}", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"},
            "test_cmd": ["python -m pytest -p no:cacheprovider -rA --tb=no -q --color=no --rootdir=."],
            "log_parser": "pytest_nodeid_exact",
            "timeout_s": 60,
        },
        "registry": "local",
        **_archive_columns("base", archives[0]),
        **_archive_columns("fix", archives[1]),
        "gold_patch_paths": ["shop.py"],
        "test_patch_paths": ["tests/test_shop.py"],
        "patch_sha256": hashlib.sha256(gold).hexdigest(),
        "test_patch_sha256": hashlib.sha256(test).hexdigest(),
        "gold_lines_added": 1,
        "gold_lines_removed": 1,
        "family": msgspec.to_builtins(instance),
    }


def _regular(files: dict[str, bytes]) -> Files:
    return {path: (False, data) for path, data in files.items()}


def _archive_columns(which: Literal["base", "fix"], archive: Archive) -> dict[str, str]:
    return {
        f"{which}_version": archive.version,
        f"{which}_sdist": archive.filename,
        f"{which}_sdist_sha256": archive.sha256,
    }
