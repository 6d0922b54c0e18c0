"""From rewarded rollouts to the gradient of one policy update: packing, log-probabilities, loss.

Rollouts lie in packed rows, micro-batch by micro-batch, and one denominator for the whole update
makes the parts add up to the gradient of the whole, on any number of processes.

Three log-probabilities of a token meet here: the trainer's now (it has the gradient), the
trainer's before the first update of the batch (`old`), and what the engine recorded when it
sampled (`behaviour`). In the recipe all three are equal, every batch being used once by the policy
that sampled it; then the ratio is 1 by construction and nothing else is computed. The switches that
make them differ (`off_policy`) turn on what they need.

Left out: token selection by entropy (the loss has it; a packed micro-batch is no batch to rank in).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drlib.checks import require
from drlib.config import Config
from drlib.rl.losses import LossConfig, kept_tokens, policy_loss
from drlib.training.batches import FILL, Rows, Scored, pack, portions, score, spread
from drlib.training.ranks import Ranks, gradients
from drlib.trajectory import Trajectory

MICRO_BATCH_ROWS = 6
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
COUNTED = ("tokens", "sequences", "live", "sampled")
SUMMED = ("loss", "gap", "scored", "balance", *LOGGED)
# Log-probabilities under other policies ("old", "reference"), one array [T] a trajectory.
Recorded = dict[str, list[np.ndarray]]


def check_switches(config: Config) -> None:
    """ValueError for switches that would do nothing, or something else, without each other."""
    differ = off_policy(config) or config.rl_correction == "none"
    require(
        differ,
        f'rl_correction="{config.rl_correction}" compares the trainer with an engine '
        "that differs: set rl_engine, rl_staleness or rl_minibatches too",
    )
    for name in ("rl_minibatches", "rl_oversample", "rl_sample_multiple"):
        require(getattr(config, name) >= 1, f"{name} must be at least 1")
    require(
        config.rl_temperature > 0,
        "rl_temperature must be above 0: a greedy rollout has no probability to push up or down",
    )
    paired = config.rl_oversample == 1 if config.rl_resample == "none" else config.rl_oversample > 1
    require(paired, "rl_oversample (from 2) and rl_resample go together")
    loss_config(config)


def loss_config(config: Config) -> LossConfig:
    """The loss that the `rl_` switches describe."""
    names = ("clip", "level", "aggregate", "epsilon_low", "epsilon_high", "correction", "kl_coef")
    constant = config.max_context_tokens if config.rl_aggregate == "constant" else None
    return LossConfig(**{n: getattr(config, f"rl_{n}") for n in names}, constant_tokens=constant)


def off_policy(config: Config) -> bool:
    """Whether the policy that learns may differ from the one that sampled."""
    return config.rl_minibatches > 1 or config.rl_staleness > 0 or config.rl_engine != "float32"


@torch.no_grad()
def record(model, trajectories: Sequence[Trajectory], config: Config, pad_id: int) -> list:
    """Log-probabilities of the generated tokens under `model`, as `Trajectory.logprobs`."""
    found: list = [None] * len(trajectories)
    order = sorted(range(len(trajectories)), key=lambda i: len(trajectories[i]))
    model.eval()
    for batch in micro_batches(order, trajectories, config.max_context_tokens):
        rows, scored = _score(model, [trajectories[i] for i in batch], config, pad_id)
        logp_RT = torch.zeros(rows.ids_RT.shape)
        logp_RT[scored.at] = scored.logp_M
        for i, (row, at, n) in zip(batch, rows.where):
            found[i] = logp_RT[row, at : at + n].numpy()
    return found


@dataclass(frozen=True)
class Share:
    """One shard's share of an update: N trajectories, and what the loss needs of each."""

    trajectories: list[Trajectory]
    advantages_N: Tensor
    weights_N: Tensor  # 1 in the loss, 0 left out
    recorded: Recorded = field(default_factory=dict)

    def __post_init__(self):
        known = set(self.weights_N.tolist()) <= {0.0, 1.0}
        require(known, "an update takes loss weights of 0 and 1 only")

    def of(self, some: list[int]) -> "Share":
        """The trajectories with these indices."""
        return Share(
            [self.trajectories[i] for i in some],
            self.advantages_N[some],
            self.weights_N[some],
            {name: [values[i] for i in some] for name, values in self.recorded.items()},
        )


