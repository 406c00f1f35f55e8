"""A small language model, trained with fused attention, norms and loss, and beside it with torch's.

A decoder of two layers learns to write the docstrings of Python's standard library, a letter at a
time. Its attention is causal, with a learned preference for what is near (Press, Smith and Lewis
2022, with slopes that train). The two trainings differ in three functions: attention that stores
no scores, RMS norm, cross-entropy; their backwards are derived from the declarations. The losses
are the same but for rounding. A number after the file's name is how many steps to train; with
matplotlib the losses are drawn into build/language_model.png.

Prints:

    104945 letters of documentation, 94 different ones

    plain  loss 4.6295 at first, 2.2041 at last
    fused  loss 4.6295 at first, 2.2041 at last
    losses differ by 1e-15 at most in the first 20 steps

    Command-line parsing mat of the tenerwing and are to thent ustion te whites fient to pare
"""

import sys

import torch
from docstrings import documentation, draw
from torch import nn
from torch.nn import functional as F

import fusedreduce as fr

WIDTH, HEADS, LENGTH, BATCH, STEPS = 48, 4, 48, 8, 200


def fused_attention(q, k, v, slopes):
    near = fr.score(lambda s, b, h, i, j: s - slopes[h] * (i - j))
    return fr.attention(q, k, v, score_mod=near, is_causal=True)


def plain_attention(q, k, v, slopes):
    apart = (at := torch.arange(q.shape[2]))[:, None] - at  # (S, S)
    bias = (-slopes[:, None, None] * apart).masked_fill(apart < 0, float("-inf"))
    return F.scaled_dot_product_attention(q, k, v, bias)


class Layer(nn.Module):
    def __init__(self, attention, norm):
        super().__init__()
        self.attention, self.before, self.between = attention, norm(WIDTH), norm(WIDTH)
        self.slopes = nn.Parameter(2.0 ** (1 - torch.arange(HEADS)))
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):  # (B, S, WIDTH)
        qkv = self.project(self.before(x)).unflatten(-1, (3, HEADS, -1))  # (B, S, 3, H, D)
        out = self.attention(*qkv.permute(2, 0, 3, 1, 4), self.slopes)  # (B, H, S, D)
        x = x + self.out(out.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


def train(name, text, letters, steps, attention, norm, loss_of):
    """The model and the loss of every step; in float64, so that every machine finds the same."""
    torch.manual_seed(0)
    layers = [Layer(attention, norm) for _ in range(2)]
    ends = nn.Embedding(letters, WIDTH), norm(WIDTH), nn.Linear(WIDTH, letters)
    model, losses = nn.Sequential(ends[0], *layers, *ends[1:]).double(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3)
    for _ in range(steps):
        at = torch.randint(len(text) - LENGTH, (BATCH, 1)) + torch.arange(LENGTH)
        loss = loss_of(model(text[at]).flatten(0, 1), text[at + 1].flatten())
        loss.backward()
        optimizer.step(), optimizer.zero_grad()
        losses.append(loss.item())
    print(f"{name}  loss {losses[0]:.4f} at first, {sum(losses[-20:]) / 20:.4f} at last")
    return model, torch.tensor(losses, dtype=torch.float64)


@torch.no_grad()
def sample(model, x, count):
    """x (1, S) continued, by the model's probabilities, sharpened."""
    torch.manual_seed(0)
    for _ in range(count):
        p = fr.ops.softmax(model(x[:, -LENGTH:])[:, -1] / 0.6, dim=-1)
        x = torch.cat([x, torch.multinomial(p, 1)], 1)
    return x[0].tolist()


def main():
    torch.set_num_threads(1)  # the matrices are small
    letters = sorted(set(words := documentation()))
    text = torch.tensor([letters.index(c) for c in words])
    print(f"{len(words)} letters of documentation, {len(letters)} different ones\n")
    sizes = text, len(letters), int(sys.argv[1]) if sys.argv[1:] else STEPS
    _, plain = train("plain", *sizes, plain_attention, nn.RMSNorm, F.cross_entropy)
    model, fused = train("fused", *sizes, fused_attention, fr.nn.RMSNorm, fr.ops.cross_entropy)
    difference = (fused - plain).abs()
    print(f"losses differ by {difference[:20].max():.0e} at most in the first 20 steps\n")
    assert difference[:20].max() <= 1e-5
    assert difference[-1] <= 0.01 * plain[-1]
    draw(plain=plain, fused=fused)
    print("".join(letters[k] for k in sample(model, text[None, :20], 70)))


if __name__ == "__main__":
    main()
