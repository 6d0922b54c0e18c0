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

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drlib.checks import require
from drlib.config import Config
from drlib.rl.losses import LossConfig, kept_tokens, policy_loss
from drlib.training.batches import FILL, Rows, Scored, pack, portions, score, spread
from drlib.training.run import Ranks
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
# Log-probabilities under other policies ("old", "reference"), one array [T] a trajectory.
Recorded = dict[str, list[np.ndarray]]


def select(recorded: Recorded, some: list[int]) -> Recorded:
    """Those of the trajectories with these indices."""
    return {name: [values[i] for i in some] for name, values in recorded.items()}


def check_switches(config: Config) -> None:
    """ValueError for switches that would do nothing, or something else, without each other."""
    differ = off_policy(config) or config.rl_correction == "none"
    require(
        differ,
        f'rl_correction="{config.rl_correction}" compares the trainer with an engine '
        "that differs: set rl_engine, rl_staleness or rl_minibatches too",
    )
    for name in ("rl_minibatches", "rl_oversample"):
        require(getattr(config, name) >= 1, f"{name} must be at least 1")
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


def learn(
    model,
    trajectories: list[Trajectory],
    advantages,
    weights,
    config: Config,
    ranks: Ranks,
    pad_id: int,
    recorded: Recorded | None = None,
) -> dict:
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
    counts = ranks.sum(
        {
            "tokens": float(sum(kept[i] for i in weighed)),
            "sequences": float(sum(kept[i] > 0 for i in weighed)),
            "sampled": float(sum(sampled)),
        }
    )
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
        new = {
            "loss": loss.item(),
            "gap": gap.sum().item(),
            "scored": n,
            "balance": balance.item(),
            "batches": 1,
        }
        new |= {name: metrics.get(name, 0.0) * n for name in LOGGED}
        sums = {name: total + new[name] for name, total in sums.items()}
    return _metrics(ranks.sum(sums), counts, gap_max, config)


def _kept_tokens(trajectories: list[Trajectory], recorded: Recorded, switches) -> list[int]:
    """The generated tokens of each that stay in the loss: a correction may drop some."""
    if switches.correction == "none":
        return [int(t.generated.sum()) for t in trajectories]
    found = [t.generated for t in trajectories], [t.logprobs for t in trajectories], recorded["old"]
    mask_BT, behaviour_BT, old_BT = (
        pad_sequence([torch.as_tensor(of_one) for of_one in kind], batch_first=True)
        for kind in found
    )
    kept_BT = kept_tokens(mask_BT, switches, behaviour_logp_BT=behaviour_BT, old_logp_BT=old_BT)
    return kept_BT.sum(dim=1).tolist()


def _metrics(sums: dict, counts: dict, gap_max: float, config: Config) -> dict:
    scored, tokens = max(sums["scored"], 1.0), counts["tokens"]
    row = {
        "loss": sums["loss"],
        "logp_gap": sums["gap"] / scored,
        "logp_gap_max_rank0": gap_max,
        "balance": sums["balance"] / max(sums["batches"], 1.0),
        "tokens": int(max(tokens, 1.0)),
        "trained_share": sums["scored"] / max(tokens, 1.0),
        "excluded_tokens": 1.0 - tokens / max(counts["sampled"], 1.0),
    }
    if off_policy(config) or config.rl_kl_coef > 0:
        row |= {name: sums[name] / scored for name in LOGGED}
        row["ess"] = row["weight_mean"] ** 2 / max(row["weight_square_mean"], 1e-30)
    return row


def batch_loss(
    model,
    chosen: list[Trajectory],
    advantages: list[float],
    denominator: float,
    config: Config,
    pad_id: int,
    recorded: Recorded,
):
    """(policy loss, balance loss, |log-prob gap to the engine| of each scored token, metrics)."""
    rows, scored = _score(model, chosen, config, pad_id)
    at_BT, mask_BT = _layout(rows, scored, config)

    def laid_out(values: Sequence) -> Tensor:
        return spread(rows, values, torch.float32)[scored.at][at_BT]

    behaviour_BT = laid_out([t.logprobs for t in chosen])
    logp_BT = scored.logp_M[at_BT]
    gap_BT = (logp_BT.detach() - behaviour_BT).abs()
    loss, metrics = policy_loss(
        logp_BT,
        behaviour_BT if off_policy(config) else logp_BT.detach(),
        laid_out(advantages),
        mask_BT,
        loss_config(config),
        denominator=denominator,
        **{f"{name}_logp_BT": laid_out(values) for name, values in recorded.items()},
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
