"""Train a model through Pi on real bugs from PyPI: episodes, one GRPO update, episodes with the new weights, and so on.

    python examples/train_pi.py --model SmolLM2-135M-Instruct --steps 3 --out trained
    python examples/train_pi.py --short          # a random model of a megabyte, one generated bug, one update

Needs `pip install 'drivetrain[trl]'`. On GPUs: examples/grpo_vllm.py.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from short import generated_tasks, tiny_model

from drivetrain.engines.models import DEFAULT_MODEL, resolve_model
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.run_dir import RunDir
from drivetrain.training.episodes import LiveRollouts
from drivetrain.training.live import train_live
from drivetrain.training.recipes import recipe_named
from swe_rl_env.tasks.catalog import get_task

TASKS = ["pypi__xmltodict-0.14.2"]


def main() -> None:
    """Train, and print the report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="bundled name or transformers model directory")
    parser.add_argument("--agent", default="pi", help="an agent's name, or the path of a preset")
    parser.add_argument("--task", action="append", help=f"may be repeated; default {', '.join(TASKS)}")
    parser.add_argument("--generations", type=int, default=4, help="rollouts per task in a step")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--out", type=Path, help="save the trained model here")
    parser.add_argument("--short", action="store_true", help="a minute, offline")
    args = parser.parse_args()

    with ExitStack() as stack:
        temporary = Path(stack.enter_context(TemporaryDirectory()))
        tasks = [get_task(name) for name in args.task or TASKS]
        model, turns, tokens = args.model, 20, 512
        if args.short:
            _, tasks = generated_tasks(temporary)
            model, turns, tokens = str(tiny_model(temporary).path), 2, 48
            args.generations, args.steps = 2, 1
        config = RolloutConfig(
            tasks=tuple(task.instance_id for task in tasks),
            agents=(args.agent,),
            n=args.generations,
            model=model,
            variant="small" if args.agent == "pi" else None,  # prompts that fit a small context
            max_turns=turns,
            max_tokens=tokens,
        )
        recipe = recipe_named("agent")
        found = resolve_model(model)
        run = RunDir.create(temporary / "run" if args.short else None)
        with LiveRollouts(config, found, run, print, tasks, tolerance=recipe.tolerance) as live:
            report = train_live(
                live.make_source,
                live.tasks,
                found.path,
                out_dir=args.out or temporary / "trained",
                save_model=args.out is not None,
                num_generations=config.n,
                temperature=config.temperature,
                sync=live.sync,
                steps=args.steps,
                learning_rate=args.lr,
                alarm=recipe.alarm,
                settings=recipe.settings,
            )
    print(msgspec.json.encode(report).decode())


if __name__ == "__main__":
    main()
