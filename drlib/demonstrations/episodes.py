"""Episodes from rollouts of any policy, and their conversion to other formats.

Episodes of a `Solver` and of other policies (`from_trajectories`) pass the same
`drlib.demonstrations.funnel`. The accepted ones can get new thoughts, be cut into context-managed
rounds, and be sorted into two stages by length.

Sources: WebSailor (arXiv 2507.02592) for new thoughts, Tongyi DeepResearch's report (2510.24701)
for managed contexts and length stages. Not supported: OpenAI's `tool_calls`.
"""

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from drlib.chat.tool_calls import Answer, ToolCall, parse, render_workspace
from drlib.demonstrations.oracle import Episode
from drlib.demonstrations.solver import name_list
from drlib.questions.export import read_rows
from drlib.task import Task
from drlib.trajectory import Trajectory

_TOOL_RESPONSE = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>\s*", re.DOTALL)


def from_trajectories(
    records: Iterable[Trajectory | Mapping], tasks: Iterable[Task]
) -> list[Episode]:
    """Convert rollouts, or chat rows `{"messages": [..]}` of an endpoint or a file, to episodes.

    A record's task is found by its `task_id`, else by the first user message. System turns are
    dropped; tool turns have the role "tool" or are user turns with `<tool_response>`. A rollout is
    kept as `episode.record`, so that exactly the sampled ids are trained.

    Raises:
        ValueError: no messages, a message without text, or an unknown task; the message names the
            row.
    """
    known = {key: task for task in tasks for key in (task.id, task.question.strip())}
    return [_episode(number, record, known) for number, record in enumerate(records, 1)]


def _episode(number: int, record: Trajectory | Mapping, known: Mapping[str, Task]) -> Episode:
    """Convert row `number`; `known` maps ids and questions to tasks."""
    row = vars(record) if isinstance(record, Trajectory) else record
    said = [message for message in row.get("messages") or () if message["role"] != "system"]
    if not all(isinstance(message["content"], str) for message in said):
        raise ValueError(
            f"row {number} has a message whose content is no text: write its calls"
            " into the text, as <tool_call>"
        )
    said = [_as_ours(message) for message in said]
    names = [row.get("task_id"), *(message["content"] for message in said[:1])]
    task = next((known[name] for name in names if name in known), None)
    if not said or task is None:
        raise ValueError(f"row {number} has no messages, or its task is not given: {names}")
    episode = Episode(task, None, None)
    episode.messages += said[1:]
    episode.answer = getattr(parse(said[-1]["content"]), "text", None)
    episode.tool_results = [*row.get("tool_results", ())]
    if isinstance(record, Trajectory):
        episode.record = record
    return episode


def _as_ours(message: Mapping) -> dict:
    """Convert a message: tool results sent as user turns become tool turns."""
    role, text = message["role"], message["content"]
    wrapped = _TOOL_RESPONSE.fullmatch(text) if role == "user" else None
    if wrapped:
        return {"role": "tool", "content": wrapped[1]}
    return {"role": role, "content": text if role == "tool" else text.strip()}


def observations(episode: Episode) -> list[str]:
    """Return the tool results, in order."""
    return [message["content"] for message in episode.messages if message["role"] == "tool"]


def assistant_turns(episode: Episode) -> list[str]:
    """Return the policy's texts, one per turn."""
    return [message["content"] for message in episode.messages if message["role"] == "assistant"]


def thought_and_action(turn: str) -> tuple[str, str]:
    """Return a turn's thought without tags, and its action; AttributeError without one."""
    start = max(turn.find("</think>"), 0)
    at = start + re.search("<tool_call>|<answer>", turn[start:]).start()
    return re.sub("</?think>", "", turn[:at]).strip(), turn[at:]


def _steps(episode: Episode) -> list[tuple[str, str, str]]:
    """Return (thought, action, observation) of each turn; no observation after an answer."""
    shown = [*observations(episode), ""]
    return [
        (*thought_and_action(turn), seen) for turn, seen in zip(assistant_turns(episode), shown)
    ]


def short_thought(history: list[dict], action: ToolCall | Answer, observation: str) -> str:
    """Return a thought from a template, the default of `reconstruct`."""
    if isinstance(action, Answer):
        return "I have the answer."
    about = next(iter(action.arguments.values()), "")
    return f"I use {action.name}: {about if isinstance(about, str) else name_list(about)}."


