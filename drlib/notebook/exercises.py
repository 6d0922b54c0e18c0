"""Exercises of the notebooks by name. The solutions are in notebooks/solutions.

A name does not contain the number of its notebook, so notebooks can be renumbered.
"""

import math
from itertools import permutations
from random import Random
from types import SimpleNamespace

import torch

from drlib.analysis.environment_plots import gradient_shares
from drlib.analysis.plots import compute_surrogate
from drlib.evaluation.measures import pass_at_k, pass_hat_k
from drlib.models.routing_replay import agreement, compute_gates
from drlib.notebook.grading import Choice, Function, Numbers
from drlib.registry import Registry
from drlib.rl.advantages import leave_one_out
from drlib.rl.distillation import full_distillation_loss
from drlib.rl.divergences import CORRECTION_BOUNDS, importance_correction, weight_metrics
from drlib.rl.losses import LossConfig, policy_loss
from drlib.rl.staleness import admission_capacity
from drlib.task import Task, is_correct
from drlib.training.planner import Rates, Workload, step_time

EXERCISES = Registry("exercise")  # name -> Exercise


def _loss_gradient(probabilities, words, advantages) -> torch.Tensor:
    """Return d policy_loss / d logits for single-token rollouts; float64 [V]."""
    logits_V = torch.tensor(probabilities, dtype=torch.float64).log().requires_grad_()
    logp_N1 = logits_V.log_softmax(0)[list(words), None]
    mask_N1 = torch.ones_like(logp_N1, dtype=torch.bool)
    advantages_N = torch.as_tensor(advantages, dtype=torch.float64)
    loss, _ = policy_loss(logp_N1, logp_N1.detach(), advantages_N, mask_N1)
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


