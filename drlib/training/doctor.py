"""Checks of a run whose reward stays flat: each is ok, or a fault with a remedy.

A check is a function of records (settings, metrics, rollouts, the chat template) that returns a
`Check`; it loads no model. `require_learnable` runs the cheap ones before the first step of RL and
refuses settings that cannot learn. `drlib.training.diagnosis` collects the records of a finished
run or of a model.

The reward and the loss mask are checked on written rollouts: right and wrong answers instead of a
model's turns, with the real agent, template, tools and reward.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any

import numpy as np
from jinja2 import TemplateError

from drlib.agents import Limits, ReAct
from drlib.chat.tool_calls import FormatError, parse, parse_native, render_answer, render_call
from drlib.config import Config
from drlib.models.conversations import TurnwiseEngine
from drlib.models.engine import Completion
from drlib.questions.chains import MAX_HOPS, make_python_task
from drlib.rewards.controls import CONTROL_REWARDS
from drlib.rl.advantages import ADVANTAGES
from drlib.rl.filtering import filter_rollouts
from drlib.task import Task, is_correct
from drlib.tools import Toolbox
from drlib.training.batch import build_filter
from drlib.training.question_scheduler import QuestionScheduler
from drlib.training.rollouts import build_reward, judge_rollout
from drlib.trajectory import Termination, Trajectory

PARSED_SHARE = 0.5  # of the turns that must parse
LIVE_SHARE = 0.1  # of the groups that must have reward variance
CUT_SHARE = 0.5  # of the rollouts that may end at a token limit
IDENTICAL_SHARE = 0.5  # of the groups whose rollouts may all be the same
MAJORITY = 0.9  # of the rollouts with one reward, above which questions are too hard or too easy
EXAMPLES = 3  # turns shown
EXAMPLE_CHARACTERS = 400  # of each of them
WRITTEN_TASKS = 4  # questions with written answers


@dataclass(frozen=True)
class Check:
    """Result of a check.

    Attributes:
        ok: False for a fault; None if the check could not run, with the reason as finding.
        remedy: what to change; "" unless it is a fault.
        examples: texts of the policy that show the finding.
    """

    name: str
    ok: bool | None
    finding: str
    remedy: str = ""
    examples: tuple[str, ...] = ()


# ---------------------------------------------------------------- template and turns


def check_template(
    chat: Any, system: str | None, question: str, trajectories: Sequence[Trajectory] = ()
) -> Check:
    """Check that the chat template renders prompts, and that the rollouts begin with them."""
    name = "template"
    try:
        ids = chat.prompt(question, system=system)
    except (ValueError, TemplateError) as error:
        return Check(name, False, f"no prompt can be rendered: {error}", TEMPLATE_REMEDY)
    opening = list(chat.assistant_start)
    if not opening or ids[-len(opening) :] != opening:
        finding = "the rendered prompt does not open the assistant's turn"
        return Check(name, False, finding, TEMPLATE_REMEDY)
    foreign = [t.id for t in trajectories if not _starts_with_prompt(t, chat)]
    if foreign:
        return Check(
            name,
            False,
            f"{len(foreign)} of {len(trajectories)} rollouts do not begin with the prompt that "
            f"the chat template renders (rollout {foreign[0]})",
            "sample with the tokenizer of the trained policy, and with its chat template",
        )
    rollouts = f"; {len(trajectories)} rollouts begin with it" if trajectories else ""
    return Check(name, True, f"a prompt of {len(ids)} tokens{rollouts}")


TEMPLATE_REMEDY = (
    "use an instruction-tuned model, or copy chat_template.jinja of its family into its folder"
)


def _starts_with_prompt(trajectory: Trajectory, chat: Any) -> bool:
    head = list(trajectory.messages[:2])
    system = head.pop(0)["content"] if head and head[0]["role"] == "system" else None
    if not head or head[0]["role"] != "user":
        return False
    ids = chat.prompt(head[0]["content"], system=system)
    return trajectory.token_ids[: len(ids)].tolist() == ids


def _list_turns(trajectory: Trajectory) -> list[list[int]]:
    """Return the sampled ids of each turn."""
    generated = trajectory.generated
    return [
        trajectory.token_ids[generated & (trajectory.turns == number)].tolist()
        for number in np.unique(trajectory.turns[generated])
    ]


def check_stop(
    chat: Any, trajectories: Sequence[Trajectory] = (), declared: Collection[int] = ()
) -> Check:
    """Check that generation stops at the token with which the template ends a turn.

    Args:
        declared: ids at which other programs stop, by the model's generation_config.json.
    """
    name, tokenizer = "stop token", chat.tokenizer
    end = tokenizer.convert_ids_to_tokens(chat.end_id)
    stops = {chat.end_id, *chat.stop_ids}
    remedy = (
        f"set eos_token to {end!r} in tokenizer_config.json, and eos_token_id to {chat.end_id} in "
        "generation_config.json, before training"
    )
    if chat.end_id not in chat.stop_ids:
        return Check(name, False, f"sampling does not stop at {end!r}, the end of a turn", remedy)
    if declared and chat.end_id not in declared:
        others = ", ".join(repr(tokenizer.convert_ids_to_tokens(i)) for i in sorted(declared))
        finding = f"the model declares {others} as its end, but its template ends turns with {end}"
        return Check(name, False, finding, remedy)
    turns = [ids for t in trajectories for ids in _list_turns(t)]
    if not turns:
        return Check(name, True, f"turns end with {end!r}")
    ends = stops | {*tokenizer.all_special_ids}
    overran = [ids for ids in turns if ends & {*ids[:-1]}]
    stopped = sum(ids[-1] in stops for ids in turns)
    if overran:
        inner = next(i for i in overran[0] if i in ends)
        token = tokenizer.convert_ids_to_tokens(inner)
        return Check(
            name,
            False,
            f"{len(overran)} of {len(turns)} turns go on after an end of turn such as {token!r}",
            remedy,
            _shorten([chat.decode_turn(ids) for ids in overran]),
        )
    if stopped == 0:
        return Check(
            name,
            False,
            f"none of {len(turns)} turns ends with a stop token ({end!r})",
            "train stage sft first, whose demonstrations end their turns; or " + remedy,
            _shorten([chat.decode_turn(ids) for ids in turns]),
        )
    return Check(name, True, f"{stopped} of {len(turns)} turns end with a stop token ({end!r})")


def check_turns(chat: Any, trajectories: Sequence[Trajectory]) -> Check:
    """Check that most turns are a tool call or an answer, and show three of them."""
    name, native = "turns", getattr(chat, "has_native_tools", False)
    texts = [chat.decode_turn(ids) for t in trajectories for ids in _list_turns(t)]
    if not texts:
        return Check(name, None, "no turn was sampled")
    actions = [parse_native(text)[0] if native else parse(text) for text in texts]
    reasons = Counter(a.reason for a in actions if isinstance(a, FormatError))
    bad = [text for text, a in zip(texts, actions) if isinstance(a, FormatError)]
    parsed = len(texts) - len(bad)
    finding = f"{parsed} of {len(texts)} turns are a tool call or an answer"
    if reasons:
        finding += f"; most frequent error: {reasons.most_common(1)[0][0]}"
    if parsed >= PARSED_SHARE * len(texts):
        return Check(name, True, finding, examples=_shorten(bad + texts))
    return Check(
        name,
        False,
        finding,
        "train stage sft on demonstrations first (demonstrations.teacher=solver), or check that "
        "model.tool_format matches the model",
        _shorten(bad),
    )


def _shorten(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the first different texts, of limited length."""
    return tuple(text[:EXAMPLE_CHARACTERS] for text in list(dict.fromkeys(texts))[:EXAMPLES])


