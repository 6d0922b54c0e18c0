"""Outcome reward models: a sequence classifier with one label that scores complete rollouts."""

import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForSequenceClassification

from drlib.config import ROOT
from drlib.models.moe import default_device, quiet_loading


class OutcomeScorer:
    """Scores token ids of the policy's tokenizer; safe for several threads.

    Args:
        model: transformers' model for sequence classification with one label.
        folder: its checkpoint, which also has the tokenizer.
    """

    def __init__(self, model: nn.Module, folder: Path):
        self.model, self.folder = model.eval(), folder
        self._lock = threading.Lock()

    @torch.no_grad()
    def score(self, token_ids: Sequence[int]) -> float:
        """Return the logit of the last position; its sigmoid is the probability of being right."""
        device = next(self.model.parameters()).device
        ids_BT = torch.tensor([list(map(int, token_ids))], device=device)
        with self._lock:  # a batch of one: the score does not depend on other rollouts
            return float(self.model(input_ids=ids_BT, use_cache=False).logits[0, 0])


def find_outcome_model(path: str | Path) -> Path:
    """Return the folder; a committed model is also found by its path in the checkout."""
    return Path(path) if Path(path).exists() else ROOT / path


def start_outcome_model(path: str | Path) -> nn.Module:
    """Load a policy as a sequence classifier in fp32; a head that it lacks is new, with zeros.

    Raises:
        ValueError: no model at `path`.
    """
    folder = find_outcome_model(path)
    try:
        with quiet_loading():
            model = AutoModelForSequenceClassification.from_pretrained(
                folder, num_labels=1, dtype=torch.float32, local_files_only=True
            )
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"no outcome model at {path}: run `drlib rewards train`") from error
    if not is_outcome_model(model):
        nn.init.zeros_(model.score.weight)
    return model.to(default_device())


def is_outcome_model(model: nn.Module) -> bool:
    """Return True if the loaded checkpoint has a trained head."""
    return "Classification" in (model.config.architectures or [""])[0]


@lru_cache(maxsize=2)
def load_outcome_scorer(path: str) -> OutcomeScorer:
    """Load the trained outcome model at `path`, once per process.

    Raises:
        ValueError: there is none, or it is a policy without a trained head.
    """
    model = start_outcome_model(path)
    if not is_outcome_model(model):
        raise ValueError(f"{path} is a policy, not an outcome model: run `drlib rewards train`")
    return OutcomeScorer(model, find_outcome_model(path))
