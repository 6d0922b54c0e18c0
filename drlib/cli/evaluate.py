"""`drlib evaluate STAGE | BENCHMARK | answers | questions | judge | ...`: measure agents.

`drlib evaluate STAGE` builds the stage `evaluate_STAGE` and its missing inputs; its arguments are
those of `drlib train`. `drlib evaluate BENCHMARK` asks an agent the questions of a benchmark, with
the options of `drlib ask`, and judges its answers; `tasks` does the same with the held-out tasks of
environments, which verify the end of each rollout. `answers` judges the answers of any agent, one
JSON-lines file per round (rows with question, answer and prediction). `judge` measures how often a
judge is wrong. `pages` writes the questions and documents of a benchmark such as HotpotQA,
`questions` the held-out questions of a profile, as a benchmark for other agents.
`retrieval` measures which of the documents that a task requires are found by the search engines.
`overlap` searches training files for the questions of a benchmark.
`leaderboard` compares several agents' answers to the same questions.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

from drlib.cli import train
from drlib.cli.examples import add_examples
from drlib.config import NO_WORLD
from drlib.endpoint import EndpointError
from drlib.evaluation.benchmark_wheels import BENCHMARK_FILES, find_source
from drlib.files import write_atomic, write_json_lines
from drlib.registry import load_plugins
from drlib.validation import require

PREFIX = "evaluate_"
VERIFIED = "verified"  # name of the judgement of environments
COMMANDS = (
    "tasks",
    "answers",
    "questions",
    "judge",
    "pages",
    "retrieval",
    "overlap",
    "leaderboard",
)
EXAMPLES = (
    "drlib evaluate rl --profile ci",
    "drlib evaluate answers iter1.jsonl iter2.jsonl iter3.jsonl",
    "drlib evaluate judge --judge rules --world folder:notes",
    "drlib evaluate pages hotpotqa --source hotpot_dev_distractor_v1.json --out hotpot",
    "drlib evaluate hotpotqa --source hotpot_dev_distractor_v1.json --model smol --out answers",
    "drlib evaluate retrieval tau2_banking",
    "drlib evaluate overlap train.jsonl --source questions.jsonl",
    "drlib evaluate leaderboard react=a1.jsonl,a2.jsonl heavy=b1.jsonl,b2.jsonl",
    "drlib evaluate questions --profile laptop --out questions.jsonl",
    "drlib evaluate tasks terminal:easy+harbor:my_tasks -n 20 --model smol --out answers",
)


def main(argv: list[str]) -> int:
    """Run the command; return the exit status of `drlib train evaluate_STAGE`, or 1 on an error."""
    if argv[:1] in (["-h"], ["--help"]):
        print("\n  ".join([f"{__doc__}\nexamples:", *EXAMPLES]) + "\n")
        return train.main(argv)
    if not argv or argv[0].startswith("-"):
        print("drlib evaluate: name a stage first, as in: drlib evaluate rl", file=sys.stderr)
        return 2
    what, *rest = argv
    is_named = what in BENCHMARK_FILES or "--source" in rest
    if is_named and what not in COMMANDS:
        rest, what = argv, "benchmark"
    run = {
        "benchmark": _run_benchmark,
        "tasks": _run_tasks,
        "answers": _score_answers,
        "leaderboard": _compare_answers,
        "judge": _calibrate,
        "pages": _write_pages,
        "questions": _write_questions,
        "overlap": _measure_overlap,
        "retrieval": _measure_retrieval,
    }.get(what)
    if run is None:
        return train.main([PREFIX + what.removeprefix(PREFIX), *rest])
    try:
        return run(rest)
    except (ValueError, OSError, RuntimeError, EndpointError) as error:
        print(f"drlib evaluate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("drlib evaluate: interrupted; the same command resumes", file=sys.stderr)
        return 130


def _run_benchmark(argv: list[str]) -> int:
    """Ask an agent the questions of a benchmark and judge its answers."""
    from drlib.app.research import is_live
    from drlib.evaluation.benchmarks import BENCHMARKS, write_documents
    from drlib.rewards.judges import JUDGES

    parser = argparse.ArgumentParser(prog="drlib evaluate BENCHMARK", description=__doc__)
    add_examples(
        parser,
        EXAMPLES[4],
        "drlib evaluate simpleqa --source simple_qa_test_set.csv --search serper -k 3 "
        "--endpoint http://localhost:8000/v1 --model NAME --temperature 0.6 --out answers "
        "--judge-endpoint http://localhost:8001/v1 --judge-model JUDGE",
    )
    add = parser.add_argument
    add("benchmark", help=f"one of {', '.join(BENCHMARKS)}")
    add("--source", type=Path, help="its published file (default: the installed one)")
    add("--judge", default="", help=f"judge (the benchmark's): {', '.join(sorted(JUDGES))}, llm")
    add("--judge-endpoint", default="", help="--judge llm: OpenAI-compatible server")
    add("--judge-model", default="", help="--judge llm: its model (API key: DRLIB_API_KEY)")
    add("-n", type=int, help="only the first N questions")
    _add_run_options(parser)
    parser.set_defaults(world="")
    args = _parse_run(parser, argv)
    args.source = args.source or find_source(args.benchmark)
    items = _load_items(args)
    judge = args.judge or BENCHMARKS[args.benchmark].judge
    require(
        judge != "llm" or args.dry_run or bool(args.judge_endpoint and args.judge_model),
        f"{args.benchmark} is judged by a model: give --judge-endpoint and --judge-model, or "
        "another --judge",
    )
    if judge != "llm":
        JUDGES[judge]()  # an unknown or missing judge must be found before answers are paid for
    readable = [item for item in items if not item.meta.get("has_image")]
    if left_out := len(items) - len(readable):
        print(f"{left_out} questions with an image are left out", file=sys.stderr)
    if not args.world and not is_live(args.search):
        args.world = _document_world(args, readable)
    attached = [file for item in readable for file in item.files]
    if attached and not args.files:
        args.files = str(attached[0].parent)
        # the folder also has the benchmark's file, with the answers
        args.file_names = tuple(sorted({file.name for file in attached}))
    pages = args.out / "pages"
    if args.world == f"folder:{pages}" and not pages.exists() and not args.dry_run:
        write_documents(items, pages)
    cache = args.out / "verdicts.jsonl"
    return _ask_and_score(
        args,
        args.benchmark,
        args.source,
        readable[: args.n],
        [
            *("--benchmark", args.benchmark, "--source", str(args.source), "--judge", judge),
            *("--endpoint", args.judge_endpoint, "--model", args.judge_model),
            *(("--cache", str(cache)) if judge == "llm" else ()),
        ],
    )


def _run_tasks(argv: list[str]) -> int:
    """Ask an agent the held-out tasks of environments, which verify the end of each rollout."""
    from drlib.evaluation.environment_items import draw_items

    parser = argparse.ArgumentParser(prog="drlib evaluate tasks", description=__doc__)
    add_examples(parser, EXAMPLES[9])
    add = parser.add_argument
    add(
        "names",
        metavar="ENVIRONMENTS",
        help="NAME+NAME:ARGUMENTS, such as database:easy or harbor:FOLDER",
    )
    add(
        "-n", type=int, default=50, help="tasks of each environment (50); harbor: all of the folder"
    )
    add("--seed", type=int, default=0, help="of the tasks (0)")
    _add_run_options(parser)
    parser.set_defaults(world=NO_WORLD)
    args = _parse_run(parser, argv)
    args.environments = args.names
    items = draw_items(args.names, args.n, args.seed)
    return _ask_and_score(args, "tasks", items, items, ["--judge", VERIFIED], items)


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run and of its agent."""
    from drlib.cli.agent_options import add_agent_options

    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of answers; an interrupted run resumes")
    add("-k", type=int, default=1, help="rounds: answers per question (1)")
    add("--budget", type=float, help="stop asking once the answers have cost so much (--prices)")
    add("--dry-run", action="store_true", help="print the expected tokens and cost, ask nothing")
    add_agent_options(parser)


