"""Runs broken on purpose: each check of the doctor finds its fault and accepts a healthy run.

Run: python -m pytest tests/test_training_doctor.py
"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from drlib.agents import Limits, ReAct
from drlib.chat.template import ChatIds, load_tokenizer
from drlib.chat.tool_calls import PAD
from drlib.cli.doctor import main
from drlib.config import ROOT
from drlib.models.local_engine import LocalEngine
from drlib.models.scripted_engine import ScriptedEngine
from drlib.rewards.controls import CONTROL_REWARDS
from drlib.rewards.functions import REWARDS
from drlib.rl.curriculum import Curriculum
from drlib.training import diagnosis, doctor, stages
from drlib.training.diagnosis import check_budget, check_machine_load, score_with_trainer
from drlib.training.doctor import require_learnable
from drlib.training.question_scheduler import SKILLS, QuestionScheduler
from drlib.training.rollouts import build_reward, judge_rollout, rollout_limits
from drlib.training.run_folder import METRICS, read_metrics
from drlib.trajectory import load_trajectories, save_trajectories, with_reward
from drlib.worlds import Names
from tests.loop_examples import build_stages, cold_start, settings
from tests.real_examples import built, miniature_config

start = cold_start
POLICY = ROOT / "figures/reference/tour/policy_sft"


@pytest.fixture(scope="module")
def scheduler(start):
    return QuestionScheduler(settings(), start.world, Names.from_world(start.world))


@pytest.fixture(scope="module")
def sample(start, scheduler):
    """Return a function that samples and judges real rollouts of the cold start."""
    tasks, worlds = scheduler.draw(0, Curriculum(SKILLS, None))
    judge = build_reward(settings())

    def run(chat=None, limits=None, temperature=1.0, samples=6):
        engine = LocalEngine(start.policy, max_context=448, lockstep=True)
        limits = limits or rollout_limits(settings())
        agent = ReAct(engine, start.toolbox, chat or start.chat, limits)
        rollouts = agent.run(tasks, samples=samples, temperature=temperature, worlds=worlds, seed=1)
        owners = [task for task in tasks for _ in range(samples)]
        return [judge_rollout(t, task, judge) for t, task in zip(rollouts, owners)]

    return run


@pytest.fixture(scope="module")
def healthy(sample):
    return sample()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Build a finished run of three steps; return its folder."""
    runs = tmp_path_factory.mktemp("runs")
    return build_stages(("world", "rl"), settings(rl__steps=3), runs)["rl"]


@pytest.fixture
def run_copy(run_folder, tmp_path):
    """Return a copy of the finished run, with its world, to be damaged."""
    shutil.copytree(run_folder.parents[1], tmp_path / "runs")
    return tmp_path / "runs" / "ci" / run_folder.name


def examine(folder, *settings_given):
    """Return the checks of a run or a model by name."""
    subject = diagnosis.find_subject(str(folder), settings=settings_given)
    return {check.name: check for check in diagnosis.diagnose(subject)}


def faults(checks):
    return {name for name, check in checks.items() if check.ok is False}


def judged(reward, rollouts):
    return [with_reward(t, reward, t.reward_parts) for t in rollouts]


def save_rows(folder, rows):
    (folder / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))


# ---------------------------------------------------------------- one check each


def test_healthy_rollouts_pass_every_check(start, healthy):
    config = settings()
    checks = [
        doctor.check_template(start.chat, None, "Where?", healthy),
        doctor.check_stop(start.chat, healthy, [start.chat.end_id]),
        doctor.check_turns(start.chat, healthy),
        doctor.check_truncation(healthy, rollout_limits(config)),
        doctor.check_loss_mask(healthy, config),
        doctor.check_sampling(1.0, healthy),
        doctor.check_group_size(config),
        doctor.check_variance(healthy),
        doctor.check_learning_rate(config),
    ]
    assert [check.name for check in checks if not check.ok] == []


def test_turns_shows_three_texts_of_the_model(start, healthy):
    found = doctor.check_turns(start.chat, healthy)
    said = {m["content"] for t in healthy for m in t.messages if m["role"] == "assistant"}
    assert len(found.examples) == 3 and {*found.examples} <= said


def test_prompts_without_the_template_are_a_fault(start, sample):
    class Bare(ChatIds):
        """Chat without a template: the prompt is the question."""

        def prompt(self, question, tools=None, system=None):
            return self.plain(question)

    rollouts = sample(Bare(start.chat.tokenizer), samples=1)
    found = doctor.check_template(start.chat, None, "Where?", rollouts)
    assert found.ok is False and f"{len(rollouts)} of {len(rollouts)} rollouts" in found.finding


