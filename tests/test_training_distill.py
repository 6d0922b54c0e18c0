"""On-policy distillation from stages' policies: targets, updates, resuming, refused settings.

The losses themselves: tests/test_rl_distillation.py.

Run: python -m pytest tests/test_training_distill.py
"""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from drlib.config import TOUR
from drlib.files import read_json_lines
from drlib.models.moe import load_policy, save_policy
from drlib.training import learner, stages
from drlib.training.distill import (
    DistillationTrainer,
    build_loop_config,
    check_distillation,
    distill,
    find_teacher,
    load_teachers,
)
from drlib.training.distributed import Ranks
from drlib.training.model_demonstrations import demonstrate
from drlib.training.policies import StageStart
from drlib.training.question_scheduler import PYTHON, QuestionScheduler
from drlib.training.rollouts import Rollouts
from drlib.training.run_folder import RunFolder, RunFolderError, read_metrics
from drlib.trajectory import Termination, load_trajectories
from drlib.worlds import Names
from tests.loop_examples import (
    build_stages,
    build_world,
    cold_start,
    flat,
    settings,
    without_sampling,
)
from tests.stage_processes import build_stage
from tests.template_examples import random_model

start = cold_start
SFT, RL = str(TOUR / "policy_sft"), str(TOUR / "policy_rl")
SMALL = {
    "distill.start": SFT,
    "distill.teachers": RL,
    "distill.steps": 3,
    "distill.questions": 24,
    "rl.warmup_steps": 0,
    "trainer.balance_coef": 0.0,
}


def distill_settings(**changes):
    return settings(**{**SMALL, **changes})


def trainer(start, folder, teachers=None, **changes) -> DistillationTrainer:
    """Return the trainer of the stage, before its first step or resumed."""
    config = build_loop_config(distill_settings(**changes))
    names = Names.from_world(start.world)
    run = RunFolder(folder, {}, Ranks())
    begun = StageStart(run, "", copy.deepcopy(start.policy), start.chat, None, start.world, names)
    questions = QuestionScheduler(config, start.world, names)
    teachers = teachers or {"": load_policy(RL)[0].eval().requires_grad_(False)}
    return DistillationTrainer(config, begun, start.toolbox, questions, teachers)


def logp_of(model, trajectories, config) -> float:
    """Return the mean log-probability of the generated tokens."""
    found = learner.record(model.eval(), trajectories, config)
    return float(np.concatenate([f[t.generated] for f, t in zip(found, trajectories)]).mean())


@pytest.fixture(scope="module")
def sampled(start, tmp_path_factory):
    """Return 96 rollouts of the student by shard, one per question."""
    step = trainer(start, tmp_path_factory.mktemp("runs") / "run", **{"distill.questions": 96})
    return step.collect_rollouts(step.config, 0).sampled


@pytest.fixture
def batch(sampled):
    """Return copies of 24 rollouts by shard."""
    return copy.deepcopy([shard[:12] for shard in sampled])


@pytest.mark.parametrize("loss", ["sampled", "full"])
def test_distilling_raises_the_likelihood_of_the_teachers_answers(start, batch, tmp_path, loss):
    step = without_sampling(trainer(start, tmp_path / "run", **{"distill.loss": loss}), batch)
    answers = load_trajectories(TOUR / "rl_sampled.parquet")[:16]
    before = logp_of(start.policy, answers, step.config)
    rows = [step(number) for number in range(3)]
    assert logp_of(step.model, answers, step.config) > before + 0.02
    assert rows[-1]["teacher_kl"] < rows[0]["teacher_kl"] and rows[0]["updates"] == 1
    assert rows[0]["rollouts"] == 24 and rows[0]["live_groups"] == 0, "groups of one"


@pytest.mark.parametrize("loss", ["sampled", "full"])
def test_teacher_equal_to_the_student_changes_nothing(start, batch, tmp_path, loss):
    teachers = {"": copy.deepcopy(start.policy).eval().requires_grad_(False)}
    step = trainer(start, tmp_path / "run", teachers, **{"distill.loss": loss})
    metrics = without_sampling(step, batch)(0)
    assert metrics["teacher_kl"] == 0 and metrics["grad_norm"] == 0
    assert torch.equal(flat(step.model), flat(start.policy))


