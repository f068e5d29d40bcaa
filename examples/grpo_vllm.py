"""GRPO on a GPU: agents in sandboxes, `vllm serve` samples, TRL's GRPOTrainer trains every fork.

Server (another GPU of the same machine or network; the dev routes must be reachable by the trainer only):

    VLLM_SERVER_DEV_MODE=1 CUDA_VISIBLE_DEVICES=1 vllm serve MODEL --port 8000 --dtype bfloat16 \
        --logprobs-mode processed_logprobs --max-logprobs -1 --weight-transfer-config '{"backend":"nccl"}'

Trainer (several GPUs: `torchrun --nproc_per_node N`, every rank runs its own share of the episodes):

    CUDA_VISIBLE_DEVICES=0 python examples/grpo_vllm.py --model MODEL --task pypi__xmltodict-0.14.2 --agent pi

`--dry-run` checks versions, the seam to TRL, the plan and the settings without a GPU and without a server.
"""

from __future__ import annotations

import argparse
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from drivetrain.engines.models import resolve_model
from drivetrain.engines.open import EngineSpec
from drivetrain.rollout.config import EpisodeSpec, RolloutConfig
from drivetrain.rollout.gate import LocalGate
from drivetrain.rollout.route import routed_prompt
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.stack import open_stack
from drivetrain.training.delta_log import delta_writer
from drivetrain.training.fenced import fence_generation
from drivetrain.training.preflight import check_grpo_seam, check_plan
from drivetrain.training.recipe import grpo_config
from drivetrain.training.recipes import recipe_named
from drivetrain.training.sources import EpisodeRequest, LiveSource
from drivetrain.training.train import build_trainer, load_model


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="transformers model directory, the one that vLLM serves")
    parser.add_argument("--task", action="append", required=True, help="may be repeated")
    parser.add_argument("--agent", default="pi")
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    parser.add_argument("--recipe", default="agent-bf16")
    parser.add_argument("--sandbox", default="local")
    parser.add_argument("--generations", type=int, default=8, help="rollouts per task in a step")
    parser.add_argument("--tasks-per-step", type=int, default=1)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--concurrency", type=int, default=16, help="episodes in flight, per rank")
    parser.add_argument("--deadline", type=float, default=1800.0, help="seconds of an episode")
    parser.add_argument("--out", type=Path, default=Path("trained"))
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def plan(args: argparse.Namespace) -> tuple[RolloutConfig, Any]:
    """How rollouts are run and how they are trained."""
    rollouts = RolloutConfig(
        tasks=tuple(args.task),
        agents=(args.agent,),
        n=args.generations,
        model=args.model,
        sandbox=args.sandbox,
        concurrency=args.concurrency,
        temperature=args.temperature,
        deadline_s=args.deadline,
        engine=EngineSpec(kind="vllm", urls=(args.server,)),
    )
    settings = {
        **recipe_named(args.recipe).settings,
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_server_base_url": args.server,
        "ddp_timeout": int(2 * args.deadline) + 3600,  # the slowest episode holds every rank
    }
    if args.dry_run:
        settings |= {"use_cpu": True, "bf16": False}
    training = grpo_config(
        args.out,
        num_generations=args.generations,
        prompts_per_step=args.tasks_per_step,
        steps=args.steps,
        learning_rate=args.lr,
        temperature=args.temperature,
        **settings,
    )
    return rollouts, training


def main() -> None:
    """Check, or train."""
    args = arguments()
    rollouts, training = plan(args)
    if args.dry_run:
        print(check_grpo_seam())
        print(check_plan(rollouts))
        print(f"{training.loss_type}, {training.vllm_importance_sampling_mode}, {args.steps} steps: ready")
        return
    from datasets import Dataset

    recipe = recipe_named(args.recipe)
    model, tokenizer = load_model(args.model)
    model_dir = resolve_model(args.model)
    run = RunDir.create()
    parts = AsyncExitStack()
    runner: Any = None

    async def episode(request: EpisodeRequest) -> Any:
        step = trainer.state.global_step
        name = f"step{step}.{request.task_id}.{request.agent}.{request.group}.{request.seed:08x}"
        return await runner.run(
            EpisodeSpec(
                rollout_id=name,
                task_id=request.task_id,
                agent=request.agent,
                group=request.group,
                seed=request.seed,
            )
        )

    source = LiveSource(episode, concurrency=args.concurrency, timeout=args.deadline + 900)
    try:
        runner = source.wait(parts.enter_async_context(open_stack(rollouts, run, print, model=model_dir)))
        dataset = Dataset.from_list([{"prompt": routed_prompt(task, args.agent)} for task in args.task])
        trainer = build_trainer(
            source,
            model,
            tokenizer,
            dataset,
            training,
            bad_rollouts="mask",
            alarm=recipe.alarm,
            on_batch=delta_writer(run),
        )
        fence_generation(trainer, LocalGate(runner.gateway, source.loop))
        trainer.train()
        trainer.save_model(str(args.out / "model"))
        tokenizer.save_pretrained(str(args.out / "model"))
    finally:
        source.wait(parts.aclose())
        source.close()


if __name__ == "__main__":
    main()
