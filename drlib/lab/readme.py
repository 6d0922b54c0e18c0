"""`python -m drlib.lab table`: the results in README.md are those of the reference run.

The README's numbers stand between two marker comments and are written by this module from
`figures/reference/tour/`; a test compares them, so a number there can neither be typed nor grow
old. The rest of the README is prose and stays by hand.
"""

from __future__ import annotations

from pathlib import Path

from drlib.evals.results import TITLES, Results

BEGIN, END = "<!-- results -->", "<!-- /results -->"
KINDS = (("python", "python", None), ("search", "search", None),
         ("three look-ups", "search", 3))  # fmt: skip


def results_block(results: Results) -> str:
    """The claim and the table, as Markdown."""
    return f"{_claim(results)}\n\n{_table(results)}\n\n{_commands(results)}"


def _claim(results: Results) -> str:
    """Reinforcement learning against the same compute spent on more demonstrations, in a sentence.

    Every number is followed by its 95% interval; a run without that control gets the cold start as
    the baseline, and says so.
    """
    from drlib.analysis import tour

    over = next(s for s in ("sft_continued", "sft") if s in results.stages)
    name = {"sft_continued": "the same fine-tuning continued with its compute"}.get(
        over, "the cold start"
    )
    gains = {kind: tour.percent(results.gain("rl", over, kind, "sample"), "+")
             for kind in ("search", "python", None)}  # fmt: skip
    rl = {k: _share(results, "rl", k, "sample") for k in ("search", "python")}
    three = [_share(results, s, "search", "greedy", 3) for s in ("rl", over)]
    errors = [tour.percent(tour.error_rate(results, s)) for s in ("rl", over)]
    seeds = "1 seed" if len(results.seeds) == 1 else f"{len(results.seeds)} seeds"
    return (
        f"What reinforcement learning adds to {name}, on held-out questions ({seeds} of the whole "
        "line, 95% intervals by question):\n\n"
        f"- **Search questions**, sampled: {rl['search']} right, {gains['search']} points.\n"
        f"- **Three look-ups**, which nobody demonstrated, greedy: {three[0]} right, against "
        f"{three[1]}.\n"
        f"- **Python questions**, sampled: {rl['python']} right, {gains['python']} points; both "
        f"kinds together {gains[None]}.\n"
        f"- Failed tool calls: {errors[0]}% of all, against {errors[1]}%."
    )


def _share(results: Results, stage: str, kind: str, decoding: str, hops: int | None = None) -> str:
    """`**69.4%** [64.1, 74.9]`."""
    from drlib.analysis import tour

    mean, _, interval = tour.percent(
        tour.accuracy(results, stage, kind, decoding, hops)
    ).partition(" ")
    return f"**{mean}%** {interval}"


def _table(results: Results) -> str:
    from drlib.analysis import tour

    best = tour.pass_name(results)
    columns = [
        *[(f"{title}, {shown}", kind, decoding, hops)
          for title, kind, hops in KINDS[:2]
          for shown, decoding in (("sampled", "sample"), ("greedy", "greedy"), (best, best))],
        ("three look-ups, greedy", "search", "greedy", 3),
    ]  # fmt: skip
    asked = [results.count("rl", *column[1:])[1] for column in columns]
    heads = [f"{column[0]} (n={n})" for column, n in zip(columns, asked)]
    lines = ["| % right | " + " | ".join(heads) + " | made by |", "|" + "---|" * (len(heads) + 2)]
    for stage in results.stages:
        cells = [_cell(results, stage, n, *column[1:]) for column, n in zip(columns, asked)]
        made = "demonstrations" if stage == "demonstrator" else f"evaluate_{stage}"
        lines.append(f"| {TITLES[stage]} | " + " | ".join(cells) + f" | `{made}` |")
    return "\n".join(lines)


def _cell(results: Results, stage: str, usual: int, kind: str, decoding: str, hops) -> str:
    """Percent and interval; with its own n where that is not the column's."""
    from drlib.analysis import tour

    n = results.count(stage, kind, decoding, hops)[1]
    if not n:
        return ""
    own = "" if n == usual else f" (n={n})"
    return tour.percent(tour.accuracy(results, stage, kind, decoding, hops)) + own


def _commands(results: Results) -> str:
    return (
        f"All rows: `{results.command}` (or `make reference`). One row, when what it needs is "
        "there: `python -m drlib.evals.evaluate STAGE`, with the stage's name from the last "
        "column (the demonstrator's: `python -m drlib.training.data demonstrations`; it was asked "
        "its own easy training questions)."
    )


def with_block(text: str, block: str) -> str:
    """`text` with `block` between the markers; ValueError when they are not there once each."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the README needs {BEGIN} and, after it, {END}, once each")
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n{block}\n{END}{rest.partition(END)[2]}"


def refresh_readme(readme: Path, folder: Path) -> bool:
    """Write the results of the run in `folder` into `readme`; whether the file changed."""
    from drlib.training.run import write_atomically

    text = readme.read_text(encoding="utf-8")
    new = with_block(text, results_block(Results.load(folder)))
    if new == text:
        return False
    write_atomically(readme, lambda p: p.write_text(new, encoding="utf-8"))
    return True
