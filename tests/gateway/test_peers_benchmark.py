"""``benchmarks/peers.py``: the arithmetic of its report, and that it runs here against a real gateway."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from benchmarks import peers
from benchmarks.peer_sides.conversation import EngineScript, engine_script, make_script, write_model
from benchmarks.peer_sides.load import CallCost, final_bodies
from benchmarks.peer_sides.report import Results, SideResult, plot, ratios, regressions, table

from drivetrain.engines.models import ModelDir


def side(name: str, cost: float, growth: float, kept: float) -> SideResult:
    """A side whose calls cost ``cost`` ms, and ``growth`` times as much late in long conversations."""
    short = [[CallCost(turn, 1000, 2.0, cost) for turn in range(1, 11)] for _ in range(3)]
    long = [[CallCost(turn, 1000, 2.0, cost * (growth if turn > 20 else 1.0)) for turn in range(1, 41)]]
    return SideResult(name, short, long, [(1000 * n, 50_000_000 + int(kept * 1000 * n)) for n in range(6)])


def results(*sides: SideResult) -> Results:
    return Results(2, 0.1, 10.0, {"drivetrain": "1"}, {10: 0.5, 40: 1.0}, list(sides))


def test_ratios() -> None:
    run = results(side("drivetrain", 2.0, 1.5, 8.0), side("openenv", 12.0, 4.0, 2000.0))
    assert ratios(run) == {"than_openenv": 6.0, "growth": 1.33, "bytes_per_token": 8.0}
    assert "6.00" in table(run)
    assert ratios(results(side("openenv", 12.0, 4.0, 1.0))) == {}


def test_memory_needs_several_conversations() -> None:
    few = side("drivetrain", 2.0, 1.5, 8.0)
    few.memory = few.memory[:3]
    assert few.bytes_per_token() is None
    assert "bytes_per_token" not in ratios(results(few))


@pytest.mark.parametrize(
    ("found", "worse"),
    [
        ({"than_openenv": 4.0, "growth": 2.0, "bytes_per_token": 10.0}, []),
        ({"than_openenv": 3.1, "growth": 2.4, "bytes_per_token": 12.0}, []),
        ({"growth": 2.0}, []),
        ({"than_openenv": 2.9, "growth": 2.0}, ["openenv cost 2.9"]),
        ({"than_openenv": 9.0, "growth": 2.6, "bytes_per_token": 13.0}, ["growth is 2.6", "bytes_per_token is 13"]),
    ],
)
def test_regressions(found: dict[str, float], worse: list[str]) -> None:
    said = regressions(found, {"than_openenv": 4.0, "growth": 2.0, "bytes_per_token": 10.0})
    assert [line.startswith(start) for line, start in zip(said, worse, strict=True)] == [True] * len(worse)


def test_the_committed_baseline_is_of_these_ratios() -> None:
    baseline = msgspec.json.decode(peers.BASELINE.read_bytes(), type=dict[str, float])
    assert set(baseline) == {"than_openenv", "than_verifiers", "growth", "bytes_per_token"}


def test_conversations_are_as_long_as_said() -> None:
    script = make_script(3, 50)
    assert script == make_script(3, 50)
    assert script.turns != make_script(4, 50).turns
    [body] = final_bodies(script, [50])
    assert 140_000 < len(body) < 160_000


@pytest.fixture(scope="module")
def scripted(tiny_model: ModelDir, tmp_path_factory: pytest.TempPathFactory) -> EngineScript:
    pytest.importorskip("trl")
    model = write_model(tmp_path_factory.mktemp("scripted"), tiny_model.path, peers._template())
    return engine_script(make_script(1, 3), model)


def test_the_engine_extends_its_prompts(scripted: EngineScript) -> None:
    assert len(scripted.sampled) == len(scripted.appended) == 3
    assert all(scripted.sampled)
    assert len({ids[-1] for ids in scripted.sampled}) == 1  # all end on the close token


@pytest.mark.timeout(600)
def test_it_runs(tiny_model: ModelDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("trl")
    out, drawn = tmp_path / "peers.json", tmp_path / "peers.svg"
    arguments = ["--quick", "--sides", "drivetrain", "--tokenizer", str(tiny_model.path), "--out", str(out)]
    assert peers.main(arguments) == 0
    said = capsys.readouterr().out
    assert "drivetrain" in said
    whole = msgspec.json.decode(out.read_bytes())
    assert set(whole["ratios"]) == {"growth", "bytes_per_token"}
    [ours] = whole["sides"]
    assert [len(calls) for calls in [*ours["short"], *ours["long"]]] == [6, 6, 20]
    pytest.importorskip("matplotlib")
    plot(msgspec.convert({**whole, "sides": whole["sides"]}, Results, strict=False), drawn)
    assert drawn.read_text().startswith("<?xml")


def test_a_side_that_is_not_installed_is_left_out(
    tiny_model: ModelDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "missing", lambda side: f"{side} is missing")
    monkeypatch.setattr(peers, "_measure", lambda args, _folder: results(*(side(s, 1, 1, 1) for s in args.sides)))
    assert peers.main(["--sides", "openenv"]) == 0
    assert "without openenv: openenv is missing" in capsys.readouterr().err
