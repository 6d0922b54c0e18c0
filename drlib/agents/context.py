"""What a policy reads, as an engine takes it: token ids, or messages for a server.

Both forms only grow, and both know what the engine has read already. A context of ids has every id
made once: the policy's as they were sampled, all else when it is said. A context of messages has
whatever tags a page or a person wrote made harmless, for a server's template would read them. And
it may have pictures, beside its texts: the record names them, the engine gets them.
"""

from collections.abc import Mapping
from typing import Protocol

from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import TAGS
from drlib.models.engine import Completion
from drlib.validation import require

CHARACTERS_A_TOKEN = 4  # about, in English
BLIND = (
    "an engine that reads token ids sees no pictures: take one that reads messages, such as "
    "drlib.models.api_engine.ApiEngine before a model that sees"
)


class Context(Protocol):
    """What an agent does with either form.

    messages: {"role", "content"} each, as a person reads them.
    """

    messages: list[dict]

    def __len__(self) -> int: ...

    def observe(self, text: str) -> None: ...

    def ask(self, text: str) -> None: ...

    def show(self, pictures: Mapping[str, str]) -> None: ...

    def said(self, completion: Completion) -> str: ...

    def feed(self, whole: bool = False) -> list: ...

    def folded(self, keep: int, note: str) -> "Context": ...

    def spoken(self) -> list[tuple[list[int], Completion | None]]: ...


class IdContext:
    """Of token ids: `parts`, each with the completion that it is, or None: others said it."""

    def __init__(self, chat: ChatIds, question: str, system: str | None = None):
        self._chat = chat
        head = [] if system is None else [{"role": "system", "content": system}]
        self.messages = [*head, {"role": "user", "content": question}]
        self.parts: list[tuple[list[int], Completion | None]] = [
            (chat.prompt(question, system=system), None)
        ]
        self._fed = 0  # parts that the engine has
        self._turns: list[list[int]] = []  # what the policy said, here or before it was folded

    def __len__(self) -> int:
        """Its tokens."""
        return sum(len(ids) for ids, _ in self.parts)

    def observe(self, text: str) -> None:
        """The environment's answer to the turn before."""
        self.messages.append({"role": "tool", "content": text})
        self._reply(self._chat.tool_turn(text))

    def ask(self, text: str) -> None:
        """Another word of the user, also behind an observation that nobody has answered to."""
        self.messages.append({"role": "user", "content": text})
        ids, done = self.parts[-1]
        opened = self._chat.assistant_start
        if done is None and self._fed < len(self.parts) and ids[-len(opened) :] == opened:
            self.parts[-1] = (ids[: -len(opened)], None)
            self.parts.append((self._chat.user_turn(text), None))
        else:
            self._reply(self._chat.user_turn(text))

    def show(self, pictures: Mapping[str, str]) -> None:
        """ValueError: there is nobody to see them."""
        raise ValueError(BLIND)

    def _reply(self, ids: list[int]) -> None:
        end = self._chat.end_id
        closed = self.parts[-1][0][-1:] == [end]
        self.parts.append(([*([] if closed else [end]), *ids], None))

    def said(self, completion: Completion) -> str:
        """Take the policy's turn; returns its text."""
        text = self._chat.decode_turn(completion.token_ids)
        self.messages.append({"role": "assistant", "content": text})
        self.parts.append((completion.token_ids, completion))
        self._turns.append(completion.token_ids)
        self._fed = len(self.parts)
        return text

    def feed(self, whole: bool = False) -> list[int]:
        """The ids that the engine has not read yet; all of them where it has read another context
        in between."""
        new = self.parts if whole else self.parts[self._fed :]
        self._fed = len(self.parts)
        return [token for ids, _ in new for token in ids]

    def folded(self, keep: int, note: str) -> "IdContext":
        """Itself, or where more than `keep` observations are not `note`, another one in which the
        older ones are; the policy's turns are the same ids, read and no longer said."""
        folded = _folded(self.messages, keep, note)
        if folded == self.messages:
            return self
        system = [m["content"] for m in folded[:1] if m["role"] == "system"]
        new = IdContext(self._chat, folded[len(system)]["content"], *system)
        turns = iter(self._turns)
        new._turns = [*self._turns]
        for message in folded[len(new.messages) :]:
            if message["role"] == "assistant":
                new.messages.append(message)
                new.parts.append((next(turns), None))
            else:
                new.observe(message["content"])
        return new

    def spoken(self) -> list[tuple[list[int], Completion | None]]:
        """Its parts up to the last turn of the policy: what was shown but never answered to is not
        part of the record."""
        last = max((i for i, (_, done) in enumerate(self.parts) if done is not None), default=0)
        return self.parts[: last + 1]


