"""`python -m drlib.experiments COMMAND`: notebooks, runs, and what is made from their results."""

import argparse
import sys
from pathlib import Path

from drlib.config import Config
from drlib.files import WriteError, write_atomic
from drlib.experiments import papers
from drlib.experiments.verdicts import command_of
from drlib.notebook.display import AGAIN, REFERENCE, ROOT
from drlib.notebook.execution import NotebookError, find, parse_pairs, read_parameters, refresh, run
from drlib.notebook.rules import problems


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0, or 1 with one line on stderr that says what is wrong."""
    args = _parser().parse_args(argv)
    try:
        return args.action(args) or 0
    except (NotebookError, ValueError, WriteError, ImportError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing is left running; the same command goes on", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m drlib.experiments", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(action, text: str) -> argparse.ArgumentParser:
        one = commands.add_parser(action.__name__.strip("_"), help=text)
        one.set_defaults(action=action)
        return one

    one = command(_run, "execute a copy with other parameters (papermill)")
    one.add_argument("number", metavar="NN")
    one.add_argument("-f", "--file", type=Path, help="YAML file with `name: value` lines")
    one.add_argument(
        "-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE")
    )
    one.add_argument("-o", "--output", type=Path, help="default: runs/notebooks/NN_PROFILE.ipynb")
    for action, text in (
        (_refresh, "execute in the ci profile and store the outputs, normalised"),
        (_check, "the rules for committed notebooks, without executing them"),
    ):
        command(action, text).add_argument("numbers", nargs="*", metavar="NN", help="default: all")
    line = command(_reference, "the whole line for several seeds, with controls")
    line.add_argument("--profile", default="laptop")
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    line.add_argument("--runs", type=Path, default=ROOT / "runs")
    line.add_argument("--out", type=Path, default=AGAIN, help="default: figures/reference/again")
    line.add_argument("--only", nargs="+", metavar="STAGE", help="keep these alone, such as rl")
    one = command(_finding, "a claim about learning against its control, for several seeds")
    one.add_argument("name", metavar="NAME", help="of drlib/experiments/findings.yaml")
    one.add_argument("--profile", default="laptop")
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--runs", type=Path, default=ROOT / "runs")
    _add_sweep(command(_sweep, "several settings against a control, for several seeds"))
    line = command(_strategies, "agents of the same policies on the same questions")
    line.add_argument("--profile", default="laptop")
    line.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    line.add_argument("--runs", type=Path, default=ROOT / "runs")
    command(_table, "write what committed runs say into README.md and docs/findings.md")
    command(_papers, "write docs/papers.md from its table")
    return parser


def _add_sweep(one: argparse.ArgumentParser) -> None:
    one.add_argument("file", metavar="FILE", help="YAML, or the name of one in drlib/lab/sweeps")
    one.add_argument("--profile", help="default: the file's")
    one.add_argument("--seeds", type=int, nargs="+", help="default: the file's")
    one.add_argument("--runs", type=Path, default=ROOT / "runs", help="on a cluster: shared")
    one.add_argument("--out", type=Path, help="default: figures/reference/sweeps/NAME")
    only = one.add_mutually_exclusive_group()
    only.add_argument("--list", action="store_true", help="which runs are there; trains nothing")
    only.add_argument("--draw", action="store_true", help="table and figure from OUT/results alone")
    only.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="runs side by side: of a cluster, or auto (no address: on this host alone)",
    )


def _run(args) -> None:
    parameters = read_parameters(args.file) if args.file else {}
    run(args.number, parameters | parse_pairs(args.parameter), args.output)


def _chosen(numbers: list[str]) -> list[Path]:
    """The notebooks of these numbers, solutions included; all of them for none."""
    return [path for number in numbers or [None] for path in find(number, solutions=True)]


def _refresh(args) -> None:
    for path in _chosen(args.numbers):
        print(f"{path.name}: {'refreshed' if refresh(path) else 'unchanged'}", flush=True)


def _check(args) -> int:
    paths = _chosen(args.numbers)
    found = [f"{path.name}: {text}" for path in paths for text in problems(path)]
    print("\n".join(found) or f"{len(paths)} notebooks: no problem")
    return 1 if found else 0


def _reference(args) -> None:
    from drlib.experiments.reference_run import reference  # lazily, as in _table: it brings torch

    if (args.set or args.only) and args.out.resolve() in (REFERENCE, AGAIN):
        raise ValueError("--set and --only need an --out that is not the recipe's (tour, again)")
    changes = parse_pairs([pair.partition("=")[::2] for pair in args.set])
    config = Config.load(args.profile, **changes)
    print(reference(config, args.seeds, args.runs, args.out, args.only))


def _finding(args) -> None:
    from drlib.experiments.findings import measure  # lazily, as in _table

    print(measure(args.name, args.profile, args.seeds, args.runs))


def _sweep(args) -> int:
    from drlib.experiments import sweep, sweep_runs

    plan = sweep.load_sweep(args.file, args.profile, args.seeds)
    runs = args.runs.resolve()
    out = args.out or sweep.REFERENCE_SWEEPS / plan.name
    if args.list:
        print(sweep_runs.listing(plan, runs))
        return 0
    if args.draw:
        from drlib.experiments.tables import write_summary  # lazily: it brings torch

        write_summary(plan, out)
        print(out)
        return 0
    built = sweep_runs.built_here(plan, runs)
    if args.ray is not None:
        from drlib.experiments.ray_runner import built_on_ray

        built = built_on_ray(plan, runs, args.ray or None)
    command = command_of(f"sweep {args.file}", plan.profile, plan.seeds)
    failed = sweep_runs.measure(plan, runs, out, command, built)
    print(out)
    return 1 if failed else 0


def _strategies(args) -> None:
    from drlib.experiments.strategies import measure  # lazily, as in _table

    for path in measure(args.profile, args.seeds, args.runs):
        print(path)


def _table(args) -> None:
    from drlib.experiments.figures import drawn, effects_figure
    from drlib.experiments.findings_page import EFFECTS, FINDINGS_PAGE, findings_page, reference_sweeps
    from drlib.experiments.reference_run import readme_blocks, refresh_readme

    changed = refresh_readme(ROOT / "README.md", readme_blocks())
    print(f"README.md: {'refreshed' if changed else 'unchanged'}")
    print(write_atomic(EFFECTS, drawn(effects_figure(reference_sweeps()))))
    print(write_atomic(FINDINGS_PAGE, findings_page()))


def _papers(args) -> None:
    print(write_atomic(papers.PAPERS_PAGE, papers.papers_page()))


if __name__ == "__main__":
    sys.exit(main())