def _parse_run(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Parse the arguments of a run, before anything is read or written, and load its plugins."""
    from drlib.cli.agent_options import apply_preset

    args = apply_preset(parser, argv)
    require(
        args.budget is None or any(args.prices),
        "--budget needs --prices: without them every answer costs 0",
    )
    load_plugins(args.plugins)
    return args


def _ask_and_score(
    args: argparse.Namespace,
    name: str,
    source: Path | list,
    items: list,
    scoring: list[str],
    scored: list | None = None,
) -> int:
    """Ask what has no answer yet, then judge all answers; return the exit status.

    Args:
        source: what identifies the questions, see `describe`.
        items: the questions.
        scoring: arguments of `drlib evaluate answers`, without files.
        scored: see `_score_answers`.
    """
    from tqdm import tqdm

    from drlib.app.research import AskError, AskSession
    from drlib.cli.agent_options import read_options
    from drlib.evaluation.benchmark_run import BenchmarkRun, describe, estimate

    options = read_options(args)
    run = BenchmarkRun(items, args.out, args.k, args.world)
    if args.dry_run:
        expected = estimate(run, options.calls, options.turn_tokens, options.context_tokens)
        print(_render_estimate(expected, options.prices))
        return 0
    run.claim(describe(name, source, options))
    with (
        AskSession(options) as session,
        tqdm(total=run.missing, desc=name, disable=not sys.stderr.isatty()) as bar,
    ):
        try:
            done = session.answer_benchmark(run, args.budget, lambda _: bar.update())
        except AskError as error:
            raise RuntimeError(f"{error}; the same command resumes") from None
    if not done:
        print(
            f"drlib evaluate: the budget of {args.budget} is spent ({run.spent():.2f}); the same "
            "command with a larger --budget resumes",
            file=sys.stderr,
        )
        return 1
    files = [*map(str, run.files)]
    report = ["--plugins", args.plugins, "--out", str(args.out / "report.json")]
    return _score_answers([*files, *scoring, *report], scored)


def _document_world(args: argparse.Namespace, items: list) -> str:
    """Return the name of the world of the questions' own documents, in the folder of answers."""
    require(
        any(item.documents for item in items),
        f"{args.benchmark} has no documents of its own: name what the agent searches (--world or "
        "--search; --world none: nothing)",
    )
    return f"folder:{args.out / 'pages'}"


def _render_estimate(expected: dict, prices: tuple[float, float]) -> str:
    """Return the expected usage as a Markdown table."""
    cost = (expected["read_tokens"] * prices[0] + expected["said_tokens"] * prices[1]) / 1e6
    basis = f"as the {expected['measured']} finished answers" if expected["measured"] else "at most"
    return "\n".join(
        [
            f"| {basis} | |",
            "|---|---|",
            f"| answers | {expected['answers']:,} |",
            f"| turns | {expected['turns']:,} |",
            f"| tokens of prompts | {expected['read_tokens']:,} |",
            f"| tokens of replies | {expected['said_tokens']:,} |",
            f"| cost | {cost:,.2f} |",
        ]
    )


def _parser(name: str, *examples: str) -> argparse.ArgumentParser:
    """Return a parser with the options that select a judge."""
    from drlib.rewards.judges import JUDGES

    parser = argparse.ArgumentParser(prog=f"drlib evaluate {name}", description=__doc__)
    add_examples(parser, *examples)
    add = parser.add_argument
    add("--judge", help=f"judge (rules, or the benchmark's): {', '.join(sorted(JUDGES))}, llm")
    add("--endpoint", default="", help="--judge llm: OpenAI-compatible server")
    add("--model", default="", help="--judge llm: its model (API key: DRLIB_API_KEY)")
    add("--cache", type=Path, help="--judge llm: JSON-lines file that keeps verdicts")
    add("--plugins", default="", help="modules with judges of your own, separated by commas")
    return parser


def _create_judge(args: argparse.Namespace):
    from drlib.rewards.judges import JUDGES
    from drlib.rewards.llm_judge import judge_by_model

    if args.judge == VERIFIED:
        return _judge_nothing
    if args.judge == "llm":
        key = os.environ.get("DRLIB_API_KEY", "")
        return judge_by_model(args.endpoint, args.model, key, args.cache)
    return JUDGES[args.judge]()


def _judge_nothing(question, prediction, golds):
    """Refuse a row without the score of an environment."""
    from drlib.rewards.judges import Judgement, Verdict

    return Judgement(Verdict.JUDGE_ERROR, "the row has no score of an environment (verified)")


def _score_answers(argv: list[str], items: list | None = None) -> int:
    """Judge the answers in files and print the measures.

    Args:
        items: the questions; None: those of --benchmark.
    """
    from tqdm import tqdm

    from drlib.evaluation.answer_files import judge_files, read_answers
    from drlib.evaluation.answer_report import render, render_comparison, to_json
    from drlib.evaluation.benchmarks import BENCHMARKS
    from drlib.evaluation.calibration import Calibration, correct_accuracy
    from drlib.evaluation.measures import compare, summarise

    parser = _parser(
        "answers",
        EXAMPLES[1],
        "drlib evaluate answers answers.jsonl --judge llm --endpoint http://localhost:8000/v1 "
        "--model NAME --cache verdicts.jsonl --out report.json",
    )
    add = parser.add_argument
    add("files", nargs="+", type=Path, help="JSON-lines files, one per round")
    add("--benchmark", default="", help=f"take the correct answers from: {', '.join(BENCHMARKS)}")
    add("--source", type=Path, help="--benchmark: its published file")
    add("--workers", type=int, default=8, help="--judge llm: requests at the same time (8)")
    add("--calibration", type=Path, help="file of drlib evaluate judge: also corrected accuracy")
    add(
        "--against", nargs="+", type=Path, default=[], help="files of other answers to compare with"
    )
    add("--out", type=Path, help="write measures and verdicts, without texts, to this JSON file")
    add("--html", type=Path, help="write an HTML page: measures, questions, trajectories")
    args = parser.parse_args(argv)
    load_plugins(args.plugins)
    items = _load_items(args) if items is None else items
    args.judge = args.judge or (BENCHMARKS[args.benchmark].judge if args.benchmark else "rules")
    calibration = Calibration.load(args.calibration) if args.calibration else None
    require(
        calibration is None or calibration.judge == args.judge,
        f"{args.calibration} is of the judge {calibration and calibration.judge}, not {args.judge}",
    )
    judge = _create_judge(args)
    if any(item.protected for item in items):
        judge = _hide_messages(judge)
    total = sum(len(read_answers(file, items)) for file in [*args.files, *args.against])
    workers = args.workers if args.judge == "llm" else 1
    with tqdm(total=total, desc="judge", disable=not sys.stderr.isatty()) as bar:
        judged = judge_files(args.files, judge, workers, lambda _: bar.update(), items)
        others = None
        if args.against:
            others = judge_files(args.against, judge, workers, lambda _: bar.update(), items)
    flat = [one for each in judged.judgements for one in each]
    reasons = {one.reason for one in flat if one.verdict == "judge_error"}
    if reasons and any(item.protected for item in items):  # they may quote question or answer
        reasons = {"the reasons are hidden, because the benchmark is protected"}
    for reason in sorted(reasons)[:5]:
        print(f"not judged: {reason}", file=sys.stderr)
    measures = summarise(judged)
    if left := len({item.id for item in items} - {*judged.keys}):
        print(f"{left} of {len(items)} questions of the benchmark have no answer", file=sys.stderr)
    if args.out:
        write_atomic(args.out, to_json(judged, args.files, args.judge, left))
    if args.html:
        from drlib.analysis.answer_page import answer_page  # lazy: imports transformers

        write_atomic(args.html, answer_page(judged, args.files))
    print(render(measures))
    if calibration is not None:
        n = measures["pass@1"]["questions"]
        best, low, high = correct_accuracy(measures["accuracy"][0] * n, n, calibration)
        name = "accuracy, corrected for the judge's errors"
        print(f"| {name} | {best:.1%} [{low:.1%}, {high:.1%}] |")
    if others is not None:
        print("\n" + render_comparison(compare(judged, others)))
    return 0


def _hide_messages(judge):
    """Return the judge with errors that cannot quote a question or an answer."""

    def hidden(question, prediction, golds):
        try:
            return judge(question, prediction, golds)
        except Exception as error:
            raise RuntimeError(
                f"the judge failed ({type(error).__name__}); its message is hidden, because the "
                "benchmark is protected"
            ) from error

    return hidden


def _compare_answers(argv: list[str]) -> int:
    """Judge several sets of answers and print a table with paired comparisons."""
    from drlib.evaluation.answer_files import judge_files
    from drlib.evaluation.benchmarks import BENCHMARKS
    from drlib.evaluation.leaderboard import build_leaderboard, render_leaderboard

    parser = _parser("leaderboard", EXAMPLES[7])
    add = parser.add_argument
    add("sets", nargs="+", metavar="NAME=FILE,...", help="answers of an agent, one file per round")
    add("--benchmark", default="", help=f"take the correct answers from: {', '.join(BENCHMARKS)}")
    add("--source", type=Path, help="--benchmark: its published file")
    add("--workers", type=int, default=8, help="--judge llm: requests at the same time (8)")
    add("--out", type=Path, help="write the table, without texts, to this JSON file")
    args = parser.parse_args(argv)
    load_plugins(args.plugins)
    items = _load_items(args)
    args.judge = args.judge or (BENCHMARKS[args.benchmark].judge if args.benchmark else "rules")
    files: dict[str, list[Path]] = {}
    for one in args.sets:
        name, equals, paths = one.partition("=")
        require(bool(name and equals and paths), f"{one!r} must be NAME=FILE or NAME=FILE,FILE,...")
        require(name not in files, f"{name!r} names two sets of answers")
        files[name] = [Path(path) for path in paths.split(",")]
    judge = _create_judge(args)
    if any(item.protected for item in items):
        judge = _hide_messages(judge)
    workers = args.workers if args.judge == "llm" else 1
    found = build_leaderboard(
        {name: judge_files(paths, judge, workers, items=items) for name, paths in files.items()}
    )
    if args.out:
        names = {name: [path.name for path in paths] for name, paths in files.items()}
        report = {"judge": args.judge, "files": names, **found}
        write_atomic(args.out, json.dumps(report, indent=1) + "\n")
    print(render_leaderboard(found))
    return 0


def _load_items(args: argparse.Namespace) -> list:
    """Return the questions of --benchmark, [] without it."""
    from drlib.evaluation.benchmarks import BENCHMARKS, load_benchmark

    require(
        bool(args.benchmark) == bool(args.source),
        "--benchmark and --source must be given together",
    )
    if not args.benchmark:
        return []
    require(
        bool(BENCHMARKS[args.benchmark].judge),
        f"{args.benchmark} has no answer texts to compare with: its tasks are verified by running "
        "their tests: see drlib evaluate tasks harbor:FOLDER",
    )
    return load_benchmark(args.benchmark, args.source)


def _write_pages(argv: list[str]) -> int:
    """Write the documents and the questions of a benchmark, or its corpus without questions."""
    from drlib.evaluation.benchmarks import (
        BENCHMARKS,
        load_benchmark,
        write_corpus,
        write_documents,
    )

    parser = argparse.ArgumentParser(prog="drlib evaluate pages", description=__doc__)
    add_examples(parser, EXAMPLES[3])
    add = parser.add_argument
    add("benchmark", help=f"one of {', '.join(BENCHMARKS)}")
    add("--source", type=Path, help="its published file")
    add("--corpus", type=Path, nargs="+", default=[], help="files of its corpus: only pages/")
    add("--out", type=Path, required=True, help="new folder for pages/ and questions.jsonl")
    args = parser.parse_args(argv)
    require(bool(args.source) != bool(args.corpus), "give either --source or --corpus")
    if args.corpus:
        pages = write_corpus(args.benchmark, args.corpus, args.out / "pages")
        print(f"{pages} pages (world folder:{args.out / 'pages'})")
        return 0
    items = load_benchmark(args.benchmark, args.source)
    pages = write_documents(items, args.out / "pages")
    rows = [
        {"id": item.id, "question": item.question, "answer": list(item.answers)} for item in items
    ]
    write_json_lines(args.out / "questions.jsonl", rows)
    print(f"{pages} pages (world folder:{args.out / 'pages'}), {len(rows)} questions")
    return 0


def _measure_retrieval(argv: list[str]) -> int:
    """Print the recall of the documents that the tasks of a benchmark require."""
    from tqdm import tqdm

    from drlib.evaluation.benchmarks import load_benchmark, write_corpus
    from drlib.evaluation.retrieval import RETRIEVERS, measure_recall, render_recall, to_rows

    parser = argparse.ArgumentParser(prog="drlib evaluate retrieval", description=__doc__)
    add_examples(parser, EXAMPLES[5])
    add = parser.add_argument
    add("benchmark", help="tau2_banking (drlib convert tau2_banking) or browsecomp_plus")
    add("--source", type=Path, help="its published file (default: the installed one)")
    add("--corpus", type=Path, nargs="+", help="files of its documents (default: the installed)")
    add(
        "--engines",
        nargs="+",
        default=[*RETRIEVERS],
        help=f"the first one is the base of differences ({' '.join(RETRIEVERS)})",
    )
    add("--out", type=Path, help="write the measures, without texts, to this JSON file")
    args = parser.parse_args(argv)
    source = args.source or find_source(args.benchmark)
    corpus = args.corpus or [find_source(args.benchmark, 1)]
    items = load_benchmark(args.benchmark, source)
    total = len(items) * len(args.engines)
    with (
        tempfile.TemporaryDirectory(prefix="drlib-retrieval-") as folder,
        tqdm(total=total, desc="search", disable=not sys.stderr.isatty()) as bar,
    ):
        documents = write_corpus(args.benchmark, corpus, Path(folder, "pages"))
        rows = to_rows(measure_recall(items, Path(folder, "pages"), args.engines, bar.update))
    if args.out:
        files = {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in [source, *corpus]
        }
        report = {
            "command": f"drlib evaluate retrieval {args.benchmark} --engines "
            + " ".join(args.engines),
            "files": files,
            "tasks": len(items),
            "documents": documents,
            "engines": rows,
        }
        write_atomic(args.out, json.dumps(report, indent=1) + "\n")
    print(f"{len(items)} tasks, {documents} documents\n\n{render_recall(rows)}")
    return 0


def _measure_overlap(argv: list[str]) -> int:
    """Search training files for the questions of a benchmark and print the counts."""
    from drlib.evaluation.benchmarks import BENCHMARKS, load_benchmark
    from drlib.evaluation.overlap import overlap, render_overlap

    parser = argparse.ArgumentParser(prog="drlib evaluate overlap", description=__doc__)
    add_examples(parser, EXAMPLES[6])
    add = parser.add_argument
    add("files", nargs="+", type=Path, help="training data: .jsonl, .json, .parquet")
    add("--benchmark", default="generic", help=f"one of {', '.join(BENCHMARKS)} (generic)")
    add("--source", type=Path, required=True, help="its published file, or rows of questions")
    add("--out", type=Path, help="write counts and places, without texts, to this JSON file")
    args = parser.parse_args(argv)
    found = overlap(load_benchmark(args.benchmark, args.source), args.files)
    if args.out:
        write_atomic(args.out, json.dumps(found, indent=1) + "\n")
    print(render_overlap(found))
    return 0


def _write_questions(argv: list[str]) -> int:
    """Write the held-out questions of a profile as rows of the benchmark `generic`."""
    from drlib.config import load_from_arguments
    from drlib.evaluation.evaluate import held_out
    from drlib.training.data import load_training_world

    parser = argparse.ArgumentParser(prog="drlib evaluate questions", description=__doc__)
    add_examples(parser, EXAMPLES[8], f"{EXAMPLES[8]} --evaluation.questions 50")
    add = parser.add_argument
    add("--profile", default="ci", help="a profile in drlib/profiles (ci); settings may follow")
    add("--recipe", default="", help="a published recipe in drlib/recipes")
    add("--out", type=Path, required=True, help="write the questions to this JSON-lines file")
    args, settings = parser.parse_known_args(argv)
    config = load_from_arguments(args.profile, args.recipe, settings)
    world, _ = load_training_world(config)
    tasks = held_out(world, config)
    rows = [
        {
            "id": task.id,
            "question": task.question,
            "answer": [task.answer, *task.aliases],
            "category": task.category,
        }
        for task in tasks
    ]
    write_json_lines(args.out, rows)
    print(f"{len(rows)} questions about {config.world.name}")
    return 0


def _calibrate(argv: list[str]) -> int:
    """Judge answers with known labels and print the rates."""
    from drlib.demonstrations.document_teacher import draw_document_questions
    from drlib.evaluation.calibration import build_calibration_set, calibrate, render_calibration

    parser = _parser("judge", f"{EXAMPLES[2]} --out rules.json")
    add = parser.add_argument
    add("--world", default="cldr", help="world that the questions are about (cldr)")
    add("-n", type=int, default=100, help="questions; eleven answers to each (100)")
    add("--seed", type=int, default=0, help="seed of questions and answers")
    add("--out", type=Path, help="write the rates to this JSON file, for answers --calibration")
    args = parser.parse_args(argv)
    load_plugins(args.plugins)
    args.judge = args.judge or "rules"
    judge = _create_judge(args)
    _, questions = draw_document_questions(args.world, args.n, args.seed)
    answers = build_calibration_set([question.task for question in questions], args.seed)
    found = calibrate(judge, args.judge, answers)
    if args.out:
        found.save(args.out)
    print(render_calibration(found))
    return 0
