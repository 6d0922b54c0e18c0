"""Exercises of the notebooks by name. The solutions are in notebooks/solutions.

A name does not contain the number of its notebook, so notebooks can be renumbered.
"""

import math
from random import Random

import torch

from drlib.analysis.plots import compute_surrogate
from drlib.notebook.grading import Choice, Exercise, Function, Numbers
from drlib.registry import Registry
from drlib.rl.advantages import leave_one_out
from drlib.rl.divergences import CORRECTION_BOUNDS, importance_correction, weight_metrics
from drlib.rl.losses import LossConfig, policy_loss
from drlib.rl.staleness import admission_capacity
from drlib.training.planner import Rates, Workload, step_time

EXERCISES = Registry("exercise")  # name -> Exercise


def _add(name: str, exercise: Exercise) -> None:
    EXERCISES.register(name, exercise)


# the loss on one token per rollout, over the three words of notebook 05


def _loss_gradient(probabilities, words, advantages, weights=None) -> torch.Tensor:
    """Return d policy_loss / d logits for single-token rollouts; float64 [V]."""
    logits_V = torch.tensor(probabilities, dtype=torch.float64).log().requires_grad_()
    logp_N1 = logits_V.log_softmax(0)[list(words), None]
    mask_N1 = torch.ones_like(logp_N1, dtype=torch.bool)
    weights_N = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    advantages_N = torch.as_tensor(advantages, dtype=torch.float64)
    loss, _ = policy_loss(logp_N1, logp_N1.detach(), advantages_N, mask_N1, weights_B=weights_N)
    return torch.autograd.grad(loss, logits_V)[0]


# ---------------------------------------------------------------------------------------------
# GRPO by hand


def _two_winners():
    advantages_N = leave_one_out([1.0, 1.0, 0.0, 0.0], [0] * 4)
    return _loss_gradient([0.25, 0.5, 0.25], [0, 0, 1, 2], advantages_N)


def _naive_slope(ratio, advantage, probability):
    logp = torch.tensor(probability, dtype=torch.float64).log().requires_grad_()
    behaviour = logp.detach() - math.log(ratio)
    return torch.autograd.grad((logp - behaviour).exp() * advantage * logp, logp)[0]


