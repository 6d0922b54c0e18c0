"""WebWeaver: valid citations, per-section evidence, and sources in the report.

The planner and the writer are one function of their context; tools and world are real.


Run: python -m pytest tests/test_agents_webweaver.py
"""

import re

import pytest

from drlib.agents import Limits, WebWeaver
from drlib.agents.webweaver import (
    KEPT,
    MOST_OUTLINES,
    NO_OUTLINE,
    UNWRITTEN,
    Bank,
    Section,
    parse_sections,
    unknown_ids,
)
from drlib.chat.template import ChatIds, train_tokenizer
from drlib.chat.tool_calls import render_answer, render_call
from drlib.endpoint import ChatEndpoint
from drlib.models.api_engine import ApiEngine
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.trajectory import Termination, ToolResult
from drlib.worlds import Entity, SmallWorld
from tests.agent_examples import TextEngine
from tests.scripted_server import Scripted

COUNTRIES = ("Norway", "Sweden", "Denmark")
# long, so that the evidence dominates the prompt length
FACTS = {name: {"currency": f"{name}krone " + f"of {name} " * 60} for name in COUNTRIES}
WORLD = SmallWorld([Entity(name, "territory", facts) for name, facts in FACTS.items()], "atlas")
QUESTION = "What do the Nordic countries pay with?"
LIMITS = Limits(calls=9, turn_tokens=400, context_tokens=10**5)


def outline(*lines):
    body = "\n".join(f"{head} <citation>{cites}</citation>" for head, cites in lines)
    return f"<write_outline>\n{body}\n</write_outline>"


def search(name):
    return render_call("search", {"query": [name]})


def write_section(text):
    """Write a section with a statement from each piece of evidence in the prompt."""
    evidence = re.findall(r"^\[(id_\d+)\] (\w+) \(", text.rpartition("rests on, as in")[2], re.M)
    said = " ".join(f"In {title} one pays with the krone [{name}]." for name, title in evidence)
    return f"<write>{said or 'Nothing was found.'}</write>"


PLAN = [
    search("Norway"),
    outline(("1. In the west", "id_1")),
    search("Sweden"),
    search("Norway"),
    search("Denmark"),
    outline(("1. In the west", "<id_1>"), ("## In the east and the south", "<id_2>, <id_3>")),
    "<terminate>",
]


class Weaver:
    """Policy that returns `plan` turn by turn and writes sections."""

    def __init__(self, plan=PLAN, write=write_section):
        self.plan, self.write, self.said = list(plan), write, 0

    def __call__(self, text):
        if "Write the section" in text:
            return self.write(text)
        self.said += 1
        return self.plan[min(self.said, len(self.plan)) - 1]


@pytest.fixture(scope="module")
def chat():
    return ChatIds(train_tokenizer([QUESTION], 320))


@pytest.fixture
def toolbox():
    with Toolbox(WORLD) as toolbox:
        yield toolbox


def weave(chat, toolbox, say, limits=LIMITS):
    engine = TextEngine(chat, say)
    (done,) = WebWeaver(engine, toolbox, chat, limits).run([Task("t", QUESTION, "", "search", "a")])
    return done, engine.read


def test_report_cites_a_source_for_every_statement(chat, toolbox):
    done, _ = weave(chat, toolbox, Weaver())
    assert done.termination is Termination.ANSWERED
    assert done.answer == (
        f"# {QUESTION}\n\n## In the west\n\nIn Norway one pays with the krone [1].\n\n"
        "## In the east and the south\n\nIn Sweden one pays with the krone [2]. "
        "In Denmark one pays with the krone [3].\n\n## Sources\n\n"
        "1. [Norway](cldr:Norway)\n2. [Sweden](cldr:Sweden)\n3. [Denmark](cldr:Denmark)\n"
    )
    first, last = done.metadata["outlines"]
    assert first != last and len(parse_sections(last)) == 2
    # Norway was found twice but is one piece of evidence
    assert done.metadata["evidence"] == 3 and done.metadata["dropped_citations"] == 0
    assert len(done.tool_results) == 4 and set(done.contexts.tolist()) == {0, 1, 2}


def test_planner_and_writer_read_only_what_they_need(chat, toolbox):
    _, read = weave(chat, toolbox, Weaver())
    bodies = {name: facts["currency"].strip() for name, facts in FACTS.items()}
    planned, first, second = read[-3], read[-2], read[-1]
    assert all(f"currency {name}krone" in planned for name in COUNTRIES)
    assert not any(body in planned for body in bodies.values())
    assert [name for name in COUNTRIES if bodies[name] in first] == ["Norway"]
    assert [name for name in COUNTRIES if bodies[name] in second] == ["Sweden", "Denmark"]
    # the draft is kept, its evidence is not
    assert "In Norway one pays with the krone [id_1]." in second
    most = max(len(bodies["Norway"]), len(bodies["Sweden"]) + len(bodies["Denmark"]))
    assert len(second) < most + len(remove_evidence(second, bodies)) + 1


