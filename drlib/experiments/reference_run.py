"""`drlib experiment reference`: run the whole recipe for several seeds and keep its results.

`figures/reference/tour/` holds sums, outcomes, learning curves, a few trajectories, and the
policies of one seed after SFT and after RL. Every experiment starts from that policy after SFT, and
ablations are paired with that run, so it does not change. A repetition by later code is kept in
`figures/reference/again/` (sums, outcomes and curves; `make reference`). `--out
figures/reference/tour` replaces the first.

Each seed repeats everything, pre-training included. `--only` keeps a variation of some stages:
`--rl.sampling.oversample=2 --rl.sampling.resample=sample --only rl --out
figures/reference/resampling`. Another world: `--world.name=folder:notebooks/tern` with a folder in
`figures/reference/worlds/`.

The tables in docs/findings.md are generated from these files, and a test compares them.
"""

import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from drlib.analysis import tour
from drlib.config import AGAIN, ROOT, TOUR, Config
from drlib.evaluation.results import EVALUATED, Results, gather, titles
from drlib.experiments.records import copy_curve
from drlib.models.moe import load_policy, save_policy
from drlib.training import stages
from drlib.training.launch import build_stage

WORLDS = ROOT / "figures/reference/worlds"  # a folder of results for each other world
OVER = "sft_continued"  # the control: RL's compute spent on more demonstrations


def reference(
    config: Config,
    seeds: list[int],
    runs: Path,
    out: Path,
    only: list[str] | None = None,
) -> Path:
    """Build what is missing, then write the reference files; return their folder.

    only: stages to evaluate and whose curves to keep; None for all. Policies are kept of `TOUR`
    only.
    """
    names = ["demonstrations", *(f"evaluate_{name}" for name in only or EVALUATED)]
    for name in names:
        stages.STAGES[name]  # a misspelt one fails before anything is trained
    configs = [config.derive(seed=seed) for seed in seeds]
    for each, name in itertools.product(configs, names):
        build_stage(name, each, runs=runs)
    gather(configs, runs, only or EVALUATED, _command(config, seeds, out, only)).save(out)
    for each, name in itertools.product(configs, set(tour.CURVES) & set(only or tour.CURVES)):
        copy_curve(name, each, runs, out)
    if out.resolve() == TOUR:
        _copy_policies(configs[0], runs, out)
    return out


def _command(config: Config, seeds: list[int], out: Path, only: list[str] | None) -> str:
    """Return the command that reproduces this folder, relative to the working directory."""
    words = ["drlib experiment reference --profile", config.profile, "--seeds", *map(str, seeds)]
    words += stages.overrides(config)
    words += ["--only", *only] if only else []
    return " ".join([*words, "--out", os.path.relpath(out)])


def _copy_policies(config: Config, runs: Path, out: Path) -> None:
    """Copy the first seed's policies in bf16, and their trajectories."""
    for name in ("sft", "rl"):
        model, tokenizer = load_policy(stages.folder(name, config, runs) / "policy")
        save_policy(model, tokenizer, out / f"policy_{name}", dtype=torch.bfloat16)
        seen = stages.folder(f"evaluate_{name}", config, runs)
        for decoding in ("greedy", "sampled"):
            shutil.copy(seen / f"{decoding}.parquet", out / f"{name}_{decoding}.parquet")


def results_block(results: Results) -> str:
    """Return the main result and the table, as Markdown."""
    return (
        f"{_claim(results)}\n\n{_table(results)}\n\n"
        f"All rows: `{results.command}`. One row: `drlib train STAGE` with the stage of the last "
        "column. The teacher answered its own easy training questions; its interval is over "
        "answers only."
    )


def _claim(results: Results) -> str:
    """Describe RL against its control; every number has its interval."""

    def share(*what) -> str:
        """`**69.4%** [64.1, 74.9]`."""
        mean, _, interval = tour.format_percent(results.accuracy(*what)).partition(" ")
        return f"**{mean}%** {interval}"

    gains = {
        kind: tour.format_percent(results.gain("rl", OVER, kind, "sample"), "+")
        for kind in ("search", "python", None)
    }
    errors = [tour.format_percent(tour.error_rate(results, stage)) for stage in ("rl", OVER)]
    ratio, low, high = tour.error_ratio(results, "rl", OVER)
    return (
        "Gain of reinforcement learning over SFT continued with the same compute, on held-out "
        f"questions ({tour.format_seeds(len(results.seeds))}; 95% intervals over "
        f"{tour.describe_sampling(len(results.seeds))}):\n\n"
        f"- **Search questions**, sampled: {share('rl', 'search', 'sample')} correct, "
        f"{gains['search']} points.\n"
        "- **Three hops**, never demonstrated, greedy: "
        f"{share('rl', 'search', 'greedy', 3)} correct, against "
        f"{share(OVER, 'search', 'greedy', 3)}; seed by seed "
        f"{_each_seed(results, 'search', 'greedy', 3)}.\n"
        f"- **Python questions**, sampled: {share('rl', 'python', 'sample')} correct, "
        f"{gains['python']} points; both kinds together {gains[None]}.\n"
        f"- Failed tool calls: {errors[0]}% of all, against {errors[1]}%, so "
        f"{ratio:.2f} [{low:.2f}, {high:.2f}] times as many."
    )


