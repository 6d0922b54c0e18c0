"""WebWeaver: a planner gathers evidence under an evolving outline, a writer writes the report.

The planner searches and rewrites its outline. Pages are stored in a bank under ids, and only a
snippet of each enters the planner's context. The writer then takes the sections one by one and
reads only the evidence that the outline cites there. Each section starts a new context, so its
length depends on the draft and one section's evidence, not on the total. Source: WebWeaver (arXiv
2509.13312), planner and writer; there the writer fetches its evidence by a call, here the section's
citations determine it.

**Citations are verified twice.** An outline that cites unknown ids is returned with an error. A
section that cites anything but its own evidence is returned once; remaining wrong citations are
removed and counted in `Trajectory.metadata["dropped_citations"]`. Pages are shortened to a snippet
instead of being summarised by a model.
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
MOST_OUTLINES = 8  # then the writer starts
UNWRITTEN = "*This section could not be written.*"
SNIPPET = 200  # characters of a page in the planner's context

_OUTLINE = re.compile("<write_outline>(.*?)</write_outline>", re.DOTALL)
_CITATION = re.compile("<citation>(.*?)</citation>", re.DOTALL)
_SECTION = re.compile("<write>(.*?)</write>", re.DOTALL)
_ID = re.compile(r"\bid_\d+\b")
_CITED = re.compile(r"\[\s*id_\d+(?:\s*,\s*id_\d+)*\s*\]")


@dataclass
class Bank:
    """Evidence by id; equal pages share one id."""

    evidence: dict[str, ShownPage] = field(default_factory=dict)

    def add(self, result: ToolResult) -> list[str]:
        """Add the pages of a result and return their ids."""
        ids = []
        known = {page: name for name, page in self.evidence.items()}
        for page in extract_pages(result):
            name = known.setdefault(page, f"id_{len(self.evidence) + 1}")
            self.evidence[name] = page
            ids.append(name)
        return ids

    def lines(self, ids: Sequence[str]) -> str:
        """Return the planner's view of these pages."""
        shown = [(name, self.evidence[name]) for name in ids]
        return "\n".join(
            f"<material><{name}>{page.title}: {page.text[:SNIPPET]}</{name}></material>"
            for name, page in shown
        )

    def bodies(self, ids: Sequence[str]) -> str:
        """Return the writer's view of these pages."""
        shown = [(name, self.evidence[name]) for name in ids]
        return "\n".join(f"[{name}] {page.title} ({page.url}): {page.text}" for name, page in shown)


@dataclass(frozen=True)
class Section:
    """A section of the outline and the ids that it cites."""

    heading: str
    ids: tuple[str, ...]


def parse_sections(outline: str) -> list[Section]:
    """Parse the outline, one section per line."""
    sections = []
    for line in outline.strip().splitlines():
        ids = tuple(dict.fromkeys(_ID.findall(" ".join(_CITATION.findall(line)))))
        heading = _CITATION.sub("", line).strip().lstrip("#-*0123456789. ").strip()
        if heading:
            sections.append(Section(heading, ids))
    return sections


def unknown_ids(outline: str, bank: Bank) -> list[str]:
    """Return the ids that the outline cites and the bank does not have."""
    cited = dict.fromkeys(name for section in parse_sections(outline) for name in section.ids)
    return [name for name in cited if name not in bank.evidence]