def remove_evidence(text, bodies):
    for body in bodies.values():
        text = text.replace(body, "")
    return text


def test_outline_with_unknown_citations_is_rejected(chat, toolbox):
    wrong = outline(("West", "id_1, id_7"), ("East", "id_9"))
    plan = ["<terminate>", search("Norway"), wrong, "<write_outline> </write_outline>", *PLAN[1:]]
    done, read = weave(chat, toolbox, Weaver(plan))
    assert NO_OUTLINE in read[1]
    assert "cites id_7, id_9, which nothing was found under" in read[3] and KEPT not in read[3]
    assert "the outline has no section" in read[4]
    assert len(done.metadata["outlines"]) == 2 and done.termination is Termination.ANSWERED


def test_citations_of_deleted_evidence_are_unknown():
    bank = Bank()
    hits = "1. [Norway](atlas:Norway)\nkrone\n2. [Sweden](atlas:Sweden)\nkrona"
    assert bank.add(ToolResult("search", {}, hits, True, None)) == ["id_1", "id_2"]
    assert bank.add(ToolResult("search", {}, hits[:34], True, None)) == ["id_1"]
    assert bank.add(ToolResult("search", {}, hits, False, "timeout")) == []
    plan = "West <citation>id_1</citation>\nEast <citation>id_2, id_1</citation>\n\n"
    assert parse_sections(plan) == [Section("West", ("id_1",)), Section("East", ("id_2", "id_1"))]
    assert unknown_ids(plan, bank) == []
    del bank.evidence["id_2"]
    assert unknown_ids(plan, bank) == ["id_2"]


def test_wrong_citations_are_rejected_once_then_removed(chat, toolbox):
    stubborn = "<write>Krone [id_1, id_3] and krona [id_3], or so.</write>"

    def mends(text):
        return write_section(text) if "is not evidence of this section" in text else stubborn

    done, read = weave(chat, toolbox, Weaver(write=lambda text: stubborn))
    assert "Error: id_3 is not evidence of this section" in "".join(read)
    assert "Krone [1] and krona , or so." in done.answer
    assert done.metadata["dropped_citations"] == 2  # id_3 of the first, id_1 of the second
    done, _ = weave(chat, toolbox, Weaver(write=mends))
    assert done.metadata["dropped_citations"] == 0 and "In Norway one pays" in done.answer


def test_unwritten_section_is_marked(chat, toolbox):
    done, read = weave(chat, toolbox, Weaver(write=lambda text: "Hm."))
    assert "no <write>...</write>" in "".join(read) and done.answer.count(UNWRITTEN) == 2
    assert "## Sources" not in done.answer


def test_report_is_written_when_calls_run_out(chat, toolbox):
    endless = [search("Norway"), PLAN[1], search("Sweden")]
    limits = Limits(calls=3, turn_tokens=400, context_tokens=10**5)
    done, _ = weave(chat, toolbox, Weaver(endless), limits)
    assert done.termination is Termination.ANSWERED and "## In the west" in done.answer
    assert len(done.tool_results) == 3
    done, _ = weave(chat, toolbox, Weaver([search("Norway")]), limits)
    assert (done.answer, done.termination) == (None, Termination.TURNS)
    done, read = weave(chat, toolbox, Weaver([render_answer("krone")]), limits)
    assert done.termination is Termination.TURNS and "no time for an answer" in read[-1]


def test_number_of_outlines_is_limited(chat, toolbox):
    done, _ = weave(chat, toolbox, Weaver([search("Norway"), PLAN[1]]))
    assert len(done.metadata["outlines"]) == MOST_OUTLINES and done.answer.startswith("# ")


def test_webweaver_runs_over_a_server_and_in_ask(tmp_path, capsys):
    from drlib.cli.ask import main

    say = Weaver()
    with Scripted(lambda messages: say("\n".join(m["content"] for m in messages))) as server:
        engine = ApiEngine(ChatEndpoint(server.url, server.model, timeout_s=5))
        with Toolbox(WORLD) as toolbox:
            agent = WebWeaver(engine, toolbox, limits=LIMITS)
            (done,) = agent.run([Task("t", QUESTION, "", "search", "a")])
        assert done.answer.endswith("3. [Denmark](cldr:Denmark)\n")
        say.said, path = 0, tmp_path / "report.md"
        named = ["--endpoint", server.url, "--model", server.model, "--quiet"]
        assert main([QUESTION, "--agent", "webweaver", "--report", str(path), *named]) == 0
    out = capsys.readouterr().out
    assert path.read_text() == out.removesuffix("\n") and out.startswith(f"# {QUESTION}\n")
    assert "1. [Norway](cldr:Norway)" in out