# ---------------------------------------------------------------- rollouts of a group


def check_sampling(temperature: float, trajectories: Sequence[Trajectory] = ()) -> Check:
    """Check that the rollouts of a group are sampled, not greedy copies of one another."""
    name = "sampling"
    remedy = "set rl.temperature=1.0, and check that the engine applies the temperature"
    if temperature == 0:
        finding = "rl.temperature=0: the rollouts of a group are the same, so no reward differs"
        return Check(name, False, finding, remedy)
    groups = [group for group in _group_rollouts(trajectories).values() if len(group) > 1]
    if not groups:
        return Check(name, True, f"rl.temperature={temperature:g}")
    same = sum(len({_conversation(t) for t in group}) == 1 for group in groups)
    finding = f"all rollouts are equal in {same} of {len(groups)} groups"
    if same > IDENTICAL_SHARE * len(groups):
        remedy += "; if it does, the policy has collapsed: start from an earlier one"
        return Check(name, False, finding, remedy)
    return Check(name, True, f"rl.temperature={temperature:g}; {finding}")


def _conversation(trajectory: Trajectory) -> tuple[str, ...]:
    return tuple(message["content"] for message in trajectory.messages)


def _group_rollouts(trajectories: Sequence[Trajectory]) -> dict[str, list[Trajectory]]:
    """Return the rollouts by group."""
    groups = defaultdict(list)
    for trajectory in trajectories:
        groups[trajectory.group_id].append(trajectory)
    return groups


