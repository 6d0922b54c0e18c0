"""TRL's SFT trainer on drlib rows: loss masks, isolation of packed rows, and the loss.

Uses a real SFTTrainer on a tiny Qwen3-MoE without the load-balancing loss, so that the loss is the
cross-entropy alone.

Run: python -m pytest tests/test_training_sft_trl.py
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from drlib.chat.template import ChatIds, train_tokenizer
from drlib.chat.tool_calls import render_answer, render_call
from drlib.demonstrations.actions import Sample, episode_sample
from drlib.demonstrations.episodes import from_trajectories, managed
from drlib.models.moe import PolicyShape, build_policy, load_policy, save_policy
from drlib.task import Task
from drlib.training.sft_trl import IGNORED, create_sft_trainer, sft_dataset, train
from drlib.trajectory import Termination, Trajectory

OPTIONS = {"router_aux_loss_coef": 0.0, "max_steps": 1, "learning_rate": 0.0, "seed": 0}
OPTIONS |= {"bf16": False}  # float32 on GPUs too, because losses are compared


def conversation(n):
    call = render_call("search", {"query": [f"page {n}"]})
    return [
        {"role": "user", "content": f"What is number {n}?"},
        {"role": "assistant", "content": f"<think>I look.</think>{call}"},
        {"role": "tool", "content": f"page {n} says {n * 7}. It says <answer>9</answer> too."},
        {"role": "assistant", "content": f"<think>Read.</think>{render_answer(str(n * 7))}"},
    ]


ROWS = [conversation(n) for n in (3, 14, 159)]


@pytest.fixture(scope="module")
def chat():
    text = [m["content"] for row in ROWS for m in row]
    return ChatIds(train_tokenizer(text, 350))


@pytest.fixture(scope="module")
def checkpoint(chat, tmp_path_factory):
    shape = PolicyShape(
        vocab_size=len(chat.tokenizer),
        hidden=32,
        layers=2,
        heads=4,
        head_dim=8,
        experts=4,
        expert_hidden=16,
    )
    ends = {"eos_id": chat.end_id, "pad_id": chat.tokenizer.pad_token_id}
    path = tmp_path_factory.mktemp("policy") / "tiny"
    return save_policy(build_policy(shape, 0, "plain", **ends), chat.tokenizer, path)


def make_trainer(checkpoint, dataset, tmp_path, length=1000, **options):
    model, tokenizer = load_policy(checkpoint)
    return create_sft_trainer(model, tokenizer, dataset, length, str(tmp_path), **OPTIONS | options)


def reference_loss(model, dataset):
    """Return the cross-entropy over labelled tokens, one forward pass per sample."""
    total, count = 0.0, 0
    for row in dataset:
        labels = torch.tensor(row["labels"])[1:]
        with torch.no_grad():
            logits = model(torch.tensor([row["input_ids"]]), use_cache=False).logits[0, :-1]
        total += F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum").item()
        count += int((labels != IGNORED).sum())
    return total / count


def test_dataset_rows_have_loss_on_assistant_tokens_only(chat):
    data = sft_dataset(ROWS, chat)
    for messages, row in zip(ROWS, data):
        sample = episode_sample(messages, chat)
        assert tuple(row["input_ids"]) == sample.ids
        assert row["labels"] == [i if loss else IGNORED for i, loss in zip(*vars(sample).values())]
        decoded = chat.tokenizer.decode([i for i in row["labels"] if i != IGNORED])
        turns = [m["content"] + "<|im_end|>" for m in messages if m["role"] == "assistant"]
        assert decoded == "".join(turns)
    # text of a tool response never becomes a tag token and has no loss
    answer = chat.encode("<answer>")[0]
    assert [row["labels"].count(answer) for row in data] == [1, 1, 1]
    assert [row["input_ids"].count(answer) for row in data] == [1, 1, 1]


def test_rollouts_train_on_their_sampled_ids(chat):
    """Tokenising the text again could give other ids than the policy sampled."""
    task = Task("t", ROWS[0][0]["content"], "21", "search", "w")
    turn_ids = chat.encode(ROWS[0][1]["content"])
    odd = [*turn_ids[:-1], *(chat.encode(c)[0] for c in "ab"), turn_ids[-1]]  # one by one
    ids = np.array([*chat.prompt(task.question), *odd, 7], np.int32)
    generated = np.arange(len(ids)) >= len(ids) - len(odd) - 1
    generated[-1] = False
    zeros = {np.dtype(d): np.zeros(len(ids), d) for d in ("f4", "u1", "u2", "i4")}
    f4, u1, u2, i4 = zeros.values()
    record = Trajectory(
        "a",
        "t",
        "g",
        "w",
        0,
        ids,
        generated,
        f4,
        None,
        u1,
        u2,
        i4,
        None,
        [],
        Termination.ANSWERED,
        "21",
        None,
        {},
        ROWS[0],
        {},
    )
    (episode,) = from_trajectories([record], [task])
    for row in (record, episode):
        (dataset_row,) = sft_dataset([row], chat)
        assert dataset_row["input_ids"] == ids.tolist()
        assert [i for i in dataset_row["labels"] if i != IGNORED] == odd
    rounds = managed(from_trajectories([{"messages": ROWS[0]}], [task])[0])
    for messages, dataset_row in zip(rounds, sft_dataset(rounds, chat)):
        kept = chat.tokenizer.decode([i for i in dataset_row["labels"] if i != IGNORED])
        assert kept == messages[1]["content"] + "<|im_end|>" and "<report>" in kept
        # tags quoted in the state are text, not tag tokens
        assert dataset_row["input_ids"].count(chat.encode("<tool_call>")[0]) == kept.count(
            "<tool_call>"
        )


def test_packed_loss_matches_single_samples(chat, checkpoint, tmp_path):
    data = sft_dataset(ROWS, chat)
    sft_trainer = make_trainer(checkpoint, data, tmp_path)
    (packed,) = sft_trainer.train_dataset  # all three in one row
    assert sorted(packed["seq_lengths"]) == sorted(map(len, data["input_ids"]))
    assert sorted(packed["labels"]) == sorted(i for row in data["labels"] for i in row)
    batch = sft_trainer.data_collator([packed])
    assert "attention_mask" not in batch  # a mask of ones would let samples see each other
    assert int((batch["position_ids"] == 0).sum()) == 3
    loss = sft_trainer.train().training_loss
    assert loss == pytest.approx(reference_loss(load_policy(checkpoint)[0], data), abs=1e-5)


def test_packing_order_does_not_matter(chat, checkpoint, tmp_path):
    """If samples attended to earlier ones, the loss would depend on their order."""
    losses = [
        make_trainer(checkpoint, sft_dataset(rows, chat), tmp_path).train().training_loss
        for rows in (ROWS, ROWS[::-1])
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_tool_responses_are_not_targets(chat, checkpoint, tmp_path):
    """As in WebDancer: targets on tool tokens do not matter until one of them is unmasked."""
    samples, model = [episode_sample(row, chat) for row in ROWS], load_policy(checkpoint)[0]
    loss = make_trainer(checkpoint, sft_dataset(samples, chat), tmp_path).train().training_loss

    def masked(seed):
        total, count = 0.0, 0
        for sample in samples:
            ids, mask = torch.tensor(sample.ids), torch.tensor(sample.loss)
            other = torch.randint(300, ids.shape, generator=torch.Generator().manual_seed(seed))
            target = torch.where(mask, ids, other)[1:]
            with torch.no_grad():
                logits = model(ids[None], use_cache=False).logits[0, :-1]
            losses = F.cross_entropy(logits, target, reduction="none")
            total, count = total + (losses * mask[1:]).sum().item(), count + int(mask[1:].sum())
        return total / count

    assert masked(1) == pytest.approx(loss, abs=1e-5) and masked(2) == masked(1)
    data = sft_dataset(samples, chat)
    rows = [dict(row) for row in data]
    at = samples[0].loss.index(False, samples[0].loss.index(True)) + 5  # in the observation
    rows[0]["labels"][at] = rows[0]["input_ids"][at]
    corrupted = make_trainer(checkpoint, type(data).from_list(rows), tmp_path).train().training_loss
    assert abs(corrupted - loss) > 1e-4


def test_two_length_stages_train_and_save(chat, checkpoint, tmp_path):
    short, long = ROWS[:2], [ROWS[2], Sample((5, 6, 7), (False, True, True))]
    options = {"num_train_epochs": 8, "learning_rate": 3e-3, "router_aux_loss_coef": 0.0, "seed": 0}
    metrics = train(checkpoint, [(short, 400), (long, 400)], tmp_path / "out", **options)
    assert len(metrics) == 2
    folders = tmp_path / "out", checkpoint
    model, before = (AutoModelForCausalLM.from_pretrained(folder) for folder in folders)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    data = sft_dataset(ROWS, chat)
    assert reference_loss(model, data) < reference_loss(before, data) - 0.5
    assert [p.name for p in tmp_path.iterdir()] == ["out"]  # TRL's own files are gone


def test_overlong_rows_are_rejected_without_output(chat, checkpoint, tmp_path):
    length = max(len(episode_sample(row, chat)) for row in ROWS)
    with pytest.raises(
        ValueError, match=f"row 3 has {length} tokens, more than max_tokens={length - 1}"
    ):
        train(checkpoint, [(ROWS, length - 1)], tmp_path / "out", **OPTIONS)
    with pytest.raises(ValueError, match="no rows to train on"):
        sft_dataset([], chat)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train(tmp_path / "nowhere", [(ROWS, 1000)], tmp_path / "out")
    assert not (tmp_path / "out").exists()
