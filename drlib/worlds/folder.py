"""World `folder`: a user's own texts, pages, PDFs, notebooks and tables.

`drlib.worlds.chunking` cuts files into chunks and extracts facts without a model. An
OpenAI-compatible endpoint (`drlib.worlds.triples`) adds quoted facts found by a model.
`drlib.worlds.joining` resolves links by name and values that name a page or row.

The folder is never written to: the index is kept at `index_path` or in memory. Not implemented:
symbolic links and hidden folders.
"""

import hashlib
import json
import os
import stat
import unicodedata
from contextlib import closing, suppress
from pathlib import Path

from drlib.worlds.chunking import chunk_file
from drlib.worlds.joining import JOINS, defer_facts, join_files
from drlib.worlds.library import Library
from drlib.worlds.linking import file_suffix
from drlib.worlds.reading import MAX_FILE, OUTLINES, Parser, Unreadable, require_libraries
from drlib.worlds.store import Changes, Part, Skip, Store
from drlib.worlds.triples import TripleExtractor

WORDS_FILE = "drlib.yaml"  # a user's words for questions (`drlib questions preview`), not a page
VERSION = "7"  # version of `chunk_file`, part of every stamp
NOT_ENTERED = f"{VERSION} None"  # the stamp of a folder that is not entered
TIMEOUT_S = 60.0  # for one file
# Suffix of the file of model replies (JSON lines); not a file type that is read.
REPLIES = ".replies"
MAX_TEXT = 5_000_000  # characters kept of a file's text
PICTURES = (".png", ".jpg", ".jpeg", ".gif", ".tif", ".tiff", ".webp", ".bmp", ".heic", ".svg")
PLAIN = (".md", ".mdx", ".rst", ".txt")  # types that need no library


def load(
    rest: str,
    index_path: Path | None = None,
    *,
    endpoint: str = "",
    replies_path: Path | None = None,
    **options,
) -> Library:
    """Load the folder `rest` as a `Library`; `.changes.skipped` names the files left out.

    Args:
        rest: path of the folder.
        index_path: file of the index; None: in memory.
        endpoint: base URL of an OpenAI-compatible server, such as "http://localhost:8000/v1"; ""
            for none. Pass the same endpoint to load an index made with it: only new files are
            processed.
        replies_path: file of the model's replies, by default beside the index. A chunk is never
            sent twice, even if loading was interrupted.
        options: model, timeout_s and api_key of `TripleExtractor`; `.extraction` counts the
            triples.

    Raises:
        ValueError: no such folder, or no readable file in it.
    """
    path = _require_folder(rest)
    store = Store(index_path, f"folder:{path.resolve()}")
    if replies_path is None and index_path is not None:
        replies_path = Path(f"{index_path}{REPLIES}")
    extractor = TripleExtractor(endpoint, replies_path=replies_path, **options)
    try:
        found = _files(path)
    except RecursionError:
        raise ValueError(f"folder:{rest}: folders are nested too deeply: move them up") from None
    stamps = {source: state for source, (state, _) in found.items()}
    if not stamps:
        raise ValueError(f"folder:{rest}: no files: add files of type {' '.join(OUTLINES)}")
    stamps[JOINS] = ""
    with closing(Parser()) as parser:

        def read(source: str) -> Part:
            if source == JOINS:
                return join_files(store)
            return defer_facts(
                chunk_file(source, _text(found[source][1], file_suffix(source), parser))
            )

        if endpoint:
            extractor.update(store, stamps, read)
        else:
            store.update(stamps, read)
    library = Library(f"folder:{rest}", store, "folder")
    library.extraction = extractor.counts
    library.changes = _without_joins(store.changes)
    return library


def _without_joins(changes: Changes) -> Changes:
    """Return `changes` without the internal source that joins the files."""
    added, updated, removed = ([name for name in some if name != JOINS] for some in changes[:3])
    return Changes(added, updated, removed, changes.skipped)


def fingerprint(rest: str) -> str:
    """Return ten hex digits that change with the names, sizes and times of the files.

    Raises:
        ValueError: no such folder.
    """
    states = {source: state for source, (state, _) in _files(_require_folder(rest)).items()}
    text = json.dumps(sorted(states.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _require_folder(rest: str) -> Path:
    path = Path(rest).expanduser()
    if not path.is_dir():
        raise ValueError(f"folder:{rest}: no such folder: pass folder:PATH of an existing one")
    return path


def _files(folder: Path) -> dict[str, tuple[str, Path]]:
    r"""List the files as source -> (stamp, path).

    Folders that are not entered are sources too, so that they are reported as skipped. Bytes of a
    name that are not UTF-8 are escaped in its source ("\udcff.md").
    """
    found: dict[str, tuple[str, Path]] = {}

    def cannot_be_listed(error: OSError) -> None:
        path = Path(error.filename)
        found.setdefault(_source(folder, path), (VERSION, path))

    for root, folders, files in os.walk(folder, onerror=cannot_be_listed):
        skipped_folders = [
            name
            for name in folders
            if name.startswith(".") or os.path.islink(os.path.join(root, name))
        ]
        folders[:] = [name for name in folders if name not in skipped_folders]
        if root == os.fspath(folder):
            files = [name for name in files if name != WORDS_FILE]
        for name in files:
            with suppress(FileNotFoundError):  # deleted in the meantime
                path = Path(root, name)
                state = path.lstat()
                times = (state.st_size, state.st_mtime_ns, state.st_ctime_ns)
                found[_source(folder, path)] = f"{VERSION} {times}", path
        for name in skipped_folders:
            found[_source(folder, Path(root, name))] = NOT_ENTERED, Path(root, name)
    return found


def _source(folder: Path, path: Path) -> str:
    """Return the name of a file in the composed Unicode form, which links use.

    Of two files whose names differ only in their form, the other one keeps its own form.
    """
    name = path.relative_to(folder).as_posix().encode("utf-8", "backslashreplace").decode()
    composed = unicodedata.normalize("NFC", name)
    return composed if composed == name or not os.path.lexists(folder / composed) else name


def _text(path: Path, suffix: str, parser: Parser) -> str:
    """Read a file as Markdown, rst or plain text; raise `Skip` with the reason otherwise."""
    try:
        if suffix in PICTURES:
            raise Skip("a picture: its text is not read; add it as a text file")
        if suffix not in OUTLINES or not stat.S_ISREG(path.lstat().st_mode):
            known = f"no regular file of type {' '.join(OUTLINES)}"
            raise Skip(
                f"{known}; links are not followed; hidden and inaccessible folders are skipped"
            )
        if suffix not in PLAIN:
            require_libraries()
        with open(path, "rb", opener=_open_regular) as file:
            state = os.fstat(file.fileno())
            if state.st_size > MAX_FILE:
                raise Skip(f"{state.st_size} bytes, above the limit of {MAX_FILE}: split the file")
            data = file.read(state.st_size)
        return parser.parse(suffix, data, TIMEOUT_S, outline=True, chars=MAX_TEXT)["text"]
    except (OSError, ImportError, Unreadable) as error:
        raise Skip(f"not readable: {': '.join(map(str, error.args))}") from None


def _open_regular(name: str, flags: int) -> int:
    """Open a regular file, but no link or pipe that has replaced it in the meantime."""
    found = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if stat.S_ISREG(os.fstat(found).st_mode):
        return found
    os.close(found)
    raise OSError("no longer a regular file")
