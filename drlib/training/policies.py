"""How a stage that trains or asks a policy begins and ends: its tools, its start, its result.

Apart from `data`, whose stages need no model library and should not wait for one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drlib.chat.template import ChatIds, load_tokenizer
from drlib.config import Config
from drlib.models.engine import Engine
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import load_policy, save_policy
from drlib.training import stages
from drlib.training.balance import balanced
from drlib.training.data import WORLD_FILE
from drlib.training.distributed import Ranks
from drlib.training.run_folder import RunFolder
from drlib.worlds import Names, SmallWorld


def policy_tools(config: Config, runs: Path):
    """(tokenizer, chat ids, world, names) that every training stage begins with."""
    folder = stages.input_folder("a policy", "world", config, runs)
    tokenizer = load_tokenizer(folder / "tokenizer")
    world = SmallWorld.load(folder / WORLD_FILE)
    return tokenizer, ChatIds(tokenizer), world, Names.from_world(world)


def begin(name: str, before: str, config: Config, run_dir: Path, ranks: Ranks | None):
    """(run folder, policy of stage `before`, chat ids, world, names): how stage `name` begins."""
    run = RunFolder(run_dir, stages.settings_of(name, config), ranks, config.trainer.report_to)
    runs = run_dir.parents[1]
    tokenizer, *others = policy_tools(config, runs)
    if before in stages.inputs_of(name, config):
        model, _ = load_policy(stages.input_folder(name, before, config, runs) / "policy")
        return run, balanced(model, config), *others
    start = stages.start_folder(name, config)
    model, own = load_policy(start)
    if own.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"the policy in {start} has another vocabulary than the world {config.world.name!r}: "
            "start from one that was trained on this world"
        )
    return run, balanced(model, config), *others


@contextmanager
def opened(folder: Path, config: Config) -> Iterator[tuple[Engine, ChatIds, str | None]]:
    """(engine, chat, system prompt) of the policy that a finished stage left in `folder`."""
    if config.trainer.backend == "trl":
        from drlib.training.model_setup import opened_model  # lazily: PEFT takes seconds

        with opened_model(folder, config) as speaker:
            yield speaker
        return
    model, tokenizer = load_policy(folder / "policy")
    engine = LocalEngine(model.eval(), max_context=config.rollout.max_context_tokens, lockstep=True)
    yield engine, ChatIds(tokenizer), None


def finish(run: RunFolder, model, chat: ChatIds, metrics: dict) -> dict:
    """How it ends: the policy saved, the folder complete; returns `metrics`."""
    if run.ranks.first:
        save_policy(model, chat.tokenizer, run.path / "policy")
    return run.finish(metrics)
