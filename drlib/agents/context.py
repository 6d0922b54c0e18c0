"""The policy's context: token ids, or messages for a server.

Both forms only grow and track what the engine has read. In a context of ids every text is tokenised
once, and sampled ids are kept. Tags in observations are escaped. A context of messages also escapes
those of users, because a server's template would parse them. Messages may have pictures, which the
record names and the engine receives.
"""

from collections.abc import Mapping
from typing import Protocol

from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import escape_tags
from drlib.models.engine import Completion
from drlib.validation import require

CHARACTERS_PER_TOKEN = 4  # approximately, in English
NO_PICTURES = (
    "an engine that reads token ids cannot show pictures: use one that reads messages, such as "
    "drlib.models.api_engine.ApiEngine with a vision model"
)


class Context(Protocol):
    """Interface of both forms.

    messages: {"role", "content"} each, for display and records.
    """

    messages: list[dict]

    def __len__(self) -> int: ...

    def observe(self, text: str, *, is_trusted: bool = False) -> None: ...

    def add_user(self, text: str) -> None: ...

    def add_pictures(self, pictures: Mapping[str, str]) -> None: ...

    def add_turn(self, completion: Completion) -> str: ...

    def take_unread(self, whole: bool = False) -> list: ...

    def fold(self, keep: int, note: str) -> "Context": ...

    def resume(self, question: str, keep: int) -> "Context": ...

    def recorded_parts(self) -> list[tuple[list[int], Completion | None]]: ...


class IdContext:
    """A context of token ids: `parts`, each with its completion, or None if not sampled."""

    def __init__(self, chat: ChatIds, question: str, system: str | None = None):
        self._chat = chat
        head = [] if system is None else [{"role": "system", "content": system}]
        self.messages = [*head, {"role": "user", "content": question}]
        self.parts: list[tuple[list[int], Completion | None]] = [
            (chat.prompt(question, system=system), None)
        ]
        self._sent = 0  # parts sent to the engine
        self._turns: list[list[int]] = []  # sampled turns, also those before folding

    def __len__(self) -> int:
        """Return the number of tokens."""
        return sum(len(ids) for ids, _ in self.parts)

    def observe(self, text: str, *, is_trusted: bool = False) -> None:
        """Append the environment's reply to the last turn; tags in it never become tokens.

        Tags that are ordinary text for a tokenizer would still end the response: they are escaped.
        """
        content = text if is_trusted else escape_tags(text)
        self.messages.append({"role": "tool", "content": content})
        self._append(self._chat.tool_turn(content))

    def add_user(self, text: str) -> None:
        """Append a user message."""
        self.messages.append({"role": "user", "content": text})
        self._append(self._chat.user_turn(text))

    def add_pictures(self, pictures: Mapping[str, str]) -> None:
        """Raise ValueError: token ids have no pictures."""
        raise ValueError(NO_PICTURES)

    def _append(self, ids: list[int]) -> None:
        """Append a message, also after an observation that the policy has not read."""
        last, completion = self.parts[-1]
        opening = self._chat.assistant_start
        if completion is None and self._sent < len(self.parts) and last[-len(opening) :] == opening:
            self.parts[-1] = (last[: -len(opening)], None)
            self.parts.append((ids, None))
            return
        end = self._chat.end_id
        is_closed = self.parts[-1][0][-1:] == [end]
        self.parts.append(([*([] if is_closed else [end]), *ids], None))

    def add_turn(self, completion: Completion) -> str:
        """Append the policy's turn and return its text."""
        text = self._chat.decode_turn(completion.token_ids)
        self.messages.append({"role": "assistant", "content": text})
        self.parts.append((completion.token_ids, completion))
        self._turns.append(completion.token_ids)
        self._sent = len(self.parts)
        return text

    def take_unread(self, whole: bool = False) -> list[int]:
        """Return the ids that the engine has not read; all with `whole`, and mark them as read."""
        new = self.parts if whole else self.parts[self._sent :]
        self._sent = len(self.parts)
        return [token for ids, _ in new for token in ids]

    def fold(self, keep: int, note: str) -> "IdContext":
        """Replace all but the last `keep` observations by `note`, in a new context.

        Returns self if nothing changes. The policy's turns keep their ids but are not sampled
        there.
        """
        folded = _folded(self.messages, keep, note)
        if folded == self.messages:
            return self
        system = [m["content"] for m in folded[:1] if m["role"] == "system"]
        new = IdContext(self._chat, folded[len(system)]["content"], *system)
        new._replay(folded[len(new.messages) :], self._turns)
        return new

    def resume(self, question: str, keep: int) -> "IdContext":
        """Return a new context: `question`, then the last `keep` turns with their observations.

        The policy's turns keep their ids but are not sampled there.
        """
        system = [m["content"] for m in self.messages[:1] if m["role"] == "system"]
        new = IdContext(self._chat, question, *system)
        new._replay(_last_turns(self.messages, keep), self._turns[-keep:])
        return new

    @staticmethod
    def from_prefix(chat: ChatIds, ids: list[int], messages: list[dict]) -> "IdContext":
        """Return a context that has read the ids of an earlier one, up to the start of a turn."""
        new = IdContext(chat, "")
        new.messages = [*messages]
        new.parts = [([*ids], None)]
        return new

    def _replay(self, messages: list[dict], turns: list[list[int]]) -> None:
        """Append turns and observations that were read in another context."""
        self._turns = [*turns]
        left = iter(turns)
        for message in messages:
            if message["role"] == "assistant":
                self.messages.append(message)
                self.parts.append((next(left), None))
            else:
                self.observe(message["content"], is_trusted=True)  # escaped already

    def recorded_parts(self) -> list[tuple[list[int], Completion | None]]:
        """Return the parts up to the policy's last turn; unread ones are not recorded."""
        last = max(
            (i for i, (_, completion) in enumerate(self.parts) if completion is not None), default=0
        )
        return self.parts[: last + 1]