def check_group_size(config: Config) -> Check:
    """Check that the advantage estimator gives one right rollout of a group an advantage."""
    size = config.rl.group
    rewards = [1.0, *[0.0] * (2 * size - 1)]
    groups = [0] * size + [1] * size
    advantages = ADVANTAGES[config.rl.advantage.estimator](rewards, groups)
    finding = f"groups of {size}, {config.rl.advantage.estimator}"
    if bool((advantages != 0).any()):
        return Check("group size", True, finding)
    finding += ": a right answer among wrong ones has advantage 0"
    return Check("group size", False, finding, "set rl.group to 2 or more (published: 8 to 16)")


def check_variance(trajectories: Sequence[Trajectory], rows: Sequence[Mapping] = ()) -> Check:
    """Check that enough groups have reward variance; the others have no gradient.

    Args:
        rows: metrics of all steps, whose averages replace those of the saved rollouts.
    """
    name = "groups"
    judged = [t for t in trajectories if t.reward is not None]
    rewards = [float(t.reward or 0.0) for t in judged]
    groups = _group_rollouts(judged).values()
    if rows and "live_groups" in rows[0]:
        live = float(np.mean([row["live_groups"] for row in rows]))
        reward = float(np.mean([row["reward"] for row in rows if "reward" in row] or [0.0]))
        source = f"{len(rows)} steps"
    elif groups:
        live = sum(len({t.reward for t in group}) > 1 for group in groups) / len(groups)
        reward, source = float(np.mean(rewards)), f"{len(groups)} groups"
    else:
        return Check(name, None, "no rollout was judged")
    finding = f"{live:.0%} of the groups have reward variance, mean reward {reward:.2f} ({source})"
    if live >= LIVE_SHARE:
        return Check(name, True, finding)
    value, times = Counter(rewards).most_common(1)[0] if rewards else (0.0, 0)
    if times < MAJORITY * len(rewards):
        remedy = "raise rl.group, or draw again with rl.sampling.draws=4"
    elif value == max(rewards) > 0:
        remedy = "ask harder questions: rl.curriculum.conditions, or rl.curriculum.python_share=0"
    else:
        remedy = (
            "almost no rollout is paid: remove the other faults first; then train stage sft "
            "longer, ask easier questions, or raise rl.group"
        )
    return Check(name, False, finding, remedy)