_add(
    "two_winners",
    Numbers(
        how="three numbers for Paris, Rome and Oslo, for example [0.1, -0.2, 0.1]",
        hint="each advantage compares a reward with the mean of the other three. The advantages "
        "add up to 0, so a word's entry is -1/4 times the advantages of those who said it.",
        why="the advantages are 2/3, 2/3, -2/3, -2/3; two winners share the word Paris.",
        expected=_two_winners,
    ),
)
_add(
    "naive_slope",
    Function(
        how="a function of ratio, advantage and probability that returns a number",
        hint="r is exp(log pi - constant), so it depends on log pi as well: use the product rule.",
        why="r A (1 + log pi) is negative for a good token with pi below 1/e = 0.37: it would be "
        "pushed down. With the stop-gradient the slope is r A for any pi.",
        reference=_naive_slope,
        draw=lambda rng: (
            round(rng.uniform(0.5, 1.5), 2),
            rng.choice([-1.0, 1.0]),
            round(rng.uniform(0.05, 0.95), 2),
        ),
    ),
)
_add(
    "hidden_failure",
    Choice(
        how='the letter of an option, for example "a"',
        hint="Compute the mean of the others for a rollout that failed, once with the long one "
        "among them, once without.",
        why="without the long failure the other two losers compare themselves with a mean of 1/2 "
        "instead of 1/3. The baseline then hides a failure that did happen.",
        right="b",
        wrong={
            "a": "With the long failure in it, the mean of the others is lower, not higher.",
            "c": "The baselines differ: one has three rewards in it, the other two.",
            "d": "The others of the winner earned 0 either way.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# agentic RL


def _long_losers():
    rewards_N, lengths_N = [1.0] + [0.0] * 7, torch.tensor([30] + [60] * 7)
    mask_NT = torch.arange(60) < lengths_N[:, None]
    logp_NT = torch.zeros(8, 60)
    advantages_N = leave_one_out(rewards_N, [0] * 8)
    configs = [LossConfig(aggregate=name) for name in ("token", "sequence")]
    return [policy_loss(logp_NT, logp_NT, advantages_N, mask_NT, c)[0].item() for c in configs]


def _teaching_chance(solve_rate, group):
    """Add the probabilities of all outcomes of a group that have an advantage."""
    chance = 0.0
    for right in range(group + 1):
        rewards = [1.0] * right + [0.0] * (group - right)
        probability = solve_rate**right * (1 - solve_rate) ** (group - right)
        if leave_one_out(rewards, [0] * group).any():
            chance += math.comb(group, right) * probability
    return chance


_add(
    "long_losers",
    Numbers(
        how='two numbers, the loss with "token" and with "sequence", for example [0.1, -0.2]',
        hint="the winner has advantage 1, each loser -1/7. Multiply by the tokens of each rollout "
        "and divide by all tokens; then once more with one mean per rollout. The loss has a minus.",
        why="by token, 420 tokens of losers weigh 60 against the 30 of the winner. By sequence "
        "every rollout has the same weight, and the advantages add up to 0.",
        expected=_long_losers,
    ),
)
_add(
    "teaching_chance",
    Function(
        how="a function of the solve rate and the group size that returns a number",
        hint="a group teaches nothing in two cases: all of its rollouts are right, or none is.",
        why="1 - p^G - (1-p)^G is about G p for a rare skill, so twice the rollouts teach twice as "
        "often there; at p = 1/2 a larger group adds almost nothing.",
        reference=_teaching_chance,
        draw=lambda rng: (round(rng.uniform(0.02, 0.98), 2), rng.randrange(2, 12)),
    ),
)
_add(
    "paid_pages",
    Choice(
        how='the letter of an option, for example "a"',
        hint="Look for the cheapest way to have every page of the chain shown once.",
        why="one search with many queries shows the pages of the chain by accident, and the answer "
        "earns nothing. The reward of the answer alone cannot be cheated in this way.",
        right="b",
        wrong={
            "a": "Nothing is paid for an answer, so a shorter rollout earns less.",
            "c": "A page is paid the first time only.",
            "d": "Rollouts differ in the pages that they show, so rewards have variance.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# stability


def _sequence_weights():
    rho_1T = torch.full((1, 100), 1.008).log()
    arguments = (rho_1T, torch.zeros(1, 100), torch.ones(1, 100).bool())
    return [
        importance_correction(*arguments, kind, level="sequence")[0, 0].item()
        for kind in CORRECTION_BOUNDS
    ]


def _geometric(ratios, low, high):
    rho_1T = torch.tensor([ratios], dtype=torch.float64).log()
    every_1T = torch.ones(rho_1T.shape, dtype=torch.bool)
    arguments = (rho_1T, torch.zeros_like(rho_1T), every_1T, "geometric")
    return importance_correction(*arguments, bounds=(low, high))[0]


_add(
    "sequence_weights",
    Numbers(
        how="four numbers for truncate, mask, icepop and geometric, for example [1, 1, 0.5, 0]",
        hint="100 factors of 1.008 have a product of 2.2; the geometric mean of equal factors is "
        "that factor.",
        why="the product leaves the range although each token is off by less than 1%. It punishes "
        "length; the geometric mean does not.",
        expected=_sequence_weights,
    ),
)
_add(
    "geometric_mask",
    Function(
        how="a function of a list of ratios and two bounds that returns one weight per token",
        hint="the geometric mean is the exponential of the mean logarithm; all tokens of a rollout "
        "get the same weight, 1 or 0.",
        why="the rollout is kept or dropped as a whole, and kept tokens are not re-weighted.",
        reference=_geometric,
        draw=lambda rng: (
            [round(rng.uniform(0.5, 1.6), 2) for _ in range(rng.randrange(2, 6))],
            rng.choice([0.7, 0.8, 0.9]),
            rng.choice([1.1, 1.25]),
        ),
    ),
)
_add(
    "blind_rule",
    Choice(
        how='the letter of an option, for example "a"',
        hint="The arm scores each sample with its own current log-probabilities. Put that into "
        "equation (2).",
        why="every weight is 1, so the effective sample size is 1 as well, whatever happens. A "
        "number that is computed from the faulty record cannot report the fault.",
        right="c",
        wrong={
            "a": "The samples are old, but the rule does not see their age.",
            "b": "The rule has no other input than the effective sample size.",
            "d": "The weights do not spread in this arm.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# asynchronous RL

_UNIT_RATES = Rates(generate_tokens_s=1.0, train_tokens_s=1.0)


def _draw_admission(rng: Random) -> tuple:
    batch, lag, version = rng.choice([4, 8, 48]), rng.randrange(4), rng.randrange(6)
    accepted = batch * version + rng.randrange(batch)
    concurrency = rng.choice([8, 16, 64])
    return concurrency, lag, version, batch, accepted, rng.randrange(concurrency)


_add(
    "enough_engines",
    Numbers(
        how="a whole number",
        hint="side by side, a step takes the longer of 30 s / N and 6 s.",
        why="from N = 5 on sampling takes 6 s or less, and the learner is the slower one.",
        expected=lambda: step_time(Workload(30, 6), _UNIT_RATES).knee,
        tolerance=0,
    ),
)
_add(
    "may_start",
    Function(
        how="a function of six whole numbers that returns a whole number",
        hint="two limits apply, and the smaller one counts: the places that are free, and equation "
        "(2) less the groups that have started. It is never below 0.",
        why="age limits a trainer with many places, and places one that allows old groups.",
        reference=lambda *arguments: max(0, admission_capacity(*arguments)),
        draw=_draw_admission,
    ),
)
_add(
    "dropped_groups",
    Choice(
        how='the letter of an option, for example "a"',
        hint="Which rollouts see many updates between their first and last token?",
        why="long rollouts are older when they end, so they are dropped more often. The policy is "
        "trained on fewer of the questions that need many calls, and its training accuracy looks "
        "better than it is.",
        right="a",
        wrong={
            "b": "A rollout is dropped for its age, not for its reward.",
            "c": "Long rollouts end later, so they are older than short ones.",
            "d": "Dropping depends on the length, so it is not at random.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# policy gradient


def _sample_gradients(chances, rewards, baseline) -> torch.Tensor:
    """Return minus the loss gradient of every single sample, float64 [V samples, V logits]."""
    gradients = [_loss_gradient(chances, [k], [r - baseline]) for k, r in enumerate(rewards)]
    return -torch.stack(gradients)


def _first_logit_variance():
    chances_V = torch.tensor([0.5, 0.5], dtype=torch.float64)
    found = []
    for baseline in (0.0, 10.0):
        first_V = _sample_gradients([0.5, 0.5], [11.0, 9.0], baseline)[:, 0]
        found.append((chances_V @ (first_V - chances_V @ first_V) ** 2).item())
    return found


def _best_baseline(chances, rewards):
    """Return the minimum of the parabola through three variances of the loss gradient."""
    chances_V = torch.tensor(chances, dtype=torch.float64)
    squares = [
        (chances_V @ _sample_gradients(chances, rewards, b).square()).sum().item()
        for b in (-1.0, 0.0, 1.0)
    ]
    left, middle, right = squares
    return (left - right) / (2 * (left - 2 * middle + right))


def _draw_bandit(rng: Random) -> tuple:
    parts = [rng.randrange(1, 9) for _ in range(rng.randrange(2, 5))]
    chances = [round(part / sum(parts), 3) for part in parts]
    chances[0] = round(1 - sum(chances[1:]), 3)
    return chances, [rng.choice([0.0, 0.5, 1.0, 2.0]) for _ in parts]


_add(
    "eleven_and_nine",
    Numbers(
        how="two numbers, without a baseline and with b = 10, for example [1.5, 0.5]",
        hint="the score of the first logit is +1/2 or -1/2. Multiply it by R - b for each of the "
        "two samples; the variance is the mean square less the squared mean.",
        why="5.5 and -4.5 have the mean 0.5 and the variance 25. With b = 10 both samples give "
        "0.5: the gradient is exact after one sample.",
        expected=_first_logit_variance,
    ),
)
_add(
    "best_baseline",
    Function(
        how="a function of a list of probabilities and a list of rewards that returns a number",
        hint="the squared score of answer k is (1 - p_k)^2 plus the squares of all other "
        "probabilities. Average it with and without the reward.",
        why="rare answers have large scores, so their rewards count more than their probability.",
        reference=_best_baseline,
        draw=_draw_bandit,
    ),
)
_add(
    "forgotten_mask",
    Choice(
        how='the letter of an option, for example "a"',
        hint="Write down the advantages of the rollouts with the page and of those without it.",
        why="rollouts with the page have positive advantages more often, so its tokens are "
        "reinforced like the policy's own. The policy learns to write pages itself.",
        right="c",
        wrong={
            "a": "They add up to 0 over the group, but the page is not in all rollouts alike.",
            "b": "The loss does not know who wrote a token; only the mask does.",
            "d": "A negative advantage would be needed.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# old samples


def _two_answers_aged():
    log_ratio_N = torch.tensor([0.8 / 0.5, 0.2 / 0.5], dtype=torch.float64).log()
    ess = weight_metrics(log_ratio_N, torch.ones(2, dtype=torch.bool))["ess"]
    return [ess, ess**4]


def _clip_factor(ratio, advantage, low, high):
    config = LossConfig(epsilon_low=1 - low, epsilon_high=high - 1)
    return compute_surrogate([ratio], advantage, config)[1][0]


_add(
    "two_answers_aged",
    Numbers(
        how="two numbers, for one token and for four, for example [0.9, 0.5]",
        hint="square the ratios 1.6 and 0.4, average with the old probabilities, invert. "
        "Independent tokens multiply.",
        why="one token keeps 74% of its samples, four tokens 29%: the product spreads.",
        expected=_two_answers_aged,
    ),
)
_add(
    "clip_factor",
    Function(
        how="a function of ratio, advantage, low and high that returns a number",
        hint="go through the four cases: which of the two terms is smaller, and does it depend on "
        "the ratio?",
        why="the factor is 0 where the ratio has left the range in the direction of the advantage, "
        "and r A everywhere else.",
        reference=_clip_factor,
        draw=lambda rng: (
            round(rng.uniform(0.3, 1.9), 2),
            rng.choice([-1.0, -0.5, 0.5, 1.0]),
            rng.choice([0.75, 0.8]),
            rng.choice([1.205, 1.285]),
        ),
    ),
)
_add(
    "k1_as_a_loss",
    Choice(
        how='the letter of an option, for example "a"',
        hint="Differentiate k1 of one sample, then average over the samples.",
        why="the gradient of k1 is the score, and its mean is 0. The value of k1 is unbiased, its "
        "gradient is not that of the KL.",
        right="b",
        wrong={
            "a": "The value is unbiased. What moves the policy is the gradient.",
            "c": "That is the gradient of k3.",
            "d": "A push away from the reference would need a mean that is not 0.",
        },
    ),
)
