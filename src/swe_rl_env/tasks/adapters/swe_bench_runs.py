"""What SWE-bench and SWE-Gym run for a repository, as facts: their rows name neither a command nor a parser.

Read in ``swebench/harness/{constants/python,log_parsers/python,test_spec/python}.py`` of SWE-bench/SWE-bench (commit
096a15a9) and in ``swebench/harness/{constants,log_parsers,test_spec}.py`` of SWE-Gym/SWE-Bench-Fork (commit 242429c1).
Both install the project again before each run; here the image's own installation is used, since grading has no network.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec


class Run(msgspec.Struct, frozen=True):
    """``command`` with ``{files}``, ``{modules}`` or ``{cases}`` to fill in; the named parser; variables."""

    command: str = "pytest -rA {files}"
    parser: str = "parse_log_pytest"
    env: Mapping[str, str] = {}


_OPTIONS, _V2 = "parse_log_pytest_options", "parse_log_pytest_v2"
_ONE_PROCESS = Run("pytest -n0 -rA {files}")
_UTF8 = {"LANG": "en_US.UTF-8", "LC_ALL": "en_US.UTF-8", "LANGUAGE": "en_US:en", "PYTHONIOENCODING": "utf8"}
_DJANGO = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 {modules}"
_ASTROPY_OLD = "pytest -rA -vv -o console_output_style=classic --tb=no -p no:nose {files}"
_RUNS: dict[str, Run] = {
    # SWE-bench
    "astropy/astropy": Run(parser=_V2),
    "django/django": Run(_DJANGO, "parse_log_django"),
    "matplotlib/matplotlib": Run(parser="parse_log_matplotlib"),
    "mwaskom/seaborn": Run("pytest --no-header -rA {files}", "parse_log_seaborn"),
    "psf/requests": Run(parser=_OPTIONS),
    "pydicom/pydicom": Run(parser=_OPTIONS),
    "pylint-dev/pylint": Run(parser=_OPTIONS),
    "scikit-learn/scikit-learn": Run(parser=_V2),
    "sphinx-doc/sphinx": Run("tox --current-env -epy39 -v -- {files}", _V2),
    "sympy/sympy": Run(
        "bin/test -C --verbose {files}",
        "parse_log_sympy",
        {"PYTHONWARNINGS": "ignore::UserWarning,ignore::SyntaxWarning"},
    ),
    # SWE-Gym
    "bokeh/bokeh": _ONE_PROCESS,
    "conan-io/conan": _ONE_PROCESS,
    "dask/dask": Run("pytest -n0 -rA --color=no {files}"),
    "facebookresearch/hydra": Run("pytest -rA --tb=long {files}"),
    "getmoto/moto": _ONE_PROCESS,
    "hypothesisworks/hypothesis": Run("pytest -n0 -rA --tb=no --no-header {files}"),
    "modin-project/modin": _ONE_PROCESS,
    "pandas-dev/pandas": Run("pytest -rA --tb=long {files}"),
    "pydantic/pydantic": Run("pytest -rA --tb=short -vv -o console_output_style=classic --no-header {files}", _V2),
    "python/mypy": Run("pytest -n0 -rA -k {cases}"),
    "spyder-ide/spyder": _ONE_PROCESS,
}
_NO_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
_CASE = re.compile(r"\[case ([^\]]+)\]")


def run_for(repo: str, version: str) -> Run:
    """What runs the tests of a repository; plain pytest for one that is not listed, as for most that are."""
    repo = repo.lower()
    if repo == "astropy/astropy" and (version.startswith("0.") or version in ("1.1", "1.2", "1.3")):
        return Run(_ASTROPY_OLD, _V2)
    if repo == "django/django" and version[:2] in ("1.", "2.", "3."):
        command = "./tests/runtests.py --verbosity 2 {modules}" if version == "1.9" else _DJANGO
        return Run(command, "parse_log_django", _UTF8)
    return _RUNS.get(repo, Run())


def fill(command: str, files: Sequence[str], test_patch: str) -> str:
    """The command for the files of a test patch: those that are no data, Django's as modules, mypy's as case names."""
    tests = [path for path in files if not path.endswith(_NO_TESTS)]
    return command.format(
        files=shlex.join(tests),
        modules=shlex.join(_module(path) for path in tests),
        cases=shlex.quote(" or ".join(dict.fromkeys(_CASE.findall(test_patch)))),
    ).strip()


def _module(path: str) -> str:
    """Django's runner takes dotted modules relative to its tests folder."""
    stem, suffix = posixpath.splitext(path)
    return (stem if suffix == ".py" else path).removeprefix("tests/").replace("/", ".")
