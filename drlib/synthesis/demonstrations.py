"""Demonstrations: attempts of any policy, the funnel that they must pass, and other forms of them.

A `Solver`'s attempts and those of other policies (`from_trajectories`) are `Episode`s and pass the
same `Funnel`. What passes can get new thoughts, be cut into context-managed rounds, and be sorted
into two stages by length.

Sources: WebDancer (arXiv 2505.22648) for the funnel, WebSailor (2507.02592) for bounds and new
thoughts, WebLeaper for ISR, ISE and soft F, Tongyi DeepResearch's report (2510.24701) for managed
contexts and the length stages. Left out: a model's judgement of quality, OpenAI's `tool_calls`.
"""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher

from drlib.format import END, Answer, FormatError, ToolCall, parse
from drlib.synthesis.oracle import Episode
from drlib.synthesis.queries import And, Count, Diff, Extreme, Or, Proj, Query, evaluate, from_text
from drlib.synthesis.solver import Solver, name_list  # noqa: F401
from drlib.synthesis.wording import says
from drlib.task import Task, answers_match, normalise_answer
from drlib.trajectory import Trajectory
from drlib.worlds.graph import Graph

STAGES = ("format", "correct", "grounded", "redundant", "bounds", "efficient")
_HEADER = re.compile(r"^The useful information in .+ for user goal .*", re.MULTILINE)
_RESPONSE = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>\s*", re.DOTALL)


def from_trajectories(
    records: Iterable[Trajectory | Mapping], tasks: Iterable[Task]
) -> list[Episode]:
    """Rollouts, or chat rows `{"messages": [..]}` of an endpoint or a file, as episodes.

    A record's task is found by its `task_id`, else by what the user says first. System turns are
    dropped; a tool speaks as "tool" or as a user's `<tool_response>`. A rollout stays beside its
    text as `episode.record`, so that the sampled ids are those that are trained. ValueError: no
    messages, a message without text, or the task is not among `tasks`; it names the row.
    """
    known = {key: task for task in tasks for key in (task.id, task.question.strip())}
    episodes = []
    for number, record in enumerate(records, 1):
        row = vars(record) if isinstance(record, Trajectory) else record
        said = [m for m in row.get("messages") or () if m["role"] != "system"]
        if not all(isinstance(m["content"], str) for m in said):
            raise ValueError(
                f"row {number} has a message whose content is no text: write its calls"
                " into the text, as <tool_call>"
            )
        said = [_plain(m) for m in said]
        names = [row.get("task_id"), *(m["content"] for m in said[:1])]
        task = next((known[name] for name in names if name in known), None)
        if not said or task is None:
            raise ValueError(f"row {number} has no messages, or its task is not given: {names}")
        episode = Episode(task, None, None)
        episode.messages += said[1:]
        episode.answer = getattr(parse(said[-1]["content"]), "text", None)
        episode.tool_results = [*row.get("tool_results", ())]
        if row is not record:
            episode.record = record
        episodes.append(episode)
    return episodes


def _plain(message: Mapping) -> dict:
    """The message as our own is: what a user says for a tool, the tool says."""
    role, text = message["role"], message["content"]
    if role == "user" and (wrapped := _RESPONSE.fullmatch(text)):
        role, text = "tool", wrapped[1]
    return {"role": role, "content": text if role == "tool" else text.strip()}


def observations(episode: Episode) -> list[str]:
    """What the tools returned, in order."""
    return [m["content"] for m in episode.messages if m["role"] == "tool"]


def _said(episode: Episode) -> list[str]:
    return [m["content"] for m in episode.messages if m["role"] == "assistant"]


def _mentions(text: str, name: str) -> bool:
    """Whether `name` stands in a normalised text as whole words."""
    return says(text, normalise_answer(name))


def _calls(episode: Episode) -> list[ToolCall]:
    return [act for act in map(parse, _said(episode)) if isinstance(act, ToolCall)]


def _grounded(episode: Episode) -> bool:
    """Whether a tool told the answer: in a call that worked and did not itself say it.

    A goal is no question to the tool and comes back in the header only, which does not count.
    """
    shown = observations(episode)
    worked = [result.ok for result in episode.tool_results] or [
        not text.startswith("Error:") for text in shown
    ]  # of a chat row
    for call, text, ok in zip(_calls(episode), shown, worked):
        asked = " ".join(str(x) for name, x in call.arguments.items() if name != "goal")
        told = (normalise_answer(t) for t in (_HEADER.sub("", text), asked))
        if ok and [_mentions(t, episode.answer) for t in told] == [True, False]:
            return True
    return False


