"""Find attention implementations with gradients that are not finite; not a test.

The tour's RL by TRL's trainer in bfloat16, from the committed cold start, with cuDNN's attention
switched on again. At the first micro-batch after which a gradient is NaN or infinite the run ends,
and that batch is computed anew in other ways: how many weights then have such a gradient, and what
torch's anomaly detection names. The rows go to figures/reference/gpu/cudnn/batches.json.

A run in which nothing breaks has no row. On a CPU nothing does: --anyway takes the first batch.

Run: python -m tests.benchmarks.make_cudnn                                     (one GPU, a Hopper)
     python -m tests.benchmarks.make_cudnn --anyway --seeds 0 --out FILE           (a try on a CPU)
"""

import argparse
import json
import tempfile
from contextlib import nullcontext
from pathlib import Path

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

from drlib.config import ROOT, Config
from drlib.files import write_atomic
from drlib.training import build, grpo_trl, stages
from drlib.training.distributed import Ranks
from drlib.training.run_folder import code_version
from drlib.training.trl import drop_dead_rows, join_sequences

OUT = ROOT / "figures" / "reference" / "gpu" / "cudnn" / "batches.json"
RECIPE = {
    "rl.start": "figures/reference/tour/policy_sft",
    "rl.steps": 25,
    "trainer.backend": "trl",
    "trainer.device_batch": 24,
    "processes": 1,
    "model.dtype": "bfloat16",
}
ATTENTION = {
    "math attention": SDPBackend.MATH,
    "memory-efficient attention": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN attention": SDPBackend.CUDNN_ATTENTION,
}
EXPERTS = {"eager experts": "eager", "batched experts": "batched_mm"}


class Found(Exception):
    """The run is over: its one argument is the batch's row."""


def broken(model) -> int:
    """Weights whose gradient is not finite."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return sum(not bool(gradient.isfinite().all()) for gradient in gradients)


class Watched(grpo_trl.AgenticGRPOTrainer):
    """The stage's trainer, which looks at the gradients after every micro-batch."""

    anyway = False

    def __init__(self, *args):
        super().__init__(*args)
        torch.backends.cuda.enable_cudnn_sdp(True)  # as torch has it

    def _compute_loss(self, model, inputs):
        self.batch = dict(inputs)
        return super()._compute_loss(model, inputs)

    def training_step(self, model, inputs, num_items_in_batch):
        loss = super().training_step(model, inputs, num_items_in_batch)
        if broken(model) or self.anyway:
            raise Found(self.row(model))
        return loss

    def row(self, model) -> dict:
        """The last micro-batch, and what became of it in each way."""
        rows, tokens = join_sequences(drop_dead_rows(self.batch, kl=False))[0].shape
        found = {"as it came": self.again(model)}
        for name, kernel in ATTENTION.items():
            found[name] = self.again(model, sdpa_kernel(kernel))
        base = self.accelerator.unwrap_model(model)
        for name, experts in EXPERTS.items():
            base.set_experts_implementation(experts)
            found[name] = self.again(model)
        base.set_experts_implementation("grouped_mm")  # as it came
        said = ""
        try:
            with torch.autograd.set_detect_anomaly(True):
                self.backward(model)
        except RuntimeError as error:
            said = str(error)
        at = {"step": self.state.global_step + 1, "rows": rows, "tokens": tokens}
        return at | {"not_finite": found, "said": said}

    def again(self, model, way=None) -> int | None:
        """`broken` after the batch was computed again; None where this machine has no such way."""
        try:
            with way or nullcontext():
                self.backward(model)
        except RuntimeError:
            return None
        return broken(model)

    def backward(self, model) -> None:
        model.zero_grad(set_to_none=True)
        super()._compute_loss(model, dict(self.batch)).backward()


def batch_of(seed: int) -> dict | None:
    """The row of one run; None where nothing broke in it."""
    config = Config.load("laptop", **RECIPE, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        try:
            for name in stages.missing_stages("rl", config, runs):
                build.build(name, config, runs, Ranks("trl"))
        except Found as found:
            return {"seed": seed} | found.args[0]
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--anyway", action="store_true", help="take the first batch of each run")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    Watched.anyway = args.anyway
    grpo_trl.AgenticGRPOTrainer = Watched
    rows = [row for row in map(batch_of, args.seeds) if row is not None]
    cuda = torch.cuda.is_available()
    about = {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": code_version(),
    }
    write_atomic(args.out, json.dumps(about | {"batches": rows}, indent=1) + "\n")
    print(f"{len(rows)} of {len(args.seeds)} runs broke: {args.out}")


if __name__ == "__main__":
    main()
