"""Reads the folders that train.py leaves and prints what they show, as plain text.

    python analyze.py                       every nonlinearity (rows) on every data set (columns)
    python analyze.py --by=types            specialists (NAME/TYPE) beside the generalist (NAME)
    python analyze.py curves                iterations and tokens to the baseline's final loss
    python analyze.py splines [FILE ...]    the learned functions, their numbers and distances
    python analyze.py controls FILE ...     control splines beside a learned splines.json
    python analyze.py basins RUN ...        loss at random distances from the trained weights
    python analyze.py quantize RUN ...      loss with 8, 6 and 4 bits, kurtosis of the layers
    python analyze.py speed                 operator, training step, warm-up, beside GELU
    python analyze.py plan --sources=a,b --targets=a,b --seeds=0,1 --rates=1e-3,2e-3
                                            the train.py commands still missing, one a line
The last four also take train.py's flags: basins and quantize in place of the run's, plan to hand
them on, with config files, and --warmup_NAME=value for warm-ups alone; DATASET:CONTROL is a source.
"""
import copy
import itertools
import json
import math
import os
import shlex
import signal
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import configurator
from train import (BOOKKEEPING, BUILT_IN, DEFAULTS, GPT, HERE, Spline, add_spline_gradients,
    check_flags, check_result, check_row, check_types, evaluate, get_acts, give_up, load_checkpoint,
    load_json, load_splines, make_config, make_model, make_optimizers, make_splines, name_run,
    read_dataset, save_json, step_splines, update_model)

# --------------------------------------------------------------------------------------------------
# flags
out_dir = "out"         # folder that holds the runs' folders
metric = ""             # matrix, curves: names in result.json's "last", "outside.mlp" looks inside;
                        # the first counts, others come along; "": answer_loss or else val_loss
by = "rows"             # matrix: rows | types
baseline = "gelu"       # matrix, curves: the row that the others are held against
weights = "last"        # basins, quantize: last | average (of runs that have it)
png = ""                # splines, quantize: picture to write; "": none
sources = ""            # plan: data sets to learn splines on, comma between
targets = ""            # plan: data sets to train on; matrix, curves: only these; "": all
seeds = "0"             # plan: comma between
rates = "6e-4"          # plan: learning rates of baselines and transfers, comma between
warmup_rate = ""        # plan: learning rate of the warm-ups; "": the first of rates

# --------------------------------------------------------------------------------------------------
# runs and cells
NOT_SETTINGS = {*BOOKKEEPING, "mode", "dataset", "learning_rate", "splines"}
SPLINE_FLAGS = {"mlp_act", "attn_act", "parts", "n_knot", "spline_range", "spline_init", "n_models",
                "share_layers", "stagger", "spline_lr", "spline_data"}  # idle in plain baselines
CONTROLS = ("gelu", "scaled", "line", "scaled_line", "shuffled")
HIGHER_IS_BETTER = ("accuracy", "exact_match")

def get_mark(data):
    """Of the sha256 of a data set's files: two of the same name are two columns."""
    return f"#{str(data.get('train'))[:4]}{str(data.get('val'))[:2]}"

def place_run(flags, source, data):
    """(settings as JSON, row, column): runs share a cell only where all three are equal.

    A row is (order, name, marks); marks name what was unusual where its splines were learned.
    """
    name, order, marks = "+".join(get_acts(SimpleNamespace(**flags))), 0, []
    settings = {k: v for k, v in flags.items() if k not in NOT_SETTINGS | SPLINE_FLAGS | {"seed"}}
    usual = flags | {k: DEFAULTS[k] for k in SPLINE_FLAGS}
    learned = flags if "spline" in name and source is None else {}
    if source is not None:
        learned, order = source["flags"] or {}, 3 if source["control"] else 1
        marks = [source["tokenizer"], source.get("data") and get_mark(source["data"]),
                 source["control"], name != "spline+spline" and name,
                 f"at {learned['learning_rate']:g}" if "learning_rate" in learned else
                 f"#{source['sha256'][:6]}"]
        name = source["dataset"] or "file"
    marks += [f"{k}={v}" for k, v in learned.items() if v != usual.get(k) and k not in NOT_SETTINGS]
    marks = " ".join(filter(None, marks)).replace("scramble=True", "scrambled")
    row = (2 if order == 1 and "scrambled" in marks else order, name.removesuffix("+none"), marks)
    return json.dumps(settings, sort_keys=True), row, f"{flags['dataset']} {get_mark(data)}"

def read_runs(out_dir):
    """One dict per run: dir, place, log and all that flags.json and result.json hold."""
    runs = []
    for folder in sorted(path.parent for path in Path(out_dir).rglob("flags.json")):
        run = {"dir": folder, "status": "unfinished", "last": {}, "log": []}
        try:
            run |= load_json(path := folder / "flags.json")
            check_types(run["flags"])
            run["place"] = place_run(run["flags"], run["source"], run["data"])
            [run["flags"][name] for name in ("mode", "seed", "learning_rate")]
            hash(run["place"]), ((run["source"] or {}).get("model_iters") or 0) + 0     # a number
            if (path := folder / "result.json").exists():
                check_result(result := load_json(path), run["flags"]["max_iters"])
                run |= result
            if (path := folder / "log.jsonl").exists():
                run["log"] = [json.loads(row) for row in path.read_text("utf-8").splitlines()]
                [*map(check_row, run["log"])]
                if run["status"] == "finished" and run["log"][-1] != run["last"]:
                    raise ValueError
            runs.append(run)
        except Exception:               # whatever a damaged file comes up with
            print(f"{path} is damaged or of another version, its run is left out", file=sys.stderr)
    return runs

