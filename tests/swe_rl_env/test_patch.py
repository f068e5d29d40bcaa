"""Taking the agent's work: every case of a tree that git's own diff gets wrong."""

from __future__ import annotations

import io
import tarfile

import pytest

from drivetrain.sandboxes import SandboxBackend
from swe_rl_env import BuiltTask, PatchLimits, PatchRejected, collect, collect_patch, open_workspace, oracle
from swe_rl_env.building.gitio import Scratch
from swe_rl_env.building.tario import pack
from swe_rl_env.work.patch import escapes, patch_from_tar

Files = dict[bytes, tuple[str, bytes]]


@pytest.fixture(scope="module")
def base(xmltodict: BuiltTask) -> Files:
    with Scratch(xmltodict.git_dir) as s:
        return {p: (m, d) for p, m, d in s.contents(xmltodict.task.base_commit)}


def _take(built: BuiltTask, files: Files, limits: PatchLimits | None = None) -> bytes:
    return patch_from_tar(pack((p, m, d) for p, (m, d) in files.items()), built, limits).patch


def _apply(built: BuiltTask, patch: bytes) -> Files:
    with Scratch(built.git_dir) as s:
        tree = s.apply(built.task.base_commit, patch)
        return {p: (m, d) for p, m, d in s.contents(tree)}


@pytest.mark.parametrize(
    "changes",
    [
        {b"xmltodict.py": ("100755", b"print(1)\n")},
        {b"xmltodict.py": ("100755", b"no final newline")},
        {b"README.md": ("100644", b"one\r\ntwo\r\nlone\rend\r\n")},
        {b"new/deep/data.bin": ("100644", bytes(range(256)) * 9)},
        {b"new/empty.py": ("100644", b"")},
        {b"setup.py": ("100644", b"mode and text\n")},
        {b"tool.sh": ("100755", b"#!/bin/sh\n")},
        {b"link": ("120000", b"tests/__init__.py")},
        {b"xmltodict.py": ("120000", b"README.md")},
        {b'na me "q"\t\xc3\xa9\xff.txt': ("100644", b"odd name\n")},
        {b"README.md/inside": ("100644", b"file became folder\n"), b"README.md": None},
        {b"tests/__init__.py": None, b"tests/test_xmltodict.py": None, b"tests/test_dicttoxml.py": None,
         b"tests": ("100644", b"folder became file\n")},
        {b"LICENSE": None},
        {b"build/new.py": ("100644", b"ignored by .gitignore\n"), b".gitignore": ("100644", b"build/\n")},
        {b".gitattributes": ("100644", b"* text=auto eol=crlf -diff binary filter=evil\n"),
         b"a.txt": ("100644", b"x\r\ny\n")},
    ],
    ids=lambda c: ",".join(p.decode("ascii", "replace") for p in c),
)  # fmt: skip
def test_round_trip(xmltodict: BuiltTask, base: Files, changes: dict[bytes, tuple[str, bytes] | None]) -> None:
    wanted = {p: f for p, f in {**base, **changes}.items() if f is not None}
    if b"tests" in changes:
        wanted = {p: f for p, f in wanted.items() if not p.startswith(b"tests/")}
    patch = _take(xmltodict, wanted)
    assert patch
    assert _apply(xmltodict, patch) == wanted


def test_untouched_tree_is_an_empty_patch(xmltodict: BuiltTask, base: Files) -> None:
    assert _take(xmltodict, base) == b""


def test_everything_deleted(xmltodict: BuiltTask, base: Files) -> None:
    left = _apply(xmltodict, _take(xmltodict, {}))
    assert left == {p: f for p, f in base.items() if p.endswith(b".pyc")}


def test_shipped_byte_code_is_never_part_of_the_work(xmltodict: BuiltTask, base: Files) -> None:
    shipped = [p for p in base if p.endswith(b".pyc")]
    assert shipped
    rewritten = {**base, shipped[0]: ("100644", b"recompiled")}
    del rewritten[shipped[1]]
    assert _take(xmltodict, rewritten) == b""


def test_generated_and_git_files_are_left_out(xmltodict: BuiltTask, base: Files) -> None:
    extra: Files = {
        b"__pycache__/x.cpython-311.pyc": ("100644", b"x"),
        b"tests/__pycache__/y.py": ("100644", b"x"),
        b".pytest_cache/v": ("100644", b"x"),
        b"node_modules/pytest/index.js": ("100644", b"x"),
        b"x.egg-info/PKG-INFO": ("100644", b"x"),
        b"stray.pyc": ("100644", b"x"),
        b".git/config": ("100644", b"[filter]\n"),
        b"nested/.git/HEAD": ("100644", b"ref: x\n"),
        b"nested/.GIT": ("100644", b"gitdir: /\n"),
    }
    taken = patch_from_tar(pack((p, m, d) for p, (m, d) in {**base, **extra}.items()), xmltodict)
    assert taken.patch == b""
    assert {p for p, _ in taken.left_out} == {p.decode() for p in extra if b".git" not in p.lower()}


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "../../etc", "a/../../x"])
def test_escaping_links_are_left_out(xmltodict: BuiltTask, base: Files, target: str) -> None:
    files = {**base, b"evil": ("120000", target.encode()), b"good.py": ("100644", b"1\n")}
    taken = patch_from_tar(pack((p, m, d) for p, (m, d) in files.items()), xmltodict)
    assert taken.left_out == (("evil", "link leaves the checkout"),)
    assert b"good.py" in taken.patch and b"evil" not in taken.patch


def test_escapes() -> None:
    assert not escapes("a/b", "../c")
    assert escapes("a/b", "../../c")
    assert not escapes("a/b/c", "./../x/../../y")


