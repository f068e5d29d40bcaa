import json, subprocess, sys, urllib.error, urllib.request

settings = json.load(open(sys.argv[1]))
parameters = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
bash = {"name": "bash", "description": "Run a shell command.", "parameters": parameters}
messages = [{"role": "user", "content": settings["task"]}]
while True:
    body = {"model": settings["model"], "max_tokens": settings["max_tokens"], "messages": messages}
    body["tools"] = [{"type": "function", "function": bash}]
    headers = {"Authorization": "Bearer " + settings["key"], "Content-Type": "application/json"}
    request = urllib.request.Request(settings["url"], json.dumps(body).encode(), headers)
    try:
        answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    except urllib.error.HTTPError as error:
        sys.exit(f"HTTP {error.code}: {error.read().decode()}")  # exit code 1
    messages.append(answer)
    for call in answer.get("tool_calls") or ():
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout})
    if not answer.get("tool_calls"):
        print(answer["content"])
        break
