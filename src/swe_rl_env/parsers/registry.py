"""Which name means which parser (facts: SWE-rebench V2's registry, 76 names for 68 parsers)."""

from __future__ import annotations

import difflib

from drivetrain.errors import ConfigError
from swe_rl_env.parsers import (
    c_cpp,
    functional,
    go_rust,
    hspec_tree,
    java,
    javascript,
    javascript_projects,
    junit,
    ocaml,
    others,
    php,
    pytest_,
    python_other,
    ruby,
    scala,
)
from swe_rl_env.parsers.names import normalise_results
from swe_rl_env.parsers.results import LogParser, Status

_NAMED: dict[str, LogParser] = {
    "parse_log_pytest": pytest_.short_summary,
    "parse_log_pytest_options": pytest_.short_summary_options,
    "parse_log_pytest_v2": pytest_.coloured,
    "parse_log_pytest_nebo": pytest_.nebo,
    "parse_combined_test_reports": junit.combined_reports,
    "parse_log_gotest": go_rust.gotest,
    "parse_log_cargo": go_rust.cargo,
    "parse_log_jest": javascript.jest,
    "parse_log_jest_json": javascript.jest_json,
    "parse_log_vitest": javascript.vitest,
    "parse_log_js": javascript.mocha,
    "parse_log_js_2": javascript.mocha_2,
    "parse_log_js_3": javascript.nested_tap,
    "parse_log_js_4": javascript.marks,
    "parse_log_npx": javascript.npx,
    "parse_log_tap": javascript.tap,
    "parse_log_karma": javascript_projects.karma,
    "parse_log_calypso": javascript_projects.calypso,
    "parse_log_chart_js": javascript_projects.chart_js,
    "parse_log_marked": javascript_projects.marked,
    "parse_log_p5js": javascript_projects.p5js,
    "parse_log_react_pdf": javascript_projects.react_pdf,
    "parse_log_maven": java.maven_commands,
    "parse_java_mvn": java.surefire,
    "parse_log_java_mvn": java.surefire,
    "parse_java_mvn_v2": java.reactor,
    "parse_log_java_mvn_v2": java.reactor,
    "parse_log_ant": java.ant,
    "parse_log_gradle_custom": java.gradle,
    "parse_log_gradlew_v1": junit.gradle_reports,
    "parse_log_sbt": junit.fragments,
    "parse_log_junit": junit.fragments,
    "parse_logs_kotlin_junit": java.kotlin_surefire,
    "parse_log_kotlin_junit": java.kotlin_surefire,
    "parse_logs_r_junit": junit.r_junit,
    "parse_log_r_junit": junit.r_junit,
    "parse_log_phpunit": php.testdox,
    "parse_log_php_v1": php.console,
    "parse_log_googletest": c_cpp.googletest,
    "parse_log_doctest": c_cpp.doctest,
    "parse_log_jq": c_cpp.automake,
    "parse_log_redis": c_cpp.redis,
    "parse_log_micropython_test": c_cpp.micropython,
    "parse_log_cpp": pytest_.ujson,
    "parse_log_cpp_v2": c_cpp.test_words,
    "parse_log_cpp_v3": c_cpp.dotted,
    "parse_log_cpp_v4": c_cpp.ctest,
    "parse_log_minitest": ruby.minitest,
    "parse_log_cucumber": ruby.cucumber,
    "parse_log_ruby_unit": ruby.test_unit,
    "parse_log_rspec_transformed_json": ruby.rspec_lines,
    "parse_log_ruby_v1": ruby.rake,
    "parse_log_ruby_v2": ruby.methods,
    "parse_log_scala": scala.scalatest,
    "parse_log_scala_v2": scala.signs,
    "parse_log_scala_v3": scala.suites,
    "parse_log_elixir": functional.exunit,
    "parse_log_lein": functional.leiningen,
    "parse_log_haskell": functional.haskell,
    "parse_log_haskell_v2": hspec_tree.hspec_tree,
    "parse_log_ocaml": ocaml.alcotest,
    "parse_log_ocaml_v2": ocaml.dune,
    "parse_log_ocaml_v3": ocaml.inline,
    "parse_log_ocaml_v4": ocaml.table,
    "parse_log_ocaml_v5": ocaml.table,
    "parse_log_julia": others.julia,
    "parse_log_r": others.testthat,
    "parse_log_r_v2": others.r_check,
    "parse_log_dart": others.dart_json,
    "parse_log_dart_v2": others.dart_packages,
    "parse_log_dart_v3": others.dart_files,
    "parse_log_swift": others.xctest,
    "parse_log_csharp": others.vstest,
    "parse_lue_nvim": others.plenary,
    "parse_lua_nvim": others.plenary,
    "parse_log_lua_nvim": others.plenary,
}

# Outside the registry, but upstream's look-up falls back to any function of the name.
_REACHABLE: dict[str, LogParser] = {
    "parse_log_django": python_other.django,
    "parse_log_sympy": python_other.sympy,
    "parse_log_seaborn": python_other.seaborn,
    "parse_log_matplotlib": python_other.matplotlib,
    **{
        f"parse_log_{project}": pytest_.short_summary
        for project in ("astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray", "pydantic", "dvc")
    },
    **{f"parse_log_{project}": pytest_.short_summary_options for project in ("pydicom", "requests", "pylint")},
    **{f"parse_log_{project}": pytest_.coloured for project in ("astropy", "scikit", "sphinx")},
}


def parser_names() -> tuple[str, ...]:
    """The dataset's 76 names, in the registry's order. :func:`get_parser` knows a few older ones besides."""
    return tuple(_NAMED)


def get_parser(name: str) -> LogParser:
    """The parser a row names. Call it when a row is loaded: an unknown name must not wait for grading.

    Raises:
        ConfigError: no such parser; the message names close matches.
    """
    parser = _NAMED.get(name) or _REACHABLE.get(name)
    if parser is None:
        close = difflib.get_close_matches(name, [*_NAMED, *_REACHABLE], n=3)
        raise ConfigError(
            f"Unknown log parser {name!r}.",
            fix=f"Did you mean {', '.join(close)}?" if close else "See swe_rl_env.parsers.parser_names().",
        )
    return parser


def read_log(name: str, text: str) -> dict[str, Status]:
    """What the named parser reads in a log, under normalised ids.

    Compare with expected ids that went through :func:`normalise_id` too; only PASSED counts as passed.

    Raises:
        ConfigError: no such parser.
        LogUnreadable: the log's ids outgrow the log.
    """
    return normalise_results(get_parser(name)(text))
