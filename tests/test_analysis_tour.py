"""Numbers, plots and texts of the tour, on hand-made outcomes with known results."""

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_hex

from drlib.analysis import rendering, tour, tour_plots, widgets
from drlib.evaluation.evaluate import rows_of
from drlib.evaluation.results import Results
from drlib.experiments.reference_run import results_block
from drlib.intervals import wilson_interval
from drlib.trajectory import Segment, Termination, ToolResult, Trajectory, save_trajectories
from tests.results_examples import make_outcomes, outcome, tour_results


@pytest.fixture
def results():
    return tour_results()


@pytest.fixture
def run(results):
    def rows(level, keys=("accuracy_python", "accuracy_search")):
        return [
            {
                "step": s + 1,
                "entropy": 0.3,
                "generated": 50,
                "live_groups": 0.5,
                "tool_errors": 0.2,
                "no_call": 0.1,
                "overlong": 0.0,
                "accuracy_h1": level,
                "accuracy_h2": level,
                "accuracy_h3": level,
            }
            | dict.fromkeys(keys, level)
            for s in range(12)
        ]

    curves = {
        "cpt": {0: [{"step": 1, "loss": 5.0}, {"step": 10, "loss": 1.0}]},
        "rl": {0: rows(0.4), 1: rows(0.6)},
        "rl_random_reward": {0: rows(0.1)},
    }
    return tour.TourRun(results, curves)


def trajectory(task="search-h3-a", answer="Oslo", right="Oslo", failed=False):
    messages = [
        {"role": "user", "content": "What is the capital of <b>Norway</b>?"},
        {
            "role": "assistant",
            "content": '<think>Look.</think><tool_call>{"name": "search"}</tool_call>',
        },
        {"role": "tool", "content": "1. [Norway](cldr:Norway)\n<script>alert(1)</script>"},
        {"role": "assistant", "content": f"<think>Read.</think><answer>{answer}</answer>"},
    ]
    call = ToolResult(
        "search",
        {},
        messages[2]["content"],
        not failed,
        "bad" if failed else "",
        0.5,
        1,
        "",
        False,
        False,
        False,
    )
    n = 5
    return Trajectory(
        id=f"0-{task}-0",
        task_id=task,
        group_id="0",
        world_version="w",
        policy_version=0,
        token_ids=np.arange(n, dtype=np.int32),
        generated=np.array([0, 0, 1, 1, 0], bool),
        logprobs=np.array([0, 0, -1, -1, 0], np.float32),
        entropies=np.zeros(n, np.float32),
        segments=np.full(n, int(Segment.THINK), np.uint8),
        turns=np.zeros(n, np.uint16),
        versions=np.zeros(n, np.int32),
        routed_experts=None,
        tool_results=[call],
        termination=Termination.ANSWERED,
        answer=answer,
        reward=None,
        reward_parts={},
        messages=messages,
        metadata={"question": messages[0]["content"], "right_answer": right},
    )


# ---------------------------------------------------------------------------------------------
# numbers


def test_accuracy_has_an_interval(results):
    mean, low, high = tour.accuracy(results, "rl", "python", "sample")
    assert mean == pytest.approx(28 / 32) and low < mean <= high
    assert tour.accuracy(results, "rl", "search", "greedy", 3)[0] == 0.5
    zero = tour.accuracy(results, "closed_book", "search", "sample")
    assert zero == (0.0, *wilson_interval(0, 6))  # six questions, not 48 answers
    assert tour.accuracy(results, "demonstrator", "python", "sample")[1:] == wilson_interval(20, 50)


def test_error_rates_are_ratios_of_sums(results):
    assert tour.error_rate(results, "rl")[0] == pytest.approx(10 / 40)
    mean, low, high = tour.error_ratio(results, "rl", "sft_continued")
    assert (mean, low, high) == pytest.approx((0.5, 0.5, 0.5))  # the same in every question
    results.outcomes["rl", 0][0] = outcome("p0", "python", 0, 8, True, errors=4)
    mean, low, high = tour.error_ratio(results, "rl", "sft_continued")
    assert mean == pytest.approx(13 / 20) and low < mean < high
    with pytest.raises(ValueError, match="'cpt' was not evaluated: there are"):
        tour.error_rate(results, "cpt")


