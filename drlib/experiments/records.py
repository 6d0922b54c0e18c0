"""The results of one experiment as one Parquet file.

Rows are outcomes of held-out questions (one per arm, seed, stage and question), training steps and
sums without outcomes (the teacher's). The schema metadata holds what was run: command, stage,
profile, settings of the arms, seeds, costs and the commits of recipe and evaluation.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from drlib.config import ROOT, Config
from drlib.evaluation.evaluate import Outcome, rows_of
from drlib.evaluation.results import Results, gather
from drlib.files import write_atomic, write_json_lines
from drlib.training import stages
from drlib.training.run_folder import read_metrics

EXPERIMENTS = ROOT / "figures" / "reference" / "experiments"
THIN = 10  # supervised curves keep every tenth step
COUNTS = ("calls", "errors", "greedy_calls", "greedy_errors", "no_answer")
HEAD = b"drlib"  # key of the schema metadata
SCHEMA = pa.schema(
    [
        ("arm", pa.string()),
        ("seed", pa.int32()),
        ("record", pa.string()),  # outcome, step or sum
        ("stage", pa.string()),
        ("step", pa.int32()),
        ("question", pa.string()),
        ("kind", pa.string()),
        ("hops", pa.int32()),
        ("greedy", pa.bool_()),
        ("samples", pa.list_(pa.bool_())),
        *((name, pa.int32()) for name in COUNTS),
        ("values", pa.string()),  # JSON: the metrics of a step, or a row of sums
    ]
)


@dataclass
class ExperimentRecords:
    """Everything that is kept of an experiment.

    Attributes:
        head: what was run, and the costs of the runs.
        results: outcomes by arm.
        curves: rows of metrics.jsonl by arm and seed.
    """

    head: dict
    results: dict[str, Results] = field(default_factory=dict)
    curves: dict[str, dict[int, list[dict]]] = field(default_factory=dict)

    def add_arm(
        self,
        arm: str,
        configs: Sequence[Config],
        stage: str,
        runs: Path,
        command: str,
        *,
        demonstrator: bool = True,
    ) -> None:
        """Add the finished evaluations of an arm, one config per seed.

        demonstrator: add the teacher's own answers (its stage must be complete).
        """
        self.results[arm] = gather(configs, runs, [stage], command, demonstrator=demonstrator)
        curves = {config.seed: read_curve(stage, config, runs) for config in configs}
        self.curves[arm] = {seed: rows for seed, rows in curves.items() if rows}

    def save(self, path: Path) -> Path:
        """Write the file atomically and return its path."""
        rows = []
        for arm, results in self.results.items():
            rows += [row | {"arm": arm} for row in _result_rows(results)]
        for arm, curves in self.curves.items():
            for seed, steps in curves.items():
                rows += [
                    {
                        "arm": arm,
                        "seed": seed,
                        "record": "step",
                        "step": step["step"],
                        "values": json.dumps(step),
                    }
                    for step in steps
                ]
        about = {
            arm: {"command": one.command, "profile": one.profile, "made": one.made}
            for arm, one in self.results.items()
        }
        head = json.dumps(self.head | {"results": about})
        table = pa.Table.from_pylist(rows, SCHEMA.with_metadata({HEAD: head}))
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_atomic(path, lambda p: pq.write_table(table, p, compression="zstd"))

    @staticmethod
    def load(path: Path) -> "ExperimentRecords":
        """Read the file of an experiment.

        Raises:
            ValueError: it does not exist or cannot be read.
        """
        try:
            table = pq.read_table(path)
            head = json.loads(table.schema.metadata[HEAD])
            about = head.pop("results")
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no readable results in {path}: run the experiment first") from error
        outcomes: dict = defaultdict(lambda: defaultdict(list))
        sums: dict = defaultdict(list)
        curves: dict = defaultdict(lambda: defaultdict(list))
        for row in table.to_pylist():
            arm = row["arm"]
            if row["record"] == "step":
                curves[arm][row["seed"]].append(json.loads(row["values"]))
            elif row["record"] == "sum":
                sums[arm].append(json.loads(row["values"]))
            else:
                counts = [row[name] for name in COUNTS]
                one = Outcome(
                    row["question"],
                    row["kind"],
                    row["hops"],
                    row["greedy"],
                    row["samples"],
                    *counts,
                )
                outcomes[arm][row["stage"], row["seed"]].append(one)
        results = {
            arm: Results(
                one["command"],
                one["profile"],
                _sums(sums[arm], outcomes[arm]),
                dict(outcomes[arm]),
                one["made"],
            )
            for arm, one in about.items()
        }
        return ExperimentRecords(head, results, {arm: dict(some) for arm, some in curves.items()})


def _result_rows(results: Results) -> list[dict]:
    """Return the rows of an arm's outcomes, and of sums that no outcome explains."""
    rows = [
        {
            "seed": seed,
            "record": "outcome",
            "stage": stage,
            "question": o.task,
            "kind": o.kind,
            "hops": o.hops,
            "greedy": bool(o.greedy),
            "samples": [bool(sample) for sample in o.samples],
            **{name: getattr(o, name) for name in COUNTS},
        }
        for (stage, seed), outcomes in results.outcomes.items()
        for o in outcomes
    ]
    evaluated = {stage for stage, _ in results.outcomes}
    rows += [
        {"seed": row["seed"], "record": "sum", "stage": row["stage"], "values": json.dumps(row)}
        for row in results.rows
        if row["stage"] not in evaluated
    ]
    return rows


def _sums(others: Sequence[dict], outcomes: Mapping) -> list[dict]:
    """Return the rows of sums, by seed, that `gather` makes."""
    rows = []
    for seed in dict.fromkeys([*(seed for _, seed in outcomes), *(row["seed"] for row in others)]):
        rows += [row for row in others if row["seed"] == seed]
        for (stage, of_seed), some in outcomes.items():
            rows += rows_of(some, stage, seed) if of_seed == seed else []
    return rows


def read_curve(stage: str, config: Config, runs: Path) -> list[dict]:
    """Return the rounded metrics of a stage's steps, thinned for supervised stages."""
    steps = stages.STAGES[stage].steps
    if not steps or not config.get(steps):
        return []
    rows = read_metrics(stages.folder(stage, config, runs))
    if not stage.startswith(("rl", "distill")):
        rows = [row for row in rows if row["step"] % THIN == 0 or row["step"] == 1]
    return [
        {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}
        for row in rows
    ]


def copy_curve(stage: str, config: Config, runs: Path, out: Path) -> None:
    """Write the metrics of a stage's steps to `seedN_STAGE.jsonl`, if it took steps."""
    rows = read_curve(stage, config, runs)
    if rows:
        write_json_lines(out / f"seed{config.seed}_{stage}.jsonl", rows)
