"""Style sheet and colours of all figures, and figures as PNG; imports no torch."""

import io
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

STYLE = Path(__file__).resolve().parents[1] / "drlib.mplstyle"
UP, DOWN, CONTROL = "C0", "C1", "0.55"


def png_bytes(fig: Figure, dpi: int = 90) -> bytes:
    """Return a figure as PNG bytes and close it."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    plt.close(fig)
    return buffer.getvalue()
