"""TRL's GRPO trainer with the losses, advantages and filters of `drlib.rl`."""

import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import DistributedType, PartialState
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer

from drlib.config import Config
from drlib.files import append_json_line, write_atomic
from drlib.models.routing_replay import (
    agreement,
    expert_load,
    record_routes,
    replay_routes,
    router_entropy,
)
from drlib.rl.advantages import leave_one_out
from drlib.rl.losses import (
    LossConfig,
    kept_tokens,
    loss_denominator,
    merge_metrics,
    policy_loss,
)
from drlib.training.distributed import Ranks
from drlib.training.optim import SKIPPED, GradientWatch
from drlib.training.run_folder import METRICS, Interrupted, RunFolder, polite_signals, read_metrics
from drlib.training.token_scoring import Scored, find_heads, score_tokens
from drlib.trajectory import NO_RECORD
from drlib.validation import require, require_one_of

# Options whose work `LossConfig`, the advantages or the filter do here.
REPLACED = (
    "loss_type",
    "epsilon",
    "epsilon_high",
    "delta",
    "importance_sampling_level",
    "top_entropy_quantile",
    "off_policy_mask_threshold",
    "entropy_coef",
    "use_adaptive_entropy",
    "scale_rewards",
    "multi_objective_aggregation",
    "use_bias_correction_kl",
    "mask_truncated_completions",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
)
TAIL_TOKENS = 32  # decoded to search for a text that ends a completion
# Keys of TRL's batch: log-probabilities of the engine, and of the trainer before the update
SAMPLED, OLD = "sampling_per_token_logps", "old_per_token_logps"
PROMPT, COMPLETION = ("prompt_ids", "prompt_mask"), ("completion_ids", "completion_mask")
ROUTES = "routes_BTLK"  # expert routes of prompt and completion
GIVEN = "routed_experts"  # field of a rollout function's result
Routed = Literal["none", "r2", "r3"]
Batch = dict[str, Any]
Arguments = TypeVar("Arguments", bound=TrainingArguments)
CHECKPOINTS = "trl"  # folder of checkpoints in the run folder
STATE = "trainer_state.json"
KEPT_CHECKPOINTS = 2  # if a kill interrupts the writing of one, the other is complete


# ---------------------------------------------------------------- trainer


@dataclass(frozen=True)
class Rollouts:
    """One process's share of a generation batch, N completions, as a filter sees it."""

    rewards_N: Tensor  # weighted sum of the reward functions; NaN where none could judge
    truncated_N: Tensor  # bool: stopped by a limit, not by an end token or a text that ends it
    inputs: Sequence[dict[str, Any]]  # dataset rows, with what a rollout function added
    completions: Sequence[Any]  # as given to the reward functions


def exclude_overlong(rollouts: Rollouts, positive_from: float = 0.5) -> tuple[Tensor, Tensor]:
    """Tongyi's rule: failures cut off by the length limit leave the loss, not the baseline.

    Returns (weights_N float, in_baseline_N bool), what every filter returns. Completions without a
    reward are out of both, whatever a filter says.
    """
    weights_N = (~rollouts.truncated_N | (rollouts.rewards_N >= positive_from)).float()
    return weights_N, torch.ones_like(rollouts.truncated_N)


class DeepResearchGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` whose advantages, filter and loss are those of `drlib.rl`.

    Args (beyond TRL's own):
        loss: switches of `policy_loss`; the recipe's by default. kl_coef goes with the same
            `GRPOConfig.beta`; top_entropy < 1 needs denominator="all" (entropies are not known
            before the forward pass, and are ranked within a micro-batch).
        advantages: (rewards_N, groups_N, valid_N) -> advantages_N, as in `drlib.rl.advantages`.
        rollout_filter: Rollouts -> (weights_N, in_baseline_N).
        ends: texts that end a completion beside the tokenizer's end tokens. Our agents' last turn
            is sampled up to the answer's closing tag, and no end token follows it.
        routing: which routes of experts the loss replays: "none", the old policy's ("r2") or the
            sampling engine's ("r3"), given by a rollout function as "routed_experts": of each
            completion integers [T, L, k], the k experts of its T tokens, prompt included, in L
            sparse layers. With "none" they are for the metrics only.

    Metrics beside TRL's: tokens (in the loss), trained_share (of them, those with a gradient),
    policy/ (`policy_loss`), filter/, moe/ (`Routing.metrics`), and of the
    sampling engine to the trainer before the update mismatch/kl, mismatch/max_logp_gap (nats).

    Raises ValueError: `args` sets an option that these replace, a switch lacks what it needs, or
    replay finds no experts.
    """

    def __init__(
        self,
        *args,
        loss: LossConfig | None = None,
        advantages: Callable[[Tensor, Tensor, Tensor], Tensor] = leave_one_out,
        rollout_filter: Callable[[Rollouts], tuple[Tensor, Tensor]] = exclude_overlong,
        ends: Sequence[str] = ("</answer>",),
        routing: Routed = "none",
        **kwargs,
    ):
        disable_cudnn_attention()
        super().__init__(*args, **kwargs)
        self.loss_config = loss or LossConfig()
        self.advantage_estimator = advantages
        self.rollout_filter = rollout_filter
        self.ends = tuple(ends)
        self.routing = Routing(self.model, routing)
        self._until_backward: ExitStack | None = None  # what closes when a micro-batch is done
        self._rolled = None, None  # of the batch being made: sampled tokens, engine's routes
        self._routes: Tensor | None = None  # of the batch being made, as they will be replayed
        self._old_is_next = False  # TRL's next forward pass is the old policy's
        _check_options(self.args, self.loss_config)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """TRL's rewards of all processes; keeps the advantages and weights that follow."""
        rewards_NF = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._scored = self._advantages_and_weights(
            rewards_NF, inputs, completions, completion_ids_list
        )
        return rewards_NF

    def _advantages_and_weights(
        self, rewards_NF: Tensor, inputs, completions, completion_ids_list
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and loss weights of this process's n completions, from all N rewards."""
        judged_N = ~rewards_NF.isnan().all(dim=1)
        rewards_N = (rewards_NF * self.reward_weights.to(rewards_NF)).nansum(dim=1)
        rewards_N = rewards_N.masked_fill(~judged_N, torch.nan)
        n, device = len(inputs), rewards_N.device
        own = slice(self.accelerator.process_index * n, (self.accelerator.process_index + 1) * n)
        truncated = [not self._ended(list(map(int, ids))) for ids in completion_ids_list]
        truncated_N = torch.tensor(truncated, device=device)
        verdict = self.rollout_filter(Rollouts(rewards_N[own], truncated_N, inputs, completions))
        weights_N, in_baseline_N = (torch.as_tensor(v, device=device) for v in verdict)
        for got in (tuple(weights_N.shape), tuple(in_baseline_N.shape)):
            require(got == (n,), f"rollout_filter gave shape {got} for {n} completions")
        valid_N = self.accelerator.gather(in_baseline_N.bool()) & judged_N
        size = self.num_generations if self.model.training else self.num_generations_eval
        groups_N = torch.arange(len(rewards_N), device=device) // size
        advantages_N = self.advantage_estimator(rewards_N, groups_N, valid_N)
        return advantages_N[own].float(), weights_N.float() * judged_N[own]

    def _ended(self, ids: list[int]) -> bool:
        """Whether a completion stopped by itself: with an end token, or with one of `ends`."""
        if not ids or ids[-1] in {*self.eos_token_ids, self._tokenizer.pad_token_id}:
            return bool(ids)
        tail = self._tokenizer.decode(ids[-TAIL_TOKENS:], skip_special_tokens=False)
        return tail.rstrip().endswith(self.ends)

    def _generate(self, prompts):
        """TRL's; keeps what its own passes over the batch are not told."""
        made = super()._generate(prompts)
        sampled, extra = made[2], made[5]
        self._rolled = sampled, extra.pop(GIVEN, None)
        self._routes = None
        # TRL's rule; its pass of the old policy is the first over the batch.
        steps = self.args.steps_per_generation * self.num_iterations
        from_vllm = self.use_vllm and self.vllm_importance_sampling_correction
        self._old_is_next = self.args.gradient_accumulation_steps % steps != 0 or from_vllm
        return made

    def _generate_and_score_completions(self, inputs):
        """TRL's batch with our advantages, loss weights, denominator (of all processes), routes."""
        batch, config = super()._generate_and_score_completions(inputs), self.loss_config
        advantages_N, weights_N = self._scored
        mask_BT = loss_mask(batch) & (weights_N > 0)[:, None]
        corrected = config.correction != "none"  # of the sampling engine to the trainer before
        message = f'correction="{config.correction}" needs the log-probabilities of vLLM, or of a '
        require(not corrected or SAMPLED in batch, f"{message}rollout_func that returns them")
        if OLD not in batch and (corrected or self.routing.mode == "r2"):
            found = self._score_old(*join_sequences(batch), loss_mask(batch))
            if corrected:
                batch[OLD] = found.logp_BT
        elif OLD not in batch:
            self._routes = self.routing.placed(self._rolled[1], join_sequences(batch)[1])
        if self._routes is not None:
            batch[ROUTES] = self._routes
        self._rolled = None, None
        if corrected and config.denominator == "kept":
            known = {"behaviour_logp_BT": batch[SAMPLED], "old_logp_BT": batch[OLD]}
            mask_BT = kept_tokens(mask_BT, config, **known)
        own = torch.tensor(loss_denominator(mask_BT, weights_N, config), device=weights_N.device)
        batch["advantages"], batch["loss_weights"] = advantages_N, weights_N
        batch["num_items_in_batch"] = self.accelerator.gather(own).sum()
        batch["live_tokens"] = self._count_tokens(batch)
        out = self.accelerator.gather(weights_N == 0).float().mean().item()
        self._report({"filter/out_of_loss": out})
        return batch

    def _count_tokens(self, batch) -> Tensor:
        """Tokens with a gradient, of all processes; reports as the local loop does how many are in
        the loss, and the share of those that have one."""
        weighed = weighted_mask(batch).sum()
        live = count_live_tokens(batch, self.loss_config.kl_coef > 0).sum()
        own = torch.stack([weighed, live])
        total = self.accelerator.gather(own[None]).sum(dim=0)
        tokens, trained = total.tolist()
        self._report({"tokens": tokens, "trained_share": trained / max(tokens, 1)})
        return total[1]

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **options
    ):
        """TRL's passes before the update (of the old policy, the reference), scored as in it."""
        is_old = self._old_is_next
        self._old_is_next = False
        where = model, input_ids, attention_mask
        entropy, aux_loss = (options.pop(f"compute_{k}", False) for k in ("entropy", "aux_loss"))
        if any(value is not None for value in options.values()):
            require(self.routing.mode == "none", "experts of rows with images are not replayed")
            asked = options | {"compute_entropy": entropy, "compute_aux_loss": aux_loss}
            base = super()._get_per_token_logps_and_entropies
            return base(*where, logits_to_keep, batch_size, **asked)
        chosen_BC = attention_mask[:, -logits_to_keep:] > 0
        for row_C, sampled in zip(chosen_BC, self._rolled[0] or ()):  # tools' texts are not scored
            row_C[: len(sampled)] &= torch.tensor(sampled, device=row_C.device).bool()
        if is_old:
            found = self._score_old(input_ids, attention_mask, chosen_BC)
        else:
            found = self._score(*where, chosen_BC, batch_size, router_logits=aux_loss)
        return found.logp_BT, found.entropies_BT if entropy else None, found.aux_loss

    @torch.no_grad()
    def _score_old(self, ids_BT, seen_BT, chosen_BC) -> Scored:
        """The policy before the update; leaves the routes to be replayed in `_routes`."""
        args = self.args
        train = self._mode == "train"
        size = args.per_device_train_batch_size if train else args.per_device_eval_batch_size
        given = self.routing.placed(self._rolled[1], seen_BT)
        with self.routing.old_policy(self.model, ids_BT.shape, given, size) as recorded:
            found = self._score(self.model, ids_BT, seen_BT, chosen_BC, size)
        self._routes = recorded[0] if recorded else given
        return found

    def _score(
        self, model, ids_BT, seen_BT, chosen_BC, batch_size=None, router_logits=False
    ) -> Scored:
        """Scores [B, C] of completions; TRL's own head (of some models) scores all tokens."""
        width = chosen_BC.size(1)
        heads = find_heads(self.accelerator.unwrap_model(model))
        if not heads or self.is_deepspeed_enabled:
            base = super()._get_per_token_logps_and_entropies
            wanted = router_logits and self.aux_loss_enabled
            return Scored(*base(model, ids_BT, seen_BT, width, batch_size, True, wanted), None)
        chosen_BT = F.pad(chosen_BC, (ids_BT.size(1) - width, 0))
        rows = (x_BT.split(batch_size or len(ids_BT)) for x_BT in (ids_BT, seen_BT, chosen_BT))
        options = {
            "temperature": self.temperature,
            "in_float32": self.args.cast_lm_head_to_fp32,
            "router_logits": router_logits,
        }
        with self.accelerator.autocast():
            parts = [score_tokens(model, heads, *part, **options) for part in zip(*rows)]
        logp_BT, entropies_BT = (
            torch.cat([getattr(part, name) for part in parts])[:, -width:]
            for name in ("logp_BT", "entropies_BT")
        )
        return Scored(logp_BT, entropies_BT, *parts[-1][2:])

    def training_step(self, model, inputs, num_items_in_batch):
        """TRL's; the hooks on experts stay until its backward pass is over."""
        with ExitStack() as stack:
            stack.callback(setattr, self, "_until_backward", None)
            self._until_backward = stack
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._report(self.routing.metrics(self._total))
        return loss

    def _total(self, own: Tensor) -> Tensor:
        """The sum over all processes."""
        return self.accelerator.reduce(own, "sum")

    def _compute_loss(self, model, inputs):
        """`policy_loss` of one micro-batch, scaled so that accumulation and ranks add up."""
        train = self._mode == "train"
        kl = self.loss_config.kl_coef > 0
        inputs = drop_dead_rows(inputs, kl) if train else inputs
        found = self._score_for_loss(model, inputs)
        logp_BT = found.logp_BT.float()  # bfloat16 from TRL's head under autocast
        # Where TRL gives no old ones, steps align: they are today's.
        old_BT, sampled_BT = inputs.get(OLD, logp_BT.detach()), inputs.get(SAMPLED)
        behaviour_BT, old_BT = (old_BT, None) if sampled_BT is None else (sampled_BT, old_BT)
        # Processes average their gradients, and a generation batch may serve several steps.
        share = 1 / self.accelerator.num_processes  # of the batch, that is of one step and process
        if train:
            steps = self.current_gradient_accumulation_steps
            share = share * steps / self.args.steps_per_generation
        denominator = inputs["num_items_in_batch"] * share
        loss, metrics = policy_loss(
            logp_BT,
            behaviour_BT,
            inputs["advantages"],
            loss_mask(inputs),
            self.loss_config,
            old_logp_BT=old_BT,
            reference_logp_BT=inputs.get("ref_per_token_logps"),
            entropies_BT=found.entropies_BT.detach(),
            weights_B=inputs["loss_weights"],
            denominator=denominator,
        )
        if sampled_BT is not None:
            gap_BT = torch.where(weighted_mask(inputs), old_BT.detach() - sampled_BT, 0)
            metrics["gap_max"] = float(gap_BT.abs().max())
        own = torch.tensor([[*metrics.values()]], device=self.accelerator.device)
        parts = [dict(zip(metrics, row)) for row in self.accelerator.gather(own).tolist()]
        merged = merge_metrics(parts)
        if sampled_BT is not None:
            so_far = self._metrics[self._mode]["mismatch/max_logp_gap"]  # until it is logged
            so_far[:] = [max([*so_far, merged.pop("gap_max")])]
            self._report({"mismatch/kl": merged["mismatch_kl"]})
        self._report({f"policy/{name}": value for name, value in merged.items()})
        if self.aux_loss_enabled:
            part = count_live_tokens(inputs, kl).sum() / (inputs["live_tokens"] * share).clamp(
                min=1
            )
            loss = loss + self.router_aux_loss_coef * part * found.aux_loss
            gathered = self.accelerator.gather_for_metrics(found.aux_loss.detach())
            self._report({"aux_loss": gathered.mean().item()})
        return loss

    def _score_for_loss(self, model, inputs) -> Scored:
        """The tokens in the loss, under replayed routes if so asked; counts the experts' load."""
        ids_BT, seen_BT = join_sequences(inputs)
        routes_BTLK = inputs.get(ROUTES)
        watched = self.routing.sizes is not None
        asked = self.aux_loss_enabled or watched
        with ExitStack() as until_scored:
            until = self._until_backward or until_scored
            recorder = self.routing.open(until, model, routes_BTLK)
            chosen_BC = weighted_mask(inputs)
            found = self._score(model, ids_BT, seen_BT, chosen_BC, router_logits=asked)
        if watched and self._mode == "train":
            self.routing.count(recorder.passes[-1], routes_BTLK, seen_BT, found.router_logits)
        return found

    def _report(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._metrics[self._mode][name].append(value)

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"


def _check_options(args: GRPOConfig, config: LossConfig) -> None:
    """ValueError for what would be ignored, or would be missing at the first step."""
    usual = {field.name: field.default for field in fields(GRPOConfig)}
    for name in REPLACED:
        given = getattr(args, name)
        require(
            given == usual[name],
            f"GRPOConfig.{name}={given!r} has no effect here; set the "
            "loss, advantages or rollout_filter of the trainer instead",
        )
    both = f"GRPOConfig.beta is {args.beta} and LossConfig.kl_coef {config.kl_coef}"
    require(args.beta == config.kl_coef, f"{both}; give both the same number")
    countable = config.top_entropy == 1 or config.denominator == "all"
    require(countable, 'top_entropy < 1 needs LossConfig(denominator="all") here')


# ---------------------------------------------------------------- batches in TRL's layout


def loss_mask(batch: Batch) -> Tensor:
    """Tokens [B, C] that the model sampled: no padding, no tool responses."""
    return (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()


def weighted_mask(batch: Batch) -> Tensor:
    """Those of `loss_mask` that the filter left in the loss."""
    return loss_mask(batch) & (batch["loss_weights"] > 0)[:, None]


def join_sequences(batch: Batch) -> tuple[Tensor, Tensor]:
    """(ids [B, P + C], 1 on tokens [B, P + C])."""
    ids_BT, seen_BT = (torch.cat([batch[p], batch[c]], dim=1) for p, c in zip(PROMPT, COMPLETION))
    return ids_BT, seen_BT


def count_live_tokens(batch: Batch, kl: bool) -> Tensor:
    """Tokens of each row [B] that have a gradient: in the loss, with an advantage or (`kl`) a pull
    towards the reference."""
    tokens_B = weighted_mask(batch).sum(dim=1)
    return tokens_B if kl else tokens_B * (batch["advantages"] != 0)


def drop_dead_rows(batch: Batch, kl: bool) -> Batch:
    """The rows that have a gradient, without the columns that are padding in all of them.

    One row stays where none has: the shortest, as every process must make its pass.
    """
    kept_B = count_live_tokens(batch, kl) > 0
    _, seen_BT = join_sequences(batch)
    if not kept_B.any():
        kept_B[seen_BT.sum(dim=1).argmin()] = True
    width = batch[PROMPT[0]].size(1)
    used_T = seen_BT[kept_B].any(dim=0)
    used_T[width] = True  # a completion of no tokens is none
    of_prompt, of_completion = used_T[:width], used_T[width:]
    completions_BC = batch[COMPLETION[0]].shape
    rows = {}
    for name, value in batch.items():
        if not isinstance(value, Tensor) or value.ndim == 0:
            rows[name] = value
        elif name in PROMPT:
            rows[name] = value[kept_B][:, of_prompt]
        elif name == ROUTES:
            kept_there, used_there = kept_B.to(value.device), used_T.to(value.device)
            rows[name] = value[kept_there][:, used_there]
        elif value.shape[:2] == completions_BC:
            rows[name] = value[kept_B][:, of_completion]
        elif value.shape == kept_B.shape:
            rows[name] = value[kept_B]
        else:
            return batch  # images, of which a row may have several
    return rows


# ---------------------------------------------------------------- routing replay


class _Sizes(NamedTuple):
    layers: int
    experts: int
    chosen: int  # experts a token


class Routing:
    """Records, replays and counts the routes of one trainer's model.

    mode: what the loss replays: nothing, the old policy's routes or the sampling engine's.

    ValueError: a mode beside "none" for a model without softmax top-k routers.
    """

    def __init__(self, model: nn.Module, mode: Routed = "none"):
        require_one_of(mode, get_args(Routed), "routing")
        self.mode, self.sizes = mode, _sizes(model)
        require(
            mode == "none" or self.sizes is not None,
            f'routing="{mode}" replays experts, and {type(model).__name__} has no softmax top-k '
            'routers: use routing="none"',
        )
        self._sums: dict[str, Tensor] = {}

    def placed(self, given: Sequence[Any] | None, seen_BT: Tensor) -> Tensor | None:
        """The sampling engine's routes as int16 [B, T, L, k] on the CPU, -1 for no record.

        given: of each row an array [tokens, L, k], prompt included, all of them or all but the
            last (which is never fed); uint16 65535 is no record. seen_BT: 1 on tokens.

        ValueError: "r3" without them, or shapes that do not fit.
        """
        require(
            self.mode != "r3" or given is not None,
            f'routing="r3" replays the sampling engine\'s routes: the rollout function must return '
            f'"{GIVEN}"',
        )
        if given is None or self.sizes is None:
            return None
        layers, _, k = self.sizes
        require(len(given) == len(seen_BT), f"{GIVEN}: {len(given)} for {len(seen_BT)} rows")
        placed_BTLK = torch.full((*seen_BT.shape, layers, k), -1, dtype=torch.int16)
        for i, (routes, seen_T) in enumerate(zip(given, seen_BT.cpu().bool())):
            routes_TLK = torch.from_numpy(np.array(routes, dtype=np.int32, order="C"))
            got, tokens = [*routes_TLK.shape], int(seen_T.sum())
            fits = got in ([tokens, layers, k], [tokens - 1, layers, k])
            require(fits, f"{GIVEN} of row {i}: {got}, need {[tokens, layers, k]} [tokens, L, k]")
            at_T = seen_T.nonzero()[: got[0], 0]
            routes_TLK = routes_TLK.masked_fill(routes_TLK == NO_RECORD, -1)
            placed_BTLK[i, at_T] = routes_TLK.to(torch.int16)
        return placed_BTLK

    def open(
        self, stack: ExitStack, model: nn.Module, routes_BTLK: Tensor | None, rows: int = 0
    ) -> record_routes | None:
        """Watch, and if the mode says so replay, the next passes of `model` until `stack` closes.

        rows: of one pass, where the batch is run in several. What the recorder sees are the
        router's own choices. None: the model has no experts.
        """
        if self.sizes is None:
            return None
        model = _Unwrapped(model)
        recorder = stack.enter_context(record_routes(model))  # before replay: the own choices
        if routes_BTLK is not None and self.mode != "none":
            parts = routes_BTLK.split(rows or len(routes_BTLK))
            stack.enter_context(replay_routes(model, [_by_layer(part) for part in parts]))
        return recorder

    @contextmanager
    def old_policy(
        self, model: nn.Module, batch_shape: torch.Size, routes_BTLK: Tensor | None, rows: int
    ) -> Iterator[list[Tensor]]:
        """Around the old policy's passes over a batch [B, T], `rows` at a time.

        Gives a list; after the block it holds, in mode "r2", the batch's routes [B, T, L, k].
        """
        found: list[Tensor] = []
        with ExitStack() as stack:
            wanted = routes_BTLK if self.mode == "r3" else None
            recorder = None
            if self.mode != "none":
                recorder = self.open(stack, model, wanted, rows)
            yield found
        if self.mode == "r2":
            routes_LNK = torch.cat(recorder.passes, dim=1).cpu()
            found.append(routes_LNK.transpose(0, 1).reshape(*batch_shape, *self._by_token))

    @property
    def _by_token(self) -> tuple[int, int]:
        return self.sizes.layers, self.sizes.chosen

    @torch.no_grad()
    def count(
        self,
        own_LNK: Tensor,
        routes_BTLK: Tensor | None,
        seen_BT: Tensor,
        router_logits: Sequence[Tensor] | None,
    ) -> None:
        """Add one micro-batch to the step: its routers' own choices, and those on record."""
        real_N = seen_BT.reshape(-1).bool()
        own_LNK = own_LNK.masked_fill(~real_N[:, None], -1)
        used_LNK, tokens = own_LNK, real_N.sum().double()
        sums = {"tokens": tokens, "known": tokens * 0, "same_L": tokens.new_zeros(len(own_LNK))}
        if routes_BTLK is not None:
            known_LNK = _by_layer(routes_BTLK).to(own_LNK)
            sums["known"] = ((known_LNK[0, :, 0] >= 0) & real_N).sum().double()
            sums["same_L"] = agreement(own_LNK, known_LNK).nan_to_num() * sums["known"]
            if self.mode != "none":
                used_LNK = torch.where((known_LNK >= 0) & real_N[:, None], known_LNK, own_LNK)
        sums["load_LE"] = expert_load(used_LNK, self.sizes.experts).double() * tokens
        if router_logits is not None:
            entropy_L = router_entropy([of_layer[real_N] for of_layer in router_logits])
            sums["entropy_L"] = entropy_L.double() * tokens
        for name, value in sums.items():
            self._sums[name] = value + self._sums.get(name, 0)

    def metrics(self, total=lambda tensor: tensor) -> dict[str, float]:
        """Of the step since the last call; {} if nothing was counted. `total`: sum over processes.

        moe/max_violation: load of the busiest expert over the mean load, minus 1, in the worst
        layer (0: even); its mean over layers; router_entropy: mean, nats; rerouted: share of the
        tokens on record that the router would send to other experts now, mean over layers.
        """
        if not self._sums:
            return {}
        names, parts = [*self._sums], [*self._sums.values()]
        flat = total(torch.cat([part.reshape(-1) for part in parts]).float()).double()
        pieces = flat.split([part.numel() for part in parts])
        sums = {n: piece.view_as(part) for n, piece, part in zip(names, pieces, parts)}
        self._sums = {}
        load_LE = sums["load_LE"]
        violation_L = load_LE.amax(dim=1) / load_LE.mean(dim=1) - 1
        found = {
            "moe/max_violation": violation_L.max(),
            "moe/max_violation_mean": violation_L.mean(),
        }
        if "entropy_L" in sums:
            found["moe/router_entropy"] = sums["entropy_L"].mean() / sums["tokens"]
        if sums["known"] > 0:
            found["moe/rerouted"] = 1 - sums["same_L"].mean() / sums["known"]
        return {name: float(value) for name, value in found.items()}


def _by_layer(routes_BTLK: Tensor) -> Tensor:
    """As `replay_routes` takes them: experts_LNK with N = B x T."""
    return routes_BTLK.flatten(0, 1).transpose(0, 1)


def _sizes(model: nn.Module) -> _Sizes | None:
    """None for a model that `record_routes` finds no routers in."""
    try:
        hooks = record_routes(model)
    except ValueError:
        return None
    hooks.close()
    config = model.config.get_text_config()
    return _Sizes(hooks.n_layers, config.num_experts, config.num_experts_per_tok)


class _Unwrapped:
    """A model's modules under the names they had before activation checkpointing wrapped layers.

    FSDP2's own recomputation puts a wrapper between the stack of layers and each layer.
    """

    WRAPPER = "._checkpoint_wrapped_module"

    def __init__(self, model: nn.Module):
        self._model = model

    def modules(self) -> Iterator[nn.Module]:
        return self._model.modules()

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self._model.named_modules():
            yield name.replace(self.WRAPPER, ""), module

    def get_submodule(self, name: str) -> nn.Module:
        return dict(self.named_modules())[name]  # a wrapper's name goes to what it wraps


# ---------------------------------------------------------------- run folder, metrics, checkpoints


def build_arguments(
    kind: type[Arguments],
    run: RunFolder,
    config: Config,
    *,
    steps: int,
    rows: int,
    lr: float,
    **more: Any,
) -> Arguments:
    """The arguments of a TRL trainer, `kind` (SFTConfig or GRPOConfig): what both are told alike,
    and `more`. rows: of one optimizer step, over all processes.

    ValueError: the rows cannot be shared evenly; sharding without a GPU or without processes.
    """
    at_once = config.trainer.device_batch * run.ranks.size
    require(
        rows % at_once == 0,
        f"{rows} rows a step cannot be shared by {run.ranks.size} processes with "
        f"trainer.device_batch={config.trainer.device_batch}: give a number that divides them",
    )
    disable_cudnn_attention()
    cuda = torch.cuda.is_available()
    options: dict[str, Any] = {
        "output_dir": str(run.path / CHECKPOINTS),
        "max_steps": steps,
        "per_device_train_batch_size": config.trainer.device_batch,
        "gradient_accumulation_steps": rows // at_once,
        "learning_rate": lr,
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "bf16": config.model.dtype == "bfloat16",
        "use_cpu": not cuda,
        "gradient_checkpointing": config.trainer.gradient_checkpointing,
        "seed": config.seed,
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_steps": config.trainer.checkpoint_every,
        "save_total_limit": KEPT_CHECKPOINTS,
        "report_to": [],  # `RunCallback` shows the lines, as the local loop does
        "disable_tqdm": True,
    }
    if config.trainer.fsdp:
        require(
            run.ranks.size > 1,
            "trainer.fsdp=true shards over processes: set processes to 2 or more",
        )
        options["fsdp"] = True
        options["fsdp_config"] = {"version": 2}
        if config.trainer.gradient_checkpointing:  # FSDP2 has its own, which gathers a layer once
            options["gradient_checkpointing"] = False
            options["fsdp_config"]["activation_checkpointing"] = True
    arguments = kind(**options, **more)
    if config.trainer.fsdp and not cuda:
        _enable_cpu_sharding(arguments)
    return arguments


def _enable_cpu_sharding(arguments: TrainingArguments) -> None:
    """Accelerate looks at a request to shard only where the processes have devices, and drops it
    without a word elsewhere. Gloo shards as well: for tests of what eight GPUs will run."""
    _ = arguments.device  # its set-up forgets what was said before
    PartialState()._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def balance_coefficient(where: str, config: Config) -> float:
    """The weight of the experts' load-balancing loss; the model at `where` has none if dense."""
    has_experts = hasattr(AutoConfig.from_pretrained(where), "num_experts")
    return config.trainer.balance_coef if has_experts else 0.0


def disable_cudnn_attention() -> None:
    """Leave attention to torch's other kernels, in this process, from now on.

    torch prefers cuDNN's on Hopper, whose backward pass in half precision gives NaN where there is
    a mask and a row has 128 n + 64 tokens (torch's issue 196678; seen here on an H200 with torch
    2.11: figures/reference/gpu/cudnn).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def gradient_is_finite(model: nn.Module, ranks: Ranks) -> bool:
    """In all processes; of a sharded model each looks at its own part."""
    found = [p.grad for p in model.parameters() if p.grad is not None]
    parts = [g.to_local() if isinstance(g, DTensor) else g for g in found]
    own = torch.stack([g.isfinite().all() for g in parts]).all() if parts else torch.tensor(True)
    return ranks.sum({"broken": float(not own)})["broken"] == 0


class RunCallback(TrainerCallback):
    """A line of metrics a step, and a polite end at Ctrl-C: a checkpoint at the step's end.

    A step whose gradient is not finite is not taken, and its line says so under "skipped".

    is_dead: whether nothing asked for an update in this step, which is then not taken: the
    balance loss and the optimizer's momentum alone would move the weights.
    """

    def __init__(self, run: RunFolder, is_dead: Callable[[], bool]):
        self.run = run
        self.is_dead = is_dead
        self.asked = False
        self._watch = GradientWatch()
        self._skipped: dict = {}  # what the step's line says of it
        self._old: dict = {}
        self._seconds = 0.0  # of the last step

    def on_train_begin(self, args, state, control, **_):
        log = self.run.path / METRICS
        if self.run.ranks.first and log.exists():
            lines = log.read_bytes().splitlines(keepends=True)
            write_atomic(log, b"".join(lines[: state.global_step]))
        self._shown = self.run.reporter(state.global_step)
        self._old = {each: signal.signal(each, self._ask) for each in polite_signals()}

    def _ask(self, *_) -> None:
        self.asked = True

    def on_step_begin(self, args, state, control, **_):
        self._began = time.perf_counter()

    def on_log(self, args, state, control, logs=None, **_):
        if self.run.ranks.first and "loss" in (logs or {}):
            row = {"step": state.global_step, **logs, **self._skipped, "seconds": self._seconds}
            append_json_line(self.run.path / METRICS, row)
            self._shown.show(state.global_step, row)

    def on_step_end(self, args, state, control, **_):
        self._seconds = round(time.perf_counter() - self._began, 3)
        if self.run.ranks.sum({"asked": float(self.asked)})["asked"] > 0:
            self.asked = True
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        wanted = not self.is_dead()
        is_finite = not wanted or gradient_is_finite(model, self.run.ranks)
        self._skipped = {} if self._watch.usable(is_finite) else {"skipped": SKIPPED}
        if not wanted or not is_finite:
            model.zero_grad(set_to_none=True)  # and the optimizer leaves every weight alone

    def on_train_end(self, args, state, control, **_):
        self._shown.close()
        for each, handler in self._old.items():
            signal.signal(each, handler)


def run_trainer(
    run: RunFolder,
    trainer,
    checkpoint: str | None,
    is_dead: Callable[[], bool] = lambda: False,
) -> dict:
    """Train to the end, from `checkpoint` where there is one; the last line of metrics.

    is_dead: as of `RunCallback`.

    Interrupted: somebody asked to stop, and a checkpoint was written.
    """
    lines = RunCallback(run, is_dead)
    trainer.add_callback(lines)
    trainer.train(resume_from_checkpoint=checkpoint)
    if lines.asked:
        raise Interrupted
    run.ranks.barrier()  # the first one has written its last line
    return read_metrics(run.path)[-1]


def find_checkpoint(folder: Path, run: RunFolder) -> str | None:
    """The newest whole checkpoint; those that a kill cut short are deleted."""
    if run.ranks.first and folder.is_dir():
        for each in folder.glob("checkpoint-*"):
            if not _is_complete(each):
                shutil.rmtree(each)
    run.ranks.barrier()
    return get_last_checkpoint(str(folder)) if folder.is_dir() else None


def _is_complete(checkpoint: Path) -> bool:
    try:
        TrainerState.load_from_json(str(checkpoint / STATE))
    except (OSError, ValueError):
        return False
    return True
