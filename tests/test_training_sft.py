"""SFT data: the episodes that are trained on, and the tokens with loss.

Run: python -m pytest tests/test_training_sft.py
"""

import itertools
import random

import pytest

from drlib.chat.template import ChatIds, load_tokenizer
from drlib.chat.tool_calls import parse
from drlib.config import Config
from drlib.demonstrations.actions import ActionData
from drlib.demonstrations.agentfounder import ActionRows, memory_of_attempts, recalled
from drlib.demonstrations.episodes import REFLECTIONS, thought_and_action
from drlib.files import read_json_lines
from drlib.training import data, pretrain, sft, stages
from drlib.training.distributed import Ranks
from drlib.training.packing import mix_streams
from drlib.training.run_folder import RunFolder, read_manifest, read_metrics
from drlib.worlds import Names, fictional_world, load_world
from tests.loop_examples import build_stages

FILTERS = ("correct", "funnel", "none")
SMALL = {
    "model.hidden": 32,
    "model.head_dim": 8,
    "model.layers": 2,
    "model.expert_hidden": 16,
    "pretrain.steps": 1,
    "sft.steps": 2,
    "sft.replay_share": 0.0,
    "demonstrations.count": 300,
    "processes": 1,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Build the stages before SFT in this process."""
    runs = tmp_path_factory.mktemp("runs")
    names = ("world", "untrained", "demonstrations", "cpt")
    build_stages(names, Config.load("ci", **SMALL), runs)
    return runs


def train_sft(runs, **changes) -> dict:
    """Run SFT with changed settings if needed; return its metrics."""
    config = Config.load("ci", **SMALL | changes)
    path = stages.folder("sft", config, runs)
    if not RunFolder.is_complete(path):
        sft.sft(config, path, Ranks())
    return read_metrics(path)[-1] | read_manifest(path)["metrics"]


def test_funnel_is_stricter_and_records_faults(runs):
    config = Config.load("ci", **SMALL)
    pool = stages.folder("demonstrations", config, runs)
    rows = read_json_lines(pool / "episodes.jsonl")
    kept = {name: data.read_episodes(pool, name) for name in ("none", "correct", "funnel")}
    assert kept["none"] == rows
    assert kept["correct"] == [row for row in rows if row["correct"]]
    assert all(row in kept["correct"] for row in kept["funnel"])
    assert 0 < len(kept["funnel"]) < len(kept["correct"]) < len(rows) == 300
    # correct without a search: a guess is not grounded in any tool response
    rejected = [row for row in kept["correct"] if row not in kept["funnel"]]
    assert {row["fault"][0] for row in rejected} <= {"grounded", "redundant", "bounds"}
    wrong = [row for row in rows if not row["correct"]]
    assert all(row["fault"] is not None for row in wrong)
    counts = read_manifest(pool)["metrics"]
    assert counts == {
        "episodes": 300,
        "correct": len(kept["correct"]),
        "passed": len(kept["funnel"]),
    }


def test_filter_determines_the_pool(runs):
    sizes = {name: train_sft(runs, sft__filter=name)["pool"] for name in FILTERS}
    config = Config.load("ci", **SMALL)
    pool = stages.folder("demonstrations", config, runs)
    assert sizes == {name: len(data.read_episodes(pool, name)) for name in FILTERS}


def test_loss_on_all_includes_questions_and_tools(runs):
    own, everything = (train_sft(runs, sft__loss_on=which) for which in ("own", "all"))
    assert own["tokens"] == everything["tokens"]  # the same samples in the same order
    assert own["loss_tokens"] < 0.6 * own["tokens"]
    # all but the first token of each sample, which cannot be predicted
    assert 0.95 * everything["tokens"] < everything["loss_tokens"] < everything["tokens"]


@pytest.fixture(scope="module")
def correct_episodes(runs):
    """Return (correct episodes of the pool, the chat encoder)."""
    config = Config.load("ci", **SMALL)
    tokenizer = load_tokenizer(stages.folder("world", config, runs) / "tokenizer")
    pool = stages.folder("demonstrations", config, runs)
    return data.read_episodes(pool, "correct"), ChatIds(tokenizer)


def test_rounds_are_added_with_their_state(correct_episodes):
    episodes, chat = correct_episodes
    plain, _ = sft.length_pools(episodes, chat, Config.load("ci"))
    pool, same = sft.length_pools(episodes, chat, Config.load("ci", sft__rounds=True))
    assert pool == same and pool[: len(plain)] == plain
    turns = sum(m["role"] == "assistant" for e in episodes for m in e["messages"])
    rounds = pool[len(plain) :]
    assert len(rounds) == turns
    texts = [chat.tokenizer.decode(sample.ids) for sample in rounds]
    assert all("Last observation: " in text and "<report>" in text for text in texts)
    # loss on thought, report and action alone: not on the state that is given
    observation_text = [[i for i, loss in zip(s.ids, s.loss) if loss] for s in rounds]
    assert all(chat.tokenizer.decode(ids).startswith("<think>") for ids in observation_text)
    assert not any("Last observation" in chat.tokenizer.decode(ids) for ids in observation_text)


def test_length_pools_put_short_samples_first(correct_episodes):
    episodes, chat = correct_episodes
    (plain, _), short = sft.length_pools(episodes, chat, Config.load("ci")), 110
    early, late = sft.length_pools(episodes, chat, Config.load("ci", sft__short_tokens=short))
    assert early == [sample for sample in plain if len(sample) <= short]
    longer = [sample for sample in plain if len(sample) > short]
    assert late[: len(longer)] == longer and len(longer) > 20
    again = late[len(longer) :]
    assert len(again) == round(0.1 * len(longer)) and all(sample in early for sample in again)
    with pytest.raises(ValueError, match="sft.short_tokens=9 .* samples have .* tokens"):
        sft.length_pools(episodes, chat, Config.load("ci", sft__short_tokens=9))


def test_stage_trains_on_short_samples_first(runs):
    changes = {"sft.steps": 5, "sft.short_tokens": 110, "sft.loss_on": "all"}
    config = Config.load("ci", **SMALL | changes)
    path = stages.folder("sft", config, runs)
    sft.sft(config, path, Ranks())
    # loss is on all tokens but the first of each sample, so the difference counts samples
    lengths = [r["tokens"] / (r["tokens"] - r["loss_tokens"]) for r in read_metrics(path)]
    assert max(lengths[:3]) < 110 < min(lengths[3:])


def test_tool_use_samples_and_mixing_shares(correct_episodes):
    _, chat = correct_episodes
    samples = sft.tool_use_samples(chat)
    texts = [chat.tokenizer.decode(sample.ids) for sample in samples]
    assert len(samples) > 100 and all("<tool_call>" in text for text in texts)
    assert {text.split()[1] for text in texts} == {"Please"}
    streams = [itertools.repeat(name) for name in ("replay", "used", "own")]
    drawn = list(itertools.islice(mix_streams(random.Random(0), streams, (0.3, 0.2)), 4000))
    shares = [drawn.count(name) / 4000 for name in ("replay", "used", "own")]
    assert shares == pytest.approx([0.3, 0.2, 0.5], abs=0.03)


def test_pretraining_mixes_agentfounder_rows_by_share(correct_episodes):
    _, chat = correct_episodes
    names = Names.from_world(load_world("tour"))

    def texts(n=300, **shares):
        documents = pretrain.documents(Config.load("ci", **shares), names, chat)("k")
        return [chat.tokenizer.decode(next(documents).ids) for _ in range(n)]

    plain = [
        chat.tokenizer.decode(s.ids)
        for s in itertools.islice(ActionData(names, chat, 2).stream("k"), 300)
    ]
    assert texts() == plain, "without a share nothing changes"
    mixture = texts(pretrain__first_order_share=0.2, pretrain__higher_order_share=0.3)
    widened = sum("I will choose option" in text for text in mixture)
    assert widened / 300 == pytest.approx(0.3, abs=0.08)
    assert sum("My decision is" in text for text in mixture) == widened
    left = [text for text in mixture if text in plain]
    assert len(left) / 300 == pytest.approx(0.5, abs=0.08)
    everything = texts(60, pretrain__higher_order_share=1.0)
    assert all("My decision is" in text for text in everything)
    # rows that the judge rejects, such as an answer without a search, are dropped
    first_order = texts(200, pretrain__first_order_share=1.0)
    assert not any("I know this." in text for text in first_order)
    drafts = sum("Draft: " in text for text in first_order)
    assert 20 < drafts < 180
    with pytest.raises(ValueError, match="sum to .* lower them"):
        texts(pretrain__first_order_share=0.6, pretrain__higher_order_share=0.5)


def test_first_order_questions_from_episode_memory(correct_episodes):
    _, chat = correct_episodes
    names = Names.from_world(load_world("tour"))
    world = fictional_world(7, names)
    rows = ActionRows(names, chat, 2, from_memory=True)
    episodes = list(rows._attempts(world, random.Random(7)))
    assert any(not episode.correct for episode in episodes), "discarded episodes count too"
    shown = {
        title
        for episode in episodes
        for result in episode.tool_results
        for title in world.entities
        if f"[{title}](" in result.text
    }
    memory = memory_of_attempts(world, episodes)
    remembered_world = recalled(memory, world)
    assert set(remembered_world.entities) == shown and len(shown) < len(world.entities)
    for title in shown:
        assert remembered_world.entities[title].facts == world.entities[title].facts
    sources = {
        source
        for title in shown
        for said in memory.list_statements(title)
        for source in said.sources
    }
    with_calls = [
        number for number, episode in enumerate(episodes) if "[" in observation_text(episode)
    ]
    assert sources == {f"{world.name}/attempt-{number}" for number in with_calls}
    # a relation with contradicting values gives no question
    title, relation = next((t, r) for t in sorted(shown) for r in world.entities[t].facts)
    memory.add_fact(title, relation, "Another", "rumour")
    asked_for = recalled(memory, world).entities.get(title)
    assert asked_for is None or relation not in asked_for.facts
    # with the setting, questions start only at entities that some episode has seen
    rows_from_memory = list(rows._first_order(world, random.Random(7)))
    assert rows_from_memory and {row.entity_ids[0] for row in rows_from_memory} <= shown
    assert {row.entity_ids[0] for row in rows_from_memory} < set(world.entities)
    graph_documents = first_documents(chat, names, pretrain__first_order_share=1.0)
    memory_documents = first_documents(
        chat, names, pretrain__first_order_share=1.0, pretrain__first_order_questions="memory"
    )
    assert graph_documents != memory_documents
    assert first_documents(
        chat, names, pretrain__first_order_questions="memory"
    ) == first_documents(chat, names)


def observation_text(episode):
    return "".join(result.text for result in episode.tool_results)


def first_documents(chat, names, **settings):
    documents = pretrain.documents(Config.load("ci", **settings), names, chat)("k")
    return [next(documents).ids for _ in range(40)]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_imitated_reflection_changes_thoughts_and_no_action(correct_episodes, share):
    episodes, chat = correct_episodes
    config = Config.load("ci", sft__reflection_share=share)
    changed = sft.add_reflections(episodes, config)
    assert (changed == episodes) == (share == 0)
    turns, reflected = 0, 0
    for before, after in zip(episodes, changed, strict=True):
        assert {**after, "messages": before["messages"]} == before
        for old, new in zip(before["messages"], after["messages"], strict=True):
            assert old["role"] == new["role"]
            if old["role"] != "assistant":
                assert new == old
                continue
            (thought, action), (longer, same) = map(
                thought_and_action, (old["content"], new["content"])
            )
            assert same == action and parse(new["content"]) == parse(old["content"])
            assert longer.startswith(thought) and longer.endswith(thought)
            repeats = sum(longer.count(words) for words in REFLECTIONS)
            assert longer.count(thought) == repeats + 1 and repeats in (0, 1)
            turns, reflected = turns + 1, reflected + (repeats > 0)
            # a turn must fit into a rollout's turn
            ids = chat.tokenizer(new["content"], add_special_tokens=False).input_ids
            assert len(ids) < config.rollout.max_turn_tokens
    assert reflected / turns == pytest.approx(share, abs=0.08)
    # the pools of SFT have the longer samples
    lengths = [
        sum(map(len, sft.length_pools(some, chat, config)[0])) for some in (episodes, changed)
    ]
    assert (lengths[1] > lengths[0]) == (share > 0)


def test_imitated_reflection_reaches_training(runs):
    plain, reflecting = (train_sft(runs, sft__reflection_share=share) for share in (0.0, 1.0))
    assert reflecting["loss_tokens"] / reflecting["tokens"] > plain["loss_tokens"] / plain["tokens"]


def test_imitated_reflection_needs_texts():
    with pytest.raises(ValueError, match="demonstrations.teacher=model stores sampled tokens"):
        sft.add_reflections([{"ids": [1]}], Config.load("ci", sft__reflection_share=0.5))
