"""What changed after a version, whoever asks, however late."""

from __future__ import annotations

import msgspec
import pytest

from drivetrain.dashboard import board as boards
from drivetrain.dashboard.board import Board
from drivetrain.dashboard.model import Event, Point, RolloutView, RunView, Summary


def names(event: Event) -> list[str]:
    return [view.id for view in event.rollouts]


@pytest.fixture
def board() -> Board:
    board = Board(RunView(name="r"))
    for name in "abc":
        board.put(RolloutView(id=name))
    board.commit()
    return board


def test_a_delta_holds_what_is_newer_once_and_in_its_latest_form(board: Board) -> None:
    seen = board.version
    for turns in (1, 2, 3):
        board.put(RolloutView(id="b", turns=turns))
        board.point(Point(float(turns), 1.0, 0))
        board.commit()
    delta = board.since(seen)
    assert [(view.id, view.turns) for view in delta.rollouts] == [("b", 3)]
    assert [point.at for point in delta.points] == [1.0, 2.0, 3.0]
    assert delta.run is None and delta.summary is None
    assert names(board.since(board.version)) == []
    assert names(board.since(None)) == ["a", "c", "b"]


def test_nothing_new_is_no_version(board: Board) -> None:
    seen = board.version
    board.put(RolloutView(id="a"))
    board.summarize(Summary())
    board.describe(RunView(name="r"))
    board.drop("unknown")
    assert not board.commit() and board.version == seen
    board.summarize(Summary(turns=1))
    board.describe(RunView(name="r", live=False))
    assert board.commit()
    delta = board.since(seen)
    assert delta.summary == Summary(turns=1) and delta.run == RunView(name="r", live=False)


def test_what_is_gone_is_told_until_too_much_is(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "_MOST_GONE", 3)
    seen = board.version
    board.drop("a")
    board.commit()
    assert (board.since(seen).gone, names(board.since(seen))) == (["a"], [])
    board.put(RolloutView(id="a"))
    board.commit()
    assert (board.since(seen).gone, names(board.since(seen))) == ([], ["a"])
    for name in "abc":
        board.drop(name)
        board.commit()
    assert board.is_snapshot(seen) and board.since(seen).run is not None
    assert board.resume(f"{board.epoch}-{seen}") is None
    assert not board.is_snapshot(board.version)


@pytest.mark.parametrize("event_id", ["", "x", "-1", "{epoch}-", "{epoch}-99", "{epoch}--1", "0000-1", "{epoch}-9e9"])
def test_an_id_of_another_life_begins_anew(board: Board, event_id: str) -> None:
    assert board.resume(event_id.replace("{epoch}", board.epoch)) is None
    assert board.resume(f"{board.epoch}-{board.version}") == board.version


def test_readers_in_step_share_the_bytes(board: Board) -> None:
    seen = board.version
    board.put(RolloutView(id="a", turns=1))
    board.commit()
    first, again = board.event(seen), board.event(seen)
    assert first[1] is again[1] and first[0] == f"{board.epoch}-{board.version}"
    assert names(msgspec.json.decode(board.event(None)[1], type=Event)) == ["b", "c", "a"]


async def test_waiting_ends_with_news_with_the_end_and_in_time(board: Board) -> None:
    assert not await board.newer(board.version, 0.01)
    board.close()
    assert await board.newer(board.version, 60)
