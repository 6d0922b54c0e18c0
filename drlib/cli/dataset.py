"""`drlib dataset --world folder:notes -n 2000 --families all --out DIR`: questions as a data set.

What is drawn and what is dropped: `drlib.questions.question_set`; the files: `dataset_files`. Here
are the command, the quality report with its figure, and the card (README.md) that says what the
folder holds, where each question went that is not in it, and why there are fewer than were asked
for. An interrupted run goes on with the same command; the same command gives the same bytes.

Left out: an upload. The folder is as a hub of data sets wants it, card and configs included.
"""

import argparse
import os
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import yaml
from datasets import disable_progress_bars

from drlib.endpoint import ChatEndpoint, EndpointError
from drlib.files import write_atomic
from drlib.notebook.display import use_style
from drlib.questions.escalation import Solver, make_closed_book_solver
from drlib.questions.export import CONFIGS, VERL, write_folder
from drlib.questions.families import EXCLUDED_RECIPES, FAMILIES
from drlib.questions.quality import build_quality_report, count_split_overlap, save_report
from drlib.questions.question_set import (
    MAX_DRAWN_RATIO,
    DatasetRequest,
    DatasetResult,
    draw_dataset,
    row_to_task,
)
from drlib.questions.replies import Replies
from drlib.validation import require
from drlib.worlds import load_world

