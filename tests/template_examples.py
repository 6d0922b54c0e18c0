"""Tokenizers laid out like those of real models, with the templates that TRL ships."""

from pathlib import Path

import torch
import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from drlib.chat.prompts import research_prompt
from drlib.tools import TOOLS

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
# family -> (the token that ends a turn, other special tokens)
SPECIAL = {
    "qwen": ("<|im_end|>", ["<|im_start|>", "<|endoftext|>"]),
    "llama3_1": ("<|eot_id|>", ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]),
    "gemma": ("<end_of_turn>", ["<start_of_turn>", "<bos>"]),
    "phi3": ("<|end|>", ["<|user|>", "<|assistant|>", "<|system|>"]),
}
OWN_TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]  # not special, as in Qwen3


def tokenizer_of(name, texts=(), size=400):
    """Return a byte-level tokenizer with the template `name` and its family's tokens.

    texts: additional training texts; `size` is the vocabulary size.
    """
    end, others = SPECIAL[name.split("3")[0].split("2")[0] if name.startswith("qwen") else name]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        ["user assistant system tool the answer is Krone of Norway " * 20, *texts],
        trainers.BpeTrainer(
            vocab_size=size,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    bpe.add_special_tokens([AddedToken(t, special=True) for t in (end, *others)])
    bpe.add_tokens([AddedToken(t, special=False) for t in OWN_TAGS if name.startswith("qwen")])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=end,
        bos_token=others[0],
        chat_template=(TEMPLATES / f"{name}.jinja").read_text(),
    )


REAL = ("qwen3_moe", "qwen3", "llama")
TEMPLATE_OF = {"qwen3_moe": "qwen3_instruct_2507", "qwen3": "qwen3", "llama": "llama3_1"}


def random_model(folder, kind):
    """Create a folder with an untrained model of architecture `kind`, and a tokenizer with a chat
    template of its family.
    """
    prompt = research_prompt([TOOLS[name].schema for name in ("search", "visit", "python")])
    tokenizer = tokenizer_of(TEMPLATE_OF[kind], [prompt] * 4, 1200)
    torch.manual_seed(0)
    sizes = dict(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    if kind == "qwen3_moe":
        experts = dict(
            num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True
        )
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **experts))
    elif kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**sizes))
    else:
        model = LlamaForCausalLM(LlamaConfig(**sizes))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def foreign_model(folder, name="qwen3"):
    """Create a folder with an untrained dense model and such a tokenizer."""
    tokenizer = tokenizer_of(name)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16_384,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
