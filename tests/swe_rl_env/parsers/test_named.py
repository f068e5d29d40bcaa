"""Every name of the dataset's registry resolves and reads its runner's lines, oddities included."""

from __future__ import annotations

import pytest

from drivetrain.errors import ConfigError
from swe_rl_env.parsers import get_parser, normalise_id, normalise_ids, normalise_results, parser_names, read_log

P, F, S, E = "PASSED", "FAILED", "SKIPPED", "ERROR"
XML = (
    '<testsuites><testsuite><testcase classname="a.B" name="c d"/>'
    '<testcase classname="a.B" name="e"><failure/></testcase></testsuite></testsuites>'
)
DOC = f'<?xml version="1.0"?>\n{XML}\n'
PIPES = "Test Summary: | Pass  Fail  Total\nouter | 3 1 4\n  inner |  2  2\n"

# One line of thought per name: what it reads, what it must not read, and the oddity rows depend on.
CASES: dict[str, list[tuple[str, dict[str, str]]]] = {
    "parse_log_pytest": [
        (
            "PASSED t.py::x[a b]\nFAILED t.py::y - boom\nERROR t.py::z\nSKIPPED [1] t.py:3: no\n  PASSED t.py::w",
            {"t.py::x[a": P, "t.py::y": F, "t.py::z": E, "[1]": S},
        ),
        ("PASSED t.py::x[a b]\nFAILED t.py::x[a c]", {"t.py::x[a": F}),
        ("PASSED: t.py::x\nPASSED", {"t.py::x": E}),
    ],
    "parse_log_pytest_options": [
        (
            "PASSED t.py::x[/a/b/c]zz\nFAILED t.py::y[//a/b]\nPASSED t.py::z[/a/*]\nPASSED t.py::v[/x/[y]]",
            {"t.py::x[/c]": P, "t.py::y[//a/b]": F, "t.py::z[/a/*]": P, "t.py::v[/[y]]": P},
        ),
    ],
    "parse_log_pytest_v2": [
        (
            "\x1b[32mPASSED\x1b[0m t.py::\x1b[1mx\x1b[0m\nt.py::y PASSED\nPASSED\nt.py::a b FAILED",
            {"t.py::x": P, "t.py::y": P, "t.py::a": E},
        ),
    ],
    "parse_log_pytest_nebo": [
        (
            "[gw1] [ 50%] PASSED t.py::x[a b] in 0.2s\nt.py::y[c d] FAILED [ 60%] in 1.5s\nERROR t.py::z - why in x",
            {"t.py::x[a b]": P, "t.py::y[c d]": F, "t.py::z - why": E},
        ),
    ],
    "parse_combined_test_reports": [(f"x\n{DOC}\n{DOC}<?xml broken", {"a.B::c d": P, "a.B::e": F})],
    "parse_log_gotest": [
        (
            "=== RUN T\n--- PASS: T (0.00s)\n    --- FAIL: T/a_(b) (1.2s)\n"
            "--- SKIP: U (0.00s)\n--- PASS: (0.0s)\nok  p 0.1s",
            {"T": P, "T/a_(b)": F, "U": S},
        ),
    ],
    "parse_log_cargo": [
        (
            "test a::b ... ok\ntest c ... FAILED\ntest d ... ignored\ntest e - should panic ... ok\ntest f ... ok x",
            {"a::b": P, "c": F},
        ),
    ],
    "parse_log_jest": [
        (
            "  ✓ adds (3 ms)\n  ✕ fails (1 s)\n  ○ skipped later\n ✓ f (x)",
            {"adds": P, "fails": F, "skipped later": S, "f (x)": P},
        )
    ],
    "parse_log_jest_json": [("[PASSED] a b\n[FAILED] c (3 ms)\n[SKIPPED] d", {"a b": P, "c (3 ms)": F})],
    "parse_log_vitest": [
        (
            "✓ f > adds 3ms\n× f > no\n↓ f > later [skipped]\n✓ f > counts to 10",
            {"f > adds": P, "f > no": F, "f > later": S, "f > counts to": P},
        ),
    ],
    "parse_log_js": [
        (
            "✔ a (53ms)\n- later\n3) suite:\n[W] 4) warned\n✔ gives 404s",
            {"a": P, "later": S, "suite": F, "warned": F, "gives": P},
        )
    ],
    "parse_log_js_2": [("✔ a (53ms)\n- later\n3) a\n✔ a", {"a": F, "later": S})],
    "parse_log_js_3": [
        (
            "ok 1 - outer {\nnot ok 1 - in (3ms)\nok 2 - in\n}\nok 2 - later # SKIP why",
            {"outer": P, "outer :: in": F, "later": P},
        ),
    ],
    "parse_log_js_4": [("✔ [w]: a 5ms\n✖ b\n○ c\nd (skipped)", {"a": P, "b": F, "c": S, "d": S})],
    "parse_log_npx": [("✔ a (3ms)\n2) b (mod)\n✔ b", {"a": P, "b": P})],
    "parse_log_tap": [("ok 1 should be equal\nnot ok 2 should be equal\nok 3", {"should be equal": F})],
    "parse_log_karma": [
        (
            "✔ x\nStarting browser\n  Box\n    ✔ opens\n    ✖ shuts\nSUMMARY:\n    ✔ late",
            {"Box > opens": P, "Box > shuts": F},
        )
    ],
    "parse_log_calypso": [
        (
            "  ✓ no\n$ ./node_modules/.bin/jest a\n  box\n    lid\n"
            "      ✓ opens (3ms)\n    ✕ shuts\nTest Suites\n  ✓ late",
            {"box - lid - opens": P, "box - lid - shuts": F},
        ),
    ],
    "parse_log_chart_js": [("Chrome 89.0 (Linux) a b FAILED\nChrome 89.0 (Linux) ok", {"a b ": F})],
    "parse_log_marked": [("1) a title\n  2) not at the start", {"a title": F})],
    "parse_log_p5js": [("<b>\n1) x\n</b>\n  1) box\n     lid\n       opens:\n  2)flat\n  next:", {"box:lid:opens": F})],
    "parse_log_react_pdf": [("PASS src/a.js (1.2 s)\nFAIL src/b.js\n PASS c", {"src/a.js": P, "src/b.js": F})],
    "parse_log_maven": [
        ("+ mvn -Dtest=A#b test\n[INFO] BUILD SUCCESS\n+ mvn -Dtest=C\nBUILD FAILURE", {"A#b": P, "C": F})
    ],
    "parse_java_mvn": [
        (
            "[INFO] Running a.B\n[INFO] Tests run: 1, Failures: 0, Errors: 0, Skipped: 0, Time elapsed: 1 s - in a.B\n"
            "[ERROR] a.C.m:12 Exception\n[ERROR] a.D.n:3 expected\n"
            "Tests run: 2, Failures: 0, Errors: 0, Skipped: 1 -- in a.E",
            {"a.B": P, "a.C.m": E, "a.C": F, "a.D.n": F, "a.D": F, "a.E": S},
        ),
    ],
    "parse_java_mvn_v2": [
        (
            "[INFO] Mod A ..... SUCCESS [ 1 s]\n[INFO] B .. FAILURE\nTests run: 2, Failures: 0, Errors: 1, Skipped: 0",
            {"Mod A": P, "B": F, "__suite__": E},
        )
    ],
    "parse_log_ant": [("  [junit] [PASS] a\n  [junit] [ERR] b", {"a": P, "b": F})],
    "parse_log_gradle_custom": [
        (
            "Box > opens() PASSED\nBox > shuts FAILED (1.2s)\n> Task :test PASSED\nBox > later SKIPPED",
            {"Box > opens()": P, "Box > shuts": F},
        )
    ],
    "parse_log_gradlew_v1": [
        ('<?xml version="1.0"?>\n<testsuite><testcase name="a()" classname="B"/>\n</testsuite>', {"a() (B)": P})
    ],
    "parse_log_sbt": [
        (f"x {XML} <testcase name='q'> <testcase name=\"r &lt;\"><skipped>", {"a.B c d": P, "a.B e": F, "r &lt;": S})
    ],
    "parse_logs_kotlin_junit": [("Running a.B\nTests run: 1, Failures: 0, Errors: 1, Skipped: 0", {"a.B": F})],
    "parse_logs_r_junit": [(DOC, {"a.B::c d": P, "a.B::e": F})],
    "parse_log_phpunit": [
        (
            "Box (App\\Box)\n ✔ Opens [1.34 ms]\n ✘ Shuts\n ↩ Later\n ∅ Todo",
            {"Box > Opens": P, "Box > Shuts": F, "Box > Later": S},
        ),
        (" ✔ Alone", {"None > Alone": P}),
    ],
    "parse_log_php_v1": [
        (
            "  ✓ opens  0.03s\n  ⨯ shuts  1s\n  - later\n  FAIL  Tests\\Box\n"
            "  Tests: 3\n  PASS  Tests\\Lid\nnoise (skipped)",
            {"opens": P, "shuts": F, "later": S, "Tests\\Box": F, "noise (skipped)": S},
        )
    ],
    "parse_log_googletest": [
        (
            "[       OK ] A.B (0 ms)\n[  FAILED  ] A.C/1, where GetParam() = 2 (1 ms)\n[  FAILED  ] A.C/1",
            {"A.B": P, "A.C/1, where GetParam() = 2": F},
        )
    ],
    "parse_log_doctest": [
        (
            'x<doctest><TestCase name="t"><SubCase name="a"><Expression success="true"/></SubCase>'
            '<SubCase name="b"><Expression success="false"/></SubCase></TestCase></doctest>',
            {"t > a": P, "t > b": F},
        )
    ],
    "parse_log_jq": [("PASS: tst_a.sh\n  FAIL: b c\nXFAIL: d", {"tst_a.sh": P, "b c": F})],
    "parse_log_redis": [
        ("[ok]: SET (12 ms)\n[err]: GET in tests/x.tcl\n[ignore]: DEL", {"SET": P, "GET": F, "DEL": S})
    ],
    "parse_log_micropython_test": [("pass  a.py\nFAIL  b.py\nskip  c.py", {"a.py": P, "b.py": F, "c.py": S})],
    "parse_log_cpp": [
        (
            "tests/t.py::a PASSED [1%]\nt.py::b FAILED\n"
            + "=" * 35
            + " FAILURES "
            + "=" * 35
            + "\nt::c PASSED\n"
            + "_" * 27
            + " a "
            + "_" * 27,
            {"a": F, "b": F},
        )
    ],
    "parse_log_cpp_v2": [("Test a b    passed\nTest c  failed\nTest d skipped", {"a b": P, "c": F, "d": S})],
    "parse_log_cpp_v3": [
        (
            "[1/4] File: a... OK\nB (form 1)... FAILED\nAES ran 5 tests in 3.1 msec all ok\nC ... odd",
            {"File: a": P, "B (form 1)": F, "AES ran 5 tests all ok": P, "C": E},
        )
    ],
    "parse_log_cpp_v4": [
        (
            "1/3 Test  #1: a b ......   Passed 0.1 sec\n2/3 Test #2: c ....***Failed\n3/3 Test #3: d ... Timeout",
            {"a b": P, "d": F},
        )
    ],
    "parse_log_minitest": [("Box. x = 0.1 s = .\nLid. y = F", {"Box": P, "Lid": F})],
    "parse_log_cucumber": [("Box ....F\nLid ....", {"Box": F, "Lid": P})],
    "parse_log_ruby_unit": [("test: opens:  .: (0.1)\nshuts: F\nlater: O", {"opens": P, "shuts": F, "later": S})],
    "parse_log_rspec_transformed_json": [("a - b - passed\nc - failed\nd - pending", {"a - b": P, "c": F})],
    "parse_log_ruby_v1": [
        (
            "BoxTest\n  test_opens     PASS (0.02s)\n  test_shuts  FAIL\n  test_shuts  PASS",
            {"BoxTest::test_opens": P, "BoxTest::test_shuts": F},
        )
    ],
    "parse_log_ruby_v2": [
        (
            "Box#opens = 5.30 s = .\nBox#shuts = 0.1 s = E\nBox#later = 0.1 s = S",
            {"Box#opens": P, "Box#shuts": F, "Box#later": S},
        )
    ],
    "parse_log_scala": [
        (
            "[info] - opens (5 milliseconds)\n[info] - shuts *** FAILED *** (1 second)\n[info] - later !!! IGNORED !!!",
            {"opens": P, "shuts": F, "later": S},
        )
    ],
    "parse_log_scala_v2": [
        (
            "\x1b[32m  + \x1b[0m\x1b[32mopens lid\x1b[0m \x1b[90m12ms\x1b[0m\n  x shuts 1.2s",
            {"opens lid": P, "shuts": F},
        )
    ],
    "parse_log_scala_v3": [
        (
            "[info] Box:\n[info] - opens (5 milliseconds)\n[info] - shuts *** FAILED ***\n"
            "[info] - odd *** FAILED *** (3 ms)",
            {"Box:: opens": P, "Box:: shuts": F, "Box:: odd *** FAILED ***": P},
        )
    ],
    "parse_log_elixir": [
        (
            "  * test opens (1.2ms) [L#3]\n  * test shuts [L#4]\n  * test later (skipped) [L#5]\n  1) test shuts (Box)",
            {"opens": P, "shuts": F, "later": S},
        )
    ],
    "parse_log_lein": [
        ("lein test a.b\nFAIL in (x)\nlein test :only c.d/e\nlein test f", {"a.b": F, "c.d": P, "f": P})
    ],
    "parse_log_haskell": [
        (
            "  a.b: OK (0.1s)\n  c: FAIL\n  ✓ d (1s)\n  e [✗]\n### Error in: f",
            {"a.b": P, "c": F, "d": P, "e": F, "f": E},
        )
    ],
    "parse_log_haskell_v2": [
        (
            "Test suite t: RUNNING...\nMod.Box\n  lid\n    opens\n"
            "    shuts FAILED [1]\nFailures:\n  1) Mod.Box, lid, shuts",
            {"Mod.Box.lid.opens": P, "Mod.Box.lid.shuts": F},
        )
    ],
    "parse_log_ocaml": [("[OK]   box   0   opens.\n[FAIL]  box  1  shuts.", {"box 0 opens.": P, "box 1 shuts.": F})],
    "parse_log_ocaml_v2": [
        (
            "Running[3]: (cd x && ./t/box.exe -q)\nOutput[3]:\nfine\nRunning[4]: (lid.exe)\nOutput[4]:\nfailed",
            {"box.exe": P, "lid.exe": F},
        )
    ],
    "parse_log_ocaml_v3": [("[OK] a  b\n[KO] a b\n[skip] c\n[what] d", {"a b": F, "c": S})],
    "parse_log_ocaml_v4": [("\x1b[32mPASSED\x1b[0m box lid   1.0s\nFAILED  other", {"box lid": P, "other": F})],
    "parse_log_julia": [(PIPES, {"outer": F, "inner": P})],
    "parse_log_r": [
        (
            "✔ |   60 | box [1.2s]\n✖ | 2 2 9 | lid\n── Failed tests ──\nError (t.R:1:2): shuts",
            {"box": P, "lid": F, "shuts": E},
        )
    ],
    "parse_log_r_v2": [("* checking a ... OK\n* checking b ...\n* checking c ... OK\nWARNING x", {"a": P, "b": F})],
    "parse_log_dart": [
        (
            '{"type":"testStart","test":{"id":1,"name":"a"}}\n'
            '[{"type":"testDone","testID":1,"result":"success","skipped":true}]',
            {"a": P},
        )
    ],
    "parse_log_dart_v2": [
        (
            "[p]: 00:01 +3: /a_test.dart: x\n[p]: 00:01 +4: /a_test.dart: x\n[p]: 00:02 +4: /a_test.dart: y",
            {"/a_test.dart: x": P, "/a_test.dart: y": E},
        )
    ],
    "parse_log_dart_v3": [
        (
            "00:01 +6: /t.dart: x\n00:02 +6 -1: /t.dart: y [E]\n00:06 +2 -3: loading /u.dart [E]",
            {"/t.dart: x": P, "/t.dart: y": F, "/u.dart": E},
        )
    ],
    "parse_log_swift": [
        (
            "Test Case 'Box.opens' passed (0.1 seconds)\nTest Case 'Box.shuts' failed (1 seconds)",
            {"Box.opens": P, "Box.shuts": F},
        )
    ],
    "parse_log_csharp": [
        (
            "  Passed A.B(x: [1]) [3 ms]\n  Failed A.C [1 s]\n  Skipped A.D\n[xUnit.net 00:01.2]   A.E [FAIL]",
            {"A.B(x:": P, "A.C": F, "A.D": S, "A.E": F},
        )
    ],
    "parse_lue_nvim": [("Success\t||\tbox opens\nFail\t||\tbox shuts\nSuccess: 1", {"box opens": P, "box shuts": F})],
}
ALIASES = {
    "parse_lua_nvim": "parse_lue_nvim",
    "parse_log_lua_nvim": "parse_lue_nvim",
    "parse_log_java_mvn": "parse_java_mvn",
    "parse_log_java_mvn_v2": "parse_java_mvn_v2",
    "parse_log_junit": "parse_log_sbt",
    "parse_log_ocaml_v5": "parse_log_ocaml_v4",
    "parse_log_r_junit": "parse_logs_r_junit",
    "parse_log_kotlin_junit": "parse_logs_kotlin_junit",
}


