"""Parts of office files (OOXML): relations, and text of a Word file that is not shown."""

import posixpath
import zipfile
from xml.etree import ElementTree

# Text that was deleted or moved away; a second copy of a drawing; positions of tab stops.
NOT_TEXT = ("}del", "}moveFrom", "}Fallback", "}tabs")
OFF = ("0", "false", "off", "none")


def relations(archive: zipfile.ZipFile, part: str) -> dict[str, tuple[str, str]]:
    """Return id -> (kind, part) of the relations of a part; "" is the whole file."""
    folder, name = posixpath.split(part)
    place = posixpath.join(folder, "_rels", f"{name}.rels")
    if place not in archive.NameToInfo:
        return {}
    found = {}
    for relation in ElementTree.fromstring(archive.read(place)):
        if relation.get("TargetMode") != "External":
            target = posixpath.normpath(posixpath.join("/", folder, relation.get("Target", "")))
            kind = relation.get("Type", "").rpartition("/")[2]
            found[relation.get("Id", "")] = kind, target.lstrip("/")
    return found


def main_part(archive: zipfile.ZipFile, usual: str) -> str:
    """Return the part that the file declares as its document, or the `usual` one."""
    parts = [part for kind, part in relations(archive, "").values() if kind == "officeDocument"]
    return next((part for part in parts if part in archive.NameToInfo), usual)


def hide(root: ElementTree.Element, styles: ElementTree.Element) -> None:
    """Empty the elements of a Word document that are not shown as text."""
    tags = {node.tag for node in root.iter()}
    for tag in (tag for tag in tags if tag.endswith(NOT_TEXT)):
        for node in root.iter(tag):
            node.clear()
    hidden = _hidden_styles(styles)
    if any(tag.endswith("}hidden") for tag in tags):
        for row in root.iterfind(".//{*}tr"):
            if _is_on(row.find("{*}trPr/{*}hidden")):
                row.clear()
    if hidden or any(tag.endswith("}vanish") for tag in tags):
        for paragraph in root.iterfind(".//{*}p"):
            _hide_runs(paragraph, hidden)


def _hide_runs(paragraph: ElementTree.Element, hidden: set[str]) -> None:
    of_paragraph = _value(paragraph.find("{*}pPr/{*}pStyle")) in hidden
    for run in paragraph.iterfind(".//{*}r"):
        is_hidden = _is_on(run.find("{*}rPr/{*}vanish"))
        if is_hidden is None:
            is_hidden = of_paragraph or _value(run.find("{*}rPr/{*}rStyle")) in hidden
        if is_hidden:
            run.clear()


def _hidden_styles(styles: ElementTree.Element) -> set[str]:
    """Return the ids of the styles with hidden text, their own or of the style they extend."""
    found = {_value(style, "styleId"): style for style in styles.iterfind("{*}style")}
    hidden = set()
    for name in found:
        style, seen = name, set()
        while style in found and style not in seen:
            seen.add(style)
            vanish = _is_on(found[style].find("{*}rPr/{*}vanish"))
            if vanish:
                hidden.add(name)
            style = "" if vanish is not None else _value(found[style].find("{*}basedOn"))
    return hidden


def _is_on(switch: ElementTree.Element | None) -> bool | None:
    """Return the state of a switch; None if it is not there."""
    return None if switch is None else _value(switch) not in OFF


def _value(node: ElementTree.Element | None, name: str = "val") -> str:
    """Return an attribute by its local name, or ""."""
    attributes = {} if node is None else node.attrib
    return next((v for key, v in attributes.items() if key.rpartition("}")[2] == name), "")
