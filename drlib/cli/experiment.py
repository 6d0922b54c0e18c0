"""`drlib experiment`: compare settings or agents with a control over seeds, and show the results.

drlib experiment list
drlib experiment run clips --seeds 0 1 2
drlib experiment show clips
drlib experiment reference --profile laptop
drlib experiment pages
"""

import argparse
import sys
from pathlib import Path

from drlib.config import AGAIN, ROOT, TOUR, Config, parse_overrides
from drlib.files import WriteError, write_atomic

STRATEGIES = "strategies"  # the comparison of agents


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
    parser = argparse.ArgumentParser(
        prog="drlib experiment",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: drlib experiment run clips --seeds 0 1 2",
    )
    commands = parser.add_subparsers(required=True)

    def command(name: str, action, about: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=about, description=about)
        one.set_defaults(action=action)
        return one

    command("list", _list, "list the shipped experiments")
    one = command("run", _run, "train what is missing, keep the records, judge the claims")
    one.add_argument("name", help="a shipped experiment, or the path of a plan")
    one.add_argument("--profile", help="default: the plan's, or laptop")
    one.add_argument("--seeds", type=int, nargs="+", help="default: the plan's, or 0 1 2")
    one.add_argument("--runs", type=Path, default=ROOT / "runs", help="on a cluster: shared")
    one.add_argument("--out", type=Path, help="default: figures/reference/experiments")
    one.add_argument(
        "--ray", nargs="?", const="", metavar="ADDRESS", help="run side by side on a Ray cluster"
    )
    one = command("show", _show, "show the state of the runs and the table of a plan")
    one.add_argument("name")
    one.add_argument("--runs", type=Path, default=ROOT / "runs")
    one.add_argument("--out", type=Path, help="default: figures/reference/experiments")
    one = command("reference", _reference, "train all stages with controls for several seeds")
    one.add_argument("--profile", default="laptop")
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    one.add_argument("--runs", type=Path, default=ROOT / "runs")
    one.add_argument("--out", type=Path, default=AGAIN, help="default: figures/reference/again")
    one.add_argument("--only", nargs="+", metavar="STAGE", help="keep only these, such as rl")
    command("pages", _pages, "write README's findings, docs/findings.md and docs/papers.md")
    return parser


def _list(args, settings) -> None:
    from drlib.experiments.findings import claims
    from drlib.experiments.plan import PLANS, load_sweep

    for path in sorted(PLANS.glob("*.yaml")):
        plan = load_sweep(path.stem)
        print(f"{plan.name:14} {len(plan.arms)} arms  {plan.about}")
    for claim in claims().values():
        print(f"{claim.name:14} 2 arms  {claim.claim}")
    print(f"{STRATEGIES:14} agents  agents of the same policies on the same questions")


def _run(args, settings) -> int:
    from drlib.experiments import findings, plan, runner
    from drlib.experiments.records import EXPERIMENTS
    from drlib.experiments.verdicts import command_of

    out, runs = args.out or EXPERIMENTS, args.runs.resolve()
    profile, seeds = args.profile or "laptop", args.seeds or [0, 1, 2]
    if args.name == STRATEGIES:
        from drlib.experiments.strategies import measure

        for path in measure(profile, seeds, runs):
            print(path)
        return 0
    if args.name in findings.claims():
        print(findings.measure(args.name, profile, seeds, runs, out))
        return 0
    sweep = plan.load_sweep(args.name, args.profile, args.seeds)
    built = runner.built_here(sweep, runs)
    if args.ray is not None:
        from drlib.experiments.ray_runner import built_on_ray

        built = built_on_ray(sweep, runs, args.ray or None)
    command = command_of(f"run {args.name}", sweep.profile, sweep.seeds)
    failed = runner.measure(sweep, runs, out, command, built)
    print(out / f"{sweep.name}.parquet")
    return 1 if failed else 0


def _show(args, settings) -> None:
    from drlib.experiments import plan, runner, tables
    from drlib.experiments.records import EXPERIMENTS, ExperimentRecords

    sweep = plan.load_sweep(args.name)
    path = (args.out or EXPERIMENTS) / f"{sweep.name}.parquet"
    if path.exists():
        print(tables.table(tables.summary(sweep, ExperimentRecords.load(path))))
    print(runner.listing(sweep, args.runs.resolve()))


def _reference(args, settings) -> None:
    from drlib.experiments.reference_run import reference

    changes = parse_overrides(settings)
    if (changes or args.only) and args.out.resolve() in (TOUR, AGAIN):
        raise ValueError("settings and --only need an --out other than the committed runs")
    config = Config.load(args.profile, **changes)
    print(reference(config, args.seeds, args.runs, args.out, args.only))


def _pages(args, settings) -> None:
    from drlib.experiments import papers
    from drlib.experiments.figures import drawn, effects_figure
    from drlib.experiments.findings_page import (
        EFFECTS,
        FINDINGS_PAGE,
        findings_page,
        readme_findings,
        reference_sweeps,
    )
    from drlib.experiments.reference_run import reference_blocks, with_block

    readme = ROOT / "README.md"
    text = with_block(readme.read_text(encoding="utf-8"), readme_findings(), "findings")
    print(write_atomic(readme, text))
    print(write_atomic(EFFECTS, drawn(effects_figure(reference_sweeps()))))
    print(write_atomic(FINDINGS_PAGE, findings_page(reference_blocks())))
    print(write_atomic(papers.PAPERS_PAGE, papers.papers_page()))
