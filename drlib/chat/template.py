"""Tokenizer and chat template of all stages, and conversations as token ids.

Tokenizer: Unigram with equal scores (the fewest pieces win) and byte fallback, so any text
survives. A space belongs to the word *before* it and nothing is normalised: a name followed by
punctuation has the same ids everywhere, so a small policy can copy it.
Injection: text of users and tools must not become tags. `ChatIds` encodes it as plain text. The
Jinja template cannot (one string holds both): use `apply_chat_template` for trusted text only.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from drlib.chat.segments import segment_tokens
from drlib.chat.tool_calls import END, PAD, ROLES, START, TAGS
from drlib.config import find_model

if TYPE_CHECKING:  # imported lazily, because it imports torch, which is slow
    from transformers import PreTrainedTokenizerFast

HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
HUB_TIMEOUT_S = 10.0
SUBWORDS = 260  # pieces for words that are not in the vocabulary
_REMEDY = "create one with drlib.chat.template.train_tokenizer(...).save_pretrained(folder)"
# A backslash joins a line with the next; other line breaks would be part of the rendered text.
_TEMPLATE_FILE = Path(__file__).with_name("chat_template.jinja")
CHAT_TEMPLATE = _TEMPLATE_FILE.read_text(encoding="utf-8").replace("\\\n", "").rstrip()


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    names: Iterable[str] = (),
    phrases: Iterable[str] = (),
) -> PreTrainedTokenizerFast:
    """Train a tokenizer with exactly `vocab_size` pieces; the same arguments give the same bytes.

    Args:
        texts: source of common words and subwords.
        vocab_size: number of pieces.
        names: each word of each becomes one piece, in the form it has inside the name.
        phrases: strings kept as one piece each (the longest match wins).

    Raises:
        ValueError: the pieces exceed the vocabulary, or the texts have too few.
    """
    phrases = sorted({*phrases, *ROLES}, key=lambda p: (-len(p), p))
    for phrase in phrases:
        if not phrase or any(tag in phrase for tag in TAGS) or re.search(r"<0x..>", phrase):
            raise ValueError(f"phrase {phrase!r} is empty or contains a tag: remove it")
    # split text into phrases, words with the space after them, single digits and marks
    exact = "".join("".join(rf"\x{{{ord(c):x}}}" for c in phrase) + "|" for phrase in phrases)
    rest = r"[\p{L}\p{M}]+ ?|\p{N}|[^\p{L}\p{M}\p{N}\s] ?|\n|\s"
    splitter = pre_tokenizers.Split(Regex(exact + rest), "isolated")
    words, name_words = (
        Counter(word for text in part for word, _ in splitter.pre_tokenize_str(text))
        for part in (texts, names)
    )
    bytes_ = (f"<0x{b:02X}>" for b in range(256))
    pieces = dict.fromkeys((*TAGS, *bytes_, *phrases, *name_words))
    if len(pieces) > vocab_size:
        raise ValueError(
            f"tags, bytes, phrases and names need {len(pieces)} pieces, more than vocab_size="
            f"{vocab_size}: raise it or drop names"
        )
    lexicon = {*words, *name_words} - {*phrases}
    # first of words that are not pieces yet; of all words if the texts are short
    subwords = chain(_subwords(sorted(lexicon - {*pieces})), _subwords(sorted(lexicon)))
    by_count = sorted(words, key=lambda w: (-words[w], w))
    for candidates, size in (
        (subwords, min(len(pieces) + SUBWORDS, vocab_size)),
        ((w for w in by_count if words[w] > 1), vocab_size),
        (subwords, vocab_size),  # parts of many words before words seen once
        (iter(by_count), vocab_size),
    ):
        while len(pieces) < size and (piece := next(candidates, None)):
            pieces[piece] = None
    if len(pieces) < vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} exceeds the {len(pieces)} pieces that these texts support: "
            "lower it or pass more texts"
        )
    return _build(pieces, splitter)


def _subwords(words: Sequence[str]) -> Iterator[str]:
    """Yield pieces of different words, the most frequent first: characters, then pairs and triples.

    The library's trainers are not used, because their ties depend on the order of a hash map.
    """
    yield from ("\n", *map(chr, range(32, 127)))
    letters = Counter(c for word in words for c in set(word))
    yield from sorted((c for c in letters if letters[c] > 2), key=lambda c: (-letters[c], c))[:40]
    count = Counter(w[i : i + n] for w in words for n in (2, 3) for i in range(len(w) - n + 1))
    yield from sorted((p for p in count if count[p] > 1), key=lambda p: (-count[p], p))


def _build(pieces: Iterable[str], splitter) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    # equal scores, so the fewest pieces win; byte pieces (and so unknown characters) last
    scores = [(piece, -20.0 if re.fullmatch(r"<0x..>", piece) else -1.0) for piece in pieces]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=0, byte_fallback=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """Load a drlib tokenizer from a folder.

    Raises:
        FileNotFoundError: no `tokenizer.json`.
        ValueError: damaged, or without tags or chat template.
    """
    from transformers import AutoTokenizer

    file = Path(path) / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(f"no tokenizer at {path}: {file.name} is missing; {_REMEDY}")
    try:
        json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}); {_REMEDY}") from error
    tokenizer = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    _require_tags(tokenizer, str(path))
    if not tokenizer.chat_template:
        raise ValueError(f"the tokenizer at {path} has no chat template; {_REMEDY}")
    return tokenizer


def load_any_tokenizer(path: str | Path) -> PreTrainedTokenizerFast:
    """Load any model's tokenizer from its folder or hub id, without checking tags.

    Raises:
        ValueError: neither a folder nor a hub id, no tokenizer there, or the hub is not reachable.
    """
    from transformers import AutoTokenizer

    path = find_model(str(path))
    folder = Path(path).expanduser()
    if not folder.is_dir():
        return _load_hub_tokenizer(str(path))
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no tokenizer at {path}: give the folder of the model, or its hub id ({error})"
        ) from error


def _load_hub_tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Load a tokenizer from the local cache of the hub, or from the hub."""
    from huggingface_hub import constants
    from transformers import AutoTokenizer

    if not HUB_ID.fullmatch(name):
        raise ValueError(
            f"no tokenizer at {name}: give the folder of the model (this one does not exist), or "
            "its hub id"
        )
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError):
        pass  # not in the cache
    remedy = "download the model's folder and pass its path"
    where = f"no tokenizer {name!r}: there is no such folder"
    if constants.HF_HUB_OFFLINE:
        raise ValueError(f"{where}, and HF_HUB_OFFLINE forbids the hub: unset it, or {remedy}")
    try:
        # one short request, because a download retries for a minute
        urlopen(f"{constants.ENDPOINT}/api/models/{name}", timeout=HUB_TIMEOUT_S).close()
    except HTTPError as error:
        if error.code == 404:
            raise ValueError(f"{where}, and no such model on the hub: correct the name") from error
    except OSError as error:
        raise ValueError(f"{where}, and the hub cannot be reached: {remedy}") from error
    try:
        return AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"the hub gives no tokenizer of {name!r}: {remedy} ({reason})") from error