def test_template_that_does_not_open_the_turn_is_a_fault(start):
    chat = ChatIds(load_tokenizer(POLICY))
    assert doctor.check_template(chat, None, "Where?").ok
    chat.assistant_start = []
    assert doctor.check_template(chat, None, "Where?").ok is False


def test_sampling_beyond_the_end_of_a_turn_is_a_fault(start, sample):
    chat = ChatIds(start.chat.tokenizer)
    chat.stop_ids = (chat.tokenizer.convert_tokens_to_ids(PAD),)
    assert doctor.check_stop(chat).ok is False
    rollouts = sample(chat, samples=1)
    found = doctor.check_stop(start.chat, rollouts)
    assert found.ok is False and "<|im_end|>" in found.remedy and found.examples


def test_model_that_declares_another_end_is_a_fault(start):
    assert doctor.check_stop(start.chat, declared=[0, start.chat.end_id]).ok
    found = doctor.check_stop(start.chat, declared=[0])
    assert found.ok is False and PAD in found.finding


def test_greedy_rollouts_are_a_fault(sample):
    greedy = sample(temperature=0.0)
    assert doctor.check_sampling(1.0, greedy).ok is False
    assert doctor.check_variance(greedy).ok is False
    assert doctor.check_sampling(0.0).ok is False


def test_reward_that_is_always_the_same_is_a_fault(healthy):
    nothing = doctor.check_variance(judged(0.0, healthy))
    assert nothing.ok is False and "sft" in nothing.remedy
    everything = doctor.check_variance(judged(1.0, healthy))
    assert everything.ok is False and "harder" in everything.remedy
    mixed = [with_reward(t, float(t.group_id[-1] > "3"), {}) for t in healthy]  # by question
    assert "rl.sampling.draws" in doctor.check_variance(mixed).remedy
    assert doctor.check_variance([]).ok is None


def test_variance_is_that_of_all_steps(healthy):
    """Metrics cover all groups; the saved rollouts are a few of them."""
    dead = [{"live_groups": 0.0, "reward": 0.0}] * 3
    assert doctor.check_variance(healthy, dead).ok is False
    assert doctor.check_variance(judged(0.0, healthy), [*dead, {"live_groups": 0.5}]).ok


def test_group_of_one_is_a_fault():
    assert doctor.check_group_size(settings(rl__group=1)).ok is False
    assert doctor.check_group_size(settings(rl__group=2)).ok


def test_rollouts_without_sampled_tokens_are_a_fault(start, scheduler):
    """An engine that reads messages records no tokens, so there is nothing to train on."""
    tasks = doctor.draw_known_tasks(scheduler)
    answer = "<think>x</think><answer>y</answer>"
    rollouts = ReAct(ScriptedEngine(lambda messages: answer), start.toolbox).run(tasks)
    found = doctor.check_loss_mask(judged(0.0, rollouts), settings())
    assert found.ok is False and found.finding.startswith("none of")


def test_filter_that_excludes_everything_is_a_fault(sample):
    cut = sample(limits=Limits(6, 3, 448), samples=1)
    found = doctor.check_loss_mask(cut, settings())
    assert found.ok is False and f"overlong {len(cut)}" in found.finding
    assert doctor.check_loss_mask(cut, settings(rl__filter__overlong="keep")).ok


@pytest.mark.parametrize(
    ("limits", "setting"),
    [(Limits(6, 3, 448), "max_turn_tokens"), (Limits(6, 72, 40), "max_context_tokens")],
)
def test_truncated_turns_are_a_fault(sample, limits, setting):
    found = doctor.check_truncation(sample(limits=limits, samples=1), limits)
    assert found.ok is False and setting in found.remedy


def test_unparsable_turns_are_a_fault(start, sample):
    found = doctor.check_turns(start.chat, sample(limits=Limits(6, 3, 448), samples=1))
    assert found.ok is False and found.finding.startswith("0 of 8") and len(found.examples) == 3


def test_learning_rate_of_zero_is_a_fault():
    assert doctor.check_learning_rate(settings(rl__lr=0.0)).ok is False
    rows = [{"step": 1, "lr_factor": 0.5, "grad_norm": 0.3}, {"step": 2, "grad_norm": 0.0}]
    found = doctor.check_learning_rate(settings(rl__lr=2e-4), rows[:1])
    assert found.ok and "at most 0.0001" in found.finding
    assert doctor.check_learning_rate(settings(), rows).ok
    assert doctor.check_learning_rate(settings(), rows[1:]).ok is False
    trl = [{"step": 1, "learning_rate": 0.0, "grad_norm": 1.0}]
    assert doctor.check_learning_rate(settings(), trl).ok is False


