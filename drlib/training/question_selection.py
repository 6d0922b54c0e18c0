"""Question selection from a fixed pool: data curation and training stages.

Both probe questions outside the batch, which costs rollouts. The metrics probe_rollouts and
probe_tokens report the cost. A probe uses the weights and limits of the step, its own random
numbers and one plain group of rl.group; correctness counts, whatever the reward is.

- rl.curriculum.curation_every: automatic data curation of Tongyi DeepResearch (report, RL data).
  The starting policy probes the whole pool; questions with a solve rate between 0 and 1 are active.
  Each step probes a few inactive questions. A refresh exchanges questions that are now always or
  never solved.
- rl.curriculum.stages="three": stages of rStar2-Agent (arXiv 2508.20722, section 4): short
  contexts; long contexts; then more calls, only questions that are not always solved, a reset
  optimizer and the policy as its own reference. Lengths are in proportion to rl.steps and limits.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from drlib.agents import Agent
from drlib.agents.agent_spec import AgentMixture
from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.rl.curriculum import RSTAR2_STAGES, DataCuration, RolloutStage, StagedCurriculum
from drlib.training.callbacks import CALLBACKS, Callback, StepState
from drlib.training.distributed import Ranks
from drlib.training.question_scheduler import QuestionScheduler
from drlib.training.rollouts import sample_rollouts, step_seed
from drlib.trajectory import Trajectory
from drlib.validation import require

BACKGROUND = 8  # questions per step for each probed inactive question
Outcomes = dict[str, list[float]]  # question -> 1.0 or 0.0 for each judged rollout


class StepStart(NamedTuple):
    """Settings of a step, and True if optimizer and reference are reset before it."""

    config: Config
    reset: bool


def scale_stages(config: Config) -> list[RolloutStage]:
    """Return the stages of rStar2-Agent in proportion to rl.steps, at least one step each.

    The limits grow up to those of the profile, which the last stage uses.
    """
    total = sum(stage.steps for stage in RSTAR2_STAGES)
    first, _, last = (round(config.rl.steps * stage.steps / total) for stage in RSTAR2_STAGES)
    first = min(max(first, 1), config.rl.steps - 2)
    last = min(max(last, 1), config.rl.steps - 1 - first)
    lengths = (first, config.rl.steps - first - last, last)
    whole = RSTAR2_STAGES[-1]
    return [
        stage._replace(
            steps=steps,
            tokens=config.rollout.max_context_tokens * stage.tokens // whole.tokens,
            turns=max(1, config.rollout.max_calls * stage.turns // whole.turns),
        )
        for stage, steps in zip(RSTAR2_STAGES, lengths)
    ]


class QuestionSelection(Callback):
    """Selects among the questions of a pool by probing them.

    Raises:
        ValueError: the contexts of the first stage are too short for a question and an answer, or
            (in `begin`) no question is left.
    """

    def __init__(
        self,
        config: Config,
        questions: QuestionScheduler,
        ranks: Ranks,
        build_agent: Callable[[Config], Agent | AgentMixture],
        chat: ChatIds,
    ):
        self.config, self.questions, self.ranks, self.build_agent = (
            config,
            questions,
            ranks,
            build_agent,
        )
        self.curation: DataCuration | None = None  # set when its first questions have been probed
        self._rates: dict[str, float] = {}  # solve rates at its start
        self._next = 0  # position in the pool of the next probe
        self._cost = {"probe_rollouts": 0.0, "probe_tokens": 0.0}  # of the current step
        self.stages: StagedCurriculum | None = None
        if config.rl.curriculum.stages == "three":
            self.stages = StagedCurriculum(scale_stages(config))
            self._check_length(chat)

    @property
    def probes(self) -> bool:
        """True if questions are probed besides those in the batch."""
        return self.config.rl.curriculum.curation_every > 0 or self.stages is not None

    def begin(self, step: int) -> StepStart:
        """Return the limits of the next step; probe all questions if a stage or the curation
        starts.
        """
        self._cost = dict.fromkeys(self._cost, 0.0)
        config, reset = self.config, False
        if self.stages is not None:
            config = self._limits(self.stages.next_stage)
            if self.stages.filter_due:
                self._keep_hard(self._probe(list(self.questions.pool), config, step, "stage"))
            stage, _ = self.stages.begin_step()
            reset = stage.reset
        if self.config.rl.curriculum.curation_every > 0 and self.curation is None:
            outcomes = self._probe(list(self.questions.pool), config, step, "start")
            self._start_curation({name: _solve_rate(solved) for name, solved in outcomes.items()})
        return StepStart(config, reset)

    def end(
        self, step: int, start: StepStart, trajectories: Sequence[Trajectory]
    ) -> dict[str, float]:
        """Observe the rollouts of this rank and probe some inactive questions.

        Returns:
            Metrics: epoch, asked_among (questions), stage, probe_rollouts, probe_tokens, and after
                a refresh mastered, hopeless and entered.
        """
        if self.questions.epochs is None:
            return {}
        epochs = self.questions.epochs.state
        row = {"epoch": epochs["epoch"], "asked_among": len(epochs["among"])}
        if self.stages is not None:
            row["stage"] = 1 + self.stages.plan[self.stages.state["step"] - 1]
        if self.curation is not None:
            row |= self._update_curation(step, start.config, trajectories)
        return row | (self._cost if self.probes else {})

    def state_dict(self) -> dict:
        """Return the state of curation and stages."""
        return {
            "curation": None if self.curation is None else self.curation.state_dict(),
            "rates": dict(self._rates),
            "next": self._next,
            "stages": None if self.stages is None else self.stages.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore the state saved by state_dict()."""
        self._rates, self._next = dict(state["rates"]), state["next"]
        if state["curation"] is not None:
            self.curation = self._build_curation(self._rates)
            self.curation.load_state_dict(state["curation"])
        if state["stages"] is not None:
            self.stages.load_state_dict(state["stages"])

    # ---- hooks

    def on_step_begin(self, trainer, state: StepState) -> None:
        """Set the limits of the step; restart optimizer and reference for a new stage."""
        self._step_start = self.begin(state.step)
        state.config = self._step_start.config
        if self._step_start.reset:
            trainer.learner.restart()

    def on_batch(self, trainer, state: StepState) -> None:
        """Observe the rollouts; probe before the update, with the weights that sampled them."""
        state.metrics |= self.end(state.step, self._step_start, state.rollouts)

    # ---- stages

    def _limits(self, stage: RolloutStage) -> Config:
        return self.config.derive(
            rollout__max_context_tokens=stage.tokens, rollout__max_calls=stage.turns
        )

    def _check_length(self, chat: ChatIds) -> None:
        config = self.config
        shortest = self.stages.stages[0].tokens
        longest = max(len(chat.prompt(task.question)) for task, _ in self.questions.pool.values())
        needed = max(longest + config.rollout.max_turn_tokens, config.rl.reward.overlong_buffer)
        require(
            needed <= shortest,
            f'rl.curriculum.stages="three" starts with contexts of {shortest} tokens (8/12 of '
            f"rollout.max_context_tokens), fewer than the {needed} needed: set "
            f"rollout.max_context_tokens to {-(-needed * 12 // 8)} or more",
        )

    def _keep_hard(self, outcomes: Outcomes) -> None:
        """Keep the questions of the third stage; unjudged questions stay."""
        solved = {name: some or [0.0] for name, some in outcomes.items()}
        require(
            any(min(some) < 1 for some in solved.values()),
            f"the policy always solves all rl.curriculum.pool={len(solved)} questions, so the "
            "third stage "
            "has none: raise rl.curriculum.pool",
        )
        hard = self.stages.keep_hard(solved)
        self.questions.epochs.keep(hard)
        if self.config.rl.curriculum.curation_every > 0:
            self._start_curation({name: _solve_rate(outcomes[name]) for name in hard})

    # ---- curation

    def _build_curation(self, rates: dict[str, float]) -> DataCuration:
        """Build a curation whose window is one group: the rule for leaving equals the rule at the
        start.
        """
        window = max(2, self.config.rl.group)
        return DataCuration(rates, window=window, every=self.config.rl.curriculum.curation_every)

    def _start_curation(self, rates: dict[str, float]) -> None:
        """Start the curation with the solve rates in `rates`."""
        medium = sum(0 < rate < 1 for rate in rates.values())
        require(
            medium > 0,
            f"each of {len(rates)} questions is always or never solved in rl.group="
            f"{self.config.rl.group} rollouts, so rl.curriculum.curation_every has none: raise "
            "rl.curriculum.pool",
        )
        self.curation, self._rates, self._next = self._build_curation(rates), rates, 0
        self.questions.epochs.keep(self.curation.state["active"])

    def _update_curation(
        self, step: int, config: Config, trajectories: Sequence[Trajectory]
    ) -> dict[str, float]:
        """Observe the step, probe inactive questions, refresh if it is due."""
        own = [(t.task_id, t.id, t.reward_parts["correct"]) for t in trajectories if _is_judged(t)]
        # sorted: the order must not depend on the number of processes
        outcomes = sorted(self.ranks.gather(own))
        self.curation.observe((name, solved) for name, _, solved in outcomes)
        outcomes = self._probe(self._draw_inactive(), config, step, "rest")
        self.curation.probe({name: _solve_rate(solved) for name, solved in outcomes.items()})
        refresh = self.curation.end_step()
        if refresh is None:
            return {"mastered": 0, "hopeless": 0, "entered": 0}
        self.questions.epochs.keep(self.curation.state["active"])
        return {
            "mastered": len(refresh.mastered),
            "hopeless": len(refresh.hopeless),
            "entered": len(refresh.added),
        }

    def _draw_inactive(self) -> list[str]:
        """Return the next few inactive questions in rotation."""
        active = {*self.curation.state["active"]}
        known = [name for name in self.questions.pool if name in self.curation.known]
        in_turn = [*known[self._next :], *known[: self._next]]
        few = max(1, self.config.rl.questions // BACKGROUND)
        some = [name for name in in_turn if name not in active][:few]
        if some:
            self._next = known.index(some[-1]) + 1
        return some

    # ---- probes

    def _probe(self, names: list[str], config: Config, step: int, why: str) -> Outcomes:
        """Sample one group per question on all ranks, count its cost, return the outcomes."""
        if not names:
            return {}
        ranks = self.ranks
        plain = config.derive(
            seed=step_seed(f"{config.seed}-probe-{why}", step),
            rl__sampling__oversample=1,
            rl__sampling__resample="none",
            rl__sampling__adaptive_group=False,
        )
        tasks, worlds = self.questions.pool_questions(names)
        agent = self.build_agent(config)
        made = []
        for shard in ranks.shards:
            made += sample_rollouts(agent, tasks, worlds, plain, step, shard, ranks=ranks)
        cost = {
            "probe_rollouts": len(made),
            "probe_tokens": float(sum(int(t.generated.sum()) for t in made)),
        }
        self._cost = {name: self._cost[name] + n for name, n in ranks.sum(cost).items()}
        solved = defaultdict(list)
        for name, right in ranks.gather(
            [(t.task_id, t.reward_parts["correct"]) for t in made if _is_judged(t)]
        ):
            solved[name].append(right)
        return {name: solved[name] for name in names}


def _is_judged(trajectory: Trajectory) -> bool:
    return trajectory.reward is not None


def _solve_rate(solved: list[float]) -> float:
    """Return the solve rate; 0 if no rollout was judged."""
    return sum(solved) / max(len(solved), 1)


@CALLBACKS.register("question_selection")
def _build_question_selection(config: Config, trainer) -> Callback | None:
    if config.rl.curriculum.pool == 0:
        return None
    return QuestionSelection(
        config, trainer.scheduler, trainer.ranks, trainer.build_agent, trainer.chat
    )
