"""Static word embeddings: the mean of the token vectors of a text, without a neural network.

The vectors are those of WordLlama (MIT, 32,000 tokens x 256 dimensions), which its wheel contains.
Its files are read here instead of importing the package, which would set up logging and fall back
to downloads. Function words are left out: in long texts they are most of the tokens.
"""

import importlib.util
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np

from drlib.worlds.terms import FUNCTION_WORDS

WORD = re.compile(r"\w+")
WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"


class StaticEmbeddings:
    """Embeds texts by the mean vector of their tokens.

    Args:
        folder: folder of the installed package `wordllama`.
    """

    def __init__(self, folder: Path):
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        (vectors,) = load_file(folder / WEIGHTS).values()
        self._vectors = vectors.astype(np.float32)
        self._tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def embed(self, texts: Iterable[str]) -> np.ndarray:
        """Return unit vectors [texts, 256] in float32; zeros for a text without tokens."""
        return unit(self.add_up(texts))

    def add_up(self, texts: Iterable[str]) -> np.ndarray:
        """Return the sums of the token vectors of each text, [texts, 256] in float32."""
        found = [self._add_up_one(text) for text in texts]
        return np.stack(found) if found else np.zeros((0, self._vectors.shape[1]), np.float32)

    def _add_up_one(self, text: str) -> np.ndarray:
        words = WORD.findall(text)
        content = [word for word in words if word.lower() not in FUNCTION_WORDS]
        encoded = self._tokenizer.encode(" ".join(content or words), add_special_tokens=False)
        return self._vectors[encoded.ids].sum(axis=0)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors [..., dimensions] with length 1; zeros stay zeros."""
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)


@cache
def load_embeddings() -> StaticEmbeddings:
    """Load the embeddings; later calls return the same object.

    Raises:
        ImportError: wordllama is not installed.
    """
    spec = importlib.util.find_spec("wordllama")
    if spec is None:
        raise ImportError('wordllama is missing: pip install "drlib[retrieval]"')
    return StaticEmbeddings(Path(spec.origin).parent)