def test_table_lists_every_stage_and_its_size(results):
    text = tour.format_table(results)
    assert max(map(len, text.splitlines())) <= 80
    rl = [line for line in text.splitlines() if line.startswith("after RL ")]
    assert len(rl) == 3 and re.match(r"after RL +87.5 \[.+\] +75.0 \[.+\] +100.0 \[.+\] +4$", rl[0])
    assert re.search(r"demonstrator +40.0 \[27.6, 53.8\] +50$", text, re.M)
    assert "pass@8" in text and text.count("untrained") == 3
    assert text.startswith("held-out answers, % right [95% interval over questions, one seed]")


def test_intervals_include_seeds(results):
    one = tour.accuracy(results, "rl", "search", "sample")
    for stage, worse in (("rl", [4, 0, 5, 0, 2, 1]), ("sft_continued", [0] * 6)):
        results.outcomes[stage, 1] = make_outcomes([8, 8, 8, 4], worse)
        results.rows.extend(rows_of(results.outcomes[stage, 1], stage, 1))
    two = tour.accuracy(results, "rl", "search", "sample")
    assert two[1] < one[1] and two[2] - two[1] > one[2] - one[1]
    assert "[95% interval over 2 seeds and questions]" in tour.format_table(results)
    block = results_block(results)
    assert "(2 seeds; 95% intervals over 2 seeds and questions)" in block


def test_smoothing_is_causal_and_skips_missing_values():
    rows = [{"step": 1, "a": 1.0}, {"step": 2}, {"step": 3, "a": 4.0}]
    steps, values = tour_plots.smooth(rows, "a", width=2)
    assert steps.tolist() == [1, 2, 3] and values.tolist() == [1.0, 1.0, 4.0]
    assert np.isnan(tour_plots.smooth(rows, "b")[1]).all()


# ---------------------------------------------------------------------------------------------
# plots


def labels(fig):
    return {text.get_text() for legend in fig.legends for text in legend.get_texts()}


def test_learning_plot_shows_runs_control_and_levels(run):
    fig = tour_plots.plot_learning(run)
    assert {
        "RL in training, 2 seeds",
        "RL, random reward (control)",
        "after SFT, held-out",
        "after RL, held-out",
        "SFT continued with RL's compute, held-out",
    } <= labels(fig)
    blue = [ln for ln in fig.axes[0].lines if ln.get_label() == "RL in training, 2 seeds"]
    assert blue[0].get_ydata() == pytest.approx(np.full(12, 50.0))
    assert all(ax.get_xlabel() and ax.get_ylabel() for ax in fig.axes)


def test_mean_curve_ends_with_the_shortest_seed(run):
    (rows,) = run.curves["rl_random_reward"].values()
    run.curves["rl_random_reward"][1] = rows[:7]
    ax = tour_plots.plot_learning(run).axes[0]
    (mean,) = [ln for ln in ax.lines if ln.get_label() == "RL, random reward (control)"]
    assert mean.get_xdata()[-1] == 7
    grey = [ln for ln in ax.lines if ln.get_color() == tour_plots.STAGE_COLORS["rl_random_reward"]]
    assert max(ln.get_xdata()[-1] for ln in grey if ln.get_linestyle() == "--") == 12
    crosses = [ln for ln in ax.lines if ln.get_marker() == "x"]
    assert sorted(int(ln.get_xdata()[-1]) for ln in crosses) == [7, 12]


def test_local_run_is_drawn_over_the_reference(run, results):
    rows = [r for r in results.rows if r["stage"] not in ("sft_continued", "rl_random_reward")]
    outcomes = {k: v for k, v in results.outcomes.items() if k[0] in ("untrained", "sft", "rl")}
    local_run = tour.TourRun(
        Results("c", "laptop", rows, outcomes),
        {"rl": {0: run.curves["rl"][0]}, "cpt": run.curves["cpt"]},
    )
    fig = tour_plots.plot_learning(local_run, behind=run)
    assert {
        "RL, reference run",
        "RL, random reward (control)",
        "SFT continued with RL's compute, held-out",
    } <= labels(fig)
    pale = [ln for ln in fig.axes[1].lines if ln.get_label() == "RL, reference run"]
    assert to_hex(pale[0].get_color()) == to_hex(tour_plots.REFERENCE_COLOR)
    details = tour_plots.plot_rl_details(local_run, run)
    assert len(details.axes) == 6
    assert labels(details) == {
        "reference run",
        "random reward (control)",
        "real reward",
        "last step of a stopped seed",
    }
    hops = details.axes[2]
    assert [text.get_text() for text in hops.get_legend().get_texts()] == [
        "reference run",
        "1 hop",
        "2 hops",
        "3 hops",
    ]


