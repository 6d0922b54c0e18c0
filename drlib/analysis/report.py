"""`drlib report REPORT.html TRAJECTORIES...`: the laboratory without a notebook.

One page that needs nothing else: what `entropy` and `reflection` say about each file, as tables and
figures, and the viewer over its first trajectories. A file is read as a stream (for its numbers,
for the viewer, and for bounds where entropies are missing), so a report fits into memory where its
tokens' columns do.

What a file cannot tell is said in its place: without entropies there are words, and, from a
server's top log-probabilities, bounds. Left out: routing and pseudo-gradients, which need a model
and are notebook 16's.
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
from drlib.analysis.inputs import read_rollouts
from drlib.analysis.plots import STYLE, png_bytes
from drlib.analysis.rendering import escape_unseen, to_html
from drlib.analysis.report_options import check_report
from drlib.analysis.token_table import TokenTable, token_statistics
from drlib.chat.segments import token_texts
from drlib.chat.template import load_any_tokenizer
from drlib.trajectory import Trajectory

_RANGE = "{:.2f} [{:.2f}, {:.2f}]"
REPORT_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Rollouts</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 1000px; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse; margin: 1em 0 }}
td, th {{ padding: .2em .8em; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child {{ text-align: left }} img {{ max-width: 100% }}
iframe {{ width: 100%; height: 760px; border: 1px solid #ccc }} .note {{ color: #8a4b00 }}
</style>{body}</html>
"""


class _ReportOptions(NamedTuple):
    """Content requested from `report` for each file."""

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
    """Write the report of `files` (any format of `inputs`) to `out`, whole or not at all.

    tokenizer: of the model that made them, or its folder; without one there are no words and ids
        instead of texts. model: a causal language model that scores every file again, at the
        `temperature` of the rollouts.
    window, share: of `reflection_lift`. viewed: trajectories of a file in the viewer, or 0.
    FileNotFoundError: a file is not there. ValueError: it cannot be read (the message names row and
    reason), holds no sampled token, or an id twice; or `out` is no .html.
    """
    check_report(out, files, window, share, viewed)
    if isinstance(tokenizer, str | Path):
        tokenizer = load_any_tokenizer(tokenizer)
    wanted = _ReportOptions(tokenizer, model, temperature, window, share, viewed)
    with plt.style.context(STYLE):
        parts = [part for path in files for part in _render_file(Path(path), wanted)]
    return viewer.save_page(out, REPORT_PAGE.format(body="\n".join(parts)))


def _render_file(path: Path, wanted: _ReportOptions) -> Iterator[str]:
    """The parts of the page about one file, in order."""
    table = token_statistics(_load_trajectories(path, wanted))
    yield f"<h1>{to_html(path.name)}</h1>"
    yield _render_sizes(table)

    yield "<h2>Entropy</h2>"
    yield from _catch_errors(_render_entropy(table))
    exact = np.isfinite(table.entropy).all()
    if not exact and wanted.model is None and wanted.tokenizer is not None:
        yield _render_bounds(_load_trajectories(path, wanted), len(wanted.tokenizer))

    yield "<h2>After tool responses</h2>"
    yield from _catch_errors(_render_lifts(table, wanted.window, wanted.share))

    if wanted.tokenizer is not None:
        yield "<h2>Words</h2>"
        yield from _render_words(table, token_texts(wanted.tokenizer, table.token_id))

    if wanted.viewed:
        first = islice(_load_trajectories(path, wanted), wanted.viewed)
        page = viewer.viewer_page(first, wanted.tokenizer, title=path.name)
        yield f"<h2>The first {min(wanted.viewed, len(table.names))} trajectories</h2>"
        yield f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page)}"></iframe>'


def _load_trajectories(path: Path, wanted: _ReportOptions) -> Iterable[Trajectory]:
    """The file's trajectories as a stream, scored again where there is a model."""
    found = read_rollouts(path, wanted.tokenizer)
    if wanted.model is None:
        return found
    from drlib.analysis.rescoring import rescore  # it brings torch, which the rest does without

    return rescore(wanted.model, found, temperature=wanted.temperature, top_k=5)