def test_the_registry_has_the_76_names_and_68_parsers() -> None:
    assert len(parser_names()) == 76
    assert set(parser_names()) == {*CASES, *ALIASES}
    assert len({get_parser(name) for name in parser_names()}) == 68
    for alias, name in ALIASES.items():
        assert get_parser(alias) is get_parser(name)


@pytest.mark.parametrize(("name", "log", "expected"), [(n, log, e) for n, rows in CASES.items() for log, e in rows])
def test_reads_its_runner(name: str, log: str, expected: dict[str, str]) -> None:
    assert get_parser(name)(log) == expected


@pytest.mark.parametrize("name", parser_names())
def test_an_empty_log_says_nothing(name: str) -> None:
    assert get_parser(name)("") == {}
    assert get_parser(name)("\n\n \t\n") == {}


def test_older_names_that_upstream_reaches() -> None:
    log = (
        "test_a (m.C) ... ok\nA docstring. ... ok\ntest_b (m.C) ... FAIL\n"
        "test_c (m.C) ... skipped 'no'\nERROR: test_d (m.C)"
    )
    assert get_parser("parse_log_django")(log) == {
        "test_a (m.C)": P,
        "A docstring.": P,
        "test_b (m.C)": F,
        "test_c (m.C)": S,
        "test_d": E,
    }
    assert get_parser("parse_log_sympy")("test_a ok\ntest_b F\n__ sympy/x.py:test_c __") == {
        "sympy/x.py:test_c": F,
        "test_a": P,
        "test_b": F,
    }
    assert get_parser("parse_log_flask") is get_parser("parse_log_pytest")
    assert get_parser("parse_log_seaborn")("t.py::a PASSED [1%]\nFAILED t.py::b - x") == {"t.py::a": P, "t.py::b": F}
    assert get_parser("parse_log_matplotlib")("PASSED t::a[MouseButton.LEFT]") == {"t::a[1]": P}


