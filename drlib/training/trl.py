"""TRL's GRPO trainer with the losses, advantages and filters of `drlib.rl`.

TRL brings accelerate, FSDP, PEFT, vLLM and checkpoints; what it cannot express by options is
Tongyi's recipe: leave-one-out over the members that count, a token-level loss, failures left out of
loss or baseline. `DeepResearchGRPOTrainer` replaces three methods (advantages by the filter's
verdict, the denominator, the loss), so its gradients equal the local loop's on the same batch.

- The denominator counts the whole generation batch over all processes; TRL then scales it to one
  optimiser step. With `steps_per_generation` equal to `gradient_accumulation_steps` (TRL's default
  and the on-policy case) that is exact, otherwise an even share.
- Behaviour log-probabilities are the sampling engine's where it gave them, else the trainer's own
  before the update. A clip is against the latter (except "double_sided"); the engine's mismatch
  counts with a correction only.

Left out: images, our agent loop as `rollout_func`, resampling of rollouts (TRL's batch has a fixed
size), an entropy bonus; the load-balancing loss is TRL's (`router_aux_loss_coef`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from drlib.checks import require
from drlib.rl.advantages import leave_one_out
from drlib.rl.loss_metrics import merge_metrics
from drlib.rl.losses import (
    LossConfig,
    kept_tokens,
    loss_denominator,
    policy_loss,
)

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
# in TRL's batch: log-probabilities from vLLM or a rollout function; the trainer's before the update
TAIL_TOKENS = 32  # decoded to look for a text that ends a completion: more than any such text has
SAMPLED, OLD = "sampling_per_token_logps", "old_per_token_logps"


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

    Raises ValueError: `args` sets an option that these replace, or a switch lacks what it needs.
    """

    def __init__(
        self,
        *args,
        loss: LossConfig | None = None,
        advantages: Callable[[Tensor, Tensor, Tensor], Tensor] = leave_one_out,
        rollout_filter: Callable[[Rollouts], tuple[Tensor, Tensor]] = exclude_overlong,
        ends: Sequence[str] = ("</answer>",),
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.loss_config = loss or LossConfig()
        self.advantage_estimator = advantages
        self.rollout_filter = rollout_filter
        self.ends = tuple(ends)
        _check_options(self.args, self.loss_config)

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        """TRL's rewards of all processes; keeps the advantages and weights that follow."""
        rewards_NF = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        judged_N = ~rewards_NF.isnan().all(dim=1)
        rewards_N = (rewards_NF * self.reward_weights.to(rewards_NF)).nansum(dim=1)
        rewards_N = rewards_N.masked_fill(~judged_N, torch.nan)
        n, device = len(prompts), rewards_N.device
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
        self._scored = advantages_N[own].float(), weights_N.float() * judged_N[own]
        return rewards_NF

    def _ended(self, ids: list[int]) -> bool:
        """Whether a completion stopped by itself: with an end token, or with one of `ends`."""
        if not ids or ids[-1] in {*self.eos_token_ids, self._tokenizer.pad_token_id}:
            return bool(ids)
        tail = self._tokenizer.decode(ids[-TAIL_TOKENS:], skip_special_tokens=False)
        return tail.rstrip().endswith(self.ends)

    def _generate_and_score_completions(self, inputs):
        """TRL's batch with our advantages, loss weights and denominator (of all processes)."""
        batch, config = super()._generate_and_score_completions(inputs), self.loss_config
        advantages_N, weights_N = self._scored
        mask_BT = _loss_mask(batch) & (weights_N > 0)[:, None]
        if config.correction != "none":  # of the sampling engine to the trainer before the update
            require(
                SAMPLED in batch,
                f'correction="{config.correction}" needs the log-'
                "probabilities of vLLM, or of a rollout_func that returns them",
            )
            if OLD not in batch:
                size = self.args.per_device_train_batch_size
                with torch.no_grad():
                    batch[OLD] = self._score(self.model, batch, batch_size=size)[0]
            if config.denominator == "kept":
                known = {"behaviour_logp_BT": batch[SAMPLED], "old_logp_BT": batch[OLD]}
                mask_BT = kept_tokens(mask_BT, config, **known)
        own = torch.tensor(loss_denominator(mask_BT, weights_N, config), device=weights_N.device)
        batch["advantages"], batch["loss_weights"] = advantages_N, weights_N
        batch["num_items_in_batch"] = self.accelerator.gather(own).sum()
        out = self.accelerator.gather(weights_N == 0).float().mean().item()
        self._metrics[self._mode]["filter/out_of_loss"].append(out)
        return batch

    def _score(self, model, batch, **options):
        """TRL's (logp_BT, entropies_BT, aux_loss) of a batch of its own layout."""
        ids, seen = (
            torch.cat([batch[f"prompt_{kind}"], batch[f"completion_{kind}"]], dim=1)
            for kind in ("ids", "mask")
        )
        width = batch["completion_ids"].size(1)
        return self._get_per_token_logps_and_entropies(model, ids, seen, width, **options)

    def _compute_loss(self, model, inputs):
        """`policy_loss` of one micro-batch, scaled so that accumulation and ranks add up."""
        logp_BT, entropies_BT, aux_loss = self._score(
            model, inputs, compute_entropy=True, compute_aux_loss=self.aux_loss_enabled
        )
        logp_BT = logp_BT.float()  # bfloat16 under autocast
        # Where TRL gives no old ones, steps align: they are today's.
        old_BT, sampled_BT = inputs.get(OLD, logp_BT.detach()), inputs.get(SAMPLED)
        behaviour_BT, old_BT = (old_BT, None) if sampled_BT is None else (sampled_BT, old_BT)
        # Processes average their gradients, and a generation batch may serve several steps.
        denominator, steps = inputs["num_items_in_batch"] / self.accelerator.num_processes, 1
        if self._mode == "train":
            steps = self.current_gradient_accumulation_steps
            denominator = denominator * steps / self.args.steps_per_generation
        loss, metrics = policy_loss(
            logp_BT,
            behaviour_BT,
            inputs["advantages"],
            _loss_mask(inputs),
            self.loss_config,
            old_logp_BT=old_BT,
            reference_logp_BT=inputs.get("ref_per_token_logps"),
            entropies_BT=entropies_BT.detach(),
            weights_B=inputs["loss_weights"],
            denominator=denominator,
        )
        own = torch.tensor([[*metrics.values()]], device=self.accelerator.device)
        parts = [dict(zip(metrics, row)) for row in self.accelerator.gather(own).tolist()]
        for name, value in merge_metrics(parts).items():
            self._metrics[self._mode][f"policy/{name}"].append(value)
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * aux_loss / steps
            gathered = self.accelerator.gather_for_metrics(aux_loss.detach())
            self._metrics[self._mode]["aux_loss"].append(gathered.mean().item())
        return loss

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


def _loss_mask(batch: dict[str, Any]) -> Tensor:
    """Tokens [B, T] that the model sampled: no padding, no tool responses."""
    return (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()
