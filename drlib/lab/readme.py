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
    name = {"sft_continued": "the same fine-tuning continued with RL's compute"}.get(
        over, "the cold start"
    )
    rl = [tour.percent(tour.accuracy(results, "rl", k, "sample")) for k in ("python", "search")]
    gains = [tour.percent(results.gain("rl", over, k, "sample"), "+") for k in ("python", "search")]
    three = [tour.percent(tour.accuracy(results, s, "search", "greedy", 3)) for s in ("rl", over)]
    errors = [tour.percent(tour.error_rate(results, s)) for s in ("rl", over)]
    seeds = len(results.seeds)
    return (
        f"On held-out questions the policy after reinforcement learning answers **{rl[0]}%** of the "
        f"python and **{rl[1]}%** of the search questions when sampled: {gains[0]} and {gains[1]} "
        f"points against {name}. On three-look-up questions, which nobody demonstrated, it answers "
        f"**{three[0]}%** greedily against {three[1]}%. {errors[0]}% of its tool calls fail, "
        f"against {errors[1]}%. ({seeds} {'seed' if seeds == 1 else 'seeds'} of the whole line, "
        "95% intervals by question.)"
    )


def _table(results: Results) -> str:
    from drlib.analysis import tour

    best = tour.pass_name(results)
    columns = [
        *[(f"{title}, {shown}", kind, decoding, hops)
          for title, kind, hops in KINDS[:2]
          for shown, decoding in (("sampled", "sample"), ("greedy", "greedy"), (best, best))],
        ("three look-ups, greedy", "search", "greedy", 3),
    ]  # fmt: skip
    lines = ["| % right | " + " | ".join(c[0] for c in columns) + " | made by |",
             "|" + "---|" * (len(columns) + 2)]  # fmt: skip
    for stage in results.stages:
        cells = [_cell(results, stage, *column[1:]) for column in columns]
        made = "demonstrations" if stage == "demonstrator" else f"evaluate_{stage}"
        lines.append(f"| {TITLES[stage]} | " + " | ".join(cells) + f" | `{made}` |")
    return "\n".join(lines)


def _cell(results: Results, stage: str, kind: str, decoding: str, hops: int | None) -> str:
    from drlib.analysis import tour

    n = results.count(stage, kind, decoding, hops)[1]
    if not n:
        return ""
    return f"{tour.percent(tour.accuracy(results, stage, kind, decoding, hops))} n={n}"


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
