"""Simulation of sequential designs: known effects in, verdicts out; a script, not a test.

Differences between seeds are normal with a known mean and standard deviation; a shift that all
seeds share stands for the questions, with its standard error known. Each repetition is stopped at
the first look with a verdict. The looks 8, 14, 20 are compared with 20 seeds at once, on the same
random numbers.

Run: PYTHONPATH=. python tests/benchmarks/make_designs.py [--repeats N] [--out FOLDER]
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from drlib.analysis.figure_style import CONTROL, STYLE, png_bytes
from drlib.config import ROOT
from drlib.experiments.designs import Design
from drlib.files import write_atomic
from drlib.intervals import t_quantile

OUT = ROOT / "figures" / "reference" / "findings_design"
COMMAND = "PYTHONPATH=. python tests/benchmarks/make_designs.py"
DESIGNS = {"8, 14, 20 seeds": Design(looks=(8, 14, 20)), "20 seeds at once": Design(looks=(20,))}
EFFECTS = (0.0, 0.025, 0.05, 0.075, 0.1)
DEVIATIONS = (0.04, 0.07, 0.1)
QUESTIONS = (0.0, 0.01)  # standard error of the questions' part; 0 to 0.024 in the pilots
N_QUESTIONS = 200
NO_EFFECT, OPEN = 0, 2  # verdicts; 1 and -1: higher, lower


@dataclass(frozen=True)
class Case:
    """A true effect, the standard deviation between seeds, the questions' standard error."""

    effect: float
    deviation: float
    questions_error: float


@dataclass(frozen=True)
class Verdicts:
    """Verdict, seeds and reported interval of every repetition, [R]."""

    verdict_R: np.ndarray
    seeds_R: np.ndarray
    low_R: np.ndarray
    high_R: np.ndarray


def simulate(case: Case, looks, repeats: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return differences of seeds [R, S] and the shift of the questions [R]."""
    rng = np.random.default_rng(seed)
    values_RS = case.effect + case.deviation * rng.standard_normal((repeats, looks[-1]))
    return values_RS, case.questions_error * rng.standard_normal(repeats)


def judge_all(values_RS, shift_R, case: Case, design: Design) -> Verdicts:
    """Return the verdicts by the rules of `Statement.judge`, for all repetitions at once."""
    repeats = len(values_RS)
    verdict_R, seeds_R = np.full(repeats, OPEN), np.zeros(repeats, int)
    low_R, high_R = np.zeros(repeats), np.zeros(repeats)
    going_R = np.ones(repeats, bool)
    for look in design.looks:
        mean_R = values_RS[:, :look].mean(1) + shift_R
        error_R = values_RS[:, :look].std(1, ddof=1) / np.sqrt(look)

        def half(test, look=look, error_R=error_R):
            probability = (1 + design.confidence(look, test)) / 2
            questions = t_quantile(N_QUESTIONS - 1, probability) * case.questions_error
            return np.hypot(t_quantile(look - 1, probability) * error_R, questions)

        half_R = half("difference")
        equal_R = np.abs(mean_R) + half("equivalence") <= design.margin
        sign_R = np.sign(mean_R) * (np.abs(mean_R) > half_R)
        now_R = np.where(equal_R, NO_EFFECT, np.where(sign_R != 0, sign_R, OPEN))
        verdict_R[going_R], seeds_R[going_R] = now_R[going_R], look
        low_R[going_R], high_R[going_R] = (mean_R - half_R)[going_R], (mean_R + half_R)[going_R]
        going_R &= now_R == OPEN
    return Verdicts(verdict_R, seeds_R, low_R, high_R)


def row_of(case: Case, name: str, design: Design, repeats: int) -> dict:
    """Return rates of verdicts, coverage and seeds of a case."""
    found = judge_all(*simulate(case, (20,), repeats, seed=0), case, design)
    covered = (found.low_R <= case.effect) & (case.effect <= found.high_R)
    verdicts = {"higher": 1, "lower": -1, "no_effect": NO_EFFECT, "open": OPEN}
    rates = {key: float((found.verdict_R == value).mean()) for key, value in verdicts.items()}
    return {
        "design": name,
        **asdict(case),
        **{key: round(rate, 5) for key, rate in rates.items()},
        "coverage": round(float(covered.mean()), 5),
        "seeds": round(float(found.seeds_R.mean()), 3),
    }


def draw(rows) -> bytes:
    """Plot power, the rate of "no effect" and the mean number of seeds against the true effect."""
    kinds = (
        ("A difference is found, %", lambda r: 100 * (r["higher"] + r["lower"])),
        ('"No effect", %', lambda r: 100 * r["no_effect"]),
        ("Seeds, mean", lambda r: r["seeds"]),
    )
    with plt.style.context(STYLE):
        fig, axes = plt.subplots(1, 3, figsize=(12.5, 3.6), layout="constrained")
        for ax, (title, value) in zip(axes, kinds):
            for color, deviation in enumerate(DEVIATIONS):
                for name, look in zip(DESIGNS, ("o-", "s--")):
                    some = [
                        row
                        for row in rows
                        if (row["design"], row["deviation"]) == (name, deviation)
                        and row["questions_error"] == 0
                    ]
                    label = f"{name}, deviation {100 * deviation:.0f}"
                    x = [100 * row["effect"] for row in some]
                    ax.plot(x, [value(row) for row in some], look, color=f"C{color}", label=label)
            ax.set(title=title, xlabel="true effect, points")
        for ax in axes[:2]:
            ax.axhline(5, color=CONTROL, lw=1.0, ls=":")
            ax.set(ylim=(-2, 102))
        axes[2].legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        return png_bytes(fig, 150)


def main() -> None:
    """Write simulation.json and the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=200_000)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    rows = [
        row_of(Case(effect, deviation, questions), name, design, args.repeats)
        for questions in QUESTIONS
        for deviation in DEVIATIONS
        for effect in EFFECTS
        for name, design in DESIGNS.items()
    ]
    designs = {name: design.as_dict() for name, design in DESIGNS.items()}
    levels = {
        name: {
            test: [round(1 - design.confidence(look, test), 6) for look in design.looks]
            for test in ("difference", "equivalence")
        }
        for name, design in DESIGNS.items()
    }
    about = {"command": COMMAND, "repeats": args.repeats, "designs": designs, "levels": levels}
    path = args.out / "simulation.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(about | {"rows": rows}, indent=1) + "\n")
    write_atomic(args.out / "simulation.png", draw(json.loads(path.read_text())["rows"]))


if __name__ == "__main__":
    main()
