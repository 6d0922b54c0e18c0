"""Time and memory of the head (log-prob, entropy, policy gradient) of five makers; not a test.

One queue: in every repeat each arm runs once, in a fresh process, so that a busy machine slows all
alike and no arm inherits another's memory. The loss is the same, -sum_n c_n log p_n with one
advantage a sequence, forward and backward; gradient norms are compared across the arms. Entropies
are computed as a metric in every arm but Liger's, which returns a loss only.

Columns: wall seconds, CPU seconds (user and system: page faults are system time), peak memory
beyond the two gradients, all medians with (least-most); ratios are medians of the repeats' own.
Each fresh process first runs a small case (on CUDA the whole case), untimed.

Run: OMP_NUM_THREADS=1 python tests/benchmarks/bench_head.py [--n 1024 --h 512 --v 151936]
TRL and Liger are for comparison alone; Liger is in no extra: pip install --no-deps liger-kernel
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

ARMS = ("naive", "trl_fused", "liger", "own_recompute", "own_fused")
NEEDS = {"trl_fused": ("trl", "trl==1.16.0"), "liger": ("liger_kernel", "liger-kernel==0.8.5")}
TOKENS = 64  # of a sequence: Liger takes one advantage a sequence, and chunks by sequences
LIGER_CHUNK = 8
TRL_COLUMNS = 32768  # as TRL 1.16 calls its kernel


def naive(hidden, weight, ids, coefficient, _):
    import torch

    logp = (hidden @ weight.t()).float().log_softmax(-1)
    with torch.no_grad():
        -(logp.exp() * logp).sum(-1)
    return -(coefficient * logp.gather(1, ids[:, None]).squeeze(1)).sum()


def trl_fused(hidden, weight, ids, coefficient, _):
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    out = ChunkedLogProbFunction.apply(
        hidden, weight, None, ids, 1.0, TRL_COLUMNS, None, 1.0, ("entropy",)
    )
    return -(coefficient * out[0]).sum()


def liger(hidden, weight, ids, _, advantages):
    import torch
    from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

    loss = LigerFusedLinearGRPOLoss(
        beta=0.0, compiled=False, use_ref_model=False, chunk_size=LIGER_CHUNK, loss_type="dapo"
    )
    rows = len(advantages)
    mask = torch.ones(rows, len(ids) // rows, device=ids.device)
    shaped = hidden.view(rows, -1, hidden.shape[1])
    return loss(shaped, weight, ids.view(rows, -1), mask, advantages)[0]


def own_recompute(hidden, weight, ids, coefficient, _):
    from drlib.models.chunked_logprobs import token_logprobs

    return -(coefficient * token_logprobs(hidden, weight, ids)[0]).sum()


def own_fused(hidden, weight, ids, coefficient, _):
    from drlib.models.chunked_logprobs import fused_policy_gradient

    return fused_policy_gradient(hidden, weight, ids, coefficient)[0]


def memory_kb(field):
    """VmRSS or VmHWM of this process; its own, unlike ru_maxrss, which a fork hands on."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}: the benchmark needs Linux")


