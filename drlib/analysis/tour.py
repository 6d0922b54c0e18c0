"""Results of the tour pipeline: tables, accuracies and rollouts (`tour_plots` draws them).

`TourRun` has the results, learning curves and kept trajectories of one or more seeds. It is loaded
from the committed reference run or from the stages of a local run. Intervals are 95% over seeds
and questions (`drlib.intervals`), or over questions for a single seed.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from drlib.analysis.rendering import is_right
from drlib.config import Config
from drlib.evaluation.results import CONTROLS, EVALUATED, Results, gather, titles
from drlib.files import read_json_lines
from drlib.intervals import Interval, rate_interval, relative_rate_interval
from drlib.training import stages
from drlib.training.run_folder import METRICS, RunFolder, read_metrics
from drlib.trajectory import Trajectory, load_trajectories
from drlib.validation import require

CURVES = ("cpt", "sft", "sft_continued", "rl", "rl_random_reward")


@dataclass(frozen=True)
class TourRun:
    """One run of the tour pipeline.

    Attributes:
        results: evaluation results.
        curves: stage -> seed -> rows of metrics.jsonl.
        kept: (stage, decoding) -> file of trajectories.

    """

    results: Results
    curves: dict[str, dict[int, list[dict]]]
    kept: dict[tuple[str, str], Path] = field(default_factory=dict)

    @staticmethod
    def load(folder: Path) -> "TourRun":
        """Load a reference run; raise ValueError if `folder` has no readable one."""
        results = Results.load(folder)
        curves: dict[str, dict[int, list[dict]]] = {}
        for path in sorted(folder.glob("seed*_*.jsonl")):
            seed, _, stage = path.stem.removeprefix("seed").partition("_")
            curves.setdefault(stage, {})[int(seed)] = read_json_lines(path)
        kept = {path.stem.rpartition("_")[::2]: path for path in folder.glob("*_*.parquet")}
        return TourRun(results, curves, kept)

    @staticmethod
    def local(config: Config, runs: Path) -> "TourRun":
        """Load the complete stages of a local run.

        Raises:
            RunFolderError: a main stage is incomplete.

        """
        at = {name: stages.folder(name, config, runs) for name in stages.STAGES}
        done = {name for name, path in at.items() if RunFolder.is_complete(path)}
        names = [n for n in EVALUATED if n not in CONTROLS or f"evaluate_{n}" in done]
        command = f"drlib run 00 -p profile {config.profile} -p seed {config.seed}"
        results = gather([config], runs, names, command)
        # a stage without steps has no curve
        trained = [n for n in CURVES if n in done and (at[n] / METRICS).exists()]
        curves = {name: {config.seed: read_metrics(at[name])} for name in trained}
        kept = {
            (name, decoding): at[f"evaluate_{name}"] / f"{decoding}.parquet"
            for name in ("sft", "rl")
            for decoding in ("greedy", "sampled")
        }
        return TourRun(results, curves, kept)

    def only(self, seeds: Collection[int]) -> "TourRun":
        """Return the run restricted to some seeds; kept trajectories are not restricted."""
        curves = {
            stage: {seed: rows for seed, rows in some.items() if seed in seeds}
            for stage, some in self.curves.items()
        }
        return TourRun(self.results.only(seeds), curves, self.kept)

    def trajectories(self, stage: str, decoding: str = "greedy") -> list[Trajectory]:
        """Load the kept rollouts on held-out questions.

        Raises:
            ValueError: no such rollouts (with the available ones).

        """
        is_kept = (stage, decoding) in self.kept
        require(is_kept, f"no trajectories {stage}/{decoding}: available are {sorted(self.kept)}")
        return load_trajectories(self.kept[stage, decoding])


def find_pass_decoding(results: Results) -> str:
    """Return the name of the decoding "pass@k" in the results (k samples per question)."""
    names = sorted({r["decoding"] for r in results.rows if r["decoding"].startswith("pass@")})
    require(len(names) == 1, f"results must have exactly one pass@k, got {names}")
    return names[0]


accuracy = Results.accuracy  # (results, stage, kind, decoding, hops=None) -> Interval


def error_rate(results: Results, stage: str) -> Interval:
    """Compute the share of failed tool calls in sampled rollouts, with its interval.

    Raises:
        ValueError: the stage was not evaluated, or has no calls.

    """
    failed_SQ, calls_SQ = results.calls(stage)
    return rate_interval(failed_SQ, calls_SQ)


def error_ratio(results: Results, stage: str, over: str) -> Interval:
    """Compute error_rate(stage) / error_rate(over), paired by seed and question.

    Raises:
        ValueError: a stage was not evaluated or has no calls, seeds differ, or no call of `over`
            failed.

    """
    same = results.by_seed(stage).keys() == results.by_seed(over).keys()
    require(same, f"{stage!r} and {over!r} were evaluated with different seeds")
    return relative_rate_interval(*results.calls(stage), *results.calls(over))


def format_percent(interval: Interval, sign: str = "") -> str:
    """Format an interval in percent, such as 85.1 [83.0, 87.0]; sign="+" for differences."""
    mean, low, high = (100 * v for v in interval)
    return f"{mean:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def format_seeds(n: int) -> str:
    """Format a number of seeds, such as "3 seeds"."""
    return f"{n} seed{'s' * (n > 1)}"


def describe_sampling(n: int) -> str:
    """Describe the sampling units of an interval over n seeds."""
    return f"{format_seeds(n)} and questions" if n > 1 else "questions, one seed"


SHORT_TITLES = {
    "closed_book": "RL, closed book",
    "sft_continued": "SFT continued",
    "cpt": "pre-trained",
    "demonstrator": "demonstrator",
    "rl_random_reward": "random reward",
}
# blocks of the table: title, kind, number of hops (None: all)
TABLE_BLOCKS = (
    ("python questions", "python", None),
    ("search questions", "search", None),
    ("search questions of three hops (never demonstrated)", "search", 3),
)
# comparisons with a control: kind, decoding, hops (None: all)
COMPARISONS = (
    ("python", "sample", None),
    ("search", "sample", None),
    ("python", "greedy", None),
    ("search", "greedy", None),
    ("search", "greedy", 3),
    ("search", "pass@8", None),
)


def select_before_and_after(
    run: TourRun, hops: int = 3, decoding: str = "greedy"
) -> tuple[Trajectory, Trajectory]:
    """Select rollouts of one question after SFT and after RL.

    Takes the first question with `hops` hops that is wrong after SFT and right after RL; else the
    first with that many hops; else the first.

    Raises:
        ValueError: no common questions, or no kept rollouts.

    """
    before = {t.task_id: t for t in run.trajectories("sft", decoding)}
    later = run.trajectories("rl", decoding)
    both = [(before[t.task_id], t) for t in later if t.task_id in before]
    require(bool(both), "the rollouts after SFT and after RL have no common questions")
    wanted = [p for p in both if p[1].task_id.startswith(f"search-h{hops}-")]
    repaired = [p for p in wanted if is_right(p[1]) and not is_right(p[0])]
    return (repaired or wanted or both)[0]


def format_table(results: Results) -> str:
    """Format the results as text of at most 80 columns: accuracies, intervals and n."""
    best = find_pass_decoding(results)
    decodings = ("sample", "greedy", best)
    k = best.removeprefix("pass@")
    lines = [
        f"held-out answers, % right [95% interval over {describe_sampling(len(results.seeds))}];",
        f"n: greedy answers, same questions for every seed; {k} n samples",
    ]
    for title, kind, hops in TABLE_BLOCKS:
        lines += ["", title, f"{'':<17}{'sampled':<20}{'greedy':<20}{best:<20}n"]
        for stage in results.stages:
            cells = [format_cell(results, stage, kind, d, hops) for d in decodings]
            if any(cells):
                n = results.count(stage, kind, "greedy", hops)[1]
                n = n or results.count(stage, kind, "sample", hops)[1]
                name = SHORT_TITLES.get(stage, titles()[stage])
                lines.append(f"{name:<17}" + "".join(f"{c:<20}" for c in cells) + f"{n}")
    lines += [
        "",
        "The demonstrator answers its own easy training questions and is not trained;",
        "its interval is over answers only.",
    ]
    return "\n".join(lines)


def format_cell(results: Results, stage: str, kind: str, decoding: str, hops: int | None) -> str:
    """Format a table cell such as 85.1 [83.0, 87.0]; "" if the stage was not evaluated."""
    if not results.count(stage, kind, decoding, hops)[1]:
        return ""
    return format_percent(results.accuracy(stage, kind, decoding, hops))
