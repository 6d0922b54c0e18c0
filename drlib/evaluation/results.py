"""Results of evaluations: sums for tables and outcomes for intervals.

`results.json` holds sums by stage, kind, hops, decoding and seed. `outcomes.json` holds each
question's outcomes as digits. Intervals need outcomes, because eight samples of one question are
not independent, nor are three seeds' answers to one question. All stages and seeds answer the same
held-out questions, so differences are paired by seed and question (`drlib.intervals`).
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from drlib.config import Config
from drlib.evaluation.evaluate import Outcome, read_outcomes, rows_of
from drlib.files import write_atomic
from drlib.intervals import Interval, difference_interval, share_interval, wilson_interval
from drlib.training import stages
from drlib.training.data import read_episodes
from drlib.training.run_folder import git, read_manifest
from drlib.validation import require

EVALUATED = ("untrained", "sft", "sft_continued", "rl", "closed_book", "rl_random_reward")
CONTROLS = ("sft_continued", "rl_random_reward")

OutcomeTable = dict[tuple[str, int], list[Outcome]]  # (stage, seed) -> outcomes by question


def titles() -> dict[str, str]:
    """Return the row titles of tables in order: the registry's, the teacher's and a twin's.

    Demonstrations are rows of their teacher. The policy after RL is evaluated again with tools that
    find nothing ("closed_book").
    """
    named = {name: stage.title for name, stage in stages.STAGES.items() if stage.title}
    known = {"demonstrations": "demonstrator", "evaluate_closed_book": "closed_book"}
    return {known.get(name, name): title for name, title in named.items()}


def gather(
    configs: Iterable[Config],
    runs: Path,
    names: Iterable[str],
    command: str,
    *,
    demonstrator: bool = True,
) -> Results:
    """Collect the evaluations of `names`, one config per seed; RunFolderError if unfinished.

    demonstrator: add the teacher's own answers (its stage must be complete).
    """
    configs, names = list(configs), list(names)
    rows, outcomes = [], {}
    for config in configs:
        rows += _demonstrator_rows(config, runs) if demonstrator else []
        for name in names:
            path = stages.require_input("a results table", f"evaluate_{name}", config, runs)
            outcomes[name, config.seed] = read_outcomes(path)
            rows += rows_of(outcomes[name, config.seed], name, config.seed)
    return Results(command, configs[0].profile, rows, outcomes, origin(configs, runs, names))


def _demonstrator_rows(config: Config, runs: Path) -> list[dict]:
    """Return the teacher's accuracy before any filter."""
    right = defaultdict(list)
    for e in read_episodes(stages.folder("demonstrations", config, runs), "none"):
        right[e["kind"], e["hops"]].append(e["correct"])
    return [
        {
            "stage": "demonstrator",
            "kind": kind,
            "hops": hops,
            "decoding": "sample",
            "seed": config.seed,
            "n": len(some),
            "correct": sum(some),
        }
        for (kind, hops), some in sorted(right.items())
    ]


def origin(configs: Sequence[Config], runs: Path, names: Iterable[str]) -> dict:
    """Return the world, the evaluation seed, and the commits of the policies and of the evaluation.

    `seed_written_down` is the commit in which the evaluation seed became the default. A held-out
    seed is fixed no later than the recipe's commit. It is "" if the seed was given by hand or git
    is missing.
    """
    policies, questions = set(), set()
    for config, name in itertools.product(configs, names):
        policy = stages.folder("rl" if name == "closed_book" else name, config, runs)
        policies.add(read_manifest(policy)["code"])
        questions.add(read_manifest(stages.folder(f"evaluate_{name}", config, runs))["code"])
    seed = configs[0].evaluation.seed
    written = ""
    if seed == Config().evaluation.seed:
        written = git("log", "--reverse", "--format=%H", f"-S{seed}", "--", "drlib/config.py")
    world = read_manifest(stages.folder("world", configs[0], runs))["metrics"]
    return {
        "world": {"name": configs[0].world.name, **world},
        "recipe": sorted(policies),
        "evaluation": sorted(questions),
        "evaluation_seed": seed,
        "seed_written_down": written.partition("\n")[0],
    }


