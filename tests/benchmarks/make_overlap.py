"""Measure how much the held-out questions of a profile overlap with its training data.

Training data are the teacher's episodes (stage `demonstrations`) and the questions of all RL steps,
drawn without a curriculum. Arithmetic questions (python) have no names, and their small numbers
repeat; search questions are held out by answer.

Run: OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/make_overlap.py
"""

import argparse
import json
import tempfile
from pathlib import Path

from drlib.config import ROOT, Config
from drlib.evaluation.benchmarks import BenchmarkItem
from drlib.evaluation.evaluate import held_out
from drlib.evaluation.overlap import overlap, render_overlap
from drlib.files import write_atomic, write_json_lines
from drlib.training.data import WORLD_FILE
from drlib.training.launch import build_stage
from drlib.training.question_scheduler import QuestionScheduler
from drlib.worlds import Names, SmallWorld

OUT = ROOT / "figures" / "reference" / "evaluation" / "overlap.json"
COMMAND = "OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/make_overlap.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", default="laptop")
    profile = parser.parse_args().profile
    config = Config.load(profile)
    with tempfile.TemporaryDirectory() as folder:
        demonstrations = build_stage("demonstrations", config, runs=Path(folder))
        world = SmallWorld.load(next(demonstrations.parent.glob("world-*")) / WORLD_FILE)
        scheduler = QuestionScheduler(config, world, Names.from_world(world))
        rows = [
            {"question": task.question, "answer": task.answer}
            for step in range(config.rl.steps)
            for task in scheduler.draw(step, None)[0]
        ]
        training = {
            "demonstrations": demonstrations / "episodes.jsonl",
            "rl": write_json_lines(Path(folder) / "rl_questions.jsonl", rows),
        }
        tasks = held_out(world, config)
        found: dict[str, dict] = {}
        for kind in ("python", "search"):
            items = [
                BenchmarkItem(task.id, task.question, (task.answer, *task.aliases))
                for task in tasks
                if task.kind == kind
            ]
            for name, path in training.items():
                result = overlap(items, [path])
                del result["matches"]  # ids of a seed are of no use to a reader
                found.setdefault(kind, {})[name] = result
                print(f"\n{kind} questions in {name}\n\n{render_overlap(result)}")
    data = {"command": COMMAND, "profile": profile, "overlap": found}
    write_atomic(OUT, json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
