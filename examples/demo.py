"""The 1,797 handwritten digits of scikit-learn, through reductions that are declared and proved.

Statistics of the real pixels, and the softmax entropy of the scores of a linear model fitted to
them: each in one pass, each held against the plain two-pass formula in float64. Then the printed
kernel runs, on the GPU if there is one, else once in Triton's interpreter. Last, a small network
is trained on the digits with fr.nn.LayerNorm and the fused loss head, beside the same network in
plain PyTorch. Writes build/demo.png.
"""

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import fusedreduce as fr
from fusedreduce.reductions import Largest, LogSumExp, Moments

BUILD = Path(__file__).resolve().parent.parent / "build"
SCORES = BUILD / "demo_scores.npy"
FITTED = 897  # digits the model is fitted to; the other 900 are predicted
INTERPRETED = "run the kernel in the interpreter"


class Entropy(fr.Reduction):
    """-sum_j p_j log p_j = log s - t / s nats, where p = softmax(x)."""

    m = fr.Max(lambda x: x)
    s = fr.Sum(
        lambda x, m: torch.exp(x - m),
        correct=lambda s, old, new: s * torch.exp(old.m - new.m),
    )
    t = fr.Sum(
        lambda x, m: (x - m) * torch.exp(x - m),
        correct=lambda t, old, new: (t + old.s * (old.m - new.m)) * torch.exp(old.m - new.m),
    )

    def finish(s, t):
        return torch.log(s) - t / s

    def definition(x):
        return torch.logsumexp(x, 0) - torch.sum(torch.softmax(x, 0) * x)


Pixels = fr.join(Moments, Largest)  # mean, variance, maximum and its place, in one pass
Certainty = fr.join(Entropy, LogSumExp, Largest)  # they share m and s


def main():
    start = time.perf_counter()
    digits = load_digits()
    pixels = torch.as_tensor(digits.data, dtype=torch.float32)  # (1797, 64)
    labels = torch.as_tensor(digits.target)  # (1797,)

    heading("Proofs")
    for R in (Moments, Entropy):
        certificate = fr.prove(R)
        print(f"{certificate}\n")
        assert certificate.proved

    heading(f"{len(pixels)} images of 8 x 8 pixels, against two passes in float64")
    for what, dim in (("per image", 1), ("per pixel", 0)):
        compare(what, fr.reduce(Pixels, pixels, dim=dim), pixel_truth(pixels.double(), dim))

    heading("Entropy of a linear model's scores")
    model = LogisticRegression(max_iter=2000).fit(digits.data[:FITTED], digits.target[:FITTED])
    scores = torch.as_tensor(model.decision_function(digits.data[FITTED:])).float()  # (900, 10)
    found = fr.reduce(Certainty, scores)
    compare("per image", found, score_truth(scores.double()))
    fields = [f.name for f in Certainty.record.fields]
    print(f"\nthree declarations, one pass, {len(fields)} fields: {', '.join(fields)}")
    right = found["Largest"]["index"] == labels[FITTED:]
    entropy = found["Entropy"]
    print(
        f"{int(right.sum())} of {len(right)} predictions are right, their mean entropy is", end=" "
    )
    print(
        f"{entropy[right].mean():.3f} nats; that of the wrong ones is {entropy[~right].mean():.3f}"
    )

    heading("The printed kernel")
    run_kernel(scores, entropy)

    heading("Training with a fused layer norm and the fused loss head")
    curves = train_both(pixels, labels)

    path = draw(pixels, labels, entropy, found["Largest"]["index"], curves)
    heading(
        f"Drawn: {path.relative_to(BUILD.parent)}   ({time.perf_counter() - start:.0f} s in all)"
    )


def heading(text):
    print(f"\n== {text}\n")


# ---- the plain formulas ------------------------------------------------------------------------


def pixel_truth(x, dim):
    mean = x.mean(dim, keepdim=True)
    return {
        "Moments": {"mean": mean.squeeze(dim), "var": ((x - mean) ** 2).mean(dim)},
        "Largest": {"value": x.amax(dim), "index": first_largest(x, dim)},
    }