def test_skipped_updates_are_a_fault():
    rows = [{"step": 1, "lr_factor": 1.0, "grad_norm": float("nan"), "skipped": "x"}] * 2
    found = doctor.check_learning_rate(settings(), rows)
    assert found.ok is False and "not finite" in found.finding


def test_engine_with_other_weights_is_a_fault(start, healthy):
    """The mean difference by hand: 0.5 and 0.1 nats."""
    found = doctor.check_engine([np.array([-1.0, -2.0])], [np.array([-1.5, -2.1])], 0.29)
    assert found.ok is False and "0.3 nats on average, 0.5 at most" in found.finding
    assert doctor.check_engine([np.array([-1.0, -2.0])], [np.array([-1.5, -2.1])], 0.31).ok
    sampled = [t.logprobs[t.generated] for t in healthy[:4]]
    same = score_with_trainer(start.policy, healthy[:4], settings())
    assert doctor.check_engine(sampled, same, 1e-4).ok
    hotter = score_with_trainer(start.policy, healthy[:4], settings(rl__temperature=1.5))
    assert doctor.check_engine(sampled, hotter, 1e-4).ok is False
    assert doctor.check_engine([], [], 1e-4).ok is None


@pytest.mark.parametrize("head", [True, False], ids=["chunked head", "whole logits"])
def test_score_of_trl_equals_that_of_the_local_loop(start, healthy, head, monkeypatch):
    if not head:
        monkeypatch.setattr(diagnosis, "find_heads", lambda model: [])
    config = settings(rl__temperature=0.7)
    local = score_with_trainer(start.policy, healthy[:2], config)
    trl = score_with_trainer(start.policy, healthy[:2], config.derive(trainer__backend="trl"))
    for one, other in zip(local, trl):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_more_threads_than_cores_are_a_fault(monkeypatch):
    config = settings(processes=2)
    assert check_machine_load(config, cores=2).ok
    found = check_machine_load(config, cores=1)
    assert found.ok is False and "set processes to 1" in found.remedy
    half = config.derive(model__dtype="bfloat16")
    for has, verdict in ((True, True), (False, False)):
        monkeypatch.setattr(diagnosis, "_has_bfloat16", lambda has=has: has)
        assert check_machine_load(half, cores=2).ok is verdict or torch.cuda.is_available()


def test_memory_and_time_beyond_the_machine_are_faults():
    rows = [{"seconds": 1800.0}, {"seconds": 5400.0}]  # 4 steps of an hour
    memory, time = check_budget(settings(), rows, None, hours=4.0)
    assert memory.ok and time.ok and "4 hours" in time.finding
    huge = settings(rollout__max_context_tokens=2**24, rl__group=64)
    memory, time = check_budget(huge, rows, None, hours=3.9)
    assert memory.ok is False and time.ok is False
    assert check_budget(settings(), [], None, 1.0)[1].ok is None


# ---------------------------------------------------------------- before step 1


def refused(start, scheduler, chat=None, **changes):
    """Return the error of settings that are refused."""
    with pytest.raises(ValueError, match="this run cannot learn") as error:
        require_learnable(settings(**changes), chat or start.chat, None, scheduler, start.toolbox)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "check", "remedy"),
    [
        ({"rl.lr": 0.0}, "learning rate", "set rl.lr"),
        ({"rl.temperature": 0.0}, "sampling", "set rl.temperature=1.0"),
        ({"rl.group": 1}, "group size", "set rl.group to 2"),
        ({"rollout.max_turn_tokens": 2}, "limits", "set rollout.max_turn_tokens to 3"),
        ({"rollout.max_context_tokens": 8}, "limits", "set rollout.max_context_tokens to 15"),
    ],
)
def test_settings_that_cannot_learn_are_refused(start, scheduler, changes, check, remedy):
    message = refused(start, scheduler, **changes)
    assert f"{check}: " in message and f"remedy: {remedy}" in message and " | " not in message


def test_all_faults_are_reported_at_once(start, scheduler):
    message = refused(start, scheduler, rl__lr=0.0, rl__group=1)
    assert "learning rate: " in message and "group size: " in message


