"""The TRL trainer with drlib's losses: gradients of the local loop, rejected options.

Uses real TRL trainers on a tiny Qwen3-MoE. Generation is TRL's own or a fixed batch.

Run: python -m pytest tests/test_training_trl.py
"""

import numpy as np
import pytest
import torch

from drlib.config import Config
from drlib.models.moe import load_policy
from drlib.rl import advantages as estimators
from drlib.rl.losses import LossConfig, kept_tokens, policy_loss
from drlib.training.batch import RolloutBatch, compute_advantages
from drlib.training.distributed import Ranks
from drlib.training.learner import accumulate_gradients, loss_config
from drlib.trajectory import Segment, Termination, Trajectory
from tests.trl_examples import (
    COMPLETION,
    EOS,
    GROUP,
    VOCABULARY,
    GradientRecorder,
    assert_equal_gradients,
    named_gradients,
    save_checkpoint,
    trainer,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return save_checkpoint(tmp_path_factory.mktemp("policy") / "tiny")


# ---------------------------------------------------------------- against the local loop


def make_trajectory(batch, i, reward):
    """Return row i of TRL's batch as a trajectory of the local loop."""
    prompt = batch["prompt_ids"][i][batch["prompt_mask"][i].bool()]
    completion = batch["completion_ids"][i][batch["completion_mask"][i].bool()]
    ids = torch.cat([prompt, completion]).numpy().astype(np.int32)
    generated, ended = np.arange(len(ids)) >= len(prompt), int(ids[-1]) == EOS
    zeros = np.zeros(len(ids), np.float32)
    return Trajectory(
        id=str(i),
        task_id=str(i // GROUP),
        group_id=str(i // GROUP),
        world_version="",
        policy_version=0,
        token_ids=ids,
        generated=generated,
        logprobs=zeros,
        entropies=None,
        segments=np.full(len(ids), Segment.ANSWER, np.uint8),
        turns=zeros.astype(np.uint16),
        versions=zeros.astype(np.int32),
        routed_experts=None,
        tool_results=[],
        termination=Termination.ANSWERED if ended else Termination.LENGTH,
        answer="so" if ended else None,
        reward=reward,
        reward_parts={},
        messages=[],
        metadata={},
    )


SEQUENCE = {
    "rl.loss.aggregate": "sequence",
    "rl.advantage.estimator": "group_normalized",
    "rl.loss.level": "sequence",
}


@pytest.mark.parametrize(
    "switches, checkpointing, routing",
    [
        ({}, False, "none"),
        ({}, True, "none"),
        ({}, False, "r2"),
        ({}, True, "r2"),
        (SEQUENCE, False, "none"),
        ({"rl.loss.clip": "cispo", "rl.loss.aggregate": "constant"}, True, "r2"),
    ],
)
def test_step_gradients_match_the_local_loop(
    switches, checkpointing, routing, checkpoint, tmp_path
):
    config = Config.load(
        "ci",
        rl__filter__overlong="exclude",
        trainer__balance_coef=0.0,
        rollout__max_context_tokens=24,
        **switches,
    )
    rewards, batches, watch = [], [], GradientRecorder()

    def reward(completion_ids, **_):
        rewards.extend(float(sum(ids) % 3 == 0) for ids in completion_ids)
        return rewards

    grpo_trainer = trainer(
        checkpoint,
        tmp_path,
        reward,
        {"gradient_checkpointing": checkpointing},
        routing=routing,
        loss=loss_config(config),
        advantages=getattr(estimators, config.rl.advantage.estimator),
    )
    grpo_trainer.add_callback(watch)
    generate = grpo_trainer._generate_and_score_completions
    grpo_trainer._generate_and_score_completions = lambda inputs: (
        batches.append(generate(inputs)) or {**batches[-1]}
    )
    grpo_trainer.train()
    (batch,) = batches
    rollouts = [make_trajectory(batch, i, r) for i, r in enumerate(rewards)]
    advantages, weights, report = compute_advantages(rollouts, config)
    assert report["reasons"]["overlong"] and 0 < sum(rewards) < len(rewards)  # a mixed batch
    assert torch.equal(batch["loss_weights"], weights)
    torch.testing.assert_close(batch["advantages"], advantages)
    model, _ = load_policy(checkpoint)
    row = accumulate_gradients(
        model, [RolloutBatch(rollouts, advantages, weights)], config, Ranks()
    )
    expected = named_gradients(model)
    assert_equal_gradients(watch.gradients, expected)
    assert grpo_trainer.state.log_history[0]["policy/ratio_mean"] == pytest.approx(1.0)
    assert row["tokens"] > 0


# ---------------------------------------------------------------- a fixed batch


LENGTHS = (8, 5, 8, 3, 2, 8, 6, 8)
REWARDS = [1.0, 0.0, 0.0, 0.5, None, 1.0, 0.0, 0.0]


def fixed_rollouts(prompts, trainer):
    """Return eight completions, truncated at full length, with noisy engine log-probabilities."""
    rng = torch.Generator().manual_seed(1)
    completions, logprobs = [], []
    for i, n in enumerate(LENGTHS):
        ids = torch.randint(3, VOCABULARY, (n,), generator=rng).tolist()
        completions.append(ids if n == COMPLETION else [*ids[:-1], EOS])
        prompt = prompt_ids(i)
        with torch.no_grad():
            logits = trainer.model(torch.tensor([prompt + completions[-1]])).logits[0]
        logp = logits.log_softmax(-1)[len(prompt) - 1 : -1].gather(
            1, torch.tensor(completions[-1])[:, None]
        )
        logprobs.append((logp[:, 0] + 0.4 * torch.randn(n, generator=rng)).tolist())
    prompts = [prompt_ids(i) for i in range(len(LENGTHS))]
    return {"prompt_ids": prompts, "completion_ids": completions, "logprobs": logprobs}


def prompt_ids(i):
    return [3, 4, 5] if i < GROUP else [6]


def inputs():
    return [{"prompt": "t3 t4 t5"}] * GROUP + [{"prompt": "t6"}] * GROUP


def reward(completions, **_):
    return REWARDS


def test_advantages_weights_and_denominator_by_hand(checkpoint, tmp_path):
    grpo_trainer = trainer(checkpoint, tmp_path, reward, rollout_func=fixed_rollouts)
    batch = grpo_trainer._generate_and_score_completions(inputs())
    third = 1 / 3  # leave-one-out: R - mean of the other judged rollouts
    expected = [1 - third / 2, -0.5, -0.5, 0.5 - third, 0.0, 1.0, -0.5, -0.5]
    torch.testing.assert_close(batch["advantages"], torch.tensor(expected))
    # out of the loss: failures that the limit cut off (2, 7) and the unjudged (4)
    assert batch["loss_weights"].tolist() == [1, 1, 0, 1, 0, 1, 1, 0]
    assert batch["num_items_in_batch"] == 8 + 5 + 3 + 8 + 6
    assert grpo_trainer._metrics["train"]["filter/out_of_loss"] == [3 / 8]


def test_filter_sets_loss_and_baseline_separately(checkpoint, tmp_path):
    seen = []

    def exclude_last_two_from_baseline(rollouts):
        seen.append(rollouts)
        return torch.full((8,), 2.0), torch.arange(8) < 6

    grpo_trainer = trainer(
        checkpoint,
        tmp_path,
        reward,
        rollout_func=fixed_rollouts,
        rollout_filter=exclude_last_two_from_baseline,
    )
    batch = grpo_trainer._generate_and_score_completions(inputs())
    assert seen[0].truncated_N.tolist() == [n == COMPLETION for n in LENGTHS]
    assert seen[0].inputs[0]["prompt"] == "t3 t4 t5" and seen[0].rewards_N[4].isnan()
    assert batch["advantages"][4:].tolist() == [0.0] * 4  # one member is left: no baseline
    assert batch["loss_weights"].tolist() == [2, 2, 2, 2, 0, 2, 2, 2]
    assert batch["num_items_in_batch"] == 2 * (sum(LENGTHS) - LENGTHS[4])


@pytest.mark.parametrize("filtered", [True, False])
def test_end_tags_count_as_finished(filtered, checkpoint, tmp_path):
    """No completion has an end token; the first four end with "t7", a configured end tag."""
    completions = [[3, 4, 7], [7], [5, 6, 7], [4, 7], [3, 4], [7, 3], [5, 6], [8]]
    seen, ends = [], ("t6 t7", "t7") if filtered else ()

    def keep_all(rollouts):
        seen.append(rollouts.truncated_N.tolist())
        return torch.ones(8), torch.ones(8, dtype=torch.bool)

    grpo_trainer = trainer(checkpoint, tmp_path, reward, rollout_filter=keep_all, ends=ends)
    grpo_trainer._calculate_rewards([{}] * 8, ["p"] * 8, ["c"] * 8, completions)
    assert seen == [[False] * 4 + [True] * 4 if filtered else [True] * 8]


def test_answer_tag_ends_a_completion_by_default(checkpoint, tmp_path):
    grpo_trainer = trainer(checkpoint, tmp_path, reward)
    grpo_trainer._tokenizer.decode = lambda ids, **_: "".join(map(chr, ids))
    whole, cut = (list(map(ord, text)) for text in ("<answer>x</answer>", "<answer>x</answer> and"))
    assert (
        grpo_trainer._is_finished(whole)
        and not grpo_trainer._is_finished(cut)
        and not grpo_trainer._is_finished([])
    )


CASES = {
    "recipe": (LossConfig(), {}),
    "double-sided": (LossConfig(clip="double_sided", aggregate="sequence"), {}),
    "icepop": (LossConfig(correction="icepop", correction_bounds=(0.8, 1.25)), {}),
    "kl": (
        LossConfig(kl_coef=0.3, top_entropy=0.5, denominator="all", entropy_scope="sequence"),
        {"beta": 0.3},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_micro_batches_sum_to_policy_loss(name, checkpoint, tmp_path):
    config, options = CASES[name]
    grpo_trainer = trainer(
        checkpoint, tmp_path, reward, options, loss=config, rollout_func=fixed_rollouts
    )
    if config.kl_coef:  # a reference that differs
        with torch.no_grad():
            for p in grpo_trainer.ref_model.parameters():
                p.mul_(1.05)
    batch = grpo_trainer._generate_and_score_completions(inputs())
    for half in (slice(0, GROUP), slice(GROUP, None)):
        part = {k: v if v.dim() == 0 else v[half] for k, v in batch.items()}
        grpo_trainer.compute_loss(grpo_trainer.model, part).backward()
    found = named_gradients(grpo_trainer.model)
    grpo_trainer.model.zero_grad()

    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    mask_BT = batch["completion_mask"].bool()
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    model, _ = load_policy(checkpoint)
    width = mask_BT.size(1)
    logits = model(input_ids=ids, attention_mask=seen).logits[:, -width - 1 : -1]
    logp_BTV = logits.log_softmax(-1)
    logp_BT = logp_BTV.gather(-1, ids[:, -width:, None])[..., 0]
    entropies_BT = -(logp_BTV.exp() * logp_BTV).sum(-1).detach()
    loss, metrics = policy_loss(
        logp_BT,
        batch["sampling_per_token_logps"],
        batch["advantages"],
        mask_BT,
        config,
        old_logp_BT=logp_BT.detach(),
        reference_logp_BT=batch.get("ref_per_token_logps"),
        entropies_BT=entropies_BT,
        weights_B=batch["loss_weights"],
    )
    loss.backward()
    assert_equal_gradients(found, named_gradients(model))
    if config.correction != "none":
        used = mask_BT & (batch["loss_weights"] > 0)[:, None]
        kept = kept_tokens(
            used,
            config,
            behaviour_logp_BT=batch["sampling_per_token_logps"],
            old_logp_BT=logp_BT.detach(),
        )
        assert 0 < metrics["dropped_correction"] < 1
        assert batch["num_items_in_batch"] == kept.sum()
    if config.clip == "double_sided":
        assert metrics["clip_high"] + metrics["clip_low"] > 0


def test_tool_tokens_are_never_scored(checkpoint, tmp_path):
    """Old policy, reference and loss have zeros at tool tokens and log-probabilities elsewhere."""
    masks = [[int(t not in (1, 2)) for t in range(n)] for n in LENGTHS]

    def with_tools(prompts, trainer):
        return fixed_rollouts(prompts, trainer) | {"env_mask": masks}

    options = {"beta": 0.1, "steps_per_generation": 4, "per_device_train_batch_size": 2}
    loss = LossConfig(kl_coef=0.1)
    grpo_trainer = trainer(
        checkpoint, tmp_path, reward, options, loss=loss, rollout_func=with_tools
    )
    batch = grpo_trainer._generate_and_score_completions(inputs())
    sampled_BC = torch.zeros(len(LENGTHS), COMPLETION, dtype=torch.bool)
    for row_C, mask in zip(sampled_BC, masks):
        row_C[: len(mask)] = torch.tensor(mask).bool()
    assert torch.equal(batch["old_per_token_logps"] != 0, sampled_BC)
    assert torch.equal(batch["ref_per_token_logps"] != 0, sampled_BC)
    in_loss_BC = sampled_BC & (batch["loss_weights"] > 0)[:, None]
    with torch.no_grad():
        found = grpo_trainer._score_for_loss(grpo_trainer.model, batch)
    assert torch.equal(found.logp_BT != 0, in_loss_BC)
    assert torch.equal(found.entropies_BT != 0, in_loss_BC)


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "options, ours, message",
    [
        ({"loss_type": "grpo"}, {}, "GRPOConfig.loss_type='grpo' has no effect"),
        ({"epsilon": 0.1}, {}, "GRPOConfig.epsilon=0.1"),
        ({"scale_rewards": "none"}, {}, "GRPOConfig.scale_rewards"),
        ({}, {"loss": LossConfig(kl_coef=0.1)}, "beta is 0.0 and LossConfig.kl_coef 0.1"),
        ({}, {"loss": LossConfig(top_entropy=0.2)}, 'denominator="all"'),
    ],
)
def test_options_without_effect_are_rejected(options, ours, message, checkpoint, tmp_path):
    with pytest.raises(ValueError, match=message):
        trainer(checkpoint, tmp_path, reward, options, **ours)


def test_correction_requires_engine_logprobs(checkpoint, tmp_path):
    grpo_trainer = trainer(checkpoint, tmp_path, reward, loss=LossConfig(correction="truncate"))
    with pytest.raises(ValueError, match='correction="truncate" needs the log-probabilities'):
        grpo_trainer._generate_and_score_completions(inputs())


def test_filter_result_shape_is_validated(checkpoint, tmp_path):
    grpo_trainer = trainer(
        checkpoint,
        tmp_path,
        reward,
        rollout_func=fixed_rollouts,
        rollout_filter=lambda rollouts: (torch.ones(2), torch.ones(2)),
    )
    with pytest.raises(ValueError, match="shape .2,. for 8 completions"):
        grpo_trainer._generate_and_score_completions(inputs())
