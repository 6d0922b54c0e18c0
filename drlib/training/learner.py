"""The local learner: turn a prepared batch into a weight update.

Samples are packed without padding, micro-batch by micro-batch. One denominator for the whole update
makes the parts add up to the gradient of the whole batch, on any number of processes.

Three log-probabilities of a token meet here: the trainer's (with gradient), the trainer's before
the first update of the batch (`old`), and the engine's at sampling time (`behaviour`). In the
default recipe all three are equal, because every batch is used once by the policy that sampled it.
"""

import copy
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drlib.config import Config
from drlib.models.routing_replay import record_routes
from drlib.rl.distillation import distillation_loss, full_distillation_loss
from drlib.rl.divergences import top_entropy_mask
from drlib.rl.losses import LossConfig, kept_tokens, policy_loss
from drlib.rl.stability import sync_reference
from drlib.training.balance import balance_experts
from drlib.training.batch import Recorded, RolloutBatch, minibatch_indices
from drlib.training.distributed import Ranks, gradients, trained_parameters
from drlib.training.optim import SKIPPED, GradientWatch, Optimizers, schedule
from drlib.training.packed_routes import (
    PackedReplay,
    Routes,
    engine_routes,
    of_samples,
    prompts_in_common,
)
from drlib.training.packing import PackedBatch, Scored, score
from drlib.trajectory import Trajectory
from drlib.validation import require, require_within

FINAL_LR = 0.1  # of the base learning rate, at the last step
MICRO_BATCH_CONTEXTS = 6  # size of a micro-batch, in full contexts, by default
LOGGED = (
    "clip_high",
    "clip_low",
    "ratio_mean",
    "weight_mean",
    "weight_square_mean",
    "mismatch_kl",
    "dropped_correction",
    "kl",
)
COUNTED = ("tokens", "sequences", "in_loss", "learning", "live", "sampled")
SUMMED = ("loss", "gap", "scored", "balance", "rerouted", *LOGGED)


