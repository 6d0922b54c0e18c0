"""The tour's numbers: gathered from finished evaluations and kept in two small files.

`results.json` holds sums by stage, kind, look-ups, decoding and seed: what tables are made from.
`outcomes.json` holds every question's outcomes as digits: what intervals are made from, because
eight samples of one question are not eight questions. All stages and seeds are asked the same
held-out questions, so differences are paired by question.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drlib.config import Config
from drlib.evals.evaluate import Outcome, read_outcomes, rows_of
from drlib.evals.metrics import Interval, bootstrap_difference, bootstrap_mean, wilson_interval
from drlib.files import write_whole
from drlib.training import stages
from drlib.training.data import read_episodes
from drlib.training.run import git, read_manifest

EVALUATED = ("untrained", "sft", "sft_continued", "rl", "closed_book", "rl_random_reward")
CONTROLS = ("sft_continued", "rl_random_reward")
TITLES = {
    "untrained": "untrained",
    "demonstrator": "the demonstrator",
    "cpt": "after pre-training",
    "sft": "after SFT",
    "sft_continued": "SFT continued (RL's compute)",
    "rl": "after RL",
    "rl_random_reward": "RL, random reward",
    "closed_book": "after RL, closed book",
}


def gather(configs: Iterable[Config], runs: Path, names: Iterable[str], command: str) -> Results:
    """Of the evaluations of `names`, one config a seed; RunFolderError names an unfinished one."""
    configs, names = list(configs), list(names)
    rows, outcomes = [], {}
    for config in configs:
        right = defaultdict(list)  # how often the teacher itself was, before any filter
        for e in read_episodes(stages.folder("demonstrations", config, runs), "none"):
            right[e["kind"], e["hops"]].append(e["correct"])
        rows += [
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
        for name in names:
            path = stages.input_folder("a results table", f"evaluate_{name}", config, runs)
            outcomes[name, config.seed] = read_outcomes(path)
            rows += rows_of(outcomes[name, config.seed], name, config.seed)
    return Results(command, configs[0].profile, rows, outcomes, origin(configs, runs, names))


def origin(configs: Sequence[Config], runs: Path, names: Iterable[str]) -> dict:
    """The commits that made the policies and that asked the questions, and the seed of these.

    `seed_written_down` is the commit in which the evaluation seed became the default: an honest
    one is no later than the recipe's (empty where the seed was given by hand).
    """
    policies, questions = set(), set()
    for config, name in itertools.product(configs, names):
        policy = stages.folder("rl" if name == "closed_book" else name, config, runs)
        policies.add(read_manifest(policy)["code"])
        questions.add(read_manifest(stages.folder(f"evaluate_{name}", config, runs))["code"])
    seed = configs[0].eval_seed
    first = git("log", "--reverse", "--format=%H", f"-Seval_seed: int = {seed} ").splitlines()[:1]
    return {
        "recipe": sorted(policies),
        "evaluation": sorted(questions),
        "evaluation_seed": seed,
        "seed_written_down": "".join(first),
    }


@dataclass(frozen=True)
class Results:
    """Rows of sums, and `outcomes[stage, seed]` (a list of Outcome), of some stages and seeds.

    made: which commits made them (`origin`).
    """

    command: str
    profile: str
    rows: list[dict]
    outcomes: dict[tuple[str, int], list[Outcome]]
    made: dict = field(default_factory=dict)

    @property
    def stages(self) -> list[str]:
        return [s for s in TITLES if any(r["stage"] == s for r in self.rows)]

    @property
    def seeds(self) -> list[int]:
        return sorted({r["seed"] for r in self.rows})

    def save(self, folder: Path) -> None:
        head = {"command": self.command, "profile": self.profile, "made": self.made}
        lines = ",\n".join(json.dumps(r) for r in self.rows)
        text = f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}\n'
        write_whole(folder / "results.json", text)
        write_whole(folder / "outcomes.json", _packed(self.outcomes))

    @staticmethod
    def load(folder: Path) -> Results:
        """What `save` wrote; ValueError when it is not there or cannot be read."""
        try:
            head = json.loads((folder / "results.json").read_text())
            outcomes = _unpacked(json.loads((folder / "outcomes.json").read_text()))
        except (OSError, ValueError, KeyError) as fault:
            raise ValueError(f"no readable results in {folder}: {fault}") from fault
        made = head.get("made", {})
        return Results(head["command"], head["profile"], head["rows"], outcomes, made)

    def count(self, stage: str, kind: str, decoding: str, hops: int | None = None):
        """(correct, n) over all seeds; (0, 0) where the stage was not asked."""
        asked = stage, kind, decoding
        chosen = [
            r
            for r in self.rows
            if (r["stage"], r["kind"], r["decoding"]) == asked and hops in (None, r["hops"])
        ]
        return sum(r["correct"] for r in chosen), sum(r["n"] for r in chosen)

    def values(self, stage: str, kind: str | None, decoding: str, hops: int | None = None):
        """Each question's scores (all seeds, all samples); `kind` None: of both kinds."""
        table = defaultdict(list)
        for (name, _), outcomes in self.outcomes.items():
            for o in outcomes if name == stage else ():
                if kind in (None, o.kind) and hops in (None, o.hops):
                    scores = {
                        "greedy": [o.greedy],
                        "sample": o.samples,
                        f"pass@{len(o.samples)}": [any(o.samples)],
                    }
                    table[o.task] += map(float, scores.get(decoding, ()))
        return table

    def accuracy(self, stage: str, kind: str, decoding: str, hops: int | None = None) -> Interval:
        """(share right, low, high), 95%, clustered by question; seeds are pooled.

        Where all questions agree a bootstrap has no width: there it is Wilson's over questions.
        """
        by_question = self.values(stage, kind, decoding, hops)
        if not by_question:  # the demonstrator: sums only
            correct, n = self.count(stage, kind, decoding, hops)
            if not n:
                raise ValueError(f"{stage!r} was not asked {kind} questions ({decoding})")
            return correct / n, *wilson_interval(correct, n)
        mean, low, high = bootstrap_mean(by_question, seed=0)
        if low == high and mean in (0.0, 1.0):
            low, high = wilson_interval(round(mean * len(by_question)), len(by_question))
        return mean, low, high

    def gain(self, stage: str, over: str, kind: str | None, decoding: str, hops=None) -> Interval:
        """Accuracy of `stage` less that of `over`, paired by question, with its interval."""
        a, b = (self.values(s, kind, decoding, hops) for s in (stage, over))
        return bootstrap_difference(a, b, seed=0)


