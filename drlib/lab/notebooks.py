"""Run a notebook with other parameters, or refresh its stored outputs.

`run` is papermill with what papermill leaves open: unknown parameter names and wrong types are
errors, the kernel starts in notebooks/ as under Jupyter and nbval, it uses this interpreter and
private Jupyter folders, and bars and prints of the cells appear on the terminal. The executed copy
gets its name when it is complete; a failed one stays beside it as NN_profile.failed.ipynb.

`refresh` executes with the defaults (the ci profile) and writes outputs that are the same bytes on
every run: no timings, no widget state, no random cell ids. A stripped notebook would pass nbval
unchecked, so committed notebooks carry their outputs.
"""

from __future__ import annotations

import ast
import codecs
import difflib
import os
import re
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

from drlib.lab.display import ROOT

FOLDER = ROOT / "notebooks"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_TIMEOUT_S = 600  # of refresh, as under nbval; `run` has none
SHUTDOWN_S = 30  # a kernel that was interrupted may be waiting for a stage's last checkpoint


class NotebookError(RuntimeError):
    """A notebook cannot be found, read or executed; the message names it and the remedy."""


def find(number: str | None, *, folder: Path | None = None, solutions: bool = False) -> list[Path]:
    """The notebook of a number ("5", "05" or "05_grpo_by_hand"); all notebooks for None.

    With `solutions` the exercise solutions of the same number follow.
    """
    folder = FOLDER if folder is None else folder
    existing = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    wanted = number and number.removesuffix(".ipynb").zfill(2)
    chosen = [p for p in existing if wanted in (None, p.stem, p.stem[:2])]
    if number is not None and not chosen:
        names = ", ".join(p.stem for p in existing) or "none"
        raise NotebookError(f"no notebook {number!r} in {folder.name}/: there are {names}")
    if solutions:
        numbers = {p.stem[:2] for p in chosen}
        extra = sorted((folder / "solutions").glob("[0-9][0-9]_*.ipynb"))
        chosen = chosen + [p for p in extra if p.stem[:2] in numbers]
    return chosen


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


def read_parameters(path: Path) -> dict:
    """The `name: value` lines of a YAML file, not yet compared with any notebook."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise NotebookError(f"cannot read the parameter file {path}: {fault.strerror}") from None
    except yaml.YAMLError as fault:
        raise NotebookError(f"{path} is not YAML: {fault}") from None
    if not isinstance(values, dict):
        raise NotebookError(f"{path} must hold `name: value` lines, got {values!r:.60}")
    return values


def parse_pairs(pairs: list[list[str]]) -> dict:
    """Name and value as typed on a command line; values are read as YAML ("3" is an int)."""
    import yaml

    values = {}
    for name, text in pairs:
        try:
            values[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise NotebookError(f"parameter {name}: {text!r} is not a YAML value") from None
    return values


def defaults(notebook) -> dict:
    """Name -> default of the cell tagged `parameters`; Ellipsis where it is not a literal."""
    cells = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    if len(cells) != 1:
        raise NotebookError(f"{len(cells)} cells are tagged `parameters`: exactly one must be")
    found = {}
    for node in ast.parse(cells[0].source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                found[node.targets[0].id] = ...
    return found


def check_parameters(notebook, parameters: dict) -> dict:
    """The parameters with their defaults; NotebookError for an unknown name or a wrong type."""
    known = defaults(notebook)
    for name, value in parameters.items():
        if name not in known:
            close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise NotebookError(f"unknown parameter {name!r}: {hint}Known: {', '.join(known)}")
        default = known[name]
        widened = type(default) is float and type(value) is int
        if default not in (None, ...) and type(value) is not type(default) and not widened:
            want, got = type(default).__name__, type(value).__name__
            raise NotebookError(f"parameter {name!r} must be {want}, got {got} ({value!r})")
    return known | parameters


def run(number: str, parameters: dict, output: Path | None = None, *, folder=None) -> Path:
    """Execute a copy of a notebook with `parameters`; returns the copy's path."""
    from papermill import PapermillExecutionError, execute_notebook

    from drlib.config import Config

    (source,) = find(number, folder=folder)
    notebook = read(source)
    values = check_parameters(notebook, parameters)
    profile = values.get("profile", "ci")
    Config.load(profile)  # an unknown profile fails here, before a kernel starts
    usual = ROOT / "runs" / "notebooks" / f"{source.stem[:2]}_{profile}.ipynb"
    output = (output or usual).resolve()
    output.parent.mkdir(parents=True, exist_ok=True)
    failed = output.with_suffix(".failed.ipynb")
    pictures = os.environ.get("DRLIB_FIGURES") or str(output.parent / "figures")
    print(f"{source.name}, profile {profile}: executing (the copy goes to {output})", flush=True)
    with _terminal() as bars, private_jupyter(DRLIB_FIGURES=pictures, DRLIB_TERMINAL=bars):
        try:
            execute_notebook(
                source, failed, parameters, kernel_name="python3", language="python",
                cwd=source.parent, progress_bar=False, stdout_file=sys.stdout,
                on_cell_start=_announce, config=_kernel_settings(),
            )  # fmt: skip
        except PapermillExecutionError as fault:
            what = f"cell [{fault.exec_count}], {fault.ename}: {fault.evalue}"
            raise NotebookError(f"{source.name} failed in {what}\nThe copy: {failed}") from fault
    os.replace(failed, output)
    print(f"done: {output}, pictures in {pictures}", flush=True)
    return output


