"""The planner: model sizes, step times, fit in memory, and rejected settings.

Memory estimates are tested in test_training_plan_memory. Step times are compared with reference
runs of the local pipeline in figures/reference.

Run: python -m pytest tests/test_training_plan.py
"""

import json

import pytest
from tokenizers import Tokenizer, models
from transformers import AutoConfig, PreTrainedTokenizerFast

from drlib.analysis.scaling_plots import simulate_asynchronous, simulate_synchronous
from drlib.cli.plan import main, read_rates
from drlib.config import ROOT, Config
from drlib.files import read_json_lines
from drlib.models.moe import PolicyShape, build_policy, save_policy
from drlib.training.memory_model import KNOWN, Load, count_shape, state_bytes
from drlib.training.planner import (
    GIB,
    Rates,
    StepTime,
    Workload,
    check_settings,
    estimate_rates,
    find_remedy,
    fit_memory,
    list_loads,
    load_shape,
    measure_rates,
    parse_rates,
    plan,
    read_workload,
    step_time,
)
from drlib.training.pretrain import policy_shape

REFERENCE = ROOT / "figures" / "reference"
RUNS = [f"tour/seed{n}_rl.jsonl" for n in range(5)]
RUNS += [f"{name}/seed{n}_rl.jsonl" for name in ("resampling", "overlong_keep") for n in range(3)]
BILLION = 1e9
CLOCK = Rates(generate_tokens_s=100.0, train_tokens_s=500.0, push_bytes_s=10.0)


@pytest.fixture(scope="module")
def gpu8():
    return Config.load("gpu8")


@pytest.fixture(scope="module")
def sparse(gpu8):
    return load_shape(gpu8)


@pytest.fixture(scope="module")
def small():
    return load_shape(Config.load("laptop"))


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("Qwen/Qwen3-0.6B", 0.596, 0.596),
        ("Qwen/Qwen3-1.7B", 1.7, 1.7),
        ("Qwen/Qwen3-4B", 4.0, 4.0),
        ("Qwen/Qwen3-8B", 8.2, 8.2),
        ("Qwen/Qwen3-30B-A3B", 30.5, 3.3),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", 30.5, 3.3),
    ],
)
def test_model_sizes_match_their_names(name, total, active):
    shape = load_shape(Config.load("gpu1", model__path=name))
    assert shape.parameters / BILLION == pytest.approx(total, rel=0.02)
    assert shape.active / BILLION == pytest.approx(active, rel=0.02)
    assert name in KNOWN and shape.vocabulary == 151_936


def test_small_policy_parameter_count(small):
    config = Config.load("laptop")
    built = build_policy(
        PolicyShape(
            config.world.vocabulary, heads=config.model.heads, head_dim=config.model.head_dim
        ),
        0,
        "plain",
    )
    assert small.parameters == built.num_parameters()
    of_experts = sum(p.numel() for n, p in built.named_parameters() if ".experts." in n)
    assert small.active == small.parameters - of_experts * 6 // 8  # two of eight


def test_dense_layers_are_not_counted_as_sparse():
    mixed = AutoConfig.for_model(
        "qwen3_moe", vocab_size=64, hidden_size=32, num_hidden_layers=4, num_experts=4
    )
    mixed.mlp_only_layers = [0]
    assert count_shape(mixed).sparse_layers == 3


