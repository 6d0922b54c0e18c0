"""Write trajectories as Harbor's Agent Trajectory Interchange Format (ATIF), one JSON file each.

An assistant turn is an agent step: its first thought is `reasoning_content`, its calls are
`tool_calls`, the rest is `message`. Results of tools are the step's `observation`. A turn whose
calls cannot be parsed stays a message. Token ids are written where log-probabilities show that they
are the sampled ones, but not those of prompts, whose size grows with the square of the turns.
`record_formats.convert_atif` reads the files. Source: ATIF v1.6 (Harbor's RFC 0001).
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from drlib import __version__
from drlib.agents.rollout_state import count_costs
from drlib.analysis.chat_messages import is_observation, is_sampled
from drlib.chat.tool_calls import ToolCall, mask_call_strings, parse_native
from drlib.files import write_atomic
from drlib.trajectory import Trajectory

SCHEMA_VERSION = "ATIF-v1.6"
_SOURCES = {"system": "system", "assistant": "agent"}  # other roles: user
_THOUGHT = re.compile(r"\s*<think>(.*?)</think>", re.S)
_CALL = re.compile(r"<tool_call>.*?</tool_call>\s*", re.S)
_NO_FILE_NAME = re.compile(r"[^\w.-]+")


def write_atif(folder: str | Path, trajectories: Iterable[Trajectory]) -> int:
    """Write each trajectory to FOLDER/NUMBER-ID.json; return their number.

    Raises:
        WriteError: a file could not be written.
    """
    number = 0
    for number, trajectory in enumerate(trajectories, 1):
        name = _NO_FILE_NAME.sub("_", trajectory.id)[:100]
        text = json.dumps(to_atif(trajectory), indent=1)
        write_atomic(Path(folder) / f"{number:05d}-{name}.json", text + "\n")
    return number


def to_atif(trajectory: Trajectory) -> dict[str, Any]:
    """Convert a trajectory to an ATIF document.

    `extra["drlib"]` has the fields that ATIF lacks: question, answer (the reference), prediction,
    reward and termination.
    """
    turns = _split_tokens(trajectory)
    if len(turns) != sum(map(is_sampled, trajectory.messages)):
        turns = []  # the texts are of other turns than the tokens
    steps: list[dict[str, Any]] = []
    for message in trajectory.messages:
        if is_observation(message) and steps and steps[-1]["source"] == "agent":
            _add_observation(steps[-1], message["content"])
            continue
        number = len(steps) + 1
        step: dict[str, Any] = {
            "step_id": number,
            "source": _SOURCES.get(message["role"], "user"),
        }
        if message["role"] != "assistant":
            steps.append(step | {"message": message["content"]})
            continue
        step |= _convert_turn(message["content"], number)
        if not is_sampled(message):
            step["is_copied_context"] = True
        elif turns and (metrics := turns.pop(0)):
            step["metrics"] = metrics
        steps.append(step)
    about = trajectory.metadata
    own = {
        "question": about.get("question"),
        "answer": about.get("right_answer"),
        "prediction": trajectory.answer,
        "reward": trajectory.reward,
        "termination": str(trajectory.termination),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": trajectory.id,
        "agent": {"name": "drlib", "version": __version__},
        "steps": steps,
        "final_metrics": _sum_metrics(trajectory, steps),
        "extra": {"drlib": own},
    }


def _convert_turn(content: str, step_id: int) -> dict[str, Any]:
    """Split an assistant's text into message, thought and calls."""
    found: dict[str, Any] = {}
    if thought := _THOUGHT.match(content):
        found["reasoning_content"] = thought[1]
        content = content[thought.end() :]
    actions = parse_native(content) if "<tool_call>" in content else []
    if actions and all(isinstance(action, ToolCall) for action in actions):
        found["tool_calls"] = [
            {
                "tool_call_id": f"call_{step_id}_{number}",
                "function_name": action.name,
                "arguments": action.arguments,
            }
            for number, action in enumerate(actions, 1)
        ]
        spans = [call.span() for call in _CALL.finditer(mask_call_strings(content))]
        for start, end in reversed(spans):  # tags in the strings of a call are text
            content = content[:start] + content[end:]
    return {"message": content} | found


def _add_observation(step: dict[str, Any], content: str) -> None:
    """Add a result to a step; the results are in the order of its calls."""
    results = step.setdefault("observation", {"results": []})["results"]
    calls = step.get("tool_calls", [])
    result = {"content": content}
    if len(results) < len(calls):
        result["source_call_id"] = calls[len(results)]["tool_call_id"]
    results.append(result)


def _split_tokens(trajectory: Trajectory) -> list[dict[str, Any]]:
    """Return the metrics of each sampled turn, {} if its log-probabilities are unknown."""
    places_N = np.flatnonzero(trajectory.generated)
    ends = np.flatnonzero(np.diff(places_N) != 1) + 1
    found: list[dict[str, Any]] = []
    for run in np.split(places_N, ends) if len(places_N) else ():
        logprobs = trajectory.logprobs[run].astype(float).tolist()
        is_known = np.isfinite(logprobs).all()
        ids = trajectory.token_ids[run].tolist()
        metrics = {"completion_tokens": len(ids), "completion_token_ids": ids, "logprobs": logprobs}
        found.append(metrics if is_known else {})
    return found


def _sum_metrics(trajectory: Trajectory, steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the metrics of the whole trajectory."""
    costs, usage = count_costs(trajectory), trajectory.metadata.get("usage", {})
    found: dict[str, Any] = {"total_steps": len(steps)}
    if any("metrics" in step for step in steps) or "said_tokens" in usage:
        found["total_completion_tokens"] = costs["sampled"]
    if "read_tokens" in usage:
        found["total_prompt_tokens"] = usage["read_tokens"]
    extra = {name: usage[name] for name in ("cost", "seconds") if name in usage}
    return found | {"extra": extra | {"tool_calls": costs["calls"]}}
