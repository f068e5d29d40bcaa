"""Which of the agent's edits do not count: graded tests, settings of the test runner, start-up hooks.

They are taken from base (and then from the hidden test patch) and reported, never punished by themselves. A path
that the reference fix touches is allowed for that task, except where the test patch overwrites it anyway.
"""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Collection

from swe_rl_env.building.build import BuiltTask
from swe_rl_env.building.gitio import Entry, Scratch
from swe_rl_env.building.tario import MODE_LINK
from swe_rl_env.work.findings import FindingKind
from swe_rl_env.work.patch import escapes

_PYTHON_SETTINGS = frozenset(
    {
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
        ".coveragerc",
        "noxfile.py",
        "sitecustomize.py",
        "usercustomize.py",
        "pyvenv.cfg",
    }
)
_NODE_SETTINGS = frozenset(
    ["package.json", "package-lock.json", "npm-shrinkwrap.json", ".npmrc", ".taprc", ".nycrc", ".mocharc.js"]
)
_NODE_SETTING_PREFIXES = ("jest.config.", "vitest.config.", "karma.conf.", ".mocharc.")
_CARGO_SETTINGS = ("config", "config.toml")  # in a folder .cargo; they may name another runner
_COMPILED = (".pth", ".pyc", ".pyo")
_TEST_FOLDERS = frozenset({"test", "tests", "testing"})
_RUNNER_MODULES = frozenset(["pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging"])


class Protection:
    """The rule for one task; ``base_paths`` are the files of its base commit."""

    def __init__(self, built: BuiltTask, base_paths: Collection[str]) -> None:
        task, private = built.task, built.task.private
        self._image = task.image is not None
        self._python = task.registry == "pypi" or (self._image and task.public.language == "python")
        self._base = frozenset(base_paths)
        self._gold = frozenset(private.gold_patch_paths)
        self._patched = frozenset(private.test_patch_paths)
        separator = "::" if self._python else " > "
        # The ids of an image's task name files only where the runner is pytest.
        named = {i.split(separator, 1)[0] for i in private.expected} if self._python or not self._image else set()
        self.test_files = frozenset(named | self._patched if self._image else named)
        programs = {word for command in task.install.test_cmd for word in command.split()[:1]}
        self._make = "make" in programs
        folders = {posixpath.dirname(f) for f in self.test_files}
        self._test_folders = tuple(f"{d}/" for d in folders if posixpath.basename(d) in _TEST_FOLDERS)
        # Folders that come before the environment on sys.path: PYTHONPATH, and what pytest inserts for rootdirs.
        self._import_roots = {"", task.source_dir.strip("./"), *folders}
        self._shadowing = _RUNNER_MODULES | frozenset(built.environment.modules) | sys.stdlib_module_names
        self._must_stay = self._patched | {p for p in self._base if self._is_test(p) or self._is_setting(p)}

    def covers(self, path: str) -> FindingKind | None:
        """Why an agent's change to ``path`` (relative to the checkout) is dropped; None when it counts."""
        if path in self._patched or self._blocks(path):
            return "runner_config_edit" if self._is_setting(path) else "test_edit"
        if path in self._gold:
            return None
        if self._is_setting(path):
            return "runner_config_edit"
        if self._is_test(path):
            return "test_edit"
        return "shadowed_module" if self._python and self._shadows(path) else None

    def _blocks(self, path: str) -> bool:
        """A file where a protected one needs a folder, or below a protected file."""
        below = path + "/"
        if any(p.startswith(below) for p in self._must_stay):
            return True
        return any(path.startswith(p + "/") for p in self._must_stay)

    def _is_test(self, path: str) -> bool:
        # New files in a test folder stay: they may be honest tests, and they are not graded. Not so a new
        # __init__.py: it changes how the graded files there are imported.
        if not path.startswith(self._test_folders):
            return path in self.test_files
        return path in self._base or posixpath.basename(path) == "__init__.py" or path in self.test_files

    def _is_setting(self, path: str) -> bool:
        name = posixpath.basename(path)
        # Metadata of a distribution anywhere on sys.path registers plugins with the runner.
        metadata = any(part.endswith((".dist-info", ".egg-info")) for part in path.split("/"))
        python = name in _PYTHON_SETTINGS or name.endswith(_COMPILED) or metadata
        node = name in _NODE_SETTINGS or name.startswith(_NODE_SETTING_PREFIXES) or "node_modules" in path.split("/")
        if self._image:
            cargo = name in _CARGO_SETTINGS and posixpath.basename(posixpath.dirname(path)) == ".cargo"
            return python or node or cargo or (self._make and name.lower() in ("makefile", "gnumakefile"))
        return python if self._python else node

    def _shadows(self, path: str) -> bool:
        """A new module that would be imported in place of the runner, a dependency or the standard library."""
        for root in self._import_roots:
            if root and not path.startswith(root + "/"):
                continue
            top = path[len(root) + 1 if root else 0 :].split("/", 1)[0]
            module = top.split(".", 1)[0]
            if module in self._shadowing and not self._in_base(posixpath.join(root, top)):
                return True
        return False

    def _in_base(self, top: str) -> bool:
        return top in self._base or any(p.startswith(top + "/") for p in self._base)


def unsafe(s: Scratch, path: bytes, entry: Entry | None) -> FindingKind | None:
    """Links out of the checkout and nested repositories, in case the patch was not taken by us."""
    if entry is None or entry.mode in ("100644", "100755"):
        return None
    if entry.mode != MODE_LINK or escapes(os.fsdecode(path), os.fsdecode(s.run("cat-file", "blob", entry.blob))):
        return "escaping_link"
    return None
