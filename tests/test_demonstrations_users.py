"""Users of several turns: what they withhold must be asked for, and the state says who guessed.

Run: python -m pytest tests/test_demonstrations_users.py
"""

import pytest

from drlib.chat.tool_calls import render_answer, render_call
from drlib.demonstrations.actions import episode_sample
from drlib.demonstrations.agentscaler import (
    MAX_TURNS,
    READS,
    UNHELPFUL,
    Domain,
    User,
    converse,
    filter_trajectories,
    find_domains,
    hand,
    play_with_user,
    rejection,
    sample_task,
    spoken,
    toy_apis,
)
from drlib.training.sft import tool_use_samples
from tests.agent_examples import tour_chat

chat = tour_chat
DOMAINS = [Domain(part) for part in find_domains(toy_apis())]
TASKS = [sample_task(domain, seed) for domain in DOMAINS for seed in range(12)]
READING = [sample_task(domain, seed, ops=READS) for domain in DOMAINS for seed in range(6)]


def says(messages, role):
    return [message["content"] for message in messages if message["role"] == role]


def test_a_hand_that_asks_reaches_the_gold_state_and_its_conversations_pass():
    pairs = [(task, play_with_user(task, seed)) for seed, task in enumerate(TASKS + READING)]
    _, report = filter_trajectories(pairs)
    assert report["kept"] == report["given"] == 108
    turns = {len(says(messages, "user")) for _, messages in pairs}
    assert len(turns) > 5  # as many as there are steps and questions
    for task, messages in pairs:
        questions = [text for text in says(messages, "assistant") if "Which " in text]
        assert len(says(messages, "user")) == len(task.steps) + len(questions)
        assert len(says(messages, "tool")) == len(task.calls)
    assert any("Which " in text for _, m in pairs for text in says(m, "assistant"))


def test_what_is_withheld_is_in_no_turn_before_it_is_asked_for():
    asked = 0
    for seed, task in enumerate(TASKS):
        user = User(task, seed, withholds=1.0)
        first = user.say(())
        if not user.missing:  # all that the step needs was returned by another
            continue
        asked += 1
        name, value = user.missing, dict(task.steps[0].arguments)[user.missing]
        assert f"{spoken(name)} {value}" not in first
        told = user.say([{"role": "assistant", "content": f"Which {spoken(name)}?"}])
        assert told == f"The {spoken(name)} is {value}." and not user.missing
    assert asked > 60


def test_a_user_that_withholds_nothing_says_the_steps_in_order():
    task = max(TASKS, key=lambda task: len(task.steps))
    user = User(task, 0, withholds=0.0)
    said = [user.say(())] + [user.say([{"role": "assistant", "content": "ok"}]) for _ in task.steps]
    assert said.pop() is None
    for text, step in zip(said, task.steps, strict=True):
        assert step.text() in text
    assert task.request == f"Please {'; then '.join(step.text() for step in task.steps)}."


def guess_of(call, name):
    """The call with another value of the argument that nobody told."""
    arguments = {**call.arguments}
    if name in arguments:
        arguments[name] = f"{arguments[name][:-1]}{(int(arguments[name][-1]) + 1) % 10}"
    return render_call(call.name, arguments)


def test_who_guesses_ends_in_another_state():
    """The same hand, which first makes up what it was not told, and then asks."""
    reasons = []
    for seed, task in enumerate(TASKS):
        user = User(task, seed, withholds=1.0)
        honest = hand(task, user)

        def guesser(messages, task=task, user=user, honest=honest):
            last = messages[-1]
            if last["role"] == "tool" or not user.missing or last["content"] == UNHELPFUL:
                return honest(messages)
            call = guess_of(task.calls[user.step], user.missing)
            return f"<think>It may be this.</think>{call}"

        messages = converse(task, user, guesser)
        reasons.append(rejection(task, messages))
    # a guess that only reads, or that the right change overwrites, harms nothing
    assert reasons.count("state") > 50 and reasons.count("") < 20


def test_a_user_that_nobody_asks_gives_up():
    task, user = next(
        (task, user)
        for task in TASKS
        if (user := User(task, 0, withholds=1.0)).say(()) and user.missing
    )
    user = User(task, 0, withholds=1.0)
    deaf = f"<think>Well.</think>{render_answer('Is there anything else?')}"
    messages = converse(task, user, lambda messages: deaf)
    assert user.gave_up and says(messages, "user")[1:] == [UNHELPFUL] * 2
    assert rejection(task, messages) in ("state", "exact match")
    assert not User(task, 0).gave_up


def test_a_conversation_ends_at_nonsense_and_at_its_limit():
    task = TASKS[0]
    messages = converse(task, User(task, 0), lambda messages: "hm")
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert rejection(task, messages) == "turns"
    call = task.calls[0]
    looping = f"<think>Again.</think>{render_call(call.name, call.arguments)}"
    messages = converse(task, User(task, 0), lambda messages: looping)
    assert len(says(messages, "assistant")) == MAX_TURNS
    assert rejection(task, messages) == "turns"


@pytest.mark.parametrize(
    ("roles", "passes"),
    [
        ("ua", False),  # alone: the state is not the gold one
        ("uaua", False),
        ("au", "turns"),
        ("ucta", False),
        ("uca", "turns"),
        ("uuca", "turns"),
        ("uctau", "turns"),
    ],
)
def test_turns_that_no_conversation_has_are_rejected(roles, passes):
    task = next(task for task in TASKS if task.writes)
    call = f"<think>x</think>{render_call('nothing', {})}"
    answer = f"<think>x</think>{render_answer('x')}"
    made = {"u": ("user", "x"), "a": ("assistant", answer), "c": ("assistant", call)}
    made |= {"t": ("tool", "Error: no tool nothing that takes [] as strings.")}
    messages = [dict(zip(("role", "content"), made[letter])) for letter in roles]
    assert rejection(task, messages) == (passes or "state")


def test_a_sample_is_what_a_rollout_would_have_seen(chat):
    """Ids of a conversation: the user's turns are read, the assistant's learned, tags are ours."""
    task, messages = next(
        (task, messages)
        for task in TASKS
        if len(says(messages := play_with_user(task, 3), "user")) > 2
    )
    sample = episode_sample(messages, chat)
    ids = list(chat.prompt(messages[0]["content"]))
    for message in messages[1:]:
        if message["role"] == "assistant":
            ids += [*chat.encode(message["content"]), chat.end_id]
        elif message["role"] == "tool":
            ids += chat.tool_turn(message["content"])
        else:
            ids += chat.user_turn(message["content"])
    assert list(sample.ids) == ids
    learned = chat.tokenizer.decode([i for i, own in zip(sample.ids, sample.loss) if own])
    assert learned == "".join(f"{text}<|im_end|>" for text in says(messages, "assistant"))


def test_the_setting_s_samples_ask(chat):
    alone, several = tool_use_samples(chat), tool_use_samples(chat, several=True)
    text = chat.tokenizer.decode
    assert not any("I was not told the" in text(sample.ids) for sample in alone)
    asking = sum("I was not told the" in text(sample.ids) for sample in several)
    assert len(several) > 80 and asking > 30


# ---------------------------------------------------------------- a model in the user's place