def score_truth(x):
    p = torch.softmax(x, -1)
    return {
        "Entropy": -(p * torch.log_softmax(x, -1)).sum(-1),
        "LogSumExp": torch.logsumexp(x, -1),
        "Largest": {"value": x.amax(-1), "index": first_largest(x, -1)},
    }


def first_largest(x, dim):
    """torch.argmax leaves open which of several equal values it answers; numpy takes the first."""
    return torch.as_tensor(x.numpy().argmax(dim))


def compare(what, found, truth):
    """The largest difference of each result, printed; more than float32 can explain is an error."""
    for name, expected in truth.items():
        parts = expected if isinstance(expected, dict) else {"": expected}
        for output, value in parts.items():
            got = found[name][output] if output else found[name]
            difference = float((got.double() - value).abs().max())
            size = float(value.abs().max())
            allowed = 0 if output in ("value", "index") else 2e-6 * size
            title = f"{name} {output}".strip()
            print(f"{what}  {title:<14} differs by {difference:.1e} at most, of {size:.4g}")
            assert difference <= allowed, (title, difference, allowed)


# ---- the kernel --------------------------------------------------------------------------------


def run_kernel(scores, entropy):
    """On a GPU; elsewhere in Triton's interpreter, which is chosen before Triton loads."""
    if torch.cuda.is_available():
        found = fr.reduce(Entropy, scores.cuda(), impl="triton").cpu()
        print(f"on {torch.cuda.get_device_name()}: ", end="")
        report(found, entropy)
    elif importlib.util.find_spec("triton") is None:
        print("Triton is not installed here; all results came from the tiled PyTorch path")
    else:
        BUILD.mkdir(exist_ok=True)
        np.save(SCORES, scores.numpy())
        environment = os.environ | {"TRITON_INTERPRET": "1"}
        quiet = ("-W", "ignore::RuntimeWarning")  # numpy's, about log 0 in rows past the end
        subprocess.run([sys.executable, *quiet, __file__, INTERPRETED], env=environment, check=True)


def run_interpreted():
    """What the subprocess does: the same kernel over the scores that were saved."""
    scores = torch.as_tensor(np.load(SCORES))
    print("no GPU here, so in Triton's interpreter: ", end="", flush=True)
    report(fr.reduce(Entropy, scores, impl="triton"), fr.reduce(Entropy, scores, impl="tiles"))


def report(found, expected):
    difference = float((found - expected).abs().max())
    print(f"{len(found)} entropies, largest difference {difference:.1e}")
    assert difference < 1e-5


# ---- training ----------------------------------------------------------------------------------

STEPS, BATCH, HIDDEN = 300, 128, 64


def fused_head(scores, target):
    found = fr.ops.loss_head(scores, target, ("loss", "accuracy"))
    return found["loss"], found["accuracy"]


def plain_head(scores, target):
    right = (scores.detach().argmax(-1) == target).double().mean()
    return torch.nn.functional.cross_entropy(scores, target), right


