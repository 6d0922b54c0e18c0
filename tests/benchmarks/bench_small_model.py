"""Readable turns and answers of a small untrained model in `drlib ask`, with and without help.

Eight questions over a small folder, each about one sentence of one file, in four settings: plain,
`--few-shot`, `--constrained`, and both. Greedy; all questions of a setting run as one batch.

Run: OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/bench_small_model.py --folder smol
"""

import argparse
import sys
import time

from drlib.app.research import AskOptions, AskSession
from drlib.chat.tool_calls import FormatError, parse
from drlib.task import Task, normalise_answer

WORLD = "folder:tests/first_hour/folders/plain_text"
QUESTIONS = (
    ("How many lanes did Starlite Lanes have?", "sixteen"),
    ("Who bowled the first perfect game at Starlite Lanes?", "Lucille Abernathy-Fox"),
    ("Who started the cable ferry at Tamarack Landing?", "Jotham Blunt-Hargrove"),
    ("Who has been the captain of the Tamarack Landing ferry since 2005?", "Merle Yoder-Banks"),
    ("Who painted the ceiling of the Rialto-Grand Theater?", "Ottavio Merlini"),
    ("Who was the first manager of the Rialto-Grand Theater?", "Cassius Wainwright"),
    ("Who was the first conductor of the Lockridge Choral Society?", "Leander Whipple"),
    ("Who is the architect of the cathedral in Lisgard?", "Sigrun Aasvold"),
)
SETTINGS = {
    "plain": {},
    "few-shot": {"few_shot": True},
    "constrained": {"constrained": True},
    "both": {"few_shot": True, "constrained": True},
}
LIMITS = {"calls": 3, "turn_tokens": 256, "context_tokens": 6000}


def measure_setting(folder: str, options: dict, count: int, trace: bool) -> str:
    """Run the questions in one setting and return its row."""
    tasks = [Task(f"q{i}", q, a, "search", WORLD) for i, (q, a) in enumerate(QUESTIONS[:count])]
    started = time.monotonic()
    with AskSession(AskOptions(world=WORLD, folder=folder, **LIMITS, **options)) as session:
        found = session._agent.run(tasks, temperature=0.0)
    seconds = time.monotonic() - started
    turns = [m["content"] for t in found for m in t.messages if m["role"] == "assistant"]
    readable = sum(not isinstance(parse(turn), FormatError) for turn in turns)
    searched = sum(any(r.tool != "format" for r in t.tool_results) for t in found)
    answered = [(t.answer, task) for t, task in zip(found, tasks) if t.answer is not None]
    right = sum(normalise_answer(task.answer) in normalise_answer(a) for a, task in answered)
    if trace:
        for task, trajectory in zip(tasks, found):
            said = [m["content"] for m in trajectory.messages if m["role"] == "assistant"]
            print(task.question, trajectory.termination, trajectory.answer, said, file=sys.stderr)
    cells = (f"{readable}/{len(turns)}", f"{searched}/{len(tasks)}")
    cells += (f"{len(answered)}/{len(tasks)}", f"{right}/{len(tasks)}", f"{seconds:.0f}")
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default="smol", help="model folder, or smol")
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS], choices=[*SETTINGS])
    parser.add_argument("--limit", type=int, default=len(QUESTIONS), help="questions per setting")
    parser.add_argument("--trace", action="store_true", help="print every turn on stderr")
    args = parser.parse_args()
    print("| setting | readable turns | a tool was called | answered | right | seconds |")
    print("|---|---|---|---|---|---|")
    for name in args.settings:
        row = measure_setting(args.folder, SETTINGS[name], args.limit, args.trace)
        print(f"| {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
