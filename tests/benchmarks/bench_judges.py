"""Answers per second of the judges without a model, on the labelled cases, on one core.

Run: OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/bench_judges.py
"""

import time

import yaml

from drlib.config import ROOT
from drlib.rewards.judges import JUDGES, judge_by_rules
from drlib.rewards.math_judge import looks_like_math

ROUNDS = 5


def main() -> None:
    cases = yaml.safe_load((ROOT / "tests" / "judge_cases.yaml").read_text(encoding="utf-8"))
    answers = []
    for row in (row for rows in cases.values() for row in rows):
        golds = row["gold"] if isinstance(row["gold"], list) else [row["gold"]]
        answers += [(text, golds) for text in row["right"] + row["wrong"]]
    formulas = [one for one in answers if looks_like_math(one[0]) and looks_like_math(one[1][0])]
    judges = {
        "rules, without formulas": (judge_by_rules(math=False), answers),
        **{name: (JUDGES[name](), answers) for name in ("exact", "squad", "gaia")},
        "math, formulas only": (JUDGES["math"](), formulas),
    }
    best = dict.fromkeys(judges, 0.0)
    for _ in range(ROUNDS):  # interleaved
        for name, (judge, some) in judges.items():
            started = time.process_time() if "math," not in name else time.perf_counter()
            for text, golds in some:
                judge("q", text, golds)
            now = time.process_time() if "math," not in name else time.perf_counter()
            best[name] = max(best[name], len(some) / (now - started))
    for name, rate in best.items():
        print(f"{name}: {rate:,.0f} answers/s ({len(judges[name][1])} answers)")


if __name__ == "__main__":
    main()