def check_truncation(trajectories: Sequence[Trajectory], limits: Limits) -> Check:
    """Check that most rollouts end before the limits of a turn and of the context.

    Args:
        limits: those of the rollouts.
    """
    name = "truncation"
    if not trajectories:
        return Check(name, None, "no rollouts")
    cut = [t for t in trajectories if t.termination == Termination.LENGTH]
    at_turn = sum(len(_list_turns(t)[-1]) >= limits.turn_tokens for t in cut if _list_turns(t))
    finding = (
        f"{len(cut)} of {len(trajectories)} rollouts are cut: {at_turn} turns at "
        f"{limits.turn_tokens} tokens, {len(cut) - at_turn} contexts at {limits.context_tokens}"
    )
    if len(cut) <= CUT_SHARE * len(trajectories):
        return Check(name, True, finding)
    setting = "rollout.max_turn_tokens" if 2 * at_turn >= len(cut) else "rollout.max_context_tokens"
    remedy = f"raise {setting}; if the texts ramble, train stage sft first"
    return Check(name, False, finding, remedy)


def check_loss_mask(trajectories: Sequence[Trajectory], config: Config) -> Check:
    """Check that sampled tokens remain in the loss after the rollout filter."""
    name = "loss mask"
    if not trajectories:
        return Check(name, None, "no rollouts")
    sampled = [int(t.generated.sum()) for t in trajectories]
    tokens = sum(map(len, trajectories))
    if sum(sampled) == 0:
        return Check(
            name,
            False,
            f"none of {tokens} tokens is marked as sampled (`Trajectory.generated`)",
            "use an engine that reads token ids, and an agent that returns the contexts in which "
            "the policy wrote",
        )
    weights_N, _, report = filter_rollouts(trajectories, build_filter(config))
    kept = sum(n for n, weight in zip(sampled, weights_N.tolist()) if weight > 0)
    finding = f"{sum(sampled)} of {tokens} tokens are sampled, {kept} of them are in the loss"
    if kept:
        return Check(name, True, finding)
    reasons = ", ".join(f"{reason} {n}" for reason, n in report["reasons"].items())
    return Check(
        name,
        False,
        f"{finding}; excluded rollouts: {reasons}",
        "overlong: see truncation, or set rl.filter.overlong=keep; env_fault, unjudged: repair "
        "the tool or the reward",
    )


# ---------------------------------------------------------------- reward


class _WrittenTurns(TurnwiseEngine):
    """An engine that writes given turns: `turns[i]` are those of request i, in order."""

    def __init__(self, chat: Any, turns: Sequence[Sequence[str]]):
        self.chat, self.turns = chat, turns
        self.max_context, self.vocab_size = 2**30, len(chat.tokenizer)
        self._waiting: list[Any] = []

    def update_weights(self, model) -> None:
        """Raise TypeError: written turns have no weights."""
        raise TypeError("written turns have no weights")

    def _start(self, conversation, params) -> None:
        self._waiting.append(conversation)

    def _abandon(self) -> None:
        self._waiting.clear()

    def _step(self):
        started, self._waiting = self._waiting, []
        return [(each, self._complete(each)) for each in started]

    def _complete(self, conversation) -> Completion:
        ids = _encode_turn(self.chat, self.turns[conversation.number][conversation.turns])
        return Completion(ids, [0.0] * len(ids), [0.0] * len(ids), "stop")


def _encode_turn(chat: Any, text: str) -> list[int]:
    """Encode a turn up to its stop token."""
    ids = chat.encode(text)
    return ids if ids[-1] in chat.stop_ids else [*ids, chat.end_id]


def draw_known_tasks(scheduler: QuestionScheduler) -> list[Task]:
    """Return a few questions of the run's world without changing the scheduler."""
    random, source = Random("doctor"), scheduler.real
    hops = next((n for n in range(1, MAX_HOPS + 1) if source.answers(n)), 0)
    if hops == 0:
        return [make_python_task(random) for _ in range(WRITTEN_TASKS)]
    return [source.draw(hops, random) for _ in range(WRITTEN_TASKS)]


def _find_wrong_answer(task: Task, tasks: Sequence[Task]) -> str:
    """Return the answer of another question that is wrong for this one."""
    others = [other.answer for other in tasks if not is_correct(other.answer, task)]
    numbers = (str(number) for number in count())
    return others[0] if others else next(n for n in numbers if not is_correct(n, task))


