"""Facts that a language model extracts from chunks, kept only if they are quoted.

A model behind an OpenAI-compatible endpoint returns triples with evidence. A triple is accepted if
the evidence occurs verbatim in the chunk, and subject and object in the evidence; others are
dropped and counted. A failing endpoint costs the triples of one file, which is named in
`Changes.skipped`; after `MAX_FAILED_FILES` consecutive failures no more requests are sent. Once the
server has replied, the next files are requested ahead, because a folder may contain thousands of
small files. The texts are separate sources and not affected.

An update is atomic, but model calls cost money: each reply is saved at once as one line. An
interrupted update therefore requests only the remaining chunks, and a changed file only its changed
chunks.

Not implemented: merging different spellings of a name.
"""

import hashlib
import json
import re
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from drlib.chat.json_replies import extract_json
from drlib.endpoint import ChatEndpoint, EndpointError
from drlib.files import append_json_line, resume_json_lines
from drlib.worlds.graph import Fact, Node
from drlib.worlds.reading import clean
from drlib.worlds.store import MORE_FACTS, Document, Part, Skip, Store, one_line

MAX_FAILED_FILES = 3  # consecutive failures after which no file is requested
WORKERS = 8  # concurrent requests
AHEAD = 16  # largest number of files requested ahead
LONGEST_PART = 80  # characters of a subject, relation or object
SOURCE, ENTITIES = "~triples//", "~~entities//"  # cannot be paths
KEYS = ("subject", "relation", "object", "evidence")
RESERVED_RELATIONS = (
    "link",
    "section",
    "heading",
    "table",
    "same as",
    "mentioned in",
    MORE_FACTS,
)  # reserved by the world
PROMPT = (
    "List the facts that the user's text states, as a JSON array of objects with the keys subject, "
    "relation, object and evidence. evidence is copied from the text letter by letter and contains "
    "subject and object. relation is a short noun, such as author. Reply with the array only."
)


def relation_name(name: object) -> str:
    """Return `name` as a valid forward relation that is not reserved; "" if nothing is left."""
    relation, before = clean(str(name)).replace("`", ""), None
    while relation != before:  # repeat until stable
        before = relation
        relation = one_line(relation).replace(": ", " ").strip("* ").rstrip(":")
        relation = relation.removesuffix(" of")
    if relation == "of":
        return ""
    return f"{relation} field" if relation in RESERVED_RELATIONS else relation


class TripleExtractor:
    """Extracts triples through an OpenAI-compatible server.

    `counts` counts triples by outcome, and replies under "junk".

    Args:
        url: base URL; "" for none.
        model: name of the model.
        timeout_s: seconds for one chunk.
        api_key: key of the server.
        replies_path: file of the replies; None: they are not saved.

    Raises:
        ValueError: only one of URL and model is given, or the file has another format.
    """

    def __init__(
        self,
        url: str,
        model: str = "",
        timeout_s: float = 60.0,
        api_key: str = "",
        replies_path: Path | None = None,
    ):
        if bool(url) != bool(model):
            raise ValueError(f"endpoint={url!r} and model={model!r} must be given together")
        self.url = url.rstrip("/")
        self.model = model
        self.counts: Counter[str] = Counter()
        self._failed = 0  # consecutive files
        self._answers = False  # True if the last request succeeded
        self._chat = ChatEndpoint(url, model, timeout_s=timeout_s, api_key=api_key) if url else None
        self._replies = _ReplyFile(replies_path if url else None)

    def update(self, store: Store, stamps: Mapping[str, str], read: Callable[[str], Part]) -> None:
        """Run `store.update` with one more source of triples for each file.

        Another source contains the pages of entities, because several files may name an entity.
        Failed files are requested again at the next update.
        """
        files = {source: stamp for source, stamp in stamps.items() if stamp}
        more = {f"{SOURCE}{source}": f"{stamp} {self.model}" for source, stamp in files.items()}
        more[ENTITIES] = ""
        queue = _ChunkQueue(self._request, read)

        def read_any(source: str) -> Part:
            if source == ENTITIES:
                return _entity_pages(store)
            if source.startswith(SOURCE):
                return self._triples(source, queue)
            return read(source)

        try:
            store.update({**stamps, **more}, read_any, queue.expect)
        finally:
            queue.pool.shutdown(cancel_futures=True)

    def _triples(self, source: str, queue: "_ChunkQueue") -> Part:
        """Return the quoted triples of a file and where each entity is mentioned."""
        if self._failed >= MAX_FAILED_FILES and source not in queue.requests:
            raise Skip(f"not requested: {self.url} failed {MAX_FAILED_FILES} times in a row")
        try:
            replies = queue.replies(source, ahead=self._answers)
        except Skip:  # the file itself was skipped with its own reason
            return Part()
        except EndpointError as error:
            self._failed += 1
            self._answers = False
            raise Skip(f"{self.url}: {type(error).__name__}: {error}") from None
        self._failed = 0
        self._answers = True
        facts: set[Fact] = set()
        nodes: set[Node] = set()
        for document, reply in replies:
            for subject, relation, value in self._quoted(document.text, reply):
                has_letters = re.search(r"[^\W\d]", value)
                facts.add((subject, relation, value))
                for name in [subject, value] if has_letters else [subject]:
                    facts.add((name, "mentioned in", document.title))
                    nodes.add(Node(name, "entity"))
        return Part((), sorted(nodes), sorted(facts))

    def _request(self, text: str) -> object:
        """Return the JSON of a reply, or None for junk.

        Raises:
            EndpointError: no reply.
        """
        messages = [{"role": "system", "content": PROMPT}, {"role": "user", "content": text}]
        digest = hashlib.sha256(json.dumps([self.model, messages]).encode()).hexdigest()
        words = self._replies.words.get(digest)
        if words is None:
            words = self._chat.ask(messages, temperature=0)
            if words is not None:
                self._replies.keep(digest, words)
        try:
            return None if words is None else extract_json(words, list)
        except ValueError:
            return None

    def _quoted(self, text: str, rows: object) -> list[Fact]:
        """Return the triples of a reply that are quotes; count the others."""
        if not isinstance(rows, list):
            self.counts["junk"] += 1
            return []
        found = []
        for row in rows:
            parts = [row.get(key) if isinstance(row, dict) else None for key in KEYS]
            if not _is_triple(parts):
                self.counts["malformed"] += 1
                continue
            subject, relation, value, evidence = parts
            is_quote = evidence in text and subject in evidence and value in evidence
            self.counts["kept" if is_quote else "not quoted"] += 1
            if is_quote:
                ends = one_line(subject), one_line(value)
                is_thing = re.search(r"[^\W\d_]", value)  # not "year of" with "1837"
                if (
                    one_line(relation).endswith(" of") and is_thing
                ):  # "capital of": the object has a capital
                    ends = ends[::-1]
                found.append((ends[0], relation_name(relation), ends[1]))
        return found


