"""Users of several turns for AgentScaler's tasks (arXiv 2509.13311, simulated users; tau-bench).

A user knows what it wants and not which tools there are. It wants one thing after the other, now
and then leaves out what a call needs until it is asked for that, and goes on when it is answered.
So an agent must ask instead of guessing: a guess writes another row, and the final state tells.

    messages = converse(task, User(task, seed=0), policy)
    rejection(task, messages)      # "" where the state, or the calls of a reader, are the gold ones

A policy is a function of the messages so far. What it says to the user is an answer in our format,
which ends a turn and not the conversation. `hand` plays the gold calls and asks for what is
missing: data for fine-tuning (setting `sft_tool_use_users`).

Left out: a language model as the user, users that change their minds, that lie, or that use tools
of their own (tau2-bench).
"""

import random
from collections.abc import Callable, Sequence
from contextlib import closing

from drlib.chat.tool_calls import Answer, ToolCall, parse, render_answer, render_call
from drlib.synthesis.families.agentscaler import ToolTask, spoken

Message = dict[str, str]
Policy = Callable[[Sequence[Message]], str]
WITHHOLDS = 0.4  # of the steps with something to withhold
PATIENCE = 2  # answers that help with nothing, until it gives up
MAX_TURNS = 60
UNHELPFUL = "I have not told you everything that you need for that. Ask me for it."
THANKS = "STOP"
OPENINGS = ("Hello. Please {step}.", "Hi! Could you {step}?", "I would like you to {step}.")
NEXT_WISHES = ("Thanks. Now please {step}.", "Good. Next, {step}.", "Then {step}, please.")


class User:
    """A user by rule. seed: of what it withholds and of its words.

    step: the number of its last wish. missing: the name of the argument that it has not told, ""
    for none. gave_up: whether it left before all was done.
    """

    def __init__(self, task: ToolTask, seed: int, withholds: float = WITHHOLDS):
        self.task = task
        self.withholds = withholds
        self.missing = ""
        self.gave_up = False
        self._rng = random.Random(f"user-{task.domain.name}-{task.seed}-{seed}")
        self.step = 0
        self._unhelpful = 0

    def say(self, messages: Sequence[Message]) -> str | None:
        """The next wish once the last one was answered; of what is missing, its value when the
        answer asks for it by name."""
        if not messages:
            return self._wish(OPENINGS)
        if self.missing:
            return self._tell(messages[-1]["content"])
        self.step += 1
        return self._wish(NEXT_WISHES) if self.step < len(self.task.steps) else None

    def _wish(self, wordings: Sequence[str]) -> str:
        step = self.task.steps[self.step]
        told = [name for name, word in step.arguments if not word.startswith("of step")]
        if told and self._rng.random() < self.withholds:
            self.missing = self._rng.choice(told)
        return self._rng.choice(wordings).format(step=step.text(without=self.missing))

    def _tell(self, said: str) -> str | None:
        if spoken(self.missing) in said.casefold():
            value = dict(self.task.steps[self.step].arguments)[self.missing]
            told = f"The {spoken(self.missing)} is {value}."
            self.missing, self._unhelpful = "", 0
            return told
        self._unhelpful += 1
        self.gave_up = self._unhelpful > PATIENCE
        return None if self.gave_up else UNHELPFUL


def converse(
    task: ToolTask, user: User, policy: Policy, max_turns: int = MAX_TURNS
) -> list[Message]:
    """The messages of user, policy and tools until the user leaves, the policy says what is neither
    a call nor an answer, or has had `max_turns`. The tools work on the task's own state."""
    messages: list[Message] = [{"role": "user", "content": user.say(()) or ""}]
    with closing(task.domain.open(task.seed)) as db:
        for _ in range(max_turns):
            turn = policy(messages)
            messages.append({"role": "assistant", "content": turn})
            action = parse(turn)
            if isinstance(action, ToolCall):
                _, shown = task.domain.call(db, action.name, action.arguments)
                messages.append({"role": "tool", "content": shown})
                continue
            said = user.say(messages) if isinstance(action, Answer) else None
            if said is None:
                break
            messages.append({"role": "user", "content": said})
    return messages


def hand(task: ToolTask, user: User) -> Policy:
    """A hand that makes the gold calls, one for each wish, and asks for what it was not told."""

    def act(messages: Sequence[Message]) -> str:
        last = messages[-1]
        if last["role"] == "tool":
            return f"<think>That is done.</think>{render_answer('Done. ' + last['content'])}"
        if user.missing:
            name = spoken(user.missing)
            return f"<think>I was not told the {name}.</think>{render_answer(f'Which {name}?')}"
        call = task.calls[user.step]
        return f"<think>Use {call.name}.</think>{render_call(call.name, call.arguments)}"

    return act


def play_with_user(task: ToolTask, seed: int) -> list[Message]:
    """A whole conversation of the hand with a user by rule."""
    user = User(task, seed)
    return converse(task, user, hand(task, user))