def learn(model, shares: Sequence[Share], config: Config, ranks: Ranks, pad_id: int) -> dict:
    """Leave the gradient of one update's loss, of this rank's `shares`, in the parameters.

    Returns the update's metrics, summed over ranks. `trained_share` is 0 where no trajectory of
    any rank has a gradient: then there is nothing to step by.

    Trajectories with advantage 0 have no gradient and are not run through the model (unless a KL
    term gives them one), but they count in the denominator: it is one number for the whole update,
    of the tokens (or sequences) with weight 1 that no correction drops. The balance loss is the
    mean over the tokens that are run through the model, so its weight does not depend on how many.

    Each share's gradient is summed by itself before the shares are added. So one process with two
    shares and two processes with one each reach the same bits.
    """
    switches = loss_config(config)
    counted = [_count(share, switches) for share in shares]
    counts = ranks.sum({name: sum(c[name] for c in counted) for name in COUNTED})
    per = "tokens" if switches.aggregate == "token" else "sequences"
    denominator = max(counts[per], 1.0)
    sums, gap_max, total = dict.fromkeys(SUMMED, 0.0), 0.0, None
    for share in shares:
        model.zero_grad(set_to_none=True)
        of_share, gap = _accumulate(model, share, denominator, counts["live"], config, pad_id)
        sums = {name: value + of_share[name] for name, value in sums.items()}
        gap_max = max(gap_max, gap)
        own = gradients(model)
        total = own if total is None else [a + b for a, b in zip(total, own)]
    for parameter, gradient in zip(model.parameters(), total):
        parameter.grad = gradient
    return _metrics(ranks.sum(sums), counts, max(ranks.gather([gap_max])), config)


def _count(share: Share, switches: LossConfig) -> dict:
    """Tokens and sequences in the loss, tokens with a gradient, and all that were sampled."""
    kept = _kept_tokens(share, switches)
    weighed = _weighed(share)
    return {
        "tokens": float(sum(kept[i] for i in weighed)),
        "sequences": float(sum(kept[i] > 0 for i in weighed)),
        "live": float(sum(_sampled(share.trajectories[i]) for i in _live(share, switches))),
        "sampled": float(sum(map(_sampled, share.trajectories))),
    }


def _sampled(trajectory: Trajectory) -> int:
    return int(trajectory.generated.sum())


def _weighed(share: Share) -> list[int]:
    """Indices of the trajectories in the loss."""
    weights = share.weights_N.tolist()
    return [i for i, t in enumerate(share.trajectories) if weights[i] > 0 and _sampled(t)]


def _live(share: Share, switches: LossConfig) -> list[int]:
    """Indices of those that have a gradient: an advantage, or a KL term."""
    return [i for i in _weighed(share) if share.advantages_N[i] != 0 or switches.kl_coef > 0]


def _accumulate(
    model, share: Share, denominator: float, live_tokens: float, config: Config, pad_id: int
) -> tuple[dict, float]:
    """Add the share's gradient to the model's; (sums for the metrics, largest gap).

    live_tokens: of the whole update, all ranks; each micro-batch's balance loss weighs by its part.
    """
    live = _live(share, loss_config(config))
    live.sort(key=lambda i: len(share.trajectories[i].token_ids))
    sums, gap_max = dict.fromkeys(SUMMED, 0.0), 0.0
    for batch in micro_batches(live, share.trajectories, config.max_context_tokens):
        loss, balance, gap, metrics = batch_loss(
            model, share.of(batch), denominator, config, pad_id
        )
        n = gap.numel()
        (loss + config.balance_coef * (n / live_tokens) * balance).backward()
        gap_max = max(gap_max, float(gap.max()))
        sums["loss"] += loss.item()
        sums["gap"] += gap.sum().item()
        sums["scored"] += n
        sums["balance"] += balance.item() * n
        for name in LOGGED:
            sums[name] += metrics.get(name, 0.0) * n
    return sums, gap_max


