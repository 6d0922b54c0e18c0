"""Simulated users of several turns: withheld values, and state checks that detect guessing.

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


def texts_of(messages, role):
    return [message["content"] for message in messages if message["role"] == role]


def test_asking_agent_reaches_the_gold_state():
    pairs = [(task, play_with_user(task, seed)) for seed, task in enumerate(TASKS + READING)]
    _, report = filter_trajectories(pairs)
    assert report["kept"] == report["given"] == 108
    turns = {len(texts_of(messages, "user")) for _, messages in pairs}
    assert len(turns) > 5  # as many as there are steps and questions
    for task, messages in pairs:
        questions = [text for text in texts_of(messages, "assistant") if "Which " in text]
        assert len(texts_of(messages, "user")) == len(task.steps) + len(questions)
        assert len(texts_of(messages, "tool")) == len(task.calls)
    assert any("Which " in text for _, m in pairs for text in texts_of(m, "assistant"))


def test_withheld_value_is_revealed_only_on_request():
    tested = 0
    for seed, task in enumerate(TASKS):
        user = User(task, seed, withholds=1.0)
        first = user.say(())
        if not user.missing:  # another step returned all values that this step needs
            continue
        tested += 1
        name, value = user.missing, dict(task.steps[0].arguments)[user.missing]
        assert f"{spoken(name)} {value}" not in first
        reply = user.say([{"role": "assistant", "content": f"Which {spoken(name)}?"}])
        assert reply == f"The {spoken(name)} is {value}." and not user.missing
    assert tested > 60


def test_user_without_withholding_states_the_steps():
    task = max(TASKS, key=lambda task: len(task.steps))
    user = User(task, 0, withholds=0.0)
    said = [user.say(())] + [user.say([{"role": "assistant", "content": "ok"}]) for _ in task.steps]
    assert said.pop() is None
    for text, step in zip(said, task.steps, strict=True):
        assert step.text() in text
    assert task.request == f"Please {'; then '.join(step.text() for step in task.steps)}."


def guess_argument(call, name):
    """Return the call with another value of the withheld argument."""
    arguments = {**call.arguments}
    if name in arguments:
        arguments[name] = f"{arguments[name][:-1]}{(int(arguments[name][-1]) + 1) % 10}"
    return render_call(call.name, arguments)


def test_guessing_agent_ends_in_another_state():
    """The agent first invents the withheld value, and then asks."""
    reasons = []
    for seed, task in enumerate(TASKS):
        user = User(task, seed, withholds=1.0)
        honest = hand(task, user)

        def guesser(messages, task=task, user=user, honest=honest):
            last = messages[-1]
            if last["role"] == "tool" or not user.missing or last["content"] == UNHELPFUL:
                return honest(messages)
            call = guess_argument(task.calls[user.step], user.missing)
            return f"<think>It may be this.</think>{call}"

        messages = converse(task, user, guesser)
        reasons.append(rejection(task, messages))
    # a guess that only reads, or that the correct write overwrites, is harmless
    assert reasons.count("state") > 50 and reasons.count("") < 20


def test_user_gives_up_if_never_asked():
    task, user = next(
        (task, user)
        for task in TASKS
        if (user := User(task, 0, withholds=1.0)).say(()) and user.missing
    )
    user = User(task, 0, withholds=1.0)
    ignoring = f"<think>Well.</think>{render_answer('Is there anything else?')}"
    messages = converse(task, user, lambda messages: ignoring)
    assert user.gave_up and texts_of(messages, "user")[1:] == [UNHELPFUL] * 2
    assert rejection(task, messages) in ("state", "exact match")
    assert not User(task, 0).gave_up


def test_conversation_ends_at_invalid_turns_and_its_limit():
    task = TASKS[0]
    messages = converse(task, User(task, 0), lambda messages: "hm")
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert rejection(task, messages) == "turns"
    call = task.calls[0]
    looping = f"<think>Again.</think>{render_call(call.name, call.arguments)}"
    messages = converse(task, User(task, 0), lambda messages: looping)
    assert len(texts_of(messages, "assistant")) == MAX_TURNS
    assert rejection(task, messages) == "turns"


@pytest.mark.parametrize(
    ("roles", "passes"),
    [
        ("ua", False),  # the final state differs from the gold state
        ("uaua", False),
        ("au", "turns"),
        ("ucta", False),
        ("uca", "turns"),
        ("uuca", "turns"),
        ("uctau", "turns"),
    ],
)
def test_invalid_turn_orders_are_rejected(roles, passes):
    task = next(task for task in TASKS if task.writes)
    call = f"<think>x</think>{render_call('nothing', {})}"
    answer = f"<think>x</think>{render_answer('x')}"
    turns_by_letter = {"u": ("user", "x"), "a": ("assistant", answer), "c": ("assistant", call)}
    turns_by_letter |= {"t": ("tool", "Error: no tool nothing that takes [] as strings.")}
    messages = [dict(zip(("role", "content"), turns_by_letter[letter])) for letter in roles]
    assert rejection(task, messages) == (passes or "state")


def test_sample_ids_equal_a_rollout(chat):
    """User turns are read, assistant turns carry loss, and tags are special tokens."""
    task, messages = next(
        (task, messages)
        for task in TASKS
        if len(texts_of(messages := play_with_user(task, 3), "user")) > 2
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
    assert learned == "".join(f"{text}<|im_end|>" for text in texts_of(messages, "assistant"))


def test_multi_turn_samples_contain_questions(chat):
    single_turn, several = tool_use_samples(chat), tool_use_samples(chat, several=True)
    text = chat.tokenizer.decode
    assert not any("I was not told the" in text(sample.ids) for sample in single_turn)
    asking = sum("I was not told the" in text(sample.ids) for sample in several)
    assert len(several) > 80 and asking > 30