def test_an_unknown_name_names_close_ones() -> None:
    with pytest.raises(ConfigError, match="parse_log_gotest"):
        get_parser("parse_log_gotests")
    with pytest.raises(ConfigError, match="parser_names"):
        get_parser("zzz")


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("Box > Opens [1.34 ms]", "Box > Opens"),
        ("AES ran 5 tests in 29.08 msec all ok", "AES ran 5 tests all ok"),
        ("a in 1 sec in 2 sec b", "a b"),
        ("opens (1.2s)", "opens"),
        (" opens ( 12 MS ) ", "opens"),
        ("opens (1.2 min)", "opens (1.2 min)"),
        ("t.py::x[1 ms]y", "t.py::x[1 ms]y"),
        ("\x1b[1mopens\x1b[0m lid", "opens lid"),
        ("takes 3 s", "takes 3 s"),
    ],
)
def test_ids_lose_times_colours_and_blanks(raw: str, clean: str) -> None:
    assert normalise_id(raw) == clean
    assert normalise_id(clean) == clean


def test_ids_that_become_one_keep_the_worse_status() -> None:
    assert normalise_results({"a (1s)": "PASSED", "a (2s)": "FAILED", "a": "PASSED"}) == {"a": "FAILED"}
    assert normalise_ids(["b [1 ms]", "a", "b"]) == ("b", "a")
    assert read_log("parse_log_jq", "PASS: a (1s)\nFAIL: a (2s)") == {"a": "FAILED"}