@dataclass(frozen=True)
class Funnel:
    """Rejection of attempts in the order of `STAGES`; an attempt counts at the first that fails.

    WebSailor's bounds are 6 calls at least and 32k tokens; `size` gives a text's tokens (a quarter
    of its characters). The same `ngram` words may come `repeats` times in an attempt's thoughts.
    With a graph WebLeaper's thresholds hold for tasks that have a query.
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
        """What passes, and {stage: {"in", "kept", "reasons": {reason: how many}}}."""
        judged, report = [(episode, self.fault(episode)) for episode in episodes], {}
        left = len(judged)
        for stage in STAGES:
            reasons = Counter(wrong[1] for _, wrong in judged if wrong and wrong[0] == stage)
            left = (before := left) - reasons.total()
            report[stage] = {"in": before, "kept": left, "reasons": dict(sorted(reasons.items()))}
        return [episode for episode, wrong in judged if not wrong], report

    def fault(self, episode: Episode) -> tuple[str, str] | None:
        """The stage at which an attempt is rejected and why, or None."""
        if wrong := _misfit(episode.messages[1:]):
            return "format", wrong
        if not episode.correct:
            return "correct", "wrong answer"
        if not _grounded(episode):
            return "grounded", "answer never seen"
        turns, grams = _said(episode), Counter()
        calls = [(c.name, json.dumps(c.arguments, sort_keys=True)) for c in _calls(episode)]
        if len({*calls}) < len(calls):
            return "redundant", "identical call"
        for thought, _ in map(_parts, turns):
            words = thought.split()
            grams.update(zip(*(words[i:] for i in range(self.ngram))))
        if max(grams.values(), default=0) > self.repeats:
            return "redundant", "repeats itself"
        if not self.min_calls <= len(turns) - 1 <= self.max_calls:
            return "bounds", "too few calls" if len(turns) <= self.min_calls else "too many calls"
        if sum(self.size(message["content"]) for message in episode.messages) > self.max_tokens:
            return "bounds", "too long"
        if self.graph is not None and episode.task.query:
            isr, ise = seeking(episode, required(from_text(episode.task.query), self.graph))
            if isr < self.min_isr or ise < self.min_ise:
                return "efficient", "low ISR" if isr < self.min_isr else "low ISE"
        return None


def _misfit(turns: list[dict]) -> str:
    """What is wrong with the form of a conversation after its question, "" for nothing."""
    for at, message in enumerate(turns):
        if message["role"] != ("tool" if at % 2 else "assistant"):
            return "turns out of order"
        action = parse(message["content"])
        if at % 2 == 0 and isinstance(action, FormatError):
            return action.reason
        if at % 2 == 0 and isinstance(action, Answer) and at < len(turns) - 1:
            return "goes on after its answer"
        tag = "</answer>" if isinstance(action, Answer) else "</tool_call>"
        # what follows an action is invented, and would be trained on
        if at % 2 == 0 and _parts(message["content"])[1].partition(tag)[2].strip() not in ("", END):
            return "goes on after its action"
    return "" if len(turns) % 2 and isinstance(action, Answer) else "no answer"


def required(query: Query, graph: Graph, wanted: Iterable[str] | None = None) -> set[str]:
    """R, the titles by which `query` is evaluated: all that lead to `wanted` (by default its
    answers), and what a count or an extreme compares."""
    found = evaluate(query, graph)
    found = {*found} if wanted is None else {*found} & {*wanted}
    match query:
        case Proj(relation, of):
            start = (t for t in evaluate(of, graph) if graph.values(t, relation) & found)
            return found | required(of, graph, start)
        case And(parts) | Or(parts):
            return found.union(*(required(part, graph, found) for part in parts))
        case Diff(of, _):
            return required(of, graph, found)
        case Extreme(_, of, _) | Count(of):
            return found | required(of, graph)
    return found


def seeking(episode: Episode, needed: set[str]) -> tuple[float, float]:
    """(ISR, ISE) of WebLeaper: |R & O| / |R|, the share of needed entities that observations name,
    and n / T, needed entities a call."""
    seen, calls = normalise_answer("\n".join(observations(episode))), len(observations(episode))
    named = sum(_mentions(seen, title) for title in needed)
    return named / max(len(needed), 1), len(needed) / max(calls, 1)


def soft_f(found: Iterable[str], needed: Iterable[str], weight: float = 1.0) -> float:
    """F, in 0..1, of soft precision and recall: a name counts as much as its best match on the
    other side is alike (1: the same answer). `weight`: of recall against precision."""
    found, needed = [*found], [*needed]
    if not found or not needed:
        return float(found == needed)
    alike = [
        [1.0 if answers_match(f, n) else SequenceMatcher(None, f, n).ratio() for n in needed]
        for f in found
    ]
    precision = sum(map(max, alike)) / len(found)
    recall = sum(map(max, zip(*alike))) / len(needed)
    return (1 + weight**2) * precision * recall / max(weight**2 * precision + recall, 1e-12)


def _parts(text: str) -> tuple[str, str]:
    """A turn's thought, without its tags, and its action."""
    at = re.search("<tool_call>|<answer>", text[(start := max(text.find("</think>"), 0)) :]).start()
    return re.sub("</?think>", "", text[: start + at]).strip(), text[start + at :]


