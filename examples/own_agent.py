"""Bring your own agent: a program that can be told a base URL and a key, and a preset of 25 lines that tells it.

    python examples/own_agent.py                                   # own_agent/my.toml, a policy that follows a script
    python examples/own_agent.py --preset mine.toml
    drivetrain rollout --agent examples/own_agent/my.toml --task pypi__xmltodict-0.14.2     # with a real model

docs/agents.md says what a preset can say.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from short import OWN_AGENT, call, scripted_run

from drivetrain.rollout.audit import audit_run


def main() -> None:
    """Two rollouts of the agent; what was recorded of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", type=Path, default=OWN_AGENT, help="the preset file of the agent")
    args = parser.parse_args()
    with TemporaryDirectory() as temporary:
        says = [call("cat shop.py"), call("sed -i 's/return/return 0 +/' shop.py")]
        run, results = asyncio.run(scripted_run(Path(temporary), says, agent=str(args.preset)))
        for result in results:
            print(
                f"{result.rollout_id}: {result.status}, reward {result.reward}, {result.turns} turns, "
                f"{len(result.rows)} rows, forks {result.fork_reasons or 'none'}"
            )
        problems = [problem for audit in audit_run(run) for problem in audit.problems]
        print(f"audit: {problems or 'sound'}")


if __name__ == "__main__":
    main()
