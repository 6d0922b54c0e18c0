"""`drlib experiment`: compare settings or agents with a control over several seeds."""

import argparse
import sys
from pathlib import Path

from drlib.cli.examples import add_examples
from drlib.config import AGAIN, ROOT, TOUR, Config, parse_overrides, runs_folder
from drlib.files import WriteError, write_atomic


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, 1 with the cause on stderr, or 130 after Ctrl-C."""
    args, settings = _parser().parse_known_args(argv)
    try:
        if settings and args.action is not _reference:
            raise ValueError(f"unknown argument {settings[0]!r}")
        return args.action(args, settings) or 0
    except (ValueError, WriteError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: run the same command again to resume", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="drlib experiment", description=__doc__)
    add_examples(
        parser,
        "drlib experiment list",
        "drlib experiment run clips --seeds 0 1 2",
        "drlib experiment run findings --budget 8h",
        "drlib experiment show clips",
        "drlib experiment reference --profile laptop",
        "drlib experiment pages",
    )
    commands = parser.add_subparsers(required=True)

    def add_command(name: str, action, about: str, example: str = "") -> argparse.ArgumentParser:
        parser = commands.add_parser(name, help=about, description=about)
        parser.set_defaults(action=action)
        add_examples(parser, f"drlib experiment {name} {example}".rstrip())
        return parser

    add_command("list", _list, "list the shipped experiments")
    command = add_command(
        "run",
        _run,
        "train the missing runs, store their records and test the claims",
        "clips --seeds 0 1 2",
    )
    command.add_argument(
        "name",
        help="a shipped experiment, the path of a plan, or findings: all shipped plans with a "
        "sequential design",
    )
    command.add_argument("--profile", help="default: the plan's, or laptop")
    command.add_argument("--seeds", type=int, nargs="+", help="default: the plan's, or 0 1 2")
    command.add_argument(
        "--runs", type=Path, default=runs_folder(), help="run folder; shared on a cluster"
    )
    command.add_argument("--out", type=Path, help="default: runs/experiments")
    command.add_argument(
        "--ray", nargs="?", const="", metavar="ADDRESS", help="run in parallel on a Ray cluster"
    )
    command.add_argument(
        "--budget",
        metavar="TIME",
        help="wall-clock time such as 8h or 30m: run looks of sequential designs until it is used",
    )
    command = add_command("show", _show, "show the runs and the results of an experiment", "clips")
    command.add_argument("name", help="a shipped experiment, or the path of a plan")
    command.add_argument("--runs", type=Path, default=runs_folder())
    command.add_argument(
        "--out", type=Path, help="default: runs/experiments, else the committed results"
    )
    command = add_command(
        "reference",
        _reference,
        "train all stages with controls for several seeds",
        "--profile laptop --seeds 0 1 2",
    )
    command.add_argument("--profile", default="laptop")
    command.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    command.add_argument("--runs", type=Path, default=runs_folder())
    command.add_argument("--out", type=Path, help="default: runs/reference")
    command.add_argument(
        "--only", nargs="+", metavar="STAGE", help="keep only these stages, such as rl"
    )
    add_command(
        "pages", _pages, "write README's findings and the pages of findings and papers in docs"
    )
    return parser


def _list(args, settings) -> None:
    from drlib.experiments.plan import PLANS, ExperimentPlan, load_plan

    for path in sorted(PLANS.glob("*.yaml")):
        plan = load_plan(path.stem)
        if isinstance(plan, ExperimentPlan):
            print(f"{plan.name:14} {len(plan.arms):2} arms    {plan.about}")
        else:
            print(f"{plan.name:14} {len(plan.trials):2} trials  {plan.about}")


def _run(args, settings) -> int:
    from drlib.experiments.plan import ExperimentPlan, load_plan
    from drlib.experiments.verdicts import command_of

    out, runs = args.out or runs_folder() / "experiments", args.runs.resolve()
    if args.budget is not None or args.name == "findings":
        return _run_budget(args, runs, out)
    plan = load_plan(args.name, args.profile, args.seeds)
    has_design = isinstance(plan, ExperimentPlan) and plan.design and not args.seeds
    command = command_of(f"run {args.name}", plan.profile, () if has_design else plan.seeds)
    if not isinstance(plan, ExperimentPlan):
        from drlib.experiments.agent_plan import run_agents

        if args.ray is not None:
            raise ValueError(f"{args.name} compares agents, which run on one host: omit --ray")
        print(run_agents(plan, runs, out, command))
        return 0
    from drlib.experiments import runner

    built = runner.built_here(plan, runs)
    if args.ray is not None:
        from drlib.experiments.ray_runner import built_on_ray

        built = built_on_ray(plan, runs, args.ray or None)
    failed = runner.measure(plan, runs, out, command, built)
    print(out / f"{plan.name}.parquet", flush=True)
    for (arm, seed), reason in failed.items():
        print(f"error: {arm}, seed {seed}: {reason}", file=sys.stderr)
    return 1 if failed else 0


def _run_budget(args, runs: Path, out: Path) -> int:
    from drlib.experiments.budget import parse_budget, run_findings
    from drlib.experiments.plan import ExperimentPlan, designed_plans, load_plan

    if args.budget is None:
        raise ValueError("give --budget with the time to spend, such as --budget 8h")
    if args.profile or args.seeds:
        raise ValueError("--budget runs the profile and the seeds of the plans: omit the others")
    seconds = parse_budget(args.budget)
    if args.name == "findings":
        plans = designed_plans()
    else:
        plan = load_plan(args.name)
        if not isinstance(plan, ExperimentPlan) or plan.design is None:
            raise ValueError(f"{args.name} has no design: add one, or omit --budget")
        plans = [plan]
    return 1 if run_findings(plans, runs, out, seconds, args.ray) else 0


def _show(args, settings) -> None:
    from drlib.experiments.plan import ExperimentPlan, load_plan
    from drlib.experiments.records import EXPERIMENTS, ExperimentRecords

    plan = load_plan(args.name)
    path = (args.out or runs_folder() / "experiments") / f"{plan.name}.parquet"
    if args.out is None and not path.exists():
        path = EXPERIMENTS / path.name
    if not isinstance(plan, ExperimentPlan):
        from drlib.experiments.agent_plan import AgentRecords, agent_table

        print(agent_table(plan, AgentRecords.load(path)))
        return
    from drlib.experiments import runner, tables

    if path.exists():
        print(tables.table(tables.summary(plan, ExperimentRecords.load(path))))
    print(runner.listing(plan, args.runs.resolve()))


def _reference(args, settings) -> None:
    from drlib.experiments.reference_run import reference

    changes = parse_overrides(settings)
    out = args.out or runs_folder() / "reference"
    if (changes or args.only) and out.resolve() in (TOUR, AGAIN):
        raise ValueError("settings and --only need an --out other than the committed runs")
    config = Config.load(args.profile, **changes)
    print(reference(config, args.seeds, args.runs, out, args.only))


def _pages(args, settings) -> None:
    from drlib.experiments import papers
    from drlib.experiments.figures import drawn, effects_figure
    from drlib.experiments.findings_page import (
        EFFECTS,
        FINDINGS_PAGE,
        NOT_REPRODUCED_PAGE,
        committed_experiments,
        findings_page,
        not_reproduced_page,
        readme_findings,
    )
    from drlib.experiments.reference_run import reference_blocks, with_block

    readme = ROOT / "README.md"
    text = with_block(readme.read_text(encoding="utf-8"), readme_findings(), "findings")
    print(write_atomic(readme, text))
    print(write_atomic(EFFECTS, drawn(effects_figure(committed_experiments()))))
    print(write_atomic(FINDINGS_PAGE, findings_page(reference_blocks())))
    print(write_atomic(NOT_REPRODUCED_PAGE, not_reproduced_page()))
    print(write_atomic(papers.PAPERS_PAGE, papers.papers_page()))