@dataclass(frozen=True)
class Results:
    """Rows of sums, and `outcomes[stage, seed]` (a list of Outcome), of some stages and seeds.

    made: commits of recipe and evaluation (`origin`).
    """

    command: str
    profile: str
    rows: list[dict]
    outcomes: OutcomeTable
    made: dict = field(default_factory=dict)

    @property
    def stages(self) -> list[str]:
        return [s for s in titles() if any(r["stage"] == s for r in self.rows)]

    @property
    def seeds(self) -> list[int]:
        return sorted({r["seed"] for r in self.rows})

    def only(self, seeds: Iterable[int]) -> Results:
        """Return the results of some seeds, for comparison with a run that has only these."""
        seeds = {*seeds}
        rows = [row for row in self.rows if row["seed"] in seeds]
        outcomes = {at: some for at, some in self.outcomes.items() if at[1] in seeds}
        return replace(self, rows=rows, outcomes=outcomes)

    def save(self, folder: Path) -> None:
        head = {"command": self.command, "profile": self.profile, "made": self.made}
        lines = ",\n".join(json.dumps(r) for r in self.rows)
        text = f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}\n'
        write_atomic(folder / "results.json", text)
        write_atomic(folder / "outcomes.json", _packed(self.outcomes))

    @staticmethod
    def load(folder: Path) -> Results:
        """Load the files of `save`; ValueError if they are missing or unreadable."""
        try:
            head = json.loads((folder / "results.json").read_text())
            outcomes = _unpacked(json.loads((folder / "outcomes.json").read_text()))
        except (OSError, ValueError, KeyError) as fault:
            raise ValueError(f"no readable results in {folder}: {fault}") from fault
        made = head.get("made", {})
        return Results(head["command"], head["profile"], head["rows"], outcomes, made)

    def count(self, stage: str, kind: str, decoding: str, hops: int | None = None):
        """Return (correct, n) over all seeds; (0, 0) for a stage without evaluation."""
        asked = stage, kind, decoding
        chosen = [
            r
            for r in self.rows
            if (r["stage"], r["kind"], r["decoding"]) == asked and hops in (None, r["hops"])
        ]
        return sum(r["correct"] for r in chosen), sum(r["n"] for r in chosen)

    def by_seed(self, stage: str) -> dict[int, list[Outcome]]:
        """Return the outcomes of a stage by seed, in order of seeds; ValueError without any."""
        found = {
            seed: some for (name, seed), some in sorted(self.outcomes.items()) if name == stage
        }
        require(bool(found), f"stage {stage!r} was not evaluated: there are {self.stages}")
        return found

    def scores(
        self, stage: str, kind: str | None, decoding: str, hops: int | None = None
    ) -> dict[int, dict[str, float]]:
        """Return each question's mean score by seed; `kind` None: questions of both kinds."""
        found = {}
        for seed, outcomes in self.by_seed(stage).items():
            chosen = [o for o in outcomes if kind in (None, o.kind) and hops in (None, o.hops)]
            # the two environments of evaluation.shift ask questions of the same ids
            found[seed] = {
                o.task if kind else f"{o.task} {o.kind}": _score(o, decoding) for o in chosen
            }
        asked = f"{stage!r} was not asked {kind or 'any'} questions ({decoding})"
        require(all(found.values()), asked)
        return found

    def calls(self, stage: str) -> tuple[np.ndarray, np.ndarray]:
        """Return failed and all tool calls of the sampled rollouts, [S seeds, Q questions]."""
        by_seed = self.by_seed(stage)
        failed, made = (
            {
                seed: {f"{o.task} {o.kind}": getattr(o, name) for o in some}
                for seed, some in by_seed.items()
            }
            for name in ("errors", "calls")
        )
        return _matrix(failed), _matrix(made)

    def accuracy(self, stage: str, kind: str, decoding: str, hops: int | None = None) -> Interval:
        """Return (accuracy, low, high), 95%, over seeds and questions, or over questions for one
        seed.

        The teacher is not trained and has sums only: its interval is Wilson's over answers.
        ValueError: the stage was not evaluated.
        """
        if any(name == stage for name, _ in self.outcomes):
            return share_interval(_matrix(self.scores(stage, kind, decoding, hops)))
        correct, n = self.count(stage, kind, decoding, hops)
        require(n > 0, f"{stage!r} was not asked {kind} questions ({decoding})")
        return correct / n, *wilson_interval(correct, n)

    def gain(
        self,
        stage: str,
        over: str,
        kind: str | None,
        decoding: str,
        hops: int | None = None,
        *,
        of: Results | None = None,
    ) -> Interval:
        """Return the accuracy of `stage` minus that of `over`, paired by seed and question, with
        its interval; arguments as `differences`.
        """
        return difference_interval(self.differences(stage, over, kind, decoding, hops, of=of))

    def differences(
        self,
        stage: str,
        over: str,
        kind: str | None,
        decoding: str,
        hops: int | None = None,
        *,
        of: Results | None = None,
    ) -> np.ndarray:
        """Return the scores of `stage` minus those of `over`, [S seeds, Q questions].

        Only seeds with both stages count, in rising order.

        Args:
            of: results that contain `over`, if not these.

        Raises:
            ValueError: no seed has both, or the questions differ.
        """
        ours = self.scores(stage, kind, decoding, hops)
        theirs = (of or self).scores(over, kind, decoding, hops)
        both = sorted(ours.keys() & theirs.keys())
        require(bool(both), f"no seed has both {stage!r} and {over!r}")
        same = ours[both[0]].keys() == theirs[both[0]].keys()
        require(same, f"{stage!r} and {over!r} were asked other questions")
        differences_SQ = _matrix({seed: ours[seed] for seed in both})
        differences_SQ -= _matrix({seed: theirs[seed] for seed in both})
        return differences_SQ