def refresh(path: Path) -> bool:
    """Execute in the ci profile and store normalised outputs; whether the file changed."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    from drlib.training.run import write_atomically

    notebook = read(path)
    with private_jupyter(DRLIB_HEADLESS="1"):
        client = NotebookClient(
            notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", record_timing=False,
            store_widget_state=False, coalesce_streams=True, config=_kernel_settings(),
            resources={"metadata": {"path": str(path.parent)}},
        )  # fmt: skip
        try:
            client.execute()
        except (CellExecutionError, CellTimeoutError, DeadKernelError) as fault:
            raise NotebookError(f"{path.name} failed, nothing was written: {fault}") from fault
    text = nbformat.writes(normalised(notebook)) + "\n"
    if text == path.read_text(encoding="utf-8"):
        return False
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"))
    return True


def _kernel_settings():
    """Time to stop, and encrypted channels where the installed Jupyter has them."""
    from traitlets.config import Config as Traits

    manager = {"shutdown_wait_time": SHUTDOWN_S, "transport_encryption": "auto"}
    return Traits({"KernelManager": manager})


def normalised(notebook):
    """The notebook with everything dropped that differs between two equal runs.

    Kept: sources, tags, execution counts, outputs without widget views (their fallback text stays)
    and without transient metadata.
    """
    import nbformat

    notebook = nbformat.from_dict(notebook)
    metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    notebook.metadata = nbformat.from_dict(metadata)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index:02d}"
        tags = cell.metadata.get("tags", [])
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        for output in cell.get("outputs", []):
            if "data" in output:
                output.data.pop(WIDGET_VIEW, None)
                output.metadata = nbformat.from_dict({})
    return notebook


@contextmanager
def private_jupyter(**more: str):
    """The environment of a kernel that neither sees nor touches the user's Jupyter and IPython."""
    with tempfile.TemporaryDirectory(prefix="drlib-jupyter-") as scratch:
        values = kernel_environment(Path(scratch)) | more
        before = {name: os.environ.get(name) for name in values}
        try:
            _set(values)
            yield
        finally:
            _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def kernel_environment(scratch: Path) -> dict[str, str | None]:
    """Variables for kernels (None: must not be set). A set MPLBACKEND would lose the figures."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        "IPYTHONDIR": str(scratch / "ipython"), "JUPYTER_CONFIG_DIR": str(scratch / "config"),
        "JUPYTER_DATA_DIR": str(scratch / "data"), "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "JUPYTER_PATH": None, "MPLBACKEND": None, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(p for p in paths if p)),
    }  # fmt: skip


def _announce(cell, cell_index) -> None:
    """Prints the headings of a markdown cell when its turn comes (nbclient calls this)."""
    if cell.cell_type == "markdown":
        for title in re.findall(r"^##? (.+)", cell.source, re.M):
            print(f"== {title}", flush=True)


@contextmanager
def _terminal():
    """A file for the bars of kernels, which have no terminal: what comes is shown on stderr."""
    with tempfile.NamedTemporaryFile(prefix="drlib-bars-") as file:
        done = threading.Event()
        thread = threading.Thread(target=_relay, args=(file, done), daemon=True)
        thread.start()
        try:
            yield file.name
        finally:
            done.set()
            thread.join()


def _relay(file, done: threading.Event) -> None:
    """Copy what is appended; where stderr is no terminal, only the last state of each bar."""
    alive, rest = sys.stderr.isatty(), b""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode  # a read may cut a character
    while True:
        last = done.wait(0.2)
        data = file.read()
        if not alive:
            *lines, rest = (rest + data).split(b"\n")
            data = b"".join(line.rpartition(b"\r")[2] + b"\n" for line in lines)
        if data:
            sys.stderr.write(decode(data, final=last))
            sys.stderr.flush()
        if last:
            return