def make_case(n, h, v, args):
    import torch

    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    hidden = torch.randn(n, h, dtype=dtype, device=args.device).requires_grad_()
    weight = torch.randn(v, h, dtype=dtype, device=args.device).mul_(h**-0.5).requires_grad_()
    ids = torch.randint(0, v, (n,), device=args.device)
    advantages = torch.randn(n // TOKENS, device=args.device)
    return hidden, weight, ids, advantages.repeat_interleave(TOKENS) / n, advantages


def run_arm(args):
    """One measurement in this process, printed as a line of JSON."""
    import resource

    import torch

    function, cuda = globals()[args.arm], args.device == "cuda"
    torch.set_num_threads(args.threads)
    sizes = (args.n, args.h, args.v) if cuda else (TOKENS, 64, 512)
    function(*make_case(*sizes, args)).backward()
    case = make_case(args.n, args.h, args.v, args)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() / 1024 if cuda else memory_kb("VmRSS")
    usage, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    loss = function(*case)
    loss.backward()
    if cuda:
        torch.cuda.synchronize()
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    peak = torch.cuda.max_memory_allocated() / 1024 if cuda else memory_kb("VmHWM")
    gradients = [case[0].grad, case[1].grad]
    held = sum(g.numel() * g.element_size() for g in gradients)
    row = {
        "wall_s": wall,
        "user_s": after.ru_utime - usage.ru_utime,
        "sys_s": after.ru_stime - usage.ru_stime,
        "peak_mb": (peak - before) / 1024 - held / 2**20,
        "loss": float(loss.detach()),
        "norms": [float(g.double().norm()) for g in gradients],
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
    }
    print(json.dumps(row))


def measure(arm, args):
    options = [f"--{key}={getattr(args, key)}" for key in ("n", "h", "v", "dtype", "device")]
    command = [sys.executable, __file__, "--arm", arm, f"--threads={args.threads}", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{arm} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def check_gradients(rows, dtype):
    """The arms must have computed the same thing; bfloat16 rounds differently in each."""
    bound = 1e-4 if dtype == "float32" else 2e-2
    (name, first), *others = ((arm, runs[0]) for arm, runs in rows.items() if runs)
    for arm, run in others:
        for ours, theirs in zip(run["norms"], first["norms"], strict=True):
            if abs(ours / theirs - 1) > bound:
                raise SystemExit(f"gradient norms of {arm} {run['norms']}, {name} {first['norms']}")


def middle(values):
    return f"{statistics.median(values):.3f} ({min(values):.3f}-{max(values):.3f})"


def report(rows, args):
    flop = 6 * args.n * args.h * args.v
    print(
        f"N={args.n} H={args.h} V={args.v} {args.dtype} {args.device}, {args.repeats} repeats, "
        f"{args.threads} thread(s); useful GFLOP/s counts 6NHV"
    )
    print(
        f"{'':14}{'wall s':>24}{'user s':>9}{'sys s':>8}{'peak MB':>9}{'GFLOP/s':>9}"
        + "".join(f"{'/ ' + name:>16}" for name in ARMS[:3])
    )
    for arm in ARMS:
        if not rows[arm]:
            print(f"{arm:14}not installed: pip install --no-deps {NEEDS[arm][1]}")
            continue
        runs = rows[arm]
        user, system, peak, wall = (
            statistics.median(r[key] for r in runs)
            for key in ("user_s", "sys_s", "peak_mb", "wall_s")
        )
        ratios = ""
        for other in ARMS[:3]:
            pairs = list(zip(runs, rows[other], strict=False))
            cell = "-"
            if pairs:
                cell = f"{statistics.median(a['wall_s'] / b['wall_s'] for a, b in pairs):.2f}"
                memory = statistics.median(a["peak_mb"] / b["peak_mb"] for a, b in pairs)
                cell += f", {memory:.2f}"
            ratios += f"{cell:>16}"
        print(
            f"{arm:14}{middle([r['wall_s'] for r in runs]):>24}{user:9.2f}{system:8.2f}"
            f"{peak:9.0f}{flop / wall / 1e9:9.0f}{ratios}"
        )
    print("ratios: wall, peak memory beyond the gradients")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1024, help=f"tokens, a multiple of {TOKENS}")
    parser.add_argument("--h", type=int, default=512, help="hidden size")
    parser.add_argument("--v", type=int, default=151_936, help="vocabulary")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="write every measurement there, as JSON")
    parser.add_argument("--arm", choices=ARMS, help="measure this one here and print JSON")
    args = parser.parse_args()
    if args.n % TOKENS or args.n <= 0:
        parser.error(f"--n must be a multiple of {TOKENS}")
    if args.arm:
        return run_arm(args)
    rows = {arm: [] for arm in ARMS}
    for _ in range(args.repeats):
        for arm in ARMS:
            if arm not in NEEDS or importlib.util.find_spec(NEEDS[arm][0]):
                rows[arm].append(measure(arm, args))
    check_gradients(rows, args.dtype)
    report(rows, args)
    if args.out:
        settings = {k: v for k, v in vars(args).items() if k not in ("out", "arm")}
        partial = args.out.with_name(args.out.name + ".partial")
        partial.write_text(json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")
        partial.replace(args.out)


if __name__ == "__main__":
    main()
