"""drlib: a notebook-first research kit for agentic reinforcement learning of deep-research agents.

The public names below are imported on first use, so `import drlib` loads neither torch nor
transformers.

    >>> from drlib import load_world, synthesize_questions
    >>> world = load_world("cldr")
    >>> tasks = synthesize_questions(world, 3, seed=0)
    >>> len(tasks), all(task.answer for task in tasks)
    (3, True)

docs/architecture.md describes the packages and one training step.
"""

from importlib import import_module

__version__ = "0.1.0"

# public name -> module that defines it; "module:name" if the names differ
_PUBLIC = {
    "load_world": "drlib.worlds",
    "World": "drlib.worlds",
    "synthesize_questions": "drlib.questions.question_engine",
    "Task": "drlib.task",
    "is_correct": "drlib.task",
    "Sandbox": "drlib.sandbox",
    "Toolbox": "drlib.tools",
    "Trajectory": "drlib.trajectory",
    "load_trajectories": "drlib.trajectory",
    "save_trajectories": "drlib.trajectory",
    "load_model": "drlib.models.moe",
    "LocalEngine": "drlib.models.local_engine",
    "TransformersEngine": "drlib.models.transformers_engine",
    "VllmEngine": "drlib.models.vllm_engine",
    "ApiEngine": "drlib.models.api_engine",
    "ReAct": "drlib.agents",
    "Heavy": "drlib.agents",
    "Limits": "drlib.agents",
    "Config": "drlib.config",
    "LossConfig": "drlib.rl.losses",
    "policy_loss": "drlib.rl.losses",
    "leave_one_out": "drlib.rl.advantages",
    "filter_rollouts": "drlib.rl.filtering",
    "resample_on_correct": "drlib.rl.resampling",
    "train_sft": "drlib.training.launch",
    "train_grpo": "drlib.training.launch",
    "evaluate": "drlib.training.launch:evaluate_stage",
    "register": "drlib.training.extensions",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'drlib' has no attribute {name!r}")
    module, _, attribute = _PUBLIC[name].partition(":")
    value = getattr(import_module(module), attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
