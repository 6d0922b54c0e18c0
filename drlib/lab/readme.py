"""`python -m drlib.lab table`: the results in README.md are those of the reference run.

The README's numbers stand between two marker comments and are written by this module from
`figures/reference/tour/`; a test compares them, so a number there can neither be typed nor grow
old. The rest of the README is prose and stays by hand.
"""

from __future__ import annotations

from pathlib import Path

from drlib.analysis import tour
from drlib.evals.results import TITLES, Results
from drlib.training.run import write_atomically

BEGIN, END = "<!-- results -->", "<!-- /results -->"
OVER = "sft_continued"  # the control: RL's compute spent on more demonstrations


def results_block(results: Results) -> str:
    """The claim and the table, as Markdown."""
    return (
        f"{_claim(results)}\n\n{_table(results)}\n\n"
        f"All rows: `{results.command}` (or `make reference`). One row, when what it needs is "
        "there: `python -m drlib.evals.evaluate STAGE`, with the stage's name from the last "
        "column (the demonstrator's: `python -m drlib.training.data demonstrations`; it was asked "
        "its own easy training questions)."
    )


def _claim(results: Results) -> str:
    """Reinforcement learning against its control; every number is followed by its interval."""

    def share(stage: str, kind: str, decoding: str, hops: int | None = None) -> str:
        """`**69.4%** [64.1, 74.9]`."""
        of = tour.percent(results.accuracy(stage, kind, decoding, hops))
        mean, _, interval = of.partition(" ")
        return f"**{mean}%** {interval}"

    if not {"rl", OVER} <= set(results.stages):
        raise ValueError(f"the claim needs the stages rl and {OVER}, there are {results.stages}")
    gains = {kind: tour.percent(results.gain("rl", OVER, kind, "sample"), "+")
             for kind in ("search", "python", None)}  # fmt: skip
    three = [share(stage, "search", "greedy", 3) for stage in ("rl", OVER)]
    errors = [tour.percent(tour.error_rate(results, stage)) for stage in ("rl", OVER)]
    return (
        "What reinforcement learning adds to the same fine-tuning continued with its compute, on "
        f"held-out questions ({tour.seeds(len(results.seeds))} of the whole line, 95% intervals "
        "by question):\n\n"
        f"- **Search questions**, sampled: {share('rl', 'search', 'sample')} right, "
        f"{gains['search']} points.\n"
        f"- **Three look-ups**, which nobody demonstrated, greedy: {three[0]} right, against "
        f"{three[1]}.\n"
        f"- **Python questions**, sampled: {share('rl', 'python', 'sample')} right, "
        f"{gains['python']} points; both kinds together {gains[None]}.\n"
        f"- Failed tool calls: {errors[0]}% of all, against {errors[1]}%."
    )


def _table(results: Results) -> str:
    """Percent and interval; with its own n where that is not the column's."""
    best = tour.pass_name(results)
    columns = {
        f"{kind}, {shown}": (kind, decoding, None)
        for kind in ("python", "search")
        for shown, decoding in (("sampled", "sample"), ("greedy", "greedy"), (best, best))
    } | {"three look-ups, greedy": ("search", "greedy", 3)}
    asked = {of: results.count("rl", *of)[1] for of in columns.values()}
    heads = [f"{title} (n={asked[of]})" for title, of in columns.items()]
    lines = ["| % right | " + " | ".join(heads) + " | made by |", "|" + "---|" * (len(heads) + 2)]
    for stage in results.stages:
        line = f"| {TITLES[stage]} | "
        for of, usual in asked.items():
            n = results.count(stage, *of)[1]
            own = "" if n in (0, usual) else f" (n={n})"
            line += f"{tour.cell(results, stage, *of)}{own} | "
        made = "demonstrations" if stage == "demonstrator" else f"evaluate_{stage}"
        lines.append(f"{line}`{made}` |")
    return "\n".join(lines)


def with_block(text: str, block: str) -> str:
    """`text` with `block` between the markers; ValueError when they are not there once each."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the README needs {BEGIN} and, after it, {END}, once each")
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n{block}\n{END}{rest.partition(END)[2]}"


def refresh_readme(readme: Path, folder: Path) -> bool:
    """Write the results of the run in `folder` into `readme`; whether the file changed."""
    text = readme.read_text(encoding="utf-8")
    new = with_block(text, results_block(Results.load(folder)))
    if new == text:
        return False
    write_atomically(readme, lambda p: p.write_text(new, encoding="utf-8"))
    return True
