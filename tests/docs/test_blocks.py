"""No code block of README or docs goes unchecked: it runs, or it is parsed and says why it does not run.

``<!-- not run: reason -->`` in front of a block keeps it from being run; its commands must still exist.
``<!-- run with: name -->`` puts something small in the place of what takes long or is not here.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import tomllib
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from drivetrain.cli import rollout
from drivetrain.cli.config import read_config
from drivetrain.cli.main import app
from drivetrain.cli.surface import configurable, walk
from drivetrain.engines.embedded import EmbeddedEngine
from drivetrain.engines.models import ModelDir
from drivetrain.gateway.core import Gateway
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.stack import open_stack
from drivetrain.tokens.codec import TokenCodec
from drivetrain.trace.sample import rows_of
from tests.cli.parsing import ROOT as COMMAND
from tests.cli.parsing import parse
from tests.cli.test_export import moves
from tests.docs.blocks import CHECKED, PROSE, ROOT, SHELL, Block, blocks, commands, inline_commands
from tests.swe_rl_env.server.kit import serve
from tests.trace.test_graph_properties import play
from tests.training.conftest import make_group, make_row, model_dir, score  # noqa: F401 (fixtures)

ALL = list(blocks())
RUN = [block for block in ALL if not block.reason and not block.example]
OTHERS = {  # programs of others: nothing to check but that the block says why it is not run
    *("curl", "docker", "vllm", "pip", "uvicorn"),
}


def of(languages: tuple[str, ...], among: list[Block] = ALL) -> Any:
    chosen = [block for block in among if block.language in languages]
    return pytest.mark.parametrize("block", chosen, ids=[block.name for block in chosen])


def test_every_language_is_known() -> None:
    assert {block.language for block in ALL} <= {*CHECKED, *PROSE}
    assert len(ALL) > 40


def test_blocks_that_are_not_run_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = [block for block in ALL if block.reason]
    with capsys.disabled():
        print(f"\n{len(left_out)} of {len(ALL)} blocks are not run:")
        for block in left_out:
            print(f"  {block.name} ({block.language}): {block.reason}")
    assert all(len(block.reason) > 10 for block in left_out)
    assert len(left_out) <= len(ALL) * 3 / 5  # their commands are parsed nevertheless
    for block in left_out:
        for path in re.findall(r"tests/[\w/.]+", block.reason):
            assert (ROOT / path.rstrip(".")).exists(), f"{block.name} says that {path} runs it"


def test_examples_are_run_by_the_test_that_reads_them() -> None:
    reader = (ROOT / "tests/swe_rl_agent/test_custom_agent.py").read_text()
    for block in ALL:
        assert not block.example or f'example("{block.example}")' in reader, block.name


@of(SHELL)
def test_shell_commands_exist(block: Block) -> None:
    for words in commands(block):
        program = words[0].removeprefix(".venv/bin/")
        if program == "drivetrain":
            parse(" ".join(_quoted(words)))
        elif program == "make":
            targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
            assert {word for word in words[1:] if "=" not in word} <= targets
        elif program == "python" and words[1] == "-m":
            module = ROOT / "src" / words[2].replace(".", "/")
            assert words[2] == "pytest" or module.with_suffix(".py").is_file() or module.is_dir(), words
            assert words[2] != "pytest" or all((ROOT / word).exists() for word in words[3:] if "/" in word)
        elif program == "python":
            script = (ROOT / words[1]).read_text()
            assert all(f'"{word.split("=")[0]}"' in script for word in words[2:] if word.startswith("--")), words
        elif program == ".":
            assert words == [".", ".venv/bin/activate"]
        else:
            assert program in OTHERS or (ROOT / program).is_file(), f"{block.name}: what is {program}?"
            assert block.reason or block.needs, f"{block.name}: {program} is not run; say why in front of the block"


def _quoted(words: list[str]) -> list[str]:
    return [f"'{word}'" for word in words]


@pytest.mark.parametrize(("page", "text"), sorted(set(inline_commands())))
def test_commands_in_running_text_exist(page: str, text: str) -> None:
    """`drivetrain trace check RUN` may leave arguments out, but commands and flags must be there."""
    words = text.split()[1:]
    known = dict(walk(COMMAND))
    groups = {path[:1] for path in known if len(path) == 2}
    path = tuple(words[:1]) if tuple(words[:1]) not in groups else tuple(words[:2])
    if path in groups:  # `drivetrain tasks`: the group itself
        return
    if path[1:] and path not in known:
        path = (path[0], path[1].rstrip(",;"))
    assert path in known, f"{page}: {text}"
    flags = {flag for parameter in known[path].params for flag in (*parameter.opts, *parameter.secondary_opts)}
    asked = {word.split("=")[0] for word in words[len(path) :] if re.match(r"--?[a-z]", word)}
    assert asked <= flags | {"--help"}, f"{page}: {text}"


@of(("toml",), RUN)
def test_toml_loads(block: Block, tmp_path: Path) -> None:
    data = tomllib.loads(block.text)
    assert data
    if "rollout" in data:  # a drivetrain.toml
        (tmp_path / "drivetrain.toml").write_text(block.text)
        assert read_config(tmp_path / "drivetrain.toml", configurable(COMMAND)).values


@of(("yaml",), RUN)
def test_yaml_loads(block: Block) -> None:
    assert yaml.safe_load(block.text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The blocks of a page are run one after the other in a folder of its own."""
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def environment() -> Iterator[str]:
    """The address of an OpenEnv server with the tasks."""
    with serve(max_concurrent_envs=2) as running:
        yield running.url


