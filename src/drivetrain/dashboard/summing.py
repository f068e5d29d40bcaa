"""From rollouts to the numbers at the top of the page."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from drivetrain.dashboard.model import PassAt, Reward, RolloutView, Summary, Trouble
from drivetrain.evaluation.estimate import pass_at_k

_SOLVED = 1.0
_SHOWN_TROUBLES = 50


def add_rollouts(summary: Summary, views: Sequence[RolloutView]) -> None:
    """Fill in all that the rollouts themselves say."""
    summary.phases = dict(Counter(view.phase for view in views))
    summary.statuses = dict(Counter(view.status for view in views if view.status))
    summary.reward = rewards(views)
    summary.pass_at = passes(views)
    forks: Counter[str] = Counter()
    masked: Counter[str] = Counter()
    for view in views:
        summary.turns += view.turns
        summary.prompt += view.prompt
        summary.sampled += view.sampled
        forks.update(view.forks)
        if view.trained is not None:
            summary.judged += view.trained + sum(view.masked.values())
            masked.update(view.masked)
    summary.forks, summary.masked = dict(forks), dict(masked)
    found = [Trouble(at=view.ended, what=view.error, kind=view.status, rollout=view.id) for view in views if view.error]
    summary.troubles = sorted([*summary.troubles, *found], key=lambda each: -each.at)[:_SHOWN_TROUBLES]


def rewards(views: Iterable[RolloutView]) -> Reward:
    """Over finished rollouts; one without a reward is ungraded, never zero (design invariant 8)."""
    finished = [view for view in views if view.status]
    graded = [view.reward for view in finished if view.reward is not None]
    return Reward(
        graded=len(graded),
        mean=sum(graded) / len(graded) if graded else None,
        solved=sum(reward >= _SOLVED for reward in graded),
        ungraded=len(finished) - len(graded),
    )


def passes(views: Iterable[RolloutView]) -> list[PassAt]:
    """pass@1, 2, 4, ... as far as some task and agent have as many graded attempts."""
    groups: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for view in views:
        if view.reward is not None:
            groups[view.task, view.agent].append(view.reward >= _SOLVED)
    found, k = [], 1
    while members := [group for group in groups.values() if len(group) >= k]:
        value = sum(pass_at_k(len(group), sum(group), k) for group in members) / len(members)
        found.append(PassAt(k, value, len(members)))
        k *= 2
    return found
