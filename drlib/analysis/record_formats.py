"""Records of other programs as chat messages: ATIF (Harbor), verifiers and ShareGPT.

Each function returns fields of a row in format "messages", and the token ids of the turns if the
record has them. Sources of the schemas: Harbor's ATIF v1.8, `verifiers` 0.1 (results.jsonl) and
0.4 (traces.jsonl), LLaMA-Factory's ShareGPT format.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from drlib.analysis.chat_messages import ROLES, load_json
from drlib.analysis.reading_notes import ReadingNotes
from drlib.validation import require


class SampledTurn(NamedTuple):
    """Token ids of one sampled turn.

    Attributes:
        prompt_ids: all ids before the turn; None if unknown.
        ids: sampled ids; None if unknown.
        logprobs: one value per sampled id; None if unknown.

    """

    prompt_ids: Sequence[int] | None
    ids: Sequence[int] | None
    logprobs: Sequence[float | None] | None


Record = tuple[dict, list[SampledTurn]]

_ATIF_ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_STEP_FIELDS = {
    *("step_id", "timestamp", "source", "model_name", "reasoning_effort", "message"),
    *("reasoning_content", "tool_calls", "observation", "metrics"),
    *("is_copied_context", "llm_call_count"),
}
_METRICS = {
    *("prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd"),
    *("prompt_token_ids", "completion_token_ids", "logprobs"),
}
_NODE_FIELDS = {
    *("parent", "tools", "semantic_parents", "message", "sampled", "timestamp", "token_ids"),
    *("mask", "is_content", "logprobs", "advantages"),
}


def convert_sharegpt(row: dict) -> Record:
    """Convert `conversations` with `from` and `value`, or `role` and `content`."""
    messages: list[dict] = []
    if row.get("system"):
        messages.append({"role": "system", "content": row["system"]})
    for i, turn in enumerate(row["conversations"]):
        if turn is None:
            continue
        require(isinstance(turn, dict), f"conversations[{i}] is {turn!r}; use an object")
        role, value = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
        kind = str(role).lower()
        name = ROLES.get(kind, kind)
        extra = {k: v for k, v in turn.items() if k not in ("from", "value", "role", "content")}
        if kind == "function_call":
            _add_call(messages, value or "", extra)
            continue
        require(
            name in ("system", "user", "assistant", "tool"),
            f"conversations[{i}].from is {role!r}; use human, gpt, function_call, observation "
            "or system",
        )
        messages.append({**extra, "role": name, "content": value})
    _refuse_images(row)
    return row | {"messages": messages, "question": row.get("question")}, []


def _add_call(messages: list[dict], value: Any, extra: dict) -> None:
    """Append a turn of calls; one after a text of the assistant belongs to the same turn."""
    thought, closing, call = "", "", value
    if isinstance(value, str) and "</think>" in value:
        thought, closing, call = value.rpartition("</think>")
    calls = load_json(call, None) if isinstance(call, str) else call
    if calls is None and isinstance(call, str) and call.lstrip().startswith("<"):
        turn = {"content": value}  # calls in the tags of another program
    elif not calls:
        text = f"{thought}{closing}<tool_call>{call or ''}</tool_call>"
        turn = {"content": text, "format_error": "tool call is not valid JSON."}
    else:
        turn = {
            "content": thought + closing,
            "tool_calls": calls if isinstance(calls, list) else [call],
        }
    if messages and messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
        turn["content"] = f"{messages.pop()['content'] or ''}{turn['content']}"
    messages.append({**extra, "role": "assistant", **turn})


def _refuse_images(row: dict) -> None:
    """Raise ValueError if the row has images, which are not in its texts."""
    for name in ("image", "images", "videos", "audios"):
        require(
            not row.get(name),
            f"the field {name} is not read: remove it to read the text alone, or remove the row",
        )


def convert_atif(row: dict, notes: ReadingNotes) -> Record:
    """Convert a trajectory of Harbor (ATIF v1.0 to v1.8)."""
    agent = row.get("agent") or {}
    messages: list[dict] = []
    turns = []
    for i, step in enumerate(row["steps"]):
        require(isinstance(step, dict), f"steps[{i}] is {step!r}; use an object")
        notes.count_unknown("step.", step, _STEP_FIELDS)
        role = _ATIF_ROLES.get(str(step.get("source")))
        require(
            role is not None,
            f"steps[{i}].source is {step.get('source')!r}; use system, user or agent",
        )
        calls = [call for call in step.get("tool_calls") or () if call]
        message = {"role": role, "content": step.get("message")}
        if role == "assistant":
            # copied context and steps without a model call were not sampled here
            sampled = not step.get("is_copied_context") and step.get("llm_call_count") != 0
            message |= {} if sampled else {"sampled": False}
            message["reasoning_content"] = step.get("reasoning_content")
            message["tool_calls"] = [
                {"name": call.get("function_name"), "arguments": call.get("arguments")}
                for call in calls
            ]
            if sampled:
                turns.append(_read_metrics(step.get("metrics") or {}, notes))
        if message["content"] or role == "assistant":
            messages.append(message)
        names = {call.get("tool_call_id"): call.get("function_name") for call in calls}
        for result in (step.get("observation") or {}).get("results") or ():
            unread = {"subagent_trajectory_ref", "extra"} & result.keys()
            notes.count_unknown("observation.", {k: result[k] for k in unread}, set())
            name = names.get(result.get("source_call_id"))
            messages.append({"role": "tool", "name": name, "content": result.get("content")})
    fields = row | {"messages": messages, "tools": agent.get("tool_definitions")}
    extra = row.get("extra")
    own = extra.get("drlib") if isinstance(extra, dict) else None  # of `atif.to_atif`
    return fields | (own if isinstance(own, dict) else {}), turns


def _read_metrics(metrics: dict, notes: ReadingNotes) -> SampledTurn:
    """Return the ids and log-probabilities in the metrics of a step."""
    notes.count_unknown("metrics.", metrics, _METRICS)
    ids = metrics.get("completion_token_ids")
    if ids is None and metrics.get("logprobs"):
        notes.fields["metrics.logprobs without completion_token_ids"] += 1
    return SampledTurn(
        metrics.get("prompt_token_ids"), ids, metrics.get("logprobs") if ids else None
    )


def convert_verifiers(row: dict) -> Record:
    """Convert a row of results.jsonl whose prompt or completion is a list of messages."""
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    if isinstance(completion, str):
        completion = [{"role": "assistant", "content": completion}]
    turns = []
    for step in row.get("trajectory") or ():
        tokens = step.get("tokens") if isinstance(step, dict) else None
        tokens = tokens or {}
        turns.append(
            SampledTurn(
                tokens.get("prompt_ids"),
                tokens.get("completion_ids"),
                tokens.get("completion_logprobs"),
            )
        )
    tools = next((row[k] for k in ("tool_defs", "tools", "oai_tools") if row.get(k)), None)
    messages = join_prompt(prompt or (), completion or ())
    return row | {"messages": messages, "tools": wrap_tools(tools)}, turns


def join_prompt(prompt: Sequence[Any], completion: Sequence[Any]) -> list:
    """Join the messages of a prompt and a completion; examples in a prompt were not sampled."""
    given = [
        m | {"sampled": False} if isinstance(m, dict) and m.get("role") == "assistant" else m
        for m in prompt
    ]
    return [*given, *completion]


def join_text_messages(value: Any) -> Any:
    """Return the text of a prompt in messages with role "text" (text completions), or `value`."""
    messages = value if isinstance(value, list) else []
    if messages and all(isinstance(m, dict) and m.get("role") == "text" for m in messages):
        return "".join(m.get("content") or "" for m in messages)
    return value


def wrap_tools(tools: Any) -> Any:
    """Return tools as OpenAI schemas; `verifiers` has them without the outer object."""
    if not isinstance(tools, list):
        return tools
    return [
        {"type": "function", "function": tool} if "function" not in tool else tool
        for tool in tools
        if isinstance(tool, dict)
    ]


def iter_traces(row: dict, notes: ReadingNotes) -> Iterator[tuple[dict, list[dict]]]:
    """Yield the fields and the message nodes of each branch of an episode of `verifiers` 0.4.

    An episode has one trace for each agent. A trace is a tree of messages: each path from the root
    to a leaf is a rollout.
    """
    task = row.get("task") or {}
    for trace in row.get("traces") or ():
        nodes = trace.get("nodes") or []
        for node in nodes:
            notes.count_unknown("node.", node, _NODE_FIELDS)
        data = (trace.get("task") or task).get("data") or {}
        scores = [reward for reward in (trace.get("rewards") or {}).values() if reward]
        fields = {
            "id": trace.get("id"),
            "reward": sum(r["score"] * r.get("weight", 1.0) for r in scores) if scores else None,
            "reward_parts": {k: r["score"] for k, r in (trace.get("rewards") or {}).items() if r},
            "answer": data.get("answer"),
            "stop_condition": trace.get("stop_condition"),
            "tools": wrap_tools(trace.get("tools")),
            "error": trace.get("errors") or row.get("errors"),
        }
        parents = {node.get("parent") for node in nodes}
        leaves = [i for i in range(len(nodes)) if i not in parents]
        for leaf in leaves or [None]:
            path: list[dict] = []
            at = leaf
            while at is not None:
                path.insert(0, nodes[at])
                at = nodes[at].get("parent")
            yield fields, path