def read_cells(flags):
    """[(what differs, cells)] per setting, cells: {(row, column): {(rate, seed): run}}."""
    groups = {}
    for run in sorted(read_runs(flags.out_dir), key=lambda run: run["status"] != "finished"):
        (settings, row, column), mine = run["place"], run["flags"]
        if mine["mode"] != "warmup" and mine["dataset"] in split(flags.targets or mine["dataset"]):
            cell = groups.setdefault(settings, {}).setdefault((row, column), {})
            key = mine["learning_rate"], mine["seed"]
            if cell.setdefault(key, run) is not run:
                other = ", but other splines" * (cell[key]["source"] != run["source"])
                print(f"{run['dir']} ({run['status']}) is left out: {cell[key]['dir']} has the same"
                      f" cell, rate and seed{other}", file=sys.stderr)
    if not groups:
        raise SystemExit(f"{flags.out_dir} holds no baseline or transfer run yet")
    found = [run for group in groups.values() for cell in group.values() for run in cell.values()]
    for name in split(flags.metric):
        values = [get_metric(run, name) for run in found if run["status"] == "finished"]
        if values and values.count(None) == len(values):
            known = dict.fromkeys(key for run in found for key in run["last"])
            raise SystemExit(f"metric={name} is in no result; there are {', '.join(known)}")
    names = {row[1] for cells in groups.values() for row, _ in cells}
    if flags.baseline not in names:
        message = f"baseline={flags.baseline} is no row, only {', '.join(names)}"
        if flags.baseline != baseline:
            raise SystemExit(message)
        print(message, file=sys.stderr)             # not asked for, and the rest can be shown
    every = [json.loads(settings).items() for settings in groups]
    return [(" ".join(f"{k}={v}" for k, v in mine if not all((k, v) in other for other in every)),
             cells) for mine, cells in zip(every, groups.values())]

def list_axes(cells, baseline):
    rows = sorted({row for row, _ in cells}, key=lambda row: (row[0], row[1] != baseline, row))
    return rows, sorted({column for _, column in cells})

def split(text):
    return [word.strip() for word in text.split(",") if word.strip()]

def get_metric(run, metric):
    """The number of that name in a run's last row; nan if the run failed, None if it has none."""
    last = run["last"]
    for name in (metric or ("answer_loss" if "answer_loss" in last else "val_loss")).split("."):
        last = last.get(name) if isinstance(last, dict) else None
    return math.nan if run["status"] == "failed" else None if isinstance(last, dict) else last

def show(*values):
    """Mean +- standard error; "-" where a value is missing."""
    form = ",.0f" if max(map(abs, values)) >= 100 else ".3f"
    error = f"+-{np.std(values, ddof=1) / len(values) ** 0.5:{form}}" if len(values) > 1 else ""
    return "-" if np.isnan(values).any() else f"{np.mean(values):{form}}{error}"

def judge_cell(cell, metrics):
    """What a cell shows at its best learning rate: text, mean, rate, judge, {seed: value}.

    The judge, the lowest seed that tried most rates, chooses the rate and counts only where it is
    the only seed or rate. A failed run is worse than any number and never left out.
    """
    metric, *more = metrics.split(",")
    done = {key: value for key, run in sorted(cell.items())
            if (value := get_metric(run, metric)) is not None}
    if not done:
        text = max([run["status"] for run in cell.values()], default="-")
        return {"text": text, "mean": math.nan, "rate": None, "judge": None, "seeds": {}}
    tried, sign = [seed for _, seed in done], -1 if metric.endswith(HIGHER_IS_BETTER) else 1
    judge = min(tried, key=lambda seed: (-tried.count(seed), seed))
    score = {rate: sign * value if math.isfinite(value) else math.inf
             for (rate, seed), value in done.items() if seed == judge}
    best, judge = min(score, key=score.get), judge if len(score) > 1 else None
    found = {seed: value for (rate, seed), value in done.items() if rate == best}
    seeds = {seed: value for seed, value in found.items() if seed != judge} or found
    values, last = [*seeds.values()], {seed: cell[best, seed]["last"] for seed in found}
    edge = f"/{len(score)}" + "<" * (best == min(score)) + ">" * (best == max(score))
    failed = f"failed {np.isnan(values).sum()}/{len(values)}" if np.isnan(values).any() else ""
    text = (f"{failed or show(*values)}\n{best:g}{edge * (judge is not None)} "
            f"{'same' if judge in seeds else f'n={len(seeds)}'}")
    for name in more:
        text += f"\n{name} {show(*(last[seed].get(name, math.nan) for seed in seeds))}"
    unseen = max([0, *(share for row in last.values() for name in ("outside", "unvisited")
                       for share in row.get(name, {}).values())])
    text += f"\nunseen {unseen:.0%}" * (unseen > 0.01)
    return {"text": text, "mean": np.mean(values), "rate": best, "judge": judge, "seeds": seeds}

# --------------------------------------------------------------------------------------------------
# matrix and curves
def get_paired_p(differences):
    """Two-sided p of a paired t test: at t = sqrt(n-1) tan(angle) a density cos(angle)**(n-2)."""
    n, angles = len(differences), np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angles) ** (n - 2)
    found = math.atan2(abs(np.mean(differences)), np.std(differences, ddof=1) * (1 - 1 / n) ** 0.5)
    return density[angles >= found].sum() / density.sum()

