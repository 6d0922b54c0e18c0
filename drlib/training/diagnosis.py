"""Diagnosis of a run or a model: collect settings, metrics and rollouts, and run all checks.

A finished or unfinished stage `rl` is judged by what it has written: its settings, metrics.jsonl
and saved rollouts. Another stage, or a model, has no rollouts of RL: its policy answers a few
training questions with the engine of this process.

The checks are in `drlib.training.doctor`. Two more are here, because they look at this machine.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drlib.agents import Limits, ReAct
from drlib.chat.template import ChatIds
from drlib.config import FIELDS, Config, find_model, load_from_arguments, profile_names
from drlib.models.moe import load_policy
from drlib.registry import load_plugins
from drlib.rl.curriculum import Curriculum
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.data import WORLD_FILE, load_training_world
from drlib.training.doctor import (
    TEMPLATE_REMEDY,
    Check,
    check_engine,
    check_group_size,
    check_learning_rate,
    check_limits,
    check_loss_mask,
    check_reward,
    check_sampling,
    check_stop,
    check_template,
    check_truncation,
    check_turns,
    check_variance,
    draw_known_tasks,
    write_rollouts,
)
from drlib.training.launch import count_cores, count_threads
from drlib.training.learner import record
from drlib.training.model_setup import (
    ChatSetup,
    build_chat,
    choose_weight_dtype,
    create_engine,
    find_policy,
    load_model,
    load_model_tokenizer,
)
from drlib.training.planner import GIB, Rates, count_rollouts, plan
from drlib.training.question_scheduler import SKILLS, QuestionScheduler
from drlib.training.rollouts import (
    build_reward,
    judge_rollout,
    open_toolbox,
    rollout_limits,
    split_contexts,
)
from drlib.training.run_folder import METRICS, RunFolder, read_manifest, read_metrics
from drlib.training.token_scoring import find_heads, score_tokens
from drlib.trajectory import Trajectory, load_trajectories
from drlib.validation import require
from drlib.worlds import Names, SmallWorld

PARTIAL = ".partial"
SCORED = 8  # rollouts whose tokens the trainer scores
QUESTIONS = {True: (16, 8), False: (3, 2)}  # is the tiny policy -> questions, rollouts of each
IN_PROCESS = ("local", "hf")  # engines that the diagnosis can start
SAMPLED_TURNS = 2  # of a rollout of a language model, which needs seconds per turn
HOURS = 24.0  # default limit of a run's time
PROFILES = {True: "laptop", False: "smol"}  # is the tiny policy -> profile of a model
ROUNDED_GAP = 0.05  # mean difference of log-probabilities that bfloat16 explains, nats


@dataclass
class Subject:
    """Run or model under examination, with its records.

    Attributes:
        title: one line about the run or model.
        config: its settings.
        policy: folder or hub id of the current policy, "" if unknown.
        rollouts: rollouts of the last saved step; empty for a model.
        start: folder or hub id of the policy before RL, "" if unknown.
        first: rollouts of the first step, which `start` sampled.
        rows: metrics of all steps.
        runs: folder of runs with the inputs; None for a model.
    """

    title: str
    config: Config
    policy: str
    rollouts: list[Trajectory] = field(default_factory=list)
    start: str = ""
    first: list[Trajectory] = field(default_factory=list)
    rows: list[dict] = field(default_factory=list)
    runs: Path | None = None


@dataclass(frozen=True)
class Sample:
    """Rollouts sampled for the diagnosis, with their engine's speed in tokens per second."""

    rollouts: list[Trajectory]
    limits: Limits
    is_whole: bool  # not limited to `SAMPLED_TURNS`
    speed: float
    model: Any


# ---------------------------------------------------------------- runs and models


def find_subject(
    target: str, profile: str = "", recipe: str = "", settings: Sequence[str] = ()
) -> Subject:
    """Return the run or model that `target` names.

    Args:
        target: folder of a stage, finished or not, a model's folder, `smol`, or a GGUF file.
        profile, recipe, settings: as for `drlib train`. A finished stage has its own; an
            unfinished one needs those that it was started with.

    Raises:
        ValueError: there is no such run or model, or the settings are not those of the run.
    """
    folder = Path(target)
    if RunFolder.is_complete(folder):
        require(
            not (profile or recipe or settings),
            f"{target} is finished and has its own settings: leave the options out",
        )
        return _finished_stage(folder)
    if folder.name.endswith(PARTIAL):
        profile = profile or folder.resolve().parent.name
        return _unfinished_stage(folder, load_from_arguments(profile, recipe, settings))
    is_stage = (folder / METRICS).exists() and not (folder / "config.json").exists()
    require(not is_stage, f"{target} has no readable manifest.json: build the stage again")
    where = find_model(target)
    require(
        (Path(where) / "config.json").exists(),
        f"{target} is no folder of a stage or a model: pass one of runs/PROFILE/, a model's "
        "folder, or smol",
    )
    return _model(target, where, profile, recipe, settings)


