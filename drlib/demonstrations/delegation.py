"""Demonstrations of a planner and its workers, made from episodes of one agent.

A search episode of several hops becomes one conversation of the planner and one of a worker per
hop. A calculation is delegated as a whole. The turns of a worker are those of the episode, mistakes
included, so a worker's conversation has the form of a short ReAct episode. Source: MATPO (arXiv
2510.04678); it trains from a base model without demonstrations.

Not supported: trails and questions with several conditions, which yield no conversations.
"""

from typing import NamedTuple

from drlib.chat.prompts import PLAN
from drlib.chat.tool_calls import ToolCall, parse, render_answer, render_call
from drlib.demonstrations.episodes import assistant_turns, observations, thought_and_action
from drlib.demonstrations.oracle import COMPUTED, LAST, Episode
from drlib.questions.chains import SEARCH_WORDINGS, TREASURE
from drlib.tools.definitions import DELEGATE

OUTPUT = "output"  # key of `Episode.known` for what a program printed


class _Part(NamedTuple):
    """Part of an episode: a sub-question and the turns that answer it."""

    question: str
    thought: str  # at its beginning
    turns: list[dict]  # calls and observations
    statement: str  # the worker's last thought
    answer: str


def delegated(episode: Episode) -> list[list[dict]]:
    """Return the planner's conversation, then one per worker; [] if the episode has no parts."""
    parts = _split_episode(episode)
    if not parts or episode.answer != parts[-1].answer:
        return []
    planner = [{"role": "user", "content": PLAN.format(question=episode.task.question)}]
    workers = []
    for part in parts:
        call = render_call(DELEGATE.name, {"question": part.question})
        planner += [
            {"role": "assistant", "content": f"<think>{part.thought}</think>{call}"},
            {"role": "tool", "content": part.answer},
        ]
        said = f"<think>{part.statement}</think>{render_answer(part.answer)}"
        workers.append(
            [
                {"role": "user", "content": part.question},
                *part.turns,
                {"role": "assistant", "content": said},
            ]
        )
    return [[*planner, episode.messages[-1]], *workers]


def _split_episode(episode: Episode) -> list[_Part]:
    """Split an episode where a new fact is known; [] if that gives no sub-questions."""
    known = episode.known_before
    said, shown = assistant_turns(episode), observations(episode)
    if episode.answer is None or len(known) != len(said) or not shown or TREASURE in known[-1]:
        return []
    parts, begun = [], 0
    for at in range(len(shown)):
        found = [pair for pair in known[at + 1].items() if pair not in known[at].items()]
        if not found:
            continue
        turns = [
            message
            for text, result in zip(said[begun : at + 1], shown[begun : at + 1])
            for message in (
                {"role": "assistant", "content": text},
                {"role": "tool", "content": result},
            )
        ]
        part = _make_part(episode, said[begun], said[at], turns, *found[0])
        if part is None:
            return []
        parts.append(part)
        begun = at + 1
    return parts if begun == len(shown) else []


def _make_part(
    episode: Episode, first: str, last: str, turns: list[dict], what: str, value: str
) -> _Part | None:
    """Return a part that finds `value`; None if its sub-question cannot be stated.

    Args:
        first, last: the policy's first and last turn in it.
        what: relation, or `OUTPUT`.
    """
    thought, _ = thought_and_action(first)
    if what == OUTPUT:
        return _Part(episode.task.question, thought, turns, COMPUTED[0], value)
    call = parse(last)
    queries = call.arguments.get("query") if isinstance(call, ToolCall) else None
    if not isinstance(queries, list) or len(queries) != 1 or "; " in queries[0]:
        return None  # a search for several conditions
    question = SEARCH_WORDINGS[0].format(relations=what, start=queries[0])
    return _Part(question, thought, turns, LAST[0].format(r=what, v=value), value)
