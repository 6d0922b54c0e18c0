"""Offline HTML page of judged answers: measures, questions with filters, trajectories.

The page lists the questions with their verdicts by round. A verdict opens its trajectory in the
viewer, which is in a sandboxed frame. The page needs no network, and no text of a policy or page
can run in it: texts are escaped, and the content security policy allows two scripts by hash. Of a
protected benchmark the page shows ids and hashes of questions, and no texts.
"""

import dataclasses
import html
from collections.abc import Iterator, Sequence
from pathlib import Path

from drlib.analysis import viewer
from drlib.analysis.inputs import convert_rows
from drlib.analysis.reading_notes import ReadingNotes
from drlib.analysis.rendering import escape_unseen, to_html
from drlib.chat.words import WordTokenizer
from drlib.evaluation.answer_files import AnswerRow, JudgedAnswers, hash_question
from drlib.evaluation.answer_report import list_measures
from drlib.evaluation.measures import summarise
from drlib.files import iter_json_lines
from drlib.rewards.judges import Judgement, Verdict
from drlib.trajectory import Trajectory

TEMPLATE = Path(__file__).with_name("answer_page.html")
SCRIPT = Path(__file__).with_name("answer_page.js")
MOST_WORDS = 3_000_000  # of the trajectories in a page, which is then 20 to 30 MB long
SIGNS = {
    Verdict.CORRECT: "✓ correct",
    Verdict.INCORRECT: "✗ incorrect",
    Verdict.NOT_ATTEMPTED: "– not attempted",
    Verdict.JUDGE_ERROR: "? not judged",
}
VERDICT_REWARDS = {Verdict.CORRECT: 1.0, Verdict.INCORRECT: 0.0, Verdict.NOT_ATTEMPTED: 0.0}


def answer_page(judged: JudgedAnswers, files: Sequence[str | Path], title: str = "Answers") -> str:
    """Return the HTML page of judged answers.

    Args:
        judged: answers of `files`, one round each.
        files: also contain the trajectories, in the field `messages` of the rows.

    Raises:
        ValueError: messages that cannot be read; the message names file and row.
    """
    is_protected = any(row.protected for row in judged.rows[0])
    tokenizer = WordTokenizer()
    trajectories = [] if is_protected else _limit(_load_trajectories(judged, files, tokenizer))
    frame = ""
    if trajectories:
        page = viewer.viewer_page(trajectories, tokenizer, title="Trajectories")
        frame = (
            '<iframe id="viewer" sandbox="allow-scripts" title="trajectories" '
            f'srcdoc="{html.escape(page)}"></iframe>'
        )
    script = SCRIPT.read_text(encoding="utf-8")
    questions = list(zip(*judged.rows))
    verdicts = list(zip(*judged.judgements))
    shown = {t.id for t in trajectories}
    render_row = _render_protected if is_protected else _render_question
    categories = set() if is_protected else {rows[0].category for rows in questions} - {""}
    rounds = "".join(f"<th>round {k}</th>" for k in range(1, len(judged.rows) + 1))
    values = {
        "TITLE": html.escape(escape_unseen(title)),
        "MEASURES": "\n".join(
            f"<tr><th>{to_html(name)}</th><td>{to_html(value)}</td></tr>"
            for name, value in list_measures(summarise(judged))
        ),
        "VERDICTS": _render_options(
            {"": "all verdicts"}
            | {str(v): f"a round is {v}" for v in Verdict}
            | ({"differ": "rounds differ"} if len(judged.rows) > 1 else {})
        ),
        "CATEGORIES": _render_options({"": "all categories"} | {c: c for c in sorted(categories)}),
        "HEAD": f"<th>question</th><th>category</th>{rounds}",
        "ROWS": "\n".join(
            _render_table_row(render_row(rows, found), rows, found, is_protected, shown)
            for rows, found in zip(questions, verdicts)
        ),
        "VIEWER": frame,
        "SCRIPT": script,
        "HASH": viewer.hash_script(script),
        "VIEWERHASH": viewer.hash_script(viewer.SCRIPT.read_text(encoding="utf-8")),
    }
    return viewer.fill_placeholders(TEMPLATE.read_text(encoding="utf-8"), values)