def _model(target: str, where: str, profile: str, recipe: str, settings: Sequence[str]) -> Subject:
    """Return a model with the settings of a profile, by default one that fits its kind."""
    is_tiny = _is_tiny_policy(where)
    config = load_from_arguments(profile or PROFILES[is_tiny], recipe, settings)
    if not is_tiny:
        config = config.derive(**{"model.path": where})
    return Subject(f"model {target}, settings of profile {config.profile}", config, where)


def _is_tiny_policy(where: str) -> bool:
    """Return True if the tokenizer in a folder is drlib's; its chat template may be missing."""
    try:
        ChatIds(load_model_tokenizer(where))
    except ValueError:
        return False
    return True


def _finished_stage(folder: Path) -> Subject:
    folder = folder.resolve()
    manifest = read_manifest(folder)
    settings, runs = manifest["settings"], folder.parents[1]
    config = _restore_config(settings, folder.parent.name)
    rows = read_metrics(folder) if (folder / METRICS).exists() else []
    policy = find_policy(folder)
    require(
        (folder / "policy.json").exists() or Path(policy).is_dir(),
        f"stage {settings['stage']} has no policy: pass a stage such as sft or rl",
    )
    title = f"stage {settings['stage']}, {len(rows)} steps, finished"
    saved = sorted(folder.glob("trajectories_*.parquet"))
    if not saved:
        return Subject(title, config, policy, rows=rows, runs=runs)
    start = _find_start(settings["stage"], config, runs, settings["own"].get("rl.start", ""))
    return _with_rollouts(Subject(title, config, policy, rows=rows, runs=runs, start=start), saved)


def _unfinished_stage(folder: Path, config: Config) -> Subject:
    folder = folder.resolve()
    name, runs = folder.name.removesuffix(PARTIAL).rpartition("-")[0], folder.parents[1]
    expected = stages.folder(name, config, runs).name + PARTIAL
    require(
        expected == folder.name,
        f"these settings belong to {expected}, not to {folder.name}: pass the options with which "
        "`drlib train` was started",
    )
    config = stages.stage_config(name, config)
    rows = read_metrics(folder) if (folder / METRICS).exists() else []
    steps = config.get(stages.STAGES[name].steps) if stages.STAGES[name].steps else "?"
    saved = sorted(folder.glob("trajectories_*.parquet"))
    start = _find_start(name, config, runs, "")
    title = f"stage {name}, {len(rows)} of {steps} steps, not finished"
    require(bool(start), f"the policy that {folder.name} started from is not in {runs}")
    subject = Subject(title, config, start, rows=rows, runs=runs, start=start)
    return _with_rollouts(subject, saved)


def _with_rollouts(subject: Subject, saved: Sequence[Path]) -> Subject:
    """Add the rollouts of the first and the last saved step."""
    if saved:
        subject.rollouts = load_trajectories(saved[-1])
        first = load_trajectories(saved[0]) if len(saved) > 1 else subject.rollouts
        subject.first = [t for t in first if t.policy_version == 0 and not t.versions.any()]
    return subject


def _restore_config(settings: Mapping, profile: str) -> Config:
    """Return the settings of a finished stage, from its manifest.

    Settings that results do not depend on, such as `processes`, are those of the profile. The
    manifest has a hash in place of `rl.start`, so that is the profile's too.
    """
    values: dict[str, Any] = {}

    def collect(part: Mapping) -> None:
        for each in part["inputs"].values():
            collect(each)
        values.update({name: value for name, value in part["own"].items() if name in FIELDS})

    collect(settings)
    values.pop("rl.start", None)
    plugins = ",".join(settings.get("plugins", ()))
    load_plugins(plugins)
    known = profile if profile in profile_names() else "laptop"
    return Config.load(known, plugins=plugins, **values)


