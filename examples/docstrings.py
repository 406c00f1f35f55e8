"""What 08_language_model.py learns, and the picture of how it did.

The text is that of the installed Python's docstrings: the same everywhere for one minor version.
"""

import importlib
import inspect
from pathlib import Path

MODULES = [
    *("argparse", "calendar", "cmd", "difflib", "doctest"),
    *("fractions", "optparse", "random", "shelve", "textwrap"),
]


def documentation():
    """Every docstring of the modules, white space folded."""
    return " ".join(word for name in MODULES for text in docstrings(name) for word in text.split())


def docstrings(name):
    """Those of a module, its classes, functions and methods."""
    module = importlib.import_module(name)
    own = [x for x in vars(module).values() if getattr(x, "__module__", "") == name]
    inner = [y for x in own if isinstance(x, type) for y in vars(x).values()]
    named = [x for x in (*own, *inner) if isinstance(x, type) or inspect.isfunction(x)]
    return [x.__doc__ for x in (module, *named) if x.__doc__]


def draw(**curves):
    """build/language_model.png: the losses of every step, where matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for (name, losses), width, shade in zip(curves.items(), (4, 1), (0.4, 1), strict=True):
        axis.plot(losses, label=name, linewidth=width, alpha=shade)
    axis.set(xlabel="step", ylabel="loss, in nats a letter")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    path = Path(__file__).resolve().parent.parent / "build" / "language_model.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=150)
