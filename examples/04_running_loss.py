"""A running loss that survives a restart: the state of a stream, saved in the middle of a run.

Softmax regression on scikit-learn's 1,797 handwritten digits. Three images are damaged on purpose:
the loss of a batch that holds one is NaN, and its step is skipped. The run is done once without a
break, and once in two halves with torch.save and torch.load between them.

Prints:

    LossStatistics: a lawful merge; what it computes was not stated
      Proved    identity, associativity
      facts     not commutative, gradient by the unfused run
      hash      74b598

                   steps     mean     last  largest  not finite
    without break    140   0.5806   0.2579   2.3421          15
    first half        70   0.8825   0.3384   2.3421           7
    restarted        140   0.5806   0.2579   2.3421          15

    after the restart, losses and weights have the bits of the run without a break
"""

import io

import torch
from sklearn.datasets import load_digits

import fusedreduce as fr
from fusedreduce.reductions import LossStatistics

STEPS, BATCH = 140, 64
digits = load_digits()
pixels = torch.as_tensor(digits.data, dtype=torch.float32) / 16  # (1797, 64)
labels = torch.as_tensor(digits.target)  # (1797,)
pixels[[100, 700, 1500], 0] = float("nan")


class Run:
    """A training, and all that a restart of it needs."""

    def __init__(self):
        torch.manual_seed(0)
        self.step = 0
        model = torch.nn.Linear(64, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.parts = {"model": model, "optimizer": optimizer, "losses": fr.stream(LossStatistics)}

    def train(self, until):
        model, optimizer, losses = self.parts.values()
        for step in range(self.step, until):
            images, targets = batch(step)
            loss = torch.nn.functional.cross_entropy(model(images), targets)
            losses.update(loss.detach())
            optimizer.zero_grad()
            if torch.isfinite(loss):
                loss.backward()
                optimizer.step()
        self.step = until
        return self

    def save(self, file):
        states = {name: part.state_dict() for name, part in self.parts.items()}
        torch.save({"step": self.step, **states}, file)

    def load(self, file):
        saved = torch.load(file)
        self.step = saved["step"]
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])
        return self

    def bits(self):
        values = *self.parts["losses"].value().values(), *self.parts["model"].state_dict().values()
        return [v.numpy().tobytes() for v in values]


def batch(step):
    """A function of the step alone: each epoch in an order of its own."""
    epoch, k = divmod(step, len(labels) // BATCH)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    rows = order.split(BATCH)[k]
    return pixels[rows], labels[rows]


def report(what, run):
    row = "{mean:>8.4f} {last:>8.4f} {largest:>8.4f} {nonfinite:>11}"
    print(f"{what:<14} {run.step:>5}", row.format(**run.parts["losses"].value()))


def main():
    # Its merge keeps the last loss, so it does not commute: it is run in the order of the steps.
    print(f"{fr.prove(LossStatistics)}\n")
    print(f"{'':<14} {'steps':>5} {'mean':>8} {'last':>8} {'largest':>8} {'not finite':>11}")
    report("without break", whole := Run().train(STEPS))
    report("first half", half := Run().train(STEPS // 2))
    half.save(file := io.BytesIO())  # or a path
    file.seek(0)
    report("restarted", rest := Run().load(file).train(STEPS))

    assert rest.bits() == whole.bits()
    print("\nafter the restart, losses and weights have the bits of the run without a break")


if __name__ == "__main__":
    main()