@pytest.fixture
def provided(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Block], Block]:
    """Puts what a block needs in place; the block as it is then run."""

    def provide(block: Block) -> Block:
        if block.needs == "an environment server":
            url = request.getfixturevalue("environment")
            text = re.sub(r"(http://)?(127\.0\.0\.1|localhost):8000", url, block.text)
            return msgspec.structs.replace(block, text=text)
        if block.needs == "a tiny model":
            tiny = request.getfixturevalue("tiny_model")
            monkeypatch.setattr(rollout, "open_stack", lambda *given, **options: _tiny_stack(tiny, *given, **options))
            monkeypatch.setattr("webbrowser.open", lambda _url: True)
        return block

    return provide


PROVIDED = ("", "an environment server", "a tiny model")


@asynccontextmanager
async def _tiny_stack(model: ModelDir, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
    """Everything of a run but the model: a tiny one with random weights samples."""
    engine = EmbeddedEngine(model, threads=1)
    await engine.start()
    try:
        async with open_stack(*arguments, **options, engine=engine, model=model) as runner:
            yield runner
    finally:
        await engine.aclose()


@pytest.mark.real
@of(SHELL, RUN)
def test_shell_blocks_run(
    block: Block, folder: Path, provided: Callable[[Block], Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / block.page.replace("/", "_")
    place.mkdir(exist_ok=True)
    monkeypatch.chdir(place)
    assert block.needs in PROVIDED
    for words in commands(provided(block)):
        if words[0] == "curl":
            _post(words)
        else:
            assert words[0] == "drivetrain", f"{block.name}: only drivetrain's own commands are run"
            run = CliRunner().invoke(app, words[1:])
            assert run.exit_code == 0, f"{words}: {run.output}"


def _post(words: list[str]) -> None:
    """What curl would do; it may not be installed. Raises for an answer of 400 or more."""
    (url,) = [word for word in words[1:] if word.startswith("http")]
    said = {flag: value for flag, value in itertools.pairwise(words) if flag in ("-H", "-d")}
    assert {word for word in words if word.startswith("-")} <= {"-s", "-H", "-d"}, words
    header, _, value = said["-H"].partition(": ")
    request = urllib.request.Request(url, said["-d"].encode(), {header: value})
    with urllib.request.urlopen(request, timeout=200) as answer:
        assert json.load(answer)


@pytest.fixture
async def names(
    tmp_path: Path,
    tiny_model: ModelDir,
    codec: TokenCodec,
    model_dir: Path,  # noqa: F811
    make_group: Callable[..., list[RolloutResult]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[dict[str, Any]]:
    """What the pages' Python blocks take as given: a gateway and its weights, a graph and its rows, a recorded run."""
    from transformers import AutoModelForCausalLM

    monkeypatch.chdir(tmp_path)
    run = RunDir.create(Path("runs/first"))
    run.write_info({"model": {"path": str(model_dir), "name": "m"}})
    for result in make_group([1.0, 0.0]):
        run.append(result)
    engine = EmbeddedEngine(tiny_model, threads=1)
    await engine.start()
    gateway = Gateway(engine, codec, tmp_path / "journal.sqlite", model="m")
    graph = play(moves("continue", "branch")).graph
    model = AutoModelForCausalLM.from_pretrained(str(tiny_model.path))
    yield {
        "gateway": gateway,
        "model": model,
        "token_ids": list(range(3, 19)),
        "graph": graph,
        "rows": rows_of(graph, reward=1.0, session_id="s"),
    }
    await gateway.aclose()
    await engine.aclose()


@pytest.mark.real
@of(("python",), RUN)
async def test_python_blocks_run(block: Block, names: dict[str, Any], provided: Callable[[Block], Block]) -> None:
    block = provided(block)
    code = compile(block.text, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    done = eval(code, names)
    if inspect.isawaitable(done):
        await done


@of(("python",))
def test_what_python_blocks_import_is_there(block: Block) -> None:
    """Also of the blocks that are not run."""
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("drivetrain", "swe_rl")):
            module = __import__(str(node.module), fromlist=[alias.name for alias in node.names])
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
