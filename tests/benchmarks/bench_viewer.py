"""Benchmark: seconds until the viewer shows a long trajectory in headless Chromium.

The trajectory is made up: turns of 200 to 900 sampled tokens and as long tool responses, with five
alternatives a token and the experts of every token. The file is written, made into a page and
opened from a new browser each time. "drawn" is the browser's own clock from the start of navigation
to the frame after the first drawing; "turn" the time of one step to the next turn.

Run: python -m tests.benchmarks.bench_viewer [--tokens 30000] [--layers 4] [--experts 2]
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from drlib.analysis import viewer
from drlib.trajectory import Segment, Termination, ToolResult, Trajectory, save_trajectories


def long_trajectory(tokens, vocabulary, *, top=5, layers=4, experts=2, seed=0):
    """A trajectory of that many tokens, each with its `top` likeliest and its experts."""
    rng = np.random.default_rng(seed)
    generated, segments, turns, results = _turns(tokens, rng)
    raw = np.sort(rng.exponential(size=(tokens, top + 3)), 1)[:, ::-1]
    logp = np.log(raw / raw.sum(1, keepdims=True))[:, :top].astype(np.float32)
    ids = rng.integers(12, vocabulary, (tokens, top)).astype(np.int32)
    drawn = rng.integers(0, top, tokens)
    every = np.arange(tokens)
    ids[~generated] = -1
    logp[~generated] = 0
    sampled = np.where(generated, ids[every, drawn], rng.integers(12, vocabulary, tokens))
    entropies = rng.exponential(0.4, tokens).astype(np.float32) * generated
    return Trajectory(
        id=f"long-{seed}",
        task_id="long",
        group_id="long",
        world_version="none",
        policy_version=0,
        token_ids=sampled.astype(np.int32),
        generated=generated,
        logprobs=np.where(generated, logp[every, drawn], np.float32(0)),
        entropies=entropies,
        segments=segments,
        turns=turns,
        versions=np.zeros(tokens, np.int32),
        routed_experts=rng.integers(0, 64, (tokens, layers, experts)).astype(np.uint16),
        tool_results=results,
        termination=Termination.LENGTH,
        metadata={"question": "How long is long?"},
        top_ids=ids,
        top_logprobs=logp,
        **dict.fromkeys(("answer", "reward")),
        **{"reward_parts": {}, "messages": []},
    )


def _turns(tokens, rng):
    """Turns of a thought and a call, with responses of which every fifth is an error.

    Returns generated, segments and turns, one value a token, and the tools' results.
    """
    generated = np.zeros(tokens, bool)
    segments = np.zeros(tokens, np.uint8)
    turns = np.zeros(tokens, np.uint16)
    at = 40
    turn = 0
    results = []
    while at < tokens:
        for segment, size in (
            (Segment.THINK, rng.integers(150, 800)),
            (Segment.TOOL_CALL, 50),
            (Segment.TOOL_RESPONSE, rng.integers(150, 800)),
        ):
            part = slice(at, min(tokens, at + int(size)))
            segments[part] = segment
            turns[part] = turn
            if segment == Segment.TOOL_RESPONSE:
                turn += 1
                turns[part] = turn
                ok = turn % 5 > 0
                results.append(ToolResult("search", {}, "found", ok, None if ok else "timeout"))
            else:
                generated[part] = True
            at = part.stop
    return generated, segments, turns, results


def main():
    from tests.browser import Browser

    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("tokens", 30_000), ("layers", 4), ("experts", 2), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    args = parser.parse_args()
    policy = Path("figures/reference/tour/policy_rl")
    scratch = tempfile.TemporaryDirectory(prefix="drlib-bench-")
    folder = Path(scratch.name)
    one = long_trajectory(args.tokens, 1700, layers=args.layers, experts=args.experts)
    save_trajectories(folder / "long.parquet", [one])
    start = time.perf_counter()
    page = viewer.save_page(
        folder / "long.html", viewer.viewer_page(folder / "long.parquet", policy)
    )
    print(
        f"{args.tokens} tokens, experts of {args.layers} layers x {args.experts}: page of "
        f"{page.stat().st_size / 1e6:.1f} MB written in {time.perf_counter() - start:.2f} s"
    )
    drawn, steps = [], []
    for _ in range(args.repeats):
        with Browser() as browser:
            browser.open(page.as_uri())
            drawn.append(browser.js("performance.getEntriesByName('drawn')[0].startTime") / 1e3)
            steps.append(browser.js(STEP) / 1e3)
    for name, values in (("drawn", drawn), ("turn", steps)):
        print(
            f"{name}: median {statistics.median(values):.3f} s, worst {max(values):.3f} s "
            f"of {len(values)} browsers"
        )
    if args.out:
        found = {name: getattr(args, name) for name in ("tokens", "layers", "experts")}
        found |= {"page_mb": round(page.stat().st_size / 1e6, 1), "drawn_s": drawn, "turn_s": steps}
        args.out.write_text(json.dumps(found, indent=0) + "\n")


STEP = """new Promise((done) => { const start = performance.now(); KEYS.ArrowRight();
  requestAnimationFrame(() => setTimeout(() => done(performance.now() - start))); })"""

if __name__ == "__main__":
    main()
