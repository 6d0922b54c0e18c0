"""WebWalker: an explorer clicks through a site, a critic decides when to stop.

The explorer reads a page and clicks one of its links; it never answers. After every click the
critic adds useful information to a memory, and when the memory has grown it judges whether it
suffices: its answer is then the agent's answer. The roles are two kinds of context of the same
policy, or the critic is a function (`Critic`). Source: WebWalker (arXiv 2501.07572), explorer and
critic; there, too, a click is the only action, at most 15 (`Limits.calls`).

`Task.start` is the first page, a title or a URL.
"""

import re
from concurrent.futures import Future
from typing import Protocol

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.context import Context
from drlib.agents.rollout_state import RolloutState, Steps, Turn
from drlib.chat.json_replies import extract_json
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
    """An external critic in place of the policy's own."""

    def useful(self, question: str, page: str) -> str:
        """Return information that helps to answer the question, "" for none."""

    def answer(self, question: str, memory: list[str]) -> str | None:
        """Return the answer if the memory suffices, else None."""


@AGENTS.register("webwalker")
class WebWalker(Agent):
    """Explorer and critic.

    `Trajectory.metadata`: "memory", "clicks" (addresses), "critic_errors" (number of unparsable
    judgements, which count as a no).

    critic: None for the policy itself.
    """

    def __init__(self, *args, critic: Critic | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.critic = critic

    def run_task(self, state: RolloutState) -> Steps:
        require(
            bool(state.task.start),
            f"task {state.task.id} has no `start` (title or URL of the first page)",
        )
        state.notes |= {"memory": [], "clicks": [], "critic_errors": 0}
        result = yield state.act(_click(state.task.start, state.task.question))
        if not result.ok:
            return None
        page, links = _with_links(state, result)
        explorer = state.begin(EXPLORE.format(question=state.task.question, page=page))
        while True:
            if result.ok:
                answer = yield from self._read_along(state, result.text)
                if answer is not None:
                    return answer
            turn = yield explorer
            result = yield self._click_link(state, turn, links)
            page = result.text
            if result.ok:
                page, links = _with_links(state, result)
            explorer.observe(page)

    def _click_link(self, state: RolloutState, turn: Turn, links: list[str]) -> Future:
        """Return a future of the explorer's click; any other action is a failed call."""
        action = turn.action
        if not isinstance(action, ToolCall) or action.name != "visit":
            return state.act(FormatError(NOT_A_CLICK))
        urls = action.arguments.get("url")
        url = urls if isinstance(urls, str) else next(iter(urls or ()), "")
        if url not in links:
            return state.act(FormatError(NO_LINK.format(url=url)))
        waiting = state.act(_click(url, state.task.question))
        state.notes["clicks"].append(url)
        return waiting

    def _read_along(self, state: RolloutState, page: str):
        """Update the memory; return the answer if it suffices."""
        question, memory = state.task.question, state.notes["memory"]
        if self.critic is None:
            reply = yield from self._ask(state, USEFUL.format(question=question, page=page))
            useful = reply.get("usefulness") is True
            information = reply.get("information") if useful else ""
        else:
            information = yield state.submit(self.critic.useful, question, page)
        if not information or not isinstance(information, str) or information in memory:
            return None
        memory.append(information)
        if self.critic is not None:
            return (yield state.submit(self.critic.answer, question, list(memory)))
        known = "\n".join(f"- {fact}" for fact in memory)
        reply = yield from self._ask(state, JUDGE.format(question=question, memory=known))
        answer = reply.get("answer")
        return answer if reply.get("judge") is True and isinstance(answer, str) and answer else None

    def _ask(self, state: RolloutState, question: str):
        """Return the JSON object in the policy's reply, {} if there is none."""
        context: Context = state.begin(question)
        turn = yield context
        try:
            return extract_json(turn.text, dict)
        except ValueError:
            state.notes["critic_errors"] += 1
            return {}


def _with_links(state: RolloutState, result: ToolResult) -> tuple[str, list[str]]:
    """Return the page's text and the addresses that may be clicked.

    Links outside the text (a menu) are appended to it.
    """
    (url,) = result.arguments["url"]
    in_text = _LINK.findall(result.text)
    world = state.world or state.toolbox.world
    try:
        others = [link for link in world.links(url) if link not in in_text] if world else []
    except KeyError:  # a live page: all links are in its text
        others = []
    more = f"\nFurther links: {', '.join(others)}" if others else ""
    return result.text + more, in_text + others


def _click(url: str, goal: str) -> ToolCall:
    return ToolCall("visit", {"url": [url], "goal": goal})
