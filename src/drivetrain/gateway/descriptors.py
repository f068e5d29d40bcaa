"""File descriptors: a connection costs one, and shells give a process few of those that it may have."""

from __future__ import annotations

import resource

USEFUL = 1 << 20
"""More are never asked for: containers are given a thousand times as many, and no gateway serves a million clients."""


def raise_descriptor_limit(useful: int = USEFUL) -> int:
    """Raise this process's soft limit on open files to the hard one; returns what it is then. Never lowers it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = useful if hard == resource.RLIM_INFINITY else min(hard, useful)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return useful if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError):  # a sandbox may forbid it; what there is serves too
        return soft
    return wanted


def connections_within(descriptors: int) -> int:
    """Client connections that a process with so many descriptors keeps open; the rest is for engines and files."""
    return max(32, descriptors * 3 // 4)


def too_few_for(max_requests: int | None, descriptors: int) -> str:
    """Why that many requests are never served at once, for the operator; empty when they can be."""
    most = connections_within(descriptors)
    if max_requests is None or max_requests <= most:
        return ""
    return (
        f"only {most} connections can be open ({descriptors} file descriptors), fewer than the {max_requests} requests "
        "that may be served at once: raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower --max-requests"
    )