def test_members_that_leave_the_checkout(xmltodict: BuiltTask, base: Files) -> None:
    files = {**base, b"../evil": ("100644", b"x"), b"/abs": ("100644", b"x")}
    taken = patch_from_tar(pack((p, m, d) for p, (m, d) in files.items()), xmltodict)
    assert taken.patch == b""
    assert len(taken.left_out) == 2


def test_special_files_and_hard_links(xmltodict: BuiltTask) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("a.txt")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"hi"))
        for kind, name in ((tarfile.LNKTYPE, "b.txt"), (tarfile.FIFOTYPE, "pipe"), (tarfile.CHRTYPE, "dev")):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "a.txt" if kind == tarfile.LNKTYPE else ""
            tar.addfile(info)
    taken = patch_from_tar(buffer.getvalue(), xmltodict)
    files = {p: d for p, (_, d) in _apply(xmltodict, taken.patch).items() if not p.endswith(b".pyc")}
    assert files == {b"a.txt": b"hi", b"b.txt": b"hi"}
    assert {p for p, _ in taken.left_out} == {"pipe", "dev"}


def test_caps(xmltodict: BuiltTask, base: Files) -> None:
    noise = "".join(f"{i * 7919}\n" for i in range(3000)).encode()
    changed = {**base, b"xmltodict.py": ("100755", noise)}
    with pytest.raises(PatchRejected) as e:
        _take(xmltodict, changed, PatchLimits(patch_bytes=5000))
    assert e.value.reason == "patch_too_large"
    many = {**base, **{f"f{i}".encode(): ("100644", b"x\n") for i in range(30)}}
    with pytest.raises(PatchRejected) as e:
        _take(xmltodict, many, PatchLimits(files=20))
    assert e.value.reason == "too_many_files"
    with pytest.raises(PatchRejected) as e:
        patch_from_tar(b"x" * 2000, xmltodict)
    assert e.value.reason == "unreadable_tree"
    # One huge new file does not void the rest.
    big = {**base, b"core": ("100644", noise), b"LICENSE": ("100644", b"mine\n")}
    patch = _take(xmltodict, big, PatchLimits(new_file_bytes=1000))
    assert b"LICENSE" in patch and b"b/core" not in patch


_SCRIPT = """
set -e
git config user.email a@b; git config user.name a
echo '# edited' >> xmltodict.py
mkdir -p build; echo 'x = 1' > build/new.py; echo 'build/' > .gitignore
git add -A; git commit -qm mine; git tag v9
git config filter.evil.clean "sed s/edited/EVIL/"; echo '*.py filter=evil' > .gitattributes
git update-index --assume-unchanged README.md; echo hidden >> README.md
mkdir nested; (cd nested; git init -q .; echo n > n.txt; git add .; git -c user.email=a@b -c user.name=a commit -qm n)
ln -s xmltodict.py alias.py
printf 'a\\r\\nb' > crlf.txt
head -c 3000 /dev/urandom > blob.bin
rm LICENSE
chmod +x tests/__init__.py
"""


@pytest.mark.parametrize("end", ["true", "rm -rf .git", "rm -rf .git && git init -q . && git add -A"])
async def test_from_a_real_sandbox(xmltodict: BuiltTask, base: Files, backend: SandboxBackend, end: str) -> None:
    workspace = await open_workspace(backend, xmltodict)
    try:
        done = await workspace.sandbox.exec(["/bin/sh", "-c", _SCRIPT + end], cwd=workspace.repo)
        assert done.exit_code == 0, done.stderr
        blob = await workspace.sandbox.read(f"{workspace.repo}/blob.bin")
        patch = await collect_patch(workspace, xmltodict)
    finally:
        await workspace.close()
    files = _apply(xmltodict, patch)
    mode, data = base[b"xmltodict.py"]
    assert files[b"xmltodict.py"] == (mode, data + b"# edited\n")
    assert files[b"README.md"][1] == base[b"README.md"][1] + b"hidden\n"
    assert files[b"build/new.py"][1] == b"x = 1\n"
    assert files[b"nested/n.txt"][1] == b"n\n"
    assert files[b"alias.py"] == ("120000", b"xmltodict.py")
    assert files[b"crlf.txt"][1] == b"a\r\nb"
    assert files[b"blob.bin"][1] == blob
    assert files[b"tests/__init__.py"][0] == "100755"
    assert b"LICENSE" not in files
    assert not any(b".git/" in p for p in files)


async def test_oracle_gives_the_reference_fix(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    workspace = await open_workspace(backend, xmltodict)
    try:
        await oracle(workspace, xmltodict)
        assert await collect_patch(workspace, xmltodict) == xmltodict.gold_patch
    finally:
        await workspace.close()


async def test_checkout_removed_or_too_large(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    workspace = await open_workspace(backend, xmltodict)
    try:
        with pytest.raises(PatchRejected) as e:
            await collect(workspace, xmltodict, limits=PatchLimits(tree_bytes=1000))
        assert e.value.reason == "workspace_too_large"
        await workspace.sandbox.exec(["rm", "-rf", workspace.repo], cwd="/")
        left = _apply(xmltodict, await collect_patch(workspace, xmltodict))
        assert all(p.endswith(b".pyc") for p in left)
    finally:
        await workspace.close()


async def test_background_writer_has_no_effect_after_the_patch(xmltodict: BuiltTask, backend: SandboxBackend) -> None:
    workspace = await open_workspace(backend, xmltodict)
    try:
        await workspace.sandbox.start(["/bin/sh", "-c", "sleep 2; echo late > late.py"], cwd=workspace.repo)
        assert await collect_patch(workspace, xmltodict) == b""
    finally:
        await workspace.close()