def write_rollouts(
    chat: Any, system: str | None, toolbox: Toolbox, tasks: Sequence[Task], config: Config
) -> list[Trajectory]:
    """Return judged rollouts with a right and with a wrong answer for each task.

    The turns are written; agent, template, tools and reward are the real ones. Each rollout
    searches once, if calls are allowed, because a reward may require evidence.
    """
    calls = config.rollout.max_calls
    turns = []
    for task in tasks:
        search = [render_call("search", {"query": [task.question]})] if calls else []
        answers = (task.answer, _find_wrong_answer(task, tasks))
        turns += [[*search, render_answer(answer)] for answer in answers]
    engine = _WrittenTurns(chat, turns)
    limits = Limits(calls, engine.max_context, engine.max_context)
    rollouts = ReAct(engine, toolbox, chat, limits, system).run(tasks, samples=2)
    reward = build_reward(config)
    owners = [task for task in tasks for _ in range(2)]
    for trajectory, answers in zip(rollouts, owners):
        # s3's reward subtracts the answer of plain retrieval: none here
        trajectory.metadata.setdefault("rag_answer", _find_wrong_answer(answers, tasks))
    return [judge_rollout(t, task, reward) for t, task in zip(rollouts, owners)]


def check_reward(rollouts: Sequence[Trajectory], name: str) -> Check:
    """Check that right answers are paid more than wrong ones.

    Args:
        rollouts: those of `write_rollouts`.
        name: name of the reward (rl.reward.name).
    """
    rewards = [t.reward for t in rollouts]
    pairs = [pair for pair in zip(rewards[::2], rewards[1::2]) if None not in pair]
    better = sum(right > wrong for right, wrong in pairs)
    finding = f"{name} pays the right answer more than a wrong one in {better} of {len(pairs)}"
    if pairs:
        right, wrong = pairs[0]
        finding += f" questions, for example {right:g} and {wrong:g}"
    if name in CONTROL_REWARDS:
        return Check("reward", True, f"{name} is a control, which ignores the answer on purpose")
    if better:
        return Check("reward", True, finding)
    return Check(
        "reward",
        False,
        finding,
        f"correct the reward {name!r} (rl.reward.name, rl.reward.arguments), or add its name to "
        "drlib.rewards.controls.CONTROL_REWARDS if it is a control",
    )


def check_limits(chat: Any, system: str | None, tasks: Sequence[Task], config: Config) -> Check:
    """Check that a prompt and a right answer fit into the limits of turn and context."""
    prompt = min(len(chat.prompt(task.question, system=system)) for task in tasks)
    turn = min(len(_encode_turn(chat, render_answer(task.answer))) for task in tasks)
    turn_limit, context = config.rollout.max_turn_tokens, config.rollout.max_context_tokens
    finding = (
        f"the shortest prompt has {prompt} tokens and an answer {turn}; limits: context {context}, "
        f"turn {turn_limit}"
    )
    if turn > turn_limit:
        remedy = f"set rollout.max_turn_tokens to {turn} or more, with room for thoughts and calls"
        return Check("limits", False, finding, remedy)
    if prompt + turn > context:
        remedy = (
            f"set rollout.max_context_tokens to {prompt + turn} or more, with room for tool "
            "responses"
        )
        return Check("limits", False, finding, remedy)
    return Check("limits", True, finding)


# ---------------------------------------------------------------- optimisation