class MessageContext:
    """Of messages, for an engine that has a template of its own."""

    def __init__(self, question: str, system: str | None = None):
        head = [] if system is None else [{"role": "system", "content": system}]
        self.messages = [*head, {"role": "user", "content": escape_tags(question)}]
        self._fed = 0  # messages that the engine has
        self._counted = 0  # messages that the server has counted,
        self._tokens = 0  # and their tokens
        self._urls: dict[str, str] = {}  # of the pictures, by name

    def __len__(self) -> int:
        """Tokens: as the server counted when the policy last spoke, and what came since by its
        length, new pictures left out."""
        new = sum(len(message["content"]) for message in self.messages[self._counted :])
        return self._tokens + new // CHARACTERS_A_TOKEN

    def observe(self, text: str) -> None:
        """The environment's answer to the turn before."""
        self.messages.append({"role": "tool", "content": escape_tags(text)})

    def ask(self, text: str) -> None:
        """Another word of the user."""
        self.messages.append({"role": "user", "content": escape_tags(text)})

    def show(self, pictures: Mapping[str, str]) -> None:
        """Pictures beside the last message, which nobody has answered to: name -> data URL.
        ValueError: it is the policy's own turn, or was read already."""
        last = self.messages[-1]
        require(last["role"] in ("user", "tool"), "a picture belongs to what the policy reads")
        require(self._fed < len(self.messages), "a picture comes before its message is read")
        self.messages[-1] = last | {"pictures": [*last.get("pictures", ()), *pictures]}
        self._urls |= pictures

    def said(self, completion: Completion) -> str:
        """Take the policy's turn; returns its text."""
        self.messages.append({"role": "assistant", "content": completion.text})
        self._fed = self._counted = len(self.messages)
        self._tokens = completion.prompt_tokens + completion.turn_tokens
        return completion.text

    def feed(self, whole: bool = False) -> list[dict]:
        """The messages that the engine has not read yet; all of them where it has read another
        context in between."""
        new = self.messages if whole else self.messages[self._fed :]
        self._fed = len(self.messages)
        return [self._with_urls(message) for message in new]

    def _with_urls(self, message: dict) -> dict:
        """The message as the engine takes it: pictures as their data URLs."""
        if "pictures" not in message:
            return message
        return message | {"pictures": [self._urls[name] for name in message["pictures"]]}

    def folded(self, keep: int, note: str) -> "MessageContext":
        """Itself, or where more than `keep` observations are not `note`, another one in which the
        older ones are."""
        folded = _folded(self.messages, keep, note)
        if folded == self.messages:
            return self
        new = MessageContext("")
        new.messages = folded
        new._urls = self._urls
        return new

    def spoken(self) -> list[tuple[list[int], Completion | None]]:
        """Nothing: its tokens are the server's."""
        return []


def _folded(messages: list[dict], keep: int, note: str) -> list[dict]:
    """The messages with `note` in the place of all but the last `keep` observations."""
    shown = [i for i, message in enumerate(messages) if message["role"] == "tool"]
    old = shown[: max(len(shown) - keep, 0)]
    return [{"role": "tool", "content": note} if i in old else m for i, m in enumerate(messages)]


def escape_tags(text: str) -> str:
    """The text with no tag of the format in it: a space breaks each."""
    for tag in TAGS:
        text = text.replace(tag, f"{tag[0]} {tag[1:]}")
    return text
