"""Real TRL trainers with our losses on tiny models, for the tests of the TRL step."""

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig

from drlib.models.moe import PolicyShape, build_policy, load_policy, save_policy
from drlib.training.trl import DeepResearchGRPOTrainer

VOCABULARY, EOS, PAD, GROUP, COMPLETION = 12, 1, 2, 4, 8
SHAPE = PolicyShape(
    vocab_size=VOCABULARY, hidden=32, layers=2, heads=4, head_dim=8, experts=4, expert_hidden=16
)


ON_A_CPU = dict(  # options of TRL's trainers
    use_cpu=True,
    bf16=False,
    report_to=[],
    disable_tqdm=True,
    gradient_checkpointing=False,
    router_aux_loss_coef=0.0,  # otherwise TRL adds the balance loss to the policy loss
)


def save_checkpoint(folder, std=None):
    """Save a plain policy with tokens t0..t11.

    Args:
        std: standard deviation of all matrices, so that the experts affect the output.
    """
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCABULARY)}, unk_token="t0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="t0", eos_token="t1", pad_token="t2"
    )
    policy = build_policy(SHAPE, 0, "plain", eos_id=EOS, pad_id=PAD)
    if std is not None:
        generator = torch.Generator().manual_seed(2)
        for p in policy.parameters():
            if p.dim() > 1:
                torch.nn.init.normal_(p, 0, std, generator)
    save_policy(policy, tokenizer, folder)
    return folder


@torch.no_grad()
def move_routers(model, std, seed=1):
    """Add noise to every router's weights."""
    generator = torch.Generator().manual_seed(seed)
    for layer in model.model.layers:
        layer.mlp.gate.weight += std * torch.randn(layer.mlp.gate.weight.shape, generator=generator)


def trainer(checkpoint, tmp_path, reward, options=None, **ours):
    """Build a single-process trainer: two prompts of four rollouts, two micro-batches a step.

    Args:
        ours: arguments of DeepResearchGRPOTrainer; `model` replaces the checkpoint's model.
    """
    model, tokenizer = load_policy(checkpoint)
    model = ours.pop("model", model)
    model.config._name_or_path = str(checkpoint)  # TRL loads the reference from here
    settings = dict(
        output_dir=str(tmp_path),
        **ON_A_CPU,
        max_steps=1,
        max_grad_norm=0.0,
        per_device_train_batch_size=GROUP,
        num_generations=GROUP,
        gradient_accumulation_steps=2,
        max_completion_length=COMPLETION,
        save_strategy="no",
        seed=3,
    )
    grpo_trainer = DeepResearchGRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": ["t3 t4 t5", "t6"]}),
        args=GRPOConfig(**settings | (options or {})),
        rollout_func=ours.pop("rollout_func", None),
        **ours,
    )
    grpo_trainer.current_gradient_accumulation_steps = grpo_trainer.args.gradient_accumulation_steps
    grpo_trainer.model.train()
    return grpo_trainer


class GradientRecorder(TrainerCallback):
    """Record the gradients before the optimizer step."""

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        self.gradients = named_gradients(model)


def named_gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal_gradients(found, expected):
    assert found.keys() == expected.keys()
    assert max(g.abs().max() for g in expected.values()) > 1e-3  # the comparison is not trivial
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-6, msg=name)
