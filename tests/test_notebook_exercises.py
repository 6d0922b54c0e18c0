"""Exercises of the committed notebooks: right answers, usual mistakes, and where they are asked.

Run: python -m pytest tests/test_notebook_exercises.py
"""

import itertools
import math
import re
from collections import Counter

import nbformat
import numpy as np
import pytest

from drlib import notebook
from drlib.notebook.execution import find
from drlib.notebook.exercises import EXERCISES
from drlib.notebook.grading import Choice

RIGHT = {  # by hand
    "flawed_teacher": [0.5 * 0.94, 0.5 * 0.94 * 0.5],
    "paired_gain": lambda ours, control: np.mean(
        [np.mean([a[q] - b[q] for q in a if q in b]) for a, b in zip(ours, control)]
    ),
    "form_control": "c",
    "one_more_right": [3 / 7, -5 / 7],
    "loss_mask": lambda tokens: [
        ("<|im_end|>" not in tokens[turn_start(tokens, i) : i + 1])
        and "assistant\n" in tokens[turn_start(tokens, i) : i]
        for i in range(len(tokens))
    ],
    "cut_rollout": "c",
    "two_winners": [-1 / 3, 1 / 6, 1 / 6],
    "naive_slope": lambda ratio, advantage, p: ratio * advantage * (1 + math.log(p)),
    "hidden_failure": "b",
    "fourth_page": [math.log(7 / 3) * 2.2 / 2.02, math.log(7 / 3) * 2.2 / 2.56],
    "chance_shown": lambda scores, right, k: (
        sum(sorted(order, reverse=True).index(order[right]) < k for order in break_ties(scores))
        / len(break_ties(scores))
    ),
    "many_closes": "c",
    "best_guess": [0.6, 0.4],
    "count_values": lambda facts, title, relation: len(
        {s for s, r, v in facts if v == title and f"{r} of" == relation}
        | {v for s, r, v in facts if s == title and r == relation}
    ),
    "no_provable_answer": "b",
    "long_losers": [(7 * 60 / 7 - 30) / 450, 0],
    "teaching_chance": lambda p, group: 1 - p**group - (1 - p) ** group,
    "paid_pages": "b",
    "packed_means": [22 / 10, 7 / 3, (10 / 4 + 2) / 2],
    "next_token_labels": lambda ids, own: [ids[t] if own[t] else -100 for t in range(1, len(ids))],
    "unlearned_end": "c",
    "hard_share": [100 * 0.1 / 1.5, 100 * 0.3439 / (0.9999 + 0.9375 + 0.3439)],
    "isr_ise": lambda needed, calls: [
        len({*needed} & {*sum(calls, [])}) / len(needed),
        len(needed) / len(calls),
    ],
    "ungrounded_answers": "b",
    "sequence_weights": [2, 0, 0, 1],
    "geometric_mask": lambda rho, low, high: (
        [low <= np.prod(rho) ** (1 / len(rho)) <= high] * len(rho)
    ),
    "blind_rule": "c",
    "adam_first_gain": lambda gradients, rate: -rate * sum(map(abs, gradients)),
    "training_mixture": [0.5, (0.0499 * 0.99 + 0.25 * 0.3) / 0.2999],
    "flat_curve": "b",
    "enough_engines": 5,
    "may_start": lambda places, lag, version, batch, done, running: max(
        0, min(places - running, (lag + version + 1) * batch - done - running)
    ),
    "dropped_groups": "a",
    "fifteen_of_sixteen": [1 / 7, -1, 1 / 2],
    "filtered_gradient": lambda chances, rewards, weights: filtered(chances, rewards, weights),
    "lower_penalty": "b",
    "squared_scores": [1 - 0.54, 1 - 0.9606],
    "token_weights": lambda lengths, rule: [
        1 / sum(lengths) if rule == "token" else 1 / (n * len(lengths)) for n in lengths
    ],
    "open_but_hopeless": "b",
    "eleven_and_nine": [25, 0],
    "best_baseline": lambda chances, rewards: best_baseline(chances, rewards),
    "forgotten_mask": "c",
    "replayed_gates": [2 / 3, 1 / 3],
    "same_experts": lambda first, second: np.mean(
        [set(a) == set(b) for a, b in zip(first, second) if -1 not in (a[0], b[0])]
    ),
    "which_replay": "b",
    "two_answers_aged": [1 / 1.36, 1 / 1.36**4],
    "clip_factor": lambda r, a, low, high: 0 if (r > high if a > 0 else r < low) else r * a,
    "k1_as_a_loss": "b",
    "two_sharded_states": [4.4, 32],
    "fewest_devices": lambda frozen, trained, unsharded, device: (
        math.ceil((2 * frozen + 16 * trained) / (device - unsharded)) if device > unsharded else 0
    ),
    "shorter_step": "c",
    "two_wrong_titles": 0.027 + 0.189 + 0.441 / 6,
    "over_samples": lambda rewards, contexts: over_samples(rewards, contexts),
    "thirty_towns": "c",
    "two_leaves": [9, 21],
    "mean_clicks": lambda links, start, goal: mean_clicks(links, start, goal),
    "uncited_page": "c",
    "graded_advantage": 2 / 15,
    "supported_reward": lambda answer, correct, responses: (
        (answer.lower() == correct.lower())
        * (1.0 if answer.lower() in " ".join(responses).lower() else 0.5)
    ),
    "rising_threshold": "c",
    "two_rollouts_lift": [9, 3, 1 / 32],
    "shift_p_value": lambda marks, window: np.mean(
        [
            np.roll(marks, -s)[window].sum() >= np.array(marks)[window].sum()
            for s in range(len(marks))
        ]
    ),
    "lift_after_errors": "c",
    "two_token_answer": [0.980, 0.942, 0.999, 2],
    "partner_difference": lambda deltas, members, thirds: matched_mean(deltas, members, thirds),
    "last_word": "b",
    "forward_step": [-3 / 8, 1 / 2, -1 / 8],
    "reverse_step": lambda p, teacher: reverse_step(p, teacher),
    "mean_with_a_twin": "b",
    "two_of_five": [0.7, 0.1, 0.7],
    "subsets_with_success": lambda c, n, k: 1 - math.comb(n - c, k) / math.comb(n, k),
    "rounds_or_questions": "a",
    "runaway_limit": [23.92, 7.92],
    "grade_program": lambda runs, answers: grade_program(runs, answers),
    "grader_exploit": "c",
    "equal_shares": [0.3072, 0.1106, 0.5821],
    "mixture_shares": lambda rates, weights: shares(
        [w * p * (1 - p) for p, w in zip(rates, weights)]
    ),
    "partial_credit": "a",
    "minimal_pairs": [0, 2, 4],
    "is_unique_minimal": lambda conditions: (
        len(set.intersection(*conditions)) == 1
        and all(
            len(set.intersection(*conditions[:i], *conditions[i + 1 :])) > 1
            for i in range(len(conditions))
        )
    ),
    "second_true_answer": "c",
    "joined_in_1986": [6, 2, 2],
    "may_replace": lambda fact, clue, rest: (
        fact.issubset(clue) and fact != clue and [x in rest for x in clue].count(True) == 1
    ),
    "vaguer_exception": "c",
    "decision_nats": [20, 5, math.log(1024), 1024],
    "masked_loss": lambda logps, kinds, is_correct: (
        -np.mean(
            [
                p
                for p, kind in zip(logps, kinds)
                if kind == "verdict" or is_correct and kind == "own"
            ]
        )
    ),
    "rule_without_question": "b",
    "one_failed_trial": [0.6, 0.4, 0.512],
    "accepts_rollout": lambda loans, gold, calls: (
        final_loans(loans, gold) == final_loans(loans, calls)
        if "set" in str(gold)
        else gold == calls
    ),
    "missing_read": "c",
    "reader_for_95": [54 / 74, 0.1421],
    "is_proved_year": lambda answer, cited, statements: (
        len(answer) == 4
        and answer.isdigit()
        and any(answer in statements[i] for i in cited)
        and all(i in cited or answer not in text for i, text in enumerate(statements))
    ),
    "shared_mistake": "b",
    "four_uneven_experts": [1, 210],
    "relative_excess": lambda probs, biases, k, u: new_biases(probs, biases, k, u),
    "engine_without_biases": "c",
}
MISTAKES = {
    "flawed_teacher": [[0.47, 0.47], [0.5, 0.25], [0.47, 0.11]],
    "paired_gain": [
        lambda ours, control: np.mean(
            [np.mean([*a.values()]) - np.mean([*b.values()]) for a, b in zip(ours, control)]
        ),
        lambda ours, control: np.mean(
            [a[q] - b[q] for a, b in zip(ours, control) for q in a if q in b]
        ),
    ],
    "one_more_right": [[3 / 8, -5 / 8], [4 / 7, -4 / 7]],
    "loss_mask": [
        lambda tokens: [i > tokens.index("assistant\n") for i in range(len(tokens))],
        lambda tokens: [token not in ("<|im_start|>", "<|im_end|>") for token in tokens],
        lambda tokens: [
            tokens[turn_start(tokens, i) + 1 : i + 1][:1] == ["assistant\n"]
            for i in range(len(tokens))
        ],
    ],
    "fourth_page": [[0.556, 0.439], [1.0891, 0.8594]],
    "chance_shown": [
        lambda scores, right, k: float(sorted(scores)[::-1].index(scores[right]) < k),
        lambda scores, right, k: k / len(scores),
        lambda scores, right, k: min(1, k / scores.count(scores[right])),
    ],
    "best_guess": [[0.6, 0.2], [0.6, 1 / 3], [6, 2]],
    "count_values": [
        lambda facts, title, relation: sum(f[:2] == (title, relation) for f in facts),
        lambda facts, title, relation: len(
            {v for s, r, v in facts if s == title and r == relation.removesuffix(" of")}
        ),
    ],
    "two_winners": [[2 / 3, -1 / 3, -1 / 3], [1 / 3, -1 / 6, -1 / 6], [-0.25, 0.125, 0.125]],
    "naive_slope": [lambda r, a, p: r * a, lambda r, a, p: r * a * math.log(p)],
    "long_losers": [[-30 / 450, 0], [0, 30 / 450]],
    "teaching_chance": [lambda p, g: 1 - p**g, lambda p, g: 1 - (1 - p) ** g],
    "packed_means": [[2.2, 2.2, 2.2], [7 / 3, 2.2, 2.25]],
    "next_token_labels": [
        lambda ids, own: [i if m else -100 for i, m in zip(ids[1:], own)],
        lambda ids, own: [i if m else -100 for i, m in zip(ids, own)],
        lambda ids, own: [i for i, m in zip(ids[1:], own[1:]) if m],
    ],
    "hard_share": [[6.67, 33.3], [0.0667, 0.151], [6.67, 6.67]],
    "isr_ise": [
        lambda needed, calls: [
            sum(name in needed for call in calls for name in call) / len(needed),
            len(needed) / len(calls),
        ],
        lambda needed, calls: [
            len({*needed} & {*sum(calls, [])}) / len(needed),
            len({*needed} & {*sum(calls, [])}) / len(calls),
        ],
    ],
    "sequence_weights": [[1.008, 1.008, 1.008, 1], [2.22, 0, 0, 1]],
    "geometric_mask": [
        lambda rho, low, high: [float(low <= np.mean(rho) <= high)] * len(rho),
        lambda rho, low, high: [float(low <= r <= high) for r in rho],
        lambda rho, low, high: [float(low <= np.prod(rho) <= high)] * len(rho),
    ],
    "adam_first_gain": [
        lambda gradients, rate: rate * sum(map(abs, gradients)),
        lambda gradients, rate: -rate * sum(g * g for g in gradients),
        lambda gradients, rate: -rate * abs(sum(gradients)),
    ],
    "training_mixture": [[0.5, 0.645], [0.5, (0.0099 * 0.99 + 0.21 * 0.3) / 0.2199]],
    "enough_engines": [6, 4],
    "may_start": [
        lambda c, lag, v, b, done, running: max(0, (lag + v + 1) * b - done - running),
        lambda c, lag, v, b, done, running: max(
            0, min(c - running, (lag + v) * b - done - running)
        ),
        lambda c, lag, v, b, done, running: min(c - running, (lag + v + 1) * b - done - running),
    ],
    "fifteen_of_sixteen": [[1 / 15, -1, 0.5], [1 / 7, -6 / 7, 0.5], [1 / 7, -1, 1]],
    "filtered_gradient": [
        lambda chances, rewards, weights: filtered(chances, rewards, [1.0] * len(weights)),
        lambda chances, rewards, weights: [
            w * x for w, x in zip(weights, filtered(chances, rewards, [1.0] * len(weights)))
        ],
    ],
    "squared_scores": [[0.54, 0.9606], [0.46, 0.02]],
    "token_weights": [
        lambda lengths, rule: [1 / sum(lengths)] * len(lengths),
        lambda lengths, rule: [1 / n for n in lengths],
    ],
    "eleven_and_nine": [[25, 25], [1, 0], [5, 0]],
    "best_baseline": [np.dot, lambda chances, rewards: np.mean(rewards)],
    "replayed_gates": [[4 / 7, 3 / 7], [0.4, 0.2]],
    "same_experts": [
        lambda first, second: np.mean([a == b for a, b in zip(first, second)]),
        lambda first, second: np.mean([set(a) == set(b) for a, b in zip(first, second)]),
        lambda first, second: np.mean(
            [a[0] == b[0] for a, b in zip(first, second) if -1 not in (a[0], b[0])]
        ),
    ],
    "two_answers_aged": [[1.36, 1.36**4], [0.735, 0.735]],
    "clip_factor": [
        lambda r, a, low, high: r * a if low <= r <= high else 0,
        lambda r, a, low, high: min(max(r, low), high) * a,
        lambda r, a, low, high: 0 if r > high else r * a,
    ],
    "two_sharded_states": [[17.6, 128], [4.4, 36], [0.4, 32]],
    "fewest_devices": [
        lambda frozen, trained, unsharded, device: math.ceil(
            (2 * frozen + 16 * trained + unsharded) / device
        ),
        lambda frozen, trained, unsharded, device: max(
            0, math.ceil((2 * frozen + 4 * trained) / (device - unsharded))
        ),
    ],
    "two_wrong_titles": [0.216, 0.216 + 0.441 / 3, 0.3],
    "over_samples": [
        lambda rewards, contexts: [(3 * r - sum(rewards)) / 2 for r in rewards],
        lambda rewards, contexts: [r - np.dot(rewards, contexts) / sum(contexts) for r in rewards],
    ],
    "two_leaves": [[8, 18], [9, 20], [9, 19]],
    "mean_clicks": [
        lambda links, start, goal: shortest(links, start, goal),
        lambda links, start, goal: mean_clicks(links, start, goal) - 1,
    ],
    "graded_advantage": [0.3, 4 / 5 - 2.8 / 4, -2 / 15],
    "supported_reward": [
        lambda answer, correct, responses: float(answer == correct),
        lambda answer, correct, responses: 1.0 if answer in " ".join(responses) else 0.5,
        lambda answer, correct, responses: (
            (answer.lower() == correct.lower()) * (1.0 if responses else 0.5)
        ),
    ],
    "two_rollouts_lift": [[9, 3, 1 / 8], [6, 3, 1 / 32], [9, 1.5, 1 / 32]],
    "shift_p_value": [
        lambda marks, window: np.mean(
            [np.roll(marks, s)[window].sum() > np.array(marks)[window].sum() for s in marks]
        ),
        lambda marks, window: sum(marks[at] for at in window) / len(window),
    ],
    "two_token_answer": [[0.990, 0.970, 0.999, 2], [0.980, 0.942, -0.999, 2]],
    "partner_difference": [
        lambda deltas, members, thirds: np.mean([d for d, m in zip(deltas, members) if m]),
        lambda deltas, members, thirds: (
            np.mean([d for d, m in zip(deltas, members) if m])
            - np.mean([d for d, m in zip(deltas, members) if not m])
        ),
    ],
    "forward_step": [[3 / 8, -1 / 2, 1 / 8], [-0.397, 0.423, -0.025]],
    "reverse_step": [
        lambda p, teacher: [t - q for q, t in zip(p, teacher)],
        lambda p, teacher: [q * math.log(t / q) for q, t in zip(p, teacher)],
        lambda p, teacher: [-x for x in reverse_step(p, teacher)],
    ],
    "two_of_five": [[0.7, 0.1, 0.4], [0.64, 0.16, 0.7]],
    "subsets_with_success": [
        lambda c, n, k: 1 - (1 - c / n) ** k,
        lambda c, n, k: math.comb(c, k) / math.comb(n, k),
    ],
    "runaway_limit": [[20, 4], [0.1196, 0.0396], [23.92, 23.92]],
    "grade_program": [
        lambda runs, answers: [
            int(all(s == "ok" and a in out for (s, out), a in zip(runs, answers))),
            1,
        ],
        lambda runs, answers: [grade_program(runs, answers)[0], 1],
        lambda runs, answers: [
            int(all(out.split()[-1:] == [a] for (_, out), a in zip(runs, answers))),
            grade_program(runs, answers)[1],
        ],
    ],
    "equal_shares": [[1 / 3, 1 / 3, 1 / 3], [0.2326, 0.6460, 0.1214]],
    "mixture_shares": [
        lambda rates, weights: shares([p * (1 - p) for p in rates]),
        lambda rates, weights: shares([w * p for p, w in zip(rates, weights)]),
        lambda rates, weights: [w * p * (1 - p) for p, w in zip(rates, weights)],
    ],
    "minimal_pairs": [[1, 2, 4], [0, 3, 6]],
    "is_unique_minimal": [
        lambda conditions: len(set.intersection(*conditions)) == 1,
        lambda conditions: (
            len(set.intersection(*conditions)) == 1 and all(len(some) > 1 for some in conditions)
        ),
    ],
    "joined_in_1986": [[3, 2, 2], [7, 2, 1]],
    "may_replace": [
        lambda fact, clue, rest: fact <= clue and len(clue & rest) == 1,
        lambda fact, clue, rest: len(clue) > len(fact) and len(clue & rest) == 1,
        lambda fact, clue, rest: fact < clue,
    ],
    "decision_nats": [[15, 5, 5 * math.log(3), 243], [20, 5, math.log(4), 4]],
    "masked_loss": [
        lambda logps, kinds, is_correct: -np.mean(logps),
        lambda logps, kinds, is_correct: (
            -np.mean([p for p, kind in zip(logps, kinds) if kind != "read"])
        ),
        lambda logps, kinds, is_correct: (
            -sum(p for p, k in zip(logps, kinds) if k == "verdict" or is_correct and k == "own")
            / len(logps)
        ),
    ],
    "one_failed_trial": [[0.64, 0.512, 0.512], [0.4, 0.6, 0.512]],
    "accepts_rollout": [
        lambda loans, gold, calls: final_loans(loans, gold) == final_loans(loans, calls),
        lambda loans, gold, calls: gold == calls,
        lambda loans, gold, calls: sorted(map(str, gold)) == sorted(map(str, calls)),
    ],
    "reader_for_95": [[0.75, 0.158], [0.73, 2.84]],
    "is_proved_year": [
        lambda answer, cited, statements: (
            answer.isdigit() and any(answer in statements[i] for i in cited)
        ),
        lambda answer, cited, statements: (
            any(answer in statements[i] for i in cited)
            and all(i in cited or answer not in text for i, text in enumerate(statements))
        ),
        lambda answer, cited, statements: (
            answer.isdigit() and all(answer in statements[i] for i in cited)
        ),
    ],
    "four_uneven_experts": [[2, 210], [1, 420]],
    "relative_excess": [
        lambda probs, biases, k, u: new_biases(probs, biases, 1, u),
        lambda probs, biases, k, u: new_biases(probs, [0] * len(biases), k, u),
        lambda probs, biases, k, u: new_biases(probs, biases, k, -u),
    ],
}