@pytest.mark.parametrize("run", RUNS)
def test_step_time_prediction_from_the_first_half(run):
    rows = read_json_lines(REFERENCE / run)
    half = len(rows) // 2
    rates = measure_rates(rows[:half], processes=2)
    done = [step_time(read_workload(row), rates, engines=2, learners=2) for row in rows[half:]]
    planned = sum(each.synchronous for each in done)
    assert planned == pytest.approx(sum(row["seconds"] for row in rows[half:]), rel=0.2)
    errors = sorted(
        abs(each.synchronous / row["seconds"] - 1) for each, row in zip(done, rows[half:])
    )
    assert errors[half // 2] < 0.2  # of a step: the median


def test_plan_with_measured_rates_matches_the_run():
    path = REFERENCE / "tour" / "seed1_rl.jsonl"
    rows = read_json_lines(path)
    rates = measure_rates(rows, processes=2)
    done = plan(Config.load("laptop"), rates=rates)
    mean = sum(row["seconds"] for row in rows) / len(rows)
    assert done.time.synchronous == pytest.approx(mean, rel=0.01)
    assert read_rates(path) == measure_rates(rows)


def test_step_time_and_knee_by_hand():
    work = Workload(generated=4000, trained=1000, push_bytes=5)
    one, four, many = (step_time(work, CLOCK, engines=n, learners=2) for n in (1, 4, 80))
    assert (one.generate, one.train, one.sync) == (40.0, 1.0, 0.5)
    assert (one.synchronous, one.asynchronous) == (41.5, 40.5)
    assert (four.synchronous, four.asynchronous) == (10 + 1 + 2, 10 + 2)
    assert one.knee == four.knee == 40  # engines that generate as fast as the learner learns
    assert many.asynchronous == 1.0 + 40.0 and many.learner_busy == 1 / 41
    assert four.engines_busy == 10 / 12 and four.staleness == 4  # ceil(40 / 12)


@pytest.mark.parametrize("engine", ["hf", "local"])
def test_sharded_local_engine_needs_a_full_copy(engine):
    config = Config.load("gpu8", engine__name=engine)
    shape = load_shape(config)
    served, own = (fit_memory(each, shape, 80 * GIB) for each in (Config.load("gpu8"), config))
    whole = 2 * shape.parameters
    assert own.memory.parts["engine"] == whole and "engine" not in served.memory.parts
    assert own.memory.total == served.memory.total + whole
    unsharded = fit_memory(config.derive(trainer__fsdp=False), shape, 80 * GIB)
    assert "engine" not in unsharded.memory.parts, "it is the model that is trained"
    assert own.cache == 80 * GIB - sum(
        own.memory.parts.get(name, 0) for name in ("weights", "optimiser", "engine", "reserved")
    )


@pytest.mark.parametrize("engines", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("push_bytes", [0.0, 2.0])
def test_asynchronous_step_time_matches_the_simulation(engines, push_bytes):
    rates = Rates(generate_tokens_s=1.0, train_tokens_s=1.0, push_bytes_s=10.0)
    time = step_time(Workload(40.0, 10.0, push_bytes), rates, engines=engines)
    trained = [span for span in simulate_asynchronous(time, 200) if span.what == "train"][100:]
    seconds = (trained[-1].end - trained[0].end) / (len(trained) - 1)
    assert seconds == pytest.approx(time.asynchronous)
    assert {span.age for span in trained} == {engines}  # also beyond the knee, where they wait
    if engines <= time.knee == 4:
        assert time.staleness == engines


def test_simulated_schedules_by_hand():
    time = StepTime(generate=2.0, train=3.0, sync=1.0, engines=2, knee=2, staleness=1)
    spans = simulate_asynchronous(time, 2)
    output = [(s.lane, s.what, s.start, s.end, s.batch, s.age) for s in spans]
    assert output == [
        (1, "generate", -2.0, 2.0, 0, 0),
        (0, "train", 2.0, 5.0, 0, 0),
        (0, "sync", 5.0, 6.0, 0, 0),
        (2, "generate", 0.0, 4.0, 1, 0),  # it waits from 4 to 6
        (0, "train", 6.0, 9.0, 1, 1),
        (0, "sync", 9.0, 10.0, 1, 0),
    ]
    after = simulate_synchronous(time, 2)
    learner = [(s.what, s.start, s.end) for s in after if s.lane == 0]
    assert learner == [("train", 2, 5), ("sync", 5, 6), ("train", 8, 11), ("sync", 11, 12)]
    assert [(s.lane, s.start) for s in after if s.what == "generate"] == [
        *((1, 0), (2, 0)),
        *((1, 6), (2, 6)),
    ]
    assert learner[-1][2] == 2 * time.synchronous


def test_missing_rates_are_estimated(sparse):
    load = Load(lora_rank=8, checkpointing=True)
    guess = estimate_rates(Rates(train_tokens_s=7.0), sparse, load, 10 * GIB, 32_768)
    assert guess.train_tokens_s == 7.0 and guess.generate_tokens_s > 0
    more = estimate_rates(Rates(), sparse, load, 20 * GIB, 32_768)
    assert more.generate_tokens_s > guess.generate_tokens_s  # more rollouts share a read
    full = estimate_rates(Rates(), sparse, Load(), 20 * GIB, 32_768)
    # forward, backward of activations and forward again, against forward and both backwards
    assert full.train_tokens_s == pytest.approx(more.train_tokens_s)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"generate_tokens": 1}, "'generate_tokens'.*: generate_tokens_s, train_tokens_s"),
        ({"engines": "4"}, "wrong rates .*'str'"),
        ({"train_tokens_s": -1}, r"train_tokens_s must be in \(0, inf\], got -1"),
        ({"push_bytes_s": 0}, r"push_bytes_s must be in \(0, inf\], got 0"),
        ({"engines": -1}, r"engines must be in \[1, inf\), got -1"),
        ([1], "pass a JSON object"),
    ],
)
def test_invalid_rates_are_rejected(numbers, message):
    with pytest.raises(ValueError, match=message):
        parse_rates(numbers)


