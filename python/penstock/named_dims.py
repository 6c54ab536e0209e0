# SPDX-License-Identifier: Apache-2.0
"""Names of the dims of a module's parameters, and the axes over which they are split."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence

import torch

from .errors import PenstockError, did_you_mean

# A dim of a parameter: its name ("": none), of how many equal blocks it is, and how many equal units each block has (0: its elements). Members
# get whole units of every block: the last dim of packed q, k and v is ("heads", 3, 12).
Dim = tuple[str, int, int]
Dims = tuple[Dim, ...]

# The axis over which dims of these names are split unless a layout says another: as [layout] of configurations.
LAYOUT = {"experts": "expert", "heads": "tensor", "mlp": "tensor", "sequence": "context", "vocab": "tensor"}


def dims(module: torch.nn.Module, rules: Mapping[str, Sequence] | None = None) -> dict[str, Dims]:
    """The names of dims of the module's parameters, as `trainer(dims=...)` takes them.

    `rules`: by a regular expression that is all of a parameter's name, an entry for each of its dims: None, a name ("mlp"), (name, units) or
    (name, blocks, units), of whose units members get whole ones. The first rule that fits a parameter counts:

        penstock.dims(module, {r".*\\.c_attn\\.weight": (None, ("heads", 3, 12)), r".*\\.c_proj\\.weight": (("heads", 12), None)})

    Without rules the module is one of Hugging Face, whose projections of attention, layers between two matrices of a block and embeddings are
    known by their names in GPT-2, Llama, BERT, T5 and what is named as these.

    Throws PenstockError for a rule that fits no parameter or is none, for entries that do not fit a parameter's shape, and without rules for a
    module of which nothing is known.
    """
    if rules is None:
        return _known_dims(module)
    patterns = {rule: _pattern(rule) for rule in rules}
    out, used = {}, set()
    for name, parameter in module.named_parameters():
        rule = next((rule for rule, pattern in patterns.items() if pattern.fullmatch(name)), None)
        if rule is not None:
            used.add(rule)
            out[name] = _dims_of(f'rule "{rule}"', name, parameter.shape, rules[rule])
    unused = [rule for rule in rules if rule not in used]
    if unused:
        raise PenstockError(f'the rule "{unused[0]}" fits no parameter, or those before it fit all that it does',
                            [f"parameters: {', '.join([name for name, _ in module.named_parameters()][:8])}, ..."],
                            'it has to be all of the name: ".*" stands for any part')
    return out


def _known_dims(module: torch.nn.Module) -> dict[str, Dims]:
    """Dims by the names that Hugging Face's modules have in common. A parameter of another shape than these have has none."""
    config = getattr(module, "config", None)
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int):
        raise PenstockError(f"{type(module).__name__} has no config with num_attention_heads, as modules of Hugging Face have",
                            hint=r'say rules: penstock.dims(module, {r".*\.up\.weight": ("mlp", None)})')
    fewer = getattr(config, "num_key_value_heads", None) or heads
    out = {}
    for name, parameter in module.named_parameters():
        for pattern, entries in hugging_face_rules(heads, fewer):
            if re.fullmatch(pattern, name) and len(entries) == parameter.dim():
                with contextlib.suppress(PenstockError):
                    out[name] = _dims_of("", name, parameter.shape, entries)
                break
    if not out:
        raise PenstockError(f"no parameter of {type(module).__name__} has a name whose dims are known",
                            [f"parameters: {', '.join([name for name, _ in module.named_parameters()][:8])}, ..."],
                            r'say rules: penstock.dims(module, {r".*\.up\.weight": ("mlp", None)})')
    return out


def hugging_face_rules(heads: int, key_heads: int) -> list[tuple[str, tuple]]:
    """(pattern, entry of each dim) for parameters of GPT-2 (whose matrices have inputs first), Llama, BERT and T5; the first that fits counts."""
    q, kv = ("heads", heads), ("heads", key_heads)
    return [
        (r".*attn\.c_attn\.weight", (None, ("heads", 3, heads))), (r".*attn\.c_attn\.bias", (("heads", 3, heads),)),
        (r".*attn\.c_proj\.weight", (q, None)), (r".*mlp\.c_fc\.weight", (None, "mlp")), (r".*mlp\.c_fc\.bias", ("mlp",)),
        (r".*mlp\.c_proj\.weight", ("mlp", None)),
        (r".*(q_proj|attention\.self\.query|Attention\.q)\.weight", (q, None)), (r".*(q_proj|attention\.self\.query)\.bias", (q,)),
        (r".*([kv]_proj|attention\.self\.(key|value)|Attention\.[kv])\.weight", (kv, None)),
        (r".*([kv]_proj|attention\.self\.(key|value))\.bias", (kv,)),
        (r".*(o_proj|attention\.output\.dense|Attention\.o)\.weight", (None, q)),
        (r".*(gate_proj|up_proj|intermediate\.dense|wi|wi_[01])\.weight", ("mlp", None)), (r".*(gate_proj|up_proj|intermediate\.dense)\.bias", ("mlp",)),
        (r".*(down_proj|output\.dense|wo)\.weight", (None, "mlp")),
        (r".*relative_attention_bias\.weight", ("buckets", q)),
        (r".*(wte|embed_tokens|word_embeddings|shared|lm_head)\.weight", ("vocab", "embed")),
    ]