def test_losses_agree_in_expectation(start, sampled, tmp_path):
    """Both estimate the KL of the same rollouts; the sampled one with noise."""
    rows = [
        without_sampling(trainer(start, tmp_path / loss, **{"distill.loss": loss}), sampled)(0)
        for loss in ("sampled", "full")
    ]
    assert rows[0]["tokens"] == rows[1]["tokens"] and rows[0]["teacher_kl"] > 0
    assert rows[0]["teacher_kl"] == pytest.approx(rows[1]["teacher_kl"], rel=0.2)


def test_samples_are_scored_by_the_teacher_of_their_source(start, batch, tmp_path):
    """Interleaved samples of two teachers, against one forward pass per sample."""
    teachers = {"python": load_policy(RL)[0].eval(), "search": copy.deepcopy(start.policy).eval()}
    step = trainer(start, tmp_path / "run", teachers)
    shard = batch[0][:8]
    for number, trajectory in enumerate(shard):
        trajectory.metadata["source"] = ("python", "real", "fictional")[number % 3]
    (part,) = step.prepare_batch(Rollouts([shard], [shard], 1), 0).parts
    expected = [teachers["python" if i % 3 == 0 else "search"] for i in range(8)]
    assert all(a is b for a, b in zip(part.teachers, expected, strict=True))
    assert part.weights_N.tolist() == [1.0] * 8
    scores_M = learner._score_by_teachers(part, step.config)
    logits_MV = learner._score_by_teachers(part, step.config, full=True)
    alone = []
    for teacher, trajectory in zip(expected, part.trajectories):
        ids_T = torch.tensor(trajectory.token_ids.astype(np.int64))
        at = trajectory.generated.nonzero()[0]
        with torch.no_grad():
            logp_TV = teacher(ids_T[None]).logits[0].log_softmax(-1)
        alone.append(logp_TV[at - 1, ids_T[at]])
    torch.testing.assert_close(scores_M, torch.cat(alone), atol=1e-4, rtol=1e-4)
    ids_M = torch.cat([torch.tensor(t.token_ids[t.generated]).long() for t in part.trajectories])
    chosen_M = logits_MV.log_softmax(-1).gather(1, ids_M[:, None])[:, 0]
    torch.testing.assert_close(chosen_M, scores_M, atol=1e-5, rtol=1e-5)
    # the losses of this batch: sampled tokens, and the sum over the vocabulary of each token
    with torch.no_grad():
        student = [
            step.model(torch.tensor(t.token_ids[None].astype(np.int64))).logits[0]
            for t in part.trajectories
        ]
    logp_MV = torch.cat(
        [
            logits_TV[t.generated.nonzero()[0] - 1].log_softmax(-1)
            for logits_TV, t in zip(student, part.trajectories)
        ]
    )
    kl_M = (logp_MV.exp() * (logp_MV - logits_MV.log_softmax(-1))).sum(-1)
    sampled_M = logp_MV.gather(1, ids_M[:, None])[:, 0] - scores_M
    for loss, expected_M in (("sampled", sampled_M), ("full", kl_M)):
        config = build_loop_config(distill_settings(**{"distill.loss": loss}))
        found, *_ = learner.batch_loss(step.model, part, 7.0, learner.loss_config(config), config)
        assert found.item() == pytest.approx(float(expected_M.sum()) / 7, rel=1e-3)
    assert abs(float(kl_M.sum() - sampled_M.sum())) > 0.1, "the two losses differ"


def test_environment_faults_are_left_out_and_overlong_rollouts_kept(start, batch, tmp_path):
    step = trainer(start, tmp_path / "run")
    ends = (Termination.ENV_FAULT, Termination.LENGTH, Termination.ANSWERED)
    shard = [replace(t, termination=end) for t, end in zip(batch[0], ends)]
    for trajectory in shard:
        trajectory.metadata["source"] = "real"
    (part,) = step.prepare_batch(Rollouts([shard], [shard], 1), 0).parts
    assert [t.termination for t in part.trajectories] == [*ends[1:]]


