"""TRL's GRPO trainer with the losses, advantages and filters of `drlib.rl`.

TRL brings accelerate, FSDP, PEFT, vLLM and checkpoints; what it cannot express by options is
Tongyi's recipe: leave-one-out over the members that count, a token-level loss, failures left out of
loss or baseline. `DeepResearchGRPOTrainer` replaces three methods and nothing else: rewards are
kept together with the filter's verdict, advantages and the denominator are ours, and the loss is
`policy_loss`, so its gradients equal the local loop's on the same batch.

- The denominator counts the whole generation batch over all processes; TRL then scales it to one
  optimiser step. With `steps_per_generation` equal to `gradient_accumulation_steps` (TRL's default
  and the on-policy case) that is exact, otherwise an even share.
- Behaviour log-probabilities are the sampling engine's where it gave them (vLLM, a rollout
  function), else the trainer's own before the update. A clip is against the latter (except
  "double_sided"); the engine's mismatch counts with a correction only.

Left out: images, our agent loop as `rollout_func`, resampling of rollouts (TRL's batch has a fixed
size), an entropy bonus; the load-balancing loss is TRL's (`router_aux_loss_coef`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from drlib.rl.advantages import leave_one_out
from drlib.rl.checks import require
from drlib.rl.losses import (
    LossConfig, kept_tokens, loss_denominator, merge_metrics, policy_loss,
)  # fmt: skip

# Options whose work `LossConfig`, the advantages or the filter do here.
REPLACED = (
    "loss_type", "epsilon", "epsilon_high", "delta", "importance_sampling_level",
    "top_entropy_quantile", "off_policy_mask_threshold", "entropy_coef", "use_adaptive_entropy",
    "scale_rewards", "multi_objective_aggregation", "use_bias_correction_kl",
    "mask_truncated_completions", "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min",
)  # fmt: skip
SAMPLED = "sampling_per_token_logps"  # in TRL's batch, from vLLM or a rollout function


@dataclass(frozen=True)
class Rollouts:
    """One process's share of a generation batch, N completions, as a filter sees it.

    rewards_N: float, weighted sum of the reward functions; NaN where none could judge.
    truncated_N: bool, the completion stopped without an end token (a length limit).
    inputs: each completion's dataset row, with what a rollout function added to it.
    completions: as given to the reward functions.
    """

    rewards_N: Tensor
    truncated_N: Tensor
    inputs: Sequence[dict[str, Any]]
    completions: Sequence[Any]


def exclude_overlong(rollouts: Rollouts, positive_from: float = 0.5) -> tuple[Tensor, Tensor]:
    """Tongyi's rule: failures cut off by the length limit leave the loss, not the baseline.

    Returns (weights_N float, in_baseline_N bool), what every filter returns. Completions without a
    reward are out of both, whatever a filter says.
    """
    failed_N = ~(rollouts.rewards_N >= positive_from)
    weights_N = (~(failed_N & rollouts.truncated_N)).float()
    return weights_N, torch.ones_like(rollouts.truncated_N)


class DeepResearchGRPOTrainer(GRPOTrainer):
    """`GRPOTrainer` whose advantages, filter and loss are those of `drlib.rl`.

    Args (beyond TRL's own):
        loss: switches of `policy_loss`; the recipe's by default. kl_coef > 0 needs the same number
            as `GRPOConfig.beta`, by which TRL keeps a reference; top_entropy < 1 needs
            denominator="all" (entropies are not known before the forward pass, and are ranked
            within a micro-batch).
        advantages: (rewards_N, groups_N, valid_N) -> advantages_N, as in `drlib.rl.advantages`.
        rollout_filter: Rollouts -> (weights_N, in_baseline_N); `exclude_overlong` by default.

    Raises ValueError: `args` sets an option that these replace, or a switch lacks what it needs.
    """

    def __init__(
        self,
        *args,
        loss: LossConfig | None = None,
        advantages: Callable[[Tensor, Tensor, Tensor], Tensor] = leave_one_out,
        rollout_filter: Callable[[Rollouts], tuple[Tensor, Tensor]] = exclude_overlong,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.loss_config = loss or LossConfig()
        self.advantage_estimator, self.rollout_filter = advantages, rollout_filter
        _check_options(self.args, self.loss_config)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """TRL's rewards of all processes; keeps the advantages and weights that follow."""
        rewards_NF = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        unjudged_N = rewards_NF.isnan().all(dim=1)
        rewards_N = (rewards_NF * self.reward_weights.to(rewards_NF)).nansum(dim=1)
        rewards_N = rewards_N.masked_fill(unjudged_N, torch.nan)
        start = self.accelerator.process_index * len(prompts)
        own = slice(start, start + len(prompts))
        ends = {*self.eos_token_ids, self._tokenizer.pad_token_id}
        truncated = [not ids or int(ids[-1]) not in ends for ids in completion_ids_list]
        truncated_N = torch.tensor(truncated, device=rewards_N.device)
        verdict = self.rollout_filter(Rollouts(rewards_N[own], truncated_N, inputs, completions))
        weights_N, in_baseline_N = (_one_each(v, len(prompts), rewards_N.device) for v in verdict)
        valid_N = self.accelerator.gather(in_baseline_N.bool()) & ~unjudged_N
        size = self.num_generations if self.model.training else self.num_generations_eval
        groups_N = torch.arange(len(rewards_N), device=rewards_N.device) // size
        advantages_N = self.advantage_estimator(rewards_N, groups_N, valid_N)
        self._scored = advantages_N[own].float(), weights_N.float() * ~unjudged_N[own]
        return rewards_NF

    def _generate_and_score_completions(self, inputs):
        """TRL's batch with our advantages, loss weights and denominator (of all processes)."""
        batch = super()._generate_and_score_completions(inputs)
        advantages_N, weights_N = self._scored
        config, mask_BT = self.loss_config, _loss_mask(batch) & (weights_N > 0)[:, None]
        if config.correction != "none":
            self._complete(batch)
            if config.denominator == "kept":
                mask_BT = kept_tokens(mask_BT, config, **_behaviour(batch))
        own = loss_denominator(mask_BT, weights_N, config)
        total = self.accelerator.gather(torch.tensor(own, device=weights_N.device)).sum()
        batch["advantages"], batch["loss_weights"] = advantages_N, weights_N
        batch["num_items_in_batch"] = total
        mode = "train" if self.model.training else "eval"
        out = self.accelerator.gather(weights_N == 0).float().mean().item()
        self._metrics[mode]["filter/out_of_loss"].append(out)
        return batch

    @torch.no_grad()
    def _complete(self, batch) -> None:
        """A correction compares the sampling engine with the trainer before the update."""
        kind = self.loss_config.correction
        require(SAMPLED in batch, f'correction="{kind}" needs the log-probabilities of the '
                "sampling engine (vLLM, or a rollout_func that returns logprobs)")  # fmt: skip
        if "old_per_token_logps" not in batch:
            size = self.args.per_device_train_batch_size
            batch["old_per_token_logps"] = self._score(self.model, batch, batch_size=size)[0]

    def _score(self, model, batch, **options):
        """TRL's (logp_BT, entropies_BT, aux_loss) of a batch of its own layout."""
        return self._get_per_token_logps_and_entropies(
            model,
            torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
            torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
            batch["completion_ids"].size(1),
            **options,
        )

    def _compute_loss(self, model, inputs):
        """`policy_loss` of one micro-batch, scaled so that accumulation and ranks add up."""
        config, mode = self.loss_config, "train" if self.model.training else "eval"
        logp_BT, entropies_BT, aux_loss = self._score(
            model, inputs, compute_entropy=True, compute_aux_loss=self.aux_loss_enabled
        )
        logp_BT = logp_BT.float()  # bfloat16 under autocast
        known = _behaviour(inputs, logp_BT.detach())
        steps = self.current_gradient_accumulation_steps if mode == "train" else 1
        # Processes average their gradients, and a generation batch may serve several steps.
        denominator = inputs["num_items_in_batch"] / self.accelerator.num_processes
        if mode == "train":
            denominator = denominator * steps / self.args.steps_per_generation
        loss, metrics = policy_loss(
            logp_BT, known.pop("behaviour_logp_BT"), inputs["advantages"], _loss_mask(inputs),
            config, **known, reference_logp_BT=inputs.get("ref_per_token_logps"),
            entropies_BT=entropies_BT.detach(), weights_B=inputs["loss_weights"],
            denominator=denominator,
        )  # fmt: skip
        self._log_loss(mode, metrics)
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * aux_loss / steps
            gathered = self.accelerator.gather_for_metrics(aux_loss.detach())
            self._metrics[mode]["aux_loss"].append(gathered.mean().item())
        return loss

    def _log_loss(self, mode: str, metrics: dict[str, float]) -> None:
        own = torch.tensor([[*metrics.values()]], device=self.accelerator.device)
        parts = [dict(zip(metrics, row)) for row in self.accelerator.gather(own).tolist()]
        for name, value in merge_metrics(parts).items():
            self._metrics[mode][f"policy/{name}"].append(value)


def _check_options(args: GRPOConfig, config: LossConfig) -> None:
    """ValueError for what would be ignored, or would be missing at the first step."""
    usual = {field.name: field.default for field in fields(GRPOConfig)}
    for name in REPLACED:
        given = getattr(args, name)
        require(given == usual[name], f"GRPOConfig.{name}={given!r} has no effect here; set the "
                "loss, advantages or rollout_filter of the trainer instead")  # fmt: skip
    require(args.beta == config.kl_coef, f"GRPOConfig.beta is {args.beta} and LossConfig.kl_coef "
            f"{config.kl_coef}; give both the same number (beta makes TRL keep the reference "
            "policy)")  # fmt: skip
    known = config.top_entropy == 1 or config.denominator == "all"
    require(known, 'top_entropy < 1 needs LossConfig(denominator="all") here')


def _one_each(values, n: int, device) -> Tensor:
    values = torch.as_tensor(values, device=device)
    got = tuple(values.shape)
    require(got == (n,), f"rollout_filter gave shape {got} for {n} completions")
    return values


def _loss_mask(batch: dict[str, Any]) -> Tensor:
    """Tokens [B, T] that the model sampled: no padding, no tool responses."""
    mask_BT = batch["completion_mask"]
    return (mask_BT * batch["tool_mask"] if "tool_mask" in batch else mask_BT).bool()


def _behaviour(batch: dict[str, Any], now_BT: Tensor | None = None) -> dict[str, Tensor | None]:
    """`behaviour_logp_BT` and `old_logp_BT`; `now_BT` (no gradient) is the old one where steps
    align. Without the sampling engine's record the ratio is against the trainer's own."""
    old_BT, sampled_BT = batch.get("old_per_token_logps", now_BT), batch.get(SAMPLED)
    if sampled_BT is None:
        return {"behaviour_logp_BT": old_BT, "old_logp_BT": None}
    return {"behaviour_logp_BT": sampled_BT, "old_logp_BT": old_BT}
