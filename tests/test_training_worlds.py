"""The pipeline on user folders and prose: stages, condition questions and errors.

Run: python -m pytest tests/test_training_worlds.py
"""

import random
import re
import shutil
from collections import Counter

import pytest

from drlib.chat.template import ChatIds, load_tokenizer
from drlib.config import ROOT, Config
from drlib.demonstrations.actions import ActionData
from drlib.demonstrations.oracle import Oracle
from drlib.evaluation.evaluate import held_out, read_outcomes
from drlib.files import read_json_lines
from drlib.questions.chains import chain_questions
from drlib.rl.curriculum import Curriculum
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training import data, question_scheduler, stages
from drlib.training.distributed import Ranks
from drlib.training.run_folder import RunFolder, read_manifest
from drlib.worlds import Names, SmallWorld, load_world, select
from tests.folder_examples import island_folder
from tests.loop_examples import build_stages
from tests.triples_examples import model_server

TERN = "folder:notebooks/tern"
SMALL = {
    "model.hidden": 64,
    "model.head_dim": 16,
    "model.layers": 2,
    "model.expert_hidden": 16,
    "pretrain.steps": 2,
    "pretrain.warmup_steps": 1,
    "demonstrations.count": 60,
    "sft.steps": 2,
    "evaluation.questions": 6,
    "evaluation.samples": 1,
    "rl.start": "",
    "rl.steps": 1,
    "rl.questions": 4,
    "rl.group": 2,
    "processes": 1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return island_folder(tmp_path_factory.mktemp("islands of a user"))


@pytest.fixture(scope="module")
def pipeline(folder, tmp_path_factory):
    """Build all stages on a user's folder; return (settings, runs, folder of each stage)."""
    config = Config.load("ci", world__name=f"folder:{folder}", **SMALL)
    runs = tmp_path_factory.mktemp("runs")
    names = ("world", "untrained", "demonstrations", "cpt", "sft", "rl", "evaluate_rl")
    folders = build_stages(names, config, runs)
    assert all(RunFolder.is_complete(path) for path in folders.values())
    return config, runs, folders


def test_every_stage_runs_on_a_user_folder(pipeline, folder):
    config, runs, folders = pipeline
    world = SmallWorld.load(folders["world"] / "world.json")
    selection = select(load_world(f"folder:{folder}"), 800, 1000)
    assert world.version == selection.world.version
    counts = read_manifest(folders["world"])["metrics"]
    assert counts["pages"] == len(world) == 120
    assert counts["facts_with_long_names"] == 0
    # the teacher searched this world
    episodes = read_json_lines(folders["demonstrations"] / "episodes.jsonl")
    shown = [m["content"] for row in episodes for m in row["messages"] if m["role"] == "tool"]
    assert any("](folder:Isle " in text for text in shown)
    assert not any("](cldr:" in text for text in shown)
    right = Counter((row["kind"], row["correct"]) for row in episodes)
    assert right["search", True] > 5
    # RL and the evaluation use its questions
    drawn, invented = question_scheduler.QuestionScheduler(
        config, world, Names.from_world(world)
    ).draw(0, Curriculum(question_scheduler.SKILLS))
    searches = [task for task in drawn if task.kind == "search"]
    assert {task.world for task in searches} <= {world.version, *invented}
    outcomes = read_outcomes(folders["evaluate_rl"])
    assert {o.task for o in outcomes} == {task.id for task in held_out(world, config)}


def test_folder_names_are_tokens_and_used_in_fictional_worlds(pipeline):
    _, _, folders = pipeline
    tokenizer = load_tokenizer(folders["world"] / "tokenizer")
    world = SmallWorld.load(folders["world"] / "world.json")
    chat = ChatIds(tokenizer)
    assert all(len(chat.encode(title)) == len(title.split()) for title in world.entities)
    names = Names.from_world(world)
    documents = ActionData(names, chat).stream(0)
    texts = [tokenizer.decode(next(documents).ids) for _ in range(60)]
    assert any("](folder:" in text for text in texts)
    assert not any("](cldr:" in text for text in texts)
    facts = {
        f"The {relation} of {title}: {value}."
        for title, entity in world.entities.items()
        for relation, value in entity.facts.items()
    }
    assert not any(fact in text for fact in facts for text in texts)


def test_changed_file_gives_another_run_folder(pipeline, folder):
    config, runs, folders = pipeline
    assert stages.folder("sft", config, runs) == folders["sft"]
    page = folder / "people" / "abba.md"
    before = page.read_text()
    page.write_text(before.replace("cat Abba", "goat Abba"))
    try:
        assert stages.folder("world", config, runs) != folders["world"]
        assert stages.folder("sft", config, runs) != folders["sft"]
        assert SmallWorld.load(folders["world"] / "world.json").follow("Mayor Abba", ["pet"]) == [
            "cat Abba"
        ]
    finally:
        page.write_text(before)


def test_unusable_worlds_are_rejected(tmp_path):
    for world, reason in (
        ("wikidata", "unknown world 'wikidata'.*Known: "),
        (f"folder:{tmp_path}/nowhere", "no such folder"),
    ):
        config = Config.load("ci", world__name=world)
        with pytest.raises(ValueError, match=reason):
            data.load_training_world(config)
    (tmp_path / "a.md").write_text("# A\n\nOnly prose, and [a link](b.md).")
    (tmp_path / "b.md").write_text("# B\n\nMore prose.")
    config = Config.load("ci", world__name=f"folder:{tmp_path}")
    path = stages.folder("world", config, tmp_path / "runs")
    with pytest.raises(ValueError, match="Facts of a folder come from front matter"):
        data.build_world(config, path, Ranks())
    assert not RunFolder.is_complete(path)


def test_shipped_folder_is_solvable_by_the_oracle():
    config = Config.load("laptop", world__name=TERN)
    world, counts = data.load_training_world(config)
    assert config.world_name == f"folder:{ROOT / 'notebooks/tern'}"
    assert counts["pages"] == counts["pages_with_facts"] > 90
    tasks = [task for task in held_out(world, config) if task.kind == "search"]
    assert len(tasks) == config.evaluation.questions
    assert {task.hops for task in tasks} == {1, 2, 3}
    train = chain_questions(world, 50, 0, "train")
    assert not {task.answer for task in tasks} & {task.answer for task in train}
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.rollout.search_results) as toolbox,
    ):
        played = [Oracle().play(task, toolbox, random.Random(0)) for task in tasks]
    assert all(episode.correct for episode in played)