def _find_start(name: str, config: Config, runs: Path, weights_hash: str) -> str:
    """Return the policy that stage `name` started from; "" if it is gone.

    Args:
        weights_hash: hash of the weights of rl.start in the manifest; "" if it is not needed.
    """
    setting = stages.STAGES[name].start
    if setting and config.get(setting):
        start = stages.start_folder(name, config)
        digest = hashlib.sha256((start / stages.WEIGHTS).read_bytes()).hexdigest()
        return str(start) if weights_hash in ("", digest) else ""
    inputs = [each for each in stages.STAGES[name].inputs if each != "world"]
    folders = [stages.folder(each, config, runs) for each in inputs]
    found = [find_policy(each) for each in folders if RunFolder.is_complete(each)]
    return found[0] if found else ""


# ---------------------------------------------------------------- all checks


def diagnose(
    subject: Subject, questions: int | None = None, turn_tokens: int = 128, hours: float = HOURS
) -> list[Check]:
    """Run all checks; those without records or weights are reported as not run.

    Args:
        questions: number of questions that a model answers; None: by its size, 0: none.
        turn_tokens: limit of its turns, if that of the settings is higher.
        hours: limit of a run's time.
    """
    config = subject.config
    setup, template = _open_chat(subject)
    with Sandbox() as sandbox, _open_world(subject) as world:
        scheduler = QuestionScheduler(config, world, Names.from_world(world))
        with open_toolbox(config, world, sandbox, scheduler.environments) as toolbox:
            tasks = draw_known_tasks(scheduler)
            sample = None
            if setup is not None and not subject.rollouts and questions != 0:
                sample = _sample_rollouts(
                    subject, setup, toolbox, scheduler, questions, turn_tokens
                )
            rollouts = sample.rollouts if sample else subject.rollouts
            checks = [template]
            if setup is not None:
                chat, system = setup
                checks = [
                    check_template(chat, system, tasks[0].question, rollouts),
                    check_stop(chat, rollouts, _declared_ends(subject.policy)),
                    check_turns(chat, rollouts),
                    check_limits(chat, system, tasks, config),
                    check_truncation(rollouts, sample.limits if sample else rollout_limits(config)),
                    _check_paid(chat, system, toolbox, tasks, config),
                ]
    checks += [
        check_loss_mask(rollouts, config),
        check_sampling(config.rl.temperature, rollouts),
        check_group_size(config),
    ]
    if sample and not sample.is_whole:
        finding = f"needs whole rollouts; {SAMPLED_TURNS} turns of each were sampled"
        checks.append(Check("groups", None, finding))
    else:
        checks.append(check_variance(rollouts, subject.rows))
    return [
        *checks,
        check_learning_rate(config, subject.rows if subject.rollouts else ()),
        _check_logprobs(subject, sample),
        check_machine_load(config),
        *check_budget(config, subject.rows if subject.rollouts else (), sample, hours),
    ]


def _open_chat(subject: Subject) -> tuple[ChatSetup | None, Check]:
    """Return the chat of the policy, or None and the fault of its template."""
    try:
        setup = build_chat(load_model_tokenizer(subject.policy), subject.config.model.tool_format)
    except ValueError as error:
        remedy = f"{TEMPLATE_REMEDY}; model.tool_format=prompt needs least of a template"
        return None, Check("template", False, str(error), remedy)
    return setup, Check("template", True, "")


@contextmanager
def _open_world(subject: Subject) -> Iterator[SmallWorld]:
    """Yield the world of the run, or load the one that the settings name."""
    if subject.runs is not None:
        folder = stages.folder("world", subject.config, subject.runs)
        if RunFolder.is_complete(folder):
            yield SmallWorld.load(folder / WORLD_FILE)
            return
    yield load_training_world(subject.config)[0]


def _declared_ends(policy: str) -> list[int]:
    """Return the ids at which generation ends by the files of a model; [] without any."""
    for name in ("generation_config.json", "config.json"):
        path = Path(policy) / name
        if path.exists():
            ends = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
            if ends is not None:
                return [ends] if isinstance(ends, int) else list(ends)
    return []


def _check_paid(chat, system, toolbox, tasks, config: Config) -> Check:
    """Check the reward; an error of the reward is a fault."""
    try:
        written = write_rollouts(chat, system, toolbox, tasks, config)
    except Exception as error:  # noqa: BLE001 - the reward is the user's code
        finding = f"reward {config.rl.reward.name!r} fails: {type(error).__name__}: {error}"
        return Check("reward", False, finding, "correct the reward (rl.reward.name, .arguments)")
    return check_reward(written, config.rl.reward.name)


