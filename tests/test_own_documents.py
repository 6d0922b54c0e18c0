"""Ten realistic folders: each gives questions, or a message that states what is missing.

No other exception is raised, and no file is skipped without a reason.
"""

import random
import re
import warnings

import pytest

pytest.importorskip("trafilatura")
pytest.importorskip("pypdf")
pytest.importorskip("openpyxl")

import openpyxl

from drlib.questions import synthesize_questions
from drlib.questions.checks import find_faults
from drlib.questions.queries import from_text
from drlib.worlds import load_world
from tests.file_examples import pdf

NAMES = [f"{start}{end}" for start in ("Bar", "Cel", "Dor", "Fin") for end in ("an", "eth", "ik")]
TOWNS, TRADES = ("Alba", "Brin", "Corso", "Delt"), ("baker", "mason", "weaver")


def write(folder, files):
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def repository(folder):
    links = "See [the guide](docs/guide.md) and [its API](docs/api.md).\n"
    write(
        folder,
        {
            "README.md": f"# Tool\n\n{links}\n## Install\n\n```\npip install tool\n```\n",
            "docs/guide.md": "# Guide\n\nUse [the API](api.md#client).\n",
            "docs/api.md": "# API\n\n## Client\n\n| Name | Type |\n|--|--|\n| url | str |\n",
            "src/tool.py": "print(1)\n",
            "src/data.bin": bytes(256),
            "package.json": '{"name": "tool", "private": true}',
            "Makefile": "all:\n",
            ".git/config": "[core]",
        },
    )


def one_file(folder):
    write(folder, {"note.txt": "The barometer fell."})


def empty(folder):
    pass


def many_notes(folder):
    rng = random.Random("notes-0")
    for i in range(2_000):
        front = (
            f"---\nauthor: {rng.choice(NAMES)} {rng.randrange(60)}\nparent: Note {i // 7}\n---\n"
        )
        links = " ".join(f"[[Note {rng.randrange(2_000)}]]" for _ in range(3))
        write(folder, {f"Note {i}.md": f"{front}# Note {i}\n\n{links}\n"})


def docusaurus(folder):
    rng = random.Random("site-0")
    pages = [f"{part}/{name}" for part in ("guide", "api", "tutorial") for name in NAMES]
    for number, page in enumerate(pages):
        links = " ".join(f"[x](/{to.casefold()})" for to in rng.sample(pages, 3))
        front = f"---\nsidebar_position: {number}\ntags: [{rng.choice(TOWNS)}]\n---\n"
        body = f"import X from '@x';\n\n# {page}\n\n{links}\n\n<Tabs>\n\n:::note\nx\n:::\n"
        part, name = page.split("/")
        write(folder, {f"docs/{part}/{number:02}-{name.casefold()}.mdx": front + body})
    write(folder, {"docusaurus.config.js": "x", "docs/guide/_category_.json": '{"label": "Guide"}'})


def zettelkasten(folder):
    rng = random.Random("zettel-0")
    ids = [str(202101010000 + number) for number in range(60)]
    for number, key in enumerate(ids):
        links = " ".join(f"[[{to}]]" for to in rng.sample(ids, 3))
        title = f"{NAMES[number % 12]} {number}"
        write(folder, {f"{key} {title}.md": f"# {title}\n\n#tag {links}\n"})


def spreadsheets(folder):
    rng = random.Random("sheets-0")
    book = openpyxl.Workbook()
    book.active.append(["person", "town", "trade", "master"])
    for name in NAMES:
        book.active.append([name, rng.choice(TOWNS), rng.choice(TRADES), rng.choice(NAMES)])
    book.save(folder / "people.xlsx")
    rows = "".join(f"{town};{rng.choice(NAMES)};{rng.choice('xyz')}-land\n" for town in TOWNS)
    write(
        folder, {"towns.csv": f"town;mayor;country\n{rows}", "empty.csv": "", "odd.tsv": "a\tb\nc"}
    )


