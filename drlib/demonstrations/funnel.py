"""Rejection sampling of demonstrations, stage by stage.

A demonstration must be well formed, correct, grounded in a tool result, free of repetition and
within bounds. If the world's graph is known, it must also be efficient. Sources: WebDancer (arXiv
2505.22648) for the stages, WebSailor (2507.02592) for the bounds, WebLeaper for ISR, ISE and soft
F. Not implemented: quality judgements by a model.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from drlib.chat.tool_calls import END, Answer, FormatError, ToolCall, parse
from drlib.demonstrations.episodes import assistant_turns, observations, thought_and_action
from drlib.demonstrations.oracle import Episode
from drlib.questions.queries import (
    find_required,
    from_text,
)
from drlib.questions.wording import mentions
from drlib.task import normalise_answer
from drlib.worlds.graph import Graph

FUNNEL_STAGES = ("format", "correct", "grounded", "redundant", "bounds", "efficient")
_HEADER = re.compile(r"^The useful information in .+ for user goal .*", re.MULTILINE)


@dataclass(frozen=True)
class Funnel:
    """Rejection of episodes in the order of `FUNNEL_STAGES`; the first failed stage counts.

    WebSailor's bounds are at least 6 calls and at most 32k tokens. `size` counts a text's tokens (a
    quarter of its characters). The same `ngram` words may occur `repeats` times in an episode's
    thoughts. With a graph, WebLeaper's thresholds apply to tasks with a query.
    """

    min_calls: int = 1
    max_calls: int = 1000
    max_tokens: int = 32_768
    size: Callable[[str], float] = lambda text: len(text) / 4
    ngram: int = 8
    repeats: int = 3
    graph: Graph | None = None
    min_isr: float = 0.0
    min_ise: float = 0.0

    def run(self, episodes: Iterable[Episode]) -> tuple[list[Episode], dict]:
        """Return the kept episodes, and {stage: {"in", "kept", "reasons": {reason: count}}}."""
        judged = [(episode, self.fault(episode)) for episode in episodes]
        report = {}
        left = len(judged)
        for stage in FUNNEL_STAGES:
            reasons = Counter(wrong[1] for _, wrong in judged if wrong and wrong[0] == stage)
            before = left
            left -= reasons.total()
            report[stage] = {"in": before, "kept": left, "reasons": dict(sorted(reasons.items()))}
        return [episode for episode, wrong in judged if not wrong], report

    def fault(self, episode: Episode) -> tuple[str, str] | None:
        """Return the stage that rejects an episode and the reason, or None."""
        misfit = _misfit(episode.messages[1:])
        if misfit:
            return "format", misfit
        if not episode.correct:
            return "correct", "wrong answer"
        if not _grounded(episode):
            return "grounded", "answer never seen"
        return self._redundant(episode) or self._out_of_bounds(episode) or self._wasteful(episode)

    def _redundant(self, episode: Episode) -> tuple[str, str] | None:
        calls = [
            (call.name, json.dumps(call.arguments, sort_keys=True)) for call in _calls(episode)
        ]
        if len({*calls}) < len(calls):
            return "redundant", "identical call"
        grams: Counter[tuple[str, ...]] = Counter()
        for turn in assistant_turns(episode):
            thought, _ = thought_and_action(turn)
            words = thought.split()
            grams.update(zip(*(words[i:] for i in range(self.ngram))))
        if max(grams.values(), default=0) > self.repeats:
            return "redundant", "repeats itself"
        return None

    def _out_of_bounds(self, episode: Episode) -> tuple[str, str] | None:
        calls = len(assistant_turns(episode)) - 1
        if calls < self.min_calls:
            return "bounds", "too few calls"
        if calls > self.max_calls:
            return "bounds", "too many calls"
        if sum(self.size(message["content"]) for message in episode.messages) > self.max_tokens:
            return "bounds", "too long"
        return None

    def _wasteful(self, episode: Episode) -> tuple[str, str] | None:
        if self.graph is None or not episode.task.query:
            return None
        isr, ise = seeking(episode, find_required(from_text(episode.task.query), self.graph))
        if isr < self.min_isr:
            return "efficient", "low ISR"
        if ise < self.min_ise:
            return "efficient", "low ISE"
        return None


def _misfit(turns: list[dict]) -> str:
    """Return the format fault of a conversation after its question, or ""."""
    action = None
    for at, message in enumerate(turns):
        is_tool = at % 2 == 1
        if message["role"] != ("tool" if is_tool else "assistant"):
            return "turns out of order"
        if is_tool:
            continue
        action = parse(message["content"])
        if isinstance(action, FormatError):
            return action.reason
        if isinstance(action, Answer) and at < len(turns) - 1:
            return "goes on after its answer"
        tag = "</answer>" if isinstance(action, Answer) else "</tool_call>"
        _, said = thought_and_action(message["content"])
        # what follows an action is invented, and would be trained on
        if said.partition(tag)[2].strip() not in ("", END):
            return "goes on after its action"
    ends_with_answer = len(turns) % 2 == 1 and isinstance(action, Answer)
    return "" if ends_with_answer else "no answer"


def _calls(episode: Episode) -> list[ToolCall]:
    actions = map(parse, assistant_turns(episode))
    return [action for action in actions if isinstance(action, ToolCall)]


def _mentions(text: str, name: str) -> bool:
    """Return True if `name` occurs in a normalised text as whole words."""
    return mentions(text, normalise_answer(name))


def _grounded(episode: Episode) -> bool:
    """Return True if a successful call that did not contain the answer returned it.

    A goal is not a query: it reappears in the result's header only, which does not count.
    """
    shown = observations(episode)
    worked = [result.ok for result in episode.tool_results]
    if not worked:  # of a chat row
        worked = [not text.startswith("Error:") for text in shown]
    for call, text, ok in zip(_calls(episode), shown, worked):
        asked = " ".join(str(value) for name, value in call.arguments.items() if name != "goal")
        was_told = _mentions(normalise_answer(_HEADER.sub("", text)), episode.answer)
        was_asked = _mentions(normalise_answer(asked), episode.answer)
        if ok and was_told and not was_asked:
            return True
    return False


# ---------------------------------------------------------------------- how much an attempt found


def seeking(episode: Episode, needed: set[str]) -> tuple[float, float]:
    """Return WebLeaper's ISR and ISE.

    ISR = |R & O| / |R|, the share of needed entities named in observations; ISE = n / T, needed
    entities per call.
    """
    shown = observations(episode)
    seen = normalise_answer("\n".join(shown))
    named = sum(_mentions(seen, title) for title in needed)
    return named / max(len(needed), 1), len(needed) / max(len(shown), 1)
