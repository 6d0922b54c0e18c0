"""HTML reports about trajectory files: `drlib report REPORT.html TRAJECTORIES...`.

A report is one self-contained page with the tables and figures of `entropy` and `reflection` for
each file, and the viewer for its first trajectories. Files are streamed, so only their token tables
must fit in memory. A section without the required data has a note instead. Without entropies, the
report has bounds from top-k log-probabilities. Without a tokenizer, texts are counted in words and
log-probabilities are not read. Pseudo-gradients are in notebook 31.
"""

import base64
import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np

from drlib.analysis import entropy_plots as plots
from drlib.analysis import reflection, viewer
from drlib.analysis.entropy import entropy_bounds, summarize_entropy
from drlib.analysis.figure_style import STYLE, png_bytes
from drlib.analysis.inputs import detect_format, read_rollouts
from drlib.analysis.reading_notes import ReadingNotes
from drlib.analysis.rendering import escape_unseen, to_html
from drlib.analysis.report_options import check_report
from drlib.analysis.rollout_formats import decode_ids
from drlib.analysis.row_files import repair_text
from drlib.analysis.token_table import TokenTable, token_statistics
from drlib.chat.template import load_any_tokenizer
from drlib.chat.words import WordTokenizer
from drlib.trajectory import Trajectory