def _load_trajectories(
    judged: JudgedAnswers, files: Sequence[str | Path], tokenizer: WordTokenizer
) -> Iterator[Trajectory]:
    """Yield the trajectories of all rounds with their verdicts; ids are ROUND-LINE."""
    for number, path in enumerate(map(Path, files), 1):
        rounds = zip(judged.rows[number - 1], judged.judgements[number - 1])
        by_line = {row.line: (row, found) for row, found in rounds}
        rows = ((line, row) for line, row in iter_json_lines(path) if row.get("messages"))
        notes = ReadingNotes()
        for t in convert_rows(rows, path, "messages", tokenizer, notes):
            line = int(t.id.rpartition("-")[2])
            row, found = by_line[line]
            reward = VERDICT_REWARDS.get(found.verdict)
            right_answer = None if reward is None else row.golds[0]
            about = t.metadata | {"question": row.question, "right_answer": right_answer}
            yield dataclasses.replace(
                t, id=_name_trajectory(number, row), reward=reward, metadata=about
            )


def _name_trajectory(number: int, row: AnswerRow) -> str:
    return f"{number}-{row.line}"


def _limit(trajectories: Iterator[Trajectory]) -> list[Trajectory]:
    """Return the first trajectories, up to `MOST_WORDS`."""
    found, words = [], 0
    for trajectory in trajectories:
        words += len(trajectory)
        if words > MOST_WORDS:
            break
        found.append(trajectory)
    return found


def _render_options(options: dict[str, str]) -> str:
    return "".join(
        f'<option value="{html.escape(value)}">{to_html(text)}</option>'
        for value, text in options.items()
    )


def _render_table_row(
    question: str,
    rows: Sequence[AnswerRow],
    verdicts: Sequence[Judgement],
    is_protected: bool,
    shown: set[str],
) -> str:
    """Render a question with its verdicts; a verdict with a trajectory is a button."""
    cells = []
    for number, (row, found) in enumerate(zip(rows, verdicts), 1):
        name, text = _name_trajectory(number, row), SIGNS[found.verdict]
        if name in shown:
            text = f'<button type="button" data-trajectory="{name}">{text}</button>'
        cells.append(f'<td class="{found.verdict}">{text}</td>')
    category = "" if is_protected else rows[0].category
    names = " ".join(str(found.verdict) for found in verdicts)
    return (
        f'<tr data-verdicts="{names}" data-category="{html.escape(category)}">'
        f"<td>{question}</td><td>{to_html(category)}</td>{''.join(cells)}</tr>"
    )


def _render_protected(rows: Sequence[AnswerRow], _verdicts: Sequence[Judgement]) -> str:
    """Render id and hash of a question."""
    return f"{to_html(rows[0].key)} · {hash_question(rows[0].question)}"


def _render_question(rows: Sequence[AnswerRow], verdicts: Sequence[Judgement]) -> str:
    """Render a question, with its answers in an element that a click opens."""
    entries = [("id", rows[0].key), ("correct answer", " | ".join(rows[0].golds))]
    for number, (row, found) in enumerate(zip(rows, verdicts), 1):
        about = [row.termination, "" if row.usage.calls is None else f"{row.usage.calls} calls"]
        if row.confidence is not None:
            about.append(f"confidence {row.confidence:.0%}")
        entries.append((f"round {number}", row.prediction or "no answer"))
        entries.append(("", "; ".join(filter(None, [row.error or found.reason, *about]))))
    listed = "".join(f"<dt>{name}</dt><dd>{to_html(text)}</dd>" for name, text in entries if text)
    return f"<details><summary>{to_html(rows[0].question)}</summary><dl>{listed}</dl></details>"