def reconstruct(episode: Episode, think: Callable = short_thought) -> Episode:
    """Return an accepted episode with new thoughts and the same actions (WebSailor).

    Args:
        think: called with (history, action, observation), returns the action's thought and may ask
            a
            model. The history holds question, actions and observations, without the old thoughts.

    Raises:
        ValueError: a thought is empty or contains a tag.
    """
    new = Episode(episode.task, None, None)
    new.tool_results = episode.tool_results
    new.answer = episode.answer
    history = episode.messages[:1]
    for _, action, seen in _steps(episode):
        thought = think([*history], parse(action), seen).strip()
        if not thought or re.search(r"</?\w+>|<\|", thought):
            raise ValueError(f"{episode.task.id}: {thought!r} is no thought")
        shown = {"role": "tool", "content": seen}
        said = f"<think>{thought}</think>{action}"
        new.messages += [{"role": "assistant", "content": said}, shown]
        history += [{"role": "assistant", "content": action}, shown]
    new.messages.pop()  # nothing is observed after the answer
    return new


REFLECTIONS = ("Wait. Let me check again.", "Wait, I should check this.", "Let me double-check.")


def insert_reflections(messages: Sequence[Mapping], share: float, rng: random.Random) -> list[dict]:
    """Return a conversation with imitated reflection, as in the demonstrations that hurt RL in
    VLAA-Thinking (arXiv 2504.11468).

    A thought is followed by words of reflection and by itself. Actions and observations do not
    change, so the reflection has no effect.

    Args:
        messages: turns with a thought and an action.
        share: probability of a turn to be changed, 0..1.
    """
    changed = []
    for message in messages:
        content = message["content"]
        if message["role"] == "assistant" and rng.random() < share:
            thought, action = thought_and_action(content)
            content = f"<think>{thought} {rng.choice(REFLECTIONS)} {thought}</think>{action}"
        changed.append({**message, "content": content})
    return changed


def managed(episode: Episode, reports: Sequence[str] | None = None) -> list[list[dict]]:
    """Return context-managed samples: each round of an episode as its own conversation.

    The user turn holds question, report, last action and observation, and nothing else. The
    assistant turn holds thought, report and action. reports: one per round; None: the thoughts up
    to that round (a `Solver` states its findings there).
    """
    rows = []
    report, last_action, last_observation = "", "", ""
    for number, (thought, action, shown) in enumerate(_steps(episode)):
        state = render_workspace(episode.task.question, report, last_action, last_observation)
        report = f"{report} {thought}".strip() if reports is None else reports[number]
        said = f"<think>{thought}</think><report>{report}</report>{action}"
        rows.append([{"role": "user", "content": state}, {"role": "assistant", "content": said}])
        last_action, last_observation = action, shown
    return rows


def length_stages(
    react: Iterable,
    rounds: Iterable,
    size: Callable[..., int],
    short: int,
    long: int,
    share: float = 0.1,
    seed: int = 0,
) -> tuple[list, list]:
    """Return the samples of two stages by length (Tongyi DeepResearch).

    The first stage has all context-managed `rounds` and the short samples of `react`. The second
    has the samples of up to `long` tokens and, relative to these, a `share` of short ones.

    Args:
        size: number of tokens of a sample.
    """
    sized = [(size(sample), sample) for sample in react]
    brief = [sample for tokens, sample in sized if tokens <= short]
    later = [sample for tokens, sample in sized if short < tokens <= long]
    wanted = min(len(brief), round(share * len(later)))
    again = random.Random(f"stages-{seed}").sample(brief, wanted)
    return [*rounds, *brief], [*later, *again]


def export_attempts(episodes: Iterable[Episode], tools: Sequence[dict], tag: str) -> list[dict]:
    """Write episodes in WebDancer's format, in which tool results are user turns.

    Args:
        tools: as in `Toolbox.schemas`.
    """
    rows = []
    functions = [json.dumps(tool) for tool in tools]
    for episode in episodes:
        said = [_as_theirs(message) for message in episode.messages]
        actions = [parse(m["content"]) for m in said if m["role"] == "assistant"]
        calls = [json.dumps(vars(act)) for act in actions if isinstance(act, ToolCall)]
        rows.append(
            {
                "type": "chatml",
                "task": episode.task.id,
                "messages": said,
                "functions": functions,
                "tool_calls": calls,
                "answer": episode.task.answer,
                "tag": tag,
            }
        )
    return rows


def _as_theirs(message: Mapping) -> dict:
    if message["role"] != "tool":
        return dict(message)
    text = f"<tool_response>\n{message['content']}\n</tool_response>"
    return {"role": "user", "content": text}


def read_attempts(path: str | Path, tasks: Iterable[Task] = ()) -> list[Episode]:
    """Read a WebDancer file. The row's `task` is the id of one of `tasks`; without it, the question
    is the first user message, and no aliases are known.
    """
    rows = read_rows(path, ("messages", "answer"))
    known = {task.id: task for task in tasks}
    for number, row in enumerate(rows):
        name = str(row.get("task"))
        if name not in known:
            name = f"{path}:{number}"
            said = [message["content"] for message in row["messages"] if message["role"] == "user"]
            question = said[0] if said else ""
            known[name] = Task(name, question, str(row["answer"]), "search", "")
        row["task_id"] = name
    return from_trajectories(rows, known.values())
