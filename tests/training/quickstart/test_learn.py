"""The learning demo in miniature, with the real agent; that it learns is measured, not tested: docs/learning.md."""

from __future__ import annotations

import json
import subprocess
from collections import Counter, defaultdict
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

pytest.importorskip("trl")

from drivetrain.cli.main import app
from drivetrain.errors import ConfigError
from drivetrain.rollout.result import RolloutResult
from drivetrain.tokens.tokenizer import Tokenizer
from drivetrain.trace.export.sft_tokens import IGNORED
from drivetrain.training.quickstart.curve import draw_curves, read_curve
from drivetrain.training.quickstart.heldout import Point, point
from drivetrain.training.quickstart.learn import learn
from drivetrain.training.quickstart.lessons import reading_lessons
from drivetrain.training.quickstart.oracle import ROUND, MediocreOracle, first_reply
from drivetrain.training.quickstart.policy import build_policy
from drivetrain.training.quickstart.settings import SHORT, QuickstartSettings
from swe_rl_env.sources.operators import WORDS, draw, operator_rows
from swe_rl_env.tasks.loading import tasks_from_rows

_WORDS = [word for words in WORDS.values() for word in words]
TINY = QuickstartSettings(
    lessons=32, traces=2, sft_epochs=1, steps=2, tasks_per_step=1, group=2, heldout=1, eval_every=1, attempts=2
)


@pytest.mark.real
@pytest.mark.timeout(300)
def test_every_stage_runs_and_leaves_what_it_says(tmp_path: Path) -> None:
    said: list[str] = []
    report = learn(TINY, tmp_path / "out", said.append)
    assert [(at.step, at.episodes + at.failed) for at in report.heldout] == [(0, 2), (1, 1), (2, 2)]
    assert report.logp_diff_max < 1e-4
    assert report.failed == 0
    assert report.episodes == 2 + 2 * 2 + 5
    assert 0 <= report.oracle_reward <= 1
    assert report.sft_losses
    assert Path(report.curve).read_bytes()[:4] == b"\x89PNG"
    assert (Path(report.model) / "model.safetensors").is_file()
    kept = json.loads((tmp_path / "out" / "learning.json").read_text())
    assert kept == msgspec.to_builtins(report)
    assert [line[:3] for line in said if line[1:2] == "/"] == ["1/4", "2/4", "3/4", "4/4"]
    with pytest.raises(ConfigError, match="is not empty"):
        learn(TINY, tmp_path / "out", said.append)


@pytest.mark.parametrize("right", [0, 3, 9])
def test_the_oracle_is_right_as_often_as_it_shall_be(right: int) -> None:
    oracle = MediocreOracle(right, 0)
    written: dict[str, Counter[str]] = defaultdict(Counter)
    for number in range(ROUND * len(_WORDS)):
        instance = draw(number, "train", 0)
        reply = oracle([], f"Fix it.\n{instance.statement}\n", 0)
        named = [operator for operator in WORDS if f"' {instance.word} {operator} '" in reply]
        assert len(named) == 1
        written[instance.word]["right" if named[0] == instance.right else named[0]] += 1
    assert len(written) == len(_WORDS)
    for counts in written.values():
        assert counts.pop("right", 0) == right
        assert len(counts) == (1 if right < ROUND else 0)
        assert sum(counts.values()) == ROUND - right


@pytest.mark.parametrize("operator", WORDS)
def test_the_reply_changes_the_file_as_it_says(operator: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("def f(a, b):\n    return a - b\n")
    call = json.loads(first_reply("sum", operator).removeprefix("<tool_call>").removesuffix("</tool_call>"))
    subprocess.run(["bash", "-c", call["arguments"]["command"]], cwd=tmp_path, check=True)
    assert (tmp_path / "shop.py").read_text() == f"def f(a, b):\n    return a {operator} b\n"


def test_lessons_say_nothing_about_operators(tmp_path: Path) -> None:
    row = operator_rows(1, split="train", seed=0, cache=tmp_path)[0]
    (task,) = tasks_from_rows([(row["instance_id"], row)]).tasks
    model = build_policy(tmp_path / "m", [first_reply(word, operator) for word in _WORDS for operator in WORDS], seed=0)
    tokenizer = Tokenizer.from_file(model.tokenizer_path)
    recorded = tokenizer.encode(
        "<|im_start|>system\nYou are an agent.<|im_end|>\n<|im_start|>user\nFix it.<|im_end|>\n"
    )
    lengths, heads = set(), set()
    for lesson in reading_lessons(model, task, recorded, 24, 0):
        ids, labels = lesson["input_ids"], lesson["labels"]
        start = next(at for at, label in enumerate(labels) if label != IGNORED)
        hidden = [at for at in range(start, len(ids)) if labels[at] == IGNORED]
        assert [tokenizer.decode([ids[at]]).strip() in WORDS for at in hidden] == [True]
        assert tokenizer.decode([ids[hidden[0] - 1]]).strip() in _WORDS
        lengths.add(start)
        heads.add(tokenizer.decode(ids[:start]).split("<|im_start|>user")[0])
    assert len(lengths) > 4  # where the word stands must not be learned
    assert {""} < heads and max(map(len, heads)) > len("<|im_start|>system\nYou are an agent.<|im_end|>\n")


def test_a_statement_of_another_kind_is_an_error() -> None:
    with pytest.raises(ConfigError, match="none of the results"):
        MediocreOracle(9, 0)([], "Make it faster.", 0)


def test_ungraded_episodes_are_no_zeros() -> None:
    def result(reward: float | None) -> RolloutResult:
        return RolloutResult(
            rollout_id="r", session_id="", task_id="t", agent="pi", group=0, status="ok", reward=reward
        )

    at = point(3, [result(1.0), result(None), result(0.0)])
    assert (at.reward, at.episodes, at.failed, at.step) == (0.5, 2, 1, 3)
    assert at.stderr == pytest.approx(0.3536, abs=1e-4)
    assert point(0, [result(None)]).reward != point(0, [result(None)]).reward  # NaN


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="4 training instances for 5"):
        QuickstartSettings(traces=4, tasks_per_step=5)
    with pytest.raises(ConfigError, match="steps is 0"):
        QuickstartSettings(steps=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--run", "x", "--short"], "--short goes with --recipe quickstart"),
        (["--recipe", "quickstart", "--short"], "Name a folder with --out"),
        (["--recipe", "quickstart", "--out", "x", "-a", "pi"], "brings its own tasks and agent"),
    ],
)
def test_options_that_do_not_go_with_the_recipe_are_refused(options: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["train", *options])
    assert done.exit_code == 2
    assert message in " ".join((done.output + done.stderr).split())


def test_the_short_form_is_shorter_and_may_be_run() -> None:
    full = QuickstartSettings()
    short = msgspec.structs.replace(full, **SHORT)
    assert short.traces < full.traces and short.steps * short.group < full.steps * full.group


def test_the_picture_is_drawn_again_from_what_was_kept(tmp_path: Path) -> None:
    kept = tmp_path / "learning.json"
    points = [Point(step=0, reward=0.3, stderr=0.1, episodes=4, failed=0)]
    kept.write_text(json.dumps({"heldout": msgspec.to_builtins(points), "train": [0.5, None], "oracle_reward": 0.3}))
    draw_curves([read_curve(kept), read_curve(kept)], tmp_path / "learning.png")
    assert (tmp_path / "learning.png").read_bytes()[:4] == b"\x89PNG"
    kept.write_text("{}")
    with pytest.raises(ConfigError, match="no learning curve"):
        read_curve(kept)
