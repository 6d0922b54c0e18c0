"""Run a notebook with other parameters, or refresh its stored outputs, with papermill.

`run` checks the names and types of parameters and prints the output of the cells on the terminal.
The kernel starts in notebooks/, as under Jupyter and nbval, with private Jupyter folders. The
executed copy is written to NN_PROFILE.running.ipynb and renamed when it is complete. A copy with an
error is renamed to NN_PROFILE.failed.ipynb. A killed run leaves the running copy, which the next
run replaces.

`refresh` executes with the default parameters (the ci profile) and stores outputs that are
bit-identical on every run: no timings, widget state or random cell ids. Cells tagged
raises-exception or skip-execution are not supported: papermill stops at the first, and nbval does
not check the second.
"""

import ast
import os
import re
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from drlib.config import Config, runs_folder
from drlib.files import write_atomic
from drlib.notebook.display import ROOT
from drlib.registry import suggest_name
from drlib.startup import GC_THRESHOLDS

FOLDER = ROOT / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_TIMEOUT_S = 600  # limit of `refresh`, as under nbval; `run` has none
SHUTDOWN_S = 30  # an interrupted kernel may wait for the last checkpoint of a stage
KERNEL_STARTS = 3


class NotebookError(RuntimeError):
    """A notebook cannot be found, read or executed; the message gives the cause."""


def find(notebook: str | None, *, solutions: bool = False) -> list[Path]:
    """Return the paths of a notebook, or of all notebooks.

    Args:
        notebook: number or name ("5", "05", "tour"); None: all notebooks.
        solutions: add the notebooks with solutions of the exercises.

    Raises:
        NotebookError: no such notebook.
    """
    existing = sorted(FOLDER.glob("[0-9][0-9]_*.ipynb"))
    name = notebook and notebook.removesuffix(".ipynb")
    matches = [p for p in existing if name is None or name.zfill(2) in (p.stem, p.stem[:2])]
    matches = matches or [p for p in existing if p.stem[3:] == name]
    if notebook is not None and not matches:
        names = ", ".join(p.stem for p in existing) or "none"
        raise NotebookError(f"no notebook {notebook!r} in {FOLDER.name}/; available: {names}")
    extra = [p for match in matches for p in FOLDER.glob(f"solutions/{match.stem[:2]}_*.ipynb")]
    return matches + extra if solutions else matches


def read(path: Path):
    """Read a notebook as nbformat 4.

    Raises:
        NotebookError: the file is not a valid notebook.
    """
    import nbformat

    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        message = str(error).splitlines()[0]
        raise NotebookError(f"{path} is not a valid notebook: {message}") from error
    return notebook


