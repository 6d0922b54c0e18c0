"""A question, an agent, and what came of it: answer, sources, cost.

The policy is the tour's after RL, with the tour's world, unless a model is named (`ask.speakers`).
Whatever goes wrong is one `AskError` that names the remedy, and what was done until then is saved.

Left out: several questions at a time (`Agent.run` takes them), streams of tokens.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drlib.agents import AGENTS, Agent
from drlib.agents.running import Watch
from drlib.agents.s3 import chain_reader
from drlib.app.models import results_of, speaker
from drlib.app.options import AskError, Setup
from drlib.endpoint import EndpointError
from drlib.registry import load_plugins
from drlib.sandbox import Sandbox
from drlib.task import Task, normalise_answer
from drlib.tools import PageReader, Provider, Toolbox
from drlib.tools.pages import pages_shown
from drlib.trajectory import Termination, Trajectory, save_trajectories
from drlib.validation import require
from drlib.worlds import load_world

MOST_SOURCES = 8
SUPPORTS = ": its text has the answer in it"
WHY = {
    Termination.LENGTH: "its context, or the tokens it may say, ran out",
    Termination.TURNS: "the calls or turns it may use ran out",
    Termination.WALL_CLOCK: "its time ran out",
    Termination.LOOP: "it made the same call again and again",
    Termination.FORMAT: "its turns could not be read",
}


@dataclass(frozen=True)
class Source:
    """A page that was seen; `supports`: its text has the answer in it."""

    title: str
    url: str
    supports: bool


@dataclass(frozen=True)
class Answered:
    """What came of a question."""

    answer: str
    sources: list[Source]
    usage: dict[str, Any]
    trajectory: Trajectory


class Asker(ExitStack):
    """Who answers: an agent that is made once and asked many questions, one after the other.

    AskError: there is no such agent, world or model.
    """

    def __init__(self, setup: Setup):
        super().__init__()
        self.setup = setup
        try:
            self._agent = _agent(setup, self)
        except BaseException:
            self.close()
            raise

    def ask(self, question: str, watch: Watch | None = None, save: Path | None = None) -> Answered:
        """Research one question. save: a Parquet file for the trajectory, also where it fails.

        Raises:
            AskError: no answer. KeyboardInterrupt, or what `watch` raises: as it came; what was
                done is saved.
        """
        require(bool(question.strip()), "the question is empty")
        ends: list[Trajectory] = []

        def note(what: str, at, value) -> None:
            if what == "end":
                ends.append(value)
            if watch is not None:
                watch(what, at, value)

        task = Task("asked", question, "", "search", self.setup.world, start=self.setup.start)
        try:
            self._agent.run([task], temperature=self.setup.temperature, watch=note)
        except EndpointError as error:
            raise AskError(f"{self.setup.endpoint}: {error}") from None
        except ValueError as error:  # the question does not fit into the policy's context
            raise AskError(str(error)) from None
        finally:
            if save is not None and ends:
                save_trajectories(save, ends)
        done = ends[-1]
        if done.answer is None:
            raise AskError(_why_not(done, self.setup))
        return Answered(done.answer, sources(done), usage_of(done), done)


def ask(
    question: str, setup: Setup, watch: Watch | None = None, save: Path | None = None
) -> Answered:
    """One question; see `Asker`."""
    require(bool(question.strip()), "the question is empty")
    with Asker(setup) as asker:
        return asker.ask(question, watch, save)


def _agent(setup: Setup, opened: ExitStack) -> Agent:
    """The agent with all it needs; what must be closed is entered in `opened`."""
    try:
        load_plugins(setup.plugins)
        make = AGENTS[setup.agent]
        world = None if setup.search else load_world(setup.world)
        backends = _live(setup.search) if setup.search else None
    except (ValueError, OSError) as error:
        raise AskError(str(error)) from None
    sandbox = opened.enter_context(Sandbox(workers=1))
    toolbox = opened.enter_context(
        Toolbox(world, sandbox, results=results_of(setup), backends=backends)
    )
    who = speaker(setup, toolbox, opened)
    more = {
        "heavy": {"n": setup.runs},
        "resum": {"summarise": None},  # the model writes its own
        "s3": {} if setup.endpoint or setup.folder else {"generate": chain_reader},
    }.get(setup.agent, {})
    return make(who.engine, toolbox, who.chat, who.limits, who.system, **more)


def _live(search: str) -> dict[str, list]:
    """Backends that look things up on the web. ValueError: no such provider, or it lacks its key or
    its server's address."""
    name, _, url = search.partition("=")
    return {"search": [Provider(name, url)], "visit": [PageReader()]}


def _why_not(done: Trajectory, setup: Setup) -> str:
    if done.termination is Termination.ENV_FAULT:
        broken = next((r for r in done.tool_results if r.env_fault), None)
        if broken is not None:
            return f"the tool {broken.tool} does not work: {broken.text}"
        return f"{setup.endpoint}: {done.metadata['fault']}"
    return f"no answer: {WHY.get(done.termination, done.termination)}"


def sources(done: Trajectory) -> list[Source]:
    """The pages that the calls showed, those first whose text has the answer in it."""
    answer = normalise_answer(done.answer or "")
    found: dict[str, Source] = {}
    for page in (page for result in done.tool_results for page in pages_shown(result)):
        supports = bool(answer) and answer in normalise_answer(page.text)
        if page.url not in found or supports:
            found[page.url] = Source(page.title, page.url, supports)
    return sorted(found.values(), key=lambda one: not one.supports)[:MOST_SOURCES]


def usage_of(done: Trajectory) -> dict[str, Any]:
    """Turns, calls, tokens and what they cost."""
    counted = done.metadata.get("usage", {})
    said = int(done.generated.sum()) or counted.get("said_tokens", 0)
    read = counted.get("read_tokens", len(done) - said if len(done) else 0)
    return {
        "turns": counted.get("turns", len(set(done.turns[done.generated].tolist()))),
        "calls": len(done.tool_results),
        "read_tokens": read,
        "said_tokens": said,
        "cost": counted.get("cost", 0.0),
    }


def report_of(question: str, done: Answered) -> str:
    """What was found, in Markdown; a WebWeaver's answer is a report already."""
    if done.answer.startswith(f"# {question}\n"):
        return done.answer
    lines = [f"- [{page.title}]({page.url}){SUPPORTS * page.supports}" for page in done.sources]
    return f"# {question}\n\n{done.answer}\n\n## Sources\n\n" + "\n".join(lines) + "\n"
