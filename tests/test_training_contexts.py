"""RL steps with agents other than ReAct, and the training data for their skills.

The steps start from the committed policy that was trained on reports and summaries.

Run: python -m pytest tests/test_training_contexts.py
"""

import itertools

import pytest
import torch

from drlib.chat.prompts import PHRASES
from drlib.chat.template import ChatIds, load_tokenizer
from drlib.config import Config
from drlib.training import pretrain, sft, stages
from drlib.training.distributed import Ranks
from drlib.training.pretrain import documents
from drlib.training.run_folder import RunFolder
from drlib.training.sft import memory_samples
from drlib.worlds import Names
from tests.loop_examples import ColdStart, build_stages, flat, settings

POLICY = "figures/reference/agents/policy"
AGENTS = {
    "iterresearch": {},
    "resum:summarise=policy,every=1": {},
    "iterresearch+resum:summarise=policy": {
        "rl.curriculum.trail_share": 0.5,
        "rl.curriculum.trail_pages": 9,
    },
    "heavy:n=2": {"rl.questions": 4},
    "s3:generate=reader": {"rl.reward.name": "gain_beyond_rag", "rl.curriculum.python_share": 0.0},
}


# A small policy, and the stages before pre-training and SFT.
SHORT = {
    "model.hidden": 32,
    "model.head_dim": 8,
    "model.layers": 2,
    "model.expert_hidden": 16,
    "pretrain.steps": 1,
    "sft.steps": 1,
}
BEFORE = ("world", "untrained", "demonstrations")
STAGE_MODULES = {"cpt": (pretrain, pretrain.pretrain), "sft": (sft, sft.sft)}
# Phrases that occur only in samples of the skill.
SKILL_WORDS = {
    "rounds": ("<report>",),
    "resumed": ("<summary>", "Summary of the work so far: "),
    "merged": ("Its answer: ",),
    "gathered": ("<important_info>",),
}


@pytest.fixture(scope="module")
def start():
    start = ColdStart(rl__start=POLICY)
    yield start
    start.close()


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_trains(start, tmp_path, agent):
    config = settings(
        rl__agent=agent,
        rl__lr=1e-3,
        rl__filter__overlong="keep",
        rollout__max_calls=16,
        **AGENTS[agent],
    )
    step = start.step(config, tmp_path / "run")
    before = flat(step.model)
    metrics, trajectories = step.step(1)
    assert metrics["updates"] == 1 and metrics["live_groups"] > 0
    assert not torch.equal(flat(step.model), before)
    # every token is scored in the context in which it was sampled
    assert metrics["logp_gap"] < 1e-5 and metrics["logp_gap_max"] < 1e-2
    assert metrics["rollouts"] == config.rl.questions * config.rl.group
    if agent.startswith(("iter", "resum")):
        assert metrics["contexts"] > 1.5
        assert max(one.contexts.max() for one in trajectories if one.contexts is not None) > 0


def test_searcher_reward_is_the_gain_over_plain_retrieval(start, tmp_path):
    config = settings(
        rl__agent="s3:generate=reader",
        rl__reward__name="gain_beyond_rag",
        rl__curriculum__python_share=0.0,
        rollout__max_calls=8,
        rl__questions=24,
    )
    step = start.step(config, tmp_path / "run")
    _, trajectories = step.step(0)
    found = {(t.reward_parts["exact_match"], t.reward_parts["rag"], t.reward) for t in trajectories}
    assert all(reward == right - rag for right, rag, reward in found)
    assert (1.0, 0.0, 1.0) in found, "it gathers what plain retrieval does not find"
    assert {t.metadata["skill"][0] for t in trajectories} == {"h"}


# ---------------------------------------------------------------- what it was taught


@pytest.fixture(scope="module")
def built_stages(tmp_path_factory):
    """Build world, tokenizer, pool and initial weights of a small pipeline with memory skills."""
    config = settings(
        **SHORT,
        questions__skills="memory",
        demonstrations__count=40,
        demonstrations__teacher="solver",
    )
    runs = tmp_path_factory.mktemp("runs")
    return config, runs, build_stages(BEFORE, config, runs)


