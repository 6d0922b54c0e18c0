"""WebWalker on synthetic sites: clicks only, memory, and stopping.

The explorer and the critic are functions of their context. Site, rows and critic come from
`drlib.questions.webwalker`; the tool is real.


Run: python -m pytest tests/test_agents_webwalker.py
"""

import json
import re

import pytest

from drlib.agents import Limits, WebWalker
from drlib.chat.template import ChatIds, train_tokenizer
from drlib.chat.tool_calls import render_answer, render_call
from drlib.endpoint import ChatEndpoint
from drlib.models.api_engine import ApiEngine
from drlib.questions.webwalker import SiteWorld, answer_from_memory, make_site
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.trajectory import Segment, Termination
from tests.agent_examples import TextEngine
from tests.scripted_server import Scripted

SITE = make_site(3, size=40, depth=4)
WORLD = SiteWorld(SITE)
SINGLE, _, BOTH = SITE.rows
WIDE = Limits(calls=40, turn_tokens=400, context_tokens=10**6)
CLICKS = Limits(calls=15, turn_tokens=400, context_tokens=10**5)
FACT = re.compile(r"^\w+ has \d+ members\.$", re.MULTILINE)


class ExactCritic:
    """Keeps lines about members; answers when it has the requested ones."""

    def __init__(self, row, forgets=""):
        self.row, self.forgets, self.judged = row, forgets, []

    def useful(self, question, page):
        fact = FACT.search(page)
        return fact[0] if fact and not (self.forgets and self.forgets in fact[0]) else ""

    def answer(self, question, memory):
        self.judged.append(list(memory))
        return answer_from_memory(memory, self.row)


def urls_of(row):
    """Return the clicks along the golden paths of a row, back through the root in between."""
    clicks = []
    for source in row["Info"]["Source_Website"]:
        parts = source.removeprefix(SITE.root).split("/")
        clicks += [SITE.root] if clicks else []
        clicks += [SITE.root + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
    return clicks


def click(url):
    return f"<think>On.</think>{render_call('visit', {'url': [url], 'goal': 'members'})}"


class Oracle:
    """Clicks along the golden paths."""

    def __init__(self, row):
        self.todo = iter(urls_of(row))

    def __call__(self, text):
        return click(next(self.todo))


@pytest.fixture(scope="module")
def chat():
    return ChatIds(train_tokenizer(["how many members"], 320))


@pytest.fixture(scope="module")
def toolbox():
    with Toolbox(WORLD) as toolbox:
        yield toolbox


def task_of(row):
    return Task("t", row["Question"], row["Answer"], "search", WORLD.version, start=row["Root_Url"])


def test_site_world_has_no_search_index():
    assert len(WORLD) == 40 and WORLD.search("members") == [] and WORLD.graph is None
    assert WORLD.find(SITE.root) == SITE.root and WORLD.find("https://elsewhere.example/") is None
    assert WORLD.links(SITE.root) == SITE.pages[SITE.root].links
    assert WORLD.version == SiteWorld(make_site(3)).version != SiteWorld(make_site(4)).version


def walk(chat, toolbox, row, say, critic=None, limits=CLICKS):
    engine = TextEngine(chat, say)
    agent = WebWalker(engine, toolbox, chat, limits, critic=critic)
    (done,) = agent.run([task_of(row)])
    return done, engine.read


@pytest.mark.parametrize("row", [SINGLE, BOTH], ids=["one source", "two sources"])
def test_oracle_follows_the_golden_path_until_the_critic_stops(chat, toolbox, row):
    critic = ExactCritic(row)
    done, _ = walk(chat, toolbox, row, Oracle(row), critic)
    assert (done.answer, done.termination) == (row["Answer"], Termination.ANSWERED)
    assert done.metadata["clicks"] == urls_of(row)
    assert len(done.tool_results) == 1 + len(urls_of(row))
    verdicts = [answer_from_memory(memory, row) for memory in critic.judged]
    assert verdicts == [None] * (len(verdicts) - 1) + [row["Answer"]], (
        "the first step that suffices"
    )


def test_repeated_information_is_judged_once(chat, toolbox):
    critic = ExactCritic(BOTH)
    first = urls_of(SINGLE)
    todo = iter([*first, SITE.root, *first, SITE.root, *first])
    limits = Limits(calls=1 + 3 * len(first) + 2, turn_tokens=400, context_tokens=10**5)
    done, _ = walk(chat, toolbox, BOTH, lambda text: click(next(todo, SITE.root)), critic, limits)
    assert len(done.metadata["clicks"]) == limits.calls - 1 and done.answer is None
    memory = done.metadata["memory"]
    assert len(memory) == len(set(memory)) == len(first) == len(critic.judged)


def test_no_answer_with_one_fact_missing(chat, toolbox):
    leaf = BOTH["Info"]["Golden_Path"][0].split(">")[-1]

    oracle = Oracle(BOTH)

    def follow_then_restart(text):
        return click(next(oracle.todo, SITE.root))

    done, _ = walk(chat, toolbox, BOTH, follow_then_restart, ExactCritic(BOTH, forgets=leaf))
    assert (done.answer, done.termination) == (None, Termination.TURNS)
    assert len(done.tool_results) == CLICKS.calls


def links_in(text):
    """Return the links of the explorer's current page."""
    page = text.split("<tool_response>")[-1]
    besides = page.partition("Further links: ")[2].partition("<")[0].split(", ")
    return [*re.findall(r"\]\(([^)\s]+)\)", page), *filter(None, map(str.strip, besides))]


def wanderer(seed):
    """Click mostly unvisited links, in an order that depends on the seed."""

    def say(text):
        clicked = re.findall(r'"url": \["([^"]+)"\]', text)
        links = links_in(text)
        new = [url for url in links if url not in clicked] or links
        return click(new[(len(clicked) * seed) % len(new)])

    return say


def test_walk_answers_exactly_when_it_saw_the_facts(chat, toolbox):
    """For any explorer; the explorer itself never answers."""
    ends = set()
    for seed in range(4):
        for row in SITE.rows:
            done, _ = walk(chat, toolbox, row, wanderer(seed), ExactCritic(row), WIDE)
            seen = [SITE.pages[url].text for url in done.metadata["clicks"]]
            assert done.answer == answer_from_memory(seen, row)
            assert len(done.tool_results) <= WIDE.calls
            assert row["Answer"] not in chat.tokenizer.decode(done.token_ids[done.generated])
            ends.add(done.termination)
    assert ends == {Termination.ANSWERED, Termination.TURNS}


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (render_answer("5000"), "click a link of this page"),
        (render_call("search", {"query": ["members"]}), "click a link of this page"),
        (click("https://elsewhere.example/"), "no link to https://elsewhere.example/"),
        (render_call("visit", {"url": [], "goal": "x"}), "there is no link to  on this page"),
        ("Hm.", "click a link of this page"),
    ],
)
def test_only_clicks_are_accepted(chat, toolbox, said, expected):
    limits = Limits(calls=3, turn_tokens=200, context_tokens=10**5)
    done, read = walk(chat, toolbox, SINGLE, lambda text: said, ExactCritic(SINGLE), limits)
    assert done.termination is Termination.TURNS and done.metadata["clicks"] == []
    assert expected in read[-1] and len(read) == 3
    assert [result.tool for result in done.tool_results] == ["visit", "format", "format"]