def test_condition_questions_run_through_the_pipeline(tmp_path):
    config = Config.load(
        "ci",
        world__name=TERN,
        questions__source="engine",
        demonstrations__teacher="solver",
        **SMALL,
    )
    names = ("world", "untrained", "demonstrations", "evaluate_untrained")
    folders = build_stages(names, config, tmp_path)
    counts = read_manifest(folders["world"])["metrics"]
    assert min(counts[name] for name in ("train_c2", "train_c3", "test_c2", "test_c3")) >= 40
    # the solver's episodes are correct with some errors, and have two conditions at most
    pool = read_json_lines(folders["demonstrations"] / "episodes.jsonl")
    kinds = Counter(row["kind"] for row in pool)
    assert kinds["2 conditions"] == round(0.3 * len(pool)) and "3 conditions" not in kinds
    assert all(row["correct"] for row in pool) and sum(row["errors"] for row in pool) > 3
    # the evaluation has as many condition questions as chains, half with three conditions
    outcomes = read_outcomes(folders["evaluate_untrained"])
    episodes = Counter(outcome.kind for outcome in outcomes)
    assert episodes == {"python": 6, "search": 6, "2 conditions": 3, "3 conditions": 3}
    # ... and all of them are from the held-out side
    world = SmallWorld.load(folders["world"] / "world.json")
    condition_tasks = {outcome.task for outcome in outcomes if outcome.kind.endswith("conditions")}
    held_out_ids = {task.id for task in data.build_condition_questions(world, config, "test").all()}
    assert condition_tasks <= held_out_ids


def test_rl_draws_the_configured_number_of_conditions():
    config = Config.load("ci", world__name=TERN, questions__source="engine", rl__questions=40)
    world, _ = data.load_training_world(config)
    train = {task.id for task in data.build_condition_questions(world, config, "train").all()}

    def drawn(most):
        source = question_scheduler.QuestionScheduler(
            config.derive(rl__curriculum__conditions=most), world, Names.from_world(world)
        )
        tasks, invented = source.draw(0, Curriculum(question_scheduler.SKILLS))
        condition_tasks = [task for task in tasks if task.conditions > 1]
        assert {task.world for task in condition_tasks} <= {world.version, *invented}
        if most > 1:
            assert {task.world == world.version for task in condition_tasks} == {True, False}
        assert {task.id for task in condition_tasks if task.world == world.version} <= train
        return {task.conditions for task in tasks}

    assert drawn(1) == {1} and drawn(2) == {1, 2} and drawn(3) == {1, 2, 3}