ALL = "all"
KEY, REPLIES = "DRLIB_API_KEY", "replies.jsonl"
AS_IT_SAMPLES = {"temperature": 1.0}  # each try has a seed of its own
REPORT, FIGURE, CARD = "quality_report.json", "quality.png", "README.md"


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, fewer questions than asked for included (the card says why); 1, and one
    line on stderr, where there is none at all or an argument is wrong; 130 after Ctrl-C."""
    args = _parser().parse_args(argv)
    disable_progress_bars()  # those of `datasets`; what is told here are the blocks
    try:
        wish = _wish(args)
        world = load_world(wish.world)
        attempt = _closed_book(wish, args) if args.closed_book else None
        drawn = draw_dataset(wish, world, args.out, _tell, attempt)
        _write(wish, drawn, args.out, world)
    except (ValueError, OSError, EndpointError) as fault:
        print(f"drlib dataset: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("drlib dataset: interrupted; the same command goes on", file=sys.stderr)
        return 130
    size = drawn.assembly.size
    if size < wish.n:
        print(shortfall(wish, drawn), file=sys.stderr)
    print(args.out / CARD)
    return 0 if size else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="drlib dataset", description="questions as a data set")
    parser.add_argument("--world", required=True, help="such as cldr, pydocs or folder:notes")
    parser.add_argument("-n", type=int, required=True, help="questions, both splits together")
    parser.add_argument("--families", default=ALL, help=f"{ALL}, or some of {','.join(FAMILIES)}")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seed", type=int, default=DatasetRequest.seed)
    parser.add_argument(
        "--hops", type=int, default=DatasetRequest.hops, help="look-ups in a row, at most"
    )
    parser.add_argument("--test-share", type=float, default=DatasetRequest.test_share)
    parser.add_argument(
        "--max-share",
        type=float,
        default=DatasetRequest.max_share,
        help="of n, with the same answer",
    )
    parser.add_argument(
        "--structure", action="store_true", help="ask about a folder's links and sections as well"
    )
    parser.add_argument(
        "--plain", action="store_true", help="such as a person would ask; there are fewer of them"
    )
    parser.add_argument(
        "--benchmarks", nargs="+", default=[], metavar="FILE", help="whose questions are left out"
    )
    parser.add_argument(
        "--closed-book",
        default="",
        metavar="URL",
        help="leave out what the model there answers from memory (its key: DRLIB_API_KEY)",
    )
    parser.add_argument("--model", default="", help="of --closed-book")
    parser.add_argument(
        "--tries", type=int, default=DatasetRequest.tries, help="of --closed-book, each"
    )
    return parser


def _wish(args: argparse.Namespace) -> DatasetRequest:
    require(
        bool(args.closed_book) == bool(args.model),
        "--closed-book URL and --model NAME go together: the model there of that name is asked",
    )
    names = [name.strip() for name in args.families.split(",") if name.strip()]
    return DatasetRequest(
        world=args.world,
        n=args.n,
        families=tuple(FAMILIES) if names == [ALL] else tuple(dict.fromkeys(names)),
        seed=args.seed,
        hops=args.hops,
        test_share=args.test_share,
        max_share=args.max_share,
        structure=args.structure,
        plain=args.plain,
        benchmarks=tuple(args.benchmarks),
        closed_book=args.model,
        tries=args.tries,
    )


def _closed_book(wish: DatasetRequest, args: argparse.Namespace) -> Solver:
    """Asks the model of the wish; its replies are kept in the folder. Each try may be repeated
    once, for a server that fails now and then."""
    endpoint = ChatEndpoint(args.closed_book, args.model, api_key=os.environ.get(KEY, ""))
    calls = 2 * wish.tries * MAX_DRAWN_RATIO * wish.n
    return make_closed_book_solver(
        Replies(endpoint, args.out / REPLIES, calls=calls, options=AS_IT_SAMPLES)
    )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write(wish: DatasetRequest, drawn: DatasetResult, folder: Path, world) -> None:
    """The files, the report with its figure, and last the card, which says that all is there."""
    (folder / CARD).unlink(missing_ok=True)
    rows = drawn.assembly.rows
    from drlib.analysis.data_plots import quality_figure  # lazily: it brings torch

    unsaid, report = 0, None
    if rows:
        unsaid = write_folder(rows, folder, world)
        sides = {side: [row_to_task(row) for row in some] for side, some in rows.items()}
        tasks = [task for some in sides.values() for task in some]
        report = build_quality_report(tasks, world, benchmarks=map(Path, wish.benchmarks))
        if len(sides) == 2:
            report["split"] = count_split_overlap(sides["test"], sides["train"])
        save_report(report, folder / REPORT)
        use_style()
        figure = quality_figure([report])
        # without the software's name, so that equal content gives equal bytes
        png = partial(figure.savefig, format="png", metadata={"Software": None})
        write_atomic(folder / FIGURE, png)
    write_atomic(folder / CARD, card(wish, drawn, report, unsaid))


def shortfall(wish: DatasetRequest, drawn: DatasetResult) -> str:
    """Explain why fewer questions were written than requested."""
    reasons: Counter[str] = Counter()
    for (_, reason), count in drawn.assembly.dropped.items():
        reasons[reason] += count
    lines = [f"{wish.world} gives {drawn.assembly.size} of {wish.n} questions."]
    if reasons:
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        lines.append(f"Drawn and dropped: {told}.")
    lines += [f"{family}: {note}" for family, note in drawn.notes.items()]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------- card


def card(wish: DatasetRequest, drawn: DatasetResult, report: dict | None, unsaid: int) -> str:
    """The card of the folder: what loads it, what is in it, what is not, and how good it is."""
    rows = drawn.assembly.rows
    parts = [_front_matter(rows), f"# {drawn.assembly.size} questions about {wish.world}\n"]
    parts.append(
        "Each question is a query over the facts of a world; its answer was found by execution, "
        "and the lines of the pages that show it stand beside it as `evidence`.\n"
    )
    if drawn.assembly.size < wish.n:
        parts.append(f"## Fewer than asked for\n\n```\n{shortfall(wish, drawn)}\n```\n")
    parts.append(_families_table(wish, drawn))
    if report:
        parts += [_about_quality(report), _about_files(unsaid)]
    parts.append(_about_making(wish))
    return "\n".join(parts)


def _front_matter(rows: dict[str, list[dict]]) -> str:
    """The configs, by which `datasets.load_dataset(folder, config)` finds the files."""
    said = {"task_categories": ["question-answering"], "tags": ["synthetic", "deep-research"]}
    if rows:
        said["configs"] = [
            {
                "config_name": config,
                "data_files": [{"split": side, "path": path.format(split=side)} for side in rows],
            }
            for config, path in CONFIGS.items()
        ]
    return f"---\n{yaml.safe_dump(said, sort_keys=False)}---\n"


def _families_table(wish: DatasetRequest, drawn: DatasetResult) -> str:
    """Return a table of questions per family: per split, wording, and dropped."""
    reasons = sorted({reason for _, reason in drawn.assembly.dropped})
    sides = ("train", "test")
    heads = ["family", *sides, "in sentences", *reasons]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for family in wish.families:
        mine = [
            row for some in drawn.assembly.rows.values() for row in some if row["family"] == family
        ]
        cells = [sum(row["split"] == side for row in mine) for side in sides]
        cells.append(sum(row["wording"] == "sentences" for row in mine))
        cells += [drawn.assembly.dropped[family, reason] for reason in reasons]
        lines.append(f"| {family} | {' | '.join(map(str, cells))} |")
    told = [f"- {family}: {FAMILIES[family].help}" for family in wish.families]
    told += [f"- not taken, {name}: {why}" for name, why in EXCLUDED_RECIPES.items()]
    head = (
        "## Families\n\nKept in each split; kept and worded in sentences (the others in the older "
        "brackets); drawn and dropped, by reason.\n"
    )
    return "\n".join([head, *lines, "", *told, ""])


def _about_quality(report: dict) -> str:
    worse = {name: max(report["by_sets"][name], rate) for name, rate in report["by_sql"].items()}
    found = ", ".join(f"{name} {rate:.1%}" for name, rate in worse.items() if rate) or "none"
    split = report["split"]
    apart = (
        f"Answers, queries and constants that train and test share: {split['answers']}, "
        f"{split['queries']}, {split['constants']}.\n"
        if split
        else ""
    )
    return (
        f"## Quality\n\n![quality]({FIGURE})\n\n`{REPORT}` in short. Faults by two engines: "
        f"{found}. Different answers: {report['answers']['different']}, the most frequent "
        f"{report['answers']['largest_share']:.1%} of all. Questions that hang on an equal number: "
        f"{report['coincidences']:.1%}. {apart}No training question names or asks for a test "
        "answer or anything that a fact joins to one, other than its kind; none rests on a fact "
        "of a test question.\n"
    )


def _about_files(unsaid: int) -> str:
    verl = VERL.format(split="train")
    return (
        "## Files\n\n`datasets.load_dataset(FOLDER, CONFIG)` reads the configs "
        f"{', '.join(CONFIGS)}; `load_dataset('parquet', data_files='{verl}')` what verl reads; "
        "`datasets.load_from_disk('hf')` the same rows as the config default. WebShaper's triples "
        f"cannot say {unsaid} of the questions. `pieces` is what was drawn, dropped questions "
        "included: with it the same command goes on.\n"
    )


def _about_making(wish: DatasetRequest) -> str:
    said = {name: value for name, value in vars(wish).items() if name != "world"}
    settings = ", ".join(f"{name} {value}" for name, value in said.items())
    return f"## Making\n\nWorld {wish.world}; {settings}. `settings.json` has the same.\n"


if __name__ == "__main__":
    sys.exit(main())