def mark_cells(judged, base, level=0.05):
    """(cells that differ from row base, number tested): paired t, 3 seeds at least, and Holm."""
    p, marked = {}, set()
    for (row, column), cell in judged.items():
        seeds = judged[base, column]["seeds"]
        pairs = [value - seeds[s] for s, value in cell["seeds"].items() if s in seeds]
        if row != base and len(pairs) >= 3 and np.isfinite(pairs).all():
            p[row, column] = get_paired_p(pairs)
    for i, key in enumerate(sorted(p, key=p.get)):
        marked |= {key} if p[key] <= level / (len(p) - i) and len(marked) == i else set()
    return marked, len(p)

def wrap(texts, width=16):
    return "\n".join(line for text in texts for line in textwrap.wrap(
        text, width, break_long_words=False))

def print_table(rows):
    """Aligned columns under a rule; a cell may have several lines."""
    rows = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*rows)]
    for i, row in enumerate(rows):
        for line in itertools.zip_longest(*row, fillvalue=""):
            print(" ".join(map(str.ljust, line, widths)).rstrip())
        if i == 0:
            print(" ".join("-" * width for width in widths))

def matrix(flags, files):
    """Rows: baselines, sources, controls; columns: targets. At own best rates, then equal ones."""
    if flags.by not in ("rows", "types"):
        raise SystemExit(f"by={flags.by} should be rows or types")
    for title, cells in read_cells(flags):
        cells = split_types(cells, flags.metric) if flags.by == "types" else cells
        if not cells:
            raise SystemExit("by=types: no run is on a data set with question types")
        rows, columns = list_axes(cells, flags.baseline)
        print(f"\n{flags.metric or 'validation loss (of answers if there are any)'} {title}"
              "\neach row at its own best learning rate")
        best = print_matrix(cells, rows, columns, flags.metric)
        if rows and rows[0][0] == 0 and flags.by == "rows":
            print(f"\nall rows at the best learning rate of {rows[0][1]}")
            equal = {}
            for (row, c), cell in cells.items():
                cell = {key: run for key, run in cell.items() if key[0] == best[rows[0], c]["rate"]}
                others = {key: cell[key] for key in cell if key[1] != best[rows[0], c]["judge"]}
                equal[row, c] = others or cell
            print_matrix(equal, rows, columns, flags.metric)
        judges = {cell["judge"] for cell in best.values()} - {None}
        print(f"+- standard error over n seeds; rate/best of how many, < > at the edge; seed "
              f"{judges or '-'} chose it\nand counts only if alone (same); unseen: inputs on knots "
              "never visited;\nmeans mix units of tokenizers, except in val_bits_per_byte")

def print_matrix(cells, rows, columns, metric):
    """Prints a matrix with its means and marks; gives back the judged cells."""
    judged = {(row, column): judge_cell(cells.get((row, column), {}), metric)
              for row in rows for column in columns}
    marked, n_test = mark_cells(judged, rows[0]) if rows and rows[0][0] == 0 else (set(), 0)
    table = [["", *(wrap([c], 13) for c in columns), "mean"]]
    for row in rows:
        mine = {c: judged[row, c] for c in columns}
        table.append([wrap(row[1:]), *(
            cell["text"].replace("\n", "*" * ((row, c) in marked) + "\n", 1)
            for c, cell in mine.items()), show(np.mean([x["mean"] for x in mine.values()]))])
    def average(*kinds):
        return np.array([np.mean([judged[row, c]["mean"] for row in rows if row[0] == 1 and
                        (row[1] == c.partition(" #")[0]) in kinds] or [math.nan]) for c in columns])
    every, gaps = average(True, False), average(True) - average(False)
    known = np.mean(gaps[gaps == gaps]) if (gaps == gaps).any() else math.nan
    table += [["mean of sources", *map(show, every), show(every.mean())],
              ["own - others", *map(show, gaps), show(known)]] * any(row[0] == 1 for row in rows)
    print_table(table if len(columns) < 8 else list(zip(*table)))
    if n_test:
        print(f"* differs from {rows[0][1]}: paired t over common seeds, 5 %, Holm over {n_test}")
    return judged

def split_types(cells, metric):
    """The cells with a column per type; rows are specialists (trained on NAME/TYPE, each at its
    best rate) and generalists (NAME, at the best rate for the mean); "own": from the same data set.
    """
    parts, tokens = {}, {}
    for (row, column), cell in cells.items():
        dataset, special, like = column.partition(" #")[0], "/" in column, judge_cell(cell, metric)
        last = {key: run["last"].get("by_type", {}) for key, run in cell.items()
                if key[0] == like["rate"] and key[1] in like["seeds"]}
        found = {dataset: cell} if special else {f"{dataset}/{kind}": {
            key: cell[key] | {"last": types.get(kind, {})} for key, types in last.items()}
            for kind in set().union(*last.values())}
        for name in {row[1], "own" if row[:2] == (1, dataset) else row[1]}:
            new = 2 * (row[0] > 0), name, f"{row[2]} {'specialists' if special else 'generalist'}"
            tokens[new] = tokens.get(new, 0) + max(run.get("tokens", 0) for run in cell.values())
            parts |= {(new, kind): one for kind, one in found.items()}
    return {((*row[:2], f"{row[2]}, {tokens[row]:,} tokens".strip()), kind): cell
            for (row, kind), cell in parts.items()}