@AGENTS.register("webweaver")
class WebWeaver(Agent):
    """Planner and writer; the answer is a Markdown report with numbered sources.

    `Trajectory.metadata`: "outlines" (all versions), "evidence" (number of pieces),
    "dropped_citations" (citations outside a section's own evidence).
    """

    def run_task(self, state: RolloutState) -> Steps:
        bank = Bank()
        state.notes |= {"outlines": [], "evidence": 0, "dropped_citations": 0}
        outline = yield from self._plan(state, bank)
        written: list[tuple[str, str]] = []
        for section in parse_sections(outline):
            text = yield from self._write(state, bank, outline, section, written)
            written.append((section.heading, text))
        return assemble_report(state.task.question, written, bank)

    def _plan(self, state: RolloutState, bank: Bank):
        """Return the last outline. RolloutStopped: calls ran out before the first one."""
        outlines = state.notes["outlines"]
        context = state.begin(PLAN.format(question=state.task.question))
        while len(outlines) < MOST_OUTLINES:
            turn = yield context
            match = _OUTLINE.search(turn.text)
            if match:
                context.observe(self._accept_outline(match[1].strip(), outlines, bank))
            elif "<terminate>" in turn.text and not isinstance(turn.action, ToolCall):
                if outlines:
                    break
                context.observe(NO_OUTLINE)
            else:
                is_answer = isinstance(turn.action, Answer)
                try:
                    pending: Future = state.act(EARLY if is_answer else turn.action)
                except RolloutStopped as stopped:
                    if outlines and stopped.reason is Termination.TURNS:
                        break
                    raise
                result = yield pending
                context.observe(bank.lines(bank.add(result)) or result.text)
                state.notes["evidence"] = len(bank.evidence)
        return outlines[-1]

    def _accept_outline(self, outline: str, outlines: list[str], bank: Bank) -> str:
        """Validate and store an outline; return the planner's observation."""
        unknown = unknown_ids(outline, bank)
        if unknown:
            return f"Error: the outline cites {', '.join(unknown)}, which nothing was found under."
        if not parse_sections(outline):
            return "Error: the outline has no section."
        outlines.append(outline)
        return KEPT

    def _write(self, state: RolloutState, bank: Bank, outline: str, section: Section, written):
        """Write a section in its own context and return its text."""
        context: Context = state.begin(
            WRITE.format(
                question=state.task.question,
                outline=outline,
                draft="\n\n".join(text for _, text in written) or "nothing",
                heading=section.heading,
                evidence=bank.bodies(section.ids) or "none was cited: say that nothing was found",
            )
        )
        turn = yield context
        text, invalid = _check_section(turn.text, section)
        if not text or invalid:
            cited = ", ".join(invalid)
            context.add_user(
                f"Error: {cited} is not evidence of this section. Write it again."
                if invalid
                else "Error: no <write>...</write>. Write the section."
            )
            turn = yield context
            text, invalid = _check_section(turn.text, section)
        state.notes["dropped_citations"] += len(invalid)
        return _remove_citations(text, invalid) or UNWRITTEN


def _check_section(turn: str, section: Section) -> tuple[str, list[str]]:
    """Return the section's text, "" if missing, and its invalid citations."""
    match = _SECTION.search(turn)
    text = match[1].strip() if match else ""
    cited = dict.fromkeys(name for marks in _CITED.findall(text) for name in _ID.findall(marks))
    return text, [name for name in cited if name not in section.ids]


def _remove_citations(text: str, invalid: Sequence[str]) -> str:
    """Remove these ids from the citations of the text."""

    def filter_ids(marks: re.Match) -> str:
        names = [name for name in _ID.findall(marks[0]) if name not in invalid]
        return f"[{', '.join(names)}]" if names else ""

    return _CITED.sub(filter_ids, text)


def assemble_report(question: str, written: Sequence[tuple[str, str]], bank: Bank) -> str:
    """Assemble the sections as Markdown, with citations numbered by first use and sources."""
    numbers: dict[str, int] = {}

    def number(marks: re.Match) -> str:
        names = _ID.findall(marks[0])
        return "".join(f"[{numbers.setdefault(name, len(numbers) + 1)}]" for name in names)

    parts = [f"# {question}"]
    parts += [f"## {heading}\n\n{_CITED.sub(number, text)}" for heading, text in written]
    sources = [
        f"{position}. [{bank.evidence[name].title}]({bank.evidence[name].url})"
        for name, position in numbers.items()
    ]
    if sources:
        parts.append("## Sources\n\n" + "\n".join(sources))
    return "\n\n".join(parts) + "\n"
