"""OpenEnv's capture proxy under uvicorn; run by the Python of its own virtual environment.

    python serve_openenv.py ENGINE_URL MODEL_NAME SESSIONS

Prints {"url": ..., "keys": [...]}: as many sessions as asked for, opened for training with a pinned temperature.
"""

import asyncio
import json
import os
import socket
import sys


async def main() -> None:
    import httpx
    import uvicorn
    from openenv.core.harness.capture.server import create_app

    engine, model, sessions = sys.argv[1], sys.argv[2], int(sys.argv[3])
    app = create_app(llm_url=engine, model=model, engine="vllm", capture_level="tokens")
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    keys = []
    async with httpx.AsyncClient(base_url=url) as client:
        while not server.started:  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(0.05)
        for _ in range(sessions):
            reply = await client.post("/sessions", json={"purpose": "train", "sampling": {"temperature": 1.0}})
            keys.append(reply.raise_for_status().json()["session_id"])
    print(json.dumps({"url": url, "keys": keys}), flush=True)
    parent = os.getppid()
    while os.getppid() == parent:  # noqa: ASYNC110 (nothing tells)
        await asyncio.sleep(0.5)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
