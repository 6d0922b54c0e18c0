"""The oracle solves tasks through the tools alone; the demonstrator fails as configured.

Run: python -m pytest tests/test_demonstrations_oracle.py
"""

import itertools
import random

import pytest

from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import Answer, ToolCall, parse
from drlib.demonstrations.actions import REPLAY, ActionData, episode_sample
from drlib.demonstrations.oracle import Demonstrator, DemonstratorFaults, Oracle
from drlib.questions.chains import (
    PYTHON_KINDS,
    enumerate_chains,
    make_python_task,
    make_search_task,
)
from drlib.questions.search_plan import find_value, parse_pages
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training.data import PHRASES, demonstration_tasks, world_texts
from drlib.worlds import Names, fictional_world, load_world


@pytest.fixture(scope="module")
def cldr():
    return load_world("tour")


@pytest.fixture(scope="module")
def toolbox(cldr):
    with Sandbox() as sandbox, Toolbox(cldr, sandbox, results=2) as toolbox:
        yield toolbox


@pytest.fixture(scope="module")
def chat(cldr):
    from drlib.chat.template import train_tokenizer

    titles = sorted({t for e in cldr.entities.values() for t in (e.title, *e.facts.values())})
    return ChatIds(train_tokenizer(world_texts(cldr), 2048, names=titles, phrases=PHRASES))


def test_oracle_solves_every_chain_of_the_real_world(cldr, toolbox):
    rng, chains = random.Random(0), enumerate_chains(cldr)
    assert len(chains) > 2500
    for i, chain in enumerate(chains):
        episode = Oracle().play(make_search_task(chain, cldr, i % 3), toolbox, rng)
        assert episode.correct and len(episode.tool_results) == chain.hops


def test_oracle_solves_fictional_worlds_and_sums(cldr, toolbox):
    rng, names = random.Random(1), Names.from_world(cldr)
    for seed in range(20):
        world = fictional_world(seed, names)
        for chain in enumerate_chains(world)[:40]:
            assert Oracle().play(make_search_task(chain, world, 0), toolbox, rng, world).correct
    for kind in PYTHON_KINDS:
        for _ in range(3):
            episode = Oracle().play(make_python_task(rng, kind), toolbox, rng)
            assert episode.correct and episode.tool_results[0].tool == "python"


def test_oracle_fails_without_tool_results(cldr):
    chain = next(c for c in enumerate_chains(cldr) if c.hops == 2)
    with Toolbox(cldr, results=2, closed_book=True) as closed, pytest.raises(LookupError):
        Oracle().play(make_search_task(chain, cldr, 0), closed, random.Random(0))


def test_find_value_matches_the_exact_relation():
    text = "1. [A](cldr:A)\ncurrency X; former currency Y; language Z.\n2. [B](cldr:B)\ncode Q."
    pages = parse_pages(text)
    assert find_value("currency", "A", pages) == "X"
    assert find_value("former currency", "A", pages) == "Y"
    assert find_value("code", "b", pages) == "Q"
    assert find_value("code", "A", pages) is None


@pytest.mark.parametrize(
    ("faults", "right", "calls"),
    [
        (DemonstratorFaults(0, 0, 0, 0, 0), 1.0, None),
        (DemonstratorFaults(1, 0, 0, 0, 0), 0.0, 0),
        (DemonstratorFaults(0, 0, 0, 0, 1), 0.0, 6),
    ],
)
def test_demonstrator_faults_at_their_extremes(cldr, toolbox, faults, right, calls):
    teacher = Demonstrator(faults, sorted(cldr.entities))
    tasks = demonstration_tasks(cldr, 40, 3)
    episodes = [teacher.play(t, toolbox, random.Random(i)) for i, t in enumerate(tasks)]
    assert sum(e.correct for e in episodes) / len(episodes) == pytest.approx(right, abs=0.06)
    if calls is not None:
        assert {len(e.tool_results) for e in episodes} == {calls}


def test_demonstrations_use_only_the_training_split(cldr):
    from drlib.questions.chains import split_answers

    side, tasks = split_answers(cldr), demonstration_tasks(cldr, 200, 0)
    assert {t.hops for t in tasks} == {0, 1, 2}
    assert all(side[t.answer] == "train" for t in tasks if t.kind == "search")


def test_episode_sample_equals_the_template(cldr, toolbox, chat):
    task = demonstration_tasks(cldr, 60, 1)[0]
    episode = Oracle().play(task, toolbox, random.Random(0))
    sample = episode_sample(episode.messages, chat)
    text = chat.tokenizer.apply_chat_template(
        episode.messages, return_dict=True, return_assistant_tokens_mask=True
    )
    assert list(sample.ids) == text["input_ids"]
    assert [int(f) for f in sample.loss] == text["assistant_masks"]
    turns = [m["content"] for m in episode.messages if m["role"] == "assistant"]
    assert all(isinstance(parse(t), ToolCall) for t in turns[:-1])
    assert parse(turns[-1]) == Answer(episode.answer)


def test_pretraining_text_has_no_answer_and_two_hops(cldr, chat):
    stream = ActionData(Names.from_world(cldr), chat).stream(0)
    seen = set()
    for _ in range(600):
        text = chat.tokenizer.decode(next(stream).ids)
        assert "<answer>" not in text
        assert text.count("<tool_call>") <= 2
        seen.add(text.count("<tool_call>"))
    assert seen == {0, 1, 2}


def test_replay_data_contains_no_tool_calls(cldr, chat):
    """Clean logs in the replay would be an unlimited second source of demonstrations."""
    stream = ActionData(Names.from_world(cldr), chat).stream(0, REPLAY)
    calls, starts = (chat.encode(text)[0] for text in ("<tool_call>", "<|im_start|>"))
    for sample in itertools.islice(stream, 100):
        assert calls not in sample.ids and starts not in sample.ids and any(sample.loss)


def test_name_has_the_same_ids_in_every_context(cldr, chat):
    for title in sorted(cldr.entities)[::7]:
        name = chat.encode(title + ".")[:-1]
        for text in (f"of {title}?", f'["{title}"]', f"<answer>{title}</answer>", f"({title})"):
            ids = chat.encode(text)
            assert any(ids[i : i + len(name)] == name for i in range(len(ids))), (title, text)
