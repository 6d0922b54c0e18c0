"""WebWeaver: a planner gathers evidence under a growing outline, a writer writes it out.

The planner searches and rewrites its outline as it learns; what a page says goes into a bank under
an id, and only a line of it into the planner's context. The writer then takes the sections one by
one: it reads the evidence that the outline cites there, and nothing else of what was found; for the
next section it begins anew, so its context is as long as the draft and one section's evidence,
however much was gathered. Source: WebWeaver (arXiv 2509.13312), planner and writer; there the
writer fetches its evidence by a call, here the section's citations say what it gets.

**Citations are checked, twice.** An outline that cites what is not in the bank is sent back with
the ids. A section that cites anything but its own evidence is sent back once; what it still cites
wrongly is taken out and counted in `Trajectory.metadata["dropped_citations"]`.

Left out: summaries by another model (the first line of a page stands for it).
"""

import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.context import Context
from drlib.agents.rollout_state import RolloutState, RolloutStopped, Steps
from drlib.chat.tool_calls import Answer, FormatError, ToolCall
from drlib.tools.toolbox import ShownPage, extract_pages
from drlib.trajectory import Termination, ToolResult

PLAN = """{question}

The result is to be a report, written later from an outline of yours. What you find is kept under \
ids (id_1, id_2, ...). Instead of an answer, do one of these in each turn:
- call a tool;
- write or rewrite the outline, a line a section, each with the evidence that it rests on: \
<write_outline>
The currency <citation>id_1, id_4</citation>
</write_outline>
- when outline and evidence suffice: <terminate>
Rewrite the outline whenever what you find adds to it or contradicts it."""
WRITE = """{question}

The outline of the report:
{outline}

Written so far:
{draft}

Write the section "{heading}" now, from this evidence alone, and name behind each statement the \
evidence that it rests on, as in [id_1]:
{evidence}

Form: <write>the section</write>"""
KEPT = "Outline kept. Go on: search, rewrite it, or <terminate>."
NO_OUTLINE = "Error: there is no outline yet; write one before you terminate."
EARLY = FormatError("this is no time for an answer; write an outline.")
MOST_OUTLINES = 8  # a planner that only rewrites is sent to write
UNWRITTEN = "*This section could not be written.*"
LINE = 200  # characters of a page in the planner's context

_OUTLINE = re.compile("<write_outline>(.*?)</write_outline>", re.DOTALL)
_CITATION = re.compile("<citation>(.*?)</citation>", re.DOTALL)
_SECTION = re.compile("<write>(.*?)</write>", re.DOTALL)
_ID = re.compile(r"\bid_\d+\b")
_CITED = re.compile(r"\[\s*id_\d+(?:\s*,\s*id_\d+)*\s*\]")


@dataclass
class Bank:
    """What was found, by id; the same text of a page has one id however often it is found."""

    evidence: dict[str, ShownPage] = field(default_factory=dict)

    def add(self, result: ToolResult) -> list[str]:
        """Ids of the pages that a result shows."""
        ids = []
        known = {page: name for name, page in self.evidence.items()}
        for page in extract_pages(result):
            name = known.setdefault(page, f"id_{len(self.evidence) + 1}")
            self.evidence[name] = page
            ids.append(name)
        return ids

    def lines(self, ids: Sequence[str]) -> str:
        """What the planner reads of them."""
        shown = [(name, self.evidence[name]) for name in ids]
        return "\n".join(
            f"<material><{name}>{page.title}: {page.text[:LINE]}</{name}></material>"
            for name, page in shown
        )

    def bodies(self, ids: Sequence[str]) -> str:
        """What the writer reads of them."""
        shown = [(name, self.evidence[name]) for name in ids]
        return "\n".join(f"[{name}] {page.title} ({page.url}): {page.text}" for name, page in shown)


@dataclass(frozen=True)
class Section:
    """A line of the outline, and the ids that it cites."""

    heading: str
    ids: tuple[str, ...]


def parse_sections(outline: str) -> list[Section]:
    """The sections of an outline, a line each."""
    sections = []
    for line in outline.strip().splitlines():
        ids = tuple(dict.fromkeys(_ID.findall(" ".join(_CITATION.findall(line)))))
        heading = _CITATION.sub("", line).strip().lstrip("#-*0123456789. ").strip()
        if heading:
            sections.append(Section(heading, ids))
    return sections


def unknown_ids(outline: str, bank: Bank) -> list[str]:
    """What an outline cites and the bank does not have."""
    cited = dict.fromkeys(name for section in parse_sections(outline) for name in section.ids)
    return [name for name in cited if name not in bank.evidence]


