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


ON_A_CPU = dict(  # of TRL's trainers
    use_cpu=True,
    bf16=False,
    report_to=[],
    disable_tqdm=True,
    gradient_checkpointing=False,
    router_aux_loss_coef=0.0,  # else TRL adds the balance loss, which is no policy loss
)


def save_checkpoint(folder, std=None):
    """A plain policy and its words t0..t11. std: of all its matrices, so that experts matter."""
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
    """A trainer on one process: two prompts of four rollouts, in two micro-batches a step.

    model: instead of the checkpoint's, whose tokenizer it takes."""
    model, tokenizer = load_policy(checkpoint)
    model = ours.pop("model", model)
    model.config._name_or_path = str(checkpoint)  # whence TRL loads a reference
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
    made = DeepResearchGRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": ["t3 t4 t5", "t6"]}),
        args=GRPOConfig(**settings | (options or {})),
        rollout_func=ours.pop("rollout_func", None),
        **ours,
    )
    made.current_gradient_accumulation_steps = made.args.gradient_accumulation_steps
    made.model.train()
    return made


class Watch(TrainerCallback):
    """The gradients that the optimiser is about to use."""

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        self.gradients = named(model)


def named(model):
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal_gradients(found, expected):
    assert found.keys() == expected.keys()
    assert max(g.abs().max() for g in expected.values()) > 1e-3  # something to be equal to
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-6, msg=name)