def test_mastering_two_conditions_leads_to_three():
    config = Config.load("ci", world__name=TERN, questions__source="engine", rl__questions=60)
    world, _ = data.load_training_world(config)
    source = question_scheduler.QuestionScheduler(config, world, Names.from_world(world))
    mastered = dict.fromkeys(question_scheduler.SKILLS, 1.0) | {"c3": 0.5}
    tasks, _ = source.draw(0, Curriculum(question_scheduler.SKILLS, mastered))
    # a fictional world without questions of three conditions gives one of two
    real = [task for task in tasks if task.world == world.version]
    condition_tasks = Counter(task.conditions for task in real)
    assert len(real) > 10 and condition_tasks[3] > condition_tasks[2] + condition_tasks[1]


def test_world_without_condition_questions_is_rejected(folder, tmp_path):
    config = Config.load("ci", world__name=f"folder:{folder}", questions__source="engine")
    path = stages.folder("world", config, tmp_path)
    with pytest.raises(
        ValueError, match="no question of two conditions on its train side: .*shares"
    ):
        data.build_world(config, path, Ranks())
    assert not RunFolder.is_complete(path)


def test_endpoint_extracts_a_world_from_prose(tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DRLIB_API_KEY", "secret")
    notes = tmp_path / "prose"
    notes.mkdir()
    sentences = [
        f"{thing} {name} has the {relation} {other} {target}."
        for i in range(40)
        for thing, relation, other, step in (
            ("Town", "mayor", "Mayor", 3),
            ("Mayor", "pet", "Cat", 7),
            ("Cat", "home", "Town", 11),
        )
        for name, target in [(f"Nr{i}", f"Nr{(i + step) % 40}")]
    ]
    for i in range(0, len(sentences), 12):
        (notes / f"day {i}.md").write_text("\n\n".join(sentences[i : i + 12]))

    def replies(text):
        """Return quoted statements, as a reader model."""
        statements = re.findall(r"((\w+ Nr\d+) has the (\w+) (\w+ Nr\d+))", text)
        return [(subject, relation, value, whole) for whole, subject, relation, value in statements]

    with model_server(replies) as model:
        settings = {"world.name": f"folder:{notes}", "world.endpoint": model.url}
        config = Config.load("ci", **settings, world__reader="reader", world__vocabulary=1600)
        world, counts = data.load_training_world(config)
        for stage in ("stage", "another"):  # as if the first had been killed at its end
            built = tmp_path / stage / "built"
            if stage == "another":
                shutil.copytree(tmp_path / "stage" / "built", tmp_path / stage / "built.partial")
            assert data.build_world(config, built, Ranks())["version"] == world.version
    assert len(model.seen) == 2 * 10  # files, for `world` and for the first stage
    assert {(episodes, key) for _, episodes, key, _ in model.seen} == {("reader", "Bearer secret")}
    assert counts["triples_kept"] == 120 == len(world.graph.facts)
    assert world.follow("Town Nr1", ["mayor", "pet", "home"]) == [
        "Mayor Nr4",
        "Cat Nr11",
        "Town Nr22",
    ]
    assert len(chain_questions(world, 12, 0, hops={3: 1.0})) == 12
    with pytest.raises(ValueError, match="world.endpoint supports folders only, not .*cldr"):
        data.load_training_world(
            Config.load("ci", world__name="cldr", world__endpoint="http://localhost:1/v1")
        )


@pytest.mark.parametrize("world", ["cldr", "tour", TERN])
def test_worlds_of_a_real_model_need_no_tokenizer(world, tmp_path):
    """The world has few words, and the model brings a tokenizer."""
    config, other = (
        Config.load(profile, world__name=world, model__path="a/model")
        for profile in ("gpu1", "gpu8")
    )
    # the same stage for both profiles
    assert stages.stage_settings("world", config) == stages.stage_settings("world", other)
    (path,) = build_stages(["world"], config, tmp_path).values()
    assert (path / data.WORLD_FILE).exists() and not (path / "tokenizer").exists()
    assert len(SmallWorld.load(path / data.WORLD_FILE)) > 10


def test_the_tiny_policy_needs_a_vocabulary(tmp_path):
    config = Config.load("ci", **SMALL, world__vocabulary=0)
    with pytest.raises(ValueError, match=r"world\.vocabulary=0 .* model\.path"):
        build_stages(["world", "untrained"], config, tmp_path)
