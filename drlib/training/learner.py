"""From rewarded rollouts to the gradient of one policy update: batches, log-probabilities, loss.

Rollouts lie end to end, micro-batch by micro-batch, and one denominator for the whole update
makes the parts add up to the gradient of the whole, on any number of processes.

Three log-probabilities of a token meet here: the trainer's now (it has the gradient), the
trainer's before the first update of the batch (`old`), and what the engine recorded when it
sampled (`behaviour`). In the recipe all three are equal, every batch being used once by the policy
that sampled it; then the ratio is 1 by construction and nothing else is computed. The switches that
make them differ (`off_policy`) turn on what they need.

Which tokens learn is chosen before (`drlib.training.token_choice`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from drlib.config import Config
from drlib.models.routing_replay import record_routes
from drlib.rl.losses import LossConfig, kept_tokens, policy_loss
from drlib.training.packing import Flat, Scored, score
from drlib.training.flat_routes import FlatReplay, Routes, of_samples, prompts_in_common
from drlib.training.distributed import Ranks, gradients
from drlib.training.switches import loss_config, off_policy
from drlib.training.token_choice import choosing_tokens, learning_tokens
from drlib.trajectory import Trajectory
from drlib.validation import require

MICRO_BATCH_CONTEXTS = 6  # a micro-batch holds as many tokens as so many full contexts
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
# Log-probabilities under other policies ("old", "reference"), one array [T] a trajectory.
Recorded = dict[str, list[np.ndarray]]


@torch.no_grad()
def record(
    model,
    trajectories: Sequence[Trajectory],
    config: Config,
    routes: Routes | None = None,
) -> list:
    """Log-probabilities of the generated tokens under `model`, as `Trajectory.logprobs`; with
    `routes` its tokens go where they say."""
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
def chosen_routes(model, trajectories: Sequence[Trajectory], config: Config) -> Routes:
    """The experts that `model` sends each token to: uint16 [T, L, k] a trajectory."""
    found: list = [None] * len(trajectories)
    for batch in _batches(trajectories, range(len(trajectories)), config):
        with record_routes(model) as recorder:
            tokens, *_ = _score(model, [trajectories[i] for i in batch], config)
        for i, routes_TLK in zip(batch, of_samples(tokens, recorder.passes[0])):
            found[i] = routes_TLK
    return found


@dataclass(frozen=True)
class Share:
    """One shard's share of an update: N trajectories, and what the loss needs of each."""

    trajectories: list[Trajectory]
    advantages_N: Tensor
    weights_N: Tensor  # in the loss: 0 left out, 1 once, 2 as two copies would be
    recorded: Recorded = field(default_factory=dict)
    learning: list[np.ndarray] | None = None  # bool [T] each: the tokens that learn; None: all
    routes: Routes | None = None  # where their tokens go in the update; None: where it sends them

    def __post_init__(self):
        usable = bool(((self.weights_N >= 0) & self.weights_N.isfinite()).all())
        require(usable, "an update takes loss weights that are finite and not below 0")

    def of(self, some: list[int]) -> "Share":
        """The trajectories with these indices."""
        return Share(
            [self.trajectories[i] for i in some],
            self.advantages_N[some],
            self.weights_N[some],
            {name: [values[i] for i in some] for name, values in self.recorded.items()},
            None if self.learning is None else [self.learning[i] for i in some],
            None if self.routes is None else [self.routes[i] for i in some],
        )


def learn(
    model,
    shares: Sequence[Share],
    config: Config,
    ranks: Ranks,
    kl_coef: float | None = None,
) -> dict:
    """Leave the gradient of one update's loss, of this rank's `shares`, in the parameters.

    Returns the update's metrics, summed over ranks. `trained_share` is 0 where no trajectory of
    any rank has a gradient: then there is nothing to step by.

    Trajectories with advantage 0 have no gradient and are not run through the model (unless a KL
    term gives them one), but they count in the denominator: it is one number for the whole update,
    of the tokens (or sequences) that no correction drops, by their weight. The balance loss is the
    mean over the tokens that are run through the model, so its weight does not depend on how many.

    kl_coef: in the place of `rl.loss.kl_coef`, where it is steered.

    Each share's gradient is summed by itself before the shares are added. So one process with two
    shares and two processes with one each reach the same bits.
    """
    switches = loss_config(config, kl_coef)
    shares = choosing_tokens(shares, "mini", config, ranks)
    shares = [_choosing_by_micro_batch(share, switches, config) for share in shares]
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
    for parameter, gradient in zip(model.parameters(), total):
        parameter.grad = gradient
    return _metrics(ranks.sum(sums), counts, max(ranks.gather([gap_max])), config)


def _count(share: Share, switches: LossConfig) -> dict:
    """Tokens and sequences in the loss, tokens with a gradient, and all that were sampled."""
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
    return int(trajectory.generated.sum())


