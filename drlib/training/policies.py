"""Start and end of the local training stages: inputs, starting policy, result."""

from pathlib import Path

from drlib.chat.template import ChatIds, load_tokenizer
from drlib.config import Config
from drlib.models.moe import load_policy, save_policy
from drlib.training import stages
from drlib.training.balance import prepare_router_biases
from drlib.training.data import WORLD_FILE
from drlib.training.distributed import Ranks
from drlib.training.run_folder import RunFolder
from drlib.validation import require
from drlib.worlds import Names, SmallWorld


def load_stage_tools(config: Config, runs: Path):
    """Return (tokenizer, chat ids, world, names) of a training stage."""
    folder = stages.require_input("a policy", "world", config, runs)
    require(
        config.unrestricted().world.vocabulary > 0,
        "world.vocabulary=0 trains no tokenizer, which the tiny policy needs: set model.path to a "
        "model or world.vocabulary=2048",
    )
    tokenizer = load_tokenizer(folder / "tokenizer")
    world = SmallWorld.load(folder / WORLD_FILE)
    return tokenizer, ChatIds(tokenizer), world, Names.from_world(world)


def begin_stage(name: str, before: str, config: Config, run_dir: Path, ranks: Ranks | None):
    """Return (run folder, policy of stage `before`, chat ids, world, names).

    Raises:
        ValueError: the policy named by a `start` setting has another vocabulary than the world.
    """
    run = RunFolder(run_dir, stages.stage_settings(name, config), ranks, config.trainer.report_to)
    runs = run_dir.parents[1]
    tokenizer, *others = load_stage_tools(config, runs)
    if before in stages.list_inputs(name, config):
        model, _ = load_policy(stages.require_input(name, before, config, runs) / "policy")
        return run, prepare_router_biases(model, config.trainer.router_bias_rate), *others
    start = stages.start_folder(name, config)
    model, own = load_policy(start)
    if own.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"the policy in {start} has another vocabulary than the world {config.world.name!r}: "
            "start from one that was trained on this world"
        )
    return run, prepare_router_biases(model, config.trainer.router_bias_rate), *others


def finish_stage(run: RunFolder, model, chat: ChatIds, metrics: dict) -> dict:
    """Save the policy and complete the run folder; return `metrics`."""
    if run.ranks.first:
        save_policy(model, chat.tokenizer, run.path / "policy")
    return run.finish(metrics)