def final_loans(loans, calls):
    """Write one call after the other."""
    loans = dict(loans)
    for name, loan, *day in calls:
        if name == "set":
            loans[loan] = day[0]
    return loans


def new_biases(probs, biases, k, u):
    """Lower the bias of an expert by its relative excess."""
    load = np.zeros(len(biases))
    for row in probs:
        load[np.argsort(np.add(row, biases))[::-1][:k]] += 1
    return biases - u * (load / load.mean() - 1)


def turn_start(tokens, i):
    return max(at for at in range(i + 1) if tokens[at] == "<|im_start|>")


def grade_program(runs, answers):
    faults = {"setup_failed", "worker_died", "queue_timeout", "service_unavailable"}
    if faults & {status for status, _ in runs}:
        return [0, 0]
    right = [s == "ok" and out.split()[-1:] == [a] for (s, out), a in zip(runs, answers)]
    return [int(all(right)), 1]


def break_ties(scores):
    """All orders of pages as lists of scores in which no two are equal."""
    orders = itertools.permutations(range(len(scores)))
    return [[score + 0.1 * place for score, place in zip(scores, order)] for order in orders]


def shares(values):
    return [value / sum(values) for value in values]


def over_samples(rewards, contexts):
    """Leave-one-out over all contexts, by counts."""
    total, size = np.dot(rewards, contexts), sum(contexts)
    return [reward - (total - reward) / (size - 1) for reward in rewards]


