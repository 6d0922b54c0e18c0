"""A step of GRPO, ours against TRL's, and the forward and backward pass by itself; not a test.

**The step.** The same model (the tour's shape, plain weights), 16 prompts of 16 to 64 tokens, 8
completions each, all of exactly `--tokens` tokens, rewards by a coin, one update by AdamW, one
thread, one process. TRL's trainer generates with `transformers.generate`; ours with the local
engine, which is then given the new weights. Both are timed from the prompts to the new weights, and
once more the two halves: making the completions, and learning from them. TRL works without gradient
checkpointing, with grouped experts and in one micro-batch, which was its fastest way here.

**The pass.** Rollouts of the reference run through the policy that made them: samples end to end
(`drlib.models.packed`) against packed rows as transformers takes them, which share a row and
restart their positions in it.

Runs are interleaved, so that a busy machine slows all alike; a ratio is the median of the pairs',
with the least and the most, of CPU seconds.

Run: OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/bench_step.py [--out FILE]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from drlib.config import ROOT, Config
from drlib.files import write_atomic
from drlib.models.engine import SamplingParams
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import PolicyShape, build_policy, load_policy
from drlib.rl.advantages import leave_one_out
from drlib.training.batch import RolloutBatch
from drlib.training.distributed import Ranks
from drlib.training.learner import accumulate_gradients
from drlib.training.optim import Optimizers
from drlib.training.packing import PackedBatch, balance_loss, score
from drlib.trajectory import Segment, Termination, Trajectory, load_trajectories

PROMPTS, GROUP, PAD, EOS, RATE = 16, 8, 0, 1, 1e-4
TOUR = ROOT / "figures" / "reference" / "tour"


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(100, 2048, n).tolist() for n in rng.integers(16, 65, PROMPTS)]


def policy():
    return build_policy(PolicyShape(), seed=0, init="plain", eos_id=EOS, pad_id=PAD)


# ------------------------------------------------------------------ the step


class Ours:
    """Steps of the local loop, without its questions, tools and record."""

    def __init__(self, tokens: int):
        self.tokens, self.model, self.number = tokens, policy().train(), 0
        context = max(map(len, prompts())) + tokens
        self.config = Config.load("laptop", trainer__balance_coef=0.0)
        self.engine = LocalEngine(self.model, slots=PROMPTS * GROUP, max_context=context)
        self.optimizers = Optimizers.adam(self.model, RATE)

    def step(self) -> tuple[float, float]:
        """(CPU seconds of the completions, of all else)."""
        started = time.process_time()
        self.number += 1
        asked = [prompt for prompt in prompts() for _ in range(GROUP)]
        params = SamplingParams(max_tokens=self.tokens, seed=self.number)
        made = self.engine.generate(asked, params)
        rolled = time.process_time()
        coin = torch.Generator().manual_seed(self.number)
        rewards_N = torch.randint(0, 2, (len(asked),), generator=coin).float()
        groups_N = torch.arange(PROMPTS).repeat_interleave(GROUP)
        rollouts = [
            self._record(i, prompt, done) for i, (prompt, done) in enumerate(zip(asked, made))
        ]
        advantages_N = leave_one_out(rewards_N, groups_N)
        share = RolloutBatch(rollouts, advantages_N, torch.ones(len(asked)))
        ranks = Ranks()
        accumulate_gradients(self.model, [share], self.config, ranks)
        ranks.sum_gradients(self.model)
        self.optimizers.step(1.0)
        self.engine.update_weights(self.model)
        return rolled - started, time.process_time() - rolled

    def _record(self, i: int, prompt: list[int], done) -> Trajectory:
        read, said = len(prompt), len(done.token_ids)
        assert said == self.tokens
        n = read + said
        generated = np.arange(n) >= read
        return Trajectory(
            id=str(i),
            task_id=str(i // GROUP),
            group_id=str(i // GROUP),
            world_version="",
            policy_version=0,
            token_ids=np.array([*prompt, *done.token_ids], np.int32),
            generated=generated,
            logprobs=np.array([0.0] * read + done.logprobs, np.float32),
            entropies=np.array([0.0] * read + done.entropies, np.float32),
            segments=np.where(generated, Segment.THINK, Segment.PROMPT).astype(np.uint8),
            turns=np.zeros(n, np.uint16),
            versions=np.zeros(n, np.int32),
            routed_experts=None,
            tool_results=[],
            termination=Termination.ANSWERED,
            answer=None,
            reward=0.0,
            reward_parts={},
            messages=[],
            metadata={},
        )


class Theirs(TrainerCallback):
    """Steps of TRL's trainer, one at a time."""

    def __init__(self, tokens: int, folder: str):
        words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(2048)}, unk_token="t2"))
        words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=words, unk_token="t2", eos_token=f"t{EOS}", pad_token=f"t{PAD}"
        )
        rows = [" ".join(f"t{i}" for i in prompt) for prompt in prompts()]
        args = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            gradient_checkpointing=False,
            router_aux_loss_coef=0.0,
            beta=0.0,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            max_steps=10_000,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=tokens,
            generation_kwargs={"min_new_tokens": tokens},
        )
        coin = torch.Generator().manual_seed(0)
        self.trainer = GRPOTrainer(
            model=policy(),
            processing_class=tokenizer,
            reward_funcs=lambda completions, **_: torch.randint(
                0, 2, (len(completions),), generator=coin
            ).tolist(),
            train_dataset=Dataset.from_dict({"prompt": rows}),
            args=args,
            callbacks=[self],
        )
        generate = self.trainer._generate
        self.made = 0.0

        def timed(*arguments, **options):
            started = time.process_time()
            found = generate(*arguments, **options)
            self.made = time.process_time() - started
            return found

        self.trainer._generate = timed
        self.turn: Callable[[float, float], None] = lambda *seconds: None

    def train(self, turn: Callable[[float, float], bool]) -> None:
        """turn: called with each step's (CPU seconds of the completions, of all else); it says
        whether to go on."""
        self.turn = turn
        self.trainer.train()

    def on_step_begin(self, args, state, control, **_):
        self.started = time.process_time()

    def on_step_end(self, args, state, control, **_):
        seconds = time.process_time() - self.started
        control.should_training_stop = not self.turn(self.made, seconds - self.made)


