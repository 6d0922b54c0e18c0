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
- Log-probabilities come from `training.frugal_head`, of the tokens that the model sampled alone;
  from TRL's own head for models that it does not take. Experts: `training.routing`.
- Rows without a gradient are not run through the model (`training.trl_batch`), as in the local
  loop; the load-balancing loss is the mean over the tokens that are.

Left out: images (TRL's head scores them), our agent loop as `rollout_func`, resampling of rollouts
(TRL's batch has a fixed size), an entropy bonus.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from drlib.rl.advantages import leave_one_out
from drlib.rl.losses import (
    LossConfig,
    kept_tokens,
    loss_denominator,
    merge_metrics,
    policy_loss,
)
from drlib.training.frugal_head import Scored, heads_of, score_tokens
from drlib.training.routing import GIVEN, Routed, Routing
from drlib.training.trl_batch import (
    ROUTES,
    live_rows,
    live_tokens,
    loss_mask,
    loss_weighed,
    sequences,
)
from drlib.training.trl_run import attend_without_cudnn
from drlib.validation import require

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
        attend_without_cudnn()
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
            found = self._score_old(*sequences(batch), loss_mask(batch))
            if corrected:
                batch[OLD] = found.logp_BT
        elif OLD not in batch:
            self._routes = self.routing.placed(self._rolled[1], sequences(batch)[1])
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
        weighed = loss_weighed(batch).sum()
        live = live_tokens(batch, self.loss_config.kl_coef > 0).sum()
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
        heads = heads_of(self.accelerator.unwrap_model(model))
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
        inputs = live_rows(inputs, kl) if train else inputs
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
            gap_BT = torch.where(loss_weighed(inputs), old_BT.detach() - sampled_BT, 0)
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
            part = live_tokens(inputs, kl).sum() / (inputs["live_tokens"] * share).clamp(min=1)
            loss = loss + self.router_aux_loss_coef * part * found.aux_loss
            gathered = self.accelerator.gather_for_metrics(found.aux_loss.detach())
            self._report({"aux_loss": gathered.mean().item()})
        return loss

    def _score_for_loss(self, model, inputs) -> Scored:
        """The tokens in the loss, under replayed routes if so asked; counts the experts' load."""
        ids_BT, seen_BT = sequences(inputs)
        routes_BTLK = inputs.get(ROUTES)
        watched = self.routing.sizes is not None
        asked = self.aux_loss_enabled or watched
        with ExitStack() as until_scored:
            until = self._until_backward or until_scored
            recorder = self.routing.open(until, model, routes_BTLK)
            chosen_BC = loss_weighed(inputs)
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