def mixed_encodings(folder):
    german, russian = "Zürich — die Straße über die Brücke", "Это русский текст. Москва — столица."
    write(
        folder,
        {
            "de.md": f"# {german}\n\n[ru](ru.md)\n".encode("cp1252"),
            "ru.md": f"# Москва\n\n{russian} [de](de.md)\n".encode("cp1251"),
            "ja.txt": "これは日本語の文章です。東京は日本の首都です。".encode("shift_jis"),
            "wide.md": "# Wide\n\n[de](de.md) [ru](ru.md)\n".encode("utf-16-le"),
            "he.txt": "זהו טקסט בעברית. ירושלים היא הבירה".encode("cp1255"),
            "noise.txt": random.Random("noise-0").randbytes(500),
        },
    )


def pdfs(folder):
    write(
        folder, {f"{name}.pdf": pdf(f"A paper by {name}", "Its second page") for name in NAMES[:4]}
    )


def scans(folder):
    picture = b"\x89PNG\r\n\x1a\n" + bytes(50)
    write(folder, {"scan1.pdf": pdf(""), "scan2.pdf": pdf("", ""), "photo.png": picture})


# folder -> (minimum of 5 questions, pattern of the message if there are fewer)
FOLDERS = {
    repository: (0, "link more pages"),
    one_file: (0, "has not one fact.*write the pages as Markdown"),
    empty: (0, "add files of type .*csv"),
    many_notes: (5, ""),
    docusaurus: (0, r"ask about links and sections too \(structure=True\)"),
    zettelkasten: (0, r"ask about links and sections too \(structure=True\)"),
    spreadsheets: (5, ""),
    mixed_encodings: (0, "save it as UTF-8"),
    pdfs: (0, "PDF and docx give pages without facts"),
    scans: (0, "no pages.*(a picture|run OCR)"),
}


@pytest.mark.parametrize("make", FOLDERS, ids=lambda make: make.__name__)
def test_folder_gives_questions_or_a_stated_reason(make, tmp_path):
    make(tmp_path)
    least, sentence = FOLDERS[make]
    tasks, message = [], ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            world = load_world(f"folder:{tmp_path}")
            tasks = synthesize_questions(world, 5, 0)
        except ValueError as error:
            message = str(error)
    message += "".join(str(one.message) for one in caught)
    assert len(tasks) >= least and (len(tasks) == 5 or message)
    if sentence:
        assert re.search(f"(?s){sentence}", message), message
    assert all(find_faults(from_text(task.query), world.graph) == [] for task in tasks)


@pytest.mark.parametrize("make", [docusaurus, zettelkasten], ids=lambda make: make.__name__)
def test_structure_option_asks_about_links(make, tmp_path):
    make(tmp_path)
    world = load_world(f"folder:{tmp_path}")
    tasks = synthesize_questions(world, 5, 0, structure=True)
    assert len(tasks) == 5
    assert all(find_faults(from_text(task.query), world.graph) == [] for task in tasks)


def test_links_and_tables_connect_the_pages(tmp_path):
    for make in (docusaurus, zettelkasten, spreadsheets):
        (tmp_path / make.__name__).mkdir()
        make(tmp_path / make.__name__)
    site, zettel, sheets = (
        load_world(f"folder:{tmp_path / make.__name__}").graph
        for make in (docusaurus, zettelkasten, spreadsheets)
    )
    for graph, pages, links in ((site, 36, 3), (zettel, 60, 3)):
        found = [fact for fact in graph.facts if fact[1] == "link"]
        self_links = sum(subject == value for subject, _, value in found)
        assert self_links == 0 and pages * (links - 1) < len(found) <= pages * links
        assert not any(graph.is_value(value) for *_, value in found)
    towns = {value for _, relation, value in sheets.facts if relation == "town"}
    assert towns == {f"towns.csv: {town}" for town in TOWNS}
    mayors = {value for _, relation, value in sheets.facts if relation == "mayor"}
    assert mayors and all(mayor.startswith("people.xlsx: ") for mayor in mayors)
