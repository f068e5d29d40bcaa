"""What a sandbox reaches (with ``none`` nothing, with ``gateway`` only the gateway) and how it is reached."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from drivetrain.sandboxes import NetworkPolicy, SandboxBackend, SandboxHandle, SandboxSpec, SandboxUnsupported
from tests.conformance.sandbox.inside import python, sh, until_output
from tests.conformance.sandbox.kits.base import Kit

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLOSED = [pytest.param("none", id="none"), pytest.param("gateway", id="gateway")]

# Each line: what was tried, and how it ended. TEST-NET addresses (RFC 5737) answer nowhere, so a policy that lets
# packets out shows as a time-out, not as a refusal.
PROBE = r"""
import errno, json, socket, sys
def tcp(host, port, family=socket.AF_INET):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(1)
        s.connect((host, port))
def udp(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(1)
        s.connect((host, port))
        s.send(b"x")
def broadcast():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        s.sendto(b"x", ("255.255.255.255", 9))
def multicast():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.sendto(b"x", ("224.0.0.251", 5353))
def raw():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
def packet():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
def dns():
    socket.setdefaulttimeout(1)
    socket.getaddrinfo("example.com", 443)
def vsock():
    with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as s:
        s.settimeout(1)
        s.connect((2, 1))
tried = {
    "tcp": lambda: tcp("192.0.2.1", 443), "public": lambda: tcp("1.1.1.1", 53), "udp": lambda: udp("192.0.2.1", 53),
    "metadata": lambda: tcp("169.254.169.254", 80), "ipv6": lambda: tcp("2001:db8::1", 443, socket.AF_INET6),
    "metadata6": lambda: tcp("fd00:ec2::254", 80, socket.AF_INET6), "private": lambda: tcp("10.0.0.1", 80),
    "bridge": lambda: tcp("172.17.0.1", 22), "broadcast": broadcast, "multicast": multicast, "raw": raw,
    "packet": packet, "dns": dns, "vsock": vsock,
}
ends = {}
for name, call in tried.items():
    try:
        call()
        ends[name] = "reached"
    except socket.gaierror:
        ends[name] = "refused"
    except TimeoutError:
        ends[name] = "sent"
    except (OSError, AttributeError) as error:
        ends[name] = "refused"
print(json.dumps(ends))
"""


def spec_with(kit: Kit, network: NetworkPolicy, folder: Path) -> SandboxSpec:
    if network != "gateway":
        return kit.spec(network=network, mounts=kit.client().mounts)
    (folder / "gw").mkdir(exist_ok=True)
    return kit.spec(network=network, gateway_socket=folder / "gw" / "g.sock", mounts=kit.client().mounts)


async def test_the_probe_can_tell() -> None:
    """On a network with something to reach, the same probe says so."""
    script = PROBE.replace('lambda: tcp("192.0.2.1", 443)', 'lambda: tcp("127.0.0.1", int(sys.argv[1]))')
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-I", "-c", script, str(server.getsockname()[1])]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, timeout=60)
    ends = json.loads(done.stdout)
    assert (ends["tcp"], ends["raw" if os.getuid() == 0 else "tcp"]) == ("reached", "reached")


@pytest.mark.needs("network_policy")
@pytest.mark.parametrize("network", CLOSED)
async def test_no_packet_leaves(backend: SandboxBackend, kit: Kit, tmp_path: Path, network: NetworkPolicy) -> None:
    box = await backend.create(spec_with(kit, network, tmp_path))
    ends = json.loads(await python(box, kit.client(), PROBE, timeout_s=60))
    assert {name: end for name, end in ends.items() if end != "refused"} == {}


@pytest.mark.needs("network_policy")
@pytest.mark.parametrize("network", CLOSED)
async def test_there_is_no_route_and_no_interface(
    backend: SandboxBackend, kit: Kit, tmp_path: Path, network: NetworkPolicy
) -> None:
    box = await backend.create(spec_with(kit, network, tmp_path))
    assert len((await box.exec(["cat", "/proc/net/route"])).stdout.splitlines()) <= 1  # the header
    devices = (await sh(box, "tail -n +3 /proc/net/dev | cut -d: -f1 | sort")).stdout.split()
    # Tunnels of the kernel's own (tunl0, sit0, ...) come with every new network namespace and lead nowhere.
    up = await sh(
        box,
        "for d; do [ $(($(cat /sys/class/net/$d/flags 2>/dev/null || echo 0) & 1)) = 1 ] && echo $d; done; true",
        *map(bytes.decode, devices),
    )
    assert b"lo" in devices
    assert set(up.stdout.split()) <= {b"lo"}
    routes6 = (await sh(box, "cat /proc/net/ipv6_route 2>/dev/null; true")).stdout.decode().splitlines()
    assert [line for line in routes6 if line.split()[-1] != "lo"] == []


@pytest.mark.parametrize("network", CLOSED)
async def test_loopback_works_inside(backend: SandboxBackend, kit: Kit, tmp_path: Path, network: NetworkPolicy) -> None:
    """Test suites start servers."""
    script = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(("localhost", server.getsockname()[1])) as one, server.accept()[0] as other:
        one.sendall(b"loop")
        print(other.recv(9))
with socket.socket(socket.AF_UNIX) as server:
    server.bind("/tmp/s"); server.listen()
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("/tmp/s")
        print(socket.gethostbyname("localhost"))
"""
    box = await backend.create(spec_with(kit, network, tmp_path))
    assert await python(box, kit.client(), script) == "b'loop'\n127.0.0.1\n"


@pytest.mark.needs("network_policy")
@pytest.mark.parametrize("network", CLOSED)
async def test_the_hosts_loopback_is_another(
    backend: SandboxBackend, kit: Kit, tmp_path: Path, network: NetworkPolicy
) -> None:
    box = await backend.create(spec_with(kit, network, tmp_path))
    met = asyncio.Event()
    script = """
import socket, sys
for address in ("127.0.0.1", "127.0.0.2", "0.0.0.0", "::1", "::ffff:127.0.0.1", sys.argv[2]):
    try:
        socket.create_connection((address, int(sys.argv[1])), timeout=3)
        print("reached", address)
    except OSError:
        pass
"""
    async with await asyncio.start_server(lambda _reader, writer: (met.set(), writer.close())[1], "0.0.0.0", 0) as host:
        port = host.sockets[0].getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # or it shows nothing
            await asyncio.wait_for(met.wait(), 10)
        met.clear()
        own = socket.gethostbyname(socket.gethostname())
        assert await python(box, kit.client(), script, str(port), own) == ""
    assert not met.is_set()


@pytest.mark.needs("network_policy")
@pytest.mark.parametrize("network", CLOSED)
async def test_abstract_unix_sockets_of_the_host_are_out_of_reach(
    backend: SandboxBackend, kit: Kit, tmp_path: Path, network: NetworkPolicy, nap: str
) -> None:
    """X11, D-Bus and containerd shims listen there, and no file mode guards them."""
    box = await backend.create(spec_with(kit, network, tmp_path))
    name = f"\0drivetrain-{nap}"
    script = """
import socket, sys
with socket.socket(socket.AF_UNIX) as s:
    try:
        s.connect("\\0" + sys.argv[1])
        print("reached")
    except OSError:
        print("refused")
"""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(name)
        assert await python(box, kit.client(), script, name[1:]) == "refused\n"
    listed = await sh(box, "cat /proc/net/unix")
    assert name[1:].encode() not in listed.stdout


@pytest.mark.needs("network_policy")
async def test_two_sandboxes_do_not_share_a_network(backend: SandboxBackend, kit: Kit, tmp_path: Path) -> None:
    one, two = [await backend.create(spec_with(kit, "none", tmp_path)) for _ in range(2)]
    serve = "import socket; s = socket.create_server(('', 8765)); print('up', flush=True); s.accept(); print('met')"
    job = await one.start([kit.client().python, "-I", "-c", serve])
    await until_output(job, b"up")
    call = "import socket, sys; socket.create_connection(('127.0.0.1', 8765), timeout=3)"
    assert (await two.exec([kit.client().python, "-I", "-c", call])).exit_code == 1
    assert (await one.exec([kit.client().python, "-I", "-c", call])).exit_code == 0
    assert (await job.wait(20)).stdout == b"up\nmet\n"


@pytest.mark.needs("reach")
async def test_a_port_inside_is_reached_from_the_host(backend: SandboxBackend, kit: Kit, tmp_path: Path) -> None:
    box = await backend.create(spec_with(kit, kit.reachable, tmp_path))
    await box.write("index.txt", b"from inside")
    job = await box.start([kit.client().python, "-m", "http.server", "8123", "--bind", "0.0.0.0"])
    reach = await box.reach(8123)
    assert not reach.url.endswith("/")
    async with aiohttp.ClientSession() as session:
        for _ in range(100):
            try:
                async with session.get(f"{reach.url}/index.txt", headers=dict(reach.headers)) as reply:
                    if reply.status == 200:
                        assert await reply.read() == b"from inside"
                        break
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
        else:
            pytest.fail("nothing answered")
    await job.kill(0)


@pytest.mark.lacks("reach")
async def test_without_a_way_in_reach_says_so(box: SandboxHandle) -> None:
    with pytest.raises(SandboxUnsupported):
        await box.reach(8123)


@pytest.mark.lacks("network_policy")
@pytest.mark.parametrize("network", CLOSED)
async def test_a_policy_that_cannot_be_enforced_is_refused(
    kit: Kit, sandbox_root: Path, nothing_left: None, tmp_path: Path, network: NetworkPolicy
) -> None:
    """Never a quieter, weaker policy than the one that was asked for."""
    backend = kit.strict(sandbox_root)
    with pytest.raises(SandboxUnsupported):
        await backend.create(spec_with(kit, network, tmp_path))
    await backend.aclose()