def checked_dims(module: torch.nn.Module, given: Mapping[str, Sequence]) -> dict[str, Dims]:
    """Dims by parameter. Throws PenstockError for what is no parameter, and for dims that do not fit its shape."""
    shapes = {name: parameter.shape for name, parameter in module.named_parameters(remove_duplicate=False)}
    first = {id(parameter): name for name, parameter in reversed(list(module.named_parameters(remove_duplicate=False)))}
    out = {}
    for name, entries in given.items():
        if name not in shapes:
            raise PenstockError(f'dims: the module has no parameter "{name}"', hint=did_you_mean(name, shapes))
        out[first[id(module.get_parameter(name))]] = _dims_of("dims", name, shapes[name], entries)
    return out


def axes_of(sizes: Mapping[str, int], names: Mapping[str, str], layout: Mapping[str, str], given: Mapping[str, Dims]) -> list[tuple[str, int, set[str]]]:
    """The axes of several members by the user's `names`, with the names of dims along each; without any names of dims, with none.

    Throws PenstockError for a layout of dims or axes that are not there, for an axis without a dim, and for one of more members than a dim has units.
    """
    members = {names.get(axis, axis): size for axis, size in sizes.items()}
    units: dict[str, tuple[int, str]] = {}  # the fewest of each name, and where
    for parameter, entries in given.items():
        for name, _, count in entries:
            if name and (name not in units or count < units[name][0]):
                units[name] = (count, parameter)
    for name, axis in layout.items():
        if axis and axis not in members:
            raise PenstockError(f'layout={{"{name}": "{axis}"}}: there is no axis "{axis}"', [f"axes: {', '.join(members)}"], did_you_mean(axis, members))
        if name not in units:
            raise PenstockError(f'layout={{"{name}": "{axis}"}}: no dim of the module is named "{name}"',
                                [f"names: {', '.join(sorted(units))}"] if units else ["no dim of the module has a name"],
                                did_you_mean(name, units) if units else "dims=penstock.dims(module, ...)")
    usual = {name: LAYOUT.get(name, "") for name in units}
    axes = {name: names.get(axis, axis) for name, axis in usual.items()} | dict(layout)
    out = []
    for axis, size in members.items():
        along = {name for name, over in axes.items() if over == axis}
        if size == 1:
            continue
        if units and not along:
            raise PenstockError(f"{axis}={size}: nothing is split over axis {axis}", [f"names of dims: {', '.join(sorted(units))}"],
                                f'map a dim to it: layout={{"{next(iter(units))}": "{axis}"}}; without dims it is chosen')
        few = [name for name in along if units[name][0] < size]
        if few:
            count, parameter = units[few[0]]
            raise PenstockError(f'{axis}={size}: "{few[0]}" has {count} in {parameter}, fewer than members of the axis',
                                hint=f'a smaller {axis}, or layout={{"{few[0]}": ""}}')
        out.append((axis, size, along))
    return out


def _pattern(rule: str) -> re.Pattern:
    try:
        return re.compile(rule)
    except (re.error, TypeError) as error:
        raise PenstockError(f"{rule!r} is no regular expression: {error}", hint=r'r".*\.up\.weight": ("mlp", None)') from None


def _dims_of(rule: str, name: str, shape: Sequence[int], entries: Sequence) -> Dims:
    if isinstance(entries, str) or not isinstance(entries, Sequence) or len(entries) != len(shape):
        raise PenstockError(f"{rule}: {entries!r} are no names for the dims of {name}, which are {list(shape)}",
                            hint="an entry for each, None for one without a name")
    return tuple(_dim_of(rule, name, size, entry) for size, entry in zip(shape, entries, strict=True))


def _dim_of(rule: str, name: str, size: int, entry: object) -> Dim:
    parts = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) if isinstance(entry, (tuple, list)) else (entry,)
    if not parts:
        return "", 1, 0
    numbers = parts[1:]
    if not isinstance(parts[0], str) or len(numbers) > 2 or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers) or "," in parts[0]:
        raise PenstockError(f"{rule}: {entry!r} is no name of a dim of {name}", hint='None, "mlp", ("heads", units) or ("heads", blocks, units)')
    blocks, units = (numbers[0] if len(numbers) == 2 else 1), (numbers[-1] if numbers else 0)
    if not parts[0]:
        return "", 1, 0
    if blocks < 1 or units < 0 or size % blocks or (size // blocks) % (units or 1):
        raise PenstockError(f"{rule}: {entry!r} does not fit a dim of {size} of {name}", hint="blocks times units must divide the size")
    return parts[0], blocks, units or size // blocks
