"""``GET /metrics``: what a scraper reads, and who may."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from drivetrain.dashboard.board import Board
from drivetrain.dashboard.model import RunView, Summary
from drivetrain.dashboard.rollouts import RolloutCollector
from drivetrain.gateway.sessions import Session
from drivetrain.metrics.lag import LoopLag
from drivetrain.metrics.part import metrics_part
from drivetrain.metrics.tally import Distribution
from drivetrain.metrics.watch import GatewayWatch
from tests.gateway.conftest import Rig, StartRig, start_rig

__all__ = ["start_rig"]
ADMIN, TRAINER = "an-admin-key-of-a-test", "a-trainer-key-of-a-test"
DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"
Labels = tuple[tuple[str, str], ...]
STOPPED = {"dialect": "openai_chat", "finish_reason": "stop"}


class Scraped(dict[tuple[str, Labels], float]):
    """Samples by name and labels."""

    def of(self, name: str, **labels: str) -> float:
        return self[name, tuple(sorted(labels.items()))]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def served(rig: Rig, *more: Any) -> str:
    part = metrics_part(GatewayWatch(rig.gateway), LoopLag(), more)
    port = await rig.server.listen_admin(0, ADMIN, trainer_key=TRAINER, parts=[part])
    return f"http://127.0.0.1:{port}/metrics"


async def scrape(http: aiohttp.ClientSession, url: str) -> Scraped:
    async with http.get(url, headers={"Authorization": f"Bearer {ADMIN}"}) as response:
        assert response.status == 200 and response.headers["Content-Type"].startswith("text/plain; version=")
        families = text_string_to_metric_families(await response.text())
        samples = [sample for family in families for sample in family.samples]
        return Scraped({(each.name, tuple(sorted(each.labels.items()))): each.value for each in samples})


async def say(session: Session, client: Any, *texts: str) -> None:
    """One call, until its turn is known to be delivered: the client has the reply a moment before."""
    await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text} for text in texts])
    async with asyncio.timeout(60):
        while not all(turn.delivered for turn in session.graph):  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_scrape_says_what_the_gateway_did(start_rig: StartRig, http: aiohttp.ClientSession) -> None:
    rig = await start_rig(["one", "two", "three"])
    url = await served(rig)
    session, client = await rig.session(max_turns=3)
    for texts in (["hi"], ["hello"], ["hi"]):  # the second is another conversation, the third the first once more
        await say(session, client, *texts)
    seen = await scrape(http, url)
    turns = list(session.graph)
    assert seen.of("drivetrain_turns_total", **STOPPED) == 3
    assert seen.of("drivetrain_turns_delivered_total") == 3
    assert seen.of("drivetrain_sampled_tokens_total") == sum(len(turn.sampled_ids) for turn in turns)
    assert seen.of("drivetrain_prompt_tokens_total") == sum(turn.prompt_len for turn in turns)
    assert seen.of("drivetrain_forks_total", reason="new_conversation") == 1
    assert seen.of("drivetrain_forks_total", reason="same_prompt") == 1
    assert seen.of("drivetrain_engine_call_seconds_count") == 3
    assert seen.of("drivetrain_commit_seconds_count") == 3
    assert seen.of("drivetrain_sessions", state="open") == 1
    assert seen.of("drivetrain_session_turns_bytes") == session.retained_bytes > 0
    assert seen.of("drivetrain_journal_size_bytes") > 0 and seen.of("drivetrain_journal_entries_total") >= 4
    assert (
        seen.of("drivetrain_fence_state", state="open") == 1 and seen.of("drivetrain_fence_state", state="closed") == 0
    )
    assert ("drivetrain_trained_tokens_total", ()) in seen and seen.of("drivetrain_trained_tokens_total") == 0
    assert any(name == "process_resident_memory_bytes" for name, _ in seen)
    await say(session, client, "over budget")
    await rig.gateway.seal_session(session.id)
    after = await scrape(http, url)
    assert after.of("drivetrain_session_events_total", kind="budget_stop") == 1
    assert after.of("drivetrain_sessions", state="sealed") == after.of("drivetrain_sessions_sealed_total") == 1
    assert after.of("drivetrain_trained_tokens_total") == seen.of("drivetrain_sampled_tokens_total")
    assert after.of("drivetrain_turns_total", **STOPPED) == 3


async def test_a_session_that_ends_between_two_scrapes_counts(start_rig: StartRig, http: aiohttp.ClientSession) -> None:
    rig = await start_rig(["one"])
    url = await served(rig)
    session, client = await rig.session()
    await say(session, client, "hi")
    await rig.gateway.seal_session(session.id)
    rig.gateway.sessions.forget(session.id)
    seen = await scrape(http, url)
    assert seen.of("drivetrain_turns_total", **STOPPED) == 1
    assert seen.of("drivetrain_sessions", state="sealed") == 0 and seen.of("drivetrain_sessions_sealed_total") == 1


async def test_what_was_before_counts_nothing(start_rig: StartRig, http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """Counters are of this process: a turn that the journal brought back was counted by the one before."""
    rig = await start_rig(["one"])
    session, client = await rig.session()
    await say(session, client, "hi")
    url = await served(rig)
    assert not [name for name, _ in await scrape(http, url) if name == "drivetrain_turns_total"]
    await say(session, client, "again")
    seen = await scrape(http, url)
    assert seen.of("drivetrain_turns_total", **STOPPED) == 1
    assert seen.of("drivetrain_sessions", state="open") == 1 and seen.of("drivetrain_sessions_opened_total") == 0


async def test_refusals_are_counted_by_code(start_rig: StartRig, http: aiohttp.ClientSession) -> None:
    rig = await start_rig(["one"])
    url = await served(rig)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    for key in ("nobody", "else"):
        async with http.post(f"{rig.url}/v1/chat/completions", json=body, headers={"x-api-key": key}) as response:
            assert response.status == 401
    _, key = await rig.gateway.open_session()
    async with http.post(f"{rig.url}/v1/chat/completions", data=b"{", headers={"x-api-key": key}) as response:
        assert response.status == 400
    seen = await scrape(http, url)
    assert seen.of("drivetrain_refusals_total", code="invalid_api_key") == 2
    assert seen.of("drivetrain_refusals_total", code="invalid_request") == 1


async def test_only_a_key_of_the_admin_surface_opens_it(start_rig: StartRig, http: aiohttp.ClientSession) -> None:
    rig = await start_rig()
    url = await served(rig)
    _, agent = await rig.gateway.open_session()
    sent = [{}, {"x-api-key": agent}, {"Authorization": f"Bearer {agent}"}, {"x-api-key": "x" * 40}]
    for headers in sent:
        async with http.get(url, headers=headers) as response:
            assert response.status == 401 and "drivetrain_" not in await response.text()
    for headers in ({"x-api-key": ADMIN}, {"Authorization": f"Bearer {ADMIN}"}, {"x-api-key": TRAINER}):
        async with http.get(url, headers=headers) as response:
            assert response.status == 200
    async with http.get(f"{rig.url}/metrics", headers={"x-api-key": agent}) as response:
        assert response.status == 404  # not on the surface that harnesses reach


async def test_labels_are_bounded_and_every_metric_is_in_the_docs(
    start_rig: StartRig, http: aiohttp.ClientSession
) -> None:
    rig = await start_rig(["one"])
    board = Board(RunView(name="r"))
    board.summarize(Summary(phases={"done": 2}, statuses={"ok": 2}, sandboxes={"agent": 1}))
    url = await served(rig, RolloutCollector(board))
    session, client = await rig.session()
    await say(session, client, "hi")
    await rig.gateway.seal_session(session.id)
    headers = {"Authorization": f"Bearer {ADMIN}", "Accept": "application/openmetrics-text; version=1.0.0"}
    async with http.get(url, headers=headers) as response:
        assert response.headers["Content-Type"].startswith("application/openmetrics-text")
        text = await response.text()
    families = {family.name: family for family in read_openmetrics(text)}
    assert session.id not in text
    ours = {name: family for name, family in families.items() if name.startswith("drivetrain_")}
    suffix = {"counter": "_total", "info": "_info"}
    named = {f"{name}{suffix.get(family.type, '')}" for name, family in ours.items()}
    documented = dict(re.findall(r"^\| `(drivetrain_\w+)` \| (\w+)", DOCS.read_text(), re.MULTILINE))
    assert named == set(documented)
    kinds = {f"{name}{suffix.get(family.type, '')}": family.type for name, family in ours.items()}
    assert {name: kinds[name] for name in documented} == documented
    assert families["drivetrain_rollouts"].samples[4].value == 2
    labels = {label for family in ours.values() for sample in family.samples for label in sample.labels}
    assert labels <= {"state", "dialect", "finish_reason", "reason", "kind", "code", "le", "phase", "status", "role",
                      "version", "engine", "model"}  # fmt: skip


async def test_gateways_of_one_process_do_not_mix(start_rig: StartRig, http: aiohttp.ClientSession) -> None:
    first, second = await start_rig(["one"]), await start_rig(["two"])
    urls = [await served(first), await served(second)]
    session, client = await first.session()
    await say(session, client, "hi")
    assert [(await scrape(http, url)).of("drivetrain_turns_delivered_total") for url in urls] == [1, 0]


async def test_what_observes_a_session_does_not_break_it(start_rig: StartRig, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Session) -> dict[str, int]:
        raise RuntimeError("no")

    rig = await start_rig(["one"])
    watch = GatewayWatch(rig.gateway, fates=broken)
    session, client = await rig.session()
    await say(session, client, "hi")
    assert (await rig.gateway.seal_session(session.id)).state == "sealed"
    assert watch.totals.sealed == 1 and "could not be told apart" in caplog.text
    watch.close()
    other, _ = await rig.session()
    await rig.gateway.seal_session(other.id)
    assert watch.totals.sealed == 1  # closed


def test_a_distribution_counts_at_its_bounds() -> None:
    seen = Distribution((1.0, 2.0))
    for value in (-5.0, 1.0, 1.5, 2.0, 9.0):
        seen.observe(value)
    assert seen.cumulative() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)] and seen.total == 13.5
