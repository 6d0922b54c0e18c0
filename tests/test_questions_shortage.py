"""Tests of the warning for worlds with too few questions: reasons, missing facts, remedies.

Run: python -m pytest tests/test_questions_shortage.py
"""

import math
import posixpath
import re
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from drlib.questions import synthesize_questions
from drlib.questions.checks import find_faults
from drlib.questions.queries import Proj, from_text, walk
from drlib.worlds import Graph, Node, load_world

README = Path(__file__).resolve().parents[1] / "README.md"
LINKS = {  # nine notes and their links
    "index": ["garden", "workshop", "recipes", "calendar"],
    "garden": ["soil", "plants", "tools"],
    "soil": ["garden", "plants"],
    "plants": ["garden", "tools", "calendar"],
    "tools": ["workshop"],
    "calendar": ["soil", "plants", "tools"],
    "workshop": ["tools", "bicycle"],
    "bicycle": ["workshop"],
    "recipes": ["plants"],
}
DOCS = {  # a documentation tree in mkdocs layout
    "index": ["install", "guide/start", "api/client"],
    "install": ["guide/start", "faq"],
    "faq": ["install", "guide/config", "api/errors"],
    "guide/start": ["guide/config", "api/client", "install"],
    "guide/config": ["api/client", "api/errors", "guide/start"],
    "guide/advanced": ["guide/config", "api/session", "api/client"],
    "api/client": ["api/session", "api/errors"],
    "api/session": ["api/client", "api/errors"],
    "api/errors": ["faq"],
    "changelog": ["install", "api/client", "guide/advanced"],
    "contributing": ["install", "faq"],
    "about": ["index", "contributing"],
}


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def markdown(page, targets):
    """Return a page with a heading, links and a section."""
    links = [
        f"See [{to}]({posixpath.relpath(to, posixpath.dirname(page) or '.')}.md)." for to in targets
    ]
    return f"# {page.title()}\n\nAbout it. {' '.join(links)}\n\n## Notes on {page}\n\nMore.\n"


def notes(folder):
    return write(folder, {f"{name}.md": markdown(name, to) for name, to in LINKS.items()})


def docs_tree(folder):
    pages = {f"docs/{name}.md": markdown(name, to) for name, to in DOCS.items()}
    return write(folder, {"mkdocs.yml": "site_name: Toy\n", **pages})


def plain_texts(folder):
    texts = {"diary.txt": "2 May. The barometer fell.", "list.txt": "eggs\nmilk", "a.txt": "Hi."}
    return write(folder, texts)


def request_questions(folder, n=200, **options):
    """Return (world, questions, warning)."""
    world = load_world(f"folder:{folder}")
    with pytest.warns(UserWarning) as caught:
        tasks = synthesize_questions(world, n, seed=0, depth=3, **{"structure": True} | options)
    (warning,) = [given for given in caught if given.category is UserWarning]
    assert warning.filename == __file__  # attributed to the caller
    return world, tasks, str(warning.message)


def readme_snippet():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (snippet,) = [block for block in blocks if "synthesize_questions(" in block]
    return snippet.partition("@register")[0]


def notes_with_front_matter(folder):
    for number, path in enumerate(sorted(notes(folder).glob("*.md"))):
        front = f"---\nauthor: Author {number % 3}\nseason: Season {number % 4}\n"
        path.write_text(f"{front}tags: [{'ab'[number % 2]} kind]\n---\n{path.read_text()}")
    return folder


@pytest.mark.parametrize("structure", [False, True])
@pytest.mark.parametrize("make", [notes, docs_tree, plain_texts])
def test_readme_snippet_runs_on_small_folders(make, structure, tmp_path, monkeypatch):
    """The warning recommends structure=True if it helps."""
    make(tmp_path / "notes")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        snippet = readme_snippet().replace("seed=0", f"seed=0, {structure=}")
        assert f"{structure=}" in snippet
        names = {}
        exec(compile(snippet, "snippet", "exec"), names)
    (warning,) = [w for w in caught if w.category is UserWarning]
    found = int(re.search(r"gives (?:only )?(\d+) of 200", str(warning.message))[1])
    assert len(names["tasks"]) == found
    advised = "structure=True" in str(warning.message)
    assert advised == (make is not plain_texts and not structure)
    assert (found == 0) == (make is plain_texts or not structure)


@pytest.mark.parametrize("make, least", [(notes, 8), (docs_tree, 14)])
def test_returned_questions_are_verified(make, least, tmp_path):
    world, tasks, message = request_questions(make(tmp_path))
    assert len(tasks) >= least and len({task.query for task in tasks}) == len(tasks)
    assert all(find_faults(from_text(task.query), world.graph) == [] for task in tasks)
    assert f"gives only {len(tasks)} of 200 questions" in message
    answer, most = Counter(task.answer for task in tasks).most_common(1)[0]
    assert (
        most <= 4 and f"at most 4 questions (max_share); the most frequent, {answer!r}" in message
    )
    assert re.search(r"Draws that gave nothing new: [1-9]\d*\. They met .+ \(\d+%\)", message)