class LocalLearner:
    """Weight updates of the local policy, on this process's part of the batch.

    Attributes:
        reference: policy of the KL term; None if rl.loss.kl_coef is 0.
        kl_coef, lr_scale: changed by callbacks; the next update uses them.
        reference_age: steps since the reference last became the policy.
    """

    def __init__(self, model, config: Config, ranks: Ranks):
        self.model, self.config, self.ranks = model, config, ranks
        self.reference = copy.deepcopy(model) if config.rl.loss.kl_coef > 0 else None
        self.optimizers = Optimizers.adam(model, config.rl.lr)
        self.watch = GradientWatch()
        self.kl_coef, self.lr_scale = config.rl.loss.kl_coef, 1.0
        self.reference_age, self.is_reference_moved = 0, False

    def record(self, batch: RolloutBatch, old: bool | None = None) -> RolloutBatch:
        """Add the log-probabilities and expert routes that the loss of a batch needs.

        Args:
            old: record the policy before the update; None: only if rl.loss.correction needs it.
        """
        old = self.config.rl.loss.correction != "none" if old is None else old
        routes = self._routes(batch.trajectories)
        recorded: Recorded = {}
        if old:
            # with routing replay, the old policy uses the routes of the update
            recorded["old"] = record(self.model.eval(), batch.trajectories, self.config, routes)
        if self.reference is not None:
            recorded["reference"] = record(self.reference, batch.trajectories, self.config)
        return replace(batch, recorded=recorded, routes=routes)

    def _routes(self, samples: list[Trajectory]) -> Routes | None:
        """Return the routes that rl.off_policy.routing_replay replays in the update."""
        if self.config.rl.off_policy.routing_replay == "none":
            return None
        if self.config.rl.off_policy.routing_replay == "r3":
            return engine_routes(samples)
        return record_trainer_routes(self.model.eval(), samples, self.config)

    def update(self, batch: Sequence[RolloutBatch], step: int) -> dict:
        """Take rl.minibatches updates, each on its groups; return the metrics of the last one.

        An update without gradient (no reward variance in any group) is skipped: Adam's momentum
        alone would change the weights. So is one with a non-finite gradient (`GradientWatch`).
        """
        config, ranks = self.config, self.ranks
        batch = select_learning_tokens(batch, "batch", config, ranks)
        self.model.train()
        factor = schedule(step, config.rl.steps, config.rl.warmup_steps, 0.5, FINAL_LR)
        factor *= self.lr_scale
        row: dict[str, Any] = {"updates": 0, "grad_norm": 0.0, "lr_factor": factor}
        for part in range(config.rl.minibatches):
            parts = [
                shard.of(minibatch_indices(shard, part, config.rl.minibatches)) for shard in batch
            ]
            # loss and gradient of this process, then the sum over processes
            row |= accumulate_gradients(self.model, parts, config, ranks, kl_coef=self.kl_coef)
            row["grad_norm"] = ranks.sum_gradients(self.model)
            if row["trained_share"] == 0:
                continue
            # optimizer step
            if self.watch.usable(math.isfinite(row["grad_norm"])):
                self.optimizers.step(factor)
                row |= balance_experts(self.model, config.trainer.router_bias_rate)
                row["updates"] += 1
            else:
                self.model.zero_grad(set_to_none=True)
                row["skipped"] = SKIPPED
        return row

    def sync_reference(self, decay: float = 0.0) -> None:
        """Move the reference to the policy, keeping the share `decay` of the old reference."""
        if self.reference is not None:
            sync_reference(self.reference, self.model, decay=decay)
            self.reference_age, self.is_reference_moved = 0, True

    def restart(self) -> None:
        """Make the policy its own reference and clear the optimizer's state (ProRL)."""
        self.sync_reference()
        self.optimizers.forget()

    def state_dict(self) -> dict:
        """Return the state besides policy and optimizer; the reference only if it has moved."""
        return {
            "reference_age": self.reference_age,
            "skipped": self.watch.skipped,
            "reference": self.reference.state_dict() if self.is_reference_moved else None,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore the state saved by state_dict()."""
        self.reference_age = state["reference_age"]
        self.watch.skipped = state["skipped"]
        if state["reference"] is not None:
            self.reference.load_state_dict(state["reference"])
            self.is_reference_moved = True


# ------------------------------------------------------- log-probabilities before the update


@torch.no_grad()
def record(
    model,
    trajectories: Sequence[Trajectory],
    config: Config,
    routes: Routes | None = None,
) -> list:
    """Compute log-probabilities under `model`, in the format of `Trajectory.logprobs`.

    Args:
        routes: experts to use for each token; None: those of the router.
    """
    found: list = [None] * len(trajectories)
    for batch in _batches(trajectories, range(len(trajectories)), config):
        theirs = None if routes is None else [routes[i] for i in batch]
        tokens, scored, _ = _score(model, [trajectories[i] for i in batch], config, theirs)
        logp_N = torch.zeros(len(tokens.ids_N))
        logp_N[scored.at_M] = scored.logp_M
        for i, logp_T in zip(batch, tokens.split(logp_N)):
            found[i] = logp_T.numpy()
    return found


@torch.no_grad()
def record_trainer_routes(model, trajectories: Sequence[Trajectory], config: Config) -> Routes:
    """Record the experts that `model` selects: uint16 [T, L, k] per trajectory."""
    found: list = [None] * len(trajectories)
    for batch in _batches(trajectories, range(len(trajectories)), config):
        with record_routes(model) as recorder:
            tokens, *_ = _score(model, [trajectories[i] for i in batch], config)
        for i, routes_TLK in zip(batch, of_samples(tokens, recorder.passes[0])):
            found[i] = routes_TLK
    return found


def accumulate_gradients(
    model,
    shares: Sequence[RolloutBatch],
    config: Config,
    ranks: Ranks,
    kl_coef: float | None = None,
) -> dict:
    """Compute the gradient of one update's loss on this rank's `shares` and store it in `.grad`.

    Trajectories with advantage 0 have no gradient and are skipped, unless a KL term is on. They
    count in the denominator, which is the weighted number of tokens (or sequences) in the loss of
    the whole update. The balance loss is a mean over tokens with a gradient, so its weight does not
    depend on their number. The gradient of each share is summed separately, so one process with two
    shares and two processes with one share each are bit-identical.

    Args:
        kl_coef: used instead of rl.loss.kl_coef if a callback has set it.

    Returns:
        Metrics summed over ranks. `trained_share` is 0 if no trajectory of any rank has a gradient.
    """
    switches = loss_config(config, kl_coef)
    shares = select_learning_tokens(shares, "mini", config, ranks)
    shares = [_select_by_micro_batch(share, switches, config) for share in shares]
    counted = [_count(share, switches) for share in shares]
    counts = ranks.sum({name: sum(c[name] for c in counted) for name in COUNTED})
    per = "tokens" if switches.aggregate == "token" else "sequences"
    denominator = max(counts[per], 1.0)
    sums, gap_max, total = dict.fromkeys(SUMMED, 0.0), 0.0, None
    for share in shares:
        model.zero_grad(set_to_none=True)
        of_share, gap = _accumulate(model, share, denominator, counts["live"], switches, config)
        sums = {name: value + of_share[name] for name, value in sums.items()}
        gap_max = max(gap_max, gap)
        own = gradients(model)
        total = own if total is None else [a + b for a, b in zip(total, own)]
    for parameter, gradient in zip(trained_parameters(model), total):
        parameter.grad = gradient
    return _metrics(ranks.sum(sums), counts, max(ranks.gather([gap_max])), config)


def _count(share: RolloutBatch, switches: LossConfig) -> dict:
    """Count the tokens and sequences in the loss, the tokens with a gradient, and all sampled
    ones.
    """
    kept = _kept_tokens(share, switches)
    counted = kept
    if switches.denominator == "all":
        counted = [_sampled(t) for t in share.trajectories]
    weighed = _weighed(share)
    weights = share.weights_N.tolist()
    return {
        "tokens": float(sum(weights[i] * counted[i] for i in weighed)),
        "sequences": float(sum(weights[i] * (counted[i] > 0) for i in weighed)),
        "in_loss": float(sum(counted[i] for i in weighed)),
        "learning": float(sum(kept[i] for i in weighed)),
        "live": float(sum(_sampled(share.trajectories[i]) for i in _live(share, switches))),
        "sampled": float(sum(map(_sampled, share.trajectories))),
    }


def _sampled(trajectory: Trajectory) -> int:
    """Return the number of generated tokens."""
    return int(trajectory.generated.sum())


def _weighed(share: RolloutBatch) -> list[int]:
    """Return the indices of the trajectories with a loss weight."""
    weights = share.weights_N.tolist()
    return [i for i, t in enumerate(share.trajectories) if weights[i] > 0 and _sampled(t)]


def _live(share: RolloutBatch, switches: LossConfig) -> list[int]:
    """Return the indices of the trajectories with a gradient: a non-zero advantage or a KL term."""
    return [i for i in _weighed(share) if share.advantages_N[i] != 0 or switches.kl_coef > 0]


def _accumulate(
    model,
    share: RolloutBatch,
    denominator: float,
    live_tokens: float,
    switches: LossConfig,
    config: Config,
) -> tuple[dict, float]:
    """Add the gradient of a share to the model's; return (sums for the metrics, largest gap).

    Args:
        live_tokens: tokens with a gradient in the whole update, over all ranks.
    """
    sums, gap_max = dict.fromkeys(SUMMED, 0.0), 0.0
    for batch in _batches(share.trajectories, _live(share, switches), config):
        loss, balance, gap, metrics = batch_loss(
            model, share.of(batch), denominator, switches, config
        )
        n = gap.numel()
        (loss + config.trainer.balance_coef * (n / live_tokens) * balance).backward()
        gap_max = max(gap_max, float(gap.max()))
        sums["loss"] += loss.item()
        sums["gap"] += gap.sum().item()
        sums["scored"] += n
        sums["balance"] += balance.item() * n
        for name in ("rerouted", *LOGGED):
            sums[name] += metrics.get(name, 0.0) * n
    return sums, gap_max


def _batches(trajectories: Sequence[Trajectory], some: Iterable[int], config: Config) -> Iterator:
    """Yield micro-batches of the given indices; samples with the same prompt are adjacent."""
    of_prompt: dict[bytes, list[int]] = {}
    for i in some:
        of_prompt.setdefault(_prompt_ids(trajectories[i]).tobytes(), []).append(i)
    order = [i for indices in of_prompt.values() for i in indices]
    return split_micro_batches(order, trajectories, micro_batch_tokens(config))


def micro_batch_tokens(config: Config) -> int:
    """Return the tokens of a micro-batch of the local learner."""
    whole = MICRO_BATCH_CONTEXTS * config.rollout.max_context_tokens
    return config.trainer.micro_batch_tokens or whole


def _prompt_ids(trajectory: Trajectory) -> np.ndarray:
    """Return the tokens before the first generated one."""
    generated = trajectory.generated
    return trajectory.token_ids[: int(generated.argmax()) if generated.any() else len(generated)]


def _select_by_micro_batch(
    share: RolloutBatch, switches: LossConfig, config: Config
) -> RolloutBatch:
    """Select the tokens in the loss within each micro-batch, if rl.loss.entropy_scope is "micro".

    Trajectories without gradient are in no micro-batch, but their tokens count in the denominator.
    They are divided into batches in the same way.
    """
    if switches.top_entropy == 1 or config.rl.loss.entropy_scope != "micro":
        return share
    live = _live(share, switches)
    dead = sorted({*_weighed(share)} - {*live})
    learning = [np.zeros(len(t), bool) for t in share.trajectories]
    for some in (live, dead):
        for batch in _batches(share.trajectories, some, config):
            masks = learning_tokens(share.of(batch), config)
            for i, mask in zip(batch, masks):
                learning[i] = mask
    return replace(share, learning=learning)


def _kept_tokens(share: RolloutBatch, switches: LossConfig) -> list[int]:
    """Count the generated tokens of each trajectory that remain in the loss."""
    selects = switches.correction != "none" or switches.top_entropy < 1
    if not selects or not share.trajectories:
        return [_sampled(t) for t in share.trajectories]

    def padded(values: Sequence[np.ndarray]) -> Tensor:
        return pad_sequence([torch.as_tensor(v) for v in values], batch_first=True)

    kept_BT = kept_tokens(
        padded([t.generated for t in share.trajectories]),
        switches,
        behaviour_logp_BT=padded([t.logprobs for t in share.trajectories]),
        old_logp_BT=padded(share.recorded["old"]) if "old" in share.recorded else None,
        learning_BT=None if share.learning is None else padded(share.learning),
    )
    return kept_BT.sum(dim=1).tolist()


def _metrics(sums: dict, counts: dict, gap_max: float, config: Config) -> dict:
    scored, tokens = max(sums["scored"], 1.0), counts["in_loss"]
    row = {
        "loss": sums["loss"],
        "logp_gap": sums["gap"] / scored,
        "logp_gap_max": gap_max,
        "balance": sums["balance"] / scored,
        "tokens": int(max(tokens, 1.0)),
        "trained_share": sums["scored"] / max(tokens, 1.0),
        "excluded_tokens": 1.0 - tokens / max(counts["sampled"], 1.0),
    }
    if config.rl.loss.top_entropy < 1:
        row["learning_tokens"] = int(counts["learning"])
    if config.rl.off_policy.routing_replay != "none":
        row["rerouted"] = sums["rerouted"] / scored
    if is_off_policy(config) or config.rl.loss.kl_coef > 0:
        row |= {name: sums[name] / scored for name in LOGGED}
        row["ess"] = row["weight_mean"] ** 2 / max(row["weight_square_mean"], 1e-30)
    return row


def batch_loss(
    model,
    share: RolloutBatch,
    denominator: float,
    switches: LossConfig,
    config: Config,
):
    """Return (policy loss, balance loss, |log-prob gap to engine| per scored token, metrics)."""
    is_full = share.teachers is not None and config.distill.loss == "full"
    tokens, scored, rerouted = _score(model, share.trajectories, config, share.routes, is_full)
    at_BT, mask_BT = _layout(tokens, scored, config)

    def laid_out(values: Sequence, dtype: torch.dtype = torch.float32) -> Tensor:
        return tokens.spread(values, dtype)[scored.at_M][at_BT]

    behaviour_BT = laid_out([t.logprobs for t in share.trajectories])
    logp_BT = scored.logp_M[at_BT]
    gap_BT = (logp_BT.detach() - behaviour_BT).abs()
    if is_full:
        teacher_MV = _score_by_teachers(share, config, full=True)
        loss = full_distillation_loss(scored.logits_MV, teacher_MV, denominator)
        return loss, scored.balance, gap_BT[mask_BT], {"rerouted": rerouted}
    if share.teachers is None:
        compute_loss, target_BT = policy_loss, laid_out(share.advantages_N.tolist())
    else:
        compute_loss, target_BT = distillation_loss, _score_by_teachers(share, config)[at_BT]
    loss, metrics = compute_loss(
        logp_BT,
        behaviour_BT if is_off_policy(config) else logp_BT.detach(),
        target_BT,
        mask_BT,
        switches,
        weights_B=laid_out(share.weights_N.tolist())[:, 0],  # of a row's owner
        learning_BT=None if share.learning is None else laid_out(share.learning, torch.bool),
        denominator=denominator,
        **{f"{name}_logp_BT": laid_out(values) for name, values in share.recorded.items()},
    )
    return loss, scored.balance, gap_BT[mask_BT], metrics | {"rerouted": rerouted}


def _score(
    model,
    chosen: list[Trajectory],
    config: Config,
    routes: Routes | None = None,
    keep_logits: bool = False,
) -> tuple[PackedBatch, Scored, float]:
    """Return (all tokens, scored tokens, share of tokens rerouted by `routes`)."""
    prompts = prompts_in_common(chosen, [len(_prompt_ids(t)) for t in chosen], routes)
    tokens = PackedBatch.pack([t.token_ids for t in chosen], prompts)
    mask_N = tokens.spread([t.generated for t in chosen], torch.bool)
    with PackedReplay(model, tokens, routes) as replay:
        scored = score(
            model,
            tokens,
            mask_N,
            config.rl.temperature,
            config.rl.loss.chunked_logprobs,
            config.model.dtype,
            keep_logits,
        )
    return tokens, scored, replay.rerouted


@torch.no_grad()
def _score_by_teachers(share: RolloutBatch, config: Config, full: bool = False) -> Tensor:
    """Return the teachers' log-probabilities [M] of the scored tokens, or their logits [M, V]."""
    found: list = [None] * len(share.trajectories)
    for teacher in dict.fromkeys(share.teachers or ()):
        mine = [i for i, other in enumerate(share.teachers or ()) if other is teacher]
        some = [share.trajectories[i] for i in mine]
        _, scored, _ = _score(teacher, some, config, keep_logits=full)
        values = scored.logits_MV if full else scored.logp_M
        for i, part in zip(mine, values.split([_sampled(t) for t in some])):
            found[i] = part
    return torch.cat(found)


def _layout(tokens: PackedBatch, scored: Scored, config: Config) -> tuple[Tensor, Tensor]:
    """Return (index into the M scored tokens [B, T], mask [B, T]).

    A row is one sample, or one token (no padding) if nothing in the loss is computed per sequence.
    """
    loss = config.rl.loss
    by_token = loss.level == loss.aggregate == loss.correction_level == "token"
    if by_token and loss.correction != "geometric":
        alone = torch.arange(scored.logp_M.numel())[:, None]
        return alone, torch.ones_like(alone, dtype=torch.bool)
    owner_M = tokens.spread(range(len(tokens.lengths)), torch.long)[scored.at_M]
    lengths_B = torch.bincount(owner_M, minlength=len(tokens.lengths))
    in_order = torch.arange(len(owner_M)).split(lengths_B.tolist())
    at_BT = pad_sequence(in_order, batch_first=True)
    return at_BT, torch.arange(at_BT.size(1))[None] < lengths_B[:, None]


def split_micro_batches(
    order: list[int], trajectories: Sequence[Trajectory], limit: int
) -> Iterator:
    """Split `order` into lists of at most `limit` tokens, at least one trajectory each.

    A prompt shared within a list is counted once.
    """
    chosen: list[int] = []
    prompts: set[bytes] = set()  # of the chosen
    total = 0
    for i in order:
        prompt_ids = _prompt_ids(trajectories[i])
        whole = len(trajectories[i])
        added = whole - len(prompt_ids) if prompt_ids.tobytes() in prompts else whole
        if chosen and total + added > limit:
            yield chosen
            chosen = []
            prompts = set()
            total = 0
            added = whole
        chosen.append(i)
        prompts.add(prompt_ids.tobytes())
        total += added
    if chosen:
        yield chosen


# ------------------------------------------------- token selection (80/20 rule, arXiv 2506.01939)


def select_learning_tokens(
    shares: Sequence[RolloutBatch], scope: str, config: Config, ranks: Ranks
) -> list[RolloutBatch]:
    """Return the shares with masks of the tokens in the loss, if rl.loss.entropy_scope is `scope`.

    Args:
        ranks: the scopes "batch" and "mini" compare the tokens of all ranks.
    """
    if config.rl.loss.top_entropy == 1 or config.rl.loss.entropy_scope != scope:
        return list(shares)
    parts = ranks.gather_parts([_token_scores(share, config) for share in shares])
    flat = [score for part in parts for share in part for score in share]
    before = sum(len(share) for part in parts[: ranks.rank] for share in part)
    chosen = mark_top_share(flat, config.rl.loss.top_entropy)
    found = []
    for share in shares:
        n = len(share.trajectories)
        found.append(replace(share, learning=_laid_out(share, chosen[before : before + n])))
        before += n
    return found


def learning_tokens(share: RolloutBatch, config: Config) -> list[np.ndarray]:
    """Return the masks of tokens in the loss, chosen in this share: bool [T] per trajectory."""
    return _laid_out(
        share, mark_top_share(_token_scores(share, config), config.rl.loss.top_entropy)
    )


def mark_top_share(scores: Sequence[np.ndarray], share: float) -> list[np.ndarray]:
    """Return masks, bool [T] per sequence, of the highest `share` of all scores.

    Exactly ceil(share * n) of n scores are marked; ties go to the earlier one.
    """
    lengths = [len(score) for score in scores]
    if not sum(lengths):
        return [np.zeros(0, bool) for _ in scores]
    flat_1M = torch.from_numpy(np.concatenate(scores))[None]
    mask_1M = top_entropy_mask(flat_1M, torch.ones_like(flat_1M, dtype=torch.bool), share)
    return np.split(mask_1M[0].numpy(), np.cumsum(lengths)[:-1])


def _token_scores(share: RolloutBatch, config: Config) -> list[np.ndarray]:
    """Return one score per generated token of each trajectory; none if its loss weight is 0."""
    weights = share.weights_N.tolist()
    nothing = np.zeros(0, np.float32)
    return [
        _token_score(trajectory, config) if weight > 0 else nothing
        for trajectory, weight in zip(share.trajectories, weights)
    ]


def _token_score(trajectory: Trajectory, config: Config) -> np.ndarray:
    """Return the values that are compared: entropies, negated entropies or random numbers."""
    entropies = trajectory.entropies[trajectory.generated]
    if config.rl.loss.entropy_tokens == "bottom":
        return -entropies
    if config.rl.loss.entropy_tokens == "random":
        key = hashlib.sha256(f"tokens-{config.seed}-{trajectory.id}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(key[:8], "little"))
        return rng.random(len(entropies), np.float32)
    return entropies


def _laid_out(share: RolloutBatch, chosen: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Expand masks of generated tokens to masks of all tokens, bool [T] per trajectory."""
    found = []
    for trajectory, some in zip(share.trajectories, chosen):
        mask = np.zeros(len(trajectory), bool)
        if len(some):
            mask[trajectory.generated] = some
        found.append(mask)
    return found


# ---------------------------------------------------------------- settings


def loss_config(config: Config, kl_coef: float | None = None) -> LossConfig:
    """Build the loss described by rl.loss; `kl_coef` replaces the setting if a callback set it."""
    loss = config.rl.loss
    bounds = (loss.correction_low, loss.correction_high)
    return LossConfig(
        clip=loss.clip,
        level=loss.level,
        aggregate=loss.aggregate,
        epsilon_low=loss.epsilon_low,
        epsilon_high=loss.epsilon_high,
        correction=loss.correction,
        correction_level=loss.correction_level,
        kl_coef=loss.kl_coef if kl_coef is None else kl_coef,
        kl_estimator=loss.kl_estimator,
        kl_unbiased=loss.kl_unbiased,
        top_entropy=loss.top_entropy,
        correction_bounds=bounds if any(bounds) else None,
        constant_tokens=config.rollout.max_context_tokens if loss.aggregate == "constant" else None,
        denominator=loss.denominator,
    )


def is_off_policy(config: Config) -> bool:
    """Return True if the trained policy may differ from the one that sampled."""
    off_policy = config.rl.off_policy
    older = off_policy.staleness > 0 or off_policy.replay_groups > 0 or bool(off_policy.rollouts)
    older = older or (config.rl.asynchronous.actors > 0 and config.rl.asynchronous.max_lag > 0)
    return config.rl.minibatches > 1 or older or off_policy.engine_dtype != "float32"


def check_loss(config: Config) -> None:
    """Raise ValueError for loss settings without effect or in conflict."""
    loss = config.rl.loss
    require(config.rl.minibatches >= 1, "rl.minibatches must be at least 1")
    require(
        is_off_policy(config) or loss.correction == "none",
        f'rl.loss.correction="{loss.correction}" has no effect if engine and trainer are equal: '
        "set "
        "rl.off_policy.engine_dtype, rl.off_policy.staleness, rl.minibatches or "
        "rl.off_policy.replay_groups too",
    )
    require_within(loss.top_entropy, "(0, 1]", "rl.loss.top_entropy")
    selects = loss.top_entropy < 1
    require(
        selects or loss.entropy_tokens == "top",
        f'rl.loss.entropy_tokens="{loss.entropy_tokens}" needs a share: set rl.loss.top_entropy',
    )
    require(
        selects or loss.correction != "none" or loss.denominator == "kept",
        'rl.loss.denominator="all" counts tokens dropped by rl.loss.top_entropy or '
        "rl.loss.correction: set one of them",
    )
    require(
        loss.kl_coef > 0 or (loss.kl_estimator == "k3" and not loss.kl_unbiased),
        "rl.loss.kl_estimator and kl_unbiased belong to the KL term: set rl.loss.kl_coef too",
    )
    loss_config(config)  # checks the values of the loss itself