def _catch_errors(parts: Iterator[str]) -> Iterator[str]:
    """The parts; what cannot be said is said in its place."""
    try:
        yield from parts
    except ValueError as fault:
        yield f'<p class="note">{to_html(str(fault))}</p>'


def _render_sizes(table: TokenTable) -> str:
    judged = ~np.isnan(table.right_M)
    right = f", {table.right_M[judged].mean():.1%} of them right" if judged.any() else ""
    return (
        f"<p>{len(table.names)} trajectories, {len(table):,} sampled tokens, {judged.sum()} "
        f"judged{right}.</p>"
    )


def _render_bounds(trajectories: Iterable[Trajectory], vocabulary: int) -> str:
    """Return entropy bounds from alternatives, for trajectories without entropies."""
    sums = np.zeros(3)  # of lower and upper bounds, and of tails above 5%
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
        f"<p>From the most probable tokens: the mean entropy lies between {low:.3f} and "
        f"{high:.3f} nats; at {wide:.1%} of the tokens more than 5% of the probability is "
        "that of others.</p>"
    )


def _render_entropy(table: TokenTable) -> Iterator[str]:
    rows = [
        (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:.4f}")
        for name, value in summarize_entropy(table).items()
    ]
    yield _render_table(["", "sampled tokens"], rows)
    yield _render_figure(lambda ax: plots.plot_histogram(ax, {"all": table}))


def _render_lifts(table: TokenTable, window: int, share: float) -> Iterator[str]:
    lifts = reflection.reflection_lift(table, window=window, share=share)
    found = {lift.status: vars(lift) for lift in lifts}
    yield (
        f"<p>Share of forking tokens (the top {share:.0%} of the thoughts by entropy) in the "
        f"first {window} tokens after a response, over their share elsewhere; 95% intervals by "
        "trajectory. Over first turns: of the same trajectories, at the same places of a turn. "
        "Turned windows are what chance makes of it; where hard questions have more responses "
        "that is not 1, and only what lies beyond counts.</p>"
    )
    heads = [
        "response",
        "responses",
        "tokens",
        "over other thoughts",
        "over first turns",
        "circular shifts",
    ]
    rows = []
    for status, lift in found.items():
        ratios = [_RANGE.format(*np.exp(lift[name])) for name in ("lift", "matched", "permuted")]
        rows.append((status, lift["responses"], lift["tokens"], *ratios))
    yield _render_table(heads, rows)
    yield _render_figure(lambda ax: plots.plot_lifts(ax, found))
    curves = reflection.event_curves(table, after=window)
    yield _render_figure(lambda ax: plots.plot_event_curves(ax, curves, ("ok", "error", "empty")))


def _render_words(table: TokenTable, texts: np.ndarray) -> Iterator[str]:
    if len(table.names) > 1:
        heads = [
            "lexicon",
            "words per 1,000 tokens",
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
    if np.isfinite(table.entropy).all():
        found = reflection.word_entropies(table, texts, top=60)
        words = [(escape_unseen(word), *numbers) for word, *numbers in found]
        yield _render_figure(lambda ax: plots.plot_word_grid(ax, words), height=4)


def _render_table(heads: Sequence[str], rows: Iterable[Sequence]) -> str:
    lines = ["".join(f"<th>{html.escape(head)}</th>" for head in heads)]
    lines += ["".join(f"<td>{_render_cell(value)}</td>" for value in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{body}</table>"


def _render_cell(value) -> str:
    """A value's text; a dash where it is not a number."""
    text = str(value)
    return "–" if "nan" in text else to_html(text)


def _render_figure(draw: Callable, height: float = 3.2) -> str:
    fig, ax = plt.subplots(figsize=(8, height))
    draw(ax)
    code = base64.b64encode(png_bytes(fig, dpi=150)).decode()
    return f'<img alt="" src="data:image/png;base64,{code}">'
