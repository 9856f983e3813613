"""A process of its own that lists a model's tensors: ``python -m runner.checkpoint.skeleton``.

It reads config.json's values from standard input, builds the class on the meta device (no memory, no values) and
writes JSON to standard output: ``tensors`` (name, dtype, shape, kind of first values), ``tied`` (kept, shared with
it). The caller stays free of torch.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

MARK = "skeleton:"
"""starts the line that holds the answer; libraries may print lines of their own"""


def list_tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors of the model that config `values` describe, shared ones once, floating ones in bfloat16."""
    import torch
    import transformers

    wanted = {key: value for key, value in values.items() if key not in ("model_type", "dtype")}
    config = transformers.AutoConfig.for_model(values["model_type"], **wanted)
    with torch.device("meta"):
        model = getattr(transformers, values["architectures"][0])(config)
        model.tie_weights()
    kinds = {
        f"{prefix}.{name}" if prefix else name: _kind(model, module, name)
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in (*module._parameters, *module._buffers)
    }
    groups: dict[int, list[str]] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        groups.setdefault(id(tensor), []).append(name)
    copies = _declared_copies(model)
    tensors, tied = [], []
    for names in groups.values():
        kept = next((name for name in names if not copies(name)), names[0])
        tied += [[kept, name] for name in names if name != kept]
        tensor = state[kept]
        dtype = "bfloat16" if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
        tensors.append([kept, dtype, list(tensor.shape), kinds[kept]])
    return {"tensors": tensors, "tied": tied}


def _declared_copies(model: Any) -> Any:
    """Return a test whether transformers leaves a name out when it saves: a list of patterns in 4, a dict in 5."""
    import re

    expand = getattr(model, "get_expanded_tied_weights_keys", None)
    if expand is not None:
        names = set(expand(all_submodels=True))
        return names.__contains__
    patterns = [re.compile(pattern) for pattern in model._tied_weights_keys or ()]
    return lambda name: any(pattern.search(name) for pattern in patterns)


def _kind(model: Any, module: Any, name: str) -> str:
    """Return ones, zeros or normal: what the class itself starts norms with, zeros for biases, else normal."""
    tensor = getattr(module, name)
    if name in ("running_var", "original0", "weight_g"):
        return "ones"
    if tensor is None or not tensor.is_floating_point() or name in ("running_mean", "bias", "final_logits_bias"):
        return "zeros"
    if "norm" in type(module).__name__.lower() and tensor.dim() == 1:
        return _start_of_norm(model, module, name)
    return "normal"


def _start_of_norm(model: Any, module: Any, name: str) -> str:
    """Gemma's norms multiply by 1 + weight and start at 0; ask the class instead of knowing each."""
    import copy

    import torch

    try:
        real = copy.deepcopy(module).to_empty(device="cpu")
        with torch.no_grad():
            getattr(real, name).fill_(0.5)
            model._init_weights(real)
        return "zeros" if not getattr(real, name).any() else "ones"
    except (AttributeError, NotImplementedError, RuntimeError):
        return "ones"


def main() -> None:
    """Answer the one question on standard input."""
    print(MARK + json.dumps(list_tensors(json.load(sys.stdin))), flush=True)


if __name__ == "__main__":
    main()