def _weighed(share: Share) -> list[int]:
    """Indices of the trajectories in the loss."""
    weights = share.weights_N.tolist()
    return [i for i, t in enumerate(share.trajectories) if weights[i] > 0 and _sampled(t)]


def _live(share: Share, switches: LossConfig) -> list[int]:
    """Indices of those that have a gradient: an advantage, or a KL term."""
    return [i for i in _weighed(share) if share.advantages_N[i] != 0 or switches.kl_coef > 0]


def _accumulate(
    model,
    share: Share,
    denominator: float,
    live_tokens: float,
    switches: LossConfig,
    config: Config,
) -> tuple[dict, float]:
    """Add the share's gradient to the model's; (sums for the metrics, largest gap).

    live_tokens: of the whole update, all ranks; each micro-batch's balance loss weighs by its part.
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
    """The micro-batches of the trajectories with the indices `some`; those of one prompt, which
    need it once, are neighbours."""
    of_prompt: dict[bytes, list[int]] = {}
    for i in some:
        of_prompt.setdefault(_prompt_ids(trajectories[i]).tobytes(), []).append(i)
    order = [i for indices in of_prompt.values() for i in indices]
    return micro_batches(order, trajectories, config.rollout.max_context_tokens)


def _prompt_ids(trajectory: Trajectory) -> np.ndarray:
    """The tokens before the first generated one."""
    generated = trajectory.generated
    return trajectory.token_ids[: int(generated.argmax()) if generated.any() else len(generated)]


def _choosing_by_micro_batch(share: Share, switches: LossConfig, config: Config) -> Share:
    """With the tokens that learn, where they are chosen in each micro-batch by itself.

    What has no gradient is in no micro-batch, but its tokens count: they are cut in the same way.
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


def _kept_tokens(share: Share, switches: LossConfig) -> list[int]:
    """The generated tokens of each that stay in the loss: switches may drop some."""
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
    if off_policy(config) or config.rl.loss.kl_coef > 0:
        row |= {name: sums[name] / scored for name in LOGGED}
        row["ess"] = row["weight_mean"] ** 2 / max(row["weight_square_mean"], 1e-30)
    return row


def batch_loss(
    model,
    share: Share,
    denominator: float,
    switches: LossConfig,
    config: Config,
):
    """(policy loss, balance loss, |log-prob gap to the engine| of each scored token, metrics)."""
    tokens, scored, rerouted = _score(model, share.trajectories, config, share.routes)
    at_BT, mask_BT = _layout(tokens, scored, config)

    def laid_out(values: Sequence, dtype: torch.dtype = torch.float32) -> Tensor:
        return tokens.spread(values, dtype)[scored.at_M][at_BT]

    behaviour_BT = laid_out([t.logprobs for t in share.trajectories])
    logp_BT = scored.logp_M[at_BT]
    gap_BT = (logp_BT.detach() - behaviour_BT).abs()
    loss, metrics = policy_loss(
        logp_BT,
        behaviour_BT if off_policy(config) else logp_BT.detach(),
        laid_out(share.advantages_N.tolist()),
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
) -> tuple[Flat, Scored, float]:
    """(all tokens, the generated ones, share of tokens that `routes` send elsewhere)."""
    prompts = prompts_in_common(chosen, [len(_prompt_ids(t)) for t in chosen], routes)
    tokens = Flat.of([t.token_ids for t in chosen], prompts)
    mask_N = tokens.spread([t.generated for t in chosen], torch.bool)
    with FlatReplay(model, tokens, routes) as replay:
        scored = score(
            model, tokens, mask_N, config.rl.temperature, config.rl.loss.chunked_logprobs
        )
    return tokens, scored, replay.rerouted


def _layout(tokens: Flat, scored: Scored, config: Config) -> tuple[Tensor, Tensor]:
    """(index into the M scored tokens [B, T], mask [B, T]): one trajectory a row, or one token.

    Where no ratio, mean or correction runs over a sequence, tokens may stand alone: no padding.
    """
    by_token = (
        config.rl.loss.level
        == config.rl.loss.aggregate
        == config.rl.loss.correction_level
        == "token"
    )
    if by_token and config.rl.loss.correction != "geometric":
        alone = torch.arange(scored.logp_M.numel())[:, None]
        return alone, torch.ones_like(alone, dtype=torch.bool)
    owner_M = tokens.spread(range(len(tokens.lengths)), torch.long)[scored.at_M]
    lengths_B = torch.bincount(owner_M, minlength=len(tokens.lengths))
    in_order = torch.arange(len(owner_M)).split(lengths_B.tolist())
    at_BT = pad_sequence(in_order, batch_first=True)
    return at_BT, torch.arange(at_BT.size(1))[None] < lengths_B[:, None]


def micro_batches(order: list[int], trajectories: Sequence[Trajectory], width: int) -> Iterator:
    """Runs of `order` of at most MICRO_BATCH_CONTEXTS contexts of `width` tokens; in each run a
    prompt of several counts once."""
    limit = MICRO_BATCH_CONTEXTS * width
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
