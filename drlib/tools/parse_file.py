"""`parse_file`: the text of a file of one folder, for an agent; `drlib.worlds.reading` reads it."""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from drlib.tools.backends import ToolFault
from drlib.worlds.reading import MAX_FILE, Parser, Unreadable, require_libraries


class ParseFile:
    """Backend: {"file": a name relative to `folder`} -> {"name", "text"}.

    Raises "not_found" or "refused": a name outside the folder, an unknown type, and whatever is
    wrong with a file, which is no fault of the environment and would be no better next time.
    """

    name = "files"

    def __init__(self, folder: str | Path) -> None:
        require_libraries()
        self._folder = Path(folder).resolve(strict=True)

    def __call__(self, arguments: Mapping, timeout_s: float) -> dict[str, str]:
        name = arguments.get("file")
        try:
            path = (self._folder / name).resolve()
            asked = Path(name)
            outside = asked.is_absolute() or ".." in asked.parts
            if outside or not path.is_relative_to(self._folder):
                raise ToolFault("refused", f"{name!r:.200} is outside the folder of files")
            if not path.is_file():
                raise ToolFault("not_found", f"there is no file {name!r:.200}")
            if path.stat().st_size > MAX_FILE:
                raise ToolFault("refused", f"too_large: {name!r:.200} is above {MAX_FILE} bytes")
            data = path.read_bytes()
        except (TypeError, OSError, ValueError, RuntimeError):  # too long, a NUL, a loop of links
            raise ToolFault("refused", f"{name!r:.200} cannot be opened") from None
        try:
            parsed = parse_apart(path.suffix.lower(), data, timeout_s)
        except ToolFault as fault:
            raise ToolFault("refused", str(fault)) from None
        return {"name": name, "text": parsed["text"]}


def parse_apart(suffix: str, data: bytes, timeout_s: float, charset: str = "") -> dict[str, str]:
    """{"title", "text"} of a file of type `suffix` (".pdf"), by a parser of its own: no stranger's
    file meets another's. Raises `ToolFault`."""
    try:
        with closing(Parser()) as parser:
            return parser.parse(suffix, data, timeout_s, charset)
    except Unreadable as fault:
        raise ToolFault(*fault.args) from None
