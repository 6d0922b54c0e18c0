"""Stage `distill`: on-policy distillation from the policies of earlier stages (GLM-5, section 3.5).

A later stage may lose what an earlier one learned. Here the student, usually the policy of the last
stage, answers the questions with the real tools, one rollout each. The teacher of the question's
source scores the student's own tokens, and the loss is the reverse KL to it (distill.loss), for
every token without a reward. The loop, engine and learner are those of `rl`.

Not supported: teachers with another tokenizer; trainer.backend=trl.
"""

from collections.abc import Mapping
from pathlib import Path

import torch

from drlib.config import Config
from drlib.models.moe import load_policy
from drlib.rewards.functions import has_env_fault
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.batch import PreparedBatch, RolloutBatch
from drlib.training.distributed import Ranks
from drlib.training.grpo import GRPOTrainer, check_rl_settings
from drlib.training.model_setup import load_model, load_model_tokenizer
from drlib.training.policies import StageStart, begin_stage, finish_stage
from drlib.training.question_scheduler import PYTHON, QuestionScheduler, source_shares
from drlib.training.rollouts import Rollouts, open_toolbox, split_all_contexts
from drlib.validation import require

SEARCH = "search"  # name of a teacher for all sources except PYTHON
EVERYTHING = ""  # name of a teacher for all sources


class DistillationTrainer(GRPOTrainer):
    """The RL loop with teachers in place of rewards."""

    def __init__(
        self,
        config: Config,
        start: StageStart,
        toolbox: Toolbox,
        scheduler: QuestionScheduler,
        teachers: Mapping[str, torch.nn.Module],
    ):
        super().__init__(config, start, toolbox, scheduler)
        self.teachers = teachers

    def prepare_batch(self, rollouts: Rollouts, step: int) -> PreparedBatch:
        """Assign each rollout to the teacher of its source; drop environment faults only.

        Every token is judged by itself, so rollouts without an answer teach as well.
        """
        parts = []
        for shard in rollouts.trainable:
            samples, _ = split_all_contexts(t for t in shard if not has_env_fault(t))
            sources = [sample.metadata["source"] for sample in samples]
            teachers = [self.teachers[find_teacher(source, self.teachers)] for source in sources]
            ones_N = torch.ones(len(samples))
            parts.append(RolloutBatch(samples, ones_N, ones_N, teachers=teachers))
        return PreparedBatch(parts, rollouts.everything, {})

    def step(self, step: int):
        """Take one step; the loss is the mean KL to the teachers in nats per token."""
        metrics, trajectories = super().step(step)
        metrics["teacher_kl"] = metrics["loss"]
        return metrics, trajectories


def find_teacher(source: str, names: Mapping[str, object]) -> str:
    """Return the name of the teacher for a source of questions.

    Raises:
        ValueError: there is none.
    """
    general = (EVERYTHING,) if source == PYTHON else (SEARCH, EVERYTHING)
    for name in (source, *general):
        if name in names:
            return name
    raise ValueError(
        f"distill.teachers names no teacher for {source!r} questions: add {general[0] or source}="
        "FOLDER, or ask none (rl.curriculum)"
    )


def check_distillation(config: Config) -> None:
    """Raise ValueError for distillation settings in conflict."""
    require(
        config.trainer.backend == "local",
        "trainer.backend=trl cannot distill with tools and several teachers: set "
        "trainer.backend=local, or use TRL's DistillationTrainer in a program of your own",
    )
    names = [name for name, _ in stages.policy_folders("distill.teachers", config)]
    require(
        bool(names),
        "distill.teachers is empty: pass the policy folder of an earlier stage, or one for each "
        "source of questions, such as python=FOLDER,search=FOLDER",
    )
    known = {PYTHON, SEARCH, EVERYTHING, *source_shares(config)}
    unknown = sorted({*names} - known)
    require(
        not unknown and len(names) == len({*names}),
        f"distill.teachers={config.distill.teachers!r}: name each source once, of "
        f"{', '.join(sorted(known - {EVERYTHING}))}",
    )
    for source in source_shares(config):
        find_teacher(source, dict.fromkeys(names))


def load_teachers(config: Config, vocabulary: Mapping[str, int]) -> dict[str, torch.nn.Module]:
    """Load the teachers by name, without gradients.

    Raises:
        ValueError: a teacher has another vocabulary than the student.
    """
    found = {}
    for name, folder in stages.policy_folders("distill.teachers", config):
        require(
            load_model_tokenizer(str(folder)).get_vocab() == vocabulary,
            f"the teacher in {folder} has another tokenizer than the student: distill from a "
            "policy of the same model",
        )
        if config.model.path:
            teacher = load_model(str(folder), torch.float32)
        else:
            teacher, _ = load_policy(folder)
        found[name] = teacher.eval().requires_grad_(False)
    return found


def build_loop_config(config: Config) -> Config:
    """Return the settings of the loop: `rl` with the steps, questions and rate of `distill`."""
    loop = stages.stage_config("distill", config).derive(
        **{f"rl.{name}": config.get(f"distill.{name}") for name in ("steps", "questions", "lr")}
    )
    return loop.restrict(stages.STAGES["distill"].readers | {"world"})


def distill(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Build stage `distill`; return the metrics of the last step."""
    check_distillation(config)
    loop = build_loop_config(config)
    check_rl_settings(loop)
    start = begin_stage("distill", "rl", config, run_dir, ranks)
    teachers = load_teachers(config, start.chat.tokenizer.get_vocab())
    scheduler = QuestionScheduler(loop, start.world, start.names)
    with (
        Sandbox() as sandbox,
        open_toolbox(config, start.world, sandbox, scheduler.environments) as toolbox,
    ):
        trainer = DistillationTrainer(loop, start, toolbox, scheduler, teachers)
        try:
            metrics = start.run.loop(
                trainer, config.distill.steps, config.trainer.checkpoint_every, trainer.extra
            )
        finally:
            trainer.close()
    return finish_stage(start, config, metrics)