def _kept_tokens(share: Share, switches: LossConfig) -> list[int]:
    """The generated tokens of each that stay in the loss: a correction may drop some."""
    if switches.correction == "none" or not share.trajectories:
        return [_sampled(t) for t in share.trajectories]

    def padded(values: Sequence[np.ndarray]) -> Tensor:
        return pad_sequence([torch.as_tensor(v) for v in values], batch_first=True)

    kept_BT = kept_tokens(
        padded([t.generated for t in share.trajectories]),
        switches,
        behaviour_logp_BT=padded([t.logprobs for t in share.trajectories]),
        old_logp_BT=padded(share.recorded["old"]),
    )
    return kept_BT.sum(dim=1).tolist()


def _metrics(sums: dict, counts: dict, gap_max: float, config: Config) -> dict:
    scored, tokens = max(sums["scored"], 1.0), counts["tokens"]
    row = {
        "loss": sums["loss"],
        "logp_gap": sums["gap"] / scored,
        "logp_gap_max": gap_max,
        "balance": sums["balance"] / scored,
        "tokens": int(max(tokens, 1.0)),
        "trained_share": sums["scored"] / max(tokens, 1.0),
        "excluded_tokens": 1.0 - tokens / max(counts["sampled"], 1.0),
    }
    if off_policy(config) or config.rl_kl_coef > 0:
        row |= {name: sums[name] / scored for name in LOGGED}
        row["ess"] = row["weight_mean"] ** 2 / max(row["weight_square_mean"], 1e-30)
    return row


def batch_loss(model, share: Share, denominator: float, config: Config, pad_id: int):
    """(policy loss, balance loss, |log-prob gap to the engine| of each scored token, metrics)."""
    rows, scored = _score(model, share.trajectories, config, pad_id)
    at_BT, mask_BT = _layout(rows, scored, config)

    def laid_out(values: Sequence) -> Tensor:
        return spread(rows, values, torch.float32)[scored.at][at_BT]

    behaviour_BT = laid_out([t.logprobs for t in share.trajectories])
    logp_BT = scored.logp_M[at_BT]
    gap_BT = (logp_BT.detach() - behaviour_BT).abs()
    loss, metrics = policy_loss(
        logp_BT,
        behaviour_BT if off_policy(config) else logp_BT.detach(),
        laid_out(share.advantages_N.tolist()),
        mask_BT,
        loss_config(config),
        denominator=denominator,
        **{f"{name}_logp_BT": laid_out(values) for name, values in share.recorded.items()},
    )
    return loss, scored.balance, gap_BT[mask_BT], metrics


def _score(model, chosen: list[Trajectory], config: Config, pad_id: int) -> tuple[Rows, Scored]:
    """The generated tokens, in rows as wide as the longest: attention's cost grows with the width
    and micro-batches hold trajectories of about one length."""
    rows = pack([t.token_ids for t in chosen], max(map(len, chosen)), pad_id)
    mask_RT = spread(rows, [t.generated for t in chosen], torch.bool)
    return rows, score(model, rows, mask_RT, config.rl_temperature)


def _layout(rows: Rows, scored: Scored, config: Config) -> tuple[Tensor, Tensor]:
    """(index into the M scored tokens [B, T], mask [B, T]): one trajectory a row, or one token.

    Where no ratio, mean or correction runs over a sequence, tokens may stand alone: no padding.
    """
    if config.rl_level == config.rl_aggregate == "token" and config.rl_correction != "geometric":
        alone = torch.arange(scored.logp_M.numel())[:, None]
        return alone, torch.ones_like(alone, dtype=torch.bool)
    owner_M = spread(rows, range(len(rows.where)), torch.long)[scored.at]
    order = torch.argsort(owner_M, stable=True)  # a trajectory's tokens already stand in order
    lengths = torch.bincount(owner_M, minlength=len(rows.where))
    at_BT = pad_sequence(order.split(lengths.tolist()), batch_first=True)
    return at_BT, torch.arange(at_BT.size(1))[None] < lengths[:, None]


def micro_batches(order: list[int], trajectories: Sequence[Trajectory], width: int) -> Iterator:
    """Runs of `order` that fill about MICRO_BATCH_ROWS rows."""
    return portions(order, lambda i: len(trajectories[i]), MICRO_BATCH_ROWS * width * FILL)