def mean_clicks(links, start, goal):
    """Iterate h = 1 + mean of h over the links."""
    clicks = np.zeros(len(links))
    for _ in range(5000):
        clicks = np.array([1 + clicks[targets].mean() for targets in links])
        clicks[goal] = 0
    return clicks[start]


def shortest(links, start, goal):
    """Clicks of the shortest way."""
    reached, clicks = {start}, 0
    while goal not in reached:
        reached |= {target for page in reached for target in links[page]}
        clicks += 1
    return clicks


def filtered(chances, rewards, weights):
    """Equation (2) of notebook 18."""
    baseline = np.dot(chances, rewards)
    pushed = np.multiply(weights, np.subtract(rewards, baseline))
    return np.multiply(chances, pushed - np.dot(chances, pushed))


def matched_mean(deltas, members, thirds):
    """Mean change of the members less the mean of the others in their third."""
    table = np.array([deltas, members, thirds]).T
    found = []
    for third in set(thirds):
        part = table[table[:, 2] == third]
        own, others = part[part[:, 1] == 1, 0], part[part[:, 1] == 0, 0]
        if len(others):
            found += list(own - others.mean())
    return np.mean(found)


def reverse_step(student, teacher):
    """p (A - mean of A), equation (2) of notebook 25."""
    advantages = [math.log(t / q) for q, t in zip(student, teacher)]
    mean = sum(q * a for q, a in zip(student, advantages))
    return [q * (a - mean) for q, a in zip(student, advantages)]


