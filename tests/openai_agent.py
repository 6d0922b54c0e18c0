"""An agent written without drlib: OpenAI's client, tools, a summary, and parallel requests.

It imports nothing of drlib. `answer` gets a client and a function that executes a tool.
"""

import json
from concurrent.futures import ThreadPoolExecutor

from openai import BadRequestError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The tool {name}.",
            "parameters": {"type": "object", "properties": {argument: {"type": kind}}},
        },
    }
    for name, argument, kind in (("search", "query", "array"), ("python", "code", "string"))
]
SUMMARY = "{question}\nSummary of the work so far: {found}"
CHECK = "{question}\nYou found: {found}"


def answer(client, question, call_tool, summarise_after=2, checks=2, turns=8):
    """Search until the model answers, then ask it again, twice at the same time.

    After every `summarise_after` results the history is replaced by a summary of them.
    """

    def ask(messages):
        reply = client.chat.completions.create(model="any", messages=messages, tools=TOOLS)
        return reply.choices[0].message

    messages, found = [{"role": "user", "content": question}], []
    for _ in range(turns):
        try:
            message = ask(messages)
        except BadRequestError as error:
            if error.code != "context_length_exceeded":
                raise
            return None
        if not message.tool_calls:
            break
        # only what other frameworks keep: no reasoning, and arguments in another form
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.function.name,
                    "arguments": json.dumps(json.loads(call.function.arguments), indent=1),
                },
            }
            for call in message.tool_calls
        ]
        messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
        for call in message.tool_calls:
            text = call_tool(call.function.name, json.loads(call.function.arguments))
            found.append(text)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        if len(found) >= summarise_after:
            content = SUMMARY.format(question=question, found=" ".join(found)[:200])
            messages, found = [{"role": "user", "content": content}], []
    else:
        return None
    prompts = [CHECK.format(question=question, found=message.content), question][:checks]
    with ThreadPoolExecutor(2) as pool:
        again = [*pool.map(lambda p: ask([{"role": "user", "content": p}]), prompts)]
    votes = [message.content, *(reply.content for reply in again)]
    votes = [vote for vote in votes if vote]
    return max(votes, key=votes.count) if votes else None
