"""
Reads the folders that train.py leaves and prints what they show, as plain text.

    python analyze.py                       every nonlinearity (rows) on every data set (columns)
    python analyze.py --by=types            specialists (NAME/TYPE) beside the generalist (NAME)
    python analyze.py curves                iterations and tokens to the baseline's final loss
    python analyze.py splines [FILE ...]    the learned functions, their numbers and distances
    python analyze.py controls FILE ...     control splines beside a learned splines.json
    python analyze.py plan --sources=a,b --targets=a,b --seeds=0,1 --rates=1e-3,2e-3
                                            the train.py commands still missing, one a line

`plan` hands other flags and config files on to train.py (--warmup_NAME=value to warm-ups alone)
and takes DATASET:CONTROL as a source; run what it prints, then plan again for what came due.
"""
import itertools
import json
import math
import os
import shlex
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import configurator
from train import DEFAULTS, get_identity, get_parts, load_json, load_splines, name_run, save_json

# --------------------------------------------------------------------------------------------------
# flags
# --------------------------------------------------------------------------------------------------
out_dir = "out"         # folder that holds the runs' folders
metric = ""             # matrix, curves: a name of result.json's "last", also "averaged.val_loss";
                        # "" = answer_loss for question-answer data, val_loss for the rest
by = "rows"             # matrix: rows | types
baseline = "gelu"       # matrix, curves: the row that the others are held against
png = ""                # splines: picture to write, "" = none
sources = ""            # plan: data sets to learn splines on, comma between
targets = ""            # plan: data sets to train on; matrix, curves: only these, "" = all
seeds = "0"             # plan: comma between
rates = "6e-4"          # plan: learning rates of baselines and transfers, comma between
warmup_rate = ""        # plan: learning rate of the warm-ups, "" = the first of rates

# --------------------------------------------------------------------------------------------------
# runs and cells
# --------------------------------------------------------------------------------------------------
# flags that name the row or the column, and flags that are idle where no spline is learned
NOT_SETTINGS = {"seed", "learning_rate", "splines", "mode", "dataset", "mlp_act", "attn_act", "parts"}
SPLINE_FLAGS = {"n_knot", "spline_range", "spline_init", "n_models", "share_layers", "stagger",
                "spline_lr", "spline_data"}
HIGHER_IS_BETTER = ("accuracy", "exact_match")


def place_run(flags, source, data):
    """(settings, row, column): runs share a cell only where all three are equal.

    A row is (order, name, marks, detail): detail is all that shaped its nonlinearity, for a
    transfer the settings of its warm-up, learning rate included. Settings and detail are JSON.
    """
    _, mlp, attn = get_parts(SimpleNamespace(**flags))
    acts, learned = mlp + f"+{attn}" * (attn != "none"), (source or {}).get("flags") or {}
    settings = get_identity(flags)
    detail = {k: settings[k] for k in SPLINE_FLAGS if "spline" in acts}
    row, settings = (0, acts, ""), {k: v for k, v in settings.items()
                                    if k not in NOT_SETTINGS | SPLINE_FLAGS}
    if source is not None:
        detail = {k: v for k, v in get_identity(learned).items()
                  if k not in ("seed", "mode", "dataset", "splines")}
        marks = [source["tokenizer"], source["control"], acts != "spline+spline" and acts,
                 learned.get("scramble") and "scrambled",
                 learned.get("freeze_all_but_embeddings") and "frozen",
                 learned.get("parts", flags["parts"]) != flags["parts"] and "of both",
                 source["seed"] != flags["seed"] and f"seed {source['seed']}"]
        order = 3 if source["control"] else 2 if learned.get("scramble") else 1
        row = (order, source["dataset"] or "file", " ".join(filter(None, marks)))
    column = f"{flags['dataset']} #{str(data.get('train'))[:4]}{str(data.get('val'))[:2]}"
    return json.dumps(settings, sort_keys=True), (*row, json.dumps(detail, sort_keys=True)), column


