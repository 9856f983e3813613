"""The help page: groups with their options, keys with their defaults, written from the schemas themselves."""

import ast
import dataclasses
import inspect
import itertools
from enum import Enum
from pathlib import Path
from typing import Any

from runner.door.schema import config_folder, groups, options

EXAMPLES = """\
Examples
  python -m runner                                            the small model that comes with runner
  python -m runner model.path=DIR precision=auto              a checkpoint folder, in the best precision that fits
  python -m runner model=hf model.id=Qwen/Qwen3-1.7B workload=plan    does it fit? before any download
  python -m runner hardware=tesla_t4_16gb workload=plan       would it fit on a card that is not here?
  python -m runner sweep.resume=outputs/multirun/DATE/TIME    run what a sweep lacks, or what failed in it
  python -m runner -m precision=fp32,bf16,fp16 memory=checkpointing_on,checkpointing_off workload=train
  python -m runner -m seed=0,1,2,3 hydra.launcher.n_jobs=2    up to two jobs at once, as far as their predicted memory
                                                              fits together; each gets its share of the CPUs

Exit codes
  0 completed · 2 the request is wrong · 3 refused: it does not fit · 4 out of memory · 5 the workload failed
  130 interrupted. A sweep exits with the highest code among its jobs.

Hydra's own flags work too: -m (sweep), --cfg job (show), --info, --config-dir DIR (your own options), --hydra-help."""


def help_page() -> str:
    """Return the page that --help prints."""
    lines = [
        "Run a model on the memory there is: the runner finds the way that fits, says so, does it, and records it.",
        "",
        "python -m runner [GROUP=OPTION …] [KEY=VALUE …]",
        "",
        "Options of the groups",
    ]
    for group in groups():
        default = _defaults()[group]
        lines.append(f"  {group}={default} (default)")
        lines += [f"    {option:<20} {_first_comment(group, option)}" for option in options(group)]
    lines += ["", "Keys"]
    for group, kind in groups().items():
        lines += [_key_line(f"{group}.{name}", default, text) for name, default, text in documented(kind)]
    from runner.config import RunConfig

    lines += [_key_line(n, d, text) for n, d, text in documented(RunConfig) if n not in groups()]
    return "\n".join([*lines, "", EXAMPLES])


def documented(kind: type[Any]) -> list[tuple[str, Any, str]]:
    """Return (name, default, one-line doc) of a dataclass's fields; the doc is the string below each field."""
    body = next(
        node.body
        for node in ast.parse(inspect.getsource(kind)).body
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__
    )
    docs: dict[str, str] = {}
    for node, following in itertools.pairwise(body):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            docs[node.target.id] = str(following.value.value)
    fields = kind.__dataclass_fields__
    return [(name, _default_of(fields[name]), docs.get(name, "")) for name in fields]


def _default_of(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _key_line(key: str, default: Any, text: str) -> str:
    value = default.value if isinstance(default, Enum) else default
    if isinstance(value, list):
        value = f"[{','.join(map(str, value))}]"
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
    return f"  {f'{key}={shown}':<34} {text}"


def _first_comment(group: str, option: str) -> str:
    path = config_folder() / group / f"{option}.yaml"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    comments = [line.lstrip("# ") for line in lines if line.startswith("#") and "@package" not in line]
    return comments[0] if comments else ""


def _defaults() -> dict[str, str]:
    import yaml

    values = yaml.safe_load(Path(config_folder() / "run.yaml").read_text(encoding="utf-8"))
    return {
        name: option
        for item in values["defaults"]
        if isinstance(item, dict)
        for name, option in item.items()
        if name in groups()
    }
