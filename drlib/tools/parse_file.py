"""`parse_file`: text of the files of a folder for an agent, parsed by `drlib.worlds.reading`."""

from collections.abc import Collection, Mapping
from contextlib import closing
from pathlib import Path

from drlib.tools.backends import ToolFault
from drlib.worlds.reading import MAX_FILE, Parser, Unreadable, require_libraries


class ParseFile:
    """Backend: {"file": a name relative to `folder`} -> {"name", "text"}.

    Raises `ToolFault` "not_found", or "refused" for a name outside the folder, an unknown type and
    any defect of the file: none of these is an environment fault, and a retry would not help.

    Args:
        folder: of the files.
        names: the only files that may be read; empty: all.
    """

    name = "files"

    def __init__(self, folder: str | Path, names: Collection[str] = ()) -> None:
        require_libraries()
        self._names = frozenset(names)
        self._folder = Path(folder).resolve(strict=True)

    def __call__(self, arguments: Mapping, timeout_s: float) -> dict[str, str]:
        name = arguments.get("file")
        try:
            path = (self._folder / name).resolve()
            relative = Path(name)
            outside = relative.is_absolute() or ".." in relative.parts
            if outside or not path.is_relative_to(self._folder):
                raise ToolFault("refused", f"{name!r:.200} is outside the folder of files")
            if not path.is_file() or (self._names and name not in self._names):
                raise ToolFault("not_found", f"there is no file {name!r:.200}")
            if path.stat().st_size > MAX_FILE:
                raise ToolFault("refused", f"too_large: {name!r:.200} is above {MAX_FILE} bytes")
            data = path.read_bytes()
        except (TypeError, OSError, ValueError, RuntimeError):  # name too long, NUL byte, link loop
            raise ToolFault("refused", f"{name!r:.200} cannot be opened") from None
        try:
            parsed = parse_in_child(path.suffix.lower(), data, timeout_s)
        except ToolFault as fault:
            raise ToolFault("refused", str(fault)) from None
        return {"name": name, "text": parsed["text"]}


def parse_in_child(suffix: str, data: bytes, timeout_s: float, charset: str = "") -> dict[str, str]:
    """Parse a file of type `suffix` (".pdf") in its own subprocess.

    Untrusted files are thus isolated from each other.

    Returns:
        {"title", "text"}

    Raises:
        ToolFault: no text can be extracted.
    """
    try:
        with closing(Parser()) as parser:
            return parser.parse(suffix, data, timeout_s, charset)
    except Unreadable as fault:
        raise ToolFault(*fault.args) from None