_RANGE = "{:.2f} [{:.2f}, {:.2f}]"
TOKENIZER_REMEDY = "Pass --tokenizer with the folder or the hub id of the model's tokenizer"
REPORT_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Rollouts</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse; margin: 1em 0 }}
td, th {{ padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child {{ text-align: left }} img {{ max-width: 100% }}
iframe {{ width: 100%; height: 760px; border: 1px solid #ccc }} .note {{ color: #8a4b00 }}
</style>{body}</html>
"""


class _ReportOptions(NamedTuple):
    """Arguments of `write_report` for each file."""

    tokenizer: Any
    model: Any
    temperature: float
    window: int
    share: float
    viewed: int


def write_report(
    out: str | Path,
    files: Sequence[str | Path],
    tokenizer=None,
    *,
    model=None,
    temperature: float = 1.0,
    window: int = 64,
    share: float = 0.2,
    viewed: int = 50,
) -> Path:
    """Write a report about trajectory files atomically.

    Args:
        out: .html file to write.
        files: files in any format of `inputs`.
        tokenizer: tokenizer of the model, its folder or its hub id. Without one, texts are counted
            in words; a drlib file has ids instead of texts, and so no words.
        model: causal language model that rescores every file.
        temperature: sampling temperature of the rollouts, used with `model`.
        window: tokens per window of `reflection_lift`.
        share: share of forking tokens of `reflection_lift`.
        viewed: trajectories per file in the viewer; 0 for none.

    Returns:
        Path of the report.

    Raises:
        FileNotFoundError: a missing file.
        ValueError: an unreadable file (with row and cause), no sampled tokens, a duplicate id, or
            an `out` that is not .html.

    """
    check_report(out, files, window, share, viewed)
    if isinstance(tokenizer, str | Path):
        tokenizer = load_any_tokenizer(tokenizer)
    options = _ReportOptions(tokenizer, model, temperature, window, share, viewed)
    with plt.style.context(STYLE):
        parts = [part for path in files for part in _render_file(Path(path), options)]
    return viewer.save_page(out, REPORT_PAGE.format(body="\n".join(parts)))


def _render_file(path: Path, options: _ReportOptions) -> Iterator[str]:
    """Yield the HTML sections about one file."""
    if options.tokenizer is None and detect_format(path) != "drlib":
        options = options._replace(tokenizer=WordTokenizer())
    unit = "words" if isinstance(options.tokenizer, WordTokenizer) else "tokens"
    notes = ReadingNotes()
    table = token_statistics(_load_trajectories(path, options, notes))
    notes.warn(path)
    yield f"<h1>{to_html(repair_text(path.name))}</h1>"
    yield _render_sizes(table, unit)
    if unit == "words":
        yield _render_note(
            "Counted in words, not in tokens: there is no tokenizer. Log-probabilities were not "
            f"read. {TOKENIZER_REMEDY}."
        )
    elif options.tokenizer is None:
        yield _render_note(f"The file has token ids without texts. {TOKENIZER_REMEDY}.")
    for line in notes.describe():
        yield _render_note(line)

    if unit == "tokens":
        yield from _render_uncertainty(path, table, options)

    if options.tokenizer is not None:
        yield "<h2>Words</h2>"
        yield from _render_words(table, decode_ids(options.tokenizer, table.token_id), unit)

    if options.viewed:
        first = islice(_load_trajectories(path, options), options.viewed)
        page = viewer.viewer_page(first, options.tokenizer, title=path.name)
        yield f"<h2>The first {min(options.viewed, len(table.names))} trajectories</h2>"
        yield f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page)}"></iframe>'


def _render_uncertainty(path: Path, table: TokenTable, options: _ReportOptions) -> Iterator[str]:
    """Yield the sections about entropies, or a note on the tokens without one."""
    yield "<h2>Entropy</h2>"
    unknown = int((~np.isfinite(table.entropy)).sum())
    if unknown:
        yield _render_note(
            f"{unknown:,} of {len(table):,} tokens have no entropy. Pass --model with the folder "
            "of the model that sampled the rollouts: it rescores every token."
        )
        if options.model is None and options.tokenizer is not None:
            yield _render_bounds(_load_trajectories(path, options), len(options.tokenizer))
        return
    yield from _render_entropy(table)
    yield "<h2>After tool responses</h2>"
    yield from _catch_errors(_render_lifts(table, options.window, options.share))


def _load_trajectories(
    path: Path, options: _ReportOptions, notes: ReadingNotes | None = None
) -> Iterable[Trajectory]:
    """Stream the trajectories of a file, rescored if there is a model; warnings go to `notes`."""
    found = read_rollouts(path, options.tokenizer, notes=notes or ReadingNotes())
    if options.model is None:
        return found
    from drlib.analysis.rescoring import rescore  # lazy: imports torch

    return rescore(options.model, found, temperature=options.temperature, top_k=5)


def _catch_errors(parts: Iterator[str]) -> Iterator[str]:
    """Yield the parts; replace a ValueError by a note with its message."""
    try:
        yield from parts
    except ValueError as fault:
        yield _render_note(str(fault))


def _render_note(text: str) -> str:
    return f'<p class="note">{to_html(text)}</p>'


def _render_sizes(table: TokenTable, unit: str) -> str:
    """Render the numbers of trajectories and tokens or words, and the accuracy."""
    judged = ~np.isnan(table.right_M)
    right = f", {table.right_M[judged].mean():.1%} of them right" if judged.any() else ""
    return (
        f"<p>{len(table.names)} trajectories, {len(table):,} sampled {unit}, {judged.sum()} "
        f"judged{right}.</p>"
    )


def _render_bounds(trajectories: Iterable[Trajectory], vocabulary: int) -> str:
    """Render entropy bounds from top-k log-probabilities, for trajectories without entropies."""
    sums = np.zeros(3)  # lower bounds, upper bounds, tails above 5%
    tokens = 0
    for t in trajectories:
        if t.entropies is None and t.top_logprobs is not None:
            low_N, high_N, tail_N = entropy_bounds(t.top_logprobs[t.generated], vocabulary)
            sums += low_N.sum(), high_N.sum(), (tail_N > 0.05).sum()
            tokens += len(tail_N)
    if not tokens:
        return ""
    low, high, wide = sums / tokens
    return (
        f"<p>From top-k log-probabilities: the mean entropy is between {low:.3f} and "
        f"{high:.3f} nats; at {wide:.1%} of the tokens, other tokens have more than 5% of the "
        "probability.</p>"
    )


def _render_entropy(table: TokenTable) -> Iterator[str]:
    """Yield the entropy summary and histogram."""
    rows = [
        (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:.4f}")
        for name, value in summarize_entropy(table).items()
    ]
    yield _render_table(["", "sampled tokens"], rows)
    yield _render_figure(lambda ax: plots.plot_histogram(ax, {"all": table}))


def _render_lifts(table: TokenTable, window: int, share: float) -> Iterator[str]:
    """Yield the lifts after tool responses and the event curves."""
    lifts = reflection.reflection_lift(table, window=window, share=share)
    found = {lift.status: vars(lift) for lift in lifts}
    yield (
        f"<p>Lift: share of forking tokens (the top {share:.0%} of the thoughts by entropy) in the "
        f"first {window} tokens after a response, divided by their share elsewhere; 95% intervals "
        "over trajectories. Matched lift: divided by the share at the same positions of the first "
        "turns of the same trajectories. Permuted lift: the lift under circular shifts of the "
        "windows. Its median differs from 1 if hard questions have more responses.</p>"
    )
    heads = [
        "response",
        "responses",
        "tokens",
        "lift",
        "matched lift",
        "permuted lift",
    ]
    rows = []
    for status, lift in found.items():
        ratios = [_RANGE.format(*np.exp(lift[name])) for name in ("lift", "matched", "permuted")]
        rows.append((status, lift["responses"], lift["tokens"], *ratios))
    yield _render_table(heads, rows)
    yield _render_figure(lambda ax: plots.plot_lifts(ax, found))
    curves = reflection.event_curves(table, after=window)
    yield _render_figure(lambda ax: plots.plot_event_curves(ax, curves, ("ok", "error", "empty")))


def _render_words(table: TokenTable, texts: np.ndarray, unit: str) -> Iterator[str]:
    """Yield the counted words, the lexicon table and the words with the highest entropies."""
    yield "<p>Reflection words in the thoughts, as whole words in either case:</p>"
    counts = {
        name: reflection.count_mentions(table, texts, words)
        for name, words in reflection.load_lexicons().items()
    }
    yield _render_table(
        ["lexicon", "mentions", "words and their mentions"],
        [
            (name, sum(found.values()), ", ".join(f"{word} {n}" for word, n in found.items()))
            for name, found in counts.items()
        ],
    )
    if len(table.names) > 1:
        heads = [
            "lexicon",
            f"mentions per 1,000 {unit}",
            "in trajectories",
            "right with",
            "right without",
            "difference at equal length",
        ]
        rows = []
        for name, row in reflection.lexicon_table(table, texts).items():
            shares = ["{:.1%} of {}".format(*row[key]) for key in ("right_with", "right_without")]
            difference = "{:+.1%} [{:+.1%}, {:+.1%}]".format(*row["matched"])
            rate = _RANGE.format(*row["rate"])
            rows.append((name, rate, f"{row['holds']:.1%}", *shares, difference))
        yield _render_table(heads, rows)
    if unit == "tokens" and np.isfinite(table.entropy).all():
        found = reflection.word_entropies(table, texts, top=60)
        words = [(escape_unseen(word), count, nats) for word, count, nats in found]
        yield _render_figure(lambda ax: plots.plot_word_grid(ax, words), height=4)


def _render_table(heads: Sequence[str], rows: Iterable[Sequence]) -> str:
    """Render an HTML table."""
    lines = ["".join(f"<th>{html.escape(head)}</th>" for head in heads)]
    lines += ["".join(f"<td>{_render_cell(value)}</td>" for value in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{body}</table>"


def _render_cell(value) -> str:
    """Convert a value to HTML; NaN becomes a dash."""
    text = str(value)
    return "–" if "nan" in text else to_html(text)


def _render_figure(draw: Callable, height: float = 3.2) -> str:
    """Render a figure as an embedded PNG; `draw` gets its axes."""
    fig, ax = plt.subplots(figsize=(8, height))
    draw(ax)
    code = base64.b64encode(png_bytes(fig, dpi=150)).decode()
    return f'<img alt="" src="data:image/png;base64,{code}">'