# ---------------------------------------------------------------- samples and their scores


def _sample_rollouts(
    subject: Subject,
    setup: ChatSetup,
    toolbox: Toolbox,
    scheduler: QuestionScheduler,
    questions: int | None,
    turn_tokens: int,
) -> Sample:
    """Let the policy answer training questions, judged by the reward of the settings."""
    config, chat = subject.config, setup.chat
    is_tiny = isinstance(chat, ChatIds)
    count, group = QUESTIONS[is_tiny]
    model = _load(subject.policy, config)
    limits = rollout_limits(config)
    limits = Limits(
        limits.calls,
        min(limits.turn_tokens, turn_tokens),
        limits.context_tokens,
        turns=None if is_tiny else SAMPLED_TURNS,
    )
    few = config.derive(rl__questions=questions or count, rl__curriculum__pool=0)
    tasks, worlds = QuestionScheduler(few, scheduler.real.world, scheduler.names).draw(
        0, Curriculum(SKILLS, None)
    )
    # a server or vLLM would need its own start: transformers samples from the same weights
    own = config if config.engine.name in IN_PROCESS else config.derive(engine__name="hf")
    with create_engine(model, subject.policy, own) as engine:
        agent = ReAct(engine, toolbox, chat, limits, setup.system)
        started = time.perf_counter()
        rollouts = agent.run(
            tasks,
            samples=group,
            temperature=config.rl.temperature,
            seed=config.seed,
            worlds=dict(worlds),
        )
        seconds = time.perf_counter() - started
    generated = sum(int(t.generated.sum()) for t in rollouts)
    reward = build_reward(config)
    owners = [task for task in tasks for _ in range(group)]
    judged = [judge_rollout(t, task, reward) for t, task in zip(rollouts, owners)]
    return Sample(judged, limits, is_tiny, generated / max(seconds, 1e-9), model)


def _load(where: str, config: Config) -> Any:
    """Load a policy in the dtype of its weights in training."""
    if config.trainer.backend == "local" and not config.model.path:
        return load_policy(where)[0].eval()
    dtype = choose_weight_dtype(config.model.dtype, config.trainer.lora_rank)
    return load_model(where, dtype).eval()


def _check_logprobs(subject: Subject, sample: Sample | None) -> Check:
    """Compare engine and trainer on sampled rollouts, or on those of the first step."""
    config = subject.config
    if sample is not None:
        rollouts, model = sample.rollouts, sample.model
    elif subject.first and subject.start:
        rollouts, model = subject.first, _load(subject.start, config)
    else:
        found = [row[name] for row in subject.rows for name in GAPS if name in row]
        reason = "the policy that sampled the first rollouts is not available"
        if not found:
            return Check("engine", None, reason)
        return check_engine([np.array(found)], [np.zeros(len(found))], _tolerance(config))
    if config.rl.temperature == 0:
        return Check("engine", None, "greedy rollouts have no sampling probability")
    contexts = [c for t in rollouts[:SCORED] for c in split_contexts(t)]
    contexts = [c for c in contexts if c.generated.any()]
    scored = score_with_trainer(model, contexts, config)
    sampled = [c.logprobs[c.generated] for c in contexts]
    return check_engine(sampled, scored, _tolerance(config))


def _tolerance(config: Config) -> float:
    """Return the mean difference of log-probabilities that is accepted, nats."""
    dtypes = {config.model.dtype, config.rl.off_policy.engine_dtype}
    return max(config.engine.max_mismatch, ROUNDED_GAP if "bfloat16" in dtypes else 0.0)


# columns of metrics.jsonl: differences of log-probabilities in the local loop and in TRL's, nats
GAPS = ("logp_gap", "mismatch/max_logp_gap")