def _rounds(episode: Episode) -> list[tuple[str, str, str]]:
    """(thought, action, observation) of each turn; nothing is observed after an answer."""
    seen = [*observations(episode), ""]
    return [(*_parts(text), shown) for text, shown in zip(_said(episode), seen)]


def short_thought(history: list[dict], action: ToolCall | Answer, observation: str) -> str:
    """The templated thought of `reconstruct`."""
    if isinstance(action, Answer):
        return "I have the answer."
    about = next(iter(action.arguments.values()), "")
    return f"I use {action.name}: {about if isinstance(about, str) else name_list(about)}."


def reconstruct(episode: Episode, think: Callable = short_thought) -> Episode:
    """The same actions and observations with new thoughts (WebSailor); of an episode that passed.

    `think(history, action, observation)` gives an action's thought and may ask a model; history has
    question, actions and observations before it, the old thoughts withheld. ValueError: a thought
    that is empty or holds a tag.
    """
    new, history = Episode(episode.task, None, None), episode.messages[:1]
    new.tool_results, new.answer = episode.tool_results, episode.answer
    for _, action, seen in _rounds(episode):
        thought = think([*history], parse(action), seen).strip()
        if not thought or re.search(r"</?\w+>|<\|", thought):
            raise ValueError(f"{episode.task.id}: {thought!r} is no thought")
        shown, said = {"role": "tool", "content": seen}, f"<think>{thought}</think>{action}"
        new.messages += [{"role": "assistant", "content": said}, shown]
        history += [{"role": "assistant", "content": action}, shown]
    new.messages.pop()
    return new


def managed(episode: Episode) -> list[list[dict]]:
    """Context-managed samples: each round of an episode as a conversation of its own.

    The user's turn holds question, report, last action and observation, nothing else of what was;
    the assistant's is thought, report, action. A report is what the thoughts up to its round say (a
    `Solver` says what it found).
    """
    rows, report, action, seen = [], "", "none", "none"
    for thought, following, shown in _rounds(episode):
        state = (
            f"Question: {episode.task.question}\nReport: {report or 'empty'}\n"
            f"Last action: {action}\nLast observation: {seen}"
        )
        report, action, seen = f"{report} {thought}".strip(), following, shown
        said = f"<think>{thought}</think><report>{report}</report>{action}"
        rows.append([{"role": "user", "content": state}, {"role": "assistant", "content": said}])
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
    """First all `rounds` (context-managed) with what is short of `react`, then what is longer, up
    to `long`, and `share` as many of the short ones. `size`: a sample's tokens."""
    sized = [(size(sample), sample) for sample in react]
    brief = [sample for n, sample in sized if n <= short]
    later = [sample for n, sample in sized if short < n <= long]
    some = random.Random(f"stages-{seed}").sample(brief, min(len(brief), round(share * len(later))))
    return [*rounds, *brief], [*later, *some]
