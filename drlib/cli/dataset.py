"""`drlib dataset`: synthesise questions about a world as a data set.

Questions are drawn and filtered by `drlib.questions.question_set`; `drlib.questions.export` writes
the files. This command adds a quality report with a figure and a data card (README.md). The card
lists the configs, the dropped questions by reason, and why there are fewer than requested. It also
makes the folder ready for upload to the Hugging Face Hub; the upload itself is not included.

Run an interrupted command again to resume. The same command always writes the same bytes.
"""

import argparse
import os
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import yaml

from drlib.cli.examples import add_examples
from drlib.endpoint import ChatEndpoint, EndpointError, parse_names
from drlib.files import write_atomic
from drlib.questions.escalation import Solver, make_closed_book_solver
from drlib.questions.export import CONFIGS, VERL, write_folder
from drlib.questions.families import (
    DOCUMENT_SCHEMES,
    EXCLUDED_RECIPES,
    FAMILIES,
    OF_DOCUMENTS,
)
from drlib.questions.quality import build_quality_report, count_split_overlap, save_report
from drlib.questions.question_set import (
    MAX_DRAWN_RATIO,
    DatasetRequest,
    DatasetResult,
    draw_dataset,
    find_graph,
    row_to_task,
)
from drlib.questions.replies import Replies
from drlib.validation import require
from drlib.worlds import load_world