def best_baseline(chances, rewards):
    """Equation (4) of notebook 02, one sum per answer."""
    squares = [
        sum((float(k == j) - p) ** 2 for j, p in enumerate(chances)) for k in range(len(chances))
    ]
    weights = [p * s for p, s in zip(chances, squares)]
    return sum(w * r for w, r in zip(weights, rewards)) / sum(weights)


@pytest.mark.parametrize("name", sorted(EXERCISES))
def test_answers_by_hand_are_right(name):
    assert EXERCISES[name].grade(RIGHT[name]).startswith("right: ")


@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        pytest.param(name, mistake, id=f"{name}-{at}")
        for name, many in MISTAKES.items()
        for at, mistake in enumerate(many)
    ],
)
def test_usual_mistakes_are_not_right(name, mistake):
    assert EXERCISES[name].grade(mistake).startswith(("close: ", "not yet: "))


@pytest.mark.parametrize("name", [n for n, e in EXERCISES.items() if isinstance(e, Choice)])
def test_every_wrong_option_has_an_explanation(name):
    exercise = EXERCISES[name]
    assert exercise.right not in exercise.wrong
    for option in exercise.wrong:
        assert exercise.grade(option).startswith(f"not yet: {exercise.wrong[option]}")


def asked(path):
    """Yield (exercise, text above it, stored output) of each check in a notebook."""
    text = ""
    for cell in nbformat.read(path, 4).cells:
        text = cell.source if cell.cell_type == "markdown" else text
        for name in re.findall(r'notebook\.check\(\s*"(\w+)"', cell.source):
            yield name, text, "".join(output.get("text", "") for output in cell.outputs)


