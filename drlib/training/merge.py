"""Stage `merge`: one policy from several that share a base, without training (mergekit).

With policies theta_i, their base theta_0 and task vectors tau_i = theta_i - theta_0:

    linear           sum_i w_i theta_i / sum_i w_i               model soups, arXiv 2203.05482
    task_arithmetic  theta_0 + sum_i w_i tau_i                   arXiv 2212.04089
    ties             theta_0 + mean of the largest entries of the tau_i that agree with the elected
                     sign                                        arXiv 2306.01708
    dare             theta_0 + sum_i w_i m_i tau_i / density, m_i ~ Bernoulli(density)
                                                                 arXiv 2311.03099

mergekit trims and drops entries within each matrix; TIES as published ranks those of all matrices
together.

Run: drlib train merge --merge.policies A,B --merge.method ties --merge.base C
"""

import importlib
import re
import tempfile
from pathlib import Path
from typing import Any

import torch

from drlib.config import Config
from drlib.training import stages
from drlib.training.distributed import Ranks
from drlib.training.model_setup import load_model, load_model_tokenizer, save_real_model
from drlib.training.run_folder import RunFolder
from drlib.validation import require, require_within

NUMBER = re.compile(r"-?\d+(\.\d*)?")


def merge(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Build stage `merge`; return the number of policies."""
    policies, base, weights = check_merge(config)
    run = RunFolder(run_dir, stages.stage_settings("merge", config), ranks)
    with tempfile.TemporaryDirectory(dir=run.path) as scratch:
        merge_folders(
            policies,
            Path(scratch),
            config.merge.method,
            weights,
            base=base,
            density=config.merge.density,
            seed=config.seed,
        )
        # saved like the policy of any other stage
        model = load_model(scratch, torch.float32)
        save_real_model(run, model, load_model_tokenizer(str(policies[0])), config)
    return run.finish({"policies": len(policies)})


def check_merge(config: Config) -> tuple[list[Path], Path | None, list[float]]:
    """Return policies, base and weights.

    Raises:
        ValueError: one is missing or has another tokenizer, or the settings are in conflict.
    """
    method = config.merge.method
    policies = [folder for _, folder in stages.policy_folders("merge.policies", config)]
    bases = [folder for _, folder in stages.policy_folders("merge.base", config)]
    require(
        bool(policies),
        "merge.policies is empty: pass the policy folders to merge, separated by commas",
    )
    require(
        len(bases) == (method != "linear"),
        f"merge.method={method} needs merge.base, the folder of the policy before the "
        "specialists' training"
        if method != "linear"
        else "merge.method=linear has no base: leave out merge.base",
    )
    require_within(config.merge.density, "(0, 1]", "merge.density")
    weights = [1.0] * len(policies)
    if config.merge.weights:
        texts = config.merge.weights.split(",")
        require(
            len(texts) == len(policies) and all(map(NUMBER.fullmatch, texts)),
            f"merge.weights={config.merge.weights!r} must be {len(policies)} numbers, one per "
            "policy",
        )
        weights = [float(text) for text in texts]
    vocabulary = load_model_tokenizer(str(policies[0])).get_vocab()
    for folder in policies[1:] + bases:
        require(
            load_model_tokenizer(str(folder)).get_vocab() == vocabulary,
            f"{folder} has another tokenizer than {policies[0]}: merge policies trained from the "
            "same model",
        )
    return policies, bases[0] if bases else None, weights


def merge_folders(
    policies: list[Path],
    out: Path,
    method: str,
    weights: list[float],
    *,
    base: Path | None = None,
    density: float = 1.0,
    seed: int = 0,
) -> None:
    """Write the merged policy to `out`, in float32.

    Args:
        method: "linear", "task_arithmetic", "ties" or "dare".
        weights: one per policy; `linear` and `ties` divide by their sum.
        base: policy from which the others were trained; not for `linear`.
        density: share of each difference to the base that `ties` and `dare` keep.
        seed: of the entries that `dare` drops.

    Raises:
        ModuleNotFoundError: mergekit is not installed.
        ValueError: the policies have different shapes, or mergekit cannot merge this architecture.
    """
    try:
        mergekit = importlib.import_module("mergekit.merge")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'merging needs mergekit: pip install -c constraints.txt "drlib[merge]"'
        ) from error
    from mergekit.config import MergeConfiguration
    from mergekit.options import MergeOptions

    sparse = {"density": density} if method in ("ties", "dare") else {}
    if method == "dare":
        # mergekit rescales to the L1 norm of each matrix, the paper by 1 / density
        weights = [weight / density for weight in weights]
    plan: dict[str, Any] = {
        "merge_method": {"dare": "dare_linear"}.get(method, method),
        "dtype": "float32",
        "models": [
            {"model": str(folder), "parameters": {"weight": weight, **sparse}}
            for folder, weight in zip(policies, weights, strict=True)
        ],
    }
    if method == "dare":
        plan["parameters"] = {"rescale": False}
    if base is not None:
        plan["base_model"] = str(base)
    options = MergeOptions(
        copy_tokenizer=False, write_model_card=False, quiet=True, random_seed=seed
    )
    try:
        mergekit.run_merge(MergeConfiguration.model_validate(plan), str(out), options)
    except (RuntimeError, KeyError, ValueError, NotImplementedError) as error:
        raise ValueError(
            f"mergekit cannot merge {', '.join(folder.name for folder in policies)}: "
            f"{' '.join(str(error).split())}; merge policies of one architecture"
        ) from error
