"""The committed notebooks follow the rules, and run through papermill with parameters.

nbval checks that every stored output is still reproduced (`make test` runs it).
"""

import itertools
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from drlib.config import ROOT, profile_names
from drlib.notebook import execution
from drlib.notebook.execution import check_parameters, find, normalise, read
from drlib.notebook.rules import HEADINGS, find_problems

COMMITTED = find(None, solutions=True)
BOOK = r"^\.\./\.\./notebooks/(\d\w+)$"  # in its tables of contents


def name(path):
    return path.relative_to(ROOT / "notebooks").as_posix()


@pytest.mark.parametrize("path", COMMITTED, ids=name)
def test_committed_notebooks_follow_the_rules(path):
    assert find_problems(path) == []


@pytest.mark.parametrize("path", find(None), ids=name)
def test_every_notebook_accepts_a_profile_and_a_seed(path):
    for profile in profile_names():
        values = check_parameters(read(path), {"profile": profile, "seed": 3})
        assert (values["profile"], values["seed"]) == (profile, 3)
    assert check_parameters(read(path), {})["profile"] == "ci"  # nbval cannot inject parameters


def test_notebooks_are_numbered_in_reading_order():
    """Each names the next one; the README and the book list them in the same order."""
    stems = [path.stem for path in find(None)]
    assert [int(stem[:2]) for stem in stems] == [*range(len(stems))]
    for path, following in itertools.pairwise(find(None)):
        assert f"Next: [{following.stem[:2]}]({following.name})" in read(path).cells[-1].source
    for page, link in (("README.md", r"\(notebooks/(\w+)\.ipynb"), ("docs/book/index.md", BOOK)):
        assert re.findall(link, (ROOT / page).read_text(), re.MULTILINE) == stems


def test_notebook_runs_through_papermill_with_parameters(tmp_path):
    """One notebook: nbval runs all of them, but cannot inject parameters."""
    output = tmp_path / "copy.ipynb"
    parameters = {"profile": "ci", "seed": 1}
    execution.run("grpo_by_hand", parameters, output)
    copy = nbformat.read(output, 4)
    assert copy.metadata.papermill.parameters == parameters
    injected = [c for c in copy.cells if "injected-parameters" in c.metadata.get("tags", [])]
    assert "seed = 1" in injected[0].source
    assert copy.metadata.papermill.exception is None


# ---------------------------------------------------------------------------------------------
# rules: a valid notebook has no problem, and each problem is found


def valid_notebook():
    """Return a valid notebook: every heading, 26 cells, executed and normalised."""
    cells = [new_markdown_cell("# 07 · Small\n\n## Goal\n\n## Parameters")]
    cells += [new_code_cell('profile = "ci"', metadata={"tags": ["parameters"]})]
    cells += [new_markdown_cell(f"## {heading}") for heading in HEADINGS[2:]]
    cells += [new_code_cell(f"print({i})") for i in range(14)]
    cells += [new_code_cell('notebook.save_figure(fig, "07_small")')]
    notebook = new_notebook(cells=cells)
    for count, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        cell.execution_count = count
        cell.outputs = [new_output("stream", name="stdout", text="1\n")]
    return normalise(notebook)


def problems_of(notebook, tmp_path, again=True):
    """Return the problems of a notebook whose figure exists; `again`: normalise it first."""
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "07_small.png").touch()
    path = tmp_path / "07_small.ipynb"
    nbformat.write(normalise(notebook) if again else notebook, path)
    return find_problems(path, figures=tmp_path / "figures")


def test_valid_notebook_has_no_problem(tmp_path):
    assert problems_of(valid_notebook(), tmp_path) == []


def source(cell, text):
    return lambda notebook: notebook.cells[cell].update(source=text)


def output(cell, *args, **kwargs):
    return lambda notebook: notebook.cells[cell].outputs.append(new_output(*args, **kwargs))


def tag(cell, *tags):
    return lambda notebook: notebook.cells[cell].metadata.update(tags=list(tags))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda n: n.cells[-1].update(execution_count=None), "execution counts are"),
        (output(-1, "error", ename="KeyError", evalue="", traceback=[]), "ends in KeyError"),
        (tag(1), "0 cells are tagged `parameters`"),
        (tag(-1, "parameters"), "2 cells are tagged `parameters`"),
        (source(2, "## Ideas"), "headings are Goal, Parameters, Ideas"),
        (source(0, "# 08 · Small\n\n## Goal\n\n## Parameters"), "must begin with '# 07 · Title'"),
        (source(-1, "x = 1\n" * 26), "26 lines, above 25"),
        (lambda n: [c.update(source="x\n" * 7) for c in n.cells[11:]], "median code cell has 7"),
        (source(-1, "x = " + "1" * 100), "above 100 columns"),
        (source(-1, ""), "cell 25 is empty"),
        (source(-1, "!ls"), "no shell or magic"),
        (source(-1, "%matplotlib inline"), "no shell or magic"),
        (source(-1, "plot(x);"), "a trailing `;`"),
        (source(-1, 'save_figure(fig, "07_lost")'), "figures/07_lost.png does not exist"),
        (source(10, "## At scale\n\n![](../figures/07_gone.png)"), "07_gone.png does not exist"),
        (source(-1, 'save_figure(fig, "06_small")'), "must begin with the notebook's number"),
        (output(-1, "stream", text="x" * 300_000), "bytes without images"),
        (output(-1, "display_data", {"image/png": "x" * 600_001}), "bytes of images"),
        (output(-1, "stream", text=f"{ROOT}/runs/ci"), "contains a local path"),
        (source(1, "seeds = [profile]"), "must be lines `name = literal`"),
    ],
    ids=lambda value: value.replace(" ", "_")[:30] if isinstance(value, str) else "",
)
def test_each_problem_is_found(change, message, tmp_path):
    notebook = valid_notebook()
    change(notebook)
    found = problems_of(notebook, tmp_path)
    assert any(message in text for text in found), found


@pytest.mark.parametrize("name", ["widgets", "papermill"])
def test_volatile_metadata_is_found(name, tmp_path):
    notebook = valid_notebook()
    notebook.metadata[name] = {"version": 1}
    found = problems_of(notebook, tmp_path, again=False)
    assert any("not normalised" in text for text in found)


def test_unreadable_notebook_is_a_problem(tmp_path):
    path = tmp_path / "07_small.ipynb"
    path.write_text("{")
    assert "is not a valid notebook" in find_problems(path)[0]


def test_solutions_need_no_headings(tmp_path):
    notebook = new_notebook(cells=[new_code_cell("1 + 1", execution_count=1)])
    folder = tmp_path / "solutions"
    folder.mkdir()
    nbformat.write(normalise(notebook), folder / "07_small.ipynb")
    assert find_problems(folder / "07_small.ipynb", figures=tmp_path) == []