PAGES = {path.stem: list(asked(path)) for path in find(None)}


def test_every_exercise_is_asked_once():
    assert Counter(name for page in PAGES.values() for name, _, _ in page) == Counter([*EXERCISES])


@pytest.mark.parametrize("stem", [stem for stem, page in PAGES.items() if page])
def test_notebook_and_solution_agree(stem):
    """The page is unanswered and lists the options; its solution passes every check."""
    page, solved = PAGES[stem], list(asked(find(stem)[0].parent / "solutions" / f"{stem}.ipynb"))
    assert [name for name, _, _ in page] == [name for name, _, _ in solved]
    for name, question, stored in page:
        assert stored.startswith("no answer yet: "), name
        if isinstance(EXERCISES[name], Choice):
            options = {EXERCISES[name].right, *EXERCISES[name].wrong}
            assert set(re.findall(r"^- (\w):", question, re.M)) == options
    for name, _, stored in solved:
        assert re.search("^right: ", stored, re.M), name


def test_check_prints_short_lines(capsys):
    notebook.check("enough_engines", 5)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("right: ") and max(map(len, lines)) <= 96


def test_unknown_exercise_is_named():
    with pytest.raises(ValueError, match="unknown exercise 'two_winer': did you mean 'two_winn"):
        notebook.check("two_winer", 1)
