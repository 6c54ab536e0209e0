# SPDX-License-Identifier: Apache-2.0
"""Small modules, one for each thing that a module may do: what is exported of them is held against autograd."""

import torch
import torch.nn as nn
from torch.nn import functional as F

MODELS = {}


def model(*shapes, integers=False):
    """Registers a module with the shapes of its arguments: reals drawn at random, or integers below 7."""
    def register(cls):
        MODELS[cls.__name__] = (cls, shapes, integers)
        return cls

    return register


def make(name, dtype, sizes=None):
    """The module and its arguments; `sizes` replaces names in shapes."""
    cls, shapes, integers = MODELS[name]
    shapes = [[(sizes or {}).get(d, {"b": 2, "n": 5}.get(d, d)) for d in shape] for shape in shapes]
    torch.manual_seed(0)
    module = cls().to(dtype)
    return module, tuple(torch.randint(7, shape) if integers else torch.randn(shape, dtype=dtype) for shape in shapes)


class Two(nn.Module):
    """Two linear layers of width 4."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)


@model(["b", "n"], ["b", "n"], integers=True)
class TiedText(nn.Module):
    """The embedding is the head too; a causal mask is a buffer."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(7, 4), nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.tril(torch.ones(9, 9)))

    def forward(self, tokens, targets):
        x, n = self.embed(tokens), tokens.shape[1]
        x = x + (self.mask[:n, :n] / self.mask[:n, :n].sum(1, keepdim=True)) @ self.mix(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), targets.flatten())


@model(["b", "n", 4])
class Frozen(Two):
    def __init__(self):
        super().__init__()
        self.second.requires_grad_(False)
        self.first.bias.requires_grad_(False)

    def forward(self, x):
        return self.second(self.first(x).tanh()).pow(2).mean()


@model(["b", "n", 4])
class LowRank(nn.Module):
    """A frozen layer and a trained correction of low rank."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False)

    def forward(self, x):
        return (self.base(x) + 0.5 * self.up(self.down(x))).pow(2).mean()


@model(["b", 3, 8, 8])
class Norms(nn.Module):
    """Statistics of a batch norm, and how often they were updated, are buffers."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3, stride=2))
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, images):
        return self.norm(self.stem(images)).pow(2).mean() + F.interpolate(images, scale_factor=2).mean() * self.norm.bias.sum()


@model(["b", "n", 4])
class Nested(nn.Module):
    """Modules in lists and dicts, one that is called twice, and layers of recurrent ones."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"inner": nn.Linear(4, 4), "out": nn.Linear(4, 4)}) for _ in range(2))
        self.shared, self.recurrent = nn.Linear(4, 4), nn.GRU(4, 4, batch_first=True)

    def forward(self, x):
        for block in self.blocks:
            x = x + self.shared(block["out"](F.gelu(block["inner"](x))))
        return self.recurrent(x)[0].pow(2).mean()


@model(["b", "n", 4])
class WithoutGradients(Two):
    """no_grad, detach and .data each end a gradient."""

    def forward(self, x):
        with torch.no_grad():
            target = self.second(x)
        y = self.first(x)
        return (y - target).pow(2).mean() + (y * y.detach()).mean() + (self.second.weight.data * self.first.weight).sum()


@model(["b", "n", 4])
class NestedModes(Two):
    """no_grad within an autocast, an autocast within no_grad, and enable_grad within that."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            y = self.first(x)
            with torch.no_grad():
                target = self.second(self.first(2 * x))
                with torch.enable_grad():
                    z = self.second(y)
                target = target + self.second(target)
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            other = self.first(y)
        return (y * target).mean() + (z * other).mean()


@model(["b", "n", 4])
class AssignedBuffer(Two):
    """Buffers that are updated in place, and that are assigned."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(3))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean((0, 1)).detach()
        self.steps += 1
        return (self.second(self.first(x)) - self.mean).pow(2).mean() / self.steps


@model(["b", "n", 4])
class Indexing(Two):
    """Writes into parts of values, joins, splits, sorts; an index with a place that is left out."""

    def forward(self, x):
        y = self.first(x)
        y[:, 0] = 0
        y = torch.cat([y, self.second(x)[:, 1:]], 1)
        a, b = y.chunk(2, -1)
        rows = torch.arange(x.shape[0])
        top = torch.topk(a.flatten(1), 2).values
        return (a * b).cumsum(1).pow(2).mean() + y[rows, 0].sum() + y[:, :, [0, 2]].mean() + top.pow(2).sum() + torch.stack([a, b]).max()


@model(["b", "n", 4])
class Numbers(Two):
    """Numbers among tensors keep the dtypes that PyTorch gives."""

    def forward(self, x):
        whole = (x * 3).long()
        y = self.first(x) * 0.3 + whole * 2 + (whole * 2.5) + (x > 0.3) * 2
        return (y ** 2).mean() + (1 / (2 + y.abs())).sum() + (3 - y).clamp(min=0.1, max=float("inf")).mean() + self.second(x.half().to(x.dtype)).sum()


@model(["b", "n", 4])
class Autocast(Two):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.first(x)
        return y.float().pow(2).mean() + self.second(x).float().pow(2).mean()


@model(["b", "n", 4])
class Checkpointed(Two):
    """Recomputation is another's business: the graph has each value once."""

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        y = checkpoint(lambda v: self.first(v).relu(), x, use_reentrant=False)
        return checkpoint(lambda v: self.second(v).relu(), y, use_reentrant=True).pow(2).mean()


@model(["b", "n", 4])
class Constants(Two):
    """Tensors made while the module runs."""

    def forward(self, x):
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=x.dtype)
        position = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
        return (self.first(x) * scale + self.second(x) * position + torch.zeros_like(x) + torch.full((4,), 0.5, dtype=x.dtype)).pow(2).mean()


@model(["b", "n", 4], ["b"])
class Counted(Two):
    """The mean over what a mask chooses, and a mean over a size."""

    def forward(self, x, chosen):
        mask = (chosen > -10).to(x.dtype)
        each = self.second(self.first(x)).pow(2).sum((1, 2))
        return (each * mask).sum() / mask.sum() + each.sum() / x.shape[1]


@model(["b", "n", 4])
class Parametrized(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))

    def forward(self, x):
        return self.spectral(self.weight(x)).pow(2).mean()


@model(["b", "n", 4])
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.layer(self.attention(x, x, x, attn_mask=mask)[0], src_mask=mask).pow(2).mean()


@model(["b", "n", 4])
class RemembersForItsUser(Two):
    """Keeps values in attributes that it does not read again, and sets up at the first step what it keeps."""

    ready = None

    def forward(self, x):
        if self.ready is None:
            self.ready, self.factor = True, 2
        y = self.first(x)
        self.seen = y
        return self.second(y * self.factor).pow(2).mean()