def score_with_trainer(model, contexts: Sequence[Trajectory], config: Config) -> list[np.ndarray]:
    """Return the trainer's log-probabilities of the sampled tokens of each context, nats."""
    if config.trainer.backend == "local":
        logp = record(model, contexts, config)
        return [logp_T[c.generated] for logp_T, c in zip(logp, contexts)]
    heads, found = find_heads(model), []
    half = config.model.dtype == "bfloat16"
    for context in contexts:
        ids_1T = torch.from_numpy(context.token_ids[None].astype(np.int64)).to(model.device)
        chosen_1T = torch.from_numpy(context.generated[None]).to(model.device)
        seen_1T = torch.ones_like(ids_1T)
        with torch.no_grad(), torch.autocast(model.device.type, torch.bfloat16, enabled=half):
            if heads:
                logp_T = score_tokens(
                    model,
                    heads,
                    ids_1T,
                    seen_1T,
                    chosen_1T,
                    temperature=config.rl.temperature,
                ).logp_BT[0]
            else:
                logits_TV = model(input_ids=ids_1T, attention_mask=seen_1T).logits[0].float()
                logp_TV = (logits_TV[:-1] / config.rl.temperature).log_softmax(-1)
                after_T = logp_TV.gather(1, ids_1T[0, 1:, None])[:, 0]
                logp_T = torch.cat([after_T.new_zeros(1), after_T])
        found.append(logp_T.float().cpu().numpy()[context.generated])
    return found


# ---------------------------------------------------------------- this machine


def check_machine_load(config: Config, cores: int | None = None) -> Check:
    """Check that processes and threads fit the cores, and that the CPU computes in model.dtype.

    Args:
        cores: of this machine; None: those of this process.
    """
    cores = cores or count_cores()
    processes = config.processes
    threads = count_threads(config, processes)
    device = "GPU" if torch.cuda.is_available() else "CPU"
    dtype = config.model.dtype
    finding = f"{processes} processes x {threads} threads on {cores} cores, {dtype} on a {device}"
    if processes * threads > cores:
        return Check("machine", False, finding, f"set processes to {max(1, cores // threads)}")
    is_slow = dtype == "bfloat16" and device == "CPU" and not _has_bfloat16()
    if is_slow:
        finding += ", which lacks bfloat16 instructions: several times slower than float32"
        return Check("machine", False, finding, "set model.dtype=float32")
    return Check("machine", True, finding)


def _has_bfloat16() -> bool:
    """Return True if this CPU multiplies bfloat16 matrices itself."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def check_budget(
    config: Config, rows: Sequence[Mapping], sample: Sample | None, hours: float
) -> list[Check]:
    """Check the estimated memory of a step, and the time of the run.

    Args:
        rows: metrics of the steps so far; their durations are used if there are any.
        sample: rollouts whose speed is used otherwise.
        hours: limit of the time.
    """
    device = _device_gib(config)
    try:
        estimate = plan(config, device)
    except ValueError as error:
        return [Check("memory", None, str(error)), _check_time(config, rows, sample, hours)]
    need, has = estimate.fit.memory.total / GIB, estimate.fit.device / GIB
    finding = f"a step of {estimate.fit.stage} needs {need:.2f} GiB of {has:.1f} (estimate)"
    remedy = " ".join(f"--{name} {value}" for name, value in estimate.remedy.items())
    if estimate.fit.fault:
        remedy = f"run with {remedy}" if remedy else "use a smaller model, or a larger device"
        memory = Check("memory", False, finding, remedy)
    else:
        memory = Check("memory", True, finding)
    return [memory, _check_time(config, rows, sample, hours)]


def _device_gib(config: Config) -> float:
    """Return the memory of one training device of this machine."""
    if config.trainer.backend == "trl" and torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).total_memory / GIB
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    return memory / config.processes


def _check_time(
    config: Config, rows: Sequence[Mapping], sample: Sample | None, hours: float
) -> Check:
    name, steps = "time", config.rl.steps
    seconds = [row["seconds"] for row in rows if row.get("seconds")]
    if seconds:
        step, source = float(np.mean(seconds)), f"mean of {len(seconds)} steps"
    elif sample is not None:
        limit = config.rollout.max_context_tokens * Rates().generated_share
        own = np.mean([int(t.generated.sum()) for t in sample.rollouts])
        tokens = count_rollouts(config) * (float(own) if sample.is_whole else limit)
        step, source = tokens / sample.speed, f"generation only, at {sample.speed:.0f} tokens/s"
    else:
        return Check(name, None, "no step was measured")
    need = steps * step / 3600
    total = f"{need:.3g} hours" if need >= 1 else f"{need * 60:.2g} minutes"
    finding = f"{steps} steps of {step:.3g} s take {total} ({source}); limit: {hours:g} hours"
    if need <= hours:
        return Check(name, True, finding)
    remedy = (
        "lower rl.questions, rl.group, rl.steps or rollout.max_context_tokens, or use a faster "
        "engine; --hours sets the limit"
    )
    return Check(name, False, finding, remedy)
