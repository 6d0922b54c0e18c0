"""TRL's GRPO trainer with the losses, advantages and filters of `drlib.rl`.

TRL brings accelerate, FSDP, PEFT, vLLM and checkpoints. `DeepResearchGRPOTrainer` replaces three
parts that its options cannot express: advantages (leave-one-out over the rollouts that the filter
keeps), the denominator (token-level) and the loss. Gradients equal those of the local loop on the
same batch.

- The denominator counts the whole generation batch over all processes and is scaled to one
  optimizer step. It is exact if steps_per_generation equals gradient_accumulation_steps (TRL's
  default, on-policy), an even share otherwise.
- Behaviour log-probabilities are those of the sampling engine, or of the trainer before the update
  if the engine reports none. A clip compares with the trainer before the update (except
  "double_sided"); the engine mismatch has an effect only with a correction.
- Log-probabilities are computed by `training.token_scoring` for sampled tokens only, or by TRL's
  head for models that it does not support.
- Rows without a gradient are not run through the model, as in the local loop. The load-balancing
  loss is the mean over the tokens that are.
- Routing replay uses routes [B, T, L, k], so that TRL shuffles and splits them with their rows. R2
  replays the old policy's routes, recorded before the update; R3 replays the sampling engine's.

Not supported: images (scored by TRL's head), an entropy bonus, routers without softmax top-k,
routes of the reference policy, moving rows between micro-batches.
"""

import itertools
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
from drlib.files import append_json_line, read_json_lines, write_atomic
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

# Options that are replaced by `LossConfig`, the advantages or the filter
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
    """One process's N completions of a generation batch, as passed to a filter."""

    rewards_N: Tensor  # weighted sum of the reward functions; NaN if none could judge
    truncated_N: Tensor  # bool: stopped by a limit
    inputs: Sequence[dict[str, Any]]  # dataset rows with the fields of a rollout function
    completions: Sequence[Any]  # as given to the reward functions


def exclude_overlong(rollouts: Rollouts, positive_from: float = 0.5) -> tuple[Tensor, Tensor]:
    """Exclude truncated failures from the loss, not from the baseline (Tongyi DeepResearch).

    Returns:
        weights_N float and in_baseline_N bool, as every filter. Completions without a reward are
        excluded from both in any case.
    """
    weights_N = (~rollouts.truncated_N | (rollouts.rewards_N >= positive_from)).float()
    return weights_N, torch.ones_like(rollouts.truncated_N)


class DeepResearchGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` with the advantages, filter and loss of `drlib.rl`.

    Args (besides TRL's):
        loss: configuration of `policy_loss`. kl_coef must equal `GRPOConfig.beta`; top_entropy < 1
            needs denominator="all" (entropies are ranked within a micro-batch).
        advantages: (rewards_N, groups_N, valid_N) -> advantages_N, as in `drlib.rl.advantages`.
        rollout_filter: Rollouts -> (weights_N, in_baseline_N).
        ends: texts that end a completion besides end tokens; our agents sample the last turn up to
            the closing tag of the answer.
        routing: replay of expert routes: "none", "r2" (old policy) or "r3" (sampling engine).
            For r3 the rollout function returns "routed_experts": per completion integers
            [T, L, k], k experts of T tokens (prompt included) in L sparse layers. With "none",
            they are used for metrics only.

    Metrics besides TRL's: tokens (in the loss), trained_share (of them, those with a gradient),
    policy/ (`policy_loss`), filter/, moe/ (`Routing.metrics`), mismatch/kl and
    mismatch/max_logp_gap (nats, engine to trainer before the update).

    Raises:
        ValueError: `args` sets an option that these replace, a setting lacks what it needs, or the
            model has no experts to replay.
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
        self._until_backward: ExitStack | None = None  # closes after the backward pass
        # of the next batch: sampled tokens and the engine's routes
        self._generated: tuple[Any, Any] = None, None
        self._routes: Tensor | None = None  # of the next batch, to be replayed
        self._old_is_next = False  # TRL's next forward pass scores the old policy
        _check_options(self.args, self.loss_config)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """Compute TRL's rewards of all processes; store advantages and loss weights."""
        rewards_NF = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self._scored = self._advantages_and_weights(
            rewards_NF, inputs, completions, completion_ids_list
        )
        return rewards_NF

    def _advantages_and_weights(
        self, rewards_NF: Tensor, inputs, completions, completion_ids_list
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and loss weights of this process's n completions."""
        judged_N = ~rewards_NF.isnan().all(dim=1)
        rewards_N = (rewards_NF * self.reward_weights.to(rewards_NF)).nansum(dim=1)
        rewards_N = rewards_N.masked_fill(~judged_N, torch.nan)
        n, device = len(inputs), rewards_N.device
        own = slice(self.accelerator.process_index * n, (self.accelerator.process_index + 1) * n)
        truncated = [not self._is_finished(list(map(int, ids))) for ids in completion_ids_list]
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

    def _is_finished(self, ids: list[int]) -> bool:
        """Return True if a completion ended with an end token or with one of `ends`."""
        if not ids or ids[-1] in {*self.eos_token_ids, self._tokenizer.pad_token_id}:
            return bool(ids)
        tail = self._tokenizer.decode(ids[-TAIL_TOKENS:], skip_special_tokens=False)
        return tail.rstrip().endswith(self.ends)

    def _generate(self, prompts):
        """Generate; store the sampled tokens and routes, which TRL's own passes do not receive."""
        made = super()._generate(prompts)
        sampled, extra = made[2], made[5]
        self._generated = sampled, extra.pop(GIVEN, None)
        self._routes = None
        # TRL's condition; its pass of the old policy is the first over the batch
        steps = self.args.steps_per_generation * self.num_iterations
        from_vllm = self.use_vllm and self.vllm_importance_sampling_correction
        self._old_is_next = self.args.gradient_accumulation_steps % steps != 0 or from_vllm
        return made

    def _generate_and_score_completions(self, inputs):
        """Add advantages, loss weights, denominator (over all processes) and routes to TRL's
        batch.
        """
        batch, config = super()._generate_and_score_completions(inputs), self.loss_config
        advantages_N, weights_N = self._scored
        mask_BT = loss_mask(batch) & (weights_N > 0)[:, None]
        corrected = config.correction != "none"
        message = f'correction="{config.correction}" needs the log-probabilities of vLLM, or of a '
        require(not corrected or SAMPLED in batch, f"{message}rollout_func that returns them")
        if OLD not in batch and (corrected or self.routing.mode == "r2"):
            found = self._score_old(*join_sequences(batch), loss_mask(batch))
            if corrected:
                batch[OLD] = found.logp_BT
        elif OLD not in batch:
            self._routes = self.routing.place(self._generated[1], join_sequences(batch)[1])
        if self._routes is not None:
            batch[ROUTES] = self._routes
        self._generated = None, None
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
        """Return the tokens with a gradient over all processes.

        Reports the tokens in the loss and the share of them with a gradient, as in the local loop.
        """
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
        """Score TRL's passes before the update (old policy, reference) like the pass of the
        update.
        """
        is_old = self._old_is_next
        self._old_is_next = False
        where = model, input_ids, attention_mask
        entropy, aux_loss = (options.pop(f"compute_{k}", False) for k in ("entropy", "aux_loss"))
        if any(value is not None for value in options.values()):
            require(
                self.routing.mode == "none",
                'routing replay does not support images: use routing="none"',
            )
            asked = options | {"compute_entropy": entropy, "compute_aux_loss": aux_loss}
            base = super()._get_per_token_logps_and_entropies
            return base(*where, logits_to_keep, batch_size, **asked)
        chosen_BC = attention_mask[:, -logits_to_keep:] > 0
        for row_C, sampled in zip(
            chosen_BC, self._generated[0] or ()
        ):  # tool responses are not scored
            row_C[: len(sampled)] &= torch.tensor(sampled, device=row_C.device).bool()
        if is_old:
            found = self._score_old(input_ids, attention_mask, chosen_BC)
        else:
            found = self._score(*where, chosen_BC, batch_size, router_logits=aux_loss)
        return found.logp_BT, found.entropies_BT if entropy else None, found.aux_loss

    @torch.no_grad()
    def _score_old(self, ids_BT, seen_BT, chosen_BC) -> Scored:
        """Score the policy before the update; store the routes to replay."""
        args = self.args
        train = self._mode == "train"
        size = args.per_device_train_batch_size if train else args.per_device_eval_batch_size
        given = self.routing.place(self._generated[1], seen_BT)
        with self.routing.record_old_policy(self.model, ids_BT.shape, given, size) as recorded:
            found = self._score(self.model, ids_BT, seen_BT, chosen_BC, size)
        self._routes = recorded[0] if recorded else given
        return found

    def _score(
        self, model, ids_BT, seen_BT, chosen_BC, batch_size=None, router_logits=False
    ) -> Scored:
        """Score completions [B, C]; TRL's own head (for some models) scores all tokens."""
        width = chosen_BC.size(1)
        heads = find_heads(self.accelerator.unwrap_model(model))
        if not heads or self.is_deepspeed_enabled:
            base = super()._get_per_token_logps_and_entropies
            wanted = router_logits and self.aux_loss_enabled
            logp, entropies, aux = base(model, ids_BT, seen_BT, width, batch_size, True, wanted)
            return Scored(logp, entropies, aux, None)
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
        """Run TRL's step; keep the hooks on experts until the backward pass has finished."""
        with ExitStack() as stack:
            stack.callback(setattr, self, "_until_backward", None)
            self._until_backward = stack
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self._step % self.current_gradient_accumulation_steps == 0:
            self._report(self.routing.metrics(self._sum_over_processes))
        return loss

    def _sum_over_processes(self, own: Tensor) -> Tensor:
        """Sum over all processes."""
        return self.accelerator.reduce(own, "sum")

    def _compute_loss(self, model, inputs):
        """Compute `policy_loss` of one micro-batch, scaled so that accumulation and processes add
        up.
        """
        train = self._mode == "train"
        kl = self.loss_config.kl_coef > 0
        inputs = drop_dead_rows(inputs, kl) if train else inputs
        found = self._score_for_loss(model, inputs)
        logp_BT = found.logp_BT.float()  # TRL's head returns bfloat16 under autocast
        # without TRL's old log-probabilities, the old policy is the current one
        old_BT, sampled_BT = inputs.get(OLD, logp_BT.detach()), inputs.get(SAMPLED)
        behaviour_BT, old_BT = (old_BT, None) if sampled_BT is None else (sampled_BT, old_BT)
        # processes average their gradients, and a generation batch may serve several steps
        share = 1 / self.accelerator.num_processes  # part of the batch in one step and process
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
            so_far = self._metrics[self._mode]["mismatch/max_logp_gap"]  # since the last log
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
        """Score the tokens in the loss, with replayed routes if configured; count the load of
        experts.
        """
        ids_BT, seen_BT = join_sequences(inputs)
        routes_BTLK = inputs.get(ROUTES)
        watched = self.routing.sizes is not None
        asked = self.aux_loss_enabled or watched
        with ExitStack() as until_scored:
            until = self._until_backward or until_scored
            recorder = self.routing.attach(until, model, routes_BTLK)
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
    """Raise ValueError for options without effect, or with missing requirements."""
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
    """Return bool [B, C]: tokens that the model sampled, without padding and tool responses."""
    return (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()


def weighted_mask(batch: Batch) -> Tensor:
    """Return the tokens of `loss_mask` in rows with a loss weight."""
    return loss_mask(batch) & (batch["loss_weights"] > 0)[:, None]


def join_sequences(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return (ids [B, P + C], attention mask [B, P + C]) of prompts and completions."""
    ids_BT, seen_BT = (torch.cat([batch[p], batch[c]], dim=1) for p, c in zip(PROMPT, COMPLETION))
    return ids_BT, seen_BT


def count_live_tokens(batch: Batch, kl: bool) -> Tensor:
    """Count the tokens of each row [B] with a gradient: from an advantage, or from the KL term
    (`kl`).
    """
    tokens_B = weighted_mask(batch).sum(dim=1)
    return tokens_B if kl else tokens_B * (batch["advantages"] != 0)


def drop_dead_rows(batch: Batch, kl: bool) -> Batch:
    """Return the rows with a gradient, without columns that are padding in all of them.

    All rows of a micro-batch are as long as the longest of the generation batch, and rows of groups
    without reward variance have no gradient. Loss and gradient do not change. If no row has a
    gradient, the shortest remains, because every process must run its pass. Batches with images are
    returned unchanged.
    """
    kept_B = count_live_tokens(batch, kl) > 0
    _, seen_BT = join_sequences(batch)
    if not kept_B.any():
        kept_B[seen_BT.sum(dim=1).argmin()] = True
    width = batch[PROMPT[0]].size(1)
    used_T = seen_BT[kept_B].any(dim=0)
    used_T[width] = True  # keep at least one completion token
    in_prompt, in_completion = used_T[:width], used_T[width:]
    completions_BC = batch[COMPLETION[0]].shape
    rows = {}
    for name, value in batch.items():
        if not isinstance(value, Tensor) or value.ndim == 0:
            rows[name] = value
        elif name in PROMPT:
            rows[name] = value[kept_B][:, in_prompt]
        elif name == ROUTES:
            kept_there, used_there = kept_B.to(value.device), used_T.to(value.device)
            rows[name] = value[kept_there][:, used_there]
        elif value.shape[:2] == completions_BC:
            rows[name] = value[kept_B][:, in_completion]
        elif value.shape == kept_B.shape:
            rows[name] = value[kept_B]
        else:
            return batch  # images: a row may have several
    return rows


# ---------------------------------------------------------------- routing replay


class _Sizes(NamedTuple):
    layers: int
    experts: int
    chosen: int  # experts per token


class Routing:
    """Records, replays and counts the expert routes of one trainer's model.

    Args:
        mode: routes that the loss replays: "none", "r2" (old policy) or "r3" (sampling engine).

    Raises:
        ValueError: replay for a model without softmax top-k routers.
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

    def place(self, given: Sequence[Any] | None, seen_BT: Tensor) -> Tensor | None:
        """Lay out the engine's routes as int16 [B, T, L, k] on the CPU, -1 for no record.

        Args:
            given: per row an array [tokens, L, k], prompt included; the last token may be missing
                because it is never an input. uint16 65535 means no record.
            seen_BT: attention mask.

        Raises:
            ValueError: mode "r3" without routes, or wrong shapes.
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

    def attach(
        self, stack: ExitStack, model: nn.Module, routes_BTLK: Tensor | None, rows: int = 0
    ) -> record_routes | None:
        """Record, and if configured replay, the next passes of `model` until `stack` closes.

        Args:
            rows: rows of one pass, if the batch is run in several.

        Returns:
            The recorder of the router's own choices; None if the model has no experts.
        """
        if self.sizes is None:
            return None
        model = _Unwrapped(model)
        recorder = stack.enter_context(
            record_routes(model)
        )  # before the replay hooks: the model's own choices
        if routes_BTLK is not None and self.mode != "none":
            parts = routes_BTLK.split(rows or len(routes_BTLK))
            stack.enter_context(replay_routes(model, [_by_layer(part) for part in parts]))
        return recorder

    @contextmanager
    def record_old_policy(
        self, model: nn.Module, batch_shape: torch.Size, routes_BTLK: Tensor | None, rows: int
    ) -> Iterator[list[Tensor]]:
        """Wrap the old policy's passes over a batch [B, T], `rows` at a time.

        Yields a list; in mode "r2" it contains the routes [B, T, L, k] after the block.
        """
        found: list[Tensor] = []
        with ExitStack() as stack:
            wanted = routes_BTLK if self.mode == "r3" else None
            recorder = None
            if self.mode != "none":
                recorder = self.attach(stack, model, wanted, rows)
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
        """Add the routes of one micro-batch, chosen and recorded, to the statistics of the step."""
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
        """Return the metrics of the step since the last call; {} if nothing was counted.

        They cover an optimizer step over all processes, because loads in one micro-batch are noise.
        `total` sums over processes.

        moe/max_violation: load of the busiest expert / mean load - 1, in the worst layer;
        max_violation_mean: mean over layers; router_entropy: nats; rerouted: share of the recorded
        tokens that the router would now send to other experts, mean over layers.
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
    """Return routes as `replay_routes` expects them: experts_LNK with N = B x T."""
    return routes_BTLK.flatten(0, 1).transpose(0, 1)


def _sizes(model: nn.Module) -> _Sizes | None:
    """Return the numbers of layers and experts; None for a model without routers."""
    try:
        hooks = record_routes(model)
    except ValueError:
        return None
    hooks.close()
    config = model.config.get_text_config()
    return _Sizes(hooks.n_layers, config.num_experts, config.num_experts_per_tok)


class _Unwrapped:
    """A model whose module names ignore wrappers of activation checkpointing.

    FSDP2's recomputation inserts a wrapper around each layer.
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
        return dict(self.named_modules())[name]  # the name of a wrapper leads to the wrapped module


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
    """Build the arguments shared by TRL's trainers.

    Args:
        kind: SFTConfig or GRPOConfig.
        rows: rows of one optimizer step, over all processes.
        more: further arguments of `kind`.

    Raises:
        ValueError: the rows cannot be divided evenly, or sharding with one process.
    """
    at_once = config.trainer.device_batch * run.ranks.size
    require(
        rows % at_once == 0,
        f"{rows} rows per step cannot be shared by {run.ranks.size} processes with "
        f"trainer.device_batch={config.trainer.device_batch}: use a divisor of these rows",
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
        "report_to": [],  # `RunCallback` displays the rows
        "disable_tqdm": True,
    }
    if config.trainer.fsdp:
        require(
            run.ranks.size > 1,
            "trainer.fsdp=true shards over processes: set processes to 2 or more",
        )
        options["fsdp"] = True
        options["fsdp_config"] = {"version": 2}
        if config.trainer.gradient_checkpointing:  # FSDP2's own version gathers a layer only once
            options["gradient_checkpointing"] = False
            options["fsdp_config"]["activation_checkpointing"] = True
    arguments = kind(**options, **more)
    if config.trainer.fsdp and not cuda:
        _enable_cpu_sharding(arguments)
    return arguments


def _enable_cpu_sharding(arguments: TrainingArguments) -> None:
    """Make accelerate shard with gloo on CPUs, for tests; it silently ignores FSDP without
    devices.
    """
    _ = arguments.device  # its setup resets the state
    PartialState()._shared_state["distributed_type"] = DistributedType.MULTI_GPU


def balance_coefficient(where: str, coefficient: float) -> float:
    """Return the coefficient of the load-balancing loss; 0 for a dense model."""
    has_experts = hasattr(AutoConfig.from_pretrained(where), "num_experts")
    return coefficient if has_experts else 0.0


def disable_cudnn_attention() -> None:
    """Use torch's other attention kernels in this process from now on.

    torch prefers cuDNN's on Hopper. Its backward pass in half precision gives NaN with a mask and
    rows of 128 n + 64 tokens (torch issue 196678; observed on an H200 with torch 2.11:
    figures/reference/gpu/cudnn).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def gradient_is_finite(model: nn.Module, ranks: Ranks) -> bool:
    """Return True if the gradient is finite in all processes; a shard checks its own part."""
    found = [p.grad for p in model.parameters() if p.grad is not None]
    parts = [g.to_local() if isinstance(g, DTensor) else g for g in found]
    own = torch.stack([g.isfinite().all() for g in parts]).all() if parts else torch.tensor(True)
    return ranks.sum({"broken": float(not own)})["broken"] == 0


class RunCallback(TrainerCallback):
    """Writes one row of metrics per step and stops with a checkpoint at Ctrl-C.

    A step with a non-finite gradient is skipped and marked by the metric "skipped".

    Args:
        is_dead: returns True if no rollout of the step has a gradient; the step is then skipped,
            because the load-balancing loss and Adam's momentum alone would change the weights.
    """

    def __init__(self, run: RunFolder, is_dead: Callable[[], bool]):
        self.run = run
        self.is_dead = is_dead
        self.is_stop_requested = False
        self._watch = GradientWatch()
        self._skipped: dict = {}  # metric "skipped" of the step
        self._handlers: dict = {}
        self._seconds = 0.0  # duration of the last step

    def on_train_begin(self, args, state, control, **_):
        log = self.run.path / METRICS
        if self.run.ranks.first and log.exists():
            lines = log.read_bytes().splitlines(keepends=True)
            write_atomic(log, b"".join(lines[: state.global_step]))
        self.run.ranks.barrier()
        # every rank counts the skipped steps before this one
        rows = read_json_lines(log) if log.exists() else []
        self._watch.skipped = len(list(itertools.takewhile(lambda r: "skipped" in r, rows[::-1])))
        self._reporter = self.run.reporter(state.global_step)
        self._handlers = {
            each: signal.signal(each, self._request_stop) for each in polite_signals()
        }

    def _request_stop(self, *_) -> None:
        self.is_stop_requested = True

    def on_step_begin(self, args, state, control, **_):
        self._started = time.perf_counter()

    def on_log(self, args, state, control, logs=None, **_):
        if self.run.ranks.first and "loss" in (logs or {}):
            row = {"step": state.global_step, **logs, **self._skipped, "seconds": self._seconds}
            append_json_line(self.run.path / METRICS, row)
            self._reporter.show(state.global_step, row)

    def on_step_end(self, args, state, control, **_):
        self._seconds = round(time.perf_counter() - self._started, 3)
        if self.run.ranks.sum({"stop": float(self.is_stop_requested)})["stop"] > 0:
            self.is_stop_requested = True
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_pre_optimizer_step(self, args, state, control, model=None, **_):
        wanted = not self.is_dead()
        is_finite = not wanted or gradient_is_finite(model, self.run.ranks)
        self._skipped = {} if self._watch.usable(is_finite) else {"skipped": SKIPPED}
        if not wanted or not is_finite:
            model.zero_grad(set_to_none=True)  # the optimizer then changes no weight

    def on_train_end(self, args, state, control, **_):
        self._reporter.close()
        for each, handler in self._handlers.items():
            signal.signal(each, handler)


def run_trainer(
    run: RunFolder,
    trainer,
    checkpoint: str | None,
    is_dead: Callable[[], bool] = lambda: False,
) -> dict:
    """Train to the end, from `checkpoint` if there is one; return the last row of metrics.

    Raises:
        Interrupted: a stop was requested, and a checkpoint was written.
    """
    callback = RunCallback(run, is_dead)
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=checkpoint)
    if callback.is_stop_requested:
        raise Interrupted
    run.ranks.barrier()  # the first process has written its last row
    return read_metrics(run.path)[-1]


def find_checkpoint(folder: Path, run: RunFolder) -> str | None:
    """Return the newest complete checkpoint; delete incomplete ones.

    A killed checkpoint lacks trainer_state.json, which is written last.
    """
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