def curves(flags, files):
    """Per target: iterations and tokens to the baseline's final loss, and the end-of-run drop."""
    for title, cells in read_cells(flags):
        rows, columns = list_axes(cells, flags.baseline)
        for column in columns:
            table = [["", "final", "iters", "tokens", "+ warm-up", "tokens", "drop"]]
            judged = {row: judge_cell(cells.get((row, column), {}), flags.metric) for row in rows}
            goal = judged[rows[0]]["mean"]
            for row, cell in judged.items():
                facts = [time_run(cells[row, column][cell["rate"], seed], flags.metric, goal)
                         for seed in cell["seeds"]] or [[math.nan] * 5]
                *counts, drop = np.mean(facts, axis=0)
                counts = ("-" if math.isnan(count) else f"{count:,.0f}" for count in counts)
                table.append([wrap(row[1:]), cell["text"], *counts, show(drop)])
            print(f"\n{column}, to {show(goal)} where {rows[0][1]} ends {title}")
            print_table(table)
    print("\n- some seed never does; + warm-up: with the iterations and tokens of all its models\n"
          "drop: loss at the last evaluation before the learning rate decays, minus the final one")

def time_run(run, metric, goal):
    """(iterations and tokens to the goal, both with the warm-up's own, drop in the decay)."""
    flags, source, metric = run["flags"], run["source"] or {"model_iters": 0}, metric.split(",")[0]
    sign, learned = -1 if metric.endswith(HIGHER_IS_BETTER) else 1, source.get("flags") or {}
    values = [(value, row) for row in run["log"]
              if (value := get_metric(run | {"last": row}, metric)) is not None]
    there = next((row for value, row in values if sign * value <= sign * goal), {})
    iters, tokens = there.get("iter", math.nan), there.get("tokens", math.nan)
    warmup = source.get("model_iters")
    warmup = math.nan if warmup is None else warmup             # of a file written by hand
    per_iter = learned.get("batch_size", 1) * learned.get("block_size", 1)
    falls = flags["lr_decay_frac"] if flags["lr_schedule"] == "trapezoid" else 0
    before = [value for value, row in values if row["iter"] <= flags["max_iters"] * (1 - falls)]
    drop = before[-1] - values[-1][0] if before and falls else math.nan
    return iters, tokens, iters + warmup, tokens + warmup * per_iter, drop

def list_functions(splines, part):
    """[(knots, values, visits)] of one part, one per row; equal visits where none are recorded."""
    x = np.linspace(-splines["spline_range"], splines["spline_range"], splines["n_knot"])
    rows = np.array(splines.get(part) or np.empty((0, len(x))), float)
    visits = np.array((splines.get("visits") or {}).get(part) or np.ones_like(rows), float)
    return [(x, y, w if w.any() else np.ones_like(w)) for y, w in zip(rows, visits)]

def get_gelu(x):
    return x * np.array([0.5 + 0.5 * math.erf(value / 2 ** 0.5) for value in x])

def get_rms(y, visits):
    return np.average(y ** 2, weights=visits) ** 0.5