def test_loop_has_the_steps_questions_and_rate_of_distillation():
    rl = {"rl.steps": 9, "rl.questions": 9, "rl.lr": 9.0, "rl.group": 9, "rl.minibatches": 9}
    loop = build_loop_config(distill_settings(**rl, **{"distill.lr": 0.5}))
    assert (loop.rl.steps, loop.rl.questions, loop.rl.lr) == (3, 24, 0.5)
    assert (loop.rl.group, loop.rl.minibatches) == (1, 1)


def test_each_source_has_its_teacher():
    both = {"python": 1, "search": 2}
    assert [find_teacher(s, both) for s in (PYTHON, "real", "fictional")] == [
        "python",
        "search",
        "search",
    ]
    assert find_teacher("real", {"": 1, "python": 2}) == ""
    assert find_teacher(PYTHON, {"": 1, "search": 2}) == ""
    assert find_teacher("fictional", {"search": 1, "fictional": 2}) == "fictional"


def test_resumed_run_is_bit_identical(start, tmp_path):
    """Resume before the last of three steps; checkpoints are saved after every second."""
    steps = 3

    def run(folder, power_cut_at=None):
        step = trainer(start, tmp_path / folder, **{"distill.questions": 8})

        def take(number):
            if number == power_cut_at:
                shutil.copytree(step.run.path, tmp_path / "cut.partial")
            return step(number)

        step.run.loop(take, steps, 2, step.extra)
        return flat(step.model)

    whole = run("whole", power_cut_at=2)
    resumed = run("cut")
    assert torch.equal(resumed, whole) and not torch.equal(whole, flat(start.policy))
    values = [
        [row["teacher_kl"] for row in read_metrics(tmp_path / f"{name}.partial")]
        for name in ("whole", "cut")
    ]
    assert values[0] == values[1] and len(values[0]) == steps


def test_stage_is_bit_identical_on_two_processes_and_is_evaluated(tmp_path):
    teachers = f"python={SFT},search={RL}"
    changes = {"distill.steps": 2, "distill.questions": 8, "evaluation.questions": 4}
    config = distill_settings(**{"distill.teachers": teachers, **changes})
    one, two = tmp_path / "one", tmp_path / "two"
    folders = build_stages(("world", "distill", "evaluate_distill"), config, one)
    build_world(two)
    ended = build_stage("distill", config, two, 2)
    assert ended.returncode == 0, ended.stderr
    found = [folders["distill"], stages.folder("distill", config, two)]
    weights = [flat(load_policy(folder / "policy")[0]) for folder in found]
    assert torch.equal(*weights) and not torch.equal(weights[0], flat(load_policy(SFT)[0]))
    assert (folders["evaluate_distill"] / "rows.json").exists()


def test_zero_steps_keep_the_student(tmp_path):
    config = distill_settings(**{"distill.steps": 0})
    build_world(tmp_path)
    folders = build_stages(("distill",), config, tmp_path)
    assert torch.equal(
        flat(load_policy(folders["distill"] / "policy")[0]), flat(load_policy(SFT)[0])
    )


def test_rl_settings_without_effect_do_not_name_the_run(tmp_path):
    usual = stages.folder("distill", distill_settings(), tmp_path)
    for name, value in {"rl.lr": 1.0, "rl.reward.name": "random", "rl.group": 3}.items():
        assert stages.folder("distill", distill_settings(**{name: value}), tmp_path) == usual, name
    for name, value in {"distill.lr": 1.0, "rl.temperature": 0.5, "distill.teachers": SFT}.items():
        assert stages.folder("distill", distill_settings(**{name: value}), tmp_path) != usual, name


