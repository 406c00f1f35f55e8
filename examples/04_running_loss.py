"""A running loss that survives a restart: the state of a stream, saved in the middle of a run.

Softmax regression on scikit-learn's 1,797 handwritten digits. Three images are damaged on purpose:
the loss of a batch that holds one is NaN, and its step is skipped. The run is done once without a
break, and once in two halves with torch.save and torch.load between them.

Prints:

"""

import io

import torch
from sklearn.datasets import load_digits

import fusedreduce as fr
from fusedreduce.reductions import LossStatistics

STEPS, BATCH = 400, 64

digits = load_digits()
pixels = torch.as_tensor(digits.data, dtype=torch.float32) / 16  # (1797, 64)
labels = torch.as_tensor(digits.target)  # (1797,)
pixels[[100, 700, 1500], 0] = float("nan")


class Run:
    """All that a restart needs: the model, its optimizer, the running loss, the step."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Linear(64, 10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.losses = fr.stream(LossStatistics)
        self.step = 0

    def train(self, until):
        while self.step < until:
            images, targets = batch(self.step)
            loss = torch.nn.functional.cross_entropy(self.model(images), targets)
            self.losses.update(loss.detach())
            if torch.isfinite(loss):
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.step += 1
        return self

    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "losses": self.losses}

    def save(self, file):
        state = {name: part.state_dict() for name, part in self.parts().items()}
        torch.save({"step": self.step, **state}, file)

    def load(self, file):
        saved = torch.load(file)
        for name, part in self.parts().items():
            part.load_state_dict(saved[name])
        self.step = saved["step"]
        return self


def batch(step):
    """The batch is a function of the step alone: each epoch in an order of its own."""
    epoch, k = divmod(step, len(labels) // BATCH)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    rows = order[k * BATCH : (k + 1) * BATCH]
    return pixels[rows], labels[rows]


def report(what, run):
    told = {name: float(v) for name, v in run.losses.value().items()}
    print(f"{what:<14} {run.step:>5}", end="")
    print(" {mean:>8.4f} {last:>8.4f} {largest:>8.4f} {nonfinite:>10.0f}".format(**told))


def bits(run):
    values = (*run.losses.value().values(), *run.model.state_dict().values())
    return [v.numpy().tobytes() for v in values]


def main():
    # The state is kept in order: a merge that has a last element does not commute. It is proved that
    # the grouping does not matter; that a formula such as x[-1] is what comes out is not stated.
    print(f"{fr.prove(LossStatistics)}\n")
    print(f"{'':<14} {'steps':>5} {'mean':>8} {'last':>8} {'largest':>8} {'not finite':>10}")

    whole = Run().train(STEPS)
    report("without break", whole)

    first = Run().train(STEPS // 2)
    report("first half", first)
    file = io.BytesIO()  # or a path
    first.save(file)

    file.seek(0)
    second = Run().load(file).train(STEPS)
    report("restarted", second)

    assert bits(second) == bits(whole)
    print("\nthe losses and the weights have the same bits")


if __name__ == "__main__":
    main()