def check_learning_rate(config: Config, rows: Sequence[Mapping] = ()) -> Check:
    """Check that the learning rate in force is above 0, and that updates took place.

    Args:
        rows: metrics of the steps; none: the planned schedule is checked.
    """
    name, lr, steps = "learning rate", config.rl.lr, config.rl.steps
    remedy = "set rl.lr (4e-4 for the small policy, 1e-6 to 1e-5 for a language model)"
    planned = lr * min(1.0, steps / (config.rl.warmup_steps + 1))  # the end of the warm-up
    highest = max((_learning_rate(row, lr) for row in rows), default=planned)
    if lr == 0 or highest == 0:
        return Check(name, False, f"rl.lr={lr:g}: no update changes the policy", remedy)
    finding = f"rl.lr={lr:g}, at most {highest:.3g}"
    finding += f" in {len(rows)} steps" if rows else f" in the {steps} planned steps"
    skipped = [row["step"] for row in rows if "skipped" in row]
    if skipped:
        finding += f"; skipped for a gradient that is not finite: {len(skipped)}"
    if rows and len(skipped) == len(rows):
        return Check(name, False, finding, "lower rl.lr, or set model.dtype=float32")
    norms = [row["grad_norm"] for row in rows if "grad_norm" in row]
    if norms and not any(norms):
        finding += "; the gradient was 0 in all of them"
        return Check(name, False, finding, "see groups: without reward variance there is no update")
    if norms:
        finding += f"; mean gradient norm {np.mean(norms):.3g}"
    return Check(name, True, finding)


def _learning_rate(row: Mapping, lr: float) -> float:
    """Return the learning rate of a step: TRL's column, or the local loop's factor."""
    return row["learning_rate"] if "learning_rate" in row else lr * row.get("lr_factor", 1.0)


def check_engine(
    sampled: Sequence[np.ndarray], scored: Sequence[np.ndarray], tolerance: float
) -> Check:
    """Check that engine and trainer agree on the log-probabilities of the sampled tokens.

    Args:
        sampled: the engine's, nats, of the sampled tokens of each rollout.
        scored: those of the trainer's forward pass with the same weights.
        tolerance: largest mean difference (engine.max_mismatch).
    """
    gap_N = np.abs(np.concatenate([a - b for a, b in zip(sampled, scored)] or [np.zeros(0)]))
    if not len(gap_N):
        return Check("engine", None, "no sampled token to compare")
    finding = (
        f"log-probabilities of engine and trainer differ by {gap_N.mean():.2g} nats on average, "
        f"{gap_N.max():.2g} at most, over {len(gap_N)} tokens (limit of the mean: {tolerance:g})"
    )
    if gap_N.mean() <= tolerance:
        return Check("engine", True, finding)
    return Check(
        "engine",
        False,
        finding,
        "use the same weights, dtype and rl.temperature in both; for a small difference set "
        "rl.loss.correction=truncate, or raise engine.max_mismatch",
    )


# ---------------------------------------------------------------- before step 1


def require_learnable(
    config: Config,
    chat: Any,
    system: str | None,
    scheduler: QuestionScheduler,
    toolbox: Toolbox,
) -> None:
    """Refuse a run that cannot learn, before its first step; no model is run.

    Args:
        chat, system: chat template and system prompt of the rollouts.
        scheduler: source of questions with known answers; its state does not change.
        toolbox: tools of the rollouts.

    Raises:
        ValueError: all faults with their remedies, on one line.
    """
    tasks = draw_known_tasks(scheduler)
    checks = _check_settings(config, chat, system, tasks)
    if all(check.ok for check in checks if check.name == "template"):
        rollouts = write_rollouts(chat, system, toolbox, tasks, config)
        checks += [check_reward(rollouts, config.rl.reward.name), check_loss_mask(rollouts, config)]
    faults = [check for check in checks if check.ok is False]
    if faults:
        lines = [f"{each.name}: {each.finding}; remedy: {each.remedy}" for each in faults]
        raise ValueError("this run cannot learn: " + " | ".join(lines))


def _check_settings(
    config: Config, chat: Any, system: str | None, tasks: Sequence[Task]
) -> list[Check]:
    """Return the checks of the settings and the chat template."""
    template = check_template(chat, system, tasks[0].question)
    checks = [
        check_sampling(config.rl.temperature),
        check_group_size(config),
        check_learning_rate(config),
        template,
        check_stop(chat),
    ]
    return [*checks, check_limits(chat, system, tasks, config)] if template.ok else checks
