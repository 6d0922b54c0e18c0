"""The `report` command on real rollouts: its contents, and its messages for missing data.

Run: python -m pytest tests/test_analysis_report.py
"""

import os
import re
import subprocess
import sys
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pytest

from drlib.analysis import entropy_plots, reflection
from drlib.analysis.entropy import high_entropy_overlap, summarize_entropy
from drlib.analysis.report import write_report
from drlib.analysis.token_table import token_statistics
from drlib.cli.report import main
from drlib.trajectory import load_trajectories, save_trajectories

TOUR, ENTROPY = "figures/reference/tour", "figures/reference/entropy"
POLICY = f"{TOUR}/policy_rl"


def visible_text(path):
    """Return the visible text of the page, without figures and viewer."""
    page = re.sub(r"<iframe.*?</iframe>|<style>.*?</style>", "", path.read_text(), flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def run_report(*arguments):
    command = [sys.executable, "-m", "drlib.cli", "report", *map(str, arguments)]
    clean = {k: v for k, v in os.environ.items() if k != "MPLBACKEND"}
    return subprocess.run(command, capture_output=True, text=True, env=clean)


def test_report_numbers_match_the_library(tmp_path):
    source = f"{ENTROPY}/seed0_sft.parquet"
    done = run_report(tmp_path / "r.html", source, "--tokenizer", POLICY, "--window", 8)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "r.html") and not done.stderr
    text = visible_text(tmp_path / "r.html")
    table = token_statistics(source)
    judged = f"400 judged, {np.nanmean(table.right_M):.1%} of them"
    assert f"400 trajectories, {len(table):,} sampled tokens, {judged}" in text
    assert f"mean entropy {summarize_entropy(table)['mean_entropy']:.4f}" in text
    for lift in reflection.reflection_lift(table, window=8):
        value = "{:.2f} [{:.2f}, {:.2f}]".format(*np.exp(lift.lift))
        assert f"{lift.status} {lift.responses} {lift.tokens} {value}" in text
    page = (tmp_path / "r.html").read_text()
    assert page.count("<img") == 4 and page.count("<iframe") == 1
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    again = write_report(tmp_path / "again.html", [source], POLICY, window=8)
    assert again.read_bytes() == (tmp_path / "r.html").read_bytes(), "equal files, equal bytes"


def test_model_option_adds_missing_entropies(tmp_path):
    bare = [replace(t, entropies=None) for t in load_trajectories(f"{TOUR}/rl_sampled.parquet")]
    save_trajectories(tmp_path / "bare.parquet", bare)
    done = run_report(tmp_path / "r.html", tmp_path / "bare.parquet", "--viewed", 2)
    assert done.returncode == 0, done.stderr
    text = visible_text(tmp_path / "r.html")
    assert "have no entropy" in text and "rescoring.rescore" in text and "Words" not in text
    done = run_report(tmp_path / "r.html", tmp_path / "bare.parquet", "--model", POLICY)
    assert done.returncode == 0, done.stderr
    found = float(re.search(r"mean entropy ([\d.]+)", visible_text(tmp_path / "r.html"))[1])
    stored = summarize_entropy(token_statistics(f"{TOUR}/rl_sampled.parquet"))["mean_entropy"]
    assert found == pytest.approx(stored, rel=0.05), "the committed policy is rounded to bfloat16"


def test_alternatives_give_bounds_not_entropies(tmp_path):
    scored = load_trajectories(f"{ENTROPY}/viewer_rl.parquet")
    served = [replace(t, entropies=None) for t in scored]
    save_trajectories(tmp_path / "t.parquet", served)
    text = visible_text(
        write_report(tmp_path / "r.html", [tmp_path / "t.parquet"], POLICY, viewed=0)
    )
    low, high = map(float, re.search(r"between ([\d.]+) and ([\d.]+) nats", text).groups())
    exact = summarize_entropy(token_statistics(scored))["mean_entropy"]
    assert low <= exact <= high and high - low < 0.2
    assert "mean entropy 0" not in text.replace("the mean entropy", "")


def test_single_trajectory_has_no_interval(tmp_path):
    save_trajectories(tmp_path / "t.parquet", load_trajectories(f"{TOUR}/rl_sampled.parquet")[:1])
    text = visible_text(write_report(tmp_path / "r.html", [tmp_path / "t.parquet"], POLICY))
    assert "an interval needs at least two trajectories, got 1" in text
    assert "mean entropy" in text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.parquet", None, "missing.parquet"),
        ("empty.jsonl", b"", "empty.jsonl"),
        ("odd.jsonl", b'{"a": 1}\n', "odd.jsonl"),
        ("cut.parquet", b"PAR1junk", "cut.parquet"),
    ],
)
def test_invalid_files_are_rejected_without_a_report(name, content, message, tmp_path, capsys):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    typed = [str(tmp_path / "r.html"), str(tmp_path / name), "--tokenizer", POLICY]
    status, said = main(typed), capsys.readouterr()
    assert status == 1 and said.err.startswith("error: ") and message in said.err
    assert "Traceback" not in said.err and not said.out and not (tmp_path / "r.html").exists()


def test_input_file_is_never_overwritten(tmp_path):
    path = tmp_path / "a.parquet"
    save_trajectories(path, load_trajectories(f"{TOUR}/rl_sampled.parquet")[:2])
    before = path.read_bytes()
    done = run_report(path, path, "--tokenizer", POLICY)
    assert done.returncode == 1 and "the report must be a .html file" in done.stderr
    assert path.read_bytes() == before
    for option, value in (("--window", 0), ("--share", 3), ("--viewed", -1)):
        done = run_report(tmp_path / "r.html", path, option, value)
        assert done.returncode == 1 and str(value) in done.stderr, option


def test_plots_are_byte_identical_when_repeated(tmp_path):
    sft, rl, again = (
        token_statistics(f"{ENTROPY}/seed0_{name}.parquet") for name in ("sft", "rl", "rl_by_sft")
    )
    trajectory = load_trajectories(f"{ENTROPY}/seed0_sft.parquet")[300]
    lifts = {x.status: vars(x) for x in reflection.reflection_lift(sft, window=8, resamples=200)}
    panels = {
        "plot_histogram": ({"before": sft, "after": rl},),
        "plot_event_curves": (reflection.event_curves(sft, 8, 16, resamples=100),),
        "plot_lifts": (lifts,),
        "plot_entropy_strip": (trajectory,),
        "plot_entropy_changes": ({"seed 0": high_entropy_overlap(again, rl)},),
        "plot_word_grid": ([("then", 19, 1.1), ("now", 23, 0.9), ("so", 11, 0.0)],),
    }
    for name, arguments in panels.items():
        for copy in "ab":
            fig, ax = plt.subplots()
            getattr(entropy_plots, name)(ax, *arguments)
            fig.savefig(tmp_path / f"{name}{copy}.png", metadata={"Software": None})
            plt.close(fig)
        first, second = ((tmp_path / f"{name}{c}.png").read_bytes() for c in "ab")
        assert first == second and len(first) > 3000, name
