"""From rewarded rollouts to the gradient of one policy update: packing, log-probabilities, loss.

`drlib.rl.losses` knows tensors of log-probabilities; this file makes them from trajectories and
a model. Rollouts lie in packed rows, micro-batch by micro-batch, and one denominator for the whole
update makes the parts add up to the gradient of the whole, on any number of processes.

Three log-probabilities of a token meet here: the trainer's now (it has the gradient), the
trainer's before the first update of the batch (`old`), and what the engine recorded when it
sampled (`behaviour`). In the recipe all three are equal, every batch being used once by the policy
that sampled it; then the ratio is 1 by construction and nothing else is computed. The switches that
make them differ (`off_policy`) turn on what they need.

Left out: token selection by entropy (the loss has it; a packed micro-batch is no batch to rank in).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drlib.config import Config
from drlib.rl.checks import require
from drlib.rl.losses import LossConfig, kept_tokens, policy_loss
from drlib.training.batches import Rows, Scored, pack, score, spread
from drlib.training.run import Ranks
from drlib.trajectory import Trajectory

MICRO_BATCH_ROWS = 6
FILL = 0.93  # how full first-fit packing gets a row
LOGGED = ("clip_high", "clip_low", "ratio_mean", "weight_mean", "weight_square_mean", "mismatch_kl",
          "dropped_correction", "kl")  # fmt: skip


# Log-probabilities under other policies ("old", "reference"), one array [T] a trajectory.
Recorded = dict[str, list[np.ndarray]]


def select(recorded: Recorded, some: list[int]) -> Recorded:
    """Those of the trajectories with these indices."""
    return {name: [values[i] for i in some] for name, values in recorded.items()}


def check_switches(config: Config) -> None:
    """ValueError for switches that would do nothing, or something else, without each other."""
    moved = off_policy(config) or config.rl_correction == "none"
    require(moved, f'rl_correction="{config.rl_correction}" compares the trainer with an engine '
            "that differs: set rl_engine, rl_staleness or rl_minibatches too")  # fmt: skip
    least = min(config.rl_minibatches, config.rl_oversample)
    require(least >= 1, "rl_minibatches and rl_oversample must be at least 1")
    paired = (config.rl_oversample > 1) == (config.rl_resample != "none")
    require(paired, "rl_oversample (from 2) and rl_resample go together")
    loss_config(config)


def loss_config(config: Config) -> LossConfig:
    """The loss that the `rl_` switches describe."""
    constant = config.max_context_tokens if config.rl_aggregate == "constant" else None
    return LossConfig(
        clip=config.rl_clip, level=config.rl_level, aggregate=config.rl_aggregate,
        epsilon_low=config.rl_epsilon_low, epsilon_high=config.rl_epsilon_high,
        constant_tokens=constant, correction=config.rl_correction, kl_coef=config.rl_kl_coef,
    )  # fmt: skip


def off_policy(config: Config) -> bool:
    """Whether the policy that learns may differ from the one that sampled."""
    return config.rl_minibatches > 1 or config.rl_staleness > 0 or config.rl_engine != "float32"


def record(model, trajectories: Sequence[Trajectory], config: Config, pad_id: int) -> list:
    """Log-probabilities of the generated tokens under `model`, as `Trajectory.logprobs`."""
    found: list = [None] * len(trajectories)
    order = sorted(range(len(trajectories)), key=lambda i: len(trajectories[i].token_ids))
    model.eval()
    for batch in micro_batches(order, trajectories, config.max_context_tokens):
        chosen = [trajectories[i] for i in batch]
        rows, mask_RT = _packed(chosen, pad_id)
        with torch.no_grad():
            scored = score(model, rows, mask_RT, config.rl_temperature)
        logp_RT = torch.zeros(rows.ids_RT.shape)
        logp_RT[scored.at] = scored.logp_M
        for i, (row, at, n) in zip(batch, rows.where):
            found[i] = logp_RT[row, at : at + n].numpy()
    return found


def learn(
    model, trajectories: list[Trajectory], advantages, weights, config: Config, ranks: Ranks,
    pad_id: int, recorded: Recorded | None = None,
) -> dict:  # fmt: skip
    """Accumulate the gradient of one update's loss; returns its metrics (summed over ranks).

    Trajectories with advantage 0 have no gradient and are not run through the model (unless a KL
    term gives them one), but they count in the denominator: it is one number for the whole update,
    of the tokens (or sequences) with weight 1 that no correction drops. Weights are 0 or 1.
    """
    switches, recorded = loss_config(config), recorded or {}
    require(set(weights.tolist()) <= {0.0, 1.0}, "learn takes loss weights of 0 and 1 only")
    sampled = [int(t.generated.sum()) for t in trajectories]
    weighed = [i for i, w in enumerate(weights.tolist()) if w > 0 and sampled[i]]
    kept = _kept_tokens(trajectories, recorded, switches)
    counts = ranks.sum({
        "tokens": float(sum(kept[i] for i in weighed)),
        "sequences": float(sum(kept[i] > 0 for i in weighed)), "sampled": float(sum(sampled)),
    })  # fmt: skip
    denominator = max(counts["tokens" if switches.aggregate == "token" else "sequences"], 1.0)
    live = [i for i in weighed if advantages[i] != 0 or switches.kl_coef > 0]
    live.sort(key=lambda i: len(trajectories[i].token_ids))
    sums = dict.fromkeys(("loss", "gap", "scored", "balance", "batches", *LOGGED), 0.0)
    gap_max = 0.0
    for batch in micro_batches(live, trajectories, config.max_context_tokens):
        chosen, of_each = [trajectories[i] for i in batch], advantages[batch].tolist()
        loss, balance, gap, metrics = batch_loss(
            model, chosen, of_each, denominator, config, pad_id, select(recorded, batch)
        )
        n, gap_max = gap.numel(), max(gap_max, float(gap.max()))
        share = n / max(counts["tokens"], 1.0)
        (loss + config.balance_coef * share * balance).backward()
        new = {"loss": loss.item(), "gap": gap.sum().item(), "scored": n,
               "balance": balance.item(), "batches": 1}  # fmt: skip
        new |= {name: metrics.get(name, 0.0) * n for name in LOGGED}
        sums = {name: total + new[name] for name, total in sums.items()}
    return _metrics(ranks.sum(sums), counts, gap_max, config)


def _kept_tokens(
    trajectories: list[Trajectory], recorded: Recorded, switches: LossConfig
) -> list[int]:
    """The generated tokens of each that stay in the loss: a correction may drop some."""
    if switches.correction == "none":
        return [int(t.generated.sum()) for t in trajectories]

    def padded(arrays: list[np.ndarray]) -> Tensor:
        return pad_sequence([torch.as_tensor(a) for a in arrays], batch_first=True)

    return kept_tokens(
        padded([t.generated for t in trajectories]), switches,
        behaviour_logp_BT=padded([t.logprobs for t in trajectories]),
        old_logp_BT=padded(recorded["old"]),
    ).sum(dim=1).tolist()  # fmt: skip


def _metrics(sums: dict, counts: dict, gap_max: float, config: Config) -> dict:
    scored, tokens = max(sums["scored"], 1.0), counts["tokens"]
    row = {
        "loss": sums["loss"], "logp_gap": sums["gap"] / scored, "logp_gap_max_rank0": gap_max,
        "balance": sums["balance"] / max(sums["batches"], 1.0), "tokens": int(max(tokens, 1.0)),
        "trained_share": sums["scored"] / max(tokens, 1.0),
        "excluded_tokens": 1.0 - tokens / max(counts["sampled"], 1.0),
    }  # fmt: skip
    if off_policy(config) or config.rl_kl_coef > 0:
        row |= {name: sums[name] / scored for name in LOGGED}
        row["ess"] = row["weight_mean"] ** 2 / max(row["weight_square_mean"], 1e-30)
    return row


def batch_loss(
    model, chosen: list[Trajectory], advantages: list[float], denominator: float, config: Config,
    pad_id: int, recorded: Recorded,
):  # fmt: skip
    """(policy loss, balance loss, |log-prob gap to the engine| of each scored token, metrics)."""
    rows, mask_RT = _packed(chosen, pad_id)
    scored = score(model, rows, mask_RT, config.rl_temperature)
    at_BT, mask_BT = _layout(rows, scored, config)

    def laid_out(values: Sequence[np.ndarray]) -> Tensor:
        return spread(rows, values, torch.float32)[scored.at][at_BT]

    behaviour_BT = laid_out([t.logprobs for t in chosen])
    logp_BT = scored.logp_M[at_BT]
    gap_BT = (logp_BT.detach() - behaviour_BT).abs()
    advantage_BT = laid_out([np.full(len(t.token_ids), a) for a, t in zip(advantages, chosen)])
    loss, metrics = policy_loss(
        logp_BT, behaviour_BT if off_policy(config) else logp_BT.detach(), advantage_BT, mask_BT,
        loss_config(config), denominator=denominator,
        **{f"{name}_logp_BT": laid_out(values) for name, values in recorded.items()},
    )  # fmt: skip
    return loss, scored.balance, gap_BT[mask_BT], metrics


def _packed(chosen: list[Trajectory], pad_id: int) -> tuple[Rows, Tensor]:
    """(rows as wide as the longest, mask [R, T] of the generated tokens).

    Micro-batches hold trajectories of about one length, and attention's cost grows with the width.
    """
    rows = pack([t.token_ids for t in chosen], max(map(len, chosen)), pad_id)
    return rows, spread(rows, [t.generated for t in chosen], torch.bool)


def _layout(rows: Rows, scored: Scored, config: Config) -> tuple[Tensor, Tensor]:
    """(index into the M scored tokens [B, T], mask [B, T]): one trajectory a row, or one token.

    Where no ratio, mean or correction runs over a sequence, tokens may stand alone: no padding.
    """
    n_tokens = scored.logp_M.numel()
    if config.rl_level == config.rl_aggregate == "token" and config.rl_correction != "geometric":
        alone = torch.arange(n_tokens)[:, None]
        return alone, torch.ones_like(alone, dtype=torch.bool)
    numbers = [np.full(n, i) for i, (_, _, n) in enumerate(rows.where)]
    owner_M = spread(rows, numbers, torch.long)[scored.at]
    order = torch.argsort(owner_M, stable=True)  # a trajectory's tokens already stand in order
    lengths = torch.bincount(owner_M, minlength=len(rows.where))
    at_BT = pad_sequence(order.split(lengths.tolist()), batch_first=True)
    return at_BT, torch.arange(at_BT.size(1))[None] < lengths[:, None]


def micro_batches(order: list[int], trajectories: Sequence[Trajectory], width: int) -> Iterator:
    """Runs of `order` that fill about MICRO_BATCH_ROWS rows."""
    batch, total = [], 0
    for i in order:
        n = len(trajectories[i].token_ids)
        if batch and total + n > MICRO_BATCH_ROWS * width * FILL:
            yield batch
            batch, total = [], 0
        batch.append(i)
        total += n
    if batch:
        yield batch