class BothRoles:
    """A policy that explores and judges."""

    def __init__(self, row, broken=False):
        self.oracle, self.row, self.broken = Oracle(row), row, broken

    def __call__(self, text):
        if "Is there anything on it" in text:
            fact = FACT.search(text)
            if fact and self.broken:
                return "Perhaps {so}."
            return json.dumps({"usefulness": bool(fact), "information": fact[0] if fact else ""})
        if "Does that suffice" in text:
            memory = [line.removeprefix("- ") for line in text.splitlines()]
            answer = answer_from_memory(memory, self.row)
            said = {"judge": answer is not None, "answer": answer or "5000, perhaps"}
            return f"I think {json.dumps(said)}"
        return self.oracle(text)


def test_policy_alternates_between_explorer_and_critic(chat, toolbox):
    """The explorer's context continues with its sampled ids."""
    done, read = walk(chat, toolbox, BOTH, BothRoles(BOTH))
    assert (done.answer, done.metadata["critic_errors"]) == (BOTH["Answer"], 0)
    explorer = [text for text in read if "You walk through a site" in text]
    assert len(explorer) == len(urls_of(BOTH))
    assert all(later.startswith(earlier) for earlier, later in zip(explorer, explorer[1:]))
    judges = [text for text in read if "Does that suffice" in text]
    assert not any("On." in text or "visit" in text for text in judges), "only what is known"
    whole = chat.tokenizer.decode(done.token_ids[done.contexts == 0], skip_special_tokens=False)
    assert whole.startswith(explorer[-1]), "one context in the record"
    assert done.generated.sum() == sum(
        len(chat.encode(turn)) + (not turn.endswith("</tool_call>"))
        for turn in (m["content"] for m in done.messages if m["role"] == "assistant")
    )
    assert (done.segments[done.generated] != Segment.TOOL_RESPONSE).all()


def test_unparsable_judgement_counts_as_no(chat, toolbox):
    both = BothRoles(SINGLE, broken=True)

    def endless(text):
        try:
            return both(text)
        except StopIteration:
            return click(SITE.root)

    done, _ = walk(chat, toolbox, SINGLE, endless)
    assert done.answer is None and done.metadata["critic_errors"] > 0
    assert done.metadata["memory"] == []


def test_webwalker_runs_over_a_server(toolbox):
    both = BothRoles(BOTH)
    with Scripted(lambda messages: both("\n".join(m["content"] for m in messages))) as server:
        server.keep = True
        engine = ApiEngine(ChatEndpoint(server.url, server.model, timeout_s=5), concurrency=1)
        (done,) = WebWalker(engine, toolbox, limits=CLICKS).run([task_of(BOTH)])
    assert done.answer == BOTH["Answer"] and done.metadata["clicks"] == urls_of(BOTH)
    requests = [body["messages"] for body in server.bodies]
    walked = [one for one in requests if "You walk through a site" in one[0]["content"]]
    assert [len(one) for one in walked] == [1 + 2 * n for n in range(len(urls_of(BOTH)))]


def test_walk_requires_a_start_page(chat, toolbox):
    engine = TextEngine(chat, lambda text: "")
    agent = WebWalker(engine, toolbox, chat, CLICKS)
    with pytest.raises(ValueError, match="no `start`"):
        agent.run([Task("t", "Where?", "", "search", WORLD.version)])
    (done,) = agent.run(
        [Task("t", "Where?", "", "search", WORLD.version, start="https://no.example/")]
    )
    assert done.answer is None and not done.tool_results[0].ok and engine.read == []
