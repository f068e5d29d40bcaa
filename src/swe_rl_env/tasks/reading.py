"""Decoded rows from files: JSON Lines, Parquet, folders of them, and data sets of the hub."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from drivetrain.errors import ConfigError, InfrastructureError, MissingDependency
from swe_rl_env.tasks.rows import json_lines

Rows = Iterator[tuple[str, Mapping[str, Any]]]
_SUFFIXES = (".jsonl", ".ndjson", ".parquet")


def read_local(path: Path, split: str | None = None) -> Rows:
    """Rows of a file, or of every data file in a folder, sorted by name.

    Args:
        split: only files named after it (``train.jsonl``, ``data/train-00000-of-00001.parquet``) or in a folder of that
            name. Without one, a folder whose files belong to several splits is refused.

    Raises:
        ConfigError: no such file, an unknown suffix, a row that is no object, or an unclear split.
        MissingDependency: Parquet without pyarrow.
    """
    if path.is_file():
        yield from _read_file(path, path.name)
        return
    files = sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES and p.is_file())
    yield from _read_files([(p, p.relative_to(path).as_posix()) for p in files], split, str(path))


def read_hub(name: str, revision: str | None, config: str | None, split: str | None) -> Rows:
    """Rows of a hub data set, downloaded (once) into the hub's own cache.

    Its data files are read directly: ``datasets`` would force one type on struct columns that differ from row to row.

    Raises:
        MissingDependency: huggingface_hub is not installed.
        ConfigError: no such data set or revision, or an unclear split.
        InfrastructureError: the hub could not be reached.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
    except ImportError as e:
        raise MissingDependency(
            f"hub:{name} needs the package huggingface_hub.", fix="pip install 'drivetrain[hf,export]'"
        ) from e
    patterns = [f"*{suffix}" for suffix in _SUFFIXES]
    try:
        folder = Path(snapshot_download(name, repo_type="dataset", revision=revision, allow_patterns=patterns))
    except (RepositoryNotFoundError, RevisionNotFoundError) as e:
        at = f" at revision {revision}" if revision else ""
        raise ConfigError(
            f"There is no data set {name}{at} on the hub, or it is private.", fix="Check the name; set HF_TOKEN."
        ) from e
    except (HfHubHTTPError, OSError) as e:
        raise InfrastructureError(f"Cannot fetch {name} from the hub: {type(e).__name__}: {e}") from e
    files = [(p, p.relative_to(folder).as_posix()) for p in sorted(folder.rglob("*")) if p.suffix in _SUFFIXES]
    if config is not None:
        files = [(p, relative) for p, relative in files if config in relative.split("/")[:-1]]
    yield from _read_files(files, split, name)


def _split_of(relative: str) -> str:
    """``data/train-00000-of-00001.parquet`` -> train; ``test/0.parquet`` -> test; ``rows.jsonl`` -> rows."""
    stem = Path(relative).stem
    match = re.fullmatch(r"(.+?)-\d{5}-of-\d{5}(?:-[0-9a-f]+)?", stem)
    if match:
        return match.group(1)
    parent = Path(relative).parent.name
    return parent if parent not in ("", "data") and stem.isdigit() else stem


def _read_files(files: list[tuple[Path, str]], split: str | None, place: str) -> Rows:
    if not files:
        raise ConfigError(f"{place} holds no data file.", fix=f"Looked for {', '.join(_SUFFIXES)}.")
    splits = sorted({_split_of(relative) for _, relative in files})
    if split is None and len(splits) > 1:
        raise ConfigError(f"{place} has several splits.", fix=f"Choose one with #: {', '.join(splits)}.")
    if split is not None and split not in splits:
        raise ConfigError(f"{place} has no split {split!r}.", fix=f"It has: {', '.join(splits)}.")
    for path, relative in files:
        if split is None or _split_of(relative) == split:
            yield from _read_file(path, relative)


def _read_file(path: Path, name: str) -> Rows:
    if path.suffix == ".parquet":
        yield from _read_parquet(path, name)
    elif path.suffix in (".jsonl", ".ndjson"):
        yield from json_lines(path)
    else:
        raise ConfigError(f"{path} is neither JSON Lines nor Parquet.", fix=f"Known: {', '.join(_SUFFIXES)}.")


def _read_parquet(path: Path, name: str) -> Rows:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as e:
        raise MissingDependency(f"{name} needs the package pyarrow.", fix="pip install 'drivetrain[export]'") from e
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{name}:{number}", row
    except (pa.ArrowException, OSError) as e:
        raise ConfigError(f"Cannot read {path} as Parquet: {e}.") from e