def _each_seed(results: Results, *asked) -> str:
    """Return the accuracy of each seed after RL in percent, `72, 74, 0`: the mean hides failed
    seeds.
    """
    by_seed = results.scores("rl", *asked)
    shares = [sum(scores.values()) / len(scores) for scores in by_seed.values()]
    return ", ".join(f"{100 * share:.0f}" for share in shares)


def _table(results: Results) -> str:
    """Return the table of percentages with intervals, and n where it differs from the column's."""
    best = tour.find_pass_decoding(results)
    shown = {"sampled": "sample", "greedy": "greedy", best: best}
    columns: dict[str, tuple[str, str, int | None]] = {
        f"{kind}, {title}": (kind, decoding, None)
        for kind in ("python", "search")
        for title, decoding in shown.items()
    }
    columns["three hops, greedy"] = ("search", "greedy", 3)
    asked = {of: results.count("rl", *of)[1] for of in columns.values()}
    heads = [f"{title} (n={asked[of]})" for title, of in columns.items()]
    lines = ["| % correct | " + " | ".join(heads) + " | made by |", "|" + "---|" * (len(heads) + 2)]
    for stage in results.stages:
        line = f"| {titles()[stage]} | "
        for of, usual in asked.items():
            n = results.count(stage, *of)[1]
            own = "" if n in (0, usual) else f" (n={n})"
            line += f"{tour.format_cell(results, stage, *of)}{own} | "
        made = "demonstrations" if stage == "demonstrator" else f"evaluate_{stage}"
        lines.append(f"{line}`{made}` |")
    return "\n".join(lines)


def reference_blocks() -> dict[str, str]:
    """Return the tables of the committed reference runs by name: results, again, worlds."""
    blocks = {"results": results_block(Results.load(TOUR))}
    if (AGAIN / "results.json").exists():
        blocks["again"] = again_block(Results.load(TOUR), Results.load(AGAIN))
    others = sorted(path.parent for path in WORLDS.glob("*/results.json"))
    if others:
        blocks["worlds"] = worlds_block([TOUR, *others])
    return blocks


def again_block(first: Results, again: Results) -> str:
    """Return two runs of one recipe as a Markdown table, with their paired difference.

    Raises:
        ValueError: they share no seed, or the questions differ.
    """
    columns: dict[str, tuple[str, str, int | None]] = {
        f"{kind}, {title}": (kind, decoding, None)
        for kind in ("search", "python")
        for title, decoding in (("sampled", "sample"), ("greedy", "greedy"))
    }
    columns["three hops, greedy"] = ("search", "greedy", 3)
    heads = ["% correct after RL", *columns, "RL adds to search, sampled"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, results in (("the run above", first), ("trained again", again)):
        cells = [tour.format_cell(results, "rl", *asked) for asked in columns.values()]
        cells += [tour.format_percent(results.gain("rl", OVER, "search", "sample"), "+")]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    apart = [again.gain("rl", "rl", *asked, of=first) for asked in columns.values()]
    cells = [*(tour.format_percent(one, "+") for one in apart), ""]
    lines.append(f"| difference, paired | {' | '.join(cells)} |")
    uneven = ("python, sampled", "three hops, greedy")  # where a mean hides a seed
    told = [
        f"{title} {_each_seed(first, *columns[title])} above, "
        f"{_each_seed(again, *columns[title])} again"
        for title in uneven
    ]
    table = "\n".join(lines)
    origin = f"all stages and controls: `{again.command}`"
    return f"{table}\n\nSeed by seed: {'; '.join(told)} ({origin})."


def worlds_block(folders: Sequence[Path]) -> str:
    """Return the recipe's search accuracy on each world as a Markdown table."""
    lines = [
        "| search questions, % correct | pages | after RL, sampled | SFT continued, sampled | "
        "RL adds | after RL, greedy | RL adds | three hops, greedy | closed book | made by |",
        "|" + "---|" * 10,
    ]
    for folder in folders:
        results = Results.load(folder)
        world = results.made.get("world", {"name": "tour", "pages": ""})
        gains = [
            tour.format_percent(results.gain("rl", OVER, "search", decoding), "+")
            for decoding in ("sample", "greedy")
        ]
        cells = [
            f"`{world['name']}`",
            str(world["pages"]),
            tour.format_cell(results, "rl", "search", "sample", None),
            tour.format_cell(results, OVER, "search", "sample", None),
            gains[0],
            tour.format_cell(results, "rl", "search", "greedy", None),
            gains[1],
            tour.format_cell(results, "rl", "search", "greedy", 3),
            tour.format_cell(results, "closed_book", "search", "sample", None),
            f"[{tour.format_seeds(len(results.seeds))}]({os.path.relpath(folder, ROOT / 'docs')})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_block(text: str, block: str, name: str) -> str:
    """Return `text` with `block` between the markers `name`.

    ValueError: the markers do not occur exactly once.
    """
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    once = text.count(begin) == text.count(end) == 1
    if not once or text.index(begin) > text.index(end):
        raise ValueError(f"the page needs {begin} and, after it, {end}, once each")
    before = text.partition(begin)[0]
    after = text.partition(end)[2]
    return f"{before}{begin}\n{block}\n{end}{after}"