ALL, DEFAULT = "all", "default"
API_KEY, REPLIES, FACTS = "DRLIB_API_KEY", "replies.jsonl", "facts.jsonl"
SAMPLING = {"temperature": 1.0}  # each rollout has its own seed
REPORT, FIGURE, CARD = "quality_report.json", "quality.png", "README.md"


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0 with questions, even if there are fewer than requested; 1 without, or for a wrong
        argument, with the cause on stderr; 130 after Ctrl-C.
    """
    args = _parser().parse_args(argv)
    try:
        request = _parse_request(args)
        world = load_world(request.world, **_reader_options(args))
        solver = _make_closed_book_solver(request, args) if args.closed_book else None
        result = draw_dataset(request, world, args.out, _print_progress, solver)
        _save(request, result, args.out, world)
    except (ValueError, OSError, EndpointError) as error:
        print(f"drlib dataset: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("drlib dataset: interrupted: run the same command again to resume", file=sys.stderr)
        return 130
    size = result.assembly.size
    if size < request.n:
        print(explain_shortfall(request, result), file=sys.stderr)
    print(args.out / CARD)
    return 0 if size else 1


def _parser() -> argparse.ArgumentParser:
    default = DatasetRequest
    parser = argparse.ArgumentParser(prog="drlib dataset", description=__doc__)
    add_examples(
        parser,
        "drlib dataset --world folder:notes -n 200 --out questions",
        "drlib dataset --world cldr -n 2000 --families engine,webshaper --out questions",
    )
    parser.add_argument("--world", required=True, help="world, such as cldr or folder:notes")
    parser.add_argument("-n", type=int, required=True, help="number of questions in both splits")
    parser.add_argument(
        "--families",
        default=DEFAULT,
        help=f"some of {','.join(FAMILIES)}; {ALL}; or {DEFAULT}, which is "
        f"{','.join(OF_DOCUMENTS)} for documents",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.add_argument("--seed", type=int, default=default.seed, help="seed (%(default)s)")
    parser.add_argument(
        "--hops", type=int, default=default.hops, help="maximum number of hops (%(default)s)"
    )
    parser.add_argument(
        "--test-share",
        type=float,
        default=default.test_share,
        help="share of test questions (%(default)s)",
    )
    parser.add_argument(
        "--max-share",
        type=float,
        default=default.max_share,
        help="maximum share of questions with the same answer (default: 0.02, more if documents "
        "have few answers)",
    )
    parser.add_argument(
        "--structure",
        action="store_true",
        help="add questions about the links and sections of a folder",
    )
    parser.add_argument(
        "--plain",
        action=argparse.BooleanOptionalAction,
        help="only questions that a person would ask; there are fewer of them (default for "
        "documents)",
    )
    parser.add_argument(
        "--endpoint",
        default="",
        metavar="URL",
        help="server of --reader, a model that reads facts from the prose of folder:PATH; only "
        "quoted facts are kept (key: DRLIB_API_KEY)",
    )
    parser.add_argument("--reader", default="", metavar="NAME", help="model name at --endpoint")
    parser.add_argument(
        "--benchmarks",
        nargs="+",
        default=[],
        metavar="FILE",
        help="files of benchmark questions, which are excluded",
    )
    parser.add_argument(
        "--closed-book",
        default="",
        metavar="URL",
        help="server of --model; excludes what the model answers from memory (key: DRLIB_API_KEY)",
    )
    parser.add_argument("--model", default="", help="model name at --closed-book")
    parser.add_argument(
        "--omit",
        default="",
        metavar="NAMES",
        help="comma-separated request parameters that the server rejects, e.g. temperature,top_p",
    )
    parser.add_argument(
        "--tries",
        type=int,
        default=default.tries,
        help="closed-book rollouts per question (%(default)s)",
    )
    return parser


def _parse_request(args: argparse.Namespace) -> DatasetRequest:
    require(
        bool(args.closed_book) == bool(args.model),
        "--closed-book URL and --model NAME must be given together",
    )
    names = [name.strip() for name in args.families.split(",") if name.strip()]
    is_document = args.world.startswith(DOCUMENT_SCHEMES)
    return DatasetRequest(
        world=args.world,
        n=args.n,
        families=_choose_families(names),
        seed=args.seed,
        hops=args.hops,
        test_share=args.test_share,
        max_share=args.max_share,
        structure=args.structure,
        plain=is_document if args.plain is None else args.plain,
        benchmarks=tuple(args.benchmarks),
        closed_book=args.model,
        tries=args.tries,
    )


def _reader_options(args: argparse.Namespace) -> dict:
    """Return the arguments of `load_world` for a model that reads facts."""
    require(
        bool(args.endpoint) == bool(args.reader),
        "--endpoint URL and --reader NAME must be given together",
    )
    if not args.endpoint:
        return {}
    require(args.world.startswith("folder:"), f"--endpoint reads folder:PATH, not {args.world}")
    return {
        "endpoint": args.endpoint,
        "model": args.reader,
        "api_key": os.environ.get(API_KEY, ""),
        "replies_path": args.out / FACTS,
    }


def _choose_families(names: list[str]) -> tuple[str, ...]:
    """Return the named families; empty for the default."""
    if names == [DEFAULT]:
        return ()
    return tuple(FAMILIES) if names == [ALL] else tuple(dict.fromkeys(names))


def _make_closed_book_solver(request: DatasetRequest, args: argparse.Namespace) -> Solver:
    """Return a solver whose replies are cached in the output folder."""
    key = os.environ.get(API_KEY, "")
    omit = parse_names(args.omit)
    endpoint = ChatEndpoint(args.closed_book, args.model, api_key=key, omit=omit)
    calls = 2 * request.tries * MAX_DRAWN_RATIO * request.n  # one retry per rollout
    return make_closed_book_solver(
        Replies(endpoint, args.out / REPLIES, calls=calls, options=SAMPLING)
    )


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _save(request: DatasetRequest, result: DatasetResult, folder: Path, world) -> None:
    """Write the data, the quality report with its figure, and the card.

    The card is written last, so a folder with a card is complete.
    """
    (folder / CARD).unlink(missing_ok=True)
    rows = result.assembly.rows
    # slow to import; not needed by --help or for a wrong argument
    import matplotlib.pyplot as plt
    from datasets import disable_progress_bars

    from drlib.analysis.data_plots import plot_quality
    from drlib.analysis.figure_style import STYLE

    disable_progress_bars()  # this command prints a line per block
    without_triples, report = 0, None
    if rows:
        without_triples = write_folder(rows, folder, world)
        splits = {split: [row_to_task(row) for row in part] for split, part in rows.items()}
        tasks = [task for part in splits.values() for task in part]
        graph = find_graph(request, world)
        benchmarks = map(Path, request.benchmarks)
        report = build_quality_report(tasks, world, benchmarks=benchmarks, graph=graph)
        if len(splits) == 2:
            report["split"] = count_split_overlap(splits["test"], splits["train"])
        save_report(report, folder / REPORT)
        with plt.style.context(STYLE):
            figure = plot_quality([report])
            # without the version of matplotlib, so that equal content gives equal bytes
            save_png = partial(figure.savefig, format="png", metadata={"Software": None})
            write_atomic(folder / FIGURE, save_png)
            plt.close(figure)
    write_atomic(folder / CARD, render_card(request, result, report, without_triples))


def explain_shortfall(request: DatasetRequest, result: DatasetResult) -> str:
    """Return the reasons why there are fewer questions than requested."""
    reasons: Counter[str] = Counter()
    for (_, reason), count in result.assembly.dropped.items():
        reasons[reason] += count
    lines = [f"{request.world} gives {result.assembly.size} of {request.n} questions."]
    if reasons:
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        lines.append(f"Drawn and dropped: {counts}.")
    lines += [f"{family}: {note}" for family, note in result.notes.items()]
    return "\n".join(lines)


# ---- data card


def render_card(
    request: DatasetRequest, result: DatasetResult, report: dict | None, without_triples: int
) -> str:
    """Return the data card as Markdown.

    Args:
        request: settings of the data set.
        result: rows, and counts of dropped questions.
        report: the quality report; None without questions.
        without_triples: number of questions that WebShaper's format cannot express.
    """
    rows = result.assembly.rows
    parts = [_front_matter(rows), f"# {result.assembly.size} questions about {request.world}\n"]
    parts.append(
        "Each question is a query over the facts of a world, and its answer is the result. "
        "`evidence` lists the page lines that show the facts.\n"
    )
    if result.assembly.size < request.n:
        reasons = explain_shortfall(request, result)
        parts.append(f"## Fewer questions than requested\n\n```\n{reasons}\n```\n")
    parts.append(_families_section(request, result))
    if report:
        parts += [_quality_section(report), _files_section(without_triples)]
    parts.append(_settings_section(request))
    return "\n".join(parts)


def _front_matter(rows: dict[str, list[dict]]) -> str:
    """Return the metadata that `datasets.load_dataset(folder, config)` reads."""
    metadata: dict[str, list] = {
        "task_categories": ["question-answering"],
        "tags": ["synthetic", "deep-research"],
    }
    if rows:
        metadata["configs"] = [
            {
                "config_name": config,
                "data_files": [
                    {"split": split, "path": path.format(split=split)} for split in rows
                ],
            }
            for config, path in CONFIGS.items()
        ]
    return f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---\n"


def _families_section(request: DatasetRequest, result: DatasetResult) -> str:
    """Return a table of questions per family: by split, by wording, and dropped."""
    reasons = sorted({reason for _, reason in result.assembly.dropped})
    splits = ("train", "test")
    columns = ["family", *splits, "natural language", *reasons]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for family in request.families:
        rows = [
            row for part in result.assembly.rows.values() for row in part if row["family"] == family
        ]
        cells = [sum(row["split"] == split for row in rows) for split in splits]
        cells.append(sum(row["wording"] == "sentences" for row in rows))
        cells += [result.assembly.dropped[family, reason] for reason in reasons]
        lines.append(f"| {family} | {' | '.join(map(str, cells))} |")
    notes = [f"- {family}: {FAMILIES[family].help}" for family in request.families]
    notes += [f"- excluded, {name}: {reason}" for name, reason in EXCLUDED_RECIPES.items()]
    introduction = (
        "## Families\n\nQuestions per split, questions with natural-language wording (the others "
        "have structured wording), and dropped questions by reason.\n"
    )
    return "\n".join([introduction, *lines, "", *notes, ""])


def _quality_section(report: dict) -> str:
    # two independent engines check each question: report the higher rate of each fault
    faults = {name: max(report["by_sets"][name], rate) for name, rate in report["by_sql"].items()}
    found = ", ".join(f"{name} {rate:.1%}" for name, rate in faults.items() if rate) or "none"
    split = report["split"]
    overlap = (
        f"Shared by train and test: {split['answers']} answers, {split['queries']} queries, "
        f"{split['constants']} constants. "
        if split
        else ""
    )
    return (
        f"## Quality\n\n![quality]({FIGURE})\n\nSummary of `{REPORT}`. Faults found by two query "
        f"engines: {found}. Different answers: {report['answers']['different']}; the most frequent "
        f"one answers {report['answers']['largest_share']:.1%} of the questions. Questions that "
        f"depend on two equal numbers: {report['coincidences']:.1%}.\n\n{overlap}No training "
        "question names or asks for a test answer or a neighbour of one in the graph, other than "
        "its kind. None uses a fact of a test question.\n"
    )


def _files_section(without_triples: int) -> str:
    verl = VERL.format(split="train")
    return (
        "## Files\n\n"
        f"- `datasets.load_dataset(FOLDER, CONFIG)`, with a config of {', '.join(CONFIGS)}\n"
        f"- `datasets.load_dataset('parquet', data_files='{verl}')`: rows for verl\n"
        "- `datasets.load_from_disk('hf')`: the rows of the config default\n"
        "- `pieces`: all drawn questions, including dropped ones; needed to resume\n\n"
        f"WebShaper's format cannot express {without_triples} of the questions.\n"
    )


def _settings_section(request: DatasetRequest) -> str:
    values = {name: value for name, value in vars(request).items() if name != "world"}
    settings = ", ".join(f"{name} {value}" for name, value in values.items())
    return f"## Settings\n\nWorld {request.world}; {settings}. See also `settings.json`.\n"


if __name__ == "__main__":
    sys.exit(main())