def test_incomplete_metrics_are_rejected():
    with pytest.raises(ValueError, match="no step of these metrics has a gradient"):
        measure_rates([])
    with pytest.raises(ValueError, match="lack 'generated'"):
        measure_rates(read_json_lines(REFERENCE / "tour" / "seed0_sft.jsonl"))
    with pytest.raises(ValueError, match="rates of generation and training"):
        step_time(Workload(1, 1), Rates())


def test_profiles_fit_their_devices(gpu8):
    devices = [(gpu8, 80), (Config.load("gpu1"), 24), (Config.load("laptop"), 2)]
    devices += [(Config.load("gpu16", model__dtype=name), 15) for name in ("bfloat16", "float32")]
    for config, gib in devices:
        done = plan(config, gib)
        assert done.errors == []
        assert 0 < done.fit.memory.total <= gib * GIB


def test_kv_cache_bytes_and_number_of_contexts(gpu8, sparse):
    assert sparse.kv_bytes(2) == 2 * 48 * 4 * 128 * 2  # keys and values, layers, heads, bfloat16
    fit = fit_memory(gpu8, sparse, 80 * GIB)
    cache = int(0.9 * 80 * GIB) - 2 * sparse.parameters - GIB
    assert fit.contexts == cache // (sparse.kv_bytes(2) * 32_768) == 4


def test_largest_step_is_planned():
    config = Config.load("gpu1", trainer__pack_tokens=65_536)
    assert {name: load.tokens for name, load in list_loads(config).items()} == {
        "rl": 16_384,
        "sft": 65_536,
    }
    assert plan(config, 80).fit.stage == "sft"
    several = Config.load("gpu1", trainer__device_batch=2)
    assert plan(several, 80).fit.stage == "rl"  # of the same length, with a mask
    alone = list_loads(several.derive(trainer__device_batch=1))
    assert list_loads(several)["rl"].padded and not alone["rl"].padded
    assert "sft" not in list_loads(Config.load("gpu1", sft__steps=0))


@pytest.mark.parametrize(
    ("profile", "changes", "gib", "remedy"),
    [
        (
            "gpu1",
            {"trainer.gradient_checkpointing": False},
            80,
            {"trainer.gradient_checkpointing": True},
        ),
        ("gpu1", {"trainer.device_batch": 16}, 80, {"trainer.device_batch": 1}),
        (
            "gpu1",
            {"model.path": "Qwen/Qwen3-8B", "trainer.lora_rank": 0},
            80,
            {"trainer.lora_rank": 32},
        ),
        ("gpu8", {"trainer.fsdp": False}, 80, {"trainer.fsdp": True}),
        ("gpu8", {"processes": 2}, 40, None),
        ("gpu1", {"rollout.max_context_tokens": 32_768}, 22, {"trainer.fsdp": True}),
        (
            "gpu1",
            {"rollout.max_context_tokens": 32_768},
            18,
            {"rollout.max_context_tokens": 16_384},
        ),
        ("gpu1", {"engine.memory_share": 0.05}, 80, {"engine.memory_share": 0.1}),
        (
            "gpu1",
            {
                "trainer.lora_rank": 0,
                "trainer.gradient_checkpointing": False,
                "trainer.device_batch": 8,
            },
            48,
            None,
        ),
    ],
)
def test_remedy_makes_the_run_fit(profile, changes, gib, remedy):
    config = Config.load(profile, **changes)
    done = plan(config, gib)
    assert done.fit.fault and len(done.errors) == 1
    if remedy is not None:
        assert remedy.items() <= done.remedy.items()
    if done.remedy:
        assert all(config.get(name) != value for name, value in done.remedy.items())
        assert plan(config.derive(**done.remedy), gib).errors == []
        assert all(f"--{name}=" in done.errors[0] for name in done.remedy)


def test_no_remedy_if_nothing_fits(gpu8, sparse):
    assert find_remedy(gpu8, sparse, 4 * GIB) == {}
    assert "use a smaller model or larger devices" in plan(gpu8, 4).errors[0]
    fault = plan(gpu8, 30).errors[0]
    assert "most of it" in fault and "\n" not in fault


def test_local_trainer_with_adapters_keeps_states_of_the_adapters_only(sparse):
    load = list_loads(Config.load("smol-reader"))["rl"]
    assert (load.lora_rank, load.chunked, load.trainer) == (4, True, "local")
    whole = list_loads(Config.load("smol-reader", trainer__lora_rank=0))["rl"]
    adapters, everything = (state_bytes(sparse, one) for one in (load, whole))
    assert adapters["optimiser"] < everything["optimiser"] / 20