def make_figure(png):
    """An empty figure for a picture at that path, None if none is asked for."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit(f"png={png} needs matplotlib: pip install matplotlib") from None
    if not os.path.isdir(folder := os.path.dirname(png) or "."):
        raise SystemExit(f"png={png}: there is no folder {folder}")
    return Figure(figsize=(11, 4.5), layout="constrained")

def controls(flags, files):
    """Writes beside a learned file -gelu: GELU; -scaled: GELU with the learned RMS; -line: the
    least-squares line for attention; -scaled_line: both; -shuffled: the visited values shuffled.
    """
    if not files:
        raise SystemExit("controls needs files: python analyze.py controls out/.../splines.json")
    for path in files:
        learned = load_splines(path)
        if learned.pop("control", None) or not learned.get("visits"):
            raise SystemExit(f"{path}: controls are made from a splines.json with visits")
        rng = np.random.default_rng(learned.get("seed") or 0)
        old = [list_functions(learned, part) for part in ("mlp", "attn")]
        mlp, attn = ([y for _, y, _ in functions] for functions in old)
        gelu = [get_gelu(x) for x, _, _ in old[0]]
        scaled = [g * get_rms(y, w) / get_rms(g, w) for g, (_, y, w) in zip(gelu, old[0])]
        line = [np.polyval(np.polyfit(x, y, 1, w=w ** 0.5), x) for x, y, w in old[1]]
        shuffled = [[y.copy() for y in mlp], [y.copy() for y in attn]]
        for y, (_, _, w) in zip(sum(shuffled, []), sum(old, [])):
            y[w > 0] = rng.permutation(y[w > 0])
        made = {"gelu": (gelu, []), "scaled": (scaled, attn)} if mlp else {}
        made |= {"shuffled": shuffled} | ({"line": (mlp, line)} if attn else {})
        made |= {"scaled_line": (scaled, line)} if attn and mlp else {}
        rest = {k: v for k, v in learned.items() if k not in ("mlp", "attn", "sha256")}
        for name, new in made.items():
            parts = {p: np.array(rows).tolist() for p, rows in zip(("mlp", "attn"), new) if rows}
            save_json(target := f"{os.path.splitext(path)[0]}-{name}.json",
                      rest | parts | {"control": name})
            print(f"{target}: use with --parts={'both' if len(parts) == 2 else [*parts][0]}"
                  + " --attn_act=none" * (name == "gelu"))

def splines(flags, files):
    """The learned functions as text, their numbers and distances, and a picture if asked."""
    figure = flags.png and make_figure(flags.png)
    files = files or sorted(map(str, Path(flags.out_dir).rglob("splines.json")))
    if not files:
        raise SystemExit(f"{flags.out_dir} holds no splines.json yet")
    loaded, drawn = [load_splines(path) for path in files], {}
    for i, (path, one) in enumerate(zip(files, loaded)):
        about = (f"{k} {one.get(k)}" for k in ("dataset", "tokenizer", "seed", "control"))
        print(f"[{i + 1}] {path}: {', '.join(about)}")
    for part in [part for part in ("mlp", "attn") if any(one.get(part) for one in loaded)]:
        drawn[part] = [(f"[{i + 1}] {one.get('dataset')}", *function)
                       for i, one in enumerate(loaded) for function in list_functions(one, part)]
        table = [[part, "visited", "slope", "RMS", "/GELU's",
                  *(f"- {name.split()[0]}" for name, *_ in drawn[part])]]
        for name, x, y, w in drawn[part]:
            height = np.rint(9 * (y - y.min()) / max(np.ptp(y), 1e-9)).astype(int).astype(str)
            print(f"\n{part} {name}, 0 is {y.min():.3f}, 9 is {y.max():.3f}; - visited\n"
                  + "".join(height) + "\n" + "".join(np.where(w > 0, "-", " ")))
            span = f"{np.sum(w > 0)}/{len(x)} in {x[w > 0][0]:.1f}..{x[w > 0][-1]:.1f}"
            slope, rms = np.polyfit(x, y, 1, w=w ** 0.5)[0], get_rms(y, w)
            ratio, distances = rms / get_rms(get_gelu(x), w), [
                np.hypot(get_rms(y - np.interp(x, z, u), w), get_rms(u - np.interp(z, x, y), v))
                / 2 ** 0.5 for _, z, u, v in drawn[part]]
            table.append([name, span, *map(show, (slope, rms, ratio, *distances))])
        print_table(table)
    print("- [i]: RMS distance, half over the activations of each")
    if not figure:
        return
    for axis, part in zip(figure.subplots(1, len(drawn), squeeze=False)[0], drawn):
        for name, x, y, w in drawn[part]:           # dots: visited
            axis.plot(x, y, ".-", markevery=np.flatnonzero(w).tolist(), label=name)
        axis.set_title(part)
        axis.legend()
    figure.savefig(flags.png, format="png")

# --------------------------------------------------------------------------------------------------
# basins and quantize
def load_runs(flags, given):
    """Yields (folder, model 0, data, cfg) of each run given, as last saved, with flags given."""
    folders, changes = ([arg for arg in given if (arg[0] == "-") == flag] for flag in (False, True))
    if not folders or flags.weights not in ("last", "average"):
        raise SystemExit("give folders of runs, and weights=last or average")
    for folder in folders:
        try:
            about = load_json(os.path.join(folder, "flags.json"))
            check_flags(cfg := SimpleNamespace(**configurator.parse(about["flags"], changes)))
            data = read_dataset(cfg.data_dir, cfg.dataset, cfg.block_size)
            if cfg.dataset == about["flags"]["dataset"] and any(
                    about["data"][x] != data.meta["sha256"][x] for x in ("train", "val")):
                raise ValueError(f"dataset={cfg.dataset} was made anew since")
            config = make_config(cfg, data.meta)
            if not os.path.exists(path := os.path.join(folder, "ckpt.pt")):
                raise OSError(f"no {path}")
            saved = load_checkpoint(path, cfg.device, about)
            if saved["it"] < cfg.max_iters:
                print(f"{folder}: unfinished, iteration {saved['it']} of {cfg.max_iters}")
            model = AveragedModel(GPT(config, make_splines(config)).to(cfg.device))
            average = saved["average"] if flags.weights == "average" else None
            if flags.weights == "average" and not average:
                raise ValueError("it has no averaged weights")
            (model if average else model.module).load_state_dict(average or saved["models"][0][0])
        except Exception as error:      # whatever a damaged file comes up with
            raise SystemExit(f"{folder} cannot be loaded as a run of train.py: {error!r:.160}"
                             ) from None
        yield folder, model.module, data, cfg

@torch.no_grad()
def move_weights(weights, start, radius, seed):
    """Moves each matrix from its start by radius times its norm, in a Gaussian direction."""
    generator = torch.Generator().manual_seed(seed)
    for weight, old in zip(weights, start):
        noise = torch.randn(old.shape, generator=generator).to(old.device)
        weight.copy_(old + noise * (radius * old.norm() / noise.norm()))

def basins(flags, given):
    """Loss at relative distances from the weights; tensors with fewer than two axes stay."""
    radii, columns = (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5), []
    for folder, model, data, cfg in load_runs(flags, given):
        weights = [weight for weight in model.parameters() if weight.dim() > 1]     # tied: once
        start = [weight.detach().clone() for weight in weights]
        last = (read_runs(folder) or [{"last": {}}])[0]["last"]
        last = last.get("averaged", last) if flags.weights == "average" else last
        columns.append([wrap([folder], 30), f"{last.get('val_loss', math.nan):.6f}"])
        for radius in radii:
            losses = []
            for seed in range(5 if radius else 1):
                move_weights(weights, start, radius, seed)
                losses.append(evaluate(model, data, cfg)["val_loss"])
            columns[-1].append(show(*losses) if radius else f"{losses[0]:.6f}")
    print_table(list(zip(["radius", "recorded", *map(str, radii)], *columns)))
    print("validation loss, +- standard error over 5 directions; radius: share of a matrix's norm")

def quantize_tensor(x, n_bit):
    """Symmetric, per tensor: the largest absolute value is 2**(n_bit-1) - 1 steps."""
    step = x.abs().max().clamp(min=1e-30) / (2 ** (n_bit - 1) - 1)
    return (x / step).round() * step

def get_kurtosis(x):
    """Excess kurtosis over all elements: 0 for a Gaussian, 3 for a Laplace distribution."""
    x = x.float() - x.float().mean()
    return (x.pow(4).mean() / x.square().mean() ** 2 - 3).item()

def get_sqnr(x, n_bit=4):
    """Power of x over that of its quantization error, in dB."""
    error = x.float() - quantize_tensor(x.float(), n_bit)
    return 10 * (x.float().square().mean() / error.square().mean()).log10().item()

def quantize_model(model, n_bit, kind):
    """A copy whose linear layers in the blocks have quantized weights, activations or both."""
    model = copy.deepcopy(model)
    for module in [module for module in model.blocks.modules() if isinstance(module, nn.Linear)]:
        if kind != "activations":
            module.weight.data = quantize_tensor(module.weight.data, n_bit)
        if kind != "weights":
            module.register_forward_pre_hook(lambda _, inputs: quantize_tensor(inputs[0], n_bit))
    return model

def quantize(flags, given):
    """Loss at fewer bits, kurtosis and 4-bit SQNR of what every block puts out. [3]"""
    kinds, bits, columns = ("weights", "activations", "both"), (8, 6, 4), []
    cases, figure = list(itertools.product(kinds, bits)), flags.png and make_figure(flags.png)
    axes = figure.subplots(1, len(kinds), sharey=True) if figure else ()
    for folder, model, data, cfg in load_runs(flags, given):
        losses = [evaluate(quantize_model(model, n_bit, kind), data, cfg)["val_loss"]
                  for kind, n_bit in cases]
        found = []                      # of every batch and block
        for block in model.blocks:
            block.register_forward_hook(lambda _, inputs, outputs: found.append(
                (get_kurtosis(outputs[0]), get_sqnr(outputs[0]))))
        losses.insert(0, evaluate(model, data, cfg)["val_loss"])
        layers = np.reshape(found, (-1, len(model.blocks), 2)).mean(0)              # (layers, 2)
        for axis, kind, mine in zip(axes, kinds, np.reshape(losses[1:], (len(kinds), -1))):
            axis.plot(["full", *map(str, bits)], [losses[0], *mine], "o-", label=folder)
            axis.set(title=f"{kind} quantized", xlabel="bits", ylabel="validation loss, nats")
            axis.label_outer()
        columns.append([wrap([folder], 30), *(f"{loss:.4f}" for loss in losses),
                        *(f"{kurtosis:.2f}, {sqnr:.1f} dB" for kurtosis, sqnr in layers)])
    names = ["", "full precision", *(f"{kind}, {n_bit} bits" for kind, n_bit in cases)]
    names += [f"block {i}" for i in range(1, max(map(len, columns)) - len(names) + 1)]
    print_table(list(itertools.zip_longest(names, *columns, fillvalue="-")))
    print("loss with inputs, weights of linear layers in blocks rounded (symmetric, per tensor,\n"
          "absolute maximum); blocks: excess kurtosis and 4-bit SQNR of outputs, mean over batches")
    if figure:
        axes[0].legend()
        figure.savefig(flags.png, format="png")

# --------------------------------------------------------------------------------------------------
# speed
SPEED = {"n_embd": 256, "block_size": 512, "batch_size": 8, "n_models": 3,      # flags of train.py
         "vocab_size": 96, "n_repeat": 7, "n_element": 4096 * 2048}             # and of speed alone

class PlainGPT(nn.Module):
    """GPT-2 (learned positions, LayerNorm, biases, fused attention), to compare with."""

    def __init__(self, config):
        super().__init__()
        C, self.n_head = config.n_embd, config.n_head
        self.wte, self.wpe = nn.Embedding(config.vocab_size, C), nn.Embedding(config.block_size, C)
        self.blocks = nn.ModuleList(nn.ModuleList([
            nn.LayerNorm(C), nn.Linear(C, 3 * C), nn.Linear(C, C), nn.Sequential(nn.LayerNorm(C),
            nn.Linear(C, 4 * C), nn.GELU(), nn.Linear(4 * C, C))]) for _ in range(config.n_layer))
        self.norm, self.head = nn.LayerNorm(C), nn.Linear(C, config.vocab_size, bias=False)
        self.head.weight = self.wte.weight
        for weight in self.parameters():
            weight.data.normal_(std=0.02) if weight.dim() > 1 else None

    def forward(self, idx):
        x = self.wte(idx) + self.wpe.weight[:idx.shape[1]]                          # (B, T, C)
        for norm, c_attn, c_proj, mlp in self.blocks:
            qkv = c_attn(norm(x)).unflatten(2, (3, self.n_head, -1))            # (B, T, 3, H, D)
            y = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
            x = x + c_proj(y.transpose(1, 2).flatten(2))                            # (B, T, C)
            x = x + mlp(x)
        return self.norm(x)

def time_sides(sides, n_repeat, device="cpu", clock=time.perf_counter):
    """{name: median seconds of a call}; the sides take turns, after two unmeasured calls each."""
    times = {name: [] for name in sides}
    for name, call in [*sides.items()] * (n_repeat + 2):
        begin = clock()
        call()
        torch.accelerator.synchronize() if device != "cpu" else None
        times[name].append(clock() - begin)
    return {name: float(np.median(seconds[2:])) for name, seconds in times.items()}

def make_iteration(cfg, data, **changes):
    """A function that does an iteration of train.py, all models started; splines hold GELU."""
    cfg = SimpleNamespace(**vars(cfg) | changes)
    splines = make_splines(config := make_config(cfg, data.meta))
    for spline in sum(splines.values(), []):
        knots = torch.linspace(-cfg.spline_range, cfg.spline_range, cfg.n_knot)
        spline.to(cfg.device).requires_grad_(cfg.mode != "transfer").values.data[:] = F.gelu(knots)
    values = [spline.values for spline in sum(splines.values(), []) if cfg.mode != "transfer"]
    totals = [torch.zeros_like(value) for value in values]
    optimizer = torch.optim.Adam(values or [torch.zeros(1)])
    running = [make_model(m, config, splines, cfg) for m in range(cfg.n_models)]
    if cfg.mode == "plain":
        running[0].model = PlainGPT(config).to(cfg.device)
        running[0].optimizers = make_optimizers(running[0].model, cfg)
        if cfg.compile == "True" or cfg.compile == "auto" and cfg.device != "cpu":
            running[0].model.compile()
    def iterate():
        for run in running:
            loss = update_model(run, values, 0, cfg.max_iters // 2, data, cfg)
            add_spline_gradients(totals, values, loss)
        if values:
            step_splines(optimizer, totals, values, len(running), cfg.spline_lr)
    return iterate

def speed(flags, given):
    """Operator, training step and warm-up iteration beside GELU, and the rates of the machine."""
    check_flags(cfg := SimpleNamespace(**configurator.parse(DEFAULTS | SPEED, given)))
    V, C, T, n_token = cfg.vocab_size, cfg.n_embd, cfg.block_size, cfg.batch_size * cfg.block_size
    x, grad, out = (3 * torch.randn(cfg.n_element, device=cfg.device) for _ in range(3))
    square = x[:(side := math.isqrt(cfg.n_element // 2)) ** 2].view(side, side).to(
        getattr(torch, cfg.dtype))
    frozen, learnable = (Spline(cfg.n_knot, cfg.spline_range, fused=cfg.compile != "False").to(
        cfg.device).requires_grad_(learned) for learned in (False, True))
    leaf, acts = x.clone().requires_grad_(), (F.gelu, frozen, learnable)
    operators = {name: lambda act=act: act(leaf).backward(grad)
                 for name, act in zip(("GELU", "frozen spline", "learnable spline"), acts)}
    with tempfile.TemporaryDirectory() as folder:
        path, n = os.path.join(folder, "train.bin"), 8 * n_token + 1
        np.random.default_rng(0).integers(V, size=n).astype("<u2").tofile(path)
        data = SimpleNamespace(meta={"vocab_size": V, "end_mark": None}, path={"train": path},
                               n_token={"train": n})
        steps = {name: make_iteration(cfg, data, **{"n_models": 1} | changes) for name, changes in {
            "GELU": {"attn_act": "linear"}, "frozen splines": {"mode": "transfer"},
            "learnable splines": {"mlp_act": "spline", "attn_act": "spline"},
            "plain GPT-2": {"mode": "plain"},
            "warm-up, per model": {"mode": "warmup", "n_models": cfg.n_models}}.items()}
        rates, act_times, step_times = (time_sides(sides, cfg.n_repeat, cfg.device) for sides in (
            {"product": lambda: square @ square, "copy": lambda: out.copy_(x)}, operators, steps))
    step_times["warm-up, per model"] /= cfg.n_models
    peak, copied = 2e-9 * side ** 3 / rates["product"], 8e-9 * cfg.n_element / rates["copy"]
    flop = 6 * n_token * (cfg.n_layer * (12 * C ** 2 + T * C) + C * V)      # attention: causal half
    rate = 1e-9 * flop / step_times["GELU"]
    print(f"{cfg.device}, {torch.get_num_threads()} threads, {cfg.dtype}, compile={cfg.compile}: "
          f"products {peak:.0f} GFLOP/s (GELU step {rate / peak:.0%}), copies {copied:.1f} GB/s")
    for title, times, n in (("operator", act_times, cfg.n_element), ("step", step_times, n_token)):
        print_table([[title, "ms", "/ GELU", "values/s" if times is act_times else "tokens/s"], *(
            [name, f"{1e3 * seconds:.1f}", f"{seconds / times['GELU']:.2f}", f"{n / seconds:,.0f}"]
            for name, seconds in times.items())])

def is_stale(run, data_dir):
    """Whether the data set of that name in data_dir is another one than the run was made on."""
    try:
        folder = os.path.join(data_dir, run["flags"]["dataset"])
        now = load_json(f"{folder}/meta.json")
        stale = any(now["sha256"][split] != run["data"].get(split) for split in ("train", "val"))
    except (OSError, ValueError, KeyError, TypeError):      # not there; train.py will tell
        return False
    if stale:
        print(f"{run['dir']} is left out: {folder} was made anew since", file=sys.stderr)
    return stale

def plan(flags, passed):
    """Prints train.py commands without result (failed is one) but with inputs; warm-ups first."""
    sources, targets, seeds, rates = (list(dict.fromkeys(split(getattr(flags, name)))) for name in
                                      ("sources", "targets", "seeds", "rates"))
    if not seeds or not rates or not sources + targets:
        raise SystemExit("plan needs --sources=a,b --targets=a,b --seeds=0,1 --rates=1e-3,2e-3")
    def get_key(flags, place):
        return *place[:2], *(flags[name] for name in ("mode", "dataset", "seed", "learning_rate"))
    learned, lines, n_waiting = {}, [], 0
    script = os.path.relpath(Path(__file__).with_name("train.py"))
    both = [arg for arg in passed if not arg.startswith("--warmup_")]
    data_dir = configurator.parse(DEFAULTS, both)["data_dir"] or f"{HERE}/data"
    runs = {get_key(run["flags"], run["place"]): run for run in sorted(
        read_runs(flags.out_dir), key=lambda run: run["status"] == "finished")      # that one wins
        if not is_stale(run, data_dir)}
    warmup = both + [f"--{arg[9:]}" for arg in passed if arg.startswith("--warmup_")]
    names = dict.fromkeys(source.partition(":")[0] for source in sources)
    for name in dict.fromkeys([*names, *targets]):
        if name not in BUILT_IN and not os.path.exists(f"{data_dir}/{name}/meta.json"):
            print(f"{name} is not in {data_dir} yet: prepare.py makes it", file=sys.stderr)
    for source in sources:
        if (control := source.partition(":")[2]) not in ("", *CONTROLS):
            raise SystemExit(f"source {source}: there is no control {control}, only "
                             f"{', '.join(CONTROLS)}")
    for mode, dataset, seed, rate, source in itertools.chain(itertools.product(["warmup"], names,
            seeds, [flags.warmup_rate or rates[0]], [""]), itertools.product(["baseline"], targets,
            seeds, rates, [""]), itertools.product(["transfer"], targets, seeds, rates, sources)):
        args = [*(warmup if mode == "warmup" else both), f"--mode={mode}", f"--dataset={dataset}",
                f"--seed={seed}", f"--learning_rate={rate}"]
        origin, (name, _, control) = None, source.partition(":")
        if source:
            path = learned.get((name, seed), "") + f"{control and '-'}{control}.json"
            if not os.path.exists(path):
                n_waiting += 1
                if (name, seed) in learned:
                    print(f"{path} is missing; analyze.py controls {learned[name, seed]}.json "
                          "makes it", file=sys.stderr)
                continue
            args, origin = [*args, f"--splines={path}"], load_splines(path)
            args += ["--parts=mlp", "--attn_act=none"] * (control == "gelu")
        wanted = configurator.parse(DEFAULTS, args)
        check_flags(SimpleNamespace(**wanted))
        run = runs.get(get_key(wanted, place_run(wanted, origin, {})), {"status": "missing"})
        if run["status"] == "failed":
            print(f"{run['dir']} failed: {run.get('reason')}", file=sys.stderr)
        elif run["status"] == "finished" and mode == "warmup":
            learned[dataset, seed] = str(run["dir"] / "splines")
        elif run["status"] != "finished":
            name = os.path.basename(name_run(SimpleNamespace(**wanted), origin))
            path = run.get("dir") or os.path.join(flags.out_dir, name)
            args += [f"--out_dir={path}"] * (flags.out_dir != "out" or "dir" in run)
            args += ["--resume=True"] * (run["status"] == "unfinished")
            lines.append(shlex.join([sys.executable, script, *args]))
    print(*lines, sep="\n", end="\n" * bool(lines))
    print(f"{len(lines)} commands; {n_waiting} transfers wait for their splines file" if lines
          or n_waiting else "nothing is left to run", file=sys.stderr)

if __name__ == "__main__":
    commands = {f.__name__: f for f in (matrix, curves, splines, controls, basins, quantize, speed,
                                        plan)}
    defaults = {name: value for name, value in globals().items()
                if isinstance(value, str) and not name.startswith("_")}
    argv = sys.argv[1:] if sys.argv[1:] and sys.argv[1][0] != "-" else ["matrix", *sys.argv[1:]]
    if {"-h", "--help"} & set(argv):
        print(__doc__ + configurator.read_section(__file__, "flags"))
    elif argv[0] not in commands:
        raise SystemExit(f"{argv[0]} is no command; there are {', '.join(commands)}")
    else:
        mine = [arg for arg in argv[1:] if arg.startswith("-") and
                (argv[0] in [*commands][:4] or arg[2:].split("=")[0] in defaults)]
        rest = [arg for arg in argv[1:] if arg not in mine]
        if rest and argv[0] in ("matrix", "curves"):
            raise SystemExit(f"{argv[0]} reads the folder --out_dir=..., not {rest[0]}")
        signal.signal(getattr(signal, "SIGPIPE", signal.SIGTERM), signal.SIG_DFL)   # | head
        try:
            commands[argv[0]](SimpleNamespace(**configurator.parse(defaults, mine)), rest)
            sys.stdout.flush()
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except (OSError, MemoryError, RuntimeError) as error:
            give_up(error)
