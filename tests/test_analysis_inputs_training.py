"""Readers of files written by trainers: TRL and verl.

Run: python -m pytest tests/test_analysis_inputs_training.py
"""

import math

import numpy as np
import pandas as pd
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from drlib.analysis.inputs import read_rollouts
from drlib.chat.segments import token_texts
from drlib.models.moe import load_policy
from tests import test_analysis_inputs as shared
from tests.test_analysis_inputs import TOUR, A, C, R, T, runs, statuses, write_lines

tokenizer = shared.tokenizer
tour = shared.tour
foreign = shared.foreign


def test_completions_written_by_trl(tokenizer, tmp_path):
    model, _ = load_policy(TOUR / "policy_sft")

    def length(completions, **_):
        return [float(len(c[0]["content"])) for c in completions]

    def half(completions, **_):
        return [None, *[0.5] * (len(completions) - 1)]

    prompts = [[{"role": "user", "content": q}] for q in ("The code of Malawi?", "Where is Oslo?")]
    GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[length, half],
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        args=GRPOConfig(
            output_dir=str(tmp_path),
            use_cpu=True,
            bf16=False,
            report_to=[],
            seed=0,
            max_steps=1,
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=12,
            log_completions=True,
            logging_steps=1,
            save_strategy="no",
            disable_tqdm=True,
            num_completions_to_print=0,
        ),
    ).train()
    (path,) = (tmp_path / "completions").glob("*.parquet")
    table = pd.read_parquet(path)
    got = list(read_rollouts(path, tokenizer))
    assert len(got) == len(table) == 4 and len({t.group_id for t in got}) == 2
    for t, (_, row) in zip(got, table.iterrows()):
        assert t.reward_parts["length"] == row["length"] == len(row["completion"][0]["content"])
        assert t.reward == row["length"] + (0 if math.isnan(row["half"]) else 0.5)
        assert t.metadata["question"] == row["prompt"][0]["content"]
        assert t.policy_version == 1 and t.versions[t.generated].tolist() == [1] * t.generated.sum()
        sampled = tokenizer.decode(t.token_ids[t.generated])
        assert sampled == row["completion"][0]["content"]
    assert "half" not in got[0].reward_parts


def test_trl_rows_with_tools_and_with_plain_text(tour, tokenizer, tmp_path):
    call = {"type": "function", "function": {"name": "visit", "arguments": {"url": "u", "q": None}}}
    table = {
        "step": [3],
        "prompt": [[{"role": "user", "content": "Q?"}]],
        "completion": [
            [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "name": "visit", "content": "{'error': 'no'}"},
                {"role": "assistant", "content": "<answer>x</answer>"},
            ]
        ],
        "right": [1.0],
        "hops": [2],
        "advantage": [0.1],
    }
    pd.DataFrame(table).to_parquet(tmp_path / "tools.parquet")
    (t,) = read_rollouts(tmp_path / "tools.parquet", tokenizer)
    (result,) = t.tool_results
    assert (result.tool, result.arguments, result.ok) == ("visit", {"url": "u"}, False)
    assert (t.answer, t.reward, t.metadata["hops"]) == ("x", 1.0, 2)
    text = [tokenizer.decode(ids) for ids, _ in runs(tour["rl_greedy"][0])]
    plain = {
        "step": [1],
        "prompt": [text[0]],
        "completion": ["".join(text[1:])],
        "right": [1.0],
        "advantage": [0.0],
    }
    pd.DataFrame(plain).to_parquet(tmp_path / "text.parquet")
    (t,) = read_rollouts(tmp_path / "text.parquet", tokenizer)
    np.testing.assert_array_equal(t.token_ids, tour["rl_greedy"][0].token_ids)
    np.testing.assert_array_equal(t.generated, tour["rl_greedy"][0].generated)


def test_verl_files_round_trip(tour, tokenizer, tmp_path):
    rows = []
    for t in tour["sft_sampled"]:
        text = [tokenizer.decode(ids) for ids, _ in runs(t)]
        rows.append(
            {
                "input": text[0],
                "output": "".join(text[1:]),
                "step": 7,
                "score": 0.0,
                "gts": t.metadata["right_answer"],
                "acc": 0.0,
            }
        )
    equal = 0
    path = write_lines(tmp_path / "7.jsonl", rows)
    for t, b in zip(tour["sft_sampled"], read_rollouts(path, tokenizer), strict=True):
        assert statuses(b) == statuses(t) and b.answer == t.answer and b.reward == 0
        assert b.metadata["question"] == t.metadata["question"] and b.metadata["acc"] == 0
        assert b.metadata["right_answer"] == t.metadata["right_answer"]
        if np.array_equal(b.token_ids, t.token_ids):
            equal += 1
            np.testing.assert_array_equal(b.segments, t.segments)
    assert equal >= 44, equal


def test_verl_rows_without_chat_markers(foreign, tmp_path):
    """verl decodes without special tokens, so only the role names of ChatML remain."""
    output = (
        'I look.\n<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>\nuser\n'
        "<tool_response>\nOslo\n</tool_response>\nassistant\nSo<answer>Oslo</answer>"
    )
    row = {"input": "system\nS\nuser\nWhere?\nassistant\n", "output": output, "score": 1, "step": 2}
    (t,) = read_rollouts(write_lines(tmp_path / "2.jsonl", [row]), foreign)
    texts = token_texts(foreign, t.token_ids)
    assert "".join(texts) == row["input"] + output and t.metadata["question"] == "Where?"
    assert "".join(texts[t.generated]) == output.replace(
        "\nuser\n<tool_response>\nOslo\n</tool_response>\nassistant\n", ""
    )
    said = {s: "".join(texts[t.segments == s]) for s in (T, C, R, A)}
    assert "Oslo" in said[R] and said[A] == "Oslo"
    assert "I look." in said[T] and '"search"' in said[C]
    assert t.tool_results[0].text == "Oslo" and t.answer == "Oslo"


def test_verl_agent_loop_keeps_ids_mask_and_logprobs(tour, tokenizer, tmp_path):
    rows = []
    for t in tour["sft_sampled"]:
        first = int(np.flatnonzero(t.generated)[0])
        rows.append(
            {
                "prompt_ids": t.token_ids[:first].tolist(),
                "reward_score": 1.0,
                "response_ids": t.token_ids[first:].tolist(),
                "response_mask": t.generated[first:].astype(int).tolist(),
                "response_logprobs": t.logprobs[first:].tolist(),
            }
        )
    path = write_lines(tmp_path / "a.jsonl", rows)
    for t, b in zip(tour["sft_sampled"], read_rollouts(path, tokenizer), strict=True):
        for name in ("token_ids", "generated", "logprobs", "segments", "turns"):
            np.testing.assert_array_equal(getattr(b, name), getattr(t, name), err_msg=name)
        assert statuses(b) == statuses(t) and b.answer == t.answer