def train(norm, head, images, labels):
    """64 pixels -> HIDDEN, normalised, rectified -> 10 scores; loss and accuracy of every step."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(64, HIDDEN), norm(HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10)
    ).double()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    told = []
    for _ in range(STEPS):
        rows = torch.randint(len(images), (BATCH,))
        loss, accuracy = head(network(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told.append((loss.item(), float(accuracy)))
    return np.array(told)  # (STEPS, 2)


def train_both(pixels, labels):
    """The two trainings from one seed: the same losses, but for rounding."""
    images = pixels.double() / 16
    curves = {
        name: train(norm, head, images, labels)
        for name, norm, head in (
            ("plain PyTorch", torch.nn.LayerNorm, plain_head),
            ("fused", fr.nn.LayerNorm, fused_head),
        )
    }
    for name, told in curves.items():
        loss, accuracy = told[-20:].mean(0)
        print(
            f"{name:<14} loss {told[0, 0]:.4f} at first, {loss:.4f} over the last 20 steps,",
            end=" ",
        )
        print(f"accuracy {accuracy:.4f}")
    plain, fused = (told[:, 0] for told in curves.values())
    difference = np.abs(plain - fused)
    print(f"losses differ by {difference[:20].max():.0e} in the first 20 steps,", end=" ")
    print(f"by {difference.max():.0e} in all {STEPS}")
    assert difference[:20].max() <= 1e-5
    assert difference[-1] <= 0.01 * plain[-1]
    return curves


# ---- the picture -------------------------------------------------------------------------------

INK, RIGHT, WRONG = "#222222", "#4477aa", "#cc3311"


def draw(pixels, labels, entropy, predicted, curves):
    """Mean and variance of each digit, entropies, the least certain digits, both trainings."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 9, "text.color": INK, "axes.labelcolor": INK})
    figure = plt.figure(figsize=(14.5, 6.8), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1, 1.25))
    draw_classes(top, pixels, labels)
    left, right, last = bottom.subfigures(1, 3, width_ratios=(1, 1.1, 1))
    truth = labels[FITTED:]
    draw_entropies(left, entropy, predicted == truth)
    draw_uncertain(right, pixels[FITTED:], entropy, predicted, truth)
    draw_training(last, curves)
    BUILD.mkdir(exist_ok=True)
    path = BUILD / "demo.png"
    figure.savefig(path, dpi=150)
    return path


def draw_classes(figure, pixels, labels):
    figure.suptitle("Mean (above) and variance (below) of each digit's pixels, both from one pass")
    axes = figure.subplots(2, 10, gridspec_kw={"hspace": 0.02})
    for digit in range(10):
        moments = fr.reduce(Moments, pixels[labels == digit], dim=0)
        for axis, name, colours, top in zip(
            axes[:, digit], ("mean", "var"), ("gray_r", "magma"), (16, 45), strict=True
        ):
            axis.imshow(moments[name].reshape(8, 8), cmap=colours, vmin=0, vmax=top)
            axis.set(xticks=[], yticks=[])
        axes[0, digit].set_title(digit)


def draw_entropies(figure, entropy, right):
    figure.suptitle("How certain the model was")
    axes = figure.subplots(2, 1, sharex=True)
    bins = np.linspace(0, float(entropy.max()), 31)
    for axis, chosen, colour, name in zip(
        axes, (right, ~right), (RIGHT, WRONG), ("right", "wrong"), strict=True
    ):
        axis.hist(entropy[chosen].numpy(), bins, color=colour)
        axis.set(yscale="log", ylim=(0.7, 1000), ylabel="digits")
        text = f"{name}: {int(chosen.sum())} digits, {entropy[chosen].mean():.2f} nats on average"
        axis.text(0.97, 0.85, text, color=colour, ha="right", transform=axis.transAxes)
        axis.spines[["top", "right"]].set_visible(False)
    axes[-1].set_xlabel("entropy of the scores, in nats")


def draw_uncertain(figure, pixels, entropy, predicted, truth):
    figure.suptitle("The least certain digits")
    worst = entropy.argsort(descending=True)[:10].tolist()
    for axis, k in zip(figure.subplots(2, 5).flat, worst, strict=True):
        wrong = predicted[k] != truth[k]
        text = f"said {predicted[k]}, is {truth[k]}" if wrong else f"said {predicted[k]}, right"
        axis.imshow(pixels[k].reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
        axis.set(xticks=[], yticks=[])
        axis.set_title(text, color=WRONG if wrong else RIGHT)
        axis.set_xlabel(f"{entropy[k]:.2f} nats")


def draw_training(figure, curves):
    figure.suptitle(f"A network trained for {STEPS} steps")
    axis = figure.subplots()
    styles = (dict(color=WRONG, linewidth=4, alpha=0.35), dict(color=RIGHT, linewidth=1.2))
    for (name, told), style in zip(curves.items(), styles, strict=True):
        axis.plot(told[:, 0], label=name, **style)
    axis.set(yscale="log", xlabel="step", ylabel="loss of a batch")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)


if __name__ == "__main__":
    run_interpreted() if sys.argv[1:] == [INTERPRETED] else main()