def _score(outcome: Outcome, decoding: str) -> float:
    """Return the score of one question: 0 or 1, or its share of right samples."""
    if decoding == "greedy":
        return float(outcome.greedy)
    if decoding == "sample":
        return sum(outcome.samples) / len(outcome.samples)
    if decoding == f"pass@{len(outcome.samples)}":
        return float(any(outcome.samples))
    known = f"greedy, sample and pass@{len(outcome.samples)}"
    raise ValueError(f"unknown decoding {decoding!r}: there are {known}")


def _matrix(by_seed: Mapping[int, Mapping[str, float]]) -> np.ndarray:
    """Return values [S seeds, Q questions], sorted by question; ValueError if seeds differ in
    questions.
    """
    questions = sorted(next(iter(by_seed.values())))
    for seed, values in by_seed.items():
        require(sorted(values) == questions, f"seed {seed} was asked other questions")
    return np.array([[values[name] for name in questions] for values in by_seed.values()])


COUNTS = ("calls", "errors", "greedy_calls", "greedy_errors", "no_answer")


def _packed(outcomes: OutcomeTable) -> str:
    """Pack outcomes: questions once, each stage and seed as strings of digits and short lists."""
    first = next(iter(outcomes.values()))
    blocks = []
    for (stage, seed), rows in outcomes.items():
        if [o.task for o in rows] != [o.task for o in first]:
            raise ValueError(f"stage {stage!r} of seed {seed} was asked other questions")
        blocks.append(
            {
                "stage": stage,
                "seed": seed,
                "greedy": "".join(str(int(o.greedy)) for o in rows),
                "samples": ["".join(str(int(s)) for s in o.samples) for o in rows],
                **{name: [getattr(o, name) for o in rows] for name in COUNTS},
            }
        )
    data = {"questions": [[o.task, o.kind, o.hops] for o in first], "outcomes": blocks}
    return json.dumps(data, separators=(",", ":")) + "\n"


def _unpacked(data: dict) -> OutcomeTable:
    outcomes = {}
    for block in data["outcomes"]:
        counts = zip(*(block[name] for name in COUNTS), strict=True)
        columns = zip(data["questions"], block["greedy"], block["samples"], counts, strict=True)
        outcomes[block["stage"], block["seed"]] = [
            Outcome(
                task=task,
                kind=kind,
                hops=hops,
                greedy=greedy == "1",
                samples=[c == "1" for c in samples],
                **dict(zip(COUNTS, numbers)),
            )
            for (task, kind, hops), greedy, samples, numbers in columns
        ]
    return outcomes
