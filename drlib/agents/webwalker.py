"""WebWalker: an explorer clicks its way through a site, a critic reads along and says when to stop.

The explorer reads a page and clicks one of its links, nothing else; it never answers. After every
click the critic keeps what is useful of the page in a memory, and when the memory has grown it
judges whether that suffices: then its answer is the answer, at the first such step. The roles are
two kinds of context of the same policy, or the critic is a function (`Critic`). Source: WebWalker
(arXiv 2501.07572), explorer and critic; there, too, a click is the only action, at most 15
(`Limits.calls`).

A task's `start` is where the walk begins, a title or a URL.
"""

import json
import re
from concurrent.futures import Future
from typing import Protocol

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.context import Context
from drlib.agents.rollout_state import RolloutState, Steps, Turn
from drlib.chat.tool_calls import FormatError, ToolCall
from drlib.trajectory import ToolResult
from drlib.validation import require

EXPLORE = """You walk through a site to find what answers this question: {question}

In each turn click one link of the page that you are on, by calling the tool visit with its \
address. Somebody else reads along and answers; you never do. You begin here:

{page}"""
USEFUL = """Question: {question}

A page was opened:
{page}

Is there anything on it that helps to answer the question? Reply with one JSON object: \
{{"usefulness": true or false, "information": "what helps, in the page's words"}}"""
JUDGE = """Question: {question}

What is known:
{memory}

Does that suffice to answer? Reply with one JSON object: \
{{"judge": true or false, "answer": "the answer, as short as possible"}}"""
NOT_A_CLICK = "click a link of this page: call visit with its address."
NO_LINK = "there is no link to {url} on this page; click one of its own."

_LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")


class Critic(Protocol):
    """Somebody else's judgement, in the policy's place."""

    def useful(self, question: str, page: str) -> str:
        """What helps to answer the question; "" where nothing does."""

    def answer(self, question: str, memory: list[str]) -> str | None:
        """The answer, where the memory suffices for it."""


@AGENTS.register("webwalker")
class WebWalker(Agent):
    """`Trajectory.metadata`: "memory", what was kept; "clicks", the addresses; "critic_errors", how
    often the policy's judgement could not be read (it then counts as a no).

    critic: None for the policy itself.
    """

    def __init__(self, *how, critic: Critic | None = None, **more):
        super().__init__(*how, **more)
        self.critic = critic

    def run_task(self, at: RolloutState) -> Steps:
        require(bool(at.task.start), f"task {at.task.id} has no `start`, where a walk begins")
        at.notes |= {"memory": [], "clicks": [], "critic_errors": 0}
        result = yield at.act(_click(at.task.start, at.task.question))
        if not result.ok:
            return None
        page, links = _with_links(at, result)
        explorer = at.begin(EXPLORE.format(question=at.task.question, page=page))
        while True:
            if result.ok:
                answer = yield from self._read_along(at, result.text)
                if answer is not None:
                    return answer
            turn = yield explorer
            result = yield self._clicked(at, turn, links)
            page = result.text
            if result.ok:
                page, links = _with_links(at, result)
            explorer.observe(page)

    def _clicked(self, at: RolloutState, turn: Turn, links: list[str]) -> Future:
        """A future of what the explorer's turn brings; anything but a link of the page is a failed
        call."""
        action = turn.action
        if not isinstance(action, ToolCall) or action.name != "visit":
            return at.act(FormatError(NOT_A_CLICK))
        urls = action.arguments.get("url")
        url = urls if isinstance(urls, str) else next(iter(urls or ()), "")
        if url not in links:
            return at.act(FormatError(NO_LINK.format(url=url)))
        waiting = at.act(_click(url, at.task.question))
        at.notes["clicks"].append(url)
        return waiting

    def _read_along(self, at: RolloutState, page: str):
        """The answer, where what is now known suffices."""
        question, memory = at.task.question, at.notes["memory"]
        if self.critic is None:
            said = yield from self._ask(at, USEFUL.format(question=question, page=page))
            useful = said.get("usefulness") is True
            information = said.get("information") if useful else ""
        else:
            information = yield at.submit(self.critic.useful, question, page)
        if not information or not isinstance(information, str) or information in memory:
            return None
        memory.append(information)
        if self.critic is not None:
            return (yield at.submit(self.critic.answer, question, list(memory)))
        known = "\n".join(f"- {one}" for one in memory)
        said = yield from self._ask(at, JUDGE.format(question=question, memory=known))
        answer = said.get("answer")
        return answer if said.get("judge") is True and isinstance(answer, str) and answer else None

    def _ask(self, at: RolloutState, question: str):
        """The JSON object that the policy replies with; an empty one where there is none."""
        context: Context = at.begin(question)
        turn = yield context
        start, end = turn.text.find("{"), turn.text.rfind("}")
        try:
            said = json.loads(turn.text[start : end + 1])
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            at.notes["critic_errors"] += 1
            return {}
        return said


def _with_links(at: RolloutState, result: ToolResult) -> tuple[str, list[str]]:
    """The page as the explorer reads it, and the addresses that it may click: those in the text,
    and those that the page has besides (a menu), which are told behind it."""
    (url,) = result.arguments["url"]
    in_text = _LINK.findall(result.text)
    world = at.world or at.toolbox.world
    try:
        besides = [link for link in world.links(url) if link not in in_text] if world else []
    except KeyError:  # a live page, whose links are in its text
        besides = []
    more = f"\nFurther links: {', '.join(besides)}" if besides else ""
    return result.text + more, in_text + besides


def _click(url: str, goal: str) -> ToolCall:
    return ToolCall("visit", {"url": [url], "goal": goal})
