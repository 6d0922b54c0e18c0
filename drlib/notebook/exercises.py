"""Exercises of the notebooks by name. The solutions are in notebooks/solutions.

A name does not contain the number of its notebook, so notebooks can be renumbered.
"""

import math
import re
from itertools import combinations, permutations, product
from random import Random
from types import SimpleNamespace

import numpy as np
import torch

from drlib.agents.heavy import vote
from drlib.analysis.environment_plots import gradient_shares
from drlib.analysis.plots import compute_surrogate
from drlib.analysis.scripted_crafting import precision
from drlib.demonstrations import agentscaler
from drlib.demonstrations.funnel import seeking
from drlib.demonstrations.oracle import DemonstratorFaults, Episode
from drlib.evaluation.measures import pass_at_k, pass_hat_k
from drlib.models.router_bias import max_violation, select_biased_experts
from drlib.models.routing_replay import agreement, compute_gates
from drlib.notebook.grading import Choice, Function, Numbers
from drlib.questions.checks import iter_weakened, measure_effort
from drlib.questions.queries import And, Proj, Range, evaluate_query
from drlib.questions.wording import mentions
from drlib.registry import Registry
from drlib.rl.advantages import leave_one_out
from drlib.rl.curriculum import Curriculum
from drlib.rl.distillation import full_distillation_loss
from drlib.rl.divergences import (
    CORRECTION_BOUNDS,
    importance_correction,
    mean_per_row,
    weight_metrics,
)
from drlib.rl.losses import LossConfig, policy_loss
from drlib.rl.resampling import roc_quotas
from drlib.rl.staleness import admission_capacity
from drlib.sandbox.result import ENV_FAULTS
from drlib.task import Task, is_correct
from drlib.training.memory_model import Load, state_bytes
from drlib.training.planner import Rates, Workload, step_time
from drlib.worlds.graph import Graph, Node
from drlib.worlds.store import Store

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
# the tour


def _flawed_teacher():
    faults = DemonstratorFaults()
    one_hop = (1 - faults.guess) * (1 - faults.loop)
    return [one_hop, one_hop * (1 - faults.stop_early)]


def _paired_gain(after_rl, control):
    gains = []
    for ours, theirs in zip(after_rl, control):
        both = ours.keys() & theirs.keys()
        gains.append(sum(ours[q] - theirs[q] for q in both) / len(both))
    return sum(gains) / len(gains)


def _draw_scores(rng: Random) -> tuple:
    """Draw scores of two policies: one dictionary per seed, 3 to 5 questions, 2 in common."""
    both = ([], [])
    for _ in range(rng.randint(2, 3)):
        for scores in both:
            questions = ["q1", "q2", *rng.sample(["q3", "q4", "q5"], rng.randint(1, 3))]
            scores.append({q: rng.choice([0.0, 0.5, 1.0]) for q in questions})
    return both