def _parse_yaml(text: str, source: str):
    """Parse YAML; `source` names the text in the error message."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise NotebookError(f"{source} is not YAML: {error}") from None


def read_parameters(path: Path) -> dict:
    """Read `name: value` lines from a YAML file; `check_parameters` checks them later.

    Raises:
        NotebookError: the file cannot be read or contains something else.
    """
    try:
        values = _parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise NotebookError(f"cannot read the parameter file {path}: {error.strerror}") from None
    if not isinstance(values, dict):
        raise NotebookError(f"{path} must contain `name: value` lines, got {values!r:.60}")
    return values


def parse_pairs(pairs: list[list[str]]) -> dict:
    """Return name -> value of command-line pairs; values are parsed as YAML ("3" is an int)."""
    return {name: _parse_yaml(text, f"parameter {name}: {text!r}") for name, text in pairs}


def read_defaults(notebook) -> dict:
    """Return name -> default of the cell tagged `parameters`.

    Raises:
        NotebookError: there is not exactly one such cell, or a line is not `name = literal`.
    """
    cells = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        raise NotebookError(f"{len(cells)} cells are tagged `parameters`: tag exactly one")
    try:
        lines = ast.parse(cells[0].source).body
        return {line.targets[0].id: ast.literal_eval(line.value) for line in lines}
    except (SyntaxError, AttributeError, ValueError) as error:
        raise NotebookError(f"`parameters` must be lines `name = literal`: {error}") from None


def check_parameters(notebook, parameters: dict) -> dict:
    """Return the parameters completed by their defaults.

    Raises:
        NotebookError: a name is unknown or a value has the wrong type.
    """
    known = read_defaults(notebook)
    for name, value in parameters.items():
        if name not in known:
            raise NotebookError(f"unknown parameter {name!r}: {suggest_name(str(name), known)}")
        expected, actual = type(known[name]), type(value)
        if known[name] is None or actual is expected or (expected, actual) == (float, int):
            continue
        message = f"must be {expected.__name__}, got {actual.__name__} ({value!r})"
        raise NotebookError(f"parameter {name!r} {message}")
    return known | parameters


def run(number: str, parameters: dict, output: Path | None = None) -> Path:
    """Execute a copy of a notebook with `parameters` and return the path of the copy.

    Args:
        number: number or name of the notebook.
        parameters: values that replace the defaults.
        output: path of the copy; None: runs/notebooks/NN_PROFILE.ipynb. The notebook runs in the
            working directory.

    Raises:
        NotebookError: unknown notebook, invalid parameter, or an error in a cell.
    """
    (source,) = find(number)
    profile = check_parameters(read(source), parameters).get("profile", "ci")
    Config.load(profile)  # an unknown profile fails here, before a kernel starts
    default = runs_folder() / "notebooks" / f"{source.stem[:2]}_{profile}.ipynb"
    output = (output or default).resolve()
    output.parent.mkdir(parents=True, exist_ok=True)
    running = output.with_suffix(".running.ipynb")
    failed = output.with_suffix(".failed.ipynb")
    figures = os.environ.get("DRLIB_FIGURES") or str(output.parent / "figures")
    interval = "0.5" if sys.stderr.isatty() else "60"  # seconds; a log file needs few updates
    print(f"{source.name}, profile {profile}: executing; output: {output}", flush=True)
    if running.exists():
        print(f"replacing the incomplete copy of an interrupted run: {running}")
    try:
        with private_jupyter(DRLIB_FIGURES=figures, DRLIB_TEXT_BARS=interval):
            _execute(
                source,
                running,
                parameters,
                f"the copy is {failed}",
                stdout_file=sys.stdout,
                stderr_file=sys.stderr,
                on_cell_start=_print_headings,
                cwd=Path.cwd(),
            )
    except NotebookError:
        if running.exists():  # there is no copy if the kernel did not start
            os.replace(running, failed)
        raise
    os.replace(running, output)
    failed.unlink(missing_ok=True)  # of an earlier run
    print(f"done: {output}, figures in {figures}", flush=True)
    return output


def refresh(path: Path) -> bool:
    """Execute in the ci profile, store normalised outputs, and return True if the file changed."""
    import nbformat

    with tempfile.TemporaryDirectory() as scratch, private_jupyter(DRLIB_HEADLESS="1"):
        copy = Path(scratch) / path.name
        options = {"execution_timeout": CELL_TIMEOUT_S, "cwd": path.parent}
        _execute(path, copy, {}, "nothing was written", **options)
        text = nbformat.writes(normalise(read(copy))) + "\n"
    if text == path.read_text(encoding="utf-8"):
        return False
    write_atomic(path, text)
    return True


def retry_kernel_start(start, *args, **options):
    """Return `start(*args, **options)`, called up to 3 times if the kernel dies before replying.

    Jupyter chooses five free ports, and the kernel binds them half a second later. If another
    process takes one in between, the kernel dies with "Address already in use". No cell has run at
    this point, so no cell runs twice.

    Raises:
        NotebookError: the kernel died every time.
    """
    for attempt in range(1, KERNEL_STARTS + 1):
        try:
            return start(*args, **options)
        except RuntimeError as error:
            if "Kernel died before replying" not in str(error):
                raise
            if attempt == KERNEL_STARTS:
                message = f"the kernel died {attempt} times before replying: see its error output"
                raise NotebookError(message) from error
            print("the kernel died before replying; starting another one", file=sys.stderr)


def _execute(source: Path, copy: Path, parameters: dict, consequence: str, **options) -> None:
    """Execute a notebook with papermill and write the copy while it runs.

    Args:
        source: the notebook.
        copy: path of the executed copy.
        parameters: values that replace the defaults.
        consequence: description of the files after a failure, for the error message.
        options: options of papermill.

    Raises:
        NotebookError: an error in a cell, a timeout, or a dead kernel.
    """
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill import PapermillExecutionError, execute_notebook
    from traitlets.config import Config as Traits

    # time for a checkpoint, and encrypted channels if the installed Jupyter supports them
    manager = {"shutdown_wait_time": SHUTDOWN_S, "transport_encryption": "auto"}
    try:
        retry_kernel_start(
            execute_notebook,
            source,
            copy,
            parameters,
            kernel_name="python3",
            language="python",
            progress_bar=False,
            coalesce_streams=True,
            config=Traits({"KernelManager": manager}),
            **options,
        )
    except (PapermillExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise NotebookError(f"{source.name} failed, {consequence}: {error}") from error


def normalise(notebook):
    """Return the notebook without parts that differ between equal runs.

    These are random cell ids, metadata other than tags, and widget views; the fallback text of a
    widget is kept.
    """
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
def private_jupyter(**variables: str | None):
    """Set up an environment for kernels that is separate from the user's Jupyter and IPython.

    Args:
        variables: further environment variables; None removes a variable.
    """
    with tempfile.TemporaryDirectory(prefix="drlib-jupyter-") as scratch, patch.dict(os.environ):
        for name, value in (kernel_environment(Path(scratch)) | variables).items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        yield


def kernel_environment(scratch: Path) -> dict[str, str | None]:
    """Return environment variables for kernels, with folders in `scratch`; None: remove.

    MPLBACKEND must not be set, because figures would be lost. An IPython startup file sets the
    thresholds of the garbage collector (`drlib.startup`).
    """
    startup = scratch / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    # without an import statement, whose name would be visible in the notebook
    (startup / "collector.py").write_text(f"__import__('gc').set_threshold{GC_THRESHOLDS}\n")
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


def _print_headings(cell, cell_index) -> None:
    """Print the headings of a Markdown cell; nbclient calls this before each cell."""
    if cell.cell_type == "markdown":
        for title in re.findall(r"^##? (.+)", cell.source, re.M):
            print(f"== {title}", flush=True)