def test_sampling_without_the_end_of_a_turn_is_refused(start, scheduler):
    chat = ChatIds(start.chat.tokenizer)
    chat.stop_ids = chat.stop_ids[1:]
    assert "stop token: " in refused(start, scheduler, chat)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_reward_that_ignores_the_answer_is_refused(start, scheduler, monkeypatch, value):
    monkeypatch.setitem(REWARDS, "constant", lambda trajectory, task: value)
    message = refused(start, scheduler, rl__reward__name="constant")
    assert "reward: constant pays the right answer more than a wrong one in 0 of 4" in message
    monkeypatch.setattr(doctor, "CONTROL_REWARDS", {"constant"})
    config = settings(rl__reward__name="constant")
    require_learnable(config, start.chat, None, scheduler, start.toolbox)


def test_reward_may_require_evidence(start, scheduler, monkeypatch):
    """Written rollouts search before they answer, unless calls are forbidden."""

    def grounded(trajectory, task):
        return bool(trajectory.tool_results) and trajectory.answer == task.answer

    monkeypatch.setitem(REWARDS, "grounded", grounded)
    config = settings(rl__reward__name="grounded")
    require_learnable(config, start.chat, None, scheduler, start.toolbox)
    assert "reward: " in refused(
        start, scheduler, rl__reward__name="grounded", rollout__max_calls=0
    )


def test_error_of_a_reward_is_raised(start, scheduler, monkeypatch):
    def broken(trajectory, task):
        raise OSError("the judge is away")

    monkeypatch.setitem(REWARDS, "broken", broken)
    config = settings(rl__reward__name="broken")
    with pytest.raises(OSError, match="the judge is away"):
        require_learnable(config, start.chat, None, scheduler, start.toolbox)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rl.reward.name": "random"},
        {"rl.reward.labels": "shuffled"},
        {"rl.reward.labels": "wrong"},
        {"rl.reward.name": "format_and_answer"},
        {"rl.reward.name": "gain_beyond_rag", "rl.agent": "s3:generate=reader"},
        {"rollout.max_calls": 0},
        {"rl.curriculum.pool": 8, "rl.curriculum.mixture": "exact"},
    ],
    ids=str,
)
def test_controls_and_recipes_may_start(start, changes):
    """The check changes neither the questions of the scheduler nor its state."""
    config = settings(**changes)
    names = Names.from_world(start.world)
    one, other = (QuestionScheduler(config, start.world, names) for _ in range(2))
    require_learnable(config, start.chat, None, one, start.toolbox)
    assert one.state_dict() == other.state_dict()
    assert one.draw(0, Curriculum(SKILLS, None))[0] == other.draw(0, Curriculum(SKILLS, None))[0]
    assert "random" in CONTROL_REWARDS


@pytest.mark.parametrize("changes", [{"rl.lr": 0.0}, {"rollout.max_turn_tokens": 2}])
def test_trl_stage_refuses_before_its_first_step(tmp_path, changes):
    config = settings(**{"trainer.backend": "trl", "rl.steps": 1, **changes})
    with pytest.raises(ValueError, match="this run cannot learn"):
        built("rl", config, tmp_path)
    assert not [*tmp_path.rglob(METRICS)]


# ---------------------------------------------------------------- finished and unfinished runs


def test_healthy_run_has_no_fault(run_folder):
    checks = examine(run_folder)
    assert faults(checks) == set()
    assert "3 steps" in checks["groups"].finding and "in 3 steps" in checks["learning rate"].finding
    assert checks["engine"].ok, "the cold start sampled the first rollouts"
    assert checks["time"].finding.startswith("3 steps of")


def test_settings_of_a_finished_run_are_its_own(run_folder):
    subject = diagnosis.find_subject(str(run_folder))
    assert subject.config.rl.steps == 3 and subject.config.rl.group == 6
    assert stages.folder("rl", subject.config, subject.runs) == run_folder
    with pytest.raises(ValueError, match="leave the options out"):
        diagnosis.find_subject(str(run_folder), settings=["--rl.lr=0"])


def damage_template(folder):
    (folder / "policy" / "chat_template.jinja").unlink()


def damage_end(folder):
    path = folder / "policy" / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": 0}))


def damage_rewards(folder):
    save_rows(folder, [row | {"live_groups": 0.0, "reward": 0.0} for row in read_metrics(folder)])
    path = max(folder.glob("trajectories_*.parquet"))
    save_trajectories(path, judged(0.0, load_trajectories(path)))


def damage_mask(folder):
    path = max(folder.glob("trajectories_*.parquet"))
    silent = [
        replace(
            t,
            generated=np.zeros(len(t), bool),
            logprobs=np.zeros(len(t), np.float32),
            entropies=None,
        )
        for t in load_trajectories(path)
    ]
    save_trajectories(path, silent)


def damage_learning_rate(folder):
    save_rows(folder, [row | {"lr_factor": 0.0} for row in read_metrics(folder)])


