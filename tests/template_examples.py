"""Tokenizers laid out like those of real models, with the templates that TRL ships."""

from pathlib import Path

import torch
import trl
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
# family -> (the token that ends a turn, other special tokens)
SPECIAL = {
    "qwen": ("<|im_end|>", ["<|im_start|>", "<|endoftext|>"]),
    "llama3_1": ("<|eot_id|>", ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]),
    "gemma": ("<end_of_turn>", ["<start_of_turn>", "<bos>"]),
    "phi3": ("<|end|>", ["<|user|>", "<|assistant|>", "<|system|>"]),
}
OWN_TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]  # no special tokens, as Qwen3's


def tokenizer_of(name):
    """A byte-level tokenizer with the template `name` and its family's tokens."""
    end, others = SPECIAL[name.split("3")[0].split("2")[0] if name.startswith("qwen") else name]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        ["user assistant system tool the answer is Krone of Norway " * 20],
        trainers.BpeTrainer(
            vocab_size=400,
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


def foreign_model(folder, name="qwen3"):
    """A folder with a dense model that has learned nothing, and such a tokenizer."""
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
