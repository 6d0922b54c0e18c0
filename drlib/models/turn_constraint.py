"""Constrained turns: every sampled turn is a valid one (`drlib.chat.turn_grammar`).

`TurnConstraint` is an argument of the engines that read token ids. `TransformersEngine` masks the
logits with llguidance; vLLM receives the grammar in its own structured outputs. Servers of messages
are constrained by `drlib.models.json_turns`.

A mask removes tokens before the draw, so log-probabilities and entropies are those of the
constrained distribution, renormalised over the allowed tokens. They differ from the model's own:
train on unconstrained rollouts.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import decoders

from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import FormatError, parse
from drlib.chat.turn_grammar import build_turn_grammar
from drlib.models.json_turns import raise_not_applied

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

INSTALL_LLGUIDANCE = (
    "constrained turns with transformers need the package llguidance: pip install "
    '"drlib[constrained]"'
)


class TurnConstraint:
    """The grammar of the turns of a chat with tools.

    Args:
        chat: token ids of the chat template.
        tools: schemas (`Toolbox.schemas`).
        sizes: `text_characters` and `string_characters` of `build_turn_grammar`.
    """

    def __init__(self, chat: ChatIds, tools: Sequence[dict], **sizes: int):
        self._chat = chat
        added = chat.tokenizer.added_tokens_decoder.values()
        opening = chat.tokenizer.decode(chat.assistant_start, skip_special_tokens=False)
        self.grammar = build_turn_grammar(
            tools,
            # llguidance treats every added token of this shape as special
            tag_tokens={str(token) for token in added},
            is_open=opening.rstrip().endswith("<think>"),
            **sizes,
        )

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A copy of the tokenizer whose decoder grammar libraries read.

        A file converted from GGUF decodes bytes as the last of several steps, and these libraries
        read the first step only.
        """
        own = copy.deepcopy(self._chat.tokenizer)
        decoder = json.loads(own.backend_tokenizer.to_str())["decoder"] or {}
        if "ByteLevel" in [step["type"] for step in decoder.get("decoders", ())]:
            own.backend_tokenizer.decoder = decoders.ByteLevel()
        return own

    def require_applied(self, turn: Sequence[int]) -> None:
        """Raise EndpointError if a server's complete turn does not have the format."""
        text = self._chat.decode_turn(turn)
        if isinstance(parse(text), FormatError):
            raise_not_applied("structured_outputs", text)

    def create_masks(self, vocab_size: int) -> TokenMasks:
        """Compile the grammar for a model with `vocab_size` logits.

        Raises:
            ModuleNotFoundError: llguidance is not installed.
            ValueError: llguidance rejects the grammar, such as a tool's schema in it.
        """
        try:
            from llguidance import LLMatcher
            from llguidance.hf import from_tokenizer
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(INSTALL_LLGUIDANCE) from error
        tokens = from_tokenizer(self.tokenizer, vocab_size, eos_token=self._chat.end_id)
        matcher = LLMatcher(tokens, LLMatcher.grammar_from_lark(self.grammar), log_level=0)
        if matcher.is_error():
            cause = matcher.get_error().partition("\n")[0]
            raise ValueError(f"llguidance cannot constrain turns with these tools: {cause}")
        return TokenMasks(matcher, vocab_size)


class TokenMasks:
    """Allowed next tokens of a turn, after the tokens so far; `matcher` is llguidance's."""

    def __init__(self, matcher: Any, vocab_size: int):
        self._matcher = matcher
        self._vocab_size = vocab_size

    def copy(self) -> TokenMasks:
        """Return an independent copy, at the start of a turn if this one is."""
        return TokenMasks(self._matcher.deep_copy(), self._vocab_size)

    def allowed(self) -> np.ndarray:
        """Return bool [V]: the tokens that may follow; only the end token after a whole turn."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        return np.unpackbits(bits, bitorder="little")[: self._vocab_size].astype(bool)

    def accept(self, token: int) -> None:
        """Advance by a sampled token.

        Raises:
            RuntimeError: the token is not allowed, or a limit of llguidance is exceeded.
        """
        if not self._matcher.consume_token(token):
            cause = self._matcher.get_error().partition("\n")[0]
            raise RuntimeError(f"llguidance rejects the sampled token {token}: {cause}")
