"""
Flags from config files and the command line, in the look of nanoGPT but without exec.

    python train.py config/warmup_math.py --n_models=4 --learning_rate=1e-3

Arguments are read from left to right and later ones win. A config file holds assignments of
literals to known names and comments, nothing else; it is parsed, never executed.
"""
import ast
import difflib
import math
import os


def parse(flags, argv):
    """A new dict with the names of `flags` (name -> default value) and the values of `argv`.

    A value has the type of its default: bool, int, float or str. What loses nothing is accepted
    (1e3 for an int, 1 for a float, true for a bool). Raises SystemExit with one line otherwise.
    """
    flags = dict(flags)
    for arg in argv:
        if arg.startswith("--") and "=" in arg:
            name, value = arg[2:].split("=", 1)
            flags[name] = convert(flags, name, value, "command line")
        elif arg.startswith("-") or "=" in arg and not os.path.isfile(arg):
            name = arg.lstrip("-").split("=", 1)[0]
            value = arg.split("=", 1)[1] if "=" in arg else "VALUE"
            raise SystemExit(f"argument {arg}: write --{name}={value}")
        else:
            for name, value, line in read_config(arg):
                flags[name] = convert(flags, name, value, f"{arg}, line {line}")
    return flags


def read_config(path):
    """(name, literal, line) of a config file's flags; looked for here, then beside this script."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), path)
    found = next((p for p in (path, beside) if os.path.isfile(p)), None)
    if found is None:
        raise SystemExit(f"argument {path}: no such config file; flags are written --name=value")
    flags, line = [], 1
    try:
        with open(found, encoding="utf-8-sig") as file:
            body = ast.parse(file.read()).body
        for line, assignment in ((part.lineno, part) for part in body):
            (target,) = assignment.targets
            flags.append((target.id, ast.literal_eval(assignment.value), line))
    except (SyntaxError, ValueError, AttributeError, MemoryError, RecursionError) as error:
        line = getattr(error, "lineno", None) or line
        raise SystemExit(f"{path}, line {line}: only lines like name = 3 or name = \"text\" may "
                         "stand there, in UTF-8") from None
    return flags


def convert(flags, name, value, origin):
    """`value` (text or a literal) in the type of flags[name]."""
    if name not in flags:
        near = difflib.get_close_matches(name, flags, 1, 0.0)[0]
        raise SystemExit(f"{origin}: unknown flag {name}; did you mean {near}?")
    kind, text = type(flags[name]), str(value).strip()
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if kind is str:
            return os.path.expanduser(str(value))
        number = int(text) if text.lstrip("+-").isdecimal() else float(text)
        if isinstance(value, bool) or not math.isfinite(number) or kind(number) != number:
            raise ValueError
        return kind(number)
    except (KeyError, ValueError, OverflowError):
        wanted = {bool: "True or False", int: "a whole number", float: "a number"}[kind]
        raise SystemExit(f"{origin}: {name}={value} should be {wanted}") from None


def read_section(path, title):
    """The lines of a script from the rule above `title` to the next rule: what --help prints."""
    with open(path, encoding="utf-8") as file:
        parts = file.read().split("# " + "-" * 98 + "\n")
    return next(part for part in parts if part.startswith(f"# {title}")).strip()