EXERCISES.register(
    "two_winners",
    Numbers(
        how="three numbers for Paris, Rome and Oslo, for example [0.1, -0.2, 0.1]",
        hint="each advantage compares a reward with the mean of the other three. The advantages "
        "add up to 0, so a word's entry is -1/4 times the advantages of those who said it.",
        why="the advantages are 2/3, 2/3, -2/3, -2/3; two winners share the word Paris.",
        expected=_two_winners,
    ),
)
EXERCISES.register(
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
EXERCISES.register(
    "hidden_failure",
    Choice(
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


EXERCISES.register(
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
EXERCISES.register(
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
EXERCISES.register(
    "paid_pages",
    Choice(
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


EXERCISES.register(
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
EXERCISES.register(
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
EXERCISES.register(
    "blind_rule",
    Choice(
        hint="The arm scores each sample with its own current log-probabilities. Put that into "
        "the formula of the effective sample size.",
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


EXERCISES.register(
    "enough_engines",
    Numbers(
        how="a whole number",
        hint="side by side, a step takes the longer of 30 s / N and 6 s.",
        why="from N = 5 on sampling takes 6 s or less, and the learner is the slower one.",
        expected=lambda: step_time(Workload(30, 6), _UNIT_RATES).knee,
        tolerance=0,
    ),
)
EXERCISES.register(
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
EXERCISES.register(
    "dropped_groups",
    Choice(
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


EXERCISES.register(
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
EXERCISES.register(
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
EXERCISES.register(
    "forgotten_mask",
    Choice(
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
# routing replay


def _replayed_gates():
    logits_NE = torch.tensor([[0.4, 0.3, 0.2, 0.1]], dtype=torch.float64).log()
    router = SimpleNamespace(norm_topk_prob=True)
    return compute_gates(router, logits_NE, torch.tensor([[0, 2]]))[0]


def _same_experts(first, second):
    records = (torch.tensor(one)[None] for one in (first, second))  # one layer
    return agreement(*records).item()


def _draw_records(rng: Random) -> tuple:
    first = [rng.sample(range(4), 2) for _ in range(rng.randrange(4, 9))]
    second = [rng.choice([pair, pair[::-1], rng.sample(range(4), 2)]) for pair in first]
    missing = rng.randrange(len(first))
    first[missing] = [-1, -1]
    second[missing] = rng.choice([[-1, -1], second[missing]])
    return first, second


EXERCISES.register(
    "replayed_gates",
    Numbers(
        how="two numbers, for example [0.9, 0.1]",
        hint="equation (1) with the recorded set: the sum in the denominator has only the experts "
        "0 and 2.",
        why="0.4 / 0.6 and 0.2 / 0.6. The trainer's own set would be 0 and 1, with gates 4/7 and "
        "3/7.",
        expected=_replayed_gates,
    ),
)
EXERCISES.register(
    "same_experts",
    Function(
        how="a function of two lists of lists of whole numbers that returns a share",
        hint="the order of the experts does not matter, because their outputs are added. Divide by "
        "the number of tokens that have a record in both.",
        why="sets are compared, and tokens without a record are in neither the numerator nor the "
        "denominator.",
        reference=_same_experts,
        draw=_draw_records,
    ),
)
EXERCISES.register(
    "which_replay",
    Choice(
        hint="Write down the weights and the arithmetic that made each record, and those of the "
        "trainer's own pass.",
        why="with one update per batch, the old policy has the same weights and arithmetic as the "
        "trainer, so R2 replays the experts that the trainer selects anyway. Only the engine's "
        "record differs.",
        right="b",
        wrong={
            "a": "Before the first update the old policy and the policy in training are the same.",
            "c": "One of the two records equals the trainer's own selection.",
            "d": "The weights are the same, the rounding is not.",
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


EXERCISES.register(
    "two_answers_aged",
    Numbers(
        how="two numbers, for one token and for four, for example [0.9, 0.5]",
        hint="square the ratios 1.6 and 0.4, average with the old probabilities, invert. "
        "Independent tokens multiply.",
        why="one token keeps 74% of its samples, four tokens 29%: the product spreads.",
        expected=_two_answers_aged,
    ),
)
EXERCISES.register(
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
EXERCISES.register(
    "k1_as_a_loss",
    Choice(
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

# ---------------------------------------------------------------------------------------------
# rewards

_ANSWERS = ("Swedish krona", "Norwegian krona", "SWEDISH KRONA")
_RESPONSES = ("currency Swedish krona.", "code SEK.", "the krona", "Currency: swedish KRONA")


def _supported_reward(answer, correct, responses):
    task = Task("exercise", "", correct, "search", "")
    found = any(answer.casefold() in response.casefold() for response in responses)
    return float(is_correct(answer, task)) * (1.0 if found else 0.5)


EXERCISES.register(
    "graded_advantage",
    Numbers(
        how="a number",
        hint="compare the F1 of B with the mean of the other three, two of which are now right.",
        why="4/5 - 2/3. The reward of B did not change; its advantage fell from 0.3, because the "
        "group became better.",
        expected=lambda: leave_one_out([1.0, 4 / 5, 1.0, 0.0], [0] * 4)[1].item(),
    ),
)
EXERCISES.register(
    "supported_reward",
    Function(
        how="a function of an answer, the correct answer and a list of responses that returns a "
        "number",
        hint="first compare the answer with the correct one, then look for it in every response; "
        "capital letters do not count.",
        why="a right answer without a source stays above every wrong one, so the reward cannot be "
        "raised by a supported wrong answer.",
        reference=_supported_reward,
        draw=lambda rng: (
            rng.choice(_ANSWERS),
            "Swedish krona",
            rng.sample(_RESPONSES, rng.randrange(3)),
        ),
    ),
)
EXERCISES.register(
    "rising_threshold",
    Choice(
        hint="A pair holds until its share of the steps. B has F1 0.8 and C 0.5.",
        why="0.6 pays B and not C in the first half, 0.99 neither in the second.",
        right="c",
        wrong={
            "a": "With 0.4, C is paid in the first half.",
            "b": "With 0.99 first, B is not paid in the first half.",
            "d": "With 0.7, B is still paid in the second half.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# distillation and merging


def _forward_step():
    logits_V = torch.tensor([1 / 2, 1 / 4, 1 / 4], dtype=torch.float64).log().requires_grad_()
    teacher_V = torch.tensor([1 / 8, 3 / 4, 1 / 8], dtype=torch.float64)
    forward = (teacher_V * (teacher_V.log() - logits_V.log_softmax(0))).sum()
    return -torch.autograd.grad(forward, logits_V)[0]


def _reverse_step(student, teacher):
    logits_1V = torch.tensor([student]).log().requires_grad_()
    loss = full_distillation_loss(logits_1V, torch.tensor([teacher]).log(), 1.0)
    return -torch.autograd.grad(loss, logits_1V)[0][0]


def _draw_policies(rng: Random) -> tuple:
    size = rng.randrange(2, 5)
    pair = []
    for _ in range(2):
        parts = [rng.randrange(1, 9) for _ in range(size)]
        rest = [round(part / sum(parts), 3) for part in parts[1:]]
        pair.append([round(1 - sum(rest), 3), *rest])
    return tuple(pair)


EXERCISES.register(
    "forward_step",
    Numbers(
        how="three numbers for search, visit and answer, for example [0.1, -0.3, 0.2]",
        hint="a step along the negative gradient adds teacher minus student.",
        why="the reverse KL gave (-0.397, 0.423, -0.025). It hardly lowers the word 'answer', "
        "because it weights the log-ratio with the student's probability.",
        expected=_forward_step,
    ),
)
EXERCISES.register(
    "reverse_step",
    Function(
        how="a function of two lists of probabilities, student and teacher, that returns a list",
        hint="the advantage of a word is the log of teacher over student. Subtract its mean under "
        "the student, and weight with the student's probability.",
        why="it is the policy gradient of a bandit whose rewards are the teacher's log-ratios.",
        reference=_reverse_step,
        draw=_draw_policies,
    ),
)
EXERCISES.register(
    "mean_with_a_twin",
    Choice(
        hint="Which weights of the two policies have the same task?",
        why="the same unit has another place in the twin. In the order of the trained policy, the "
        "twin is the trained policy, and the line between them has no barrier.",
        right="b",
        wrong={
            "a": "Both have the same norm already: the same numbers in another order.",
            "c": "The barrier is in the middle of the line, whatever the policy at its end.",
            "d": "Any mixture of the two adds weights of different units.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# evaluation


def _two_of_five():
    orders = list(permutations((1, 1, 0, 0, 0)))
    first_two = sum(any(order[:2]) for order in orders) / len(orders)
    return [pass_at_k(2, 5, 2), pass_hat_k(2, 5, 2), first_two]


def _draw_counts(rng: Random) -> tuple:
    n = rng.randrange(3, 10)
    return rng.randrange(n), n, rng.randrange(1, n // 2 + 2)


EXERCISES.register(
    "two_of_five",
    Numbers(
        how="three numbers: pass@2, pass^2 and the average over orders, for example [0.5, 0.3, 0]",
        hint="there are ten pairs of five answers. Count those with a correct answer and those "
        "with two.",
        why="three of ten pairs have no correct answer, one has two. Looking at the first two "
        "gives the same on average; a single order gives 0 or 1.",
        expected=_two_of_five,
    ),
)
EXERCISES.register(
    "subsets_with_success",
    Function(
        how="a function of three whole numbers that returns a number",
        hint="equation (2): one minus the share of subsets of size k without a correct answer. "
        "math.comb(a, b) is 0 for b > a.",
        why="all n answers are used: the estimate is unbiased and varies less than k new answers.",
        reference=pass_at_k,
        draw=_draw_counts,
    ),
)
EXERCISES.register(
    "rounds_or_questions",
    Choice(
        hint="Rounds average over the chance within a question. Which variance is left?",
        why="most of the variance is between questions, and only more questions lower it.",
        right="a",
        wrong={
            "b": "Three rounds lower the variance within a question, the smaller part here.",
            "c": "Equal designs need questions that are all solved with the same probability.",
            "d": "The variance between these three kinds of question is known: 0.135.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# environments


def _equal_shares():
    weights = {rate: 1 / (rate * (1 - rate)) for rate in (0.1, 0.5, 0.95)}
    return [weight / sum(weights.values()) for weight in weights.values()]


def _mixture_shares(rates, weights):
    named = (dict(enumerate(values)) for values in (rates, weights))
    return list(gradient_shares(*named).values())


def _draw_mixture(rng: Random) -> tuple:
    size = rng.randrange(2, 5)
    rates = [round(rng.uniform(0.02, 0.98), 2) for _ in range(size)]
    return rates, [rng.choice([0.1, 0.2, 0.5, 1.0]) for _ in range(size)]


EXERCISES.register(
    "equal_shares",
    Numbers(
        how="three numbers that add up to 1, for example [0.2, 0.3, 0.5]",
        hint="by equation (2), the product w p (1 - p) must be the same for all three.",
        why="the weights are proportional to 1 / (p (1 - p)). Most questions go to the "
        "environment that is nearly solved, and the same signal needs 1.56 times as many.",
        expected=_equal_shares,
    ),
)
EXERCISES.register(
    "mixture_shares",
    Function(
        how="a function of two lists, solve rates and shares of the questions, that returns a list",
        hint="equation (2); the shares of the questions need not add up to 1.",
        why="medium difficulty has most of the gradient; what is always or never solved has none.",
        reference=_mixture_shares,
        draw=_draw_mixture,
    ),
)
EXERCISES.register(
    "partial_credit",
    Choice(
        hint="Compare both rewards for a rollout that stops five below the number.",
        why="groups in which nobody reaches the number get a gradient. But stopping early pays "
        "almost as well as finishing, and a sum that is nearly right is wrong.",
        right="a",
        wrong={
            "b": "The verifier reads the state. An answer without a call leaves the counter at 0.",
            "c": "The number of calls is in neither reward.",
            "d": "exact_match pays the number alone, partial credit also what is near it.",
        },
    ),
)
