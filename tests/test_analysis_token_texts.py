"""Texts of single tokens, for any tokenizer.

Run: python -m pytest tests/test_analysis_token_texts.py
"""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    PreTrainedTokenizerFast,
)

from drlib.chat.segments import token_texts
from drlib.chat.template import load_tokenizer
from drlib.trajectory import load_trajectories
from tests.test_analysis_entropy import TOUR


def other_tokenizer(kind):
    """Return a tokenizer whose single tokens decode without their space."""
    pieces = ["a", "w", "▁wait", "▁", "it", "Ġwait", "Ġ", "Ã", "©", "<unk>"]
    tokenizer = Tokenizer(models.WordLevel({p: i for i, p in enumerate(pieces)}, unk_token="<unk>"))
    if kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        tokenizer.pre_tokenizer.prepend_scheme = "never"
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def test_token_texts_concatenate_to_the_text():
    tokenizer = load_tokenizer(f"{TOUR}/policy_rl")
    for t in load_trajectories(f"{TOUR}/rl_sampled.parquet")[:10]:
        assert "".join(token_texts(tokenizer, t.token_ids)) == tokenizer.decode(t.token_ids)
    assert token_texts(other_tokenizer("metaspace"), [0, 2, 4]).tolist() == ["a", " wait", "it"]
    byte_level = other_tokenizer("bytes")
    assert token_texts(byte_level, [0, 5, 4]).tolist() == ["a", " wait", "it"]
    assert token_texts(byte_level, [7, 8]).tolist() == ["\ufffd", "\ufffd"]  # halves of é


def test_many_unknown_ids_are_rejected():
    with pytest.raises(ValueError, match="1 of 2 ids are not among the tokenizer's 10"):
        token_texts(other_tokenizer("bytes"), [0, 10])
    # model vocabularies are padded, and a weak model may sample a padding id
    assert token_texts(other_tokenizer("bytes"), [0] * 199 + [10])[-1] == "\ufffd"
