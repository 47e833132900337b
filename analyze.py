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
from train import BOOKKEEPING, DEFAULTS, get_acts, load_json, load_splines, name_run, save_json

# --------------------------------------------------------------------------------------------------
# flags
# --------------------------------------------------------------------------------------------------
out_dir = "out"         # folder that holds the runs' folders
metric = ""             # matrix, curves: names in result.json's "last", "outside.mlp" looks inside;
                        # of several (comma between) the first chooses rates and is tested;
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
NOT_SETTINGS = {*BOOKKEEPING, "mode", "dataset", "learning_rate", "splines"}
SPLINE_FLAGS = {"mlp_act", "attn_act", "parts", "n_knot", "spline_range", "spline_init", "n_models",
                "share_layers", "stagger", "spline_lr", "spline_data"}  # idle in plain baselines
HIGHER_IS_BETTER = ("accuracy", "exact_match")

def place_run(flags, source, data):
    """(settings, row, column): runs share a cell only where all three are equal.

    Settings is JSON. A row is (order, name, marks); the marks name all that was different in the
    warm-up that made the splines, or what is unusual about splines learned with the model itself.
    """
    mlp, attn = get_acts(SimpleNamespace(**flags))
    settings = {k: v for k, v in flags.items() if k not in NOT_SETTINGS | SPLINE_FLAGS | {"seed"}}
    usual, name, order = flags | {k: DEFAULTS[k] for k in SPLINE_FLAGS}, f"{mlp}+{attn}", 0
    learned, marks = flags if "spline" in name and source is None else {}, []
    if source is not None:
        learned, order = source["flags"] or {}, 3 if source["control"] else 1
        marks = [source["tokenizer"], source["control"], name != "spline+spline" and name,
                 f"at {learned['learning_rate']:g}" if learned else f"#{source['sha256'][:6]}"]
        name = source["dataset"] or "file"
    marks += [f"{k}={v}" for k, v in learned.items() if v != usual.get(k) and k not in NOT_SETTINGS]
    marks = " ".join(filter(None, marks)).replace("scramble=True", "scrambled").replace(
        "freeze_all_but_embeddings=True", "frozen")
    row = (2 if order == 1 and "scrambled" in marks else order, name.removesuffix("+none"), marks)
    column = f"{flags['dataset']} #{str(data.get('train'))[:4]}{str(data.get('val'))[:2]}"
    return json.dumps(settings, sort_keys=True), row, column

