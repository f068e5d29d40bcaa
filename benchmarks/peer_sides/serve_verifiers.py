"""verifiers' interception server with its training client; run by the Python of its own virtual environment.

    python serve_verifiers.py ENGINE_URL MODEL_DIR MODEL_NAME SESSIONS

Prints {"url": ..., "keys": [...]}: as many rollouts as asked for, registered as ``verifiers.v1.rollout`` does it,
without task hooks, limits and tools of their own.
"""

import asyncio
import json
import os
import sys


async def main() -> None:
    from renderers.configs import Qwen3RendererConfig
    from verifiers.v1.clients import ModelContext
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.configs.client import TrainClientConfig
    from verifiers.v1.interception.server import InterceptionServer
    from verifiers.v1.session import RolloutSession
    from verifiers.v1.task import TaskData
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask
    from verifiers.v1.types import SamplingConfig

    engine, model_dir, model, sessions = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    client = TrainClientConfig(base_url=f"{engine}/v1", renderer=Qwen3RendererConfig(), renderer_model_name=model_dir)
    context = ModelContext(model=model, client=client, sampling=SamplingConfig(temperature=1.0, max_tokens=1024))
    server = InterceptionServer()
    await server.start()
    keys = []
    for number in range(sessions):
        trace = Trace(
            task=TraceTask(type="Task", data=TaskData(idx=number, prompt="benchmark")),
            agent=AgentInfo(config=AgentConfig()),
        )
        keys.append(server.register(RolloutSession(ctx=context, trace=trace))[0])
    print(json.dumps({"url": server.base_url, "keys": keys}), flush=True)
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(main())
