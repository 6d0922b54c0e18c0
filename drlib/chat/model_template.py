"""The chat of any model as token ids, by the template of its own tokenizer.

`ChatIds` (drlib.chat.template) is the chat of a tokenizer that drlib made: its tags are special tokens. A
real model brings its own template and its own tags, which may be no special tokens at all. Here its
template is rendered once with a mark in the place of what is said; what stands around the marks is
what the model expects around a question, a tool's response, a user's further word. Those texts
become ids once, and what is said goes between them as plain text, so nothing in a page becomes a
tag.

Contexts only grow, as everywhere here. A template that would rewrite what was said (Qwen3's cuts
the thoughts of earlier turns) is not asked to: the policy's turns stay the ids it sampled.

What a template cannot express is refused, with the reason: a system prompt, tools, a tool's
response, or calls in a form that `drlib.chat.tool_calls` does not read.
Left out: slow tokenizers, images.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from drlib.chat.segments import segment_texts, token_texts
from drlib.chat.template import CHAT_TEMPLATE
from drlib.trajectory import Segment
from drlib.validation import require

MARKS = ("7f3QUESTION9c1", "7f3TURN9c1", "7f3SAID9c1")
IN_TEXT = "give the tools in the system prompt instead (drlib.chat.prompts.research_prompt)"
CLOSERS = ("</tool_call>", "</answer>")


def is_drlib_tokenizer(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether drlib made the tokenizer: its policy has learned tools and form by heart."""
    return tokenizer.chat_template == CHAT_TEMPLATE


class TemplateIds:
    """Token ids of the parts of a conversation; the same methods as `ChatIds`.

    Args:
        tools: functions (`Tool.function`) that every prompt tells of, by the template.
        tool_role: "user" where the template knows no tool: a response is then what a user says,
            between `<tool_response>` tags.
        options: of the template, such as `enable_thinking=False` for Qwen3's.

    Raises:
        ValueError: no template, no fast tokenizer, or a template that cannot express a tool's
            response or the tools.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        tools: Sequence[dict] = (),
        *,
        tool_role: str = "tool",
        **options: Any,
    ):
        name = tokenizer.name_or_path or "hand"
        self._name = f"the chat template of the tokenizer at {name}"
        require(bool(tokenizer.chat_template), f"the tokenizer at {name} has no chat template")
        require(tokenizer.is_fast, f"the tokenizer at {name} is a slow one: load it as a fast one")
        require(tool_role in ("tool", "user"), f"tool_role={tool_role!r}: tool or user")
        self.tokenizer = tokenizer
        self._tool_role = tool_role
        self._options = options
        self._tools = list(tools)
        self._plain = _without_added_tokens(tokenizer)
        self._require_tools()
        says = {role: self._says(role) for role in {"user", tool_role}}
        self.end_id = says["user"][0][0]
        added = tokenizer.added_tokens_decoder
        of_its_own = self.end_id in added and all(
            before[0] == self.end_id and self.end_id in behind for before, behind in says.values()
        )
        require(of_its_own, f"{self._name} ends a turn without a token of its own")
        # what stands before and behind what is said; the turn before has its own end
        self._around_ids = {role: (before[1:], behind) for role, (before, behind) in says.items()}
        behind = says["user"][1]
        self.assistant_start = behind[behind.index(self.end_id) + 1 :]
        whole = {str(token): at for at, token in added.items()}
        stops = [self.end_id, tokenizer.eos_token_id, *(whole.get(tag) for tag in CLOSERS)]
        self.stop_ids = tuple(dict.fromkeys(at for at in stops if at is not None))

    def _says(self, role: str) -> tuple[list[int], list[int]]:
        """Ids before and behind what a user or a tool says: from the end of the assistant's turn to
        where its next one is sampled."""
        question, turn, said = MARKS
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": turn},
            {"role": role, "content": said},
        ]
        what = f"what a {role} says"
        try:
            text = self._render(messages).partition(turn)[2]
            before, behind = self._around(text, said, what)
        except ValueError as error:
            remedy = ": pass tool_role='user'" if role == "tool" else ""
            raise ValueError(f"{error}{remedy}") from None
        return self.encode(before), self.encode(behind)

    def plain(self, text: str) -> list[int]:
        """Ids of text that is not trusted: no tag in it becomes a token."""
        text = text.encode("utf-8", "replace").decode("utf-8")
        return self._plain.encode(text, add_special_tokens=False).ids

    def encode(self, text: str) -> list[int]:
        """Ids of the template's or the policy's text: its tags are tokens where it has them."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def prompt(self, question: str, *, system: str | None = None) -> list[int]:
        """Everything before the first sampled token. `system` is trusted text.

        ValueError: the template has no place for a system prompt.
        """
        said = MARKS[2]
        head = [] if system is None else [{"role": "system", "content": system}]
        text = self._render([*head, {"role": "user", "content": said}])
        shown = system is None or system.strip() in text
        require(shown, f"{self._name} leaves a system prompt out: say it in the question")
        before, behind = self._around(text, said, "a question")
        return [*self.encode(before), *self.plain(question), *self.encode(behind)]

    def tool_turn(self, observation: str) -> list[int]:
        """An observation, up to where the next turn is sampled."""
        before, behind = self._around_ids[self._tool_role]
        opens, closes = ("<tool_response>\n", "\n</tool_response>")
        if self._tool_role == "user":
            before, behind = [*before, *self.encode(opens)], [*self.encode(closes), *behind]
        return [*before, *self.plain(observation), *behind]

    def user_turn(self, text: str) -> list[int]:
        """What a user says, up to where the next turn is sampled."""
        before, behind = self._around_ids["user"]
        return [*before, *self.plain(text), *behind]

    def decode_turn(self, ids: Iterable[int]) -> str:
        """The text of a sampled turn, tags included, without the token that closed it."""
        ids = [int(i) for i in ids]
        while ids and ids[-1] in (self.end_id, self.tokenizer.eos_token_id):
            ids.pop()
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def segments(self, ids: Sequence[int], generated: Sequence[bool]) -> np.ndarray:
        """The `Segment` of each token, uint8[T]. generated: bool[T], what the policy sampled."""
        texts = token_texts(self.tokenizer, ids)
        # a question or a page may spell the marker of a turn; it is one where it is a token
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
            raise ValueError(f"{self._name} refuses the turns {roles}: {error}") from None

    def _around(self, text: str, said: str, what: str) -> tuple[str, str]:
        """What stands before and behind the mark `said`."""
        require(text.count(said) == 1, f"{self._name} does not say {what} once, as it was said")
        before, _, behind = text.partition(said)
        return before, behind

    def _require_tools(self) -> None:
        if not self._tools:
            return
        text = self._render([{"role": "user", "content": MARKS[0]}])
        missing = [t["function"]["name"] for t in self._tools if t["function"]["name"] not in text]
        require(not missing, f"{self._name} leaves tools out ({', '.join(missing)}): {IN_TEXT}")
        readable = "<tool_call>" in text
        require(readable, f"{self._name} wants calls in a form other than <tool_call>: {IN_TEXT}")


def _without_added_tokens(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The tokenizer as it reads text in which nothing is a tag, special token or not."""
    plan = json.loads(tokenizer.backend_tokenizer.to_str())
    return Tokenizer.from_str(json.dumps(plan | {"added_tokens": []}))