def steps(tokens: int, repeats: int) -> list[dict]:
    """Seconds of interleaved steps; the first pair, which warms up, is left out."""
    ours, rows = Ours(tokens), []

    def turn(made: float, learned: float) -> bool:
        own_made, own_learned = ours.step()
        rows.append(
            {
                "trl_generate": made,
                "trl_learn": learned,
                "drlib_generate": own_made,
                "drlib_learn": own_learned,
            }
        )
        return len(rows) <= repeats

    with tempfile.TemporaryDirectory() as folder:
        Theirs(tokens, folder).train(turn)
    return rows[1:]


# ------------------------------------------------------------------ the pass


def packed(samples: list[list[int]], width: int) -> tuple[torch.Tensor, torch.Tensor, list]:
    """(ids [R, T], positions [R, T], (row, first token) of each sample), first-fit."""
    ends, where = [], []
    for sample in samples:
        row = next((r for r, end in enumerate(ends) if end + len(sample) <= width), len(ends))
        if row == len(ends):
            ends.append(0)
        where.append((row, ends[row]))
        ends[row] += len(sample)
    ids, positions = (torch.zeros(len(ends), max(ends), dtype=torch.long) for _ in range(2))
    for row, end in enumerate(ends):
        positions[row, end:] = torch.arange(max(ends) - end)
    for (row, at), sample in zip(where, samples):
        ids[row, at : at + len(sample)] = torch.tensor(sample)
        positions[row, at : at + len(sample)] = torch.arange(len(sample))
    return ids, positions, where


def in_rows(model, samples: list[list[int]]) -> torch.Tensor:
    """The loss of all tokens over packed rows, as wide as the longest sample."""
    samples = sorted(samples, key=len, reverse=True)
    ids_RT, positions_RT, where = packed(samples, len(samples[0]))
    out = model.model(
        input_ids=ids_RT, position_ids=positions_RT, use_cache=False, output_router_logits=True
    )
    lengths = torch.zeros(ids_RT.shape, dtype=torch.bool)
    for (row, at), sample in zip(where, samples):
        lengths[row, at : at + len(sample)] = True
    row_M, at_M = (lengths & (positions_RT > 0)).nonzero(as_tuple=True)
    logits_MV = model.lm_head(out.last_hidden_state[row_M, at_M - 1])
    loss = F.cross_entropy(logits_MV, ids_RT[row_M, at_M], reduction="sum")
    real_N = lengths.flatten()
    return loss + balance_loss([logits[real_N] for logits in out.router_logits], 2)


def end_to_end(model, samples: list[list[int]]) -> torch.Tensor:
    batch = PackedBatch.pack(samples)
    scored = score(model, batch, torch.ones(len(batch.ids_N), dtype=torch.bool))
    return scored.balance - scored.logp_M.sum()


def passes(repeats: int) -> list[dict]:
    """Seconds of interleaved passes over sixteen rollouts, forward and backward."""
    model, _ = load_policy(TOUR / "policy_sft")
    made = load_trajectories(TOUR / "rl_sampled.parquet")[:16]
    samples, rows = [t.token_ids.tolist() for t in made], []
    losses = [float(function(model, samples).detach()) for function in (in_rows, end_to_end)]
    assert abs(losses[0] / losses[1] - 1) < 1e-4, losses
    for _ in range(repeats + 1):
        row = {}
        for name, function in (("packed rows", in_rows), ("end to end", end_to_end)):
            model.zero_grad(set_to_none=True)
            started = time.process_time()
            function(model, samples).backward()
            row[name] = time.process_time() - started
        rows.append(row)
    return rows[1:]


# ------------------------------------------------------------------ the table


def ratio(slow: list[float], fast: list[float]) -> dict:
    pairs = [a / b for a, b in zip(slow, fast, strict=True)]
    return {"median": statistics.median(pairs), "least": min(pairs), "most": max(pairs)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=64, help="of each completion")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write all seconds there, as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    step_rows, pass_rows = steps(args.tokens, args.repeats), passes(3 * args.repeats)
    columns = {name: [row[name] for row in step_rows] for name in step_rows[0]}
    whole = {
        who: [a + b for a, b in zip(columns[f"{who}_generate"], columns[f"{who}_learn"])]
        for who in ("trl", "drlib")
    }
    ratios = {
        "step": ratio(whole["trl"], whole["drlib"]),
        "generate": ratio(columns["trl_generate"], columns["drlib_generate"]),
        "learn": ratio(columns["trl_learn"], columns["drlib_learn"]),
        "pass": ratio(
            [row["packed rows"] for row in pass_rows], [row["end to end"] for row in pass_rows]
        ),
    }
    for name, found in ratios.items():
        print(f"{name:10} {found['median']:.2f} [{found['least']:.2f}, {found['most']:.2f}]")
    if args.out:
        settings = {"tokens": args.tokens, "prompts": PROMPTS, "group": GROUP}
        told = {"settings": settings, "ratios": ratios, "steps": step_rows, "passes": pass_rows}
        write_atomic(args.out, json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
