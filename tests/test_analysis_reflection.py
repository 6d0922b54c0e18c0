"""Forks, lift after tool responses and reflection words, recovered from planted data.

Run: python -m pytest tests/test_analysis_reflection.py
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from drlib.analysis.reflection import (
    cluster_interval,
    event_curves,
    find_mentions,
    fork_tokens,
    lexicon_table,
    load_lexicons,
    reflection_lift,
    reflection_tokens,
    word_entropies,
)
from drlib.analysis.token_table import token_statistics
from drlib.chat.segments import token_texts
from drlib.chat.template import load_tokenizer
from drlib.trajectory import Segment, save_trajectories
from tests.analysis_examples import rollout

TOUR = "figures/reference/tour"
LOW, HIGH = 0.1, 2.0


def planted(rng, m, lift=1.0, base=0.15, window=8, first=1.0):
    """Return m trajectories with planted uncertain thought tokens.

    Each trajectory has its own chance of an uncertain token. It is multiplied by `lift` within
    `window` tokens of a response, and by `first` in the first `window` tokens of every turn.
    """
    trajectories = []
    for i in range(m):
        own, turns = base * rng.uniform(0.5, 1.5), 2 + rng.integers(5)
        entropies = []
        for turn in range(turns):
            place = np.arange(rng.integers(10, 60))
            chance = own * np.where(place < window, first * (lift if turn else 1), 1)
            entropies.append(np.where(rng.random(len(place)) < chance, HIGH, LOW))
        trajectories.append(
            rollout(f"t{i}", entropies, rng.choice(["ok", "error", "empty"], turns - 1))
        )
    return trajectories


def test_planted_forks_and_reflections_are_found_exactly(tmp_path):
    """A fifth of each trajectory's thoughts are forks; precision and recall are 1."""
    rng = np.random.default_rng(0)
    forks = []
    after = []
    trajectories = []
    for i in range(40):
        sizes = rng.integers(5, 40, size=rng.integers(2, 6))
        sizes[-1] += -sizes.sum() % 5
        chosen = np.zeros(sizes.sum(), bool)
        chosen[rng.choice(sizes.sum(), sizes.sum() // 5, replace=False)] = True
        entropy = np.where(chosen, rng.uniform(1, 3, len(chosen)), rng.uniform(0, 1, len(chosen)))
        cuts = np.cumsum(sizes)[:-1]
        trajectories.append(rollout(f"t{i}", np.split(entropy, cuts), ["ok"] * (len(sizes) - 1)))
        near = np.concatenate(
            [np.arange(n) < 8 if k else np.zeros(n, bool) for k, n in enumerate(sizes)]
        )
        forks.append(chosen)
        after.append(chosen & near)
    save_trajectories(tmp_path / "t.parquet", trajectories)
    table = token_statistics(tmp_path / "t.parquet")
    assert np.array_equal(fork_tokens(table), np.concatenate(forks))
    assert np.array_equal(reflection_tokens(table, window=8), np.concatenate(after))
    assert np.array_equal(fork_tokens(table, scope="fixed", threshold=1.0), np.concatenate(forks))


def test_lift_interval_covers_the_planted_lift():
    """At least 93% of the intervals cover the planted lift.

    Over the 1,500 simulations from seed 10,000 on, coverage is 94.9% (no lift) and 95.1% (lift 2).
    The first 300 of them are tested, half of them with each lift; 100 would vary by 2 points.
    """
    covered = {"lift": 0, "matched": 0}
    for seed in range(10_000, 10_300):
        lift = 1.0 + seed % 2
        table = token_statistics(planted(np.random.default_rng(seed), 50, lift))
        found = reflection_lift(
            table, window=8, threshold=1.0, seed=seed + 1000, permutations=1, resamples=500
        )[0]
        for name in covered:
            _, low, high = getattr(found, name)
            covered[name] += low <= math.log(lift) <= high
    assert min(covered.values()) >= 279 and max(covered.values()) < 300, covered


def test_controls_reject_uncertain_turn_starts():
    table = token_statistics(planted(np.random.default_rng(1), 150, lift=1.0, first=2.5))
    found = reflection_lift(table, window=8, threshold=1.0)[0]
    assert found.lift[1] > 0, "turn starts are more uncertain than the rest, after responses too"
    assert found.matched[1] < 0 < found.matched[2], "but not more than first turns' starts"
    table = token_statistics(planted(np.random.default_rng(2), 150, lift=2.5))
    found = reflection_lift(table, window=8, threshold=1.0)[0]
    assert found.matched[1] > 0.5 and found.permuted[1] < 0 < found.permuted[2] < found.lift[1]


def test_matched_lift_rejects_hard_questions_with_more_calls():
    """Trajectories that are uncertain throughout call and fail more; responses have no effect."""
    covered = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        trajectories = []
        for i in range(60):
            hard = rng.random() < 0.5
            turns = 6 if hard else 2
            chance = (0.3 if hard else 0.05) * np.where(np.arange(30) < 8, 1.5, 1)
            entropies = [np.where(rng.random(30) < chance, HIGH, LOW) for _ in range(turns)]
            statuses = ["error" if hard and rng.random() < 0.7 else "ok"] * (turns - 1)
            trajectories.append(rollout(f"t{i}", entropies, statuses))
        found = reflection_lift(
            token_statistics(trajectories), window=8, threshold=1.0, permutations=50
        )[0]
        assert found.lift[1] > 0, "over other thoughts there seems to be a lift"
        covered += found.matched[1] <= 0 <= found.matched[2]
    assert covered >= 36


def test_lift_by_hand_and_by_status():
    table = token_statistics(
        [
            rollout("a", [[HIGH, LOW, LOW, LOW], [HIGH, HIGH, LOW, LOW]], ["error"]),
            rollout(
                "b", [[LOW, LOW, LOW, LOW], [HIGH, LOW, LOW, LOW], [LOW, LOW]], ["ok", "error"]
            ),
        ]
    )
    found = {lift.status: lift for lift in reflection_lift(table, window=2, threshold=1.0)}
    assert list(found) == ["all", "ok", "error"]
    everything, ok, error = found.values()
    # in windows 2 of 2, 1 of 2, 0 of 2; elsewhere 1 of 4, 0 of 2, 0 of 4, 0 of 2
    assert (everything.responses, everything.tokens) == (3, 6)
    assert everything.share == 3 / 6 and everything.elsewhere == 1 / 12
    assert everything.lift[0] == pytest.approx(math.log(6))
    assert ok.share == 1 / 2 and error.share == 2 / 4
    assert ok.responses == 1 and error.responses == 2
    # matched positions in the first turns: 1 of 2 for a's window, 0 of 4 for b's two
    assert everything.matched[0] == pytest.approx(math.log(3 / 1))
    assert error.matched[0] == pytest.approx(math.log(2 / 1)) and ok.matched[0] == math.inf


def test_permuted_null_equals_circular_shifts():
    rng = np.random.default_rng(3)
    trajectories = planted(rng, 12, lift=3.0)
    table = token_statistics(trajectories)
    for lift, status in zip(reflection_lift(table, window=8, threshold=1.0, seed=7), (0, 1, 2, 3)):
        draws = []
        shifts = np.random.default_rng(7)
        high = table.entropy > 1
        after = (table.since >= 0) & (table.since < 8)
        mine = after & (table.status == status) if status else after
        starts = table.starts()
        for _ in range(500):
            inside = mine.copy()
            outside = ~after
            for shift, a, b in zip(shifts.integers(1 << 40, size=12), starts, starts[1:]):
                inside[a:b] = np.roll(mine[a:b], shift % (b - a))
                outside[a:b] = np.roll(~after[a:b], shift % (b - a))
            draws.append(math.log(high[inside].mean()) - math.log(high[outside].mean()))
        expected = np.quantile(draws, [0.5, 0.025, 0.975], method="nearest")
        assert lift.permuted == pytest.approx(expected.tolist(), abs=1e-9)


def test_unmeasurable_input_is_rejected():
    single = [rollout("a", [[1, 2], [3, 1]], ["ok"])]
    with pytest.raises(ValueError, match="at least two trajectories, got 1"):
        reflection_lift(token_statistics(single), window=1)
    silent = [rollout(name, [[1, 2]]) for name in "ab"]
    with pytest.raises(ValueError, match="0 of 4 thought tokens follow a tool response within 64"):
        reflection_lift(token_statistics(silent))
    table = token_statistics([rollout(name, [[0.1], [1, 2]], ["ok"]) for name in "ab"])
    only = replace(table, segment=np.where(table.since < 0, Segment.ANSWER, table.segment))
    with pytest.raises(ValueError, match="4 of 4 thought tokens follow a tool response within 64"):
        reflection_lift(only)
    unknown = [rollout(name, [[1, math.nan], [3, 1]], ["ok"]) for name in "ab"]
    with pytest.raises(ValueError, match="2 of 8 tokens have no entropy .first: trajectory a, tok"):
        reflection_lift(token_statistics(unknown), window=1)


def test_share_of_zero_gives_minus_infinity():
    table = token_statistics([rollout(n, [[HIGH, LOW], [LOW, LOW]], ["ok"]) for n in "abc"])
    found = reflection_lift(table, window=2, threshold=1.0)[0]
    assert found.share == 0 and found.lift == (-math.inf,) * 3


def test_intervals_of_sums():
    rng = np.random.default_rng(0)
    parts = rng.normal(3, 1, size=(40, 1))
    value, low, high = cluster_interval(parts, lambda s: s[:, 0] / 40)
    assert value == pytest.approx(parts.mean())
    t = 2.0227 * parts.std(ddof=1) / math.sqrt(40)  # Student's t, 39 degrees of freedom
    assert value - low == pytest.approx(t, rel=0.12) and high - value == pytest.approx(t, rel=0.12)
    for m in (2, 29, 50, 2001):  # every trajectory counts once
        assert cluster_interval(np.arange(m)[:, None] ** 2, lambda s: s[:, 0], 0, 1)[0] == sum(
            i * i for i in range(m)
        )
        counts = np.ones((m, 1))
        assert cluster_interval(counts, lambda s: s[:, 0]).tolist() == [m] * 3 or m > 2000
    many = rng.normal(size=(9000, 2))
    value, low, high = cluster_interval(many, lambda s: s[:, 0])
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(9000), rel=0.12)
    # a draw without a value (0 / 0) does not count
    parts_with_gap = np.array([[1.0, 1], [0, 0], [2, 1]])
    value, low, high = cluster_interval(parts_with_gap, lambda s: s[:, 0] / s[:, 1])
    assert value == 1.5 and 1 <= low < high <= 2


def test_event_curves_by_hand():
    table = token_statistics(
        [
            rollout("a", [[1, 2, 3], [4, 5], [9]], ["ok", "error"]),
            rollout("b", [[7], [6, 8]], ["ok"]),
        ]
    )
    curves = event_curves(table, before=3, after=2, resamples=50)
    assert list(curves) == ["all", "ok", "error"]
    ok, error = curves["ok"], curves["error"]
    assert ok["offset"].tolist() == [-3, -2, -1, 0, 1]
    assert ok["tokens"].tolist() == [1, 1, 2, 2, 2]
    assert ok["mean"].tolist() == [1, 2, (3 + 7) / 2, (4 + 6) / 2, (5 + 8) / 2]
    assert error["tokens"].tolist() == [0, 1, 1, 1, 0]
    assert error["mean"][[1, 2, 3]].tolist() == [4, 5, 9]
    assert math.isnan(error["mean"][0])
    again = event_curves(table, before=3, after=2, resamples=50)
    for name in "mean", "low", "high":
        assert np.array_equal(curves["all"][name], again["all"][name], equal_nan=True)


# ---------------------------------------------------------------------------------------------
# words


def thought_table(*turns, name="a", **fields):
    """Return a table whose thoughts are these pieces, and the pieces."""
    t = rollout(name, [[0.5] * len(turn) for turn in turns], ["ok"] * (len(turns) - 1), **fields)
    return token_statistics([t]), np.array([p for turn in turns for p in turn], object)


def test_mentions_match_whole_words_across_pieces():
    table, texts = thought_table(
        ["Wa", "it", ", ", "await ", "yet", "i ", "verify", "ing ", "WAIT"],
        ["try ", "again", ". ", "try"],
        ["again"],
    )
    found = find_mentions(table, texts, load_lexicons()["v_triune"])
    assert np.flatnonzero(found).tolist() == [0, 8, 9]
    text = "".join(texts).lower()
    as_substrings = sum(text.count(word) for word in load_lexicons()["v_triune"])
    assert as_substrings > found.sum(), "the published count takes await, yeti and verifying"
    within = replace(table, segment=np.where(np.arange(14) == 8, Segment.TOOL_CALL, table.segment))
    assert np.flatnonzero(find_mentions(within, texts, ["wait"])).tolist() == [0]
    assert np.flatnonzero(find_mentions(table, texts, ["again"])).tolist() == [10, 13]


def test_lexicons_match_the_papers():
    assert load_lexicons() | {"tour": None} == {
        "raml": ["wait", "retry", "recheck", "however", "alternatively"],
        "v_triune": [
            "re-check",
            "re-evaluate",
            "re-examine",
            "re-think",
            "recheck",
            "reevaluate",
            "reexamine",
            "reevaluation",
            "rethink",
            "check again",
            "think again",
            "try again",
            "verify",
            "wait",
            "yet",
        ],
        "vlaa": ["alternatively", "double-check", "i should check", "wait"],
        "rstar2": ["but before", "double-check", "rerun", "re-evaluate"],
        "tour": None,
    }


def test_tour_lexicon_is_found_after_responses():
    table = token_statistics(f"{TOUR}/sft_sampled.parquet")
    texts = token_texts(load_tokenizer(f"{TOUR}/policy_sft"), table.token_id)
    found = find_mentions(table, texts, load_lexicons()["tour"])
    assert found.sum() >= 10 and (table.since[found] >= 0).mean() > 0.9


def test_lexicon_outcomes_are_matched_by_length():
    """Long trajectories have more words and are right more often; the word has no effect."""
    rng = np.random.default_rng(0)
    trajectories = []
    texts = []
    for i in range(400):
        long = i % 2
        n = 80 if long else 10
        pieces = np.where(rng.random(n) < 0.02, "wait ", "so ")
        right = float(rng.random() < (0.8 if long else 0.2))
        trajectories.append(rollout(f"t{i}", [[0.5] * n], reward=right))
        texts += pieces.tolist()
    table = token_statistics(trajectories)
    texts = np.array(texts, object)
    row = lexicon_table(table, texts, strata=2)["raml"]
    assert row["rate"][0] == pytest.approx(1000 * (texts == "wait ").mean())
    assert row["rate"][1] < 20 < row["rate"][2]
    assert row["right_with"][0] - row["right_without"][0] > 0.2, "the raw difference is length"
    assert row["matched"][1] < 0 < row["matched"][2]
    assert row["right_with"][1] + row["right_without"][1] == 400
    silent = lexicon_table(table, texts)["rstar2"]
    assert silent["holds"] == 0 and math.isnan(silent["matched"][0])
    assert math.isnan(silent["right_with"][0])


def test_word_entropy_is_that_of_its_first_piece():
    t = rollout("a", [[3, 1, 0.5, 2, 2, 1]])
    texts = np.array(["Hes", "itate", " ", "hesitate ", "so", "!"], object)
    assert word_entropies(token_statistics([t]), texts, min_count=1) == [
        ("hesitate", 2, 2.5),
        ("so", 1, 2.0),
    ]
    assert word_entropies(token_statistics([t]), texts, min_count=2) == [("hesitate", 2, 2.5)]
