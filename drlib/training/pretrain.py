"""Stages `untrained` and `cpt`: the initial policy, and agentic continual pre-training.

No weights can be downloaded, so the policy begins from a structured, induction-aware
initialisation (`drlib.policy.moe`): attention heads that already look for an earlier occurrence
of the current token. Wherever this kit says "from nothing" it means that; `init=plain` shows the
ordinary initialisation, which learns no copying in the time that a laptop has.

Pre-training reads invented worlds only (`drlib.synthesis.actions`): it teaches copying, reading
and the form of tool calls, but no fact, no answer and no chain of three look-ups.
"""

from __future__ import annotations

from pathlib import Path

from drlib.config import Config
from drlib.policy.moe import PolicyShape, build_policy
from drlib.synthesis.actions import ActionData
from drlib.training import stages
from drlib.training.data import begin, finish, policy_tools
from drlib.training.run import Ranks, RunFolder
from drlib.training.supervised import Recipe, train_supervised


def build_untrained(config: Config, run_dir: Path, ranks: Ranks) -> dict:
    """Stage `untrained`: the initial weights as a checkpoint folder."""
    run = RunFolder(run_dir, stages.settings_of("untrained", config), ranks)
    tokenizer, chat, *_ = policy_tools(config, run_dir.parents[1])
    sizes = config.pick("hidden", "layers", "heads", "kv_heads", "head_dim", "expert")
    model = build_policy(
        PolicyShape(config.vocabulary, **sizes), config.seed, config.init,
        eos_id=tokenizer.eos_token_id, pad_id=tokenizer.pad_token_id,
    )  # fmt: skip
    return finish(run, model, chat, {"parameters": sum(p.numel() for p in model.parameters())})


def pretrain(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Stage `cpt`: pre-train the initial policy on invented worlds; returns the last metrics."""
    run, model, chat, _, names = begin("cpt", "untrained", config, run_dir, ranks)
    data = ActionData(names, chat, config.search_results)
    recipe = Recipe(
        config.cpt_steps, config.cpt_batch_tokens, config.cpt_muon_lr, config.cpt_adam_lr,
        config.cpt_warmup_steps, config.cpt_decay_share, config.balance_coef,
        config.checkpoint_every,
    )  # fmt: skip
    metrics = train_supervised(
        model, recipe, lambda step, shard: data.stream(f"{config.seed}-{step}-{shard}"),
        run, chat.tokenizer.pad_token_id,
    )  # fmt: skip
    return finish(run, model, chat, metrics)


if __name__ == "__main__":
    stages.main({"untrained": build_untrained, "cpt": pretrain})