@AGENTS.register("webweaver")
class WebWeaver(Agent):
    """Its answer is a report in Markdown, with numbered sources.

    `Trajectory.metadata`: "outlines", all versions; "evidence", how many pieces were gathered;
    "dropped_citations", those of the writer that were none of its section's.
    """

    def run_task(self, at: RolloutState) -> Steps:
        bank = Bank()
        at.notes |= {"outlines": [], "evidence": 0, "dropped_citations": 0}
        outline = yield from self._plan(at, bank)
        written: list[tuple[str, str]] = []
        for section in parse_sections(outline):
            text = yield from self._write(at, bank, outline, section, written)
            written.append((section.heading, text))
        return report(at.task.question, written, bank)

    def _plan(self, at: RolloutState, bank: Bank):
        """The last outline. RolloutStopped: calls ran out before there was one."""
        outlines = at.notes["outlines"]
        context = at.begin(PLAN.format(question=at.task.question))
        while len(outlines) < MOST_OUTLINES:
            turn = yield context
            found = _OUTLINE.search(turn.text)
            if found:
                context.observe(self._keep(found[1].strip(), outlines, bank))
            elif "<terminate>" in turn.text and not isinstance(turn.action, ToolCall):
                if outlines:
                    break
                context.observe(NO_OUTLINE)
            else:
                is_answer = isinstance(turn.action, Answer)
                try:
                    waiting: Future = at.act(EARLY if is_answer else turn.action)
                except RolloutStopped as stopped:
                    if outlines and stopped.why is Termination.TURNS:
                        break
                    raise
                result = yield waiting
                context.observe(bank.lines(bank.add(result)) or result.text)
                at.notes["evidence"] = len(bank.evidence)
        return outlines[-1]

    def _keep(self, outline: str, outlines: list[str], bank: Bank) -> str:
        """Takes an outline; what the planner is told."""
        unknown = unknown_ids(outline, bank)
        if unknown:
            return f"Error: the outline cites {', '.join(unknown)}, which nothing was found under."
        if not parse_sections(outline):
            return "Error: the outline has no section."
        outlines.append(outline)
        return KEPT

    def _write(self, at: RolloutState, bank: Bank, outline: str, section: Section, written):
        """The text of a section; its context ends with it."""
        context: Context = at.begin(
            WRITE.format(
                question=at.task.question,
                outline=outline,
                draft="\n\n".join(text for _, text in written) or "nothing",
                heading=section.heading,
                evidence=bank.bodies(section.ids) or "none was cited: say that nothing was found",
            )
        )
        turn = yield context
        text, wrong = _checked(turn.text, section)
        if not text or wrong:
            cited = ", ".join(wrong)
            context.ask(
                f"Error: {cited} is not evidence of this section. Write it again."
                if wrong
                else "Error: no <write>...</write>. Write the section."
            )
            turn = yield context
            text, wrong = _checked(turn.text, section)
        at.notes["dropped_citations"] += len(wrong)
        return _without(text, wrong) or UNWRITTEN


def _checked(said: str, section: Section) -> tuple[str, list[str]]:
    """The section's text, "" where there is none, and what it cites without having it."""
    found = _SECTION.search(said)
    text = found[1].strip() if found else ""
    cited = dict.fromkeys(name for marks in _CITED.findall(text) for name in _ID.findall(marks))
    return text, [name for name in cited if name not in section.ids]


def _without(text: str, wrong: Sequence[str]) -> str:
    """The text with these ids taken out of its citations."""

    def kept(marks: re.Match) -> str:
        names = [name for name in _ID.findall(marks[0]) if name not in wrong]
        return f"[{', '.join(names)}]" if names else ""

    return _CITED.sub(kept, text)


def report(question: str, written: Sequence[tuple[str, str]], bank: Bank) -> str:
    """The sections in Markdown; citations are numbered in the order in which they come, and the
    sources stand at the end."""
    numbers: dict[str, int] = {}

    def number(marks: re.Match) -> str:
        names = _ID.findall(marks[0])
        return "".join(f"[{numbers.setdefault(name, len(numbers) + 1)}]" for name in names)

    parts = [f"# {question}"]
    parts += [f"## {heading}\n\n{_CITED.sub(number, text)}" for heading, text in written]
    sources = [
        f"{at}. [{bank.evidence[name].title}]({bank.evidence[name].url})"
        for name, at in numbers.items()
    ]
    if sources:
        parts.append("## Sources\n\n" + "\n".join(sources))
    return "\n\n".join(parts) + "\n"
