"""AsyncGRPO on GPUs: agents run all the time, updates do not wait for them, and weights move behind the gate.

Server (the dev routes must be reachable by the trainer only):

    VLLM_SERVER_DEV_MODE=1 CUDA_VISIBLE_DEVICES=1 vllm serve MODEL --port 8000 --dtype bfloat16 \
        --logprobs-mode processed_logprobs --max-logprobs -1 --weight-transfer-config '{"backend":"nccl"}'

Trainer:

    CUDA_VISIBLE_DEVICES=0 python examples/async_grpo_vllm.py --model MODEL --task pypi__xmltodict-0.14.2 --agent pi

LoRA (`--lora-rank 16`): start the server with `--enable-lora --max-lora-rank 16 --max-loras STALENESS+2` and
`VLLM_ALLOW_RUNTIME_LORA_UPDATING=1`; TRL then loads one adapter per update and agents are moved on to it.

`--dry-run` checks versions, the seam to TRL, the plan and the settings without a GPU and without a server.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from drivetrain.engines.open import EngineSpec
from drivetrain.rollout.config import RolloutConfig
from drivetrain.rollout.gate import Drain, SocketGate
from drivetrain.rollout.openenv import AgentSessions
from drivetrain.rollout.route import routed_prompt
from drivetrain.training.preflight import check_async_seam, check_plan
from drivetrain.training.recipes import recipe_named


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="transformers model directory, the one that vLLM serves")
    parser.add_argument("--task", action="append", required=True, help="may be repeated")
    parser.add_argument("--agent", default="pi")
    parser.add_argument("--server", default="http://127.0.0.1:8000")
    parser.add_argument("--recipe", default="agent-bf16")
    parser.add_argument("--sandbox", default="local")
    parser.add_argument("--generations", type=int, default=8, help="rollouts per task in a group")
    parser.add_argument("--rows-per-step", type=int, default=32)
    parser.add_argument("--staleness", type=int, default=4, help="updates that a rollout may be behind")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--inflight", type=int, default=32, help="episodes in flight")
    parser.add_argument("--deadline", type=float, default=1800.0, help="seconds of an episode")
    parser.add_argument("--lora-rank", type=int, default=0, help="0: all weights")
    parser.add_argument("--out", type=Path, default=Path("trained"))
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args()


def plan(args: argparse.Namespace, gate: Path) -> tuple[AgentSessions, RolloutConfig, Any]:
    """How rollouts are run and how they are trained."""
    from trl.experimental.async_grpo import AsyncGRPOConfig

    adapter = "trl-policy-v{version}" if args.lora_rank else ""
    rollouts = RolloutConfig(
        tasks=tuple(args.task),
        agents=(args.agent,),
        n=args.generations,
        model=args.model,
        sandbox=args.sandbox,
        concurrency=args.inflight,
        temperature=args.temperature,
        deadline_s=args.deadline,
        engine=EngineSpec(kind="vllm", urls=(args.server,), model=adapter),
    )
    on_gpu = not args.dry_run
    training = AsyncGRPOConfig(
        str(args.out),
        num_generations=args.generations,
        per_device_train_batch_size=args.rows_per_step,
        gradient_accumulation_steps=1,  # the token mean is over one micro-batch (trl issue 7206)
        max_inflight_tasks=args.inflight,
        max_staleness=args.staleness,
        max_steps=args.steps,
        learning_rate=args.lr,
        temperature=args.temperature,
        epsilon=0.2,
        epsilon_high=0.28,
        vllm_server_base_url=args.server,
        use_cpu=not on_gpu,
        bf16=on_gpu,
        gradient_checkpointing=on_gpu,
        report_to="none",
    )
    return AgentSessions(rollouts, gate=gate), rollouts, training


def main() -> None:
    """Check, or train."""
    args = arguments()
    with tempfile.TemporaryDirectory(prefix="drivetrain-gate-") as folder:  # mode 0700: the gate's socket is in it
        sessions, rollouts, training = plan(args, Path(folder))
        if args.dry_run:
            print(check_async_seam())
            print(check_plan(rollouts, sessions))
            print(f"staleness {training.max_staleness}, {args.steps} steps: ready")
            return
        train(args, sessions, training, SocketGate(Path(folder)))


def train(args: argparse.Namespace, sessions: AgentSessions, training: Any, gate: SocketGate) -> None:
    """The run itself."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl.experimental.async_grpo.async_grpo_trainer import _iter_vllm_named_params
    from trl.experimental.async_grpo.vllm_client import VLLMClient
    from trl.experimental.async_grpo.weight_transfer import WeightTransferClient

    from drivetrain.training.async_grpo import MeasuredAsyncGRPOTrainer
    from drivetrain.training.fenced import AdapterVersions, FencedWeights
    from drivetrain.training.fenced_worker import FencedRolloutWorker

    dataset = Dataset.from_list([{"prompt": routed_prompt(task, args.agent)} for task in args.task])
    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    weights: Any
    transfer: FencedWeights | None = None
    peft_config = None
    if args.lora_rank:
        from peft import LoraConfig

        peft_config = LoraConfig(r=args.lora_rank, target_modules="all-linear", lora_dropout=0.0)
        weights = AdapterVersions(gate)  # TRL loads the adapters itself; agents only need the new name
    else:
        shapes = AutoModelForCausalLM.from_pretrained(args.model, dtype=training.dtype)
        named = list(_iter_vllm_named_params(shapes))
        info = {
            "names": [name for name, _ in named],
            "dtype_names": [str(parameter.dtype).removeprefix("torch.") for _, parameter in named],
            "shapes": [list(parameter.shape) for _, parameter in named],
        }
        del shapes, named
        client = VLLMClient(args.server, training.vllm_server_timeout)
        weights = transfer = FencedWeights(WeightTransferClient(client, info), gate, drain=Drain(deadline_s=60.0))
    worker = FencedRolloutWorker(
        weights=weights,
        harness_session_factory=sessions,
        model_name=args.model,
        dataset=dataset,
        reward_funcs=[],
        processing_class=tokenizer,
        eos_token_ids=[tokenizer.eos_token_id],
        num_generations=args.generations,
        max_inflight_tasks=args.inflight,
        queue_maxsize=training.queue_maxsize,
        vllm_server_url=args.server,
        temperature=args.temperature,
    )
    trainer = MeasuredAsyncGRPOTrainer(
        args.model,
        args=training,
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=peft_config,
        rollout_worker=worker,
        weight_transfer=transfer,
        alarm=recipe_named(args.recipe).alarm,
    )
    trainer.train()
    trainer.save_model(str(args.out / "model"))
    tokenizer.save_pretrained(str(args.out / "model"))


if __name__ == "__main__":
    main()
