"""Run a notebook with other parameters, or refresh its stored outputs; both by papermill.

`run` adds what papermill leaves open: unknown parameter names and wrong types are errors, the
kernel starts in notebooks/ as under Jupyter and nbval, with private Jupyter folders, and bars and
prints of the cells appear on the terminal. The executed copy is NN_profile.running.ipynb while it
grows and gets its name when it is complete; one that failed stays as NN_profile.failed.ipynb. One
that was stopped from outside keeps the first name, and the next run says so and replaces it.

`refresh` executes with the defaults (the ci profile) and writes outputs that are the same bytes on
every run: no timings, no widget state, no random cell ids. Left out: cells tagged raises-exception
or skip-execution (papermill refuses the first, nbval checks nothing in the second).
"""

import ast
import os
import re
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from drlib.config import Config
from drlib.files import write_atomic
from drlib.notebook.display import ROOT
from drlib.registry import suggest_name
from drlib.startup import GC_THRESHOLDS

FOLDER = ROOT / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_TIMEOUT_S = 600  # of refresh, as under nbval; `run` has none
SHUTDOWN_S = 30  # a kernel that was interrupted may be waiting for a stage's last checkpoint
KERNEL_STARTS = 3


class NotebookError(RuntimeError):
    """A notebook cannot be found, read or executed; the message names it and the remedy."""


def find(notebook: str | None, *, solutions: bool = False) -> list[Path]:
    """Return the notebook with a number or name ("5", "05", "tour"), or all for None.

    solutions: add the notebooks with the solutions of its exercises.
    """
    existing = sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))
    wanted = notebook and notebook.removesuffix(".ipynb")
    chosen = [p for p in existing if wanted is None or wanted.zfill(2) in (p.stem, p.stem[:2])]
    chosen = chosen or [p for p in existing if p.stem[3:] == wanted]
    if notebook is not None and not chosen:
        names = ", ".join(p.stem for p in existing) or "none"
        raise NotebookError(f"no notebook {notebook!r} in {FOLDER.name}/; available: {names}")
    extra = [p for c in chosen for p in FOLDER.glob(f"solutions/{c.stem[:2]}_*.ipynb")]
    return chosen + extra if solutions else chosen


def read(path: Path):
    """The notebook, valid nbformat 4; NotebookError says what is wrong with it."""
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (OSError, ValueError, nbformat.ValidationError) as fault:
        message = str(fault).splitlines()[0]
        raise NotebookError(f"{path} is not a valid notebook: {message}") from fault
    return notebook


def _yaml(text: str, what: str):
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as fault:
        raise NotebookError(f"{what} is not YAML: {fault}") from None


def read_parameters(path: Path) -> dict:
    """The `name: value` lines of a YAML file, not yet compared with any notebook."""
    try:
        values = _yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as fault:
        raise NotebookError(f"cannot read the parameter file {path}: {fault.strerror}") from None
    if not isinstance(values, dict):
        raise NotebookError(f"{path} must hold `name: value` lines, got {values!r:.60}")
    return values


def parse_pairs(pairs: list[list[str]]) -> dict:
    """Name and value as typed on a command line; values are read as YAML ("3" is an int)."""
    return {name: _yaml(text, f"parameter {name}: {text!r}") for name, text in pairs}


def defaults(notebook) -> dict:
    """Name -> default of the cell tagged `parameters`, a line `name = literal` each."""
    cells = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        raise NotebookError(f"{len(cells)} cells are tagged `parameters`: exactly one must be")
    try:
        lines = ast.parse(cells[0].source).body
        return {line.targets[0].id: ast.literal_eval(line.value) for line in lines}
    except (SyntaxError, AttributeError, ValueError) as fault:
        raise NotebookError(f"`parameters` must be lines `name = literal`: {fault}") from None


def check_parameters(notebook, parameters: dict) -> dict:
    """The parameters with their defaults; NotebookError for an unknown name or a wrong type."""
    known = defaults(notebook)
    for name, value in parameters.items():
        if name not in known:
            raise NotebookError(f"unknown parameter {name!r}: {suggest_name(str(name), known)}")
        want = type(known[name])
        got = type(value)
        if known[name] is not None and got is not want and (want, got) != (float, int):
            fault = f"must be {want.__name__}, got {got.__name__} ({value!r})"
            raise NotebookError(f"parameter {name!r} {fault}")
    return known | parameters