REFUSED = [
    ({"distill.teachers": ""}, "distill.teachers is empty: pass the policy folder"),
    ({"distill.teachers": "nowhere"}, "distill.teachers='nowhere': there is no policy in"),
    ({"distill.teachers": f"python={RL}"}, "no teacher for 'real' questions: add search=FOLDER"),
    ({"distill.teachers": f"search={RL}"}, "no teacher for 'python' questions: add python=FOLDER"),
    ({"distill.teachers": f"{RL},serch={RL}"}, "name each source once, of fictional, python, real"),
    ({"distill.teachers": f"{RL},{SFT}"}, "name each source once"),
    ({"trainer.backend": "trl"}, "trainer.backend=trl cannot distill with tools"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_refused_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        check_distillation(distill_settings(**changes))


def test_search_alone_needs_no_other_teacher():
    only = {"distill.teachers": f"search={RL}", "rl.curriculum.python_share": 0.0}
    check_distillation(distill_settings(**only))


def test_teacher_with_another_tokenizer_is_refused(tmp_path):
    random_model(tmp_path / "other", "llama")
    config = distill_settings(**{"distill.teachers": str(tmp_path / "other")})
    own = load_policy(SFT)[1].get_vocab()
    with pytest.raises(ValueError, match=r"the teacher in .*other has another tokenizer"):
        load_teachers(config, own)


def test_missing_student_names_the_stage(tmp_path):
    config = distill_settings(**{"distill.start": ""})
    build_world(tmp_path)
    with pytest.raises(RunFolderError, match="distill needs the finished stage 'rl'"):
        distill(config, stages.folder("distill", config, tmp_path), Ranks())


def test_dense_model_is_distilled_by_the_local_trainer(tmp_path):
    """A random Llama from another one with the same tokenizer, with real tools."""
    for name, seed in (("student", 0), ("teacher", 1)):
        random_model(tmp_path / name, "llama")
        if seed:
            policy, tokenizer = load_dense(tmp_path / name)
            with torch.no_grad():
                for parameter in policy.parameters():
                    parameter.mul_(1.02)
            save_policy(policy, tokenizer, tmp_path / name, torch.float32)
    changes = {
        "model.path": str(tmp_path / "student"),
        "distill.start": str(tmp_path / "student"),
        "distill.teachers": str(tmp_path / "teacher"),
        "distill.loss": "full",
        "distill.steps": 1,
        "distill.questions": 2,
        "world.vocabulary": 0,
        "rollout.max_context_tokens": 3000,
        "rollout.max_turn_tokens": 12,
        "trainer.checkpoint_every": 1,
    }
    config = distill_settings(**changes)
    folders = build_stages(("world", "distill"), config, tmp_path / "runs")
    (row,) = read_metrics(folders["distill"])
    assert row["teacher_kl"] > 0 and row["updates"] == 1
    assert Path(folders["distill"], "policy", "model.safetensors").exists()


def load_dense(folder):
    from drlib.training.model_setup import load_model, load_model_tokenizer

    return load_model(str(folder), torch.float32), load_model_tokenizer(str(folder))


def test_off_policy_distillation_trains_on_the_teachers_correct_rollouts(tmp_path):
    """Stages demonstrations and sft with another policy as teacher, in the local trainer."""
    config = settings(
        **{
            "demonstrations.teacher": "model",
            "demonstrations.policy": RL,
            "demonstrations.count": 16,
            "demonstrations.rollouts": 2,
            "pretrain.steps": 0,
            "sft.steps": 3,
            "sft.replay_share": 0.0,
        }
    )
    folders = build_stages(("world", "untrained", "cpt", "demonstrations", "sft"), config, tmp_path)
    rows = read_json_lines(folders["demonstrations"] / "episodes.jsonl")
    correct = [row for row in rows if row["correct"]]
    assert len(rows) == 32 and 8 < len(correct) < 32, "the policy after RL, not the untrained one"
    assert json.loads((folders["sft"] / "manifest.json").read_text())["metrics"]["pool"] == len(
        correct
    )


def test_teacher_of_demonstrations_must_be_a_policy_with_the_same_tokenizer(tmp_path):
    random_model(tmp_path / "other", "llama")
    build_world(tmp_path)
    for given, message in (
        ("", "needs a trained policy: set demonstrations.policy=FOLDER"),
        (str(tmp_path / "other"), "has another tokenizer than the student"),
        ("nowhere", "demonstrations.policy='nowhere': there is no policy in"),
    ):
        config = settings(**{"demonstrations.teacher": "model", "demonstrations.policy": given})
        with pytest.raises(ValueError, match=message):
            demonstrate(config, tmp_path / "ci" / "demonstrations-x", Ranks())