def read_runs(out_dir):
    """One dict per run: dir, place, log and all that flags.json and result.json hold."""
    runs = []
    for folder in sorted(path.parent for path in Path(out_dir).rglob("flags.json")):
        run = {"dir": folder, "status": "unfinished", "last": {}, "log": []}
        try:
            for path in filter(Path.exists, (folder / "flags.json", folder / "result.json")):
                run |= load_json(path)
            if (path := folder / "log.jsonl").exists():
                run["log"] = [json.loads(row) for row in path.read_text("utf-8").splitlines()]
            path = folder / "flags.json"
            runs.append(run | {"place": place_run(run["flags"], run["source"], run["data"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"{path} is damaged, its run is left out ({error!r})", file=sys.stderr)
    return runs

def name_differences(settings):
    """For each JSON dict, "name=value ..." of the names in which the dicts differ."""
    dicts = [json.loads(one) for one in settings]
    names = [name for name in sorted(set().union(*dicts))
             if any(one.get(name) != dicts[0].get(name) for one in dicts)]
    return [" ".join(f"{name}={one.get(name)}" for name in names) for one in dicts]

def read_cells(flags):
    """[(title, cells)] per setting, cells: {(row, column): {(rate, seed): run}}."""
    groups = {}
    for run in read_runs(flags.out_dir):
        (settings, row, column), name = run["place"], run["flags"]["dataset"]
        if run["flags"]["mode"] != "warmup" and name in split(flags.targets or name):
            cell = groups.setdefault(settings, {}).setdefault((row, column), {})
            twin = cell.setdefault((run["flags"]["learning_rate"], run["flags"]["seed"]), run)
            if twin is not run:
                print(f"{run['dir']} repeats {twin['dir']} and is left out", file=sys.stderr)
    if not groups:
        raise SystemExit(f"{flags.out_dir} holds no baseline or transfer run yet")
    return list(zip(name_differences(groups), groups.values()))

def list_axes(cells, baseline):
    """(rows, the baseline of that name first; columns)."""
    rows = sorted({row for row, _ in cells}, key=lambda row: (row[0], row[1] != baseline, row))
    return rows, sorted({column for _, column in cells})

def split(text):
    return [word.strip() for word in text.split(",") if word.strip()]

def get_metric(run, metric):
    """The number of that name in a run's last row; nan if the run failed, None if it has none."""
    last = run["last"]
    for name in (metric or ("answer_loss" if "answer_loss" in last else "val_loss")).split("."):
        last = last.get(name) if isinstance(last, dict) else None
    last = math.nan if run["status"] == "failed" else last
    return last if isinstance(last, (int, float)) else None

def show_mean(values):
    """Mean +- standard error; "-" where a value is missing."""
    values = np.array(values, float)
    if np.isnan(values).any():
        return "-"
    form, n = ",.0f" if abs(values).max() >= 1000 else ".3f", len(values)
    error = f"+-{np.std(values, ddof=1) / n ** 0.5:{form}}" if n > 1 else ""
    return f"{np.mean(values):{form}}{error}"

def judge_cell(cell, metrics):
    """What a cell shows at its best learning rate: text, mean, rate, judge, {seed: value}.

    The rate is chosen on the lowest seed that tried most rates, the judge, and reported on the
    others; on the judge ("same") only where there are no others. A single rate is no choice: then
    every seed counts. A failed run is worse than any number and never left out of a report.
    """
    metric, *more = metrics.split(",")
    done = {key: get_metric(run, metric) for key, run in sorted(cell.items())}
    done = {key: value for key, value in done.items() if value is not None}
    if not done:
        text = "unfinished" if "unfinished" in [run["status"] for run in cell.values()] else "-"
        return {"text": text, "mean": math.nan, "rate": None, "judge": None, "seeds": {}}
    tried, sign = [seed for _, seed in done], -1 if metric.endswith(HIGHER_IS_BETTER) else 1
    judge = min(tried, key=lambda seed: (-tried.count(seed), seed))
    score = {r: sign * value if math.isfinite(value) else math.inf
             for (r, seed), value in done.items() if seed == judge}
    rate, judge = min(score, key=score.get), judge if len(score) > 1 else None
    edge = f"/{len(score)}" + "<" * (rate == min(score)) + ">" * (rate == max(score))
    found = {seed: value for (r, seed), value in done.items() if r == rate}
    seeds = {seed: value for seed, value in found.items() if seed != judge} or found
    values, n = list(seeds.values()), len(seeds)
    text = f"failed {np.isnan(values).sum()}/{n}" if np.isnan(values).any() else show_mean(values)
    text += f"\n{rate:g}{edge * (judge is not None)} {'same' if judge in seeds else f'n={n}'}"
    for name in more:
        text += f"\n{name} {show_mean([get_metric(cell[rate, seed], name) for seed in seeds])}"
    unseen = max([share for seed in found for name in ("outside", "unvisited")
                  for share in cell[rate, seed]["last"].get(name, {}).values()] + [0])
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

def show(number):
    return "-" if math.isnan(number) else f"{number:,.0f}" if number >= 100 else f"{number:.3f}"

def wrap(texts, width=16):
    """Lines of at most that width; a longer name breaks behind a slash and before _char, _byte."""
    texts = [text if len(text) <= width else text.replace("/", "/ ").replace("_char", " _char")
             .replace("_byte", " _byte") for text in texts]
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
    if flags.by not in ("rows", "types"):
        raise SystemExit(f"by={flags.by} should be rows or types")
    for title, cells in read_cells(flags):
        cells = split_types(cells, flags.metric) if flags.by == "types" else cells
        print(f"\n{name}{title and ', '}{title}\neach row at its own best learning rate")
        if not cells:
            print("no question-answer data here")
            continue
        rows, columns = list_axes(cells, flags.baseline)
        best = print_matrix(cells, rows, columns, flags.metric)
        if rows[0][0] == 0 and flags.by == "rows":
            print(f"\nall rows at the best learning rate of {rows[0][1]}")
            print_matrix({(row, c): {key: run for key, run in cell.items()
                                     if key[0] == best[rows[0], c]["rate"]}
                          for (row, c), cell in cells.items()}, rows, columns, flags.metric)
        judges = sorted({str(cell["judge"]) for cell in best.values()} - {"None"})
        print("+- standard error over n seeds; below: rate/best of how many, < > lowest, highest;\n"
              "unseen: share of inputs on knots the warm-up never visited; - no run; means over\n"
              "columns mix units where tokenizers differ (except --metric=val_bits_per_byte)")
        if judges:
            print(f"rates chosen on seed {', '.join(judges)}, reported on others; same: no other")

def print_matrix(cells, rows, columns, metric):
    """Prints a matrix with its means and marks; gives back the judged cells."""
    judged = {(row, column): judge_cell(cells.get((row, column), {}), metric)
              for row in rows for column in columns}
    marked, n_test = mark_cells(judged, rows[0]) if rows[0][0] == 0 else (set(), 0)
    learned = [row for row in rows if row[0] == 1]
    table = [["", *(wrap([c], 13) for c in columns), "mean"]]
    for row in rows:
        texts = [judged[row, c]["text"].replace("\n", "*\n" if (row, c) in marked else "\n", 1)
                 for c in columns]
        mean = np.mean([judged[row, c]["mean"] for c in columns])
        table.append([wrap(row[1:]), *texts, show(mean)])
    own, rest, means = ([np.mean([judged[row, c]["mean"] for row in learned if
                                  (row[1] == c.partition(" #")[0]) in kind] or [math.nan])
                         for c in columns] for kind in ([True], [False], [True, False]))
    gaps = [a - b for a, b in zip(own, rest)]
    if learned:
        known = [gap for gap in gaps if gap == gap] or [math.nan]
        table.append(["mean of sources", *map(show, means), show(np.mean(means))])
        table.append(["own - others", *map(show, gaps), show(np.mean(known))])
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
        for name in dict.fromkeys([row[1], "own" if row[:2] == (1, dataset) else row[1]]):
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
                facts = [time_run(cells[row, column][cell["rate"], seed], flags.metric, goal)
                         for seed in cell["seeds"] if math.isfinite(cell["mean"] + goal)]
                table.append([wrap(row[1:]), cell["text"], *map(show, np.mean(
                    facts or [[math.nan] * 5], axis=0))])
            print(f"\n{column}, to {show(goal)} where {rows[0][1]} ends{title and f' ({title})'}")
            print_table(table)
    print("\n- some seed never does; + warm-up: with the iterations and tokens of all its models\n"
          "drop: loss at the last evaluation before the learning rate decays, minus the final one")

def time_run(run, metric, goal):
    """(iterations and tokens to the goal, both with the warm-up's own, drop in the decay)."""
    flags, source, metric = run["flags"], run["source"] or {"model_iters": 0}, metric.split(",")[0]
    sign = -1 if metric.endswith(HIGHER_IS_BETTER) else 1
    values = [(value, row) for row in run["log"]
              if (value := get_metric(run | {"last": row}, metric)) is not None]
    there = [row for value, row in values if sign * value <= sign * goal] + [{}]
    iters, tokens = (there[0].get(name, math.nan) for name in ("iter", "tokens"))
    warmup, learned = source.get("model_iters", math.nan), source.get("flags") or {}
    warmup_tokens = warmup * learned.get("batch_size", 1) * learned.get("block_size", 1)
    falls = flags["lr_decay_frac"] if flags["lr_schedule"] == "trapezoid" else 0
    before = [value for value, row in values if row["iter"] <= flags["max_iters"] * (1 - falls)]
    drop = before[-1] - values[-1][0] if before and falls else math.nan
    return iters, tokens, iters + warmup, tokens + warmup_tokens, drop

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
        old = [list_functions(learned, part) for part in ("mlp", "attn")]
        mlp, attn = ([y for _, y, _ in functions] for functions in old)
        gelu = [get_gelu(x) for x, _, _ in old[0]]
        scaled = [g * get_rms(y, w) / get_rms(g, w) for g, (_, y, w) in zip(gelu, old[0])]
        line = [np.polyval(np.polyfit(x, y, 1, w=w ** 0.5), x) for x, y, w in old[1]]
        shuffled = [[y.copy() for y in mlp], [y.copy() for y in attn]]
        for y, (_, _, w) in zip(sum(shuffled, []), sum(old, [])):
            y[w > 0] = rng.permutation(y[w > 0])
        made = {"gelu": (gelu, []), "scaled": (scaled, attn), "line": (mlp, line),
                "scaled_line": (scaled, line), "shuffled": shuffled}
        for name, new in made.items():
            if "line" in name and not attn or name in ("gelu", "scaled", "scaled_line") and not mlp:
                continue                                # the file lacks the part that would change
            rest = {k: v for k, v in learned.items() if k not in ("mlp", "attn", "sha256")}
            parts = {p: np.array(rows).tolist() for p, rows in zip(("mlp", "attn"), new) if rows}
            target = f"{os.path.splitext(path)[0]}-{name}.json"
            save_json(target, rest | parts | {"control": name})
            hint = f"--parts={[*parts][0]}" + " --attn_act=none" * (name == "gelu")
            print(target + f"   (use with {hint})" * (len(parts) == 1))

def splines(flags, files):
    """The learned functions as text, their numbers and distances, and a picture if asked."""
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
        others = [f"- {name.split()[0]}" for name, *_ in drawn[part]]
        table = [[part, "visited", "slope", "RMS", "/GELU's", *others]]
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
    for axis, (part, functions) in zip(figure.subplots(1, len(drawn), squeeze=False)[0],
                                       drawn.items()):
        for name, x, y, w in functions:
            color = axis.plot(x, y, linewidth=0.7)[0].get_color()
            axis.plot(x, np.where(w > 0, y, np.nan), linewidth=3, color=color, label=name)
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
    if not seeds or not rates or not sources + targets:
        raise SystemExit("plan needs --sources=a,b --targets=a,b --seeds=0,1 --rates=1e-3,2e-3")
    runs = {key_run(run["flags"], run["place"]): run for run in read_runs(flags.out_dir)}
    script, learned, n_missing, n_waiting = Path(__file__).with_name("train.py"), {}, 0, 0
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
            path = learned.get((name, seed), "") + f"{control and '-'}{control}.json"
            if not os.path.exists(path):
                n_waiting += 1
                continue
            args, origin = [*args, f"--splines={path}"], load_splines(path)
        wanted = configurator.parse(DEFAULTS, args)
        run = runs.get(key_run(wanted, place_run(wanted, origin, {})), {"status": "missing"})
        if run["status"] == "failed":
            print(f"{run['dir']} failed: {run.get('reason')}", file=sys.stderr)
        elif run["status"] == "finished" and mode == "warmup":
            learned[dataset, seed] = str(run["dir"] / "splines")
        elif run["status"] != "finished":
            n_missing += 1
            name = os.path.basename(name_run(SimpleNamespace(**wanted), origin))
            folder = os.path.join(flags.out_dir, name)
            args += [f"--out_dir={folder}"] * (flags.out_dir != "out")
            args += ["--resume=True"] * (run["status"] == "unfinished")
            print(shlex.join(["python", os.path.relpath(script), *args]))
    print(f"{n_missing} commands; {n_waiting} transfers wait for their splines file" if n_missing
          or n_waiting else "nothing is left to run", file=sys.stderr)

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