def _require_tags(tokenizer: PreTrainedTokenizerFast, where: str) -> None:
    special = {str(t) for t in tokenizer.added_tokens_decoder.values() if t.special}
    missing = [tag for tag in TAGS if tag not in special]
    if missing:
        raise ValueError(
            f"the tokenizer at {where} lacks {', '.join(missing)} as special tokens; "
            f"add them and resize the embedding, or {_REMEDY}"
        )


class ChatIds:
    """Token ids of the parts of a conversation, as used in rollouts and training.

    For text without tags the ids equal those of `apply_chat_template`. Lone surrogates become "?".

    Attributes:
        assistant_start: the generation prompt.
        end_id: closes a turn.
        stop_ids: end sampling.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        _require_tags(tokenizer, tokenizer.name_or_path or "hand")
        self.tokenizer = tokenizer
        # a second backend, because switching one between modes would race between threads
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True
        self._ids = {tag: tokenizer.convert_tokens_to_ids(tag) for tag in TAGS}
        self.end_id = self._ids[END]
        self.stop_ids = (self.end_id, self._ids["</tool_call>"], self._ids["</answer>"])
        self.assistant_start = [self._ids[START], *self.plain("assistant\n")]

    def plain(self, text: str) -> list[int]:
        """Encode untrusted text: no tag becomes a special token."""
        text = text.encode("utf-8", "replace").decode("utf-8")
        return self._plain.encode(text, add_special_tokens=False).ids

    def encode(self, text: str) -> list[int]:
        """Encode trusted text or the policy's: tags are special tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def prompt(
        self, question: str, tools: Sequence[dict] | None = None, system: str | None = None
    ) -> list[int]:
        """Encode everything before the first sampled token; `system` and `tools` are trusted."""
        head = [] if system is None else [{"role": "system", "content": system}]
        text = self.tokenizer.apply_chat_template(
            [*head, {"role": "user", "content": ""}], tools=tools, tokenize=False
        ).removesuffix(f"{START}user\n{END}")
        return self.encode(text) + self.user_turn(question)

    def tool_turn(self, observation: str) -> list[int]:
        """Encode an observation as a user turn, up to the next assistant turn."""
        opens, closes = self._ids["<tool_response>"], self._ids["</tool_response>"]
        return self.user_turn("", [opens, *self.plain(observation), closes])

    def user_turn(self, text: str, suffix: Sequence[int] = ()) -> list[int]:
        """Encode a user message (`more`: ids after it), up to the next assistant turn."""
        body = [*self.plain("user\n" + text), *suffix, self.end_id]
        return [self._ids[START], *body, *self.assistant_start]

    def segments(
        self, ids: Sequence[int] | np.ndarray, generated: Sequence[bool] | np.ndarray
    ) -> np.ndarray:
        """Return the `Segment` of each token, uint8[T], by the tags."""
        return segment_tokens(ids, self.tokenizer)

    def decode_turn(self, ids: Iterable[int]) -> str:
        """Decode a sampled turn, tags included, without its closing token."""
        ids = [int(i) for i in ids]
        ids = ids[:-1] if ids[-1:] == [self.end_id] else ids
        return self.tokenizer.decode(ids, skip_special_tokens=False)
