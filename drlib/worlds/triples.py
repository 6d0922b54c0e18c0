"""Facts that a language model finds in chunks, kept only where they are quoted.

A model of any OpenAI-compatible endpoint is asked for triples with evidence. Each must be a quote:
the evidence stands in the chunk letter by letter, and subject and object in the evidence. What is
not so is dropped and counted. An endpoint that fails (time-out, error, no connection) costs the
triples of one file, which is named in `Changes.skipped`; after `MAX_FAILED_FILES` in a row no other
is asked about. The texts themselves are sources of their own and not touched by any of this.

Left out: names of one thing that are written differently.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from drlib.endpoint import ChatEndpoint, EndpointError
from drlib.worlds.graph import Fact, Node
from drlib.worlds.reading import clean
from drlib.worlds.store import MORE_FACTS, Document, Part, Skip, Store, one_line

MAX_FAILED_FILES = 3  # in a row, until no other is asked about
WORKERS = 8  # requests at once
LONGEST_PART = 80  # characters of a subject, relation or object
SOURCE, ENTITIES = "~triples//", "~~entities//"  # no paths
KEYS = ("subject", "relation", "object", "evidence")
OWN = (
    "link",
    "section",
    "heading",
    "table",
    "same as",
    "mentioned in",
    MORE_FACTS,
)  # the world's relations
PROMPT = (
    "List the facts that the user's text states, as a JSON array of objects with the keys subject, "
    "relation, object and evidence. evidence is copied from the text letter by letter and contains "
    "subject and object. relation is a short noun, such as author. Reply with the array only."
)


def relation_name(name: object) -> str:
    """`name` as a forward relation that is not one of the world's own; "" if nothing is left."""
    relation, before = clean(str(name)).replace("`", ""), None
    while relation != before:  # one repair may make room for the next
        before = relation
        relation = one_line(relation).replace(": ", " ").strip("* ").rstrip(":")
        relation = relation.removesuffix(" of")
    if relation == "of":
        return ""
    return f"{relation} field" if relation in OWN else relation


class Endpoint:
    """An OpenAI-compatible server at the base URL `url`, which has `timeout_s` seconds a chunk.

    `counts` are of triples, but for "junk", which are replies. ValueError: one of both is missing.
    """

    def __init__(self, url: str, model: str = "", timeout_s: float = 60.0, api_key: str = ""):
        if bool(url) != bool(model):
            raise ValueError(f"give endpoint=URL ({url!r}) and model=NAME ({model!r}) together")
        self.url = url.rstrip("/")
        self.model = model
        self.counts: Counter[str] = Counter()
        self._failed = 0  # files in a row
        self._chat = ChatEndpoint(url, model, timeout_s=timeout_s, api_key=api_key) if url else None

    def update(self, store: Store, stamps: Mapping[str, str], read: Callable[[str], Part]) -> None:
        """`store.update` with a source of triples for each source, and one of entities' pages,
        because many files may name an entity. What failed in an earlier update is asked again."""
        files = {source: stamp for source, stamp in stamps.items() if stamp}
        more = {f"{SOURCE}{source}": f"{stamp} {self.model}" for source, stamp in files.items()}
        more[ENTITIES] = ""

        def read_any(source: str) -> Part:
            if source == ENTITIES:
                return _entity_pages(store)
            if source.startswith(SOURCE):
                return self._triples(source.removeprefix(SOURCE), read)
            return read(source)

        store.update({**stamps, **more}, read_any)

    def _triples(self, source: str, read: Callable[[str], Part]) -> Part:
        """The quoted triples of a file's chunks, and where each entity is mentioned."""
        if self._failed >= MAX_FAILED_FILES:
            raise Skip(f"not asked about: {self.url} failed {MAX_FAILED_FILES} times in a row")
        try:
            documents = list(read(source).documents)
            with ThreadPoolExecutor(WORKERS) as pool:
                replies = list(pool.map(self._ask, [document.text for document in documents]))
        except Skip:  # the file itself, which says so
            return Part()
        except EndpointError as error:
            self._failed += 1
            raise Skip(f"{self.url}: {type(error).__name__}: {error}") from None
        self._failed = 0
        facts: set[Fact] = set()
        nodes: set[Node] = set()
        for document, reply in zip(documents, replies, strict=True):
            for subject, relation, value in self._quoted(document.text, reply):
                has_letters = re.search(r"[^\W\d]", value)
                facts.add((subject, relation, value))
                for name in [subject, value] if has_letters else [subject]:
                    facts.add((name, "mentioned in", document.title))
                    nodes.add(Node(name, "entity"))
        return Part((), sorted(nodes), sorted(facts))

    def _ask(self, text: str) -> object:
        """The JSON of a reply, None for junk; EndpointError when there is no reply."""
        asked = [{"role": "system", "content": PROMPT}, {"role": "user", "content": text}]
        words = self._chat.ask(asked, temperature=0)
        try:
            return (
                None
                if words is None
                else json.loads(words[words.index("[") : words.rindex("]") + 1])
            )
        except (ValueError, RecursionError):
            return None

    def _quoted(self, text: str, rows: object) -> list[Fact]:
        """The triples of a reply that are quotes; all others are counted."""
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
                found.append((one_line(subject), relation_name(relation), one_line(value)))
        return found


def _is_triple(parts: list) -> bool:
    """Whether subject, relation, object and evidence are texts that can be kept, of two things."""
    if not all(isinstance(part, str) and one_line(part) for part in parts):
        return False
    if one_line(parts[0]) == one_line(parts[2]):
        return False
    return max(map(len, parts[:3])) <= LONGEST_PART and relation_name(parts[1]) != ""


def _entity_pages(store: Store) -> Part:
    """A page for each entity that no file is called like."""
    rows = store.rows(
        "SELECT DISTINCT title FROM nodes WHERE kind = 'entity'"
        " AND title NOT IN (SELECT title FROM documents)"
    )
    text = "An entity that pages of this folder mention."
    return Part([Document(name, text) for (name,) in rows])