class _ReplyFile:
    """Saved replies by a digest of model, prompt and chunk; safe for many threads."""

    def __init__(self, path: Path | None):
        self.words: dict[str, str] = {}
        self._path = path
        self._lock = threading.Lock()
        for number, row in resume_json_lines(path) if path else ():
            try:
                self.words[row["asked"]] = str(row["said"])
            except (LookupError, TypeError) as error:
                message = f"{path}, line {number} is no saved reply ({error!r})"
                raise ValueError(f"{message}: move this file") from error

    def keep(self, digest: str, words: str) -> None:
        if self._path:
            with self._lock:
                append_json_line(self._path, {"asked": digest, "said": words})


class _ChunkQueue:
    """Requests for files: `WORKERS` chunks at a time, and some files ahead of their turn."""

    def __init__(self, ask: Callable[[str], object], read: Callable[[str], Part]):
        self.pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="drlib-triples")
        self.requests: dict[str, list[tuple[Document, Future]] | Skip] = {}
        self._request = ask
        self._read = read
        self._waiting: deque[str] = deque()  # not yet requested, in order

    def expect(self, order: list[str]) -> None:
        """Receive the sources of this update in order, before the first one."""
        self._waiting.extend(source for source in order if source.startswith(SOURCE))

    def replies(self, source: str, ahead: bool) -> list[tuple[Document, object]]:
        """Return each chunk of a file with the model's reply.

        Args:
            source: the file whose turn it is.
            ahead: request the next files at the same time.

        Raises:
            Skip: the file cannot be read.
            EndpointError: no reply.
        """
        while source not in self.requests:
            self._begin(self._waiting.popleft())
        while ahead and self._waiting and len(self.requests) <= AHEAD:
            self._begin(self._waiting.popleft())
        requests = self.requests.pop(source)
        if isinstance(requests, Skip):
            raise requests
        return [(document, reply.result()) for document, reply in requests]

    def _begin(self, source: str) -> None:
        try:
            documents = list(self._read(source.removeprefix(SOURCE)).documents)
        except Skip as skip:
            self.requests[source] = skip
            return
        self.requests[source] = [
            (one, self.pool.submit(self._request, one.text)) for one in documents
        ]


def _is_triple(parts: list) -> bool:
    """Return True for valid texts with different subject and object."""
    if not all(isinstance(part, str) and one_line(part) for part in parts):
        return False
    if one_line(parts[0]) == one_line(parts[2]):
        return False
    return max(map(len, parts[:3])) <= LONGEST_PART and relation_name(parts[1]) != ""


def _entity_pages(store: Store) -> Part:
    """Return a page for each entity without a page of its own."""
    rows = store.rows(
        "SELECT DISTINCT title FROM nodes WHERE kind = 'entity'"
        " AND title NOT IN (SELECT title FROM documents)"
    )
    text = "An entity that pages of this folder mention."
    return Part([Document(name, text) for (name,) in rows])