EXERCISES.register(
    "flawed_teacher",
    Numbers(
        how="two numbers, for one hop and for two, for example [0.9, 0.8]",
        hint="a rollout is right if none of its possible errors happens: multiply 1 minus each "
        "rate. With one hop there is no hop to stop after.",
        why="half of the rollouts guess, so at most 47% are right. With two hops half of the rest "
        "stop too early. SFT uses only the right ones.",
        expected=_flawed_teacher,
    ),
)
EXERCISES.register(
    "paired_gain",
    Function(
        how="a function of two lists of dictionaries that returns a number",
        hint="take the keys that both dictionaries of a seed have, average the differences of the "
        "scores, and then average these means over the seeds.",
        why="the same questions and the same seed remove two sources of noise from the difference. "
        "Every seed has the same weight, because seeds are the units that vary.",
        reference=_paired_gain,
        draw=_draw_scores,
    ),
)
EXERCISES.register(
    "form_control",
    Choice(
        hint="Look for a training that pays for the form and not for the content.",
        why="if this control gained as much as the real reward, form would explain the gain.",
        right="c",
        wrong={
            "a": "A random reward pays for form as little as for content. It cannot show how much "
            "form alone would gain.",
            "b": "Correct demonstrations contain form and content, so the two stay mixed.",
            "d": "Without tools almost nothing is right, whether the policy learned to search or "
            "only the form.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# start here


def _loss_mask(tokens):
    mask, is_policy = [], False
    for before, token in zip(["", *tokens], tokens):
        if before == "assistant\n":
            is_policy = True
        if token == "<|im_end|>":
            is_policy = False
        mask.append(is_policy)
    return mask


def _draw_tokens(rng: Random) -> tuple:
    """Draw the pieces of a rollout: a question, then turns of the policy and tool responses."""
    words = ["Austria", "code ", "<think>", "ATS", "Euro", ".", "assistant"]
    tokens: list[str] = []
    turns = ["user\n", "assistant\n"] * rng.randint(1, 3)
    for turn in turns:
        tokens += ["<|im_start|>", turn, *rng.choices(words, k=rng.randint(1, 4)), "<|im_end|>"]
    return (tokens[:-1] if rng.random() < 0.7 else tokens,)


EXERCISES.register(
    "one_more_right",
    Numbers(
        how="two numbers, for rollouts 1 and 2, for example [0.5, -0.5]",
        hint="the mean is over the other seven: count how many of these are right, once for "
        "rollout 1 (now right) and once for rollout 2 (wrong).",
        why="rollout 1 has four right ones among the other seven, rollout 2 has five. The more "
        "rollouts of a group are right, the less a right one gains and the more a wrong one loses.",
        expected=lambda: leave_one_out([1.0, 0, 0, 1, 1, 1, 1, 0], [0] * 8)[:2],
    ),
)
EXERCISES.register(
    "loss_mask",
    Function(
        how="a function of a list of pieces that returns a list with True or False for each",
        hint='a token has loss if it is after "assistant\\n" and before the next "<|im_end|>". '
        "Neither of these two has loss.",
        why="the policy sampled these tokens and no others, so only their probabilities depend on "
        "its weights.",
        reference=_loss_mask,
        draw=_draw_tokens,
    ),
)
EXERCISES.register(
    "cut_rollout",
    Choice(
        hint="The filter looks at how a rollout ended, not at its reward.",
        why="it has no answer because it was cut. Its tokens get no loss, and its reward 0 still "
        "counts in the means of the other rollouts.",
        right="c",
        wrong={
            "a": "A failed call is a mistake of the policy, and the rollout has an answer. It is "
            "trained with a negative advantage.",
            "b": "It has an answer. A long rollout is not removed for its length.",
            "d": "Its advantage is 0, so it changes nothing, but the filter does not remove it.",
        },
    ),
)

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
# search


def _fourth_page():
    """BM25 of "town money" on the pages Krone and Alta after a page was added."""
    store = Store.of(
        {
            "Oslo": "Oslo is a city. People pay krone.",
            "Krone": "The krone is money. Banks print it.",
            "Alta": "Alta is a town by a fjord. The river is full of fish.",
            "Narvik": "The port ships iron ore to many other countries.",
        }
    )
    sql = "SELECT title, -bm25(pages, 4.0) FROM pages WHERE pages MATCH 'town OR money'"
    scores = dict(store.rows(sql))
    return [scores["Krone"], scores["Alta"]]


def _chance_shown(scores, right, k):
    """Average over all orders of pages with equal scores."""
    better = sum(score > scores[right] for score in scores)
    tied = scores.count(scores[right])
    return sum(better + place < k for place in range(tied)) / tied


EXERCISES.register(
    "fourth_page",
    Numbers(
        how="two numbers, the scores of Krone and Alta, for example [0.55, 0.44]",
        hint="the mean length is still 10, so only the first factor changes: N is 4 now.",
        why="the logarithm grows from ln(5/3) to ln(7/3) although neither page has changed. Scores "
        "of two collections cannot be compared, and neither can those of two queries.",
        expected=_fourth_page,
    ),
)
EXERCISES.register(
    "chance_shown",
    Function(
        how="a function of scores, right and k that returns a number from 0 to 1",
        hint="count the pages with a higher score and those with an equal score. The correct page "
        "is equally likely to be at each place of its tie.",
        why="a tie adds luck to recall@k. A fixed order, such as the alphabet, hides the luck but "
        "does not remove it.",
        reference=_chance_shown,
        draw=lambda rng: (
            [float(rng.randrange(4)) for _ in range(rng.randrange(2, 7))],
            rng.randrange(2),
            rng.randrange(1, 5),
        ),
    ),
)
EXERCISES.register(
    "many_closes",
    Choice(
        hint="Which change gives the ranking information about the meaning that is wanted?",
        why="the pages have the same name, so only a word that is on the right page and on few of "
        "the others separates them. The query has to be better, not the ranking.",
        right="c",
        wrong={
            "a": "Every one of these pages has the word in its title, so all scores rise.",
            "b": "The other engine has a similar formula and the same words of the query.",
            "d": "More hits raise recall@k for that larger k, but recall@1 looks at the first hit.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# worlds


def _best_guess():
    """Accuracy of the best constant answer, without and with a limit on each answer."""
    counts = {"Euro": 6, "Dollar": 3, "Krone": 1}
    limited = [min(n, 2) for n in counts.values()]
    return [max(counts.values()) / sum(counts.values()), max(limited) / sum(limited)]


def _count_values(facts, title, relation):
    graph = Graph([Node(subject, "thing") for subject in {s for s, _, _ in facts}], facts)
    return len(graph.values(title, relation))


EXERCISES.register(
    "best_guess",
    Numbers(
        how="two shares, without and with the limit, for example [0.5, 0.3]",
        hint="the best guess is always the most frequent answer. With the limit count the "
        "questions again: how many are left for each currency?",
        why="6 of 10, and 2 of 5 with the limit. The limit lowers what a policy earns without "
        "searching.",
        expected=_best_guess,
    ),
)
EXERCISES.register(
    "count_values",
    Function(
        how="a function of facts, title and relation that returns a number",
        hint='a relation that ends in " of" is followed from the value to the subject. A fact that '
        "is listed twice is one fact.",
        why="one list of facts answers a relation and its inverse, equation (1).",
        reference=_count_values,
        draw=lambda rng: (
            [
                (rng.choice("ABC"), rng.choice(["knows", "likes"]), rng.choice("ABCD"))
                for _ in range(rng.randrange(3, 9))
            ],
            rng.choice("ABCD"),
            rng.choice(["knows", "likes", "knows of", "likes of"]),
        ),
    ),
)
EXERCISES.register(
    "no_provable_answer",
    Choice(
        hint="Look for the statement that is in the text of a page but not in the list of facts.",
        why="the sentence can be searched and read, but it is no fact of the graph. No program can "
        "show that the answer is right and that there is no second one.",
        right="b",
        wrong={
            "a": "Both columns of the table are relations: this is an intersection of two sets.",
            "c": "The front matter of a file is read as facts, such as the owner.",
            "d": "A link is a fact as well, and it can be followed backwards.",
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
# tokens of SFT


def _packed_means():
    """Loss of three demonstrations in two packed rows, in bits."""
    bits_BT = torch.tensor([[1.0], [4.0], [2.0]]).expand(3, 6)
    mask_BT = torch.arange(6) < torch.tensor([[2], [2], [6]])
    means_B = mean_per_row(bits_BT, mask_BT)[:, 0]
    rows_R = torch.stack([bits_BT[:2][mask_BT[:2]].mean(), bits_BT[2][mask_BT[2]].mean()])
    return torch.stack([bits_BT[mask_BT].mean(), means_B.mean(), rows_R.mean()])


def _next_token_labels(ids, own):
    return [token if has_loss else -100 for token, has_loss in zip(ids[1:], own[1:], strict=True)]


def _draw_sample(rng: Random) -> tuple:
    n = rng.randrange(2, 9)
    return [rng.randrange(1, 50) for _ in range(n)], [rng.random() < 0.5 for _ in range(n)]


EXERCISES.register(
    "packed_means",
    Numbers(
        how="three numbers for tokens, demonstrations and rows, for example [1, 2.5, 2]",
        hint="add up the bits of all tokens first: 2, 8 and 12 bits in 2, 2 and 6 tokens.",
        why="22 bits in 10 tokens, (1 + 4 + 2) / 3, and (10 / 4 + 2) / 2. With the mean over rows, "
        "the weight of a demonstration depends on what it is packed with.",
        expected=_packed_means,
    ),
)
EXERCISES.register(
    "next_token_labels",
    Function(
        how="a function of a list of ids and a list of booleans that returns a list that is one "
        "shorter",
        hint="entry t holds token t + 1, so the mask of token t + 1 decides.",
        why="the label and its mask are shifted together. With the mask of token t the first token "
        "of a tool response would carry loss, and the first one of a call would not.",
        reference=_next_token_labels,
        draw=_draw_sample,
        tolerance=0,
    ),
)
EXERCISES.register(
    "unlearned_end",
    Choice(
        hint="The tokens that the policy samples are those with loss in training, and one more.",
        why="the closing token is a decision of the policy, and nothing made it likely. After its "
        "call the policy writes on, for example an invented tool response.",
        right="c",
        wrong={
            "a": "The text makes the end likely only for a policy that was trained to end there.",
            "b": "Stopping early needs a likely closing token; this one got no gradient.",
            "d": "The tokens of the calls carry loss as before.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# selection of demonstrations

NAMES = ("Turkmen", "Turkmenistan", "Manat", "Lek", "Rial", "Albania", "Oman", "Tosk")


def _hard_share():
    """Share of the hard question in percent: all correct kept, and one per question."""
    rates_Q = torch.tensor([0.9, 0.5, 0.1])
    any_Q = 1 - (1 - rates_Q) ** 4
    return [100 * weights_Q[2] / weights_Q.sum() for weights_Q in (rates_Q, any_Q)]


def _isr_ise(needed, calls):
    episode = Episode(Task("toy", "?", "", "search", "toy"), None, None)
    episode.messages += [{"role": "tool", "content": ", ".join(shown)} for shown in calls]
    return seeking(episode, {*needed})


def _draw_search(rng: Random) -> tuple:
    needed = rng.sample(NAMES, rng.randrange(1, 5))
    return needed, [rng.sample(NAMES, rng.randrange(1, 4)) for _ in range(rng.randrange(1, 5))]


EXERCISES.register(
    "hard_share",
    Numbers(
        how="two percentages of the hard question, for example [33.3, 20]",
        hint="with one per question, a question is in the data if any of its four rollouts is "
        "correct.",
        why="0.1 of 1.5, and 0.344 of 2.281. The limit doubles the share of the hard question, "
        "which stays below a third.",
        expected=_hard_share,
        tolerance=0.1,
    ),
)
EXERCISES.register(
    "isr_ise",
    Function(
        how="a function of a list of names and a list of lists of names that returns two numbers",
        hint="ISR counts each needed name once, however often it was shown. ISE divides the number "
        "of needed names by the number of calls.",
        why="ISE does not look at what was found, and ISR does not look at the number of calls.",
        reference=_isr_ise,
        draw=_draw_search,
    ),
)
EXERCISES.register(
    "ungrounded_answers",
    Choice(
        hint="All demonstrations that this stage rejects have the correct answer.",
        why="their calls do not lead to the answer, and SFT makes such rollouts as likely as they "
        "are in the data. The policy cannot know the answer, so it learns to guess.",
        right="b",
        wrong={
            "a": "Wrong answers are rejected one stage earlier.",
            "c": "Repeated calls are rejected by another stage.",
            "d": "A correct answer is no guarantee: the policy imitates how it was reached.",
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
# an RL run


def _adam_first_gain(gradients, rate):
    """Return the first-order change of a loss by the first step of Adam."""
    weights_W = torch.zeros(len(gradients), dtype=torch.float64, requires_grad=True)
    weights_W.grad = torch.tensor(gradients, dtype=torch.float64)
    torch.optim.Adam([weights_W], lr=rate).step()
    return (torch.tensor(gradients, dtype=torch.float64) @ weights_W.detach()).item()


def _training_accuracy(rates):
    curriculum = Curriculum([str(i) for i in range(len(rates))])
    curriculum.rates = {str(i): rate for i, rate in enumerate(rates)}
    chances = curriculum.chances([*curriculum.rates])
    return sum(chance * rate for chance, rate in zip(chances, rates))


EXERCISES.register(
    "adam_first_gain",
    Function(
        how="a function of a list of gradients and a learning rate that returns a number",
        hint="each weight moves by the learning rate against the sign of its gradient. Multiply "
        "each move by the gradient of its weight, and add.",
        why="the loss falls by the learning rate times the sum of the absolute gradients.",
        reference=_adam_first_gain,
        draw=lambda rng: (
            [round(rng.choice((-1, 1)) * rng.uniform(0.1, 3), 2) for _ in range(4)],
            rng.choice((0.01, 0.1)),
        ),
    ),
)
EXERCISES.register(
    "training_mixture",
    Numbers(
        how="two numbers, the training accuracy before and after, for example [0.4, 0.6]",
        hint="compute both weights with equation (1), divide each by their sum, and take the mean "
        "of the solve rates with these shares. Do it again for the second pair.",
        why="both skills improve, and the training accuracy falls, because the curriculum now "
        "draws the hard skill five times as often as the easy one.",
        expected=lambda: [_training_accuracy(rates) for rates in ((0.9, 0.1), (0.99, 0.3))],
        tolerance=2e-3,
    ),
)
EXERCISES.register(
    "flat_curve",
    Choice(
        hint="Which of these observations depends on the questions that the curriculum draws?",
        why="harder questions can hide an improvement in the training curve. Only questions that "
        "stay the same show whether the policy still improves.",
        right="b",
        wrong={
            "a": "A flat training curve is possible while every skill improves, equation (1).",
            "c": "The learning rate is not the cause if the groups still have reward variance.",
            "d": "The emergency stop is for rollouts without an answer, and these are rare here.",
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
# which rollouts, which tokens


def _fifteen_of_sixteen():
    failures, successes = roc_quotas(negatives=1, positives=15, keep=8)
    advantages_N = leave_one_out([1.0] * successes + [0.0] * failures, [0] * 8)
    lost = math.comb(15, 8) / math.comb(16, 8)
    return [advantages_N[0].item(), advantages_N[-1].item(), 1 - lost]


def _filtered_gradient(chances, rewards, weights):
    """Return minus the gradient of the loss over all answers, each weighted by its probability."""
    logits_V = torch.tensor(chances, dtype=torch.float64).log().requires_grad_()
    logp_V1 = logits_V.log_softmax(0)[:, None]
    baseline = sum(p * r for p, r in zip(chances, rewards))
    advantages_V = torch.tensor([r - baseline for r in rewards], dtype=torch.float64)
    loss, _ = policy_loss(
        logp_V1,
        logp_V1.detach(),
        advantages_V,
        torch.ones_like(logp_V1, dtype=torch.bool),
        weights_B=torch.tensor([p * w for p, w in zip(chances, weights)], dtype=torch.float64),
        denominator=1.0,
    )
    return -torch.autograd.grad(loss, logits_V)[0]


def _draw_filter(rng: Random) -> tuple:
    parts = [rng.randrange(1, 9) for _ in range(rng.randrange(3, 5))]
    rewards = [float(rng.randrange(2)) for _ in parts]
    weights = [rng.choice([0.0, 0.5, 1.0]) for _ in parts]
    weights[0] = 1.0  # at least one answer is in the loss
    return [part / sum(parts) for part in parts], rewards, weights


def _squared_scores():
    found = []
    for chances in ([0.7, 0.2, 0.1], [0.98, 0.01, 0.01]):
        scores = torch.stack([_loss_gradient(chances, [k], [1.0]) for k in range(3)])
        found.append(float(torch.tensor(chances).double() @ scores.square().sum(1)))
    return found


def _token_weights(lengths, rule):
    """Return minus the gradient of the loss for one log-probability of each rollout."""
    mask_NT = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    logp_NT = torch.zeros(mask_NT.shape, dtype=torch.float64, requires_grad=True)
    ones_N = torch.ones(len(lengths), dtype=torch.float64)
    config = LossConfig(aggregate=rule)
    loss, _ = policy_loss(logp_NT, logp_NT.detach(), ones_N, mask_NT, config)
    return -torch.autograd.grad(loss, logp_NT)[0][:, 0]


EXERCISES.register(
    "fifteen_of_sixteen",
    Numbers(
        how="three numbers: the advantage of a success, of the failure, and the probability, for "
        "example [0.1, -0.5, 0.9]",
        hint="there is only one failure, and RoC keeps it, so seven successes stay. A uniform half "
        "has variance if the failure is in it.",
        why="one failure and seven successes: 1 - 6/7 = 1/7 and -1. A uniform half contains the "
        "only failure with probability 8/16.",
        expected=_fifteen_of_sixteen,
    ),
)
EXERCISES.register(
    "filtered_gradient",
    Function(
        how="a function of probabilities, rewards and weights, three lists, that returns one "
        "number per answer",
        hint="first the advantages, then one sum over all answers. An answer of weight 0 still has "
        "the second term of (2).",
        why="the second term is the bias: it pushes every answer, also those outside the loss, "
        "unless the weighted advantages add up to 0.",
        reference=_filtered_gradient,
        draw=_draw_filter,
    ),
)
EXERCISES.register(
    "lower_penalty",
    Choice(
        hint="Look at the denominators of (3).",
        why="p_err is a share of the calls, so idle calls lower it. RoC then prefers rollouts with "
        "idle calls, and they become more frequent.",
        right="b",
        wrong={
            "a": "A second pair of tags raises p_fmt.",
            "c": "One call that failed is a share of 1.",
            "d": "The length of a thought is not in (3).",
        },
    ),
)
EXERCISES.register(
    "squared_scores",
    Numbers(
        how="two numbers, for example [0.5, 0.05]",
        hint="square the probabilities and subtract their sum from 1.",
        why="0.46 and 0.0394: a sampled open token has about 12 times the squared score of a sure "
        "one.",
        expected=_squared_scores,
        tolerance=0.001,
    ),
)
EXERCISES.register(
    "token_weights",
    Function(
        how='a function of a list of lengths and a rule, "token" or "sequence", that returns one '
        "number per rollout",
        hint='"token" divides by all tokens of the batch. "sequence" divides by the tokens of the '
        "rollout and by the number of rollouts.",
        why='with "token" all tokens weigh the same, with "sequence" all rollouts do.',
        reference=_token_weights,
        draw=lambda rng: (
            [rng.randrange(1, 9) for _ in range(rng.randrange(2, 5))],
            rng.choice(["token", "sequence"]),
        ),
    ),
)
EXERCISES.register(
    "open_but_hopeless",
    Choice(
        hint="The selection does not look at advantages.",
        why="a token with advantage 0 has no gradient, but it is counted. The places it takes "
        "are lost for the other groups.",
        right="b",
        wrong={
            "a": "Equal rewards give advantage 0, so nothing is pushed down.",
            "c": "The selection compares all tokens in the loss, whatever their advantage.",
            "d": "The denominator counts the selected tokens, also those with advantage 0.",
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
# scaling out


def _two_sharded_states():
    billions = 10**9
    sizes = {"parameters": 8 * billions, "vocabulary": 0, "hidden": 0, "tied": True}
    trained = {32: billions // 10, 0: 8 * billions}
    shape = SimpleNamespace(trained_parameters=trained.get, layer_parameters=0, **sizes)
    loads = [Load(lora_rank=rank, processes=4, fsdp=True) for rank in (32, 0)]
    return [sum(state_bytes(shape, load).values()) / billions for load in loads]


def _fewest_devices(frozen, trained, unsharded, device):
    state = 2 * frozen + 16 * trained
    fitting = (n for n in range(1, 10_000) if state / n + unsharded <= device)
    return next(fitting, 0)


EXERCISES.register(
    "two_sharded_states",
    Numbers(
        how="two numbers of GB, with adapters and for all weights, for example [10.0, 20.0]",
        hint="2 bytes for each frozen parameter, 16 for each trained one, divided by the devices. "
        "Without adapters no parameter is frozen.",
        why="(2 * 8 + 16 * 0.1) / 4 and 16 * 8 / 4: adapters remove gradients and AdamW's moments.",
        expected=_two_sharded_states,
        tolerance=0.05,
    ),
)
EXERCISES.register(
    "fewest_devices",
    Function(
        how="a function of frozen, trained, unsharded and device that returns a whole number",
        hint="subtract the part that is not sharded from the memory of a device first, then divide "
        "and round up. If nothing is left, no number of devices fits.",
        why="sharding divides the state only: activations of one context must fit on each device.",
        reference=_fewest_devices,
        draw=lambda rng: (
            rng.choice([0, 1.7, 8.2, 30.5]),
            rng.choice([0.03, 0.11, 1.99, 8.19]),
            rng.choice([5.3, 22.7, 47.1, 90.9]),
            rng.choice([24, 80, 141]),
        ),
    ),
)
EXERCISES.register(
    "shorter_step",
    Choice(
        hint="Compute the seconds of a step for each option with equation (2).",
        why="sampling is nine tenths of the step: 740 + 139 + 24 = 903 s. The others stay above "
        "1,480 s.",
        right="c",
        wrong={
            "a": "The update becomes 70 s, the sampling stays: 1,562 s.",
            "b": "It hides the update behind the sampling: 1,492 s.",
            "d": "The transfer is only 12 s of 1,631 s: 1,619 s.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# several contexts


def _vote_of_three(chances):
    """Return how often `vote` returns "right" for three runs; chances: answer -> probability."""
    outcomes = product(chances, repeat=3)
    return sum(math.prod(chances[a] for a in some) for some in outcomes if vote(some) == "right")


def _over_samples(rewards, contexts):
    owners = [rollout for rollout, count in enumerate(contexts) for _ in range(count)]
    advantages_N = leave_one_out([rewards[rollout] for rollout in owners], [0] * len(owners))
    return [advantages_N[owners.index(rollout)].item() for rollout in range(len(rewards))]


EXERCISES.register(
    "two_wrong_titles",
    Numbers(
        how="a number",
        hint="add the chance of two or three right runs to the chance of one right run whose "
        "rivals differ, times the chance that it comes first.",
        why="0.216 + 0.441 * 1/2 * 1/3. One run is right in 30% of the cases, so the vote is worth "
        "slightly less than one run: the two wrong titles agree too often.",
        expected=lambda: _vote_of_three({"right": 0.3, "A": 0.35, "B": 0.35}),
        tolerance=0.002,
    ),
)
EXERCISES.register(
    "over_samples",
    Function(
        how="a function of a list of rewards and a list of numbers of contexts that returns one "
        "advantage per rollout",
        hint="each context is a sample with the reward of its rollout. A sample is compared with "
        "all other samples, including the other contexts of its own rollout.",
        why="the advantages of all samples add up to 0, however many contexts a failure has.",
        reference=_over_samples,
        draw=lambda rng: (
            [float(rng.random() < 0.5) for _ in range(3)],
            [rng.randint(1, 6) for _ in range(3)],
        ),
    ),
)
EXERCISES.register(
    "thirty_towns",
    Choice(
        hint="Which numbers are in the context when the agent writes its answer?",
        why="a bounded context helps if what matters fits into the report. Here it does not.",
        right="c",
        wrong={
            "a": "The contexts are short, but a page that was read three rounds ago is gone.",
            "b": "The window holds nine pages. The rollout ends before the tenth.",
            "d": "Each of the eight runs has the same report of eight facts.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# web agents


def _mean_clicks(links, start, goal):
    """Return the expected clicks from `start` to `goal` with uniformly drawn links."""
    matrix, ones = np.eye(len(links)), np.ones(len(links))
    for page, targets in enumerate(links):
        for target in targets if page != goal else ():
            matrix[page, target] -= 1 / len(targets)
    ones[goal] = 0
    return np.linalg.solve(matrix, ones)[start]


def _draw_site(rng):
    """Return (links, start, goal): a tree of pages that all link back to page 0."""
    size = rng.randint(3, 7)
    links: list[list[int]] = [[] for _ in range(size)]
    for page in range(1, size):
        links[rng.randrange(page)].append(page)
    return [targets + [0] * (page > 0) for page, targets in enumerate(links)], 0, size - 1


EXERCISES.register(
    "two_leaves",
    Numbers(
        how="two numbers: [clicks, turns]",
        hint="the walk goes down to one leaf, back to the root, and down to the other. The critic "
        "reads every page, also the first, and judges after every fact.",
        why="4 + 1 + 4 clicks, 10 pages for the critic, and 2 judgements: 9 + 10 + 2 turns.",
        expected=lambda: [2 * 4 + 1, (2 * 4 + 1) + (2 * 4 + 2) + 2],
        tolerance=0,
    ),
)
EXERCISES.register(
    "mean_clicks",
    Function(
        how="a function of links, start and goal that returns a number",
        hint="write h for the clicks from each page: h = 1 + the mean of h over the links, and 0 "
        "at the goal. These are linear equations; iterating them from 0 works too.",
        why="every wrong turn leads back over the root, so the mean grows much faster than the "
        "shortest way.",
        reference=_mean_clicks,
        draw=_draw_site,
        tolerance=0.01,
    ),
)
EXERCISES.register(
    "uncited_page",
    Choice(
        hint="The writer's context is made from the ids that the outline cites in this section.",
        why="the outline decides what each section may rest on, so an uncited page is lost to it.",
        right="c",
        wrong={
            "a": "The bank has the page, but the writer reads only the evidence of its section.",
            "b": "A citation must belong to the section, not only to the bank.",
            "d": "The planner has ended; only the section is returned to the writer.",
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
# entropy and reflection, and the loss of the right answer


def _two_rollouts_lift():
    """Windows of D and E hold 3 of 4 forking tokens, their other thoughts 1 of 12."""
    hits = [[("#...##.." * 2)[s + 4 : s + 6], ("....#..." * 2)[s + 4 : s + 6]] for s in range(8)]
    counts = [[window.count("#") for window in pair] for pair in hits]
    pairs = [d + e >= 3 for d, _ in counts for _, e in counts]
    return [(3 / 4) / (1 / 12), 3 / 1, sum(pairs) / len(pairs)]


def _shift_p_value(marks, window):
    n = len(marks)
    hits = [sum(marks[(at + shift) % n] for at in window) for shift in range(n)]
    return sum(hit >= hits[0] for hit in hits) / n


def _draw_marks(rng: Random) -> tuple:
    n = rng.randrange(4, 10)
    first = rng.randrange(n - 2)
    return [rng.randrange(2) for _ in range(n)], list(range(first, first + rng.randrange(1, 4)))


def _partner_difference(deltas, members, thirds):
    changes = []
    for change, member, third in zip(deltas, members, thirds):
        rows = zip(deltas, members, thirds)
        others = [d for d, is_member, t in rows if t == third and not is_member]
        if member and others:
            changes.append(change - sum(others) / len(others))
    return sum(changes) / len(changes)


def _draw_changes(rng: Random) -> tuple:
    """Draw changes of at least one member with a partner; some thirds may have only members."""
    size = rng.randrange(6, 10)
    thirds = [3 * at // size for at in range(size)]
    members = [rng.randrange(2) for _ in range(size)]
    members[:2] = [1, 0]
    return [round(rng.uniform(-5, 5), 1) for _ in range(size)], members, thirds


EXERCISES.register(
    "two_rollouts_lift",
    Numbers(
        how="three numbers, lift, matched lift and share of the pairs, for example [2.0, 1.5, 0.1]",
        hint="the windows hold 3 forking tokens of 4. Elsewhere, count all other thoughts, also "
        "those after a window. For the pairs, list the 8 windows of D and of E on their circles.",
        why="3/4 over 1/12; 3 over the 1 of the first turns; and 1 of 8 shifts of D with 2 of 8 "
        "shifts of E, which is 1/32.",
        expected=_two_rollouts_lift,
        tolerance=0.001,
    ),
)
EXERCISES.register(
    "shift_p_value",
    Function(
        how="a function of a list of 0 and 1 and a list of positions that returns a number",
        hint="shift every position of the window by s, modulo the number of tokens, and count.",
        why="shifts keep the length of the window and the runs of forking tokens. Drawing the "
        "tokens independently would not, and its p-values would be too small.",
        reference=_shift_p_value,
        draw=_draw_marks,
    ),
)
EXERCISES.register(
    "lift_after_errors",
    Choice(
        hint="Which of the three numbers would change if the windows were somewhere else in the "
        "same rollouts?",
        why="shifted windows of the same rollouts have the same lift of 1.4, so the place after "
        "the response adds nothing. The rollouts with errors are the uncertain ones.",
        right="c",
        wrong={
            "a": "The interval excludes 1, but windows at random places have the same lift.",
            "b": "Then the lift would be above the permuted lift.",
            "d": "Only a matched lift could show that, and none is given.",
        },
    ),
)
EXERCISES.register(
    "two_token_answer",
    Numbers(
        how="four numbers: two probabilities and two relative changes, for example "
        "[0.9, 0.8, 0.5, 1.5]",
        hint="the loss is a mean over two tokens, so the probability is exp(-2 L). A relative "
        "change is the absolute change over the loss before it.",
        why="the word costs 4 points of probability and has twice the relative change of the "
        "response, which has done all the work.",
        expected=lambda: [math.exp(-0.02), math.exp(-0.06), 11.99 / 12, 0.02 / 0.01],
    ),
)
EXERCISES.register(
    "partner_difference",
    Function(
        how="a function of three lists (changes, members, thirds) that returns a number",
        hint="for each member, average the changes of the tokens that are not members in its "
        "third, and subtract. Leave out a member whose third has no other token.",
        why="the mean over all possible partners has no noise of a random draw.",
        reference=_partner_difference,
        draw=_draw_changes,
    ),
)
EXERCISES.register(
    "last_word",
    Choice(
        hint="What differs between the two curves at the same token of the same rollout?",
        why="the rollout and the weights are the same, so the difference of 3 nats belongs to the "
        "text between thought and answer. Each bridge answers a different question.",
        right="b",
        wrong={
            "a": "The second bridge would show the change too.",
            "c": "Neither is wrong: they ask what the policy says at once, and what it says after "
            "its own sentence.",
            "d": "The answer's loss after the response is below 0.1 with the second bridge.",
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
# the sandbox


def _runaway_limit():
    return [12_000 / 60 * (0.98 * 0.02 + 0.02 * limit) for limit in (5, 1)]


def _grade_program(runs, answers):
    if any(status in ENV_FAULTS for status, _ in runs):
        return [0, 0]
    ended = all(status == "ok" for status, _ in runs)
    words = [stdout.split()[-1:] for _, stdout in runs]
    return [int(ended and words == [[answer] for answer in answers]), 1]


def _draw_program_runs(rng: Random) -> tuple:
    """Draw (status, stdout) of two runs, and the right answers."""
    answers = [str(rng.randint(10, 99)) for _ in range(2)]
    statuses = ["ok"] * 4 + ["error", "timeout", rng.choice(ENV_FAULTS)]
    runs = []
    for answer in answers:
        right = [f"{answer}\n", f"step 7\n{answer}\n"]
        stdout = rng.choice([*right * 3, "PASSED\n", f"{answer}\n0\n"])
        runs.append((rng.choice(statuses), stdout))
    return runs, answers


EXERCISES.register(
    "runaway_limit",
    Numbers(
        how="two numbers of cores, for a limit of 5 s and of 1 s, for example [10.5, 4.2]",
        hint="calls per second times the mean core time of a call. The mean has two parts, one "
        "for each kind of call.",
        why="the mean falls from 119.6 to 39.6 ms. Two calls in a hundred cause 84% of the first "
        "number, so the time limit decides how many cores are needed.",
        expected=_runaway_limit,
    ),
)
EXERCISES.register(
    "grade_program",
    Function(
        how="a function of a list of runs and a list of answers that returns [reward, weight]",
        hint="test for an environment fault first. The reward is 1 only if every run has the "
        "status ok and its last word is the answer.",
        why="the status comes from the kernel and the answer stays in the grader. A rollout with "
        "an environment fault gets weight 0, because its reward says nothing about the policy.",
        reference=_grade_program,
        draw=_draw_program_runs,
    ),
)
EXERCISES.register(
    "grader_exploit",
    Choice(
        hint="Go through the grader's steps for both inputs with this program.",
        why="the two inputs never change, so a policy can be reinforced for their answers without "
        "learning the sum. Fresh inputs in every grading prevent it.",
        right="c",
        wrong={
            "a": "The last printed word is the same for both inputs, and the answers differ.",
            "b": "The grader compares printed text outside the sandbox. An `__eq__` of the program "
            "does not run there.",
            "d": "The answers are in the grader's process, and the sandbox denies access to other "
            "processes.",
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

# ---------------------------------------------------------------------------------------------
# pre-training on decisions


def _masked_loss(logps, kinds, is_correct):
    wanted = ("own", "verdict") if is_correct else ("verdict",)
    mask = np.isin(kinds, wanted)
    return -(np.asarray(logps) * mask).sum() / mask.sum()


def _draw_decision_row(rng: Random) -> tuple:
    """Draw the log-probability and the kind of each token of a row, and its outcome."""
    kinds = [rng.choice(["read", "own"]) for _ in range(rng.randint(2, 6))]
    kinds = ["read", *kinds, "own", *["verdict"] * rng.randint(1, 2)]
    logps = [round(-rng.uniform(0.1, 3.0), 2) for _ in kinds]
    return logps, kinds, rng.random() < 0.5


EXERCISES.register(
    "decision_nats",
    Numbers(
        how="four numbers, for example [6, 2, 2.20, 9]",
        hint="equation (1) counts the candidates, ln(N + 1) is the price of one choice, and (2) is "
        "one in (N + 1) to the power K.",
        why="five choices among four cost 6.93 nats, and a policy that ignores the options makes "
        "all of them correctly once in 1,024 trajectories.",
        expected=lambda: [(3 + 1) * 5, 5, 5 * math.log(3 + 1), (3 + 1) ** 5],
    ),
)
EXERCISES.register(
    "masked_loss",
    Function(
        how="a function of (logps, kinds, is_correct) that returns a number",
        hint="decide for each token whether it carries loss, and divide by the number of tokens "
        "that do, not by all.",
        why="what the policy only reads never carries loss, and the steps of a failure carry none.",
        reference=_masked_loss,
        draw=_draw_decision_row,
    ),
)
EXERCISES.register(
    "rule_without_question",
    Choice(
        hint="What would a policy reach that has learned the rule and nothing else?",
        why="a policy that applies only the rule reaches 80%, so 78% is no evidence that the "
        "question was read. Remove the shortcut, or compare with the rule instead of with chance.",
        right="b",
        wrong={
            "a": "Chance is the wrong comparison: a rule that ignores the question reaches 80%.",
            "c": "Known trajectories would give nearly 100%, and the rows are held out.",
            "d": "With fewer options both the rule and chance are right more often.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# questions with a proof

EUROPE = """
Austria: German; Euro; 1995
Belgium: Dutch, French, German; Euro; 1958
France: French; Euro; 1958
Italy: Italian; Euro; 1958
Liechtenstein: German; Swiss Franc
Luxembourg: French, German, Luxembourgish; Euro; 1958
Switzerland: French, German, Italian; Swiss Franc"""


def _index_conditions(groups) -> tuple[Graph, list[Proj]]:
    """Return a graph in which condition i is fulfilled by the things of groups[i]."""
    facts = [(thing, f"has {i}", "yes") for i, group in enumerate(groups) for thing in group]
    nodes = [Node(thing, "thing") for thing in sorted(set().union(*groups))]
    return Graph(nodes, facts), [Proj(f"has {i} of", "yes") for i in range(len(groups))]


def _is_unique_minimal(conditions):
    graph, parts = _index_conditions(conditions)
    query = And(tuple(parts))
    left = [len(evaluate_query(weaker, graph)) for weaker in iter_weakened(query)]
    return len(evaluate_query(query, graph)) == 1 < min(left)


def _minimal_pairs():
    rows = [line.split(": ") for line in EUROPE.split("\n")[1:]]
    values = {place: set(row.replace("; ", ", ").split(", ")) for place, row in rows}
    fulfil = {
        v: {place for place, own in values.items() if v in own}
        for v in set().union(*values.values())
    }
    pairs = {place: combinations(values[place], 2) for place in ("Belgium", "Italy", "Switzerland")}
    return [
        sum(_is_unique_minimal([fulfil[v] for v in pair]) for pair in some)
        for some in pairs.values()
    ]


def _draw_conditions(rng: Random) -> tuple:
    """Draw two or three sets of countries that contain Malta."""
    others = ["Cyprus", "Greece", "Italy", "Spain"]
    return ([{"Malta", *rng.sample(others, rng.randint(1, 2))} for _ in range(rng.randint(2, 3))],)


EXERCISES.register(
    "minimal_pairs",
    Numbers(
        how="three whole numbers, for Belgium, Italy and Switzerland, for example [1, 2, 3]",
        hint="list the conditions of the country and the countries that fulfil each. A condition "
        "that fits one country alone cannot be part of a minimal pair.",
        why="Dutch fits Belgium alone, so no second condition is needed, and everything else that "
        "Belgium has, Luxembourg has too.",
        expected=_minimal_pairs,
        tolerance=0,
    ),
)
EXERCISES.register(
    "is_unique_minimal",
    Function(
        how="a function of a list of sets that returns True or False",
        hint="intersect all sets, and then all sets but one, for each set in turn.",
        why="a set that can be left out is a condition without effect: the question sounds harder "
        "than it is. The library does the same with queries.",
        reference=_is_unique_minimal,
        draw=_draw_conditions,
    ),
)
EXERCISES.register(
    "second_true_answer",
    Choice(
        hint="Which error do two engines make in the same way?",
        why="both engines execute the query on the same graph. Without the fact both count one "
        "country too few: they guard against errors of an engine, not of the source.",
        right="c",
        wrong={
            "a": "The other engine would then find other answers.",
            "b": "Both engines execute the description and would count the second thing.",
            "d": "The answers are then the same without this condition, so there is one answer.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# harder questions

MEMBERS = """
Austria: German; Euro; 1995
Denmark: Danish; Danish Krone; 1973
Greece: Greek; Euro; 1981
Ireland: English, Irish; Euro; 1973
Malta: English, Maltese; Euro; 2004
Spain: Spanish; Euro; 1986"""


def _joined_in_1986():
    rows = [line.split(": ") for line in MEMBERS.split("\n")[1:]]
    facts = [
        (place, relation, value)
        for place, row in rows
        for relation, cell in zip(("language", "currency", "joined"), row.split("; "))
        for value in cell.split(", ")
    ]
    values = {value: relation for _, relation, value in facts if relation != "joined"}
    nodes = [Node(place, "country") for place, _ in rows]
    graph = Graph([*nodes, *(Node(*value) for value in values.items())], facts)
    euro, eighties = Proj("currency of", "Euro"), Range("joined", 1980, 1989)
    pages = measure_effort(And((Proj("joined of", "1986"), euro)), graph)
    fit = evaluate_query(eighties, graph)
    return [pages, len(fit), len(evaluate_query(And((eighties, euro)), graph))]


def _may_replace(fact, clue, rest):
    graph, (left, vaguer, others) = _index_conditions([fact, clue, rest])
    is_vaguer = evaluate_query(left, graph) < evaluate_query(vaguer, graph)
    return is_vaguer and len(evaluate_query(And((vaguer, others)), graph)) == 1


def _draw_clue(rng: Random) -> tuple:
    """Draw the things of a fact, a clue and the other conditions; Malta fulfils all but a clue."""
    others = ["Cyprus", "Greece", "Italy", "Spain"]
    fact = {"Malta", *rng.sample(others, rng.randint(0, 2))}
    wider = fact | {*rng.sample(others, rng.randint(0, 2))}
    clue = rng.choice([wider, wider, fact ^ {rng.choice(others)}, wider - {"Malta"}])
    rest = {"Malta", *rng.sample([name for name in others if name not in fact], 1)}
    return fact, clue or {"Italy"}, rest


EXERCISES.register(
    "joined_in_1986",
    Numbers(
        how="three whole numbers, for example [3, 4, 5]",
        hint="a year has no page, so the solver starts at the Euro and reads every page that it "
        "lists. Then mark the rows of the 1980s.",
        why="the page of the Euro and the five countries that it lists. The clue fits a second "
        "country with the Euro, Greece: it is vaguer, and the question is no longer unique.",
        expected=_joined_in_1986,
        tolerance=0,
    ),
)
EXERCISES.register(
    "may_replace",
    Function(
        how="a function of three sets that returns True or False",
        hint="vaguer means: all things of the fact and at least one more. Unique means: one thing "
        "fulfils the clue and the rest.",
        why="the first half keeps the right answer, so only uniqueness has to be counted again.",
        reference=_may_replace,
        draw=_draw_clue,
    ),
)
EXERCISES.register(
    "vaguer_exception",
    Choice(
        hint="Cross out, in the table, what an exception removes.",
        why="an exception removes what fulfils it, and a vaguer one removes more, here also Malta. "
        "Equation (2) protects the answer in intersections, unions and projections only.",
        right="c",
        wrong={
            "a": "A vaguer exception removes at least as much, so nothing can be added.",
            "b": "Malta joined in 2004, before 2010.",
            "d": "Malta joined in 2004, so the new exception removes it.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# tasks with tools


def _accepts_rollout(loans, gold, calls):
    if all(name == "get" for name, *_ in gold):
        return calls == gold
    ends = [
        {**loans, **{call[1]: call[2] for call in c if call[0] == "set"}} for c in (gold, calls)
    ]
    return ends[0] == ends[1]


def _draw_rollout(rng: Random) -> tuple:
    """Draw loans, gold calls and a rollout: a changed copy of the gold calls."""
    loans = {loan: f"day-{rng.randint(1, 9)}" for loan in (1, 2)}
    reads: list[tuple] = [("get", 1), ("get", 2)]
    writes: list[tuple] = [("set", 1, "day-10"), ("set", 2, "day-11")]
    gold = rng.choice([reads, reads[:1], [writes[0], reads[1]], [*writes, reads[0]]])
    changed = [[*gold], [*reversed(gold)], gold[1:], gold[:-1], [reads[1], *gold], [writes[1]]]
    return loans, gold, rng.choice(changed)


EXERCISES.register(
    "one_failed_trial",
    Numbers(
        how="three numbers: pass^2, pass^3 and the power, for example [0.5, 0.3, 0.4]",
        hint="there are ten pairs and ten triples of five trials. Count those without the trial "
        "that failed.",
        why="the power is larger than pass^3, because it draws with replacement: it counts "
        "triples that contain the same correct trial up to three times.",
        expected=lambda: [agentscaler.pass_hat_k(5, 4, 2), agentscaler.pass_hat_k(5, 4, 3), 0.8**3],
    ),
)
EXERCISES.register(
    "accepts_rollout",
    Function(
        how="a function of a dictionary and two lists of calls that returns True or False",
        hint="compare the final states of both lists if the gold calls write, and the lists "
        "themselves if they only read.",
        why="a state can be reached in many ways, and all are accepted. A task that only reads "
        "leaves no trace in the state, so its calls are compared.",
        reference=_accepts_rollout,
        draw=_draw_rollout,
    ),
)
EXERCISES.register(
    "missing_read",
    Choice(
        hint="What does this rollout lack, and what does an additional read add?",
        why="the gold reads are a lower bound: more reads are allowed, fewer are not.",
        right="c",
        wrong={
            "a": "Its observations are true. One is missing, and a replay cannot see that.",
            "b": "It rejects the rollout, and with it every rollout with an additional read.",
            "d": "Eight trials of this kind are all kept by the filters, so pass^8 is 1.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# questions of a language model


def _is_proved_year(answer, cited, statements):
    proved = {i for i, text in enumerate(statements) if mentions(text, answer)}
    return bool(re.fullmatch(r"\d{4}", answer) and proved and proved <= set(cited))


def _draw_claim(rng: Random) -> tuple:
    """Draw an answer, the places of the cited statements, and statements about ships."""
    years = rng.sample(["1839", "1871"], 2)
    statements = [
        f"The ferry was launched in {years[0]}.",
        f"The captain was born in {years[1]}.",
        f"The harbour was built in {rng.choice(years)}.",
        "The captain is Silvan Pookley.",
    ]
    answer = rng.choice([years[0]] * 4 + [f"in {years[0]}", "Silvan Pookley", "1902"])
    cited = [i for i, text in enumerate(statements) if answer in text] or [0]
    return answer, rng.choice([cited, cited, [*cited, 3], cited[:1], [1]]), statements


EXERCISES.register(
    "reader_for_95",
    Numbers(
        how="two numbers, the precision and c, for example [0.6, 0.3]",
        hint="of 100 questions count the right ones that are kept and the wrong ones that "
        "execution leaves. The reader keeps a share c of the latter.",
        why="54 right and 20 wrong ones pass execution. A reader that agrees with at most 2.8 of "
        "the 20 is enough.",
        expected=lambda: [precision(0.4, 0.5, 1, 0.1), 54 * (1 / 0.95 - 1) / 20],
    ),
)
EXERCISES.register(
    "is_proved_year",
    Function(
        how="a function of a text, a list of places and a list of texts that returns True or False",
        hint="find the places of all statements that contain the answer. At least one must be "
        "cited, and none may be left.",
        why="an answer that another statement contains can be right by coincidence: the year of "
        "another event.",
        reference=_is_proved_year,
        draw=_draw_claim,
    ),
)
EXERCISES.register(
    "shared_mistake",
    Choice(
        hint="Which fault does a second call of the same weights repeat?",
        why="both replies come from the same weights, so both misread the word. A slip of one "
        "reply is not repeated by a second call that does not see it.",
        right="b",
        wrong={
            "a": "The reader starts afresh, so it hardly skips the same line.",
            "c": "The answer can be right, and the reader is not shown which ones are cited.",
            "d": "Execution computes the expression, so such a question does not reach the reader.",
        },
    ),
)

# ---------------------------------------------------------------------------------------------
# balance of experts


def _relative_excess(probs, biases, k, u):
    experts_NK = select_biased_experts(torch.tensor(probs).log(), torch.tensor(biases), k)
    load_E = torch.bincount(experts_NK.flatten(), minlength=len(biases)).double()
    return torch.tensor(biases).double() - u * (load_E / load_E.mean() - 1)


def _draw_router(rng: Random) -> tuple:
    """Draw probabilities of tokens, biases, k and a rate; no two p + b of a token are equal."""
    size = rng.randint(3, 4)
    biases = [round(rng.uniform(-0.1, 0.1), 2) for _ in range(size)]
    probs = []
    while len(probs) < 4:
        parts = [rng.randint(1, 9) for _ in range(size)]
        row = [part / sum(parts) for part in parts]
        totals = sorted(p + b for p, b in zip(row, biases))
        if min(b - a for a, b in zip(totals, totals[1:])) > 0.001:
            probs.append(row)
    return probs, biases, rng.randint(1, 2), 0.1


EXERCISES.register(
    "four_uneven_experts",
    Numbers(
        how="two numbers, MaxVio and the updates, for example [0.5, 100]",
        hint="the mean load is 3. The difference of the two biases changes by at most 2u at every "
        "update.",
        why="the fullest expert has twice the mean. The difference 0.42 needs 210 updates if every "
        "one lowers the bias of one expert and raises that of the other.",
        expected=lambda: [max_violation(torch.tensor([[6, 3, 2, 1]])), 0.42 / (2 * 0.001)],
    ),
)
EXERCISES.register(
    "relative_excess",
    Function(
        how="a function of a list of lists, a list and two numbers that returns a list",
        hint="add the biases to the probabilities of every token, count how often each expert is "
        "among the k largest, and divide by the mean count.",
        why="the step shrinks with the excess, so it does not overshoot near balance as the sign "
        "does. It is slow there, too.",
        reference=_relative_excess,
        draw=_draw_router,
    ),
)
EXERCISES.register(
    "engine_without_biases",
    Choice(
        hint="Which experts process a token in the engine, and which in the trainer?",
        why="without the biases some tokens go to other experts, whose outputs differ. The "
        "rollouts are then samples of another policy than the one that is trained.",
        right="c",
        wrong={
            "a": "The gates have no bias, but the selection has: other experts, other outputs.",
            "b": "A token that another expert processes gets another output.",
            "d": "A bias is a counter. It has no gradient anywhere.",
        },
    ),
)
