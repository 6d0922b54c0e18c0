"""Words in place of tokens, for texts whose tokenizer is not available."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer, models

# scripts without spaces between words: each character is a piece
_UNSPACED = r"[\u2e80-\u303f\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]"
_PIECE = re.compile(rf"\s*(?:<[^<>\s]*>|{_UNSPACED}|(?:(?!{_UNSPACED})[^\s<])+|<)|\s+")


class WordTokenizer:
    """Pieces of a text that take the place of tokens, with the methods of a tokenizer.

    A piece is a word with the white space before it, a tag such as <think>, or a character of a
    script without spaces. The pieces of a text join to the text. Ids count the different pieces in
    the order of their first use, so they mean nothing outside of this object.
    """

    chat_template = None

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._pieces: list[str] = []

    def __len__(self) -> int:
        return len(self._pieces)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of the pieces of a text."""
        return [self._find_id(piece) for piece in _PIECE.findall(text)]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Return the text of pieces."""
        return "".join(self._pieces[i] for i in ids)

    def apply_chat_template(self, messages: Sequence[dict], **options: Any) -> str:
        """Render messages with the template in `options`."""
        return self._renderer.apply_chat_template(messages, **options)

    @cached_property
    def _renderer(self):
        from transformers import PreTrainedTokenizerFast  # lazy: imports torch

        return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel()))

    def _find_id(self, piece: str) -> int:
        if piece not in self._ids:
            self._ids[piece] = len(self._pieces)
            self._pieces.append(piece)
        return self._ids[piece]