COUNTS = ("calls", "errors", "greedy_calls", "greedy_errors", "no_answer")


def _packed(outcomes: dict) -> str:
    """Questions once; a stage and seed as strings of digits and short lists."""
    first = next(iter(outcomes.values()))
    data = {"questions": [[o.task, o.kind, o.hops] for o in first], "outcomes": []}
    for (stage, seed), rows in outcomes.items():
        if [o.task for o in rows] != [o.task for o in first]:
            raise ValueError(f"stage {stage!r} of seed {seed} was asked other questions")
        data["outcomes"].append(
            {
                "stage": stage,
                "seed": seed,
                "greedy": "".join(str(int(o.greedy)) for o in rows),
                "samples": ["".join(str(int(s)) for s in o.samples) for o in rows],
                **{name: [getattr(o, name) for o in rows] for name in COUNTS},
            }
        )
    return json.dumps(data, separators=(",", ":")) + "\n"


def _unpacked(data: dict) -> dict:
    outcomes = {}
    for block in data["outcomes"]:
        columns = data["questions"], *(block[name] for name in ("greedy", "samples", *COUNTS))
        outcomes[block["stage"], block["seed"]] = [
            Outcome(*question, greedy == "1", [c == "1" for c in samples], *counts)
            for question, greedy, samples, *counts in zip(*columns, strict=True)
        ]
    return outcomes
