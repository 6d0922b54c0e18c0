"""Conversations as token ids by the chat template of any tokenizer.

`ChatIds` (drlib.chat.template) is for drlib's tokenizer, whose tags are special tokens. A real
model has its own template and tags, which may be ordinary text. Its template is rendered once with
marks in place of the content. The text around the marks is encoded once, and content is inserted as
plain text, so nothing in a page becomes a tag.

Contexts only grow. A template that would rewrite earlier turns (Qwen3's removes old thoughts) is
not applied to them: the policy's turns stay the sampled ids.

Templates without support for a system prompt, tools, tool responses, or the `<tool_call>` format
are rejected with the cause. Slow tokenizers are not supported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import TemplateError
from tokenizers import Tokenizer

from drlib.chat.segments import segment_texts, token_texts
from drlib.chat.template import CHAT_TEMPLATE
from drlib.trajectory import Segment
from drlib.validation import require

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARKS = ("7f3QUESTION9c1", "7f3TURN9c1", "7f3SAID9c1")
IN_TEXT = "list the tools in the system prompt instead (drlib.chat.prompts.research_prompt)"
CLOSERS = ("</tool_call>", "</answer>")
RESPONSE_TAGS = ("<tool_response>\n", "\n</tool_response>")


def is_drlib_tokenizer(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return True if drlib made the tokenizer: its policy knows tools and format."""
    return tokenizer.chat_template == CHAT_TEMPLATE