def read_runs(out_dir):
    """One dict per run: dir, place, log and all that flags.json and result.json hold."""
    runs = []
    for folder in sorted(path.parent for path in Path(out_dir).rglob("flags.json")):
        run = {"dir": folder, "status": "unfinished", "last": {}, "log": []}
        try:
            for path in filter(Path.exists, (folder / "flags.json", folder / "result.json")):
                run |= load_json(path)
            for path in filter(Path.exists, [folder / "log.jsonl"]):
                run["log"] = [json.loads(row) for row in path.read_text("utf-8").splitlines()]
            path = folder / "flags.json"
            runs.append(run | {"place": place_run(run["flags"], run["source"], run["data"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"{path} is damaged, its run is left out: {error!r}", file=sys.stderr)
    return runs


def name_differences(settings):
    """For each JSON dict, "name=value ..." of the names in which the dicts differ."""
    dicts = [json.loads(one) for one in settings]
    names = [name for name in sorted(set().union(*dicts))
             if any(one.get(name) != dicts[0].get(name) for one in dicts)]
    return [" ".join(f"{name}={one.get(name)}" for name in names) for one in dicts]


def read_cells(flags):
    """[(title, cells)] per setting, cells: {(row, column): {(rate, seed): run}}.

    The title, and the marks of rows that would look alike, name the settings that differ.
    """
    groups, tables = {}, []
    for run in read_runs(flags.out_dir):
        (settings, row, column), name = run["place"], run["flags"]["dataset"]
        if run["flags"]["mode"] != "warmup" and name in split(flags.targets or name):
            cell = groups.setdefault(settings, {}).setdefault((row, column), {})
            twin = cell.setdefault((run["flags"]["learning_rate"], run["flags"]["seed"]), run)
            if twin is not run:
                print(f"{run['dir']} repeats {twin['dir']} and is left out", file=sys.stderr)
    if not groups:
        raise SystemExit(f"{flags.out_dir} holds no baseline or transfer run yet")
    for title, cells in zip(name_differences(groups), groups.values()):
        named = {}
        for (row, column), cell in cells.items():
            twins = sorted({twin for twin, _ in cells if twin[:3] == row[:3]})
            extra = name_differences([twin[3] for twin in twins])[twins.index(row)]
            named[(*row[:2], f"{row[2]} {extra}".strip()), column] = cell
        tables.append((title, named))
    return tables


def list_axes(cells, baseline):
    """(rows, the baseline of that name first, else another one; columns)."""
    rows = sorted({row for row, _ in cells}, key=lambda row: (row[0], row[1] != baseline, row))
    return rows, sorted({column for _, column in cells})


def split(text):
    return [word.strip() for word in text.split(",") if word.strip()]


def get_metric(last, metric):
    """The number of that name in a row of results, "a.b" looks inside; None if there is none."""
    for name in (metric or ("answer_loss" if "answer_loss" in last else "val_loss")).split("."):
        last = last.get(name) if isinstance(last, dict) else None
    return last


def judge_cell(cell, metric):
    """What a cell shows at its best learning rate: text, mean, rate, judge, {seed: value}.

    The rate is chosen on the lowest seed that tried most rates, the judge, and reported on the
    others; on the judge ("same") only where there are no others. A single rate is no choice: then
    every seed counts. A failed run is worse than any number and never left out of a report.
    """
    done = {key: math.nan if run["status"] == "failed" else get_metric(run["last"], metric)
            for key, run in sorted(cell.items())}
    done = {key: value for key, value in done.items() if value is not None}
    if not done:
        text = "unfinished" if "unfinished" in [run["status"] for run in cell.values()] else "-"
        return {"text": text, "mean": math.nan, "rate": None, "judge": None, "seeds": {}}
    tried, sign = [s for _, s in done], -1 if metric.endswith(HIGHER_IS_BETTER) else 1
    judge = min(tried, key=lambda s: (-tried.count(s), s))
    score = {r: sign * value if math.isfinite(value) else math.inf
             for (r, s), value in done.items() if s == judge}
    rate, judge = min(score, key=score.get), judge if len(score) > 1 else None
    edge = f"/{len(score)}" + "<" * (rate == min(score)) + ">" * (rate == max(score))
    found = {s: value for (r, s), value in done.items() if r == rate}
    seeds = {s: value for s, value in found.items() if s != judge} or found
    values, n = list(seeds.values()), len(seeds)
    text = f"{np.mean(values):.3f}"
    text += f"+-{np.std(values, ddof=1) / n ** 0.5:.3f}" if n > 1 else ""
    text = f"failed {np.isnan(values).sum()}/{n}" if np.isnan(values).any() else text
    text += f"\n{rate:g}{edge * (judge is not None)} {'same' if judge in seeds else f'n={n}'}"
    unseen = max([share for s in found for name in ("outside", "unvisited")
                  for share in cell[rate, s]["last"].get(name, {}).values()] + [0])
    text += f"\nunseen {unseen:.0%}" if unseen > 0.01 else ""
    return {"text": text, "mean": np.mean(values), "rate": rate, "judge": judge, "seeds": seeds}


# --------------------------------------------------------------------------------------------------
# matrix and curves
# --------------------------------------------------------------------------------------------------
def get_paired_p(differences):
    """Two-sided p of a paired t test, n-1 degrees of freedom, by summing the density of t.

    With t = sqrt(n-1) tan(angle) that density is proportional to cos(angle)**(n-2).
    """
    n, angles = len(differences), np.linspace(0, math.pi / 2, 100_001)
    density = np.cos(angles) ** (n - 2)
    found = math.atan2(abs(np.mean(differences)), np.std(differences, ddof=1) * (1 - 1 / n) ** 0.5)
    return density[angles >= found].sum() / density.sum()


def mark_cells(judged, base, level=0.05):
    """(cells that differ from the baseline row's, number tested): paired t, corrected by Holm.

    Pairs the seeds that both report, three at least. The least of m p-values must be below
    level/m, the next below level/(m-1), and so on until one is not.
    """
    p, marked = {}, set()
    for (row, column), cell in judged.items():
        seeds = judged[base, column]["seeds"]
        pairs = [value - seeds[s] for s, value in cell["seeds"].items() if s in seeds]
        if row != base and len(pairs) >= 3 and np.isfinite(pairs).all():
            p[row, column] = get_paired_p(pairs)
    for i, key in enumerate(sorted(p, key=p.get)):
        if p[key] > level / (len(p) - i):
            break
        marked.add(key)
    return marked, len(p)


def get_mean(values):
    """nan where one is missing, or all are."""
    values = list(values)
    return sum(values) / len(values) if values else math.nan


def show(number, form=".3f"):
    return "-" if math.isnan(number) else f"{number:{form}}"


def wrap(texts, width=16):
    return "\n".join(line for text in texts for line in textwrap.wrap(text, width))


def print_table(rows):
    """Aligned columns under a rule; a cell may have several lines."""
    rows = [[cell.split("\n") for cell in row] for row in rows]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*rows)]
    for i, row in enumerate(rows):
        for line in itertools.zip_longest(*row, fillvalue=""):
            print(" ".join(text.ljust(width) for text, width in zip(line, widths)).rstrip())
        if i == 0:
            print("-" * (sum(widths) + len(widths) - 1))


def matrix(flags, files):
    """Rows: baselines, sources, controls; columns: targets. At own best rates, then equal ones."""
    name = flags.metric or "validation loss (of the answers alone where there are questions)"
    judges = set()
    for title, cells in read_cells(flags):
        cells = split_types(cells, flags.metric) if flags.by == "types" else cells
        if not cells:
            continue
        rows, columns = list_axes(cells, flags.baseline)
        print(f"\n{name}{title and ', '}{title}\neach row at its own best learning rate")
        best = print_matrix(cells, rows, columns, flags.metric)
        judges |= {str(cell["judge"]) for cell in best.values()} - {"None"}
        if rows[0][0] == 0 and flags.by == "rows":
            print(f"\nall rows at the best learning rate of {rows[0][1]}")
            print_matrix({(row, c): {(r, s): run for (r, s), run in cell.items()
                                     if r == best[rows[0], c]["rate"]}
                          for (row, c), cell in cells.items()}, rows, columns, flags.metric)
    print(f"\nrates chosen on seed {', '.join(sorted(judges)) or '-'}, reported on the others; same: "
          "there is no other\n+- standard error over n seeds; below: rate/best of how many, < > "
          "lowest, highest\nunseen: share of inputs on knots the warm-up never visited; - no run")


def print_matrix(cells, rows, columns, metric):
    """Prints a matrix with its means and marks; gives back the judged cells."""
    judged = {(row, c): judge_cell(cells.get((row, c), {}), metric) for row in rows for c in columns}
    marked, n_test = mark_cells(judged, rows[0]) if rows[0][0] == 0 else (set(), 0)
    learned = [row for row in rows if row[0] == 1]
    table = [["", *(wrap([c.replace("/", "/ ")]) for c in columns), "mean"]]
    for row in rows:
        texts = [judged[row, c]["text"].replace("\n", "*\n" if (row, c) in marked else "\n", 1)
                 for c in columns]
        table.append([wrap(row[1:]), *texts, show(get_mean(judged[row, c]["mean"] for c in columns))])
    own, rest, means = ([get_mean(judged[row, c]["mean"] for row in learned if
                                  (row[1] == c.partition(" #")[0]) in kind) for c in columns]
                        for kind in ([True], [False], [True, False]))
    gaps = [a - b for a, b in zip(own, rest)]
    if learned:
        table.append(["mean of sources", *map(show, means), show(get_mean(means))])
        table.append(["own - others", *map(show, gaps), show(get_mean(g for g in gaps if g == g))])
    print_table(table if len(columns) < 8 else list(zip(*table)))
    if n_test:
        print(f"* differs from {rows[0][1]}: paired t over common seeds, 5 %, Holm over {n_test}")
    return judged


def split_types(cells, metric):
    """The cells with a column per type and two rows for each one of before.

    Specialists were trained on NAME/TYPE, each at its own best rate; the generalist on NAME, at
    the one rate that is best for its mean. "own" splines come from the same data set.
    """
    parts, tokens = {}, {}
    for (row, column), cell in cells.items():
        dataset, special = column.partition(" #")[0], "/" in column
        like = judge_cell(cell, metric)
        last = {key: run["last"].get("by_type", {}) for key, run in cell.items()}
        found = {dataset: cell} if special else {f"{dataset}/{kind}": {
            key: run | {"last": last[key].get(kind, {})} for key, run in cell.items()
            if key[0] == like["rate"] and key[1] in like["seeds"]}
            for kind in set().union(*last.values())}
        for name in {row[1], "own" if row[:2] == (1, dataset) else row[1]}:
            marks = f"{row[2]} {'specialists' if special else 'generalist'}".strip()
            new = 2 * (row[0] > 0), name, marks
            tokens[new] = tokens.get(new, 0) + max(run.get("tokens", 0) for run in cell.values())
            parts |= {(new, kind): one for kind, one in found.items()}
    return {((*row[:2], f"{row[2]}, {tokens[row]:,} tokens"), kind): cell
            for (row, kind), cell in parts.items()}


def curves(flags, files):
    """Per target: iterations and tokens to the baseline's final loss, and the end-of-run drop."""
    for title, cells in read_cells(flags):
        rows, columns = list_axes(cells, flags.baseline)
        for column in columns:
            judged = {row: judge_cell(cells.get((row, column), {}), flags.metric) for row in rows}
            goal = judged[rows[0]]["mean"]
            table = [["", "final", "iters", "tokens", "+ warm-up", "tokens", "drop"]]
            for row, cell in judged.items():
                facts = zip(*(time_run(cells[row, column][cell["rate"], seed], flags.metric, goal)
                              for seed in cell["seeds"] if math.isfinite(cell["mean"] + goal)))
                means = [get_mean(fact) for fact in facts] or [math.nan] * 5
                table.append([wrap(row[1:]), cell["text"], *(
                    show(mean, ",.0f" if i < 4 else ".3f") for i, mean in enumerate(means))])
            print(f"\n{column}, to {show(goal)} where {rows[0][1]} ends{title and f' ({title})'}")
            print_table(table)
    print("\n- some seed never gets there; + warm-up: with the iterations and tokens of all its models"
          "\ndrop: loss at the last evaluation before the learning rate decays, minus the final one")


def time_run(run, metric, goal):
    """(iterations and tokens to the goal, both with the warm-up's own, drop in the decay)."""
    flags, source = run["flags"], run["source"] or {"model_iters": 0}
    sign = -1 if metric.endswith(HIGHER_IS_BETTER) else 1
    there = [(row["iter"], row["tokens"]) for row in run["log"]
             if sign * get_metric(row, metric) <= sign * goal] + [(math.nan, math.nan)]
    warmup, learned = source.get("model_iters", math.nan), source.get("flags") or {}
    warmup_tokens = warmup * learned.get("batch_size", 1) * learned.get("block_size", 1)
    decay = flags["max_iters"] * (1 - flags["lr_decay_frac"] * (flags["lr_schedule"] == "trapezoid"))
    before = [get_metric(row, metric) for row in run["log"] if row["iter"] <= decay] or [math.nan]
    return (*there[0], there[0][0] + warmup, there[0][1] + warmup_tokens,
            before[-1] - get_metric(run["last"], metric))


# --------------------------------------------------------------------------------------------------
# splines and their controls
# --------------------------------------------------------------------------------------------------
def list_functions(splines, part):
    """[(knots, values, visits)] of one part, one per row; equal visits where none are recorded."""
    x = np.linspace(-splines["spline_range"], splines["spline_range"], splines["n_knot"])
    rows = np.array(splines.get(part) or np.empty((0, len(x))), float)
    visits = np.array((splines.get("visits") or {}).get(part) or np.ones_like(rows), float)
    return [(x, y, w if w.any() else np.ones_like(w)) for y, w in zip(rows, visits)]


def get_gelu(x):
    return x * np.array([0.5 + 0.5 * math.erf(value / 2 ** 0.5) for value in x])


def get_rms(y, visits):
    """Root mean square over the activations that the visits count."""
    return np.average(y ** 2, weights=visits) ** 0.5


def controls(flags, files):
    """Writes beside each learned file what keeps a part of it (scale, slope or visited values):

    -gelu: GELU itself. -scaled: GELU with the learned RMS. -line: attention's least-squares line.
    -scaled_line: both. -shuffled: the visited values in another order.
    """
    if not files:
        raise SystemExit("controls needs a file: python analyze.py controls RUN/splines.json")
    for path in files:
        learned = load_splines(path)
        if learned.get("control") or not learned.get("visits"):
            raise SystemExit(f"{path}: controls are made from a splines.json with visits")
        rng = np.random.default_rng(learned.get("seed") or 0)
        mlp, attn = list_functions(learned, "mlp"), list_functions(learned, "attn")
        gelu = {"mlp": [get_gelu(x) for x, _, _ in mlp], "attn": []}
        scaled = {"mlp": [get_gelu(x) * get_rms(y, w) / get_rms(get_gelu(x), w) for x, y, w in mlp]}
        line = {"attn": [np.polyval(np.polyfit(x, y, 1, w=w ** 0.5), x) for x, y, w in attn]}
        shuffled = {"mlp": [y.copy() for _, y, _ in mlp], "attn": [y.copy() for _, y, _ in attn]}
        for y, (_, _, w) in zip(shuffled["mlp"] + shuffled["attn"], mlp + attn):
            y[w > 0] = rng.permutation(y[w > 0])
        made = {"gelu": gelu, "scaled": scaled} if mlp else {}
        made |= {"line": line} if attn else {}
        made |= {"scaled_line": scaled | line} if mlp and attn else {}
        for name, parts in (made | {"shuffled": shuffled}).items():
            control = learned | {part: [y.tolist() for y in rows] for part, rows in parts.items()}
            control = {k: v for k, v in control.items() if v != [] and k != "sha256"}
            target = f"{os.path.splitext(path)[0]}-{name}.json"
            save_json(target, control | {"control": name})
            print(target + ("" if "attn" in control else "   (use with --parts=mlp)"))


def splines(flags, files):
    """The learned functions as text, their numbers and distances, and a picture if asked."""
    files = files or sorted(map(str, Path(flags.out_dir).rglob("splines.json")))
    if not files:
        raise SystemExit(f"{flags.out_dir} holds no splines.json yet")
    loaded, drawn = [load_splines(path) for path in files], {}
    for i, (path, one) in enumerate(zip(files, loaded)):
        print(f"[{i + 1}] {path}: {one.get('dataset')} {one.get('tokenizer')}, seed "
              f"{one.get('seed')}, control {one.get('control')}, outside {one.get('outside')}")
    for part in ("mlp", "attn"):
        drawn[part] = [(f"[{i + 1}]", *function) for i, one in enumerate(loaded)
                       for function in list_functions(one, part)]
        table = [[part, "visited", "slope", "RMS", "/GELU's", *(f"- {f[0]}" for f in drawn[part])]]
        for name, x, y, w in drawn[part]:
            print(f"\n{part} {name}: # visited in the warm-up, . never")
            draw_text(x, y, w)
            span = f"{np.sum(w > 0)}/{len(x)} in {x[w > 0][0]:.1f}..{x[w > 0][-1]:.1f}"
            slope, rms, gelu = np.polyfit(x, y, 1, w=w ** 0.5)[0], get_rms(y, w), get_gelu(x)
            distances = [np.hypot(get_rms(y - np.interp(x, z, u), w),
                                  get_rms(u - np.interp(z, x, y), v)) / 2 ** 0.5
                         for _, z, u, v in drawn[part]]
            table.append([name, span, *map(show, (slope, rms, rms / get_rms(gelu, w), *distances))])
        print()
        print_table(table)
    print("- [i]: RMS distance, half over the activations of each")
    if flags.png:
        draw_png(flags.png, drawn)


def draw_text(x, y, visits, n_line=11, width=64):
    at = np.linspace(x[0], x[-1], width)
    sign = np.where(np.interp(at, x, visits > 0) >= 0.5, "#", ".")
    high, span = y.max(), max(y.max() - y.min(), 1e-9)
    level = np.rint((high - np.interp(at, x, y)) / span * (n_line - 1))
    for i in range(n_line):
        label = f"{high - span * i / (n_line - 1):9.3f} |" if i % 5 == 0 else " " * 10 + "|"
        print(label + "".join(np.where(level == i, sign, " ")).rstrip())
    print(" " * 10 + f"{x[0]:<8g}{(x[0] + x[-1]) / 2:^48g}{x[-1]:>8g}")


def draw_png(path, drawn):
    """A panel per part; the visited range is thick."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SystemExit(f"png={path}: matplotlib is missing; pip install matplotlib")
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axis, (part, functions) in zip(figure.subplots(1, 2), drawn.items()):
        for name, x, y, w in functions:
            line, = axis.plot(x, y, linewidth=0.7)
            axis.plot(x, np.where(w > 0, y, np.nan), linewidth=3, color=line.get_color(), label=name)
        axis.set(title=part, xlabel="input")
        axis.legend()
    figure.savefig(path)


# --------------------------------------------------------------------------------------------------
# plan
# --------------------------------------------------------------------------------------------------
def plan(flags, passed):
    """Prints the train.py commands that have no result but all inputs; warm-ups come first.

    A run with a result, also a failed one, is not asked for again; a half-done one is resumed.
    """
    sources, targets, seeds, rates = (split(text) for text in (flags.sources, flags.targets,
                                                               flags.seeds, flags.rates))
    runs = {key_run(run["flags"], run["place"]): run for run in read_runs(flags.out_dir)}
    script, learned, n_missing = Path(__file__).with_name("train.py"), {}, 0
    both = [arg for arg in passed if not arg.startswith("--warmup_")]
    warmup = both + [f"--{arg[9:]}" for arg in passed if arg.startswith("--warmup_")]
    datasets = dict.fromkeys(source.partition(":")[0] for source in sources)
    jobs = [*itertools.product(["warmup"], datasets, seeds, [flags.warmup_rate or rates[0]], [""]),
            *itertools.product(["baseline"], targets, seeds, rates, [""]),
            *itertools.product(["transfer"], targets, seeds, rates, sources)]
    for mode, dataset, seed, rate, source in jobs:
        args = [*(warmup if mode == "warmup" else both), f"--mode={mode}", f"--dataset={dataset}",
                f"--seed={seed}", f"--learning_rate={rate}"]
        origin, (name, _, control) = None, source.partition(":")
        if source:
            path = learned.get((name, seed), Path()) / f"splines{control and '-'}{control}.json"
            if not path.exists():
                continue
            args, origin = [*args, f"--splines={path}"], load_splines(str(path))
        wanted = configurator.parse(DEFAULTS, args)
        run = runs.get(key_run(wanted, place_run(wanted, origin, {})), {"status": "missing"})
        if run["status"] == "failed":
            print(f"{run['dir']} failed: {run.get('reason')}", file=sys.stderr)
        elif run["status"] == "finished" and mode == "warmup":
            learned[dataset, seed] = run["dir"]
        elif run["status"] != "finished":
            n_missing += 1
            folder = os.path.join(flags.out_dir, name_run(SimpleNamespace(**wanted), origin))
            args += [f"--out_dir={folder}"] * (flags.out_dir != "out")
            args += ["--resume=True"] * (run["status"] == "unfinished")
            print(shlex.join(["python", os.path.relpath(script), *args]))
    print(f"{n_missing} commands" if n_missing else "nothing is left to run", file=sys.stderr)


def key_run(flags, place):
    return *place[:2], *(flags[name] for name in ("mode", "dataset", "seed", "learning_rate"))


if __name__ == "__main__":
    commands = {f.__name__: f for f in (matrix, curves, splines, controls, plan)}
    defaults = {name: value for name, value in globals().items()
                if isinstance(value, str) and not name.startswith("_")}
    argv = sys.argv[1:] if sys.argv[1:] and sys.argv[1][0] != "-" else ["matrix", *sys.argv[1:]]
    if {"-h", "--help"} & set(argv):
        print(__doc__ + configurator.read_section(__file__, "flags"))
    elif argv[0] not in commands:
        raise SystemExit(f"{argv[0]} is no command; there are {', '.join(commands)}")
    else:
        mine = [arg for arg in argv[1:] if arg.startswith("-") and
                (argv[0] != "plan" or arg[2:].split("=")[0] in defaults)]
        rest = [arg for arg in argv[1:] if arg not in mine]
        commands[argv[0]](SimpleNamespace(**configurator.parse(defaults, mine)), rest)