def test_conditions_plot_shows_curves_and_held_out_points(run):
    condition_outcomes = [
        replace(one, kind="2 conditions") for one in make_outcomes([0] * 4, [4, 4, 2, 2, 0, 0])[4:]
    ]
    outcomes = {("rl", 0): run.results.outcomes["rl", 0] + condition_outcomes}
    rows = rows_of(outcomes["rl", 0], "rl", 0)
    curve = [{"step": s, "accuracy_c2": 0.3, "accuracy_search": 0.6} for s in range(1, 4)]
    engine = tour.TourRun(Results("a", "ci", rows, outcomes), {"rl": {0: curve}})
    left, right = tour_plots.plot_conditions(engine, run).axes
    assert {"one", "two", "RL on chains"} <= {t.get_text() for t in left.get_legend().get_texts()}
    two = next(line for line in left.lines if line.get_label() == "two")
    assert two.get_ydata().tolist() == pytest.approx([30] * 3)
    held_out = {tuple(c.lines[0].get_xydata()[0]) for c in right.containers}
    assert (1.9, 25.0) in held_out and not any(round(x, 1) == 2.1 for x, _ in held_out)


def test_missing_trajectories_are_rejected(run):
    with pytest.raises(ValueError, match="no trajectories rl/greedy"):
        run.trajectories("rl")


def test_tour_run_loads_from_its_files(run, results, tmp_path):
    results.save(tmp_path)
    (tmp_path / "seed1_rl_random_reward.jsonl").write_text('{"step": 1, "accuracy_python": 0.5}\n')
    save_trajectories(tmp_path / "sft_greedy.parquet", [trajectory()])
    loaded = tour.TourRun.load(tmp_path)
    assert loaded.curves["rl_random_reward"][1][0]["accuracy_python"] == 0.5
    assert [t.answer for t in loaded.trajectories("sft")] == ["Oslo"]
    assert tour.format_table(loaded.results) == tour.format_table(results)
    with pytest.raises(ValueError, match="no readable results"):
        tour.TourRun.load(tmp_path / "nowhere")


# ---------------------------------------------------------------------------------------------
# rendered trajectories


def test_conversation_is_split_into_blocks():
    found = rendering.split_blocks(trajectory().messages, [True])
    assert [(b.turn, b.name) for b in found] == [
        (1, "think"),
        (1, "call"),
        (1, "failed"),
        (2, "think"),
        (2, "answer"),
    ]
    odd = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "well <think>open <answer>x"},
    ]
    assert [(b.name, b.text) for b in rendering.split_blocks(odd)] == [
        ("text", "well "),
        ("think", "open <answer>x"),
    ]


def test_rendering_escapes_markup_and_names_blocks():
    shown = rendering.render_trajectory(trajectory(failed=True), "after RL")
    markup = shown._repr_html_()
    assert "<script>" not in markup and "&lt;script&gt;" in markup and "&lt;b&gt;Norway" in markup
    for word in ("think", "call", "response: failed", "answer"):
        assert f"<b>{word}</b>" in markup
    assert repr(shown).startswith("after RL: right") and "\n2 think     Read." in repr(shown)
    assert repr(shown + shown).count("after RL: right") == 2


@pytest.mark.parametrize(
    ("answer", "expected"), [("oslo.", "right"), ("Bergen", "wrong"), (None, "no answer (length)")]
)
def test_outcome_labels_match_the_evaluation(answer, expected):
    one = trajectory(answer=answer)
    if answer is None:
        one.termination = Termination.LENGTH
    assert rendering.describe_outcome(one) == expected


def test_tokens_that_carry_loss_are_marked():
    class Names:
        def convert_ids_to_tokens(self, ids):
            return ["<a>", "b ", "c\n", "d", "e"]

    shown = rendering.render_tokens(trajectory(), Names(), -1 / 3)
    assert "advantage -0.33, 2 of 5 tokens carry loss" in repr(shown)
    assert "[c\n][d]e" in repr(shown) and "&lt;a&gt;" in shown.markup
    assert shown.markup.count("<b style") == 2


def test_trajectory_panel_follows_its_controls():
    one, two = trajectory("search-h1-a"), trajectory("search-h1-b", answer="Bergen")
    two.metadata["question"] = "Another?"
    panel = widgets.trajectory_panel({"after SFT": [one, two], "after RL": [one]})
    assert "after SFT: right" in panel.page.value
    panel.question.value = "search-h1-b"
    assert "after SFT: wrong" in panel.page.value
    panel.policy.value = "after RL"
    assert "has no rollout" in panel.page.value
    with pytest.raises(ValueError, match="at least one"):
        widgets.trajectory_panel({"after SFT": []})