class TemplateIds:
    """Token ids of the parts of a conversation; same methods as `ChatIds`.

    Args:
        tokenizer: a fast tokenizer with a chat template.
        tools: schemas (`Tool.function`), listed in every prompt by the template.
        tool_role: "user" if the template has no tool role: a response is then a user message
            between `<tool_response>` tags.
        example: turns of a worked example (`drlib.chat.worked_example`), rendered between the
            system prompt and the question; trusted.
        options: of the template, such as `enable_thinking=False` for Qwen3's.

    Raises:
        ValueError: no template, no fast tokenizer, or a template that cannot render a tool's
            response or the tools.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: Sequence[dict] = (),
        *,
        tool_role: str = "tool",
        example: Sequence[dict] = (),
        **options: Any,
    ):
        name = tokenizer.name_or_path or "hand"
        self._name = f"the chat template of the tokenizer at {name}"
        require(bool(tokenizer.chat_template), f"the tokenizer at {name} has no chat template")
        require(tokenizer.is_fast, f"the tokenizer at {name} is slow: load a fast one")
        require(tool_role in ("tool", "user"), f"tool_role={tool_role!r} must be tool or user")
        self.tokenizer = tokenizer
        self._tool_role = tool_role
        self.example = [self._as_rendered(message) for message in example]
        self._options = options
        self._tools = list(tools)
        self.has_native_tools = bool(tools)
        self._plain = _without_added_tokens(tokenizer)
        self._require_tools()
        turns = {role: self._encode_turn(role) for role in {"user", tool_role}}
        self.end_id = turns["user"][0][0]
        added = tokenizer.added_tokens_decoder
        is_special = self.end_id in added and all(
            before[0] == self.end_id and self.end_id in behind for before, behind in turns.values()
        )
        require(is_special, f"{self._name} ends a turn without a special token")
        # ids before and after the content; the preceding turn has its own end token
        self._around_ids = {role: (before[1:], behind) for role, (before, behind) in turns.items()}
        behind = turns["user"][1]
        self.assistant_start = behind[behind.index(self.end_id) + 1 :]
        whole = {str(token): at for at, token in added.items()}
        stops = [self.end_id, tokenizer.eos_token_id, *(whole.get(tag) for tag in CLOSERS)]
        self.stop_ids = tuple(dict.fromkeys(at for at in stops if at is not None))

    def with_tools(self, tools: Sequence[dict]) -> TemplateIds:
        """Return the same template with other tools in its prompts."""
        return TemplateIds(self.tokenizer, tools, tool_role=self._tool_role, **self._options)

    def _as_rendered(self, message: dict) -> dict:
        """Return a message of the example; a tool's response has the form of `tool_turn`."""
        if message["role"] != "tool" or self._tool_role == "tool":
            return message
        opens, closes = RESPONSE_TAGS
        return {"role": "user", "content": f"{opens}{message['content']}{closes}"}

    def _encode_turn(self, role: str) -> tuple[list[int], list[int]]:
        """Return the ids before and after the content of a user or tool turn.

        From the end of the assistant's turn to the start of its next one.
        """
        question, turn, content = MARKS
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": turn},
            {"role": role, "content": content},
        ]
        name = f"the content of a {role} turn"
        try:
            text = self._render(messages).partition(turn)[2]
            before, behind = self._around(text, content, name)
        except ValueError as error:
            remedy = ": pass tool_role='user'" if role == "tool" else ""
            raise ValueError(f"{error}{remedy}") from None
        return self.encode(before), self.encode(behind)

    def plain(self, text: str) -> list[int]:
        """Encode untrusted text: no tag becomes a token."""
        text = text.encode("utf-8", "replace").decode("utf-8")
        return self._plain.encode(text, add_special_tokens=False).ids

    def encode(self, text: str) -> list[int]:
        """Encode the template's or the policy's text: its tags are tokens if it has them."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def prompt(self, question: str, *, system: str | None = None) -> list[int]:
        """Encode everything before the first sampled token; `system` is trusted.

        Raises:
            ValueError: the template drops the system prompt.
        """
        content = MARKS[2]
        head = [] if system is None else [{"role": "system", "content": system}]
        text = self._render([*head, *self.example, {"role": "user", "content": content}])
        shown = system is None or system.strip() in text
        require(shown, f"{self._name} drops the system prompt: put it in the question")
        before, behind = self._around(text, content, "a question")
        return [*self.encode(before), *self.plain(question), *self.encode(behind)]

    def tool_turn(self, observation: str) -> list[int]:
        """Encode an observation, up to the next assistant turn."""
        before, behind = self._around_ids[self._tool_role]
        opens, closes = RESPONSE_TAGS
        if self._tool_role == "user":
            before, behind = [*before, *self.encode(opens)], [*self.encode(closes), *behind]
        return [*before, *self.plain(observation), *behind]

    def user_turn(self, text: str) -> list[int]:
        """Encode a user message, up to the next assistant turn."""
        before, behind = self._around_ids["user"]
        return [*before, *self.plain(text), *behind]

    def decode_turn(self, ids: Iterable[int]) -> str:
        """Decode a sampled turn, tags included, without its closing token."""
        ids = [int(i) for i in ids]
        while ids and ids[-1] in (self.end_id, self.tokenizer.eos_token_id):
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def segments(
        self, ids: Sequence[int] | np.ndarray, generated: Sequence[bool] | np.ndarray
    ) -> np.ndarray:
        """Return the `Segment` of each token, uint8[T]; generated: bool[T], sampled tokens."""
        texts = token_texts(self.tokenizer, ids)
        # a question or page may contain the text of a turn marker; only the token is a marker
        spelled = ~np.isin(ids, list(self.tokenizer.added_tokens_decoder))
        texts[spelled] = [text.replace("|", "\N{BROKEN BAR}") for text in texts[spelled]]
        segments = segment_texts(texts, np.asarray(generated, bool))
        segments[np.isin(ids, [self.end_id, self.tokenizer.eos_token_id])] = Segment.TEMPLATE
        return segments

    def _render(self, messages: list[dict], opens: bool = True) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                tools=self._tools or None,
                tokenize=False,
                add_generation_prompt=opens,
                **self._options,
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise ValueError(f"{self._name} rejects the roles {roles}: {error}") from None

    def _around(self, text: str, content: str, name: str) -> tuple[str, str]:
        """Split the text at the mark `said`."""
        require(text.count(content) == 1, f"{self._name} does not render {name} once and unchanged")
        before, _, behind = text.partition(content)
        return before, behind

    def _require_tools(self) -> None:
        if not self._tools:
            return
        text = self._render([{"role": "user", "content": MARKS[0]}])
        missing = [t["function"]["name"] for t in self._tools if t["function"]["name"] not in text]
        require(not missing, f"{self._name} drops tools ({', '.join(missing)}): {IN_TEXT}")
        readable = "<tool_call>" in text
        require(
            readable, f"{self._name} expects calls in another format than <tool_call>: {IN_TEXT}"
        )


def _without_added_tokens(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return a copy of the tokenizer that reads no text as a tag."""
    plan = json.loads(tokenizer.backend_tokenizer.to_str())
    return Tokenizer.from_str(json.dumps(plan | {"added_tokens": []}))
