"""Count the bytes that torch operators read and write: an upper bound, as caches save some."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Traffic(TorchDispatchMode):
    """Bytes that operators read and write; views are free, an index touches what it names."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        name = function.overloadpacket.__name__
        if function.is_view or "empty" in name:
            return out
        # what is passed as `out` is written alone
        read, written = tree_leaves(args if "out" in kwargs else (args, kwargs)), tree_leaves(out)
        if name.startswith(("gather", "scatter", "index")):
            read = read[1:]
            written = written if name == "gather" else read[-1:]
        tensors = [t for t in (*read, *written) if isinstance(t, torch.Tensor)]
        self.bytes += sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in tensors)
        return out