def damage_first_logprobs(folder):
    """The first rollouts come from an engine with other weights."""
    path = min(folder.glob("trajectories_*.parquet"))
    shift = np.float32(0.5)
    rollouts = load_trajectories(path)
    save_trajectories(
        path, [replace(t, logprobs=t.logprobs - t.generated * shift) for t in rollouts]
    )


@pytest.mark.parametrize(
    ("damage", "names"),
    [
        (damage_template, {"template"}),
        (damage_end, {"stop token"}),
        (damage_rewards, {"groups"}),
        (damage_mask, {"loss mask"}),
        (damage_learning_rate, {"learning rate"}),
        (damage_first_logprobs, {"engine"}),
    ],
)
def test_damaged_run_has_its_fault_only(run_copy, damage, names):
    damage(run_copy)
    checks = examine(run_copy)
    assert faults(checks) == names
    assert all(checks[name].remedy for name in names)


def unfinish(folder):
    """Turn a finished run into the folder of a killed one."""
    partial = folder.with_name(folder.name + ".partial")
    folder.rename(partial)
    (partial / "manifest.json").unlink()
    shutil.rmtree(partial / "policy")
    return partial


def test_unfinished_run_needs_its_settings(run_copy):
    partial = unfinish(run_copy)
    with pytest.raises(ValueError, match="pass the options with which `drlib train` was started"):
        examine(partial)
    changes = settings(rl__steps=3).overrides()
    checks = examine(partial, *(f"--{name}={value}" for name, value in changes.items()))
    assert faults(checks) == set() and checks["engine"].ok


def test_folder_without_manifest_is_an_error(tmp_path, run_copy):
    (run_copy / "manifest.json").unlink()
    with pytest.raises(ValueError, match="no readable manifest.json"):
        examine(run_copy)
    with pytest.raises(ValueError, match="no folder of a stage or a model"):
        examine(tmp_path / "nothing")


def test_stage_without_saved_rollouts_is_sampled(run_copy):
    """As stage sft: its policy answers questions with the settings of the stage."""
    for path in run_copy.glob("trajectories_*.parquet"):
        path.unlink()
    checks = examine(run_copy)
    assert "of 128 rollouts" in checks["truncation"].finding and checks["engine"].ok
    assert "planned steps" in checks["learning rate"].finding
    (world,) = run_copy.parent.glob("world-*")
    with pytest.raises(ValueError, match="stage world has no policy"):
        examine(world)


def test_trl_run_is_examined(tmp_path):
    config = settings(**{"trainer.backend": "trl", "rl.steps": 1})
    checks = examine(built("rl", config, tmp_path))
    assert faults(checks) - {"groups"} == set()
    assert checks["engine"].ok and checks["learning rate"].ok


# ---------------------------------------------------------------- models


def test_policy_answers_questions_and_has_no_fault():
    checks = examine(POLICY)
    assert faults(checks) == set() and checks["groups"].ok
    assert (
        "tokens/s" in checks["time"].finding and "of 128 rollouts" in checks["truncation"].finding
    )


def test_policy_without_a_template_is_not_sampled(tmp_path):
    folder = shutil.copytree(POLICY, tmp_path / "mute")
    (folder / "chat_template.jinja").unlink()
    checks = examine(folder)
    assert faults(checks) == {"template"} and "turns" not in checks
    assert checks["loss mask"].ok is None and checks["engine"].ok is None


def test_untrained_language_model_is_examined(tmp_path):
    """Two turns of a random model: nothing can be parsed, engine and trainer agree."""
    config = miniature_config(tmp_path, "llama")
    given = [
        *("--profile=gpu1", "--questions=2", "--turn-tokens=16", "--hours=1000"),
        *("--questions.source=chains", "--model.dtype=float32"),
        *("--rollout.max_context_tokens=3000", "--rollout.max_turn_tokens=64"),
    ]
    assert main([config.model.path, *given]) == 1
    subject = diagnosis.find_subject(config.model.path, "gpu1", "", given[4:])
    checks = {c.name: c for c in diagnosis.diagnose(subject, 2, 16, hours=1000)}
    assert faults(checks) == {"turns", "truncation", "stop token", "loss mask"}
    assert checks["engine"].ok and checks["groups"].ok is None and checks["reward"].ok


def test_command_prints_faults_and_remedies(run_copy, capsys):
    assert main([str(run_copy)]) == 0
    assert "0 faults in 15 checks" in capsys.readouterr().out
    damage_template(run_copy)
    assert main([str(run_copy)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("FAULT    template") and "remedy: " in lines[2]
    assert main([str(run_copy.parent / "nothing")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