def test_context_is_limited_by_the_small_policy():
    config = Config.load("laptop", rollout__max_context_tokens=2048)
    (fault,) = plan(config, 8).errors
    assert "rollout.max_context_tokens=2048" in fault and "1024" in fault
    assert build_policy(policy_shape(config), 0).config.max_position_embeddings == 1024


REJECTED = {
    "trainer.lora_rank=8 needs a real model": {"trainer.lora_rank": 8},
    "trainer.fsdp=true needs trainer.backend=trl": {"trainer.fsdp": True},
    "trainer.gradient_checkpointing=true needs trainer.backend=trl": {
        "trainer.gradient_checkpointing": True
    },
    "model.dtype=bfloat16 needs a real model": {"model.dtype": "bfloat16"},
    "trainer.fsdp=true shards over processes": {
        "trainer.backend": "trl",
        "trainer.fsdp": True,
        "processes": 1,
    },
    "rollout.max_turn_tokens=500 is larger than": {"rollout.max_turn_tokens": 500},
    "engine.name=local cannot run a qwen3_moe": {"model.path": "Qwen/Qwen3-30B-A3B"},
    "engine.name=server needs engine.url": {"engine.name": "server"},
    "engine.memory_share=0.0": {"engine.name": "vllm", "engine.memory_share": 0.0},
}


@pytest.mark.parametrize("message", REJECTED)
def test_invalid_settings_give_one_line_errors(message):
    faults = check_settings(Config.load("laptop", **REJECTED[message]))
    assert len(faults) == 1, faults
    assert message in faults[0] and "\n" not in faults[0]


def test_counts_below_1_are_rejected():
    for name in ("processes", "trainer.device_batch", "rl.group"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1"):
            plan(Config.load("laptop", **{name: 0}))


def test_profile_settings_are_valid():
    for profile in ("laptop", "ci", "gpu16", "gpu1", "gpu8"):
        assert check_settings(Config.load(profile)) == []


@pytest.fixture
def folder(tmp_path):
    """Save a model with a tokenizer and a chat template."""
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, chat_template="{{ messages }}")
    shape = PolicyShape(vocab_size=64, hidden=16, layers=2, heads=2, kv_heads=1, head_dim=8)
    return save_policy(build_policy(shape, 0, "plain"), tokenizer, tmp_path / "model")


def folder_config(folder):
    limits = {"rollout.max_context_tokens": 1024, "rollout.max_turn_tokens": 512}
    return Config.load("gpu1", model__path=str(folder), engine__name="hf", **limits)


def test_model_folder_is_read_from_disk(folder):
    done = plan(folder_config(folder), 8)
    assert done.errors == [] and done.shape.hidden == 16
    assert done.disk["the hub's model"] == 0


def test_missing_config_and_unknown_model_are_rejected(folder):
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="cannot read config.json"):
        plan(folder_config(folder), 8)
    with pytest.raises(ValueError, match="not in the local cache"):
        plan(Config.load("gpu1", model__path="nobody/nothing"), 8)


def test_context_beyond_the_model_is_rejected():
    config = Config.load("gpu1", rollout__max_context_tokens=65_536)
    assert any("40960 positions" in error for error in plan(config, 80).errors)


def test_disk_by_hand():
    done = plan(Config.load("gpu8"), 80)
    assert done.disk["final models"] == 2 * 2 * done.shape.parameters  # sft and rl, bfloat16
    assert done.disk["checkpoints"] == 3 * 12 * done.shape.trained_parameters(32)
    whole = plan(Config.load("laptop"), 8)
    assert whole.disk["checkpoints"] == 2 * 12 * whole.shape.parameters
    assert whole.disk["final models"] == 3 * 4 * whole.shape.parameters


def test_plan_command(capsys, tmp_path):
    rates = tmp_path / "rates.json"
    rates.write_text(json.dumps({"engines": 4, "generate_tokens_s": 5000, "train_tokens_s": 4000}))
    assert main(["--profile", "gpu8", "--device-gb", "80", "--rates", str(rates)]) == 0
    output = capsys.readouterr().out
    for part in ("30.5 G", "weights", "optimiser", "activations", "logits", "knee", "disk"):
        assert part in output
    assert "estimated from" not in output
    assert main(["--profile", "gpu8", "--trainer.fsdp", "false"]) == 1
    error = capsys.readouterr().err
    assert error.count("error:") == 1 and "fits with --trainer.fsdp=true" in error
    assert main(["--profile", "gpu9"]) == 1
    assert "unknown profile 'gpu9'" in capsys.readouterr().err
    assert main(["--profile", "ci", "--rates", str(tmp_path / "no.json")]) == 1
    assert "No such file" in capsys.readouterr().err