def run(number: str, parameters: dict, output: Path | None = None) -> Path:
    """Execute a copy of a notebook with `parameters`; returns the copy's path."""
    (source,) = find(number)
    profile = check_parameters(read(source), parameters).get("profile", "ci")
    Config.load(profile)  # an unknown profile fails here, before a kernel starts
    usual = ROOT / "runs" / "notebooks" / f"{source.stem[:2]}_{profile}.ipynb"
    output = (output or usual).resolve()
    output.parent.mkdir(parents=True, exist_ok=True)
    running = output.with_suffix(".running.ipynb")
    failed = output.with_suffix(".failed.ipynb")
    pictures = os.environ.get("DRLIB_FIGURES") or str(output.parent / "figures")
    pause = "0.5" if sys.stderr.isatty() else "60"  # a log file needs no moving bars
    print(f"{source.name}, profile {profile}: executing (the copy goes to {output})", flush=True)
    if running.exists():
        print(f"an earlier run was stopped before its end; its copy {running} is replaced")
    try:
        with private_jupyter(DRLIB_FIGURES=pictures, DRLIB_TEXT_BARS=pause):
            _execute(
                source,
                running,
                parameters,
                f"the copy is {failed}",
                stdout_file=sys.stdout,
                stderr_file=sys.stderr,
                on_cell_start=_announce,
            )
    except NotebookError:
        if running.exists():  # a kernel that did not start has left no copy
            os.replace(running, failed)
        raise
    os.replace(running, output)
    failed.unlink(missing_ok=True)  # of an earlier run: this one is whole
    print(f"done: {output}, pictures in {pictures}", flush=True)
    return output


def refresh(path: Path) -> bool:
    """Execute in the ci profile and store normalised outputs; whether the file changed."""
    import nbformat

    with tempfile.TemporaryDirectory() as scratch, private_jupyter(DRLIB_HEADLESS="1"):
        copy = Path(scratch) / path.name
        _execute(path, copy, {}, "nothing was written", execution_timeout=CELL_TIMEOUT_S)
        text = nbformat.writes(normalised(read(copy))) + "\n"
    if text == path.read_text(encoding="utf-8"):
        return False
    write_atomic(path, text)
    return True


def with_a_kernel(start, *args, **how):
    """`start(...)`, at most three times where the kernel ends before it has answered at all.

    Jupyter picks five free ports and leaves them to the kernel, which binds them half a second
    later; whatever takes one in between (another notebook that starts, ranks that meet) ends the
    kernel with "Address already in use". No cell has run by then, so that nothing runs twice.
    """
    for tried in range(1, KERNEL_STARTS + 1):
        try:
            return start(*args, **how)
        except RuntimeError as fault:
            if "Kernel died before replying" not in str(fault):
                raise
            if tried == KERNEL_STARTS:
                message = f"the kernel ended {tried} times before it answered: see what it said"
                raise NotebookError(message) from fault
            print("the kernel ended before it answered; another is started", file=sys.stderr)


def _execute(source: Path, copy: Path, parameters: dict, left: str, **how) -> None:
    """`left` says in the error what a failure has left behind; `how` goes to papermill."""
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill import PapermillExecutionError, execute_notebook
    from traitlets.config import Config as Traits

    # time to stop, and encrypted channels where the installed Jupyter has them
    manager = {"shutdown_wait_time": SHUTDOWN_S, "transport_encryption": "auto"}
    try:
        with_a_kernel(
            execute_notebook,
            source,
            copy,
            parameters,
            kernel_name="python3",
            language="python",
            cwd=source.parent,
            progress_bar=False,
            coalesce_streams=True,
            config=Traits({"KernelManager": manager}),
            **how,
        )
    except (PapermillExecutionError, CellTimeoutError, DeadKernelError) as fault:
        raise NotebookError(f"{source.name} failed, {left}: {fault}") from fault


def normalised(notebook):
    """The notebook without what differs between equal runs: cell ids, metadata but tags, views of
    widgets (their fallback text stays)."""
    import nbformat

    notebook = nbformat.from_dict(notebook)
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    notebook.nbformat = 4
    notebook.nbformat_minor = 5
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index:02d}"
        tags = cell.metadata.get("tags", [])
        cell.metadata = {"tags": tags} if tags else {}
        for output in cell.get("outputs", []):
            if "data" in output:
                output.data.pop(WIDGET_VIEW, None)
                output.metadata = {}
    return notebook


@contextmanager
def private_jupyter(**more: str | None):
    """The environment of a kernel that neither sees nor touches the user's Jupyter and IPython."""
    with tempfile.TemporaryDirectory(prefix="drlib-jupyter-") as scratch, patch.dict(os.environ):
        for name, value in (kernel_environment(Path(scratch)) | more).items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        yield


def kernel_environment(scratch: Path) -> dict[str, str | None]:
    """Variables for kernels (None: must not be set), whose folders are in `scratch`.

    A set MPLBACKEND would lose the figures. What a kernel imports is searched for garbage seldom
    (`drlib.startup`), by a file that IPython runs when it begins.
    """
    begins = scratch / "ipython" / "profile_default" / "startup"
    begins.mkdir(parents=True, exist_ok=True)
    (begins / "collector.py").write_text(f"__import__('gc').set_threshold{GC_THRESHOLDS}\n")
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        "IPYTHONDIR": str(scratch / "ipython"),
        "JUPYTER_CONFIG_DIR": str(scratch / "config"),
        "JUPYTER_DATA_DIR": str(scratch / "data"),
        "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "JUPYTER_PATH": None,
        "MPLBACKEND": None,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(p for p in paths if p)),
    }


def _announce(cell, cell_index) -> None:
    """Prints the headings of a markdown cell when its turn comes (nbclient calls this)."""
    if cell.cell_type == "markdown":
        for title in re.findall(r"^##? (.+)", cell.source, re.M):
            print(f"== {title}", flush=True)