class MessageContext:
    """A context of messages, for an engine with its own template."""

    def __init__(self, question: str, system: str | None = None):
        head = [] if system is None else [{"role": "system", "content": system}]
        self.messages: list[dict] = [
            *head,
            {"role": "user", "content": escape_tags(question)},
        ]
        self._sent = 0  # messages sent to the engine
        self._counted = 0  # messages counted by the server
        self._tokens = 0  # tokens of those
        self._urls: dict[str, str] = {}  # picture name -> data URL

    def __len__(self) -> int:
        """Return the number of tokens: the server's count at the last turn, plus an estimate.

        The estimate is by characters; new pictures are not counted.
        """
        new = sum(len(message["content"]) for message in self.messages[self._counted :])
        return self._tokens + new // CHARACTERS_PER_TOKEN

    def observe(self, text: str, *, is_trusted: bool = False) -> None:
        """Append the environment's reply to the last turn; a trusted one keeps its tags."""
        content = text if is_trusted else escape_tags(text)
        self.messages.append({"role": "tool", "content": content})

    def add_user(self, text: str) -> None:
        """Append a user message."""
        self.messages.append({"role": "user", "content": escape_tags(text)})

    def add_pictures(self, pictures: Mapping[str, str]) -> None:
        """Attach pictures (name -> data URL) to the last, unread message.

        Raises:
            ValueError: the message is the policy's turn or was read already.
        """
        last = self.messages[-1]
        require(
            last["role"] in ("user", "tool"),
            "add pictures to a user or tool message, not to the policy's turn",
        )
        require(self._sent < len(self.messages), "add pictures before their message is read")
        self.messages[-1] = last | {"pictures": [*last.get("pictures", ()), *pictures]}
        self._urls |= pictures

    def add_turn(self, completion: Completion) -> str:
        """Append the policy's turn and return its text."""
        self.messages.append({"role": "assistant", "content": completion.text})
        self._sent = self._counted = len(self.messages)
        self._tokens = completion.prompt_tokens + completion.turn_tokens
        return completion.text

    def take_unread(self, whole: bool = False) -> list[dict]:
        """Return the messages that the engine has not read; all with `whole`."""
        new = self.messages if whole else self.messages[self._sent :]
        self._sent = len(self.messages)
        return [self._with_urls(message) for message in new]

    def _with_urls(self, message: dict) -> dict:
        """Replace picture names by their data URLs."""
        if "pictures" not in message:
            return message
        return message | {"pictures": [self._urls[name] for name in message["pictures"]]}

    def fold(self, keep: int, note: str) -> "MessageContext":
        """Replace all but the last `keep` observations by `note`, in a new context if changed."""
        folded = _folded(self.messages, keep, note)
        if folded == self.messages:
            return self
        new = MessageContext("")
        new.messages = folded
        new._urls = self._urls
        return new

    def resume(self, question: str, keep: int) -> "MessageContext":
        """Return a new context: `question`, then the last `keep` turns with their observations."""
        system = [m["content"] for m in self.messages[:1] if m["role"] == "system"]
        new = MessageContext(question, *system)
        new.messages += _last_turns(self.messages, keep)
        new._urls = self._urls
        return new

    def recorded_parts(self) -> list[tuple[list[int], Completion | None]]:
        """Return [], because the tokens are the server's."""
        return []


def _folded(messages: list[dict], keep: int, note: str) -> list[dict]:
    """Return the messages with `note` in place of all but the last `keep` observations."""
    shown = [i for i, message in enumerate(messages) if message["role"] == "tool"]
    old = shown[: max(len(shown) - keep, 0)]
    return [{"role": "tool", "content": note} if i in old else m for i, m in enumerate(messages)]


def _last_turns(messages: list[dict], keep: int) -> list[dict]:
    """Return the messages from the `keep`-th last turn of the policy on."""
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    return messages[turns[-keep] :]