def test_agent_phrases_are_single_tokens(built_stages):
    _, _, folders = built_stages
    chat = ChatIds(load_tokenizer(folders["world"] / "tokenizer"))
    for phrase in PHRASES:
        assert len(chat.plain(phrase)) == 1, phrase


def test_pool_has_trails_and_knowledge_per_turn(built_stages):
    from drlib.training.data import read_episodes

    _, _, folders = built_stages
    rows = read_episodes(folders["demonstrations"], "correct")
    trails = [row for row in rows if row["kind"] == "trail"]
    assert len(trails) == 10 and len(rows) > 30
    for row in rows:
        turns = sum(message["role"] == "assistant" for message in row["messages"])
        assert len(row["known_before"]) == turns
    for row in trails:
        assert row["known_before"][-1]["next"] == "nowhere"


def test_episodes_become_rounds_and_resumed_contexts(built_stages, start):
    from drlib.training.data import read_episodes

    _, _, folders = built_stages
    rows = read_episodes(folders["demonstrations"], "correct")
    samples = memory_samples(rows, start.chat)
    calls = [row["calls"] for row in rows]
    # one round per turn; for each call one context before the summary and one after it
    assert len(samples) == sum(n + 1 for n in calls) + sum(2 * n for n in calls)
    assert all(any(sample.loss) and not sample.loss[0] for sample in samples)


def measure_skill_shares(stage, config, runs, monkeypatch, n=600):
    """Run a stage and return the share of its samples per skill, and the share with any skill."""
    module, run = STAGE_MODULES[stage]
    chat = ChatIds(load_tokenizer(stages.folder("world", config, runs) / "tokenizer"))
    train, texts = module.train_supervised, []

    def seen(folder, model, config, draw, *rest, **options):
        texts.extend(chat.tokenizer.decode(one.ids) for one in itertools.islice(draw(0, 0), n))
        return train(folder, model, config, draw, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, "train_supervised", seen)
        run(config, stages.folder(stage, config, runs), Ranks())
    shares = {
        skill: sum(any(one in text for one in words) for text in texts) / n
        for skill, words in SKILL_WORDS.items()
    }
    words = [one for total in SKILL_WORDS.values() for one in total]
    return shares, sum(any(one in text for one in words) for text in texts) / n


def test_pretraining_samples_cover_every_skill(built_stages, monkeypatch):
    config, runs, _ = built_stages
    shares, total = measure_skill_shares("cpt", config, runs, monkeypatch)
    assert min(shares.values()) > 0.003, shares
    assert 0.2 < total < 0.35, "some samples have no skill"


def test_sft_samples_cover_every_skill_by_share(built_stages, monkeypatch):
    config, runs, _ = built_stages
    shares, total = measure_skill_shares("sft", config, runs, monkeypatch)
    assert shares["rounds"] + shares["resumed"] == pytest.approx(0.3, abs=0.05), shares
    assert shares["merged"] + shares["gathered"] == pytest.approx(0.15, abs=0.04), shares
    assert min(shares.values()) > 0.02, shares
    assert total == pytest.approx(sum(shares.values()))


def test_no_skill_samples_by_default(tmp_path, monkeypatch):
    config = settings(**SHORT, demonstrations__count=40, demonstrations__teacher="solver")
    build_stages(BEFORE, config, tmp_path)
    for stage in STAGE_MODULES:
        shares, _ = measure_skill_shares(stage, config, tmp_path, monkeypatch)
        assert not any(shares.values()), (stage, shares)


def test_pretraining_has_skills_only_if_configured(built_stages, start):
    config, *_ = built_stages
    names = Names.from_world(start.world)

    def texts(config: Config) -> list[str]:
        stream = documents(config, names, start.chat)("a")
        return [start.chat.tokenizer.decode(next(stream).ids) for _ in range(150)]

    assert sum("<report>" in text for text in texts(config)) > 5
    assert not any("<report>" in text for text in texts(settings()))


def test_memory_skills_reject_condition_questions(tmp_path):
    config = settings(
        questions__skills="memory", questions__source="engine", world__name="folder:notebooks/tern"
    )
    with pytest.raises(ValueError, match="set questions.source=chains"):
        build_stages(("world",), config, tmp_path)
    assert not RunFolder.is_complete(stages.folder("world", config, tmp_path))