def test_exhausted_depths_are_replaced_by_others(tmp_path):
    """An exhausted depth does not stop the others."""
    _, tasks, _ = request_questions(docs_tree(tmp_path), hops={2: 1, 3: 9})
    alone = request_questions(tmp_path, hops={3: 1})[1]
    assert {task.hops for task in tasks} == {2, 3} and {task.hops for task in alone} == {3}
    assert len(tasks) > len(alone)


def test_warning_describes_the_folder(tmp_path):
    _, _, message = request_questions(notes(tmp_path / "linked"))
    assert re.search(r"Pages: \d+, of which [1-9]\d* can be asked for", message)
    assert (
        re.search(r"\d+ link \([1-9]\d* shared\)", message) and "18 heading (0 shared)" in message
    )
    assert "front matter" in message and "link more pages" in message and "max_share" in message

    unlinked = {f"{name}.md": markdown(name, []) for name in LINKS}
    _, tasks, message = request_questions(write(tmp_path / "unlinked", unlinked))
    assert tasks == [] and "of which 0 can be asked for" in message
    assert "link the pages to each other" in message and "max_share" not in message

    _, tasks, message = request_questions(docs_tree(tmp_path / "docs"))
    assert "Files left out: 1 (world.changes.skipped says why)" in message  # mkdocs.yml

    _, tasks, message = request_questions(plain_texts(tmp_path / "texts"))
    assert tasks == [] and "nothing joins its pages" in message and "as Markdown" in message
    assert "endpoint=URL, model=NAME" in message


def test_advice_of_the_warning_helps(tmp_path):
    _, few, _ = request_questions(notes(tmp_path))
    for number, path in enumerate(sorted(tmp_path.glob("*.md"))):
        front = f"---\nauthor: Author {number % 3}\nseason: Season {number % 4}\n---\n"
        path.write_text(front + path.read_text())
    _, more, message = request_questions(tmp_path)
    assert len(more) > len(few) and "front matter" not in message
    _, most, _ = request_questions(tmp_path, max_share=0.1)
    assert len(most) > len(more)


def test_structure_option_controls_link_questions(tmp_path):
    """Links are facts too, but used only with `structure`; all facts are checked for nearness."""
    world, tasks, message = request_questions(
        notes_with_front_matter(tmp_path), structure=False, max_effort=math.inf
    )
    used = {
        part.relation for task in tasks for part in walk(from_text(task.query)) if is_step(part)
    }
    assert used and used <= {"author", "author of", "season", "season of", "tags", "tags of"}
    assert "are the folder's own" in message and "(structure=True)" in message
    assert all(find_faults(from_text(task.query), world.graph) == [] for task in tasks)
    _, with_links, message = request_questions(tmp_path)
    used = {part.relation for t in with_links for part in walk(from_text(t.query)) if is_step(part)}
    assert used & {"link", "link of"} and "structure=True" not in message


def is_step(part):
    return isinstance(part, Proj)


def test_at_least_raises_with_a_remedy(tmp_path):
    world = load_world(f"folder:{notes(tmp_path)}")
    with pytest.raises(ValueError, match=r"(?s)What helps: .*\nat_least=200 questions are"):
        synthesize_questions(world, 200, 0, at_least=200, structure=True)
    with pytest.warns(UserWarning, match="of 200"):
        assert len(synthesize_questions(world, 200, 0, at_least=5, structure=True)) >= 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(synthesize_questions(world, 2, 0, at_least=2, structure=True)) == 2


def test_world_without_a_graph_gets_a_remedy():
    for graph in (None, Graph([Node("Lonely", "page")], [])):
        bare = SimpleNamespace(name="heap", graph=graph, scheme="", version="v")
        message = r"(?s)'heap' has no graph.*links or tables.*endpoint="
        with pytest.warns(UserWarning, match=message):
            assert synthesize_questions(bare, 3, 0) == []
        with pytest.raises(ValueError, match=message):
            synthesize_questions(bare, 3, 0, at_least=3)


def test_small_world_error_contains_the_count():
    nodes = [Node(t, "x") for t in ("Ash", "Birch", "Cedar", "Park", "Wood")]
    facts = [("Ash", "Park"), ("Birch", "Park"), ("Birch", "Wood"), ("Cedar", "Wood")]
    tiny = Graph(nodes, [(tree, "in", place) for tree, place in facts])
    world = SimpleNamespace(name="tiny", graph=tiny, scheme="", version="v")
    with pytest.raises(ValueError, match="tiny gives only 1 of 5 questions"):
        synthesize_questions(world, 5, 0, at_least=5)
    with pytest.raises(ValueError, match=r"(?s)only \d+ of 400 .*max_effort"):
        synthesize_questions(load_world("tour"), 400, 0, max_effort=2, at_least=400)
