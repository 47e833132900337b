"""The tests. SLOW=1 adds what starts processes or takes long; samples are skipped when absent."""
import collections
import contextlib
import copy
import gzip
import hashlib
import http.server
import importlib.util
import inspect
import io
import itertools
import json
import math
import multiprocessing
import os
import pickle
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import analyze
import configurator
import prepare
import train
from train import DEFAULTS, Spline

slow = pytest.mark.skipif(not os.environ.get("SLOW"), reason="SLOW=1 runs it")

# --------------------------------------------------------------------------------------------------
# train.py, configurator.py
torch.set_num_threads(1)    # tiny tensors: more threads only wait for each other
os.environ["OMP_NUM_THREADS"] = "1"     # and in started processes: equal to the bit
META = {"vocab_size": 9, "end_mark": 8, "bytes_per_token": [1, 2, 3, 1, 1, 1, 1, 1, 0]}
MUON = "muon" if hasattr(torch.optim, "Muon") else "adamw"      # an old torch has none
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None      # an optional package
CURVE = [1 / 3, 2 / 3, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]     # of ten iterations, ramp 0.2
IDS = np.random.default_rng(0).integers(0, 9, 300)

def make_cfg(folder="", **changes):
    """All flags of a tiny run on the data set that write_data left in folder."""
    return SimpleNamespace(**train.DEFAULTS | {
        "dataset": "tiny", "data_dir": f"{folder}/data", "out_dir": f"{folder}/out", "window": 8,
        "device": "cpu", "compile": "False", "n_layer": 2, "n_head": 2, "n_embd": 16, "n_models": 2,
        "block_size": 16, "max_iters": 4, "learning_rate": 0.01} | changes)

def write_data(folder, train_ids=IDS, val_ids=IDS[:200], **changes):
    """A data set `tiny` as prepare.py would write it, and what read_dataset gives for it."""
    place, splits = Path(folder, "data", "tiny"), {"train": train_ids, "val": val_ids}
    place.mkdir(parents=True, exist_ok=True)
    for split, ids in splits.items():
        np.array(ids).astype("<u2").tofile(place / f"{split}.bin")
    meta = META | {"tokenizer": "char", "fingerprint": "f", "sha256": {
        split: hashlib.sha256(np.array(ids).astype("<u2")).hexdigest()
        for split, ids in splits.items()},
        "n_token": {split: len(ids) for split, ids in splits.items()}} | changes
    (place / "meta.json").write_text(json.dumps(meta))
    return SimpleNamespace(meta=meta, n_token=meta["n_token"], path={
        split: place / f"{split}.bin" for split in splits})

def write_splines(folder, **changes):
    content = {"n_knot": 64, "spline_range": 15.0, "share_layers": "all", "dataset": "made",
               "mlp": [[0.1 * i for i in range(64)]], "attn": [[0.01 * i * i for i in range(64)]]}
    Path(folder, "s.json").write_text(json.dumps(content | changes))
    return f"{folder}/s.json"

def make_model(cfg, meta=META, std=0.3):
    """A model in which nothing is zero, alike with and without splines; and its splines."""
    config = train.make_config(cfg, meta)
    splines = train.make_splines(config)
    model, draw = train.GPT(config, splines), torch.Generator().manual_seed(5)
    for _, weight in sorted(model.named_parameters(), key=lambda pair: "values" in pair[0]):
        weight.data.normal_(0, std, generator=draw)
    return model, splines

def run(folder, name="out", cut=1000, **flags):
    """A run that "dies" in iteration cut: its flags, the weights of each model, its checkpoint."""
    flags, real = {"save_interval": cut, "out_dir": f"{folder}/{name}"} | flags, train.get_batch
    cfg = make_cfg(folder, **flags)
    def get_batch(data, first, *args, **more):
        if first >= cut * cfg.batch_size:
            raise InterruptedError
        return real(data, first, *args, **more)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(InterruptedError):
        patch.setattr(train, "get_batch", get_batch)
        train.train(cfg)
    saved = torch.load(Path(cfg.out_dir, "ckpt.pt"), weights_only=True)
    return cfg, [weights for _, (weights, _) in sorted(saved["models"].items())], saved

def read(cfg, name):
    """The rows of a json or jsonl file of a run, without its clock."""
    rows = [json.loads(line) for line in Path(cfg.out_dir, name).read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "time_s"} for row in rows]

def differ(a, b):
    """Names of the tensors in which two state dicts are not the same to the last bit."""
    assert a.keys() == b.keys()
    return {name for name in a if not torch.equal(a[name], b[name])}

def refuses(words, function, *args):
    """It ends with exit status 1 and one line that holds the words."""
    with pytest.raises(SystemExit) as error:
        function(*args)
    return words in error.value.code and "\n" not in error.value.code

@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5),
                                              (torch.bfloat16, 2**-8 + 1e-5)])
@pytest.mark.parametrize("zigzag", [False, True])
def test_spline_equals_numpy_interp_everywhere(dtype, tolerance, zigzag):
    draw, knots, spline = np.random.default_rng(0), np.linspace(-15, 15, 64), Spline(64, 15.0)
    spline.values.data = torch.tensor((-1.0) ** np.arange(64) if zigzag else draw.normal(size=64))
    spline.to(torch.promote_types(dtype, torch.float32))
    x = np.concatenate([draw.uniform(-20, 20, 100_000), knots, [1e30, -1e30, np.inf, -np.inf]])
    x, values = torch.tensor(x).to(dtype).reshape(4, -1), spline.values.detach().double()
    y = spline(x).detach()
    error = y.double().numpy() - np.interp(x.double(), knots, values)
    assert np.abs(error).max() <= tolerance * values.abs().max()    # bfloat16 rounds to 8 bits
    assert (y.shape, y.dtype) == (x.shape, dtype)
    assert spline(torch.tensor([math.nan, 1.0], dtype=dtype)).isnan().tolist() == [True, False]

def test_spline_gradients_pass_gradcheck_away_from_knots_and_at_them_take_the_right_side():
    values, spline = torch.tensor([0.3, -1, 2, 0.5, 4], dtype=torch.float64), Spline(5, 2.0)
    x = torch.tensor([-2.7, -1.6, -0.3, 0.45, 0.8, 1.9, 3.1], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda x, values: torch.func.functional_call(spline, {"values": values}, x),
        (x.requires_grad_(), values.requires_grad_()))
    spline.values = torch.nn.Parameter(torch.tensor([0.0, 1, 3, 6, 10]), requires_grad=False)
    x = torch.tensor([-9.0, -2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 9.0], requires_grad=True)
    spline(x).sum().backward()
    assert x.grad.tolist() == [0, 1, 2, 3, 3, 4, 0, 0] and spline.values.grad is None   # frozen

@pytest.mark.parametrize("device", ["cpu", "others"])
def test_gradient_of_values_is_the_hat_weights_and_sums_to_the_incoming_gradient(device):
    code, names = inspect.getsource(train.sum_some_hats), vars(train).copy()
    assert code.count('"cpu"') == 1     # so that its other branch, too, can be run here
    exec(code.replace('"cpu"', f'"{device}"'), names)
    knots, ends = torch.linspace(-15, 15, 64), torch.tensor([math.inf, -math.inf])
    x = torch.cat([torch.linspace(-17, 17, 481), knots, ends])
    hats = (1 - (x.clamp(-15, 15)[:, None] - knots).abs() * 2.1).clamp(min=0)           # (n, K)
    grad = torch.linspace(-1, 1, len(x))
    sum_some = names["sum_some_hats"]
    each = torch.stack([sum_some(a[None], b[None], 64, 15.0) for a, b in zip(grad, x)])
    assert torch.allclose(each.sum(1), grad, atol=1e-5)
    assert torch.allclose(each, grad[:, None] * hats, atol=1e-4)    # positions round to 4e-6
    many = [a.repeat(600) for a in (grad, x)]       # two pieces
    total = train.sum_hats(*many, 64, 15.0, lambda _: sum_some)
    assert torch.allclose(total, 600 * (grad @ hats), 1e-4, 1e-1)       # float32 sums of 328,200

@pytest.mark.parametrize("window, end_mark", [(5, 8), (1024, 8), (5, None), (1024, None)])
def test_no_token_reaches_another_document_or_an_earlier_position(window, end_mark):
    cfg = make_cfg(mode="warmup", n_layer=4, window=window)
    model, _ = make_model(cfg, {"vocab_size": 9, "end_mark": end_mark})
    idx = torch.tensor([0, 3, 1, 4, 1, 5, 8, 2, 6, 5, 3, 8, 8, 5, 7, 0, 3, 2, 3, 8, 4, 6, 2, 6])
    T, p = len(idx), torch.arange(len(idx))
    changed = idx.repeat(2 * T + 1, 1)
    changed[p, p] = (idx + 1) % 8                           # another token, never a mark
    changed[T + p, p] = torch.where(idx == 8, 3, 8)         # a mark comes or goes
    hidden = model.double()(changed)
    differs = (hidden[:-1] - hidden[-1]).abs().amax(-1).view(2, T, T) > 1e-12   # of 2T changes
    document = (idx == end_mark if end_mark else idx < 0).cumsum(0)
    same = (p[:, None] <= p) & (document[:, None] == document)
    assert not differs[:, ~same].any() and differs[0][same & (p - p[:, None] < 4)].all()

@pytest.mark.parametrize("flags", [{"mode": "warmup"}, {"tie_embeddings": False}, {"n_layer": 7},
                                   {"n_embd": 64}, {"freeze_all_but_embeddings": True}])
def test_fresh_model_predicts_about_uniformly(flags):
    config = train.make_config(make_cfg(**flags), {"vocab_size": 500, "end_mark": None})
    model, x = train.GPT(config, train.make_splines(config)), torch.arange(400).view(4, 100)
    assert abs(train.compute_loss(model, x, x + 1).item() - math.log(500)) < 0.05

@pytest.mark.parametrize("vocab_size, torchs", [(4095, False), (4096, False), (4096, True)])
def test_loss_and_its_gradients_equal_plain_cross_entropy(monkeypatch, vocab_size, torchs):
    if not torchs:          # as in torch before 2.13
        monkeypatch.delattr(torch.nn, "LinearCrossEntropyOptions", raising=False)
    model, _ = make_model(make_cfg(), {"vocab_size": vocab_size, "end_mark": None}, 0.1)
    x, y = torch.randint(vocab_size, (2, 2, 700), generator=torch.Generator().manual_seed(0))
    plain = F.cross_entropy(model.head(model(x)).flatten(0, 1), y.flatten())
    loss, weights = train.compute_loss(model, x, y), list(model.parameters())
    assert torch.allclose(loss, plain, rtol=1e-5)           # float32 sums in another order
    for a, b in zip(torch.autograd.grad(loss, weights), torch.autograd.grad(plain, weights)):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-6)

def test_residual_free_block_is_attention_then_mlp_computed_by_hand(tmp_path):
    cfg = make_cfg(tmp_path, residual=False, n_layer=2, optimizer=MUON, window=99,
                   attn_temperature=1.5, attn_temperature_depth=0.25, end_mark=None)
    config = train.make_config(cfg, META | {"end_mark": None})
    new = train.make_model(0, config, train.make_splines(config), cfg)
    block, norm = new.model.blocks[1], lambda x: x / (x.square().mean(-1, True) + 1e-5).sqrt()
    x = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0))
    mats = [m.weight for m in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc,
                               block.mlp.c_proj)]
    q, k, v = mats[0].chunk(3)
    assert torch.equal(q, k) and not torch.equal(q, v)
    for square in (q, v, mats[1], mats[2].T, mats[3]):      # rows orthogonal: a start of [3]
        assert torch.allclose(square @ square.T, torch.eye(16), atol=1e-5)
    turn = torch.polar(torch.ones(7, 4), torch.arange(7)[:, None] * 1e4 ** (-torch.arange(4) / 4))
    def get_head(weight, h):            # (B, T, D): normed, then pairs turn as complex numbers
        y = (norm(x) @ weight.T)[..., 8 * h:8 * h + 8]
        y = y / (y.square().mean(-1, True) + torch.finfo(torch.float32).eps).sqrt()
        y = torch.complex(y[..., :4], y[..., 4:]) * turn
        return torch.cat([y.real, y.imag], -1)
    heads = []
    for h in range(2):
        logits = get_head(q, h) @ get_head(k, h).mT * 1.75 / 8 ** 0.5       # 1.5 + 0.25 * layer 1
        seen = logits.masked_fill(torch.ones(7, 7).triu(1) > 0, -math.inf).softmax(-1)
        heads.append(seen @ (norm(x) @ v.T)[..., 8 * h:8 * h + 8])
    y = norm(torch.cat(heads, -1) @ mats[1].T)
    cos, sin = turn.real, turn.imag
    found, _ = block(x, None, torch.zeros(2, 2, 7, 8), None, cos, sin)      # no value residual
    assert torch.allclose(found, F.gelu(y @ mats[2].T) @ mats[3].T, atol=1e-5)
    ours = [weight for name, weight in new.model.named_parameters()]
    moved = [[w for g in x.param_groups for w in g["params"]] for x in new.optimizers]
    assert sorted(map(id, sum(moved, []))) == sorted(map(id, ours))         # each in exactly one
    blocks = [m.weight for m in new.model.blocks.modules() if isinstance(m, torch.nn.Linear)]
    assert MUON == "adamw" or {*map(id, moved[1])} == {*map(id, blocks)}    # those of muon
    assert not any((weight == 0).all() for weight in ours)                  # nothing starts at zero

@pytest.mark.parametrize("parts", ["both", "mlp", "attn"])
@pytest.mark.parametrize("share, rows", [("all", [0, 0, 0, 0]), ("middle", [0, 1, 1, 2]),
                                         ("none", [0, 1, 2, 3])])
def test_parts_and_share_layers_say_which_layers_have_which_spline(parts, share, rows):
    model, splines = make_model(make_cfg(mode="warmup", n_layer=4, parts=parts, share_layers=share))
    for kind in ("mlp", "attn"):
        acts = [getattr(block, kind).act for block in model.blocks]
        assert [splines[kind].index(act) for act in acts if isinstance(act, Spline)] == (
            rows if parts in ("both", kind) else [])

@pytest.mark.parametrize("n_layer", [2, 12])
def test_loaded_functions_arrive_each_at_its_place_in_every_layer(tmp_path, n_layer):
    knots, flags = torch.linspace(-16, 16, 33), {"n_knot": 33, "spline_range": 16.0}
    acts, x = {"relu": [knots.relu().tolist()], "linear": [knots.tolist()]}, torch.arange(8)[None]
    cfg = make_cfg(n_layer=n_layer, mlp_act="relu", attn_act="linear")
    expected = make_model(cfg, std=0.1)[0](x)
    for mlp, attn in (("relu", "linear"), ("relu", "relu"), ("linear", "linear")):
        path = write_splines(tmp_path, mlp=acts[mlp], attn=acts[attn], **flags)
        cfg = make_cfg(n_layer=n_layer, mode="transfer", splines=path, **flags)
        model, splines = make_model(cfg, std=0.1)
        train.place_splines(splines, train.load_splines(path), cfg)
        same = torch.allclose(model(x), expected, atol=1e-3)        # rounding grows over the layers
        assert same == ((mlp, attn) == ("relu", "linear"))

@pytest.mark.parametrize("n_trainable, stays, mode, more", [
    (6380, "0.attn.v_mix", "baseline", {"attn_act": "linear"}),     # that one has no effect
    (6380, "0.attn.v_mix values", "transfer", {}),
    (6380, "0.attn.v_mix values", "transfer", {"parts": "mlp"}),
    (144, "norm skip out mix c_ act_", "warmup", {"freeze_all_but_embeddings": True}),
    (144, "norm skip out blocks", "transfer", {"freeze_all_but_embeddings": True})])
def test_what_is_frozen_stays_bit_identical_and_all_else_trains(
        tmp_path, n_trainable, stays, mode, more):
    write_data(tmp_path)
    path = write_splines(tmp_path) if mode == "transfer" else ""
    cfg, (weights,), _ = run(tmp_path, n_models=1, mode=mode, splines=path, **more)
    splines = train.make_splines(config := train.make_config(cfg, META))
    if path:
        train.place_splines(splines, train.load_splines(path), cfg)
    fresh = train.make_model(0, config, splines, cfg).model.state_dict()
    assert fresh.keys() - differ(fresh, weights) == {
        name for name in fresh if any(word in name for word in stays.split())}
    # by hand: embedding 9 * 16, its norm 16, skip and out 2, each block 12 * 16**2 + 2 * 16 + 5
    assert read(cfg, "result.json")[0]["n_trainable"] == n_trainable

@pytest.mark.parametrize("residual", [True, False])
def test_norms_read_the_dtype_of_their_weights_under_bfloat16(residual):
    cfg, seen = make_cfg(residual=residual, dtype="bfloat16"), []
    model, _ = make_model(cfg)
    for module in model.modules():
        if isinstance(module, torch.nn.RMSNorm):
            module.register_forward_pre_hook(lambda norm, inputs: seen.append(
                inputs[0].dtype is norm.weight.dtype))
    with train.autocast(cfg):
        hidden = model(torch.arange(8)[None])
    assert len(seen) >= 4 and all(seen) and hidden.dtype is torch.float32

def test_learning_rate_rises_stays_and_falls_and_is_never_zero():
    def get_curve(**flags):
        cfg = make_cfg(**flags)
        return [train.get_lr_factor(it, cfg) for it in range(cfg.max_iters)]
    assert get_curve(max_iters=10, lr_warmup_frac=0.2) == pytest.approx(CURVE)
    for N, name in itertools.product((1, 2, 3, 7, 100), ("trapezoid", "constant", "cosine")):
        curve = get_curve(max_iters=N, lr_schedule=name)
        assert 0 < min(curve) and max(curve) <= 1 and (N < 7 or max(curve) == 1)
        assert N < 7 or (curve[-1] == 1) == (name == "constant")

@pytest.mark.parametrize("stagger", ["delayed", "common", "none"])
def test_models_start_and_follow_the_curve_as_stagger_says(tmp_path, stagger):
    write_data(tmp_path)
    *_, saved = run(tmp_path, cut=9, mode="warmup", stagger=stagger, n_models=4, max_iters=10,
                    lr_warmup_frac=0.2, parts="attn")
    starts = [0] * 4 if stagger == "none" else [0, 2, 5, 8]         # 2.5 and 7.5 round to even
    for m in range(4):
        (moments,) = saved["models"][m][1]      # of AdamW, after update number 8
        for group in moments["param_groups"]:
            position = 8 - starts[m] if stagger == "delayed" else 8
            assert group["lr"] == pytest.approx(0.01 * CURVE[position])
        assert {int(state["step"]) for state in moments["state"].values()} == {9 - starts[m]}
    (group,) = saved["spline_optimizer"]["param_groups"]
    assert (group["lr"], len(group["params"])) == (pytest.approx(0.1 * CURVE[8]), 1)

@pytest.mark.parametrize("it", [1, 3])
def test_spline_gradient_is_the_mean_over_the_started_models(tmp_path, it):
    data, total = write_data(tmp_path), 0
    cfg, models, before = run(tmp_path, "a", cut=it, mode="warmup")             # starts: 0 and 2
    *_, after = run(tmp_path, "b", cut=it + 1, mode="warmup")
    for m, weights in enumerate(models):
        model, splines = make_model(cfg)
        model.load_state_dict(weights)
        x, y = train.get_batch(data, it, 1, cfg, stream=m + 1)
        loss = F.cross_entropy(model.head(model(x)).flatten(0, 1), y.flatten())
        values = [splines[kind][0].values for kind in ("mlp", "attn")]
        total = total + torch.stack(torch.autograd.grad(loss, values))
    assert len(models) == (it + 1) // 2 and total.abs().max() > 1e-4
    for i in (0, 1):            # Adam's first moment, beta 0.99
        old, new = (saved["spline_optimizer"]["state"][i]["exp_avg"] for saved in (before, after))
        assert torch.allclose(100 * (new - 0.99 * old), total[i] / len(models), 1e-3, 1e-6)

def test_every_weight_has_one_optimizer_and_no_two_models_share_weights_or_batches(tmp_path):
    data, runs, batches = write_data(tmp_path), [], []
    for m, mode in enumerate(("warmup", "warmup", "warmup", "baseline")):
        cfg = make_cfg(tmp_path, mode=mode)
        config = train.make_config(cfg, META)
        splines = splines if 0 < m < 3 else train.make_splines(config)
        runs.append(train.make_model(m % 3, config, splines, cfg))
        batches.append(train.get_batch(data, 0, 5, cfg, runs[-1].stream)[0])
    moved = [w for run in runs for x in run.optimizers for g in x.param_groups for w in g["params"]]
    ours = [w for run in runs for name, w in run.model.named_parameters() if "values" not in name]
    assert sorted(map(id, moved)) == sorted(map(id, ours)) and len(set(map(id, ours))) == len(ours)
    for some in (batches, [run.model.blocks[0].mlp.c_fc.weight for run in runs]):
        assert not any(torch.equal(some[i], some[j]) for i in range(4) for j in range(i))

@pytest.mark.parametrize("n_token", [33, 34, 64, 65, 66, 300])
def test_batches_cover_every_target_of_an_epoch_and_are_a_pure_function(tmp_path, n_token):
    data, n = write_data(tmp_path, np.arange(n_token), end_mark=None), math.ceil((n_token - 1) / 32)
    cfg = make_cfg(tmp_path, block_size=32)
    epochs = [train.get_batch(data, i * n, n, cfg) for i in range(3)]
    for x, y in epochs:
        assert x.shape == (n, 32) and torch.equal(x + 1, y)
        assert sorted(set(y.flatten().tolist())) == list(range(1, n_token))
    assert n < 5 or not torch.equal(epochs[0][0], epochs[1][0])
    for i in reversed(range(3 * n)):            # any order, any batch size
        assert torch.equal(train.get_batch(data, i, 1, cfg)[0][0], epochs[i // n][0][i % n])

@pytest.mark.parametrize("n_val", [17, 32, 33, 34, 90])
def test_validation_scores_every_token_but_the_first_once_at_any_batch_size(tmp_path, n_val):
    data, (model, _) = write_data(tmp_path, val_ids=IDS[:n_val]), make_model(make_cfg(), std=1.0)
    for block in model.blocks:          # what remains looks at the token before alone
        block.attn.c_proj.weight.data.zero_()
        block.mlp.c_proj.weight.data.zero_()
    table = -model.head(model(torch.arange(9)[:, None]))[:, 0].log_softmax(-1).detach().numpy()
    for batch_size, limit in ((1, 10**6), (7, 10**6), (1, 20), (1, n_val - 1), (1, 1)):
        cfg, n = make_cfg(batch_size=batch_size, eval_tokens=limit), min(limit, n_val - 1)
        before, after = IDS[:n], IDS[1:n + 1]
        nats, hits = train.score_tokens(model, data, cfg)
        assert nats == pytest.approx(table[before, after], abs=1e-4) and len(nats) == n
        assert hits.tolist() == (table.argmin(1)[before] == after).tolist()
        row, total = train.evaluate(model, data, cfg), table[before, after].sum(dtype=float)
        bits = total / math.log(2) / max(1, sum(META["bytes_per_token"][i] for i in after))
        assert row["val_loss"] == pytest.approx(total / n, abs=1e-5)
        assert row["val_bits_per_byte"] == pytest.approx(bits, abs=1e-4)

@torch.no_grad()
def test_exact_match_and_answer_loss_agree_with_a_slow_greedy_decoder_on_whole_pairs(tmp_path):
    model, _ = make_model(make_cfg(tie_embeddings=False))
    model.head.weight[8] = 1.01 * model.head.weight[3]      # so that most answers end in time
    draw, val, pairs, right, nats = np.random.default_rng(1), [], [], [], []
    def predict(ids):
        return model.head(model(torch.tensor([ids])))[0].log_softmax(-1)                # (T, V)
    for i in range(60):
        prompt = [8] * bool(val) + draw.integers(0, 8, 1 + i % 4).tolist()
        decoded = []
        while len(decoded) < 4 and 8 not in decoded:
            decoded.append(int(predict(prompt + decoded)[-1].argmax()))
        answer = [token for token in decoded[:3] if token < 8] + [8]
        answer = [1, *answer[1:]] if i % 3 == 2 and len(answer) > 1 else answer
        nat = -predict(prompt + answer)[len(prompt) - 1:-1].gather(1, torch.tensor(answer)[:, None])
        right, nats = [*right, decoded == answer], [*nats, nat.sum().item()]
        pairs.append([i % 5 // 3, 1 + i % 4, len(answer)])
        val += prompt[bool(val):] + answer
    (kind, _, size), right, nats = np.array(pairs).T, np.array(right), np.array(nats)
    data = write_data(tmp_path, val_ids=val, val_pairs=pairs, types=["a", "b"])
    for n, limit, block_size in ((60, 10**6, 16), (60, len(val) - 1, 3), (59, len(val) - 2, 64)):
        row = train.evaluate(model, data, make_cfg(eval_tokens=limit, block_size=block_size))
        rates = [right[:n][kind[:n] == i].mean() for i in (0, 1)]
        parts = row["by_type"].values()
        assert [part["n"] for part in parts] == np.bincount(kind[:n]).tolist()
        assert [part["exact_match"] for part in parts] == pytest.approx(rates)
        assert row["exact_match"] == pytest.approx(sum(rates) / 2) and 0 < min(rates) < 1
        assert row["answer_loss"] == pytest.approx(nats[:n].sum() / size[:n].sum(), abs=1e-4)

@pytest.mark.parametrize("flags", [{"average_checkpoints": True, "average_start_frac": 0.2},
                                   {"mode": "warmup", "n_models": 3, "scramble": True}])
def test_neither_resuming_nor_reporting_changes_a_bit(tmp_path, flags):
    write_data(tmp_path)
    flags |= {"max_iters": 9, "batch_size": 2, "save_interval": 2, "resume": True}
    run(tmp_path, "cut", 5, eval_interval=3, **flags)       # leaves iteration 4, between two starts
    runs = [run(tmp_path, name, eval_interval=interval, log_interval=interval, **flags)
            for name, interval in (("uncut", 3), ("cut", 3), ("often", 1))]
    for _, models, saved in runs[1:]:
        assert not any(differ(*pair) for pair in zip(models, runs[0][1], strict=True))
        assert not saved["average"] or not differ(saved["average"], runs[0][2]["average"])
    assert read(runs[0][0], "log.jsonl") == read(runs[1][0], "log.jsonl")

def test_out_dir_is_never_trained_twice_nor_given_to_another_run(tmp_path, capsys):
    write_data(tmp_path)
    cfg, *_ = run(tmp_path, cut=2)
    assert refuses("resume", train.train, cfg)
    run(tmp_path, resume=True)
    before = Path(cfg.out_dir, "result.json").read_bytes()
    for change in ({}, {"eval_interval": 7}, {"resume": True}, {"data_dir": f"{tmp_path}/./data"}):
        assert train.train(SimpleNamespace(**vars(cfg) | change))["last"]
        assert ("eval_interval=1000 before, 7 now" in capsys.readouterr().out) == (
            "eval_interval" in change)
    for change in ({"beta1": 0.5}, {"learning_rate": 0.02}, {"seed": 1}, {"mode": "warmup"}):
        assert refuses(*change, train.train, SimpleNamespace(**vars(cfg) | change))
    flags = json.loads((path := Path(cfg.out_dir, "flags.json")).read_text())
    path.write_text(old := json.dumps(flags | {"commit": "older"}))     # its code made the result
    train.train(cfg)
    assert "made at commit older" in capsys.readouterr().out and path.read_text() == old
    write_data(tmp_path, IDS[::-1])
    assert refuses("train", train.train, cfg)
    assert Path(cfg.out_dir, "result.json").read_bytes() == before     # the clock included
    run(tmp_path, overwrite=True)
    assert Path(cfg.out_dir, "result.json").read_bytes() != before
    ckpt, before = (path := Path(cfg.out_dir, "ckpt.pt")), path.read_bytes()
    result = Path(cfg.out_dir, "result.json").read_text()
    long = result.replace('"val_loss": ', f'"n": {10**400}, "val_loss": ')
    for name, content in (("result.json", '{"status": 5}'), ("result.json", "[]"),
                          ("result.json", "null"), ("result.json", "{}"),
                          ("result.json", '{"status": "finished"}'),
                          ("result.json", result.replace('"val_loss": ', '"val_loss": -')),
                          ("result.json", long), ("flags.json", "[]")):
        Path(cfg.out_dir, name).write_text(content)
        assert refuses(f"/{name} is damaged", train.train, cfg) and ckpt.read_bytes() == before
    assert refuses("is a file; give another", train.train, make_cfg(tmp_path, out_dir=str(ckpt)))
    Path(cfg.out_dir, "flags.json").unlink()            # another program's folder
    assert refuses("ckpt.pt", train.train, cfg) and ckpt.read_bytes() == before

BAD = [(flags, "", b"", flags.split("=")[0]) for flags in (
    "n_embd=18", "n_knot=1", "mode=train", "learning_rate=0", "max_iters=-1", "seed=-1", "beta1=1",
    "lr_warmup_frac=0.6", "splines=x.json", "splines= mode=transfer", "window=0", "device=tpu",
    "attention=flex", "n_layer=2 share_layers=middle", "average_checkpoints=True mode=warmup",
    "dataset=", "device=cpu:x", "spline_init=1e300", "compare_rates=1e-3,1e400",
    "overwrite=True resume=True", "compare_rates=fast",
    "compare_rates=0,1e-3", "compare_rates=e-3", "block_size=250",
    "out_dir=/dev/null/x", "spline_data=held_out mode=warmup block_size=160",
    "spline_data=held_out")]
BAD += [("", *row) for row in (
    ("train.bin", bytes(599), "train.bin"), ("train.bin", bytes(598) + b"\t\0", "vocab"),
    ("train.bin", bytes(600), "sha256"),
    ("val.bin", b"\t\0" * 200, "vocab"), ("val.bin", bytes(401), "val.bin"),
    ("meta.json", b"", "prepare.py"), ("meta.json", b"{}", "meta"), ("meta.json", b"[]", "meta"),
    ("meta.json", {"tokenizer": 5}, "meta"), ("meta.json", {"end_mark": 9}, "meta"),
    ("meta.json", {"checksum": "0"}, "does not fit its checksum"))]
BAD += [(f"mode=transfer {flags}", "s.json", content, words) for flags, content, words in (
    ("n_knot=32", {}, "n_knot"), ("", {"attn": [[]]}, "attn"), ("spline_range=9", {}, "range"),
    ("share_layers=none", {}, "share_layers"), ("", {"mlp": [[math.nan] * 64]}, "mlp"),
    ("", {"mlp": [[1e39] * 64]}, "mlp"), ("", {"share_layers": "a"}, "='a' all, middle"),
    *(("", {"visits": {"mlp": [[n] * 64]}}, "visits of mlp") for n in (-1, math.nan, "x")),
    ("", {"spline_range": math.nan}, "spline_range"), ("", {"seed": "x"}, "seed should be"),
    ("", {"flags": 5}, "flags should be"), ("", {"mlp": 0}, "mlp should be like [], not 0"),
    ("", [1, 2], "as train.py writes"), ("", {"n_knot": None}, "n_knot=0 should be"),
    ("", {"attn": None}, "has 0 attn functions"),
    ("share_layers=none", {"share_layers": "none", "mlp": [[0.0] * 64] * 4}, "mlp"))]

@pytest.mark.parametrize("flags, name, content, words", BAD)
def test_what_cannot_work_is_refused_before_any_work(tmp_path, flags, name, content, words):
    write_data(tmp_path, **content if name == "meta.json" and type(content) is dict else {})
    if name == "s.json":
        path = write_splines(tmp_path, **content if isinstance(content, dict) else {})
        Path(path).write_text(json.dumps(content)) if isinstance(content, list) else None
        flags = f"splines={path} {flags}"
    elif type(content) is bytes and name:
        Path(tmp_path, "data", "tiny", name).write_bytes(content)
    cfg = configurator.parse(vars(make_cfg(tmp_path)), [f"--{flag}" for flag in flags.split()])
    assert refuses(words, train.train, SimpleNamespace(**cfg))
    assert not Path(tmp_path, "out").exists()

@pytest.mark.parametrize("argv, expected", [
    ("--seed=1e3 --beta1=1 --resume=true", {"seed": 1000, "beta1": 1.0, "resume": True}),
    ("--seed=5.0 --dataset=a=b --resume=False", {"seed": 5, "dataset": "a=b"}), ("", {}),
    ("--dataset= --out_dir=007 --n_knot=-2", {"dataset": "", "out_dir": "007", "n_knot": -2}),
    ("--seed=1 --dataset=y a.py b=1.py --beta1=0.3",
     {"seed": 8, "dataset": "x", "beta1": 0.3, "compile": "True", "resume": True}),
    ("FILE " + "(" * 9999, "line 1"), ("--out_dir=~/x", {"out_dir": os.path.expanduser("~/x")}),
    ("FILE seed = 1\nn_knot = [", "line 2: only"), ("FILE \0", "line 1: only"),
    ("FILE seed = 1\n\nbeta1 = 'x'", "line 3: beta1"),
    ("--n_knt=3", "n_knot"), ("--seed=1.5", "whole"), ("--seed=x", "whole"), ("no.py", "no.py"),
    ("--beta1=fast", "number"), ("--beta1=nan", "number"), ("--resume=1", "True or False"),
    ("--resume", "--resume=VALUE"), ("seed=3", "--seed=3"), ("FILE seed += 1", "only lines"),
    ("FILE n_knt = 3", "n_knot"), ("FILE seed = 'x'", "whole"), ("FILE seed = True", "whole"),
    ("FILE import os; os.mkdir('made')", "only lines"), ("FILE seed = n_knot = 3", "only lines")])
def test_configurator_keeps_types_and_order_and_refuses_the_rest(
        tmp_path, monkeypatch, argv, expected):
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text("# what\nseed = 7   # why\ndataset = 'x'\ncompile = True\nbeta1 = 1\n")
    Path("b.py").write_text(argv[5:] if "FILE" in argv else "seed = 8\nresume = True\n")
    shutil.copy("b.py", "b=1.py")
    argv = ["b.py"] if "FILE" in argv else argv.split()
    if isinstance(expected, str):
        assert refuses(expected, configurator.parse, train.DEFAULTS, argv)
        assert not os.path.exists("made")
    else:
        found = configurator.parse(train.DEFAULTS, argv)
        assert found == train.DEFAULTS | expected
        assert all(type(found[name]) is type(value) for name, value in train.DEFAULTS.items())

# --------------------------------------------------------------------------------------------------
# train.py, continued
def test_csv_of_the_authors_loads_mlps_first_and_collapses_what_is_identical(tmp_path):
    for last, share, attn in (("5,4,3,2,1", "all", [[5, 4, 3, 2, 1]]),
                              ("0,0,0,0,0", "none", [[5, 4, 3, 2, 1], [0] * 5])):
        rows = ["1,2,3,4,5", "1,2,3,4,5", "5,4,3,2,1", last]
        (tmp_path / "s.csv").write_text("\n".join(f"-2,-1,0,1,2\n{row}" for row in rows) + "\n")
        source = train.load_splines(f"{tmp_path}/s.csv")
        assert (source["n_knot"], source["spline_range"], source["share_layers"]) == (5, 2.0, share)
        assert source["mlp"] == [[1, 2, 3, 4, 5]] * len(attn) and source["attn"] == attn

def test_type_that_does_not_exist_is_refused_and_the_built_in_set_stays_as_it_is(tmp_path):
    (tmp_path / "arithmetic").mkdir()
    assert refuses("prepare.py arithmetic", train.read_dataset, tmp_path, "arithmetic/sums", 8)
    assert refuses("mine --tokenizer=char", train.read_dataset, tmp_path, "mine_char", 8)
    assert list_all(tmp_path) == []

def test_weights_never_read_what_is_held_out_for_the_splines(tmp_path):
    data = write_data(tmp_path, np.arange(300), end_mark=None)
    cfg = make_cfg(spline_data="held_out")
    mine, held = (set(train.get_batch(data, 0, 60, cfg, held_out=flag)[1].flatten().tolist())
                  for flag in (False, True))
    assert not mine & held and len(mine | held) >= 298 and len(held) >= 29
    found, flags = [], {"spline_data": "held_out", "mode": "warmup", "n_models": 1, "max_iters": 2}
    for last in (0, 7):         # other held-out tokens move the splines alone in their first update
        write_data(tmp_path, [*IDS[:270], *[last] * 30])
        found += run(tmp_path, str(last), **flags)[1]
    assert {name[9:] for name in differ(*found)} == {"mlp.act.values", "attn.act.values"}

@pytest.mark.parametrize("mark", [8, None])
def test_scramble_permutes_all_but_the_end_marks_of_a_window(tmp_path, mark):
    data = write_data(tmp_path, end_mark=mark)
    plain, mixed = (train.get_batch(data, 0, 30, make_cfg(scramble=flag)) for flag in (False, True))
    for a, b in zip(*(torch.cat([x[:, :1], y], 1) for x, y in (plain, mixed))):
        assert sorted(a.tolist()) == sorted(b.tolist()) and not torch.equal(a, b)
        assert mark is None or torch.equal(a == mark, b == mark)
    assert data.path["train"].read_bytes() == IDS.astype("<u2").tobytes()

def test_averaged_weights_are_the_mean_of_the_snapshots(tmp_path, capsys):
    data, (model, _) = write_data(tmp_path), make_model(make_cfg())
    flags = {"average_checkpoints": True, "lr_schedule": "constant", "average_interval": 2}
    runs = [run(tmp_path, str(it), it, max_iters=8, **flags) for it in (4, 6, 8)]
    assert f"averaged {read(runs[2][0], 'log.jsonl')[-1]['averaged']['val_loss']:.3f}" in (
        capsys.readouterr().out)
    average = runs[2][2]["average"]
    mean = {name: sum(weights[name] for _, (weights,), _ in runs) / 3 for name in runs[0][1][0]}
    assert all(torch.allclose(average[f"module.{name}"], mean[name], atol=1e-6) for name in mean)
    assert torch.equal(average["module.wte.weight"], average["module.head.weight"])
    model.load_state_dict(mean)
    assert read(runs[2][0], "result.json")[0]["last"]["averaged"]["val_loss"] == pytest.approx(
        train.evaluate(model, data, make_cfg())["val_loss"], abs=1e-5)

def test_loss_that_is_not_finite_ends_the_run_as_failed(tmp_path):
    write_data(tmp_path)
    cfg = make_cfg(tmp_path, learning_rate=1e29, max_iters=9)
    assert refuses("finite", train.train, cfg) and read(cfg, "result.json")[0]["status"] == "failed"
    assert refuses("failed before", train.train, cfg)           # and stays so
    cfg = make_cfg(tmp_path, out_dir=f"{tmp_path}/last", learning_rate=1e20, max_iters=1)
    assert refuses("finite", train.train, cfg) and read(cfg, "result.json")[0]["status"] == "failed"

def test_weights_that_are_not_finite_are_named_and_never_saved(tmp_path, monkeypatch):
    write_data(tmp_path)
    cfg, real, calls = make_cfg(tmp_path, save_interval=1, max_iters=9), train.update_model, []
    def update_model(run, *args):
        loss = real(run, *args)
        calls.append(run.model.blocks[0].mlp.c_fc.weight)
        if len(calls) == 3:
            calls[0].data[0, 0] = math.nan
        return loss
    monkeypatch.setattr(train, "update_model", update_model)
    assert refuses("blocks.0.mlp.c_fc.weight", train.train, cfg)
    saved = torch.load(f"{cfg.out_dir}/ckpt.pt", weights_only=True)
    assert saved["it"] == 2 and all(x.isfinite().all() for x in saved["models"][0][0].values())

def test_a_checkpoint_in_which_one_bit_has_turned_is_damaged(tmp_path):
    write_data(tmp_path)
    cfg, (weights,), _ = run(tmp_path, cut=2)
    data = bytearray((path := Path(cfg.out_dir, "ckpt.pt")).read_bytes())
    data[data.index(weights["wte.weight"].numpy().tobytes()) + 2] ^= 1
    path.write_bytes(data)
    assert refuses("ckpt.pt is damaged", train.train, make_cfg(tmp_path, resume=True))

def test_a_checkpoint_of_another_run_or_with_wrong_parts_is_refused(tmp_path, capsys):
    write_data(tmp_path)
    flags = {"mode": "warmup", "log_interval": 1}
    cfg, _, saved = run(tmp_path, cut=3, **flags)
    _, _, other = run(tmp_path, "other", cut=3, seed=1, **flags)
    cfg.resume, path = True, f"{cfg.out_dir}/ckpt.pt"
    few = {m: (weights, [{**moments[0], "state": {}}])
           for m, (weights, moments) in saved["models"].items()}
    flat = copy.deepcopy(saved["models"])
    flat[0][1][0]["state"][0]["exp_avg"] = torch.zeros(3)
    for change in ({"models": {}}, {"models": few}, {"models": flat}, {"it": True}, {"it": 3.0},
                   {"rows": 3}, {"rows": [None]}, {"rows": [{"a": 1}]}, {"rows": []},
                   {"time_s": "x"}, {"time_s": math.nan}, {"losses": None}, {"visits": {}},
                   {"losses": torch.zeros(3)}, {"models": {0: saved["models"][0]}},
                   {"spline_optimizer": {**saved["spline_optimizer"], "state": {}}}):
        torch.save(saved | change, path)
        assert refuses("ckpt.pt is", train.train, cfg), change
        if change.get("models") is not flat:        # basins reads no moments
            assert refuses("ckpt.pt is", call, capsys, "basins", tmp_path, cfg.out_dir), change
    torch.save(other, path)
    assert refuses("seed=1 there, 0 here", train.train, cfg)
    assert refuses("seed=1 there, 0 here", call, capsys, "quantize", tmp_path, cfg.out_dir)
    torch.save(saved, path)
    assert train.train(cfg)["status"] == "finished"

def test_long_runs_report_days_and_compile_takes_any_case_of_true_and_false(capsys):
    row = {"iter": 1, "time_s": 30 * 3600, "lr": 0.1, "tokens": 9}
    train.report(row, SimpleNamespace(max_iters=1))
    assert "| 1 day, 6:00:00, 0:00:00 left" in capsys.readouterr().out
    train.check_flags(cfg := make_cfg(compile="false"))
    assert cfg.compile == "False"

def test_one_layer_sees_exactly_its_window_and_relative_positions_alone():
    model, _ = make_model(make_cfg(mode="warmup", n_layer=1, window=5))
    far, near = torch.tensor([1, 5, 3, 2, 2, 0, 7]), torch.tensor([4, 6, 1, 5, 0])
    alone, after, moved = (model(idx[None])[0, -1] for idx in
                           (near, torch.cat([far, near]), near[[1, 0, 2, 3, 4]]))
    assert torch.allclose(alone, after, atol=1e-5) and not torch.allclose(alone, moved, atol=1e-2)

def test_model_that_is_not_finite_adds_nothing_to_the_gradient_of_the_values():
    value, totals = torch.nn.Parameter(torch.zeros(2)), [torch.zeros(2)]
    for grad, loss in (([1.0, 2.0], 1.0), ([1.0, math.nan], 1.0), ([5.0, 5.0], math.inf)):
        value.grad = torch.tensor(grad)
        train.add_spline_gradients(totals, [value], torch.tensor(loss))
    assert totals[0].tolist() == [1, 2]

def test_visits_are_hat_weights_and_the_number_of_activations_outside():
    spline = Spline(5, 2.0)
    spline.visits = torch.zeros(6)
    spline(torch.tensor([[-2.0, -1.5, 0.25], [2.0, 2.1, -math.inf]]))
    assert spline.visits.tolist() == [1.5, 0.5, 0.75, 0.25, 1.0, 2.0]
    visits = {"mlp": torch.stack([spline.visits, torch.tensor([0, 0, 6, 0, 0, 0.0])])}
    coverage = train.get_coverage(visits, {"mlp": [[1, 0, 2, 1, 1], [0, 0, 0, 1, 0]]})
    assert coverage["visited"] == {"mlp": 6} and coverage["outside"]["mlp"] == pytest.approx(2 / 12)
    assert coverage["unvisited"]["mlp"] == pytest.approx((0.5 + 6) / 12)

def test_floor_of_a_frozen_network_reads_the_normed_embedding_alone(tmp_path):
    write_data(tmp_path)
    flags = {"n_layer": 0, "freeze_all_but_embeddings": True}
    model, _ = make_model(make_cfg(**flags))
    model.x0_out.data.zero_()
    model.norm_embd.weight.data.fill_(1)
    table, x = model.wte.weight, torch.from_numpy(IDS[:20])[None]
    normed = (table - table.mean(1, True)) / (table.var(1, False, True) + 1e-5).sqrt()
    assert torch.allclose(model.head(model(x)), (normed @ table.T)[x], atol=1e-5)
    cfg, (weights,), _ = run(tmp_path, **flags)
    fresh = train.make_model(0, train.make_config(cfg, META), {}, cfg).model.state_dict()
    assert differ(fresh, weights) == {"wte.weight", "head.weight"}

def test_functions_of_single_layers_arrive_each_in_its_own(tmp_path):
    rows = {"mlp": torch.rand(2, 64), "attn": torch.rand(2, 64)}
    path = write_splines(tmp_path, share_layers="none", **{k: rows[k].tolist() for k in rows})
    cfg = make_cfg(mode="transfer", splines=path, share_layers="none")
    model, splines = make_model(cfg)
    train.place_splines(splines, train.load_splines(path), cfg)
    for kind in rows:
        values = [getattr(block, kind).act.values for block in model.blocks]
        assert torch.equal(torch.stack(values), rows[kind])

def test_spread_is_that_of_the_models_which_have_trained(tmp_path, capsys):
    write_data(tmp_path)                # models start at 0, 2, 4 and have no loss there yet
    cfg, _, _ = run(tmp_path, mode="warmup", n_models=3, max_iters=6, eval_interval=2,
                    log_interval=1000)
    spread = [row.get("spread", 0) for row in read(cfg, "log.jsonl")]
    assert spread[:2] == [0, 0] and all(0 < value < 0.1 for value in spread[2:])
    assert f"spread {spread[-1]:.3f}" in capsys.readouterr().out

def test_help_is_the_flags_section_with_every_flag_and_nothing_more():
    lines = configurator.read_section(train.__file__, "flags").splitlines()
    found = [line.split(" = ")[0] for line in lines if " = " in line and line[0] != "#"]
    assert found == list(train.DEFAULTS) and all("#" in line for line in lines if line.strip())

def list_commands(script):
    """The arguments of every call of a script in the README's blocks of commands."""
    text = Path(train.__file__).with_name("README.md").read_text("utf-8").replace("\\\n", "")
    lines = re.split(r"\n|&&|\|", "".join(re.findall(r"```sh\n(.*?)```", text, re.S)))
    words = [shlex.split(line, comments=True) for line in lines]
    return [line[line.index(script) + 1:] for line in words if script in line]

CONFIGS = [[f"config/{name}"] for name in os.listdir(Path(train.__file__).parent / "config")]

@pytest.mark.parametrize("argv", list_commands("train.py") + CONFIGS, ids=" ".join)
def test_every_config_and_training_command_of_the_readme_runs_in_small(tmp_path, argv):
    write_data(tmp_path)
    flags = configurator.parse(DEFAULTS, argv)
    assert flags["dataset"].split("/")[0].removesuffix("_char") in [*prepare.DATASETS, "mine"]
    needs_file = flags["splines"] or flags["mode"] == "transfer"
    small = {name: value for name, value in vars(make_cfg(tmp_path)).items()
             if value != DEFAULTS[name]}
    cfg = SimpleNamespace(**flags | small | {
        "splines": write_splines(tmp_path) if needs_file else "", "compare_rates": "1e-3,2e-3",
        "n_models": min(2, flags["n_models"])})
    assert (train.compare if cfg.mode == "compare" else train.train)(cfg) is None or read(
        cfg, "result.json")[0]["status"] == "finished"

def test_readme_counts_the_lines_of_every_file():
    here = Path(train.__file__).parent
    text = (here / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+\.py)` \| (\d+) \|", text, re.M)
    assert len(rows) == 5 and all(
        len((here / name).read_text("utf-8").splitlines()) == int(count) for name, count in rows)

def launch(cfg, *before):
    argv = [f"--{name}={value}" for name, value in vars(cfg).items()]
    return subprocess.Popen([sys.executable, *before, train.__file__, *argv], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

@slow
@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_killed_process_resumes_to_the_weights_of_an_uncut_one(tmp_path, number, status):
    write_data(tmp_path)
    flags = {"mode": "warmup", "max_iters": 100, "resume": True, "log_interval": 10,
             "save_interval": 20}
    with launch(make_cfg(tmp_path, **flags)) as process:
        while not process.stdout.readline().startswith("iter    50"):
            assert process.poll() is None
        process.send_signal(number)
    assert process.returncode == status
    runs = [run(tmp_path, name, **flags)[1] for name in ("out", "uncut")]
    assert not any(differ(*pair) for pair in zip(*runs, strict=True))

@slow
def test_link_to_the_script_finds_its_own_folder_and_a_lone_rank_starts_nothing(tmp_path):
    (link := tmp_path / "link.py").symlink_to(Path(train.__file__).resolve())
    done = subprocess.run([sys.executable, link, "--dataset=none"], text=True, capture_output=True,
                          env=os.environ | {"RANK": "0"})
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert f"{Path(train.__file__).resolve().parent}/data/none" in done.stderr
    done = subprocess.run([sys.executable, link, "--dataset=none"], text=True, capture_output=True,
                          env=os.environ | {"RANK": "0", "WORLD_SIZE": "2"})
    assert done.stderr.count("\n") == 1 and "no process of torchrun" in done.stderr

@slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device")
@pytest.mark.parametrize("flags, full, words", [
    ({}, True, "No space"), ({}, False, "Broken pipe"), ({"n_embd": 2**23}, None, "memory")])
def test_output_or_memory_that_runs_out_is_told_in_one_line(tmp_path, flags, full, words):
    write_data(tmp_path)
    argv = [f"--{name}={value}" for name, value in vars(make_cfg(tmp_path, **flags)).items()]
    command = shlex.join([sys.executable, train.__file__, *argv])
    tail = {True: "> /dev/full", False: "| true", None: ""}[full]
    done = subprocess.run(["bash", "-c", f"{command} {tail}"], text=True, capture_output=True)
    assert words in done.stderr and done.stderr.count("\n") == 1
    command = shlex.join([sys.executable, prepare.__file__, f"--data_dir={tmp_path / 'data'}"])
    if full is not None:
        done = subprocess.run(["bash", "-c", f"{command} {tail}"], text=True, capture_output=True)
        assert words in done.stderr and done.stderr.count("\n") == 1

@slow
def test_compare_prints_a_table_even_if_a_rate_fails_and_trains_nothing_twice(tmp_path):
    write_data(tmp_path)
    cfg = make_cfg(tmp_path, mode="compare", compare_rates=f"1e-3,1e-2,{10**29}",
                   spline_data="held_out")
    (out, error), (again, _) = (launch(cfg).communicate() for _ in range(2))
    assert "Traceback" not in error and "failed" in out and "won by" in out.splitlines()[-1]
    assert again.splitlines()[-4:] == out.splitlines()[-4:] and "ms/iter" not in again
    flags = [json.loads(path.read_text())["flags"] for path in tmp_path.rglob("flags.json")]
    assert all((mine["spline_data"] == "held_out") == (mine["mode"] == "warmup") for mine in flags)

@slow
@pytest.mark.parametrize("flags", [{"batch_size": 4, "average_checkpoints": True, "n_layer": 1},
                                   {"mode": "warmup", "n_models": 3}])
def test_two_processes_learn_what_one_learns(tmp_path, flags):
    write_data(tmp_path)
    _, one, saved = run(tmp_path, "one", **flags)
    process = launch(make_cfg(tmp_path, **flags), "-m", "torch.distributed.run", "--standalone",
                     "--nproc_per_node=2")
    _, error = process.communicate()
    assert process.returncode == 0, error
    _, two, _ = run(tmp_path, **flags)      # finished: only reads what is there
    for a, b in zip(one, two, strict=True):
        assert all(torch.allclose(a[name], b[name], atol=1e-4) for name in a)

@slow
def test_two_processes_print_one_comparison_and_refuse_one_model(tmp_path):
    write_data(tmp_path)
    together = "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"
    flags = {"mode": "compare", "n_models": 2, "compare_rates": "1e-3", "batch_size": 2}
    process = launch(make_cfg(tmp_path, **flags), *together)
    text, error = process.communicate()
    assert process.returncode == 0 and text.count("won by") == 1 and "failed" not in text, error
    for flags, words in (({"mode": "warmup", "n_models": 1}, "at least the 2 processes"),
                         ({"out_dir": __file__, "batch_size": 2}, "is a file; give another")):
        process = launch(make_cfg(tmp_path, **flags), *together)
        _, error = process.communicate()
        assert process.returncode and words in error and "train.py\", line" not in error

@slow
def test_compiled_runs_equal_eager_ones_at_all_knots_and_over_50_iterations(tmp_path, monkeypatch):
    if not train.has_compiler():
        pytest.skip("no compiler")
    knots, ends = torch.linspace(-15, 15, 64), torch.tensor([math.inf, -math.inf, math.nan])
    x, found = torch.cat([torch.linspace(-17, 17, 999), knots, ends]), []
    for fused in (False, True):
        spline, z = Spline(64, 15.0, fused=fused), x.clone().requires_grad_()
        spline.values.data = torch.linspace(-1, 1, 64) ** 2
        y = spline(z)
        y[:-1].sum().backward()
        found.append((y.detach(), z.grad[:-1], spline.values.grad))
    assert all(torch.allclose(a, b, atol=1e-5, equal_nan=True) for a, b in zip(*found))
    write_data(tmp_path)
    flags, losses = {"mode": "warmup", "max_iters": 50, "eval_interval": 1}, {}
    for name in ("True", "auto", "False", "none"):
        if name == "none":
            monkeypatch.setenv("PATH", "")      # no compiler: nothing is said, it works as eager
        cfg, *_ = run(tmp_path, name, compile=name.replace("none", "auto"), **flags)
        losses[name] = [row["val_loss"] for row in read(cfg, "log.jsonl")]
    for name in ("True", "auto"):       # rounding grows: Adam divides by the size of a gradient
        assert losses[name] == pytest.approx(losses["False"], abs=1e-3)
    assert losses["none"] == losses["False"] and losses["none"][-1] < losses["none"][0]
    assert refuses("compile", train.train, make_cfg(tmp_path, compile="True", **flags))

# --------------------------------------------------------------------------------------------------
# faults drawn by chance: a few, or as many as FUZZ says
FUZZ = int(os.environ.get("FUZZ", 0))
PAIRS = {"val_pairs": [[i % 2, 3, 7] for i in range(20)], "types": ["a", "b"]}
WILD = """mode=baseline warmup transfer transfer compare|train seed=0 7 1e12|-1 x 1e99
dataset=tiny|none tiny/no dtype=float32 bfloat16|float16 device=cpu auto|cpu:x cuda:9 tpu
attention=sdpa|flex compile=False false|1 n_layer=1 2 3 4 0|-1 1.5 n_head=1 2 4|0 3 1e9
n_embd=8 16 24|0 10 block_size=1 2 16 60 150|0 199 300 1e30 window=1 5 1e9|0 1e30
tie_embeddings=True false|1 residual=True False|no mlp_act=gelu relu relu2 spline|silu
attn_act=auto none linear spline|gelu attn_temperature=1 0.1 30|0 1e300
attn_temperature_depth=0 0.5|-1 1e300 parts=both mlp attn|all n_knot=2 5 64|1 0
spline_range=2 15|0 1e-300 spline_init=0 0.01 1|-1 1e300 share_layers=all none middle|first
n_models=1 2 5 9|0 2.5 stagger=delayed common none|late spline_lr=0.1 1e-3|0 1e300
spline_data=train held_out|both batch_size=1 3 8|0 nan learning_rate=1e-3 0.1 1|0 1e29 1e300 1e400
optimizer=adamw muon|sgd muon_lr=0.02|0 1e300 beta1=0 0.8|1 2 beta2=0 0.95|1 -1
weight_decay=0 0.1|-1 1e300 grad_clip=0 1|-1 1e300 lr_schedule=trapezoid constant cosine|linear
lr_warmup_frac=0 0.1 0.5|0.8 1 2 lr_decay_frac=0 0.5|0.9 1 2 average_interval=0 1 2 1e9|-1
compare_rates=1e-3 1e-3,0.1|0 x 1e999 1e-3, freeze_all_but_embeddings=True False|0
scramble=True False|2 average_checkpoints=True False|yes average_start_frac=0 0.5 1|2
eval_interval=1 2 1e12|0 eval_tokens=1 20 1e12|0 log_interval=1 2 100|0 save_interval=1 2 100|0
splines=|missing.json max_iters=3|0 1e99"""      # what can work | what mostly cannot

def stops(what, function, *args):
    """Whether one line refused it; False: it ran to its end; anything else fails and names it."""
    try:
        function(*args)
    except SystemExit as error:
        assert isinstance(error.code, str) and error.code and "\n" not in error.code, what
        return True
    except Exception as error:
        raise AssertionError(f"{what}: {error!r}") from error
    return False

def draw_flags(draw, folder):
    pools = {name: [part.split() for part in values.split("|")] for name, values in
             (row.strip().split("=") for row in re.split(r"\s(?=\w+=)", WILD))}
    most, always = draw.choice([0.05, 0.3]), ("mode", "max_iters")
    flags = {name: draw.choice(pool[0]) for name, pool in pools.items()
             if pool[0] and (draw.random() < most or name in always)}
    for name in draw.sample([*pools], draw.randrange(2)):
        flags[name] = draw.choice(pools[name][1])
    share, n_knot = flags.get("share_layers", "all"), int(flags.get("n_knot", 64))
    if flags["mode"] == "transfer" and "splines" not in flags:
        n_row = {"all": 1, "middle": 3}.get(share, int(float(flags.get("n_layer", 3))))
        rows = {kind: [[0.1] * n_knot] * n_row for kind in ("mlp", "attn")}
        flags["splines"] = write_splines(folder, share_layers=share, n_knot=n_knot, **rows,
                                         spline_range=float(flags.get("spline_range", 15)))
    return [f"--{name}={value}" for name, value in flags.items()]

@slow
def test_any_flags_run_three_iterations_or_stop_with_one_line(tmp_path):
    for i, (mark, pairs) in enumerate(itertools.product((8, None), (PAIRS, {}))):
        write_data(tmp_path / str(i), end_mark=mark, **pairs)
    refused = []
    for i in range(FUZZ or 40):
        argv, base = draw_flags(random.Random(i), tmp_path), make_cfg(tmp_path / str(i % 4))
        def start():
            cfg = SimpleNamespace(**configurator.parse(vars(base) | {"n_layer": 3}, argv))
            cfg.out_dir = f"{tmp_path}/out/{i}"
            train.compare(cfg) if cfg.mode == "compare" else train.train(cfg)
        refused.append(stops(f"case {i}: {' '.join(argv)}", start))
        for path in Path(tmp_path, "out", str(i)).rglob("result.json"):
            row = json.loads(path.read_text())
            assert row["status"] == "failed" or math.isfinite(row["last"]["val_loss"]), argv
    print(refused.count(False), "of", len(refused), "ran")
    assert 0.2 < np.mean(refused) < 0.8

class Hostile:
    """Makes the folder `trap` in the current one, if a pickle of it is ever loaded."""
    def __reduce__(self):
        return os.mkdir, ("trap",)

def spoil(draw, path):
    """Damages a file: cut, a bit turned, noise, a pickle, values of other types; says how."""
    old, how = path.read_bytes(), draw.choice("cut turn noise pickle type type type".split())
    place, wrong = draw.randrange(len(old)), [None, [], {}, "x", -1, 2.5, 10**400, [[["x"]]], True]
    if how == "type" and path.suffix == ".pt":
        torch.save(draw.choice([[], 3, {"it": 1}, {"models": Hostile()}]), path)
        return how
    content = json.loads(old.splitlines()[0]) if how == "type" and path.suffix[:3] == ".js" else {}
    branch = draw.choice([content, *(x for x in content.values() if isinstance(x, dict) and x)])
    if content:
        branch[name := draw.choice([*branch])] = (value := draw.choice(wrong))
        how = f"type {name} {value}"[:80]
    if draw.random() < 0.2:
        content = draw.choice(wrong)
    turned = bytes([old[place] ^ 1 << draw.randrange(8)])
    path.write_bytes({"cut": old[:place], "turn": old[:place] + turned + old[place + 1:],
                      "noise": draw.randbytes(200), "pickle": pickle.dumps(Hostile())}.get(
                      how, draw.choice([json.dumps(content).encode()] * 9 + [b"[" * 99999])))
    return f"{how} at {place} of {len(old)}"

@slow
def test_damaged_files_stop_with_one_line_and_nothing_in_them_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_data(base := tmp_path / "base", **PAIRS)
    flags = {"mode": "transfer", "splines": write_splines(base, visits={"mlp": [[1.0] * 64]}),
             "eval_interval": 1, "max_iters": 5}
    run(base, "done", **flags)
    run(base, "half", cut=3, **flags)
    names = [f"data/tiny/{name}" for name in ("train.bin", "val.bin", "meta.json", "meta.json")]
    names += ["s.json", "s.json", "half/ckpt.pt", "half/ckpt.pt", "half/flags.json",
              "done/flags.json", "done/result.json", "done/log.jsonl"]
    matrix = {name: value for name, value in vars(analyze).items() if isinstance(value, str)}
    refused = collections.Counter()
    for i in range(FUZZ or 60):
        draw, folder = random.Random(i), tmp_path / str(i)
        shutil.copytree(base, folder)
        name = draw.choice(names)
        how = f"case {i}: {name} {spoil(draw, folder / name)}"
        cfg = make_cfg(folder, **flags | {"splines": f"{folder}/s.json", "resume": True})
        cfg.out_dir = f"{folder}/{'done' if 'done' in name else 'half'}"
        refused[name, stops(how, train.train, cfg)] += 1
        stops(how, analyze.matrix, SimpleNamespace(**matrix | {"out_dir": str(folder)}), [])
        assert Path(cfg.out_dir, "ckpt.pt").exists() and not Path("trap").exists(), how
    print(refused)

def save_often(path, first, last):
    linear = torch.nn.Linear(1000, 500)
    model = SimpleNamespace(m=0, model=linear, optimizers=[])
    for it in range(first, last):
        linear.weight.data.fill_(it)
        train.save_checkpoint(path, {"it": it}, [model], torch.optim.SGD([linear.bias]), None, 1)

@slow
def test_kill_9_inside_a_save_leaves_a_checkpoint_that_loads(tmp_path):
    path, part, draw = str(tmp_path / "ckpt.pt"), tmp_path / "ckpt.pt.part", random.Random(0)
    save_often(path, 0, 1)
    for _ in range(min(FUZZ, 20) or 5):
        part.unlink(missing_ok=True)
        process = multiprocessing.get_context("fork").Process(target=save_often,
                                                              args=(path, 1, 10**9))
        process.start()
        size, place = -1, draw.randrange(2 * 10**6)     # where in the file of 2 MB it is killed
        while size < place:
            with contextlib.suppress(FileNotFoundError):
                size = part.stat().st_size
        process.kill()
        process.join()
        saved = torch.load(path, weights_only=True)
        assert (saved["models"][0][0]["weight"] == saved["it"]).all()

def flatten(tree, path=""):
    """{place: leaf} of nested dicts, lists and tuples; tensors as lists, no clock, no place."""
    if not isinstance(tree, (dict, list, tuple)):
        return {path: tree.tolist() if isinstance(tree, torch.Tensor) else tree}
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {place: leaf for name, branch in pairs if name not in ("time_s", "out_dir")
            for place, leaf in flatten(branch, f"{path}/{name}").items()}

@slow
@pytest.mark.parametrize("flags", [
    {"mode": "warmup", "n_models": 3, "share_layers": "none", "log_interval": 4},
    {"average_checkpoints": True, "average_start_frac": 0.2, "optimizer": MUON},
    {"mode": "warmup", "stagger": "common", "spline_data": "held_out", "batch_size": 2},
    {"mode": "transfer", "freeze_all_but_embeddings": True, "scramble": True, "grad_clip": 1.0}])
def test_interrupt_at_any_moment_saves_and_resuming_gives_the_uncut_result(tmp_path, flags):
    write_data(tmp_path)
    flags |= {"max_iters": 9, "eval_interval": 2, "save_interval": 5, "resume": True}
    flags |= {"splines": write_splines(tmp_path)} if flags.get("mode") == "transfer" else {}
    handlers, draw, found = {n: signal.getsignal(n) for n in (2, 15)}, random.Random(0), []
    def interrupt_at(count, name, number):          # the count-th call of a function of train.py
        calls, real = itertools.count(1), getattr(train, name)
        def function(*args, **more):
            os.kill(os.getpid(), number if next(calls) == count and i else 0)   # 0: no signal
            return real(*args, **more)
        return function
    for i in range(0, FUZZ // 4 + 1 if FUZZ else 5):    # 0: uncut
        name = "score_tokens get_batch save_checkpoint add_spline_gradients".split()[i % 4]
        number, count = draw.choice([2, 15]), draw.randint(1, 2 if name[1] == "a" else 6)
        cfg = make_cfg(tmp_path, out_dir=f"{tmp_path}/{i}", **flags)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
            patch.setattr(train, name, interrupt_at(count, name, number))
            train.train(cfg, caught=train.catch_signals())
            sys.exit("not interrupted")
        for each, handler in handlers.items():
            signal.signal(each, handler)
        assert stop.value.code == (128 + number if i else "not interrupted"), (i, name, count)
        *_, saved = run(tmp_path, str(i), **flags)
        files = [Path(cfg.out_dir, name).read_text() for name in ("log.jsonl", "result.json")]
        rows = [[json.loads(row) for row in file.splitlines()] for file in files]
        found.append(flatten([saved, rows]))
        assert found[-1] == found[0], (i, name, count)

@slow
@pytest.mark.parametrize("limit", [0, 2600, 40_000])    # bytes; fits: nothing, flags.json, the log
def test_full_disk_leaves_the_last_good_checkpoint_and_is_told_in_one_line(tmp_path, capsys, limit):
    resource = pytest.importorskip("resource")
    write_data(tmp_path)
    flags = {"max_iters": 30, "eval_interval": 1, "resume": True}
    cfg, *_ = run(tmp_path, cut=4, **flags)
    before = Path(cfg.out_dir, "ckpt.pt").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
    try:
        stopped = stops(limit, train.train, make_cfg(tmp_path, save_interval=5, **flags))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert stopped and Path(cfg.out_dir, "result.json").exists() == (limit == 40_000)
    assert ("was not saved, an older one stays" in capsys.readouterr().err) == (limit > 0)
    assert Path(cfg.out_dir, "ckpt.pt").read_bytes() == before
    assert not [*Path(cfg.out_dir).glob("*.part")]
    assert train.train(make_cfg(tmp_path, **flags))["last"]["iter"] == 30

# --------------------------------------------------------------------------------------------------
# prepare.py
SAMPLES = Path(os.environ.get("NANOSPLINE_SAMPLES", "missing"))
needs_samples = pytest.mark.skipif(not SAMPLES.is_dir(), reason="no NANOSPLINE_SAMPLES")
needs_gpt2 = pytest.mark.skipif(not os.environ.get("TIKTOKEN_CACHE_DIR"), reason="no GPT-2 cache")
RECORDED = {    # sample folder, documents in train and val, sha256 of train.bin and val.bin
    "shakespeare": ("shakespeare", 1, 1, "502a2bdc8210d1ac", "68a53422394c26a6"),
    "enwik8": ("enwik8", 1, 1, "180f3e45e03075de", "de6dc496372dc5fd"),
    "tinystories": ("tinystories", 1521, 206, "75192a3af69bac97", "29d267864f5e9be5"),
    "csn_python": ("codesearchnet", 127, 19, "fba2363d76f9dec1", "cbf5440ab1f75034"),
    "csn_java": ("codesearchnet", 321, 32, "b66fdb8c2f9e8399", "877506bfbc2588de"),
    "fineweb": ("fineweb", 13, 6, "68c4e476a44f9466", "b97aeec296157405"),
    "math": ("math", 200 * 56, 60 * 56, "622a117b7aeef081", "b244d7ba9e307fc0")}

def prepared_run(tmp_path, name, *options):
    prepare.main([name, f"--data_dir={tmp_path}", "--retries=1", *options])
    tail = "".join("_" + option[12:] for option in options if option.startswith("--tokenizer="))
    return load(tmp_path / (name + tail.replace("_gpt2", "")))

def load(folder):
    meta = json.loads((folder / "meta.json").read_text())
    splits = [np.fromfile(folder / f"{split}.bin", "<u2") for split in meta["sha256"]]
    for ids, n_token, digest in zip(splits, meta["n_token"].values(), meta["sha256"].values()):
        assert hashlib.sha256(ids.tobytes()).hexdigest() == digest and len(ids) == n_token
        assert ids.max() < meta["vocab_size"] == len(meta["bytes_per_token"])
    return meta, *splits

def decode(meta, ids):
    table = ([prepare.load_gpt2().decode_single_token_bytes(i) for i in range(50256)]
             if meta["tokenizer"] == "gpt2" else [bytes([i]) for i in range(256)]
             if meta["tokenizer"] == "byte" else [char.encode() for char in meta["chars"]])
    table.append(b"\xff")               # the end mark; this byte does not occur in UTF-8
    text = b"".join([table[i] for i in ids.tolist()])
    return [part.decode() for part in text.split(b"\xff") if part]

def list_all(folder):
    return sorted(os.path.relpath(os.path.join(where, name), folder)
                  for where, _, names in os.walk(folder) for name in names)

@contextlib.contextmanager
def serve(answer):
    """Loopback server; answer(path, n earlier requests) -> status, headers, body, cut it where?"""
    log = []            # (path, first byte asked for, bytes sent)
    class Handler(http.server.BaseHTTPRequestHandler):
        log_message = lambda *_: None
        def do_GET(self):
            start, stop = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers["Range"]).groups()
            status, headers, body, cut = answer(self.path, len(log))
            same = self.headers["If-Range"] in (None, headers.get("ETag"))
            if status == 200 and headers.keys() <= {"ETag"} and same:
                status = 206 if int(start) < len(body) else 416
                body = body[int(start):int(stop) + 1 if stop else None]
            self.send_response(status)
            for key, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(key, str(value))
            self.end_headers()
            log.append((self.path, int(start), len(body[:cut])))
            self.wfile.write(body[:cut])
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", log
        server.shutdown()

def make_archive(name):
    """A small download of enwik8, or of math: 56 types whose first question is asked twice."""
    buffer = io.BytesIO()
    if name == "enwik8":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("enwik8", b"<text >" + bytes(range(97, 123)) * 999 + b"</text>")
        return buffer.getvalue()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for i in range(112):
            text = f"{i // 2}?\n1\nmore {i}?\n2\n".encode()
            member = tarfile.TarInfo(f"v/{('interpolate', 'train-easy')[i % 2]}/t{i // 2:02}.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return buffer.getvalue()

@needs_samples
@needs_gpt2
@pytest.mark.parametrize("where", ["folder", pytest.param("server", marks=slow)])
@pytest.mark.parametrize("name", [*list(RECORDED)[:-1], pytest.param("math", marks=slow)])
def test_samples_give_the_recorded_files_and_numbers_of_documents(tmp_path, name, where):
    sample, n_train, n_val, *hashes = RECORDED[name]
    with serve(lambda path, _: (404, {}, b"", 0) if not (SAMPLES / sample / path[1:]).exists() else
               (200, {}, (SAMPLES / sample / path[1:]).read_bytes(), None)) as (url, _):
        mirror = SAMPLES / sample if where == "folder" else url
        meta, *splits = prepared_run(tmp_path, name, f"--mirror={mirror}")
    assert [digest[:16] for digest in meta["sha256"].values()] == hashes
    for ids, n_document in zip(splits, (n_train, n_val)):
        assert np.sum(ids == 50256) == n_document * (n_document > 1)
        assert name == "fineweb" or len(decode(meta, ids)) == n_document
    if name == "math":
        check_pairs(tmp_path / "math", 56)

@needs_samples
@pytest.mark.parametrize("tokenizer", ["char", "byte", pytest.param("gpt2", marks=needs_gpt2)])
def test_decoding_gives_the_documents_back(tmp_path, tokenizer):
    text = (SAMPLES / "tinystories/TinyStoriesV2-GPT4-valid.txt").read_bytes().decode()
    stories = [story.strip() for story in text.split("<|endoftext|>")]
    options = f"--tokenizer={tokenizer}", f"--mirror={SAMPLES}/tinystories", "--max_tokens=1e4"
    meta, train, val = prepared_run(tmp_path, "tinystories", *options)
    assert decode(meta, val) == list(filter(None, stories)) and len(train) == 10000
    assert np.array(meta["bytes_per_token"])[val].sum() == len("".join(stories).encode())

@needs_samples
def test_the_wikipedia_filter_gives_the_published_text():
    enwik5 = io.BytesIO((SAMPLES / "enwik8/enwik5").read_bytes())
    member = zipfile.ZipFile(SAMPLES / "enwik8/enwik8.zip").open("enwik8")
    for file, size, sha in (enwik5, 72857, "72f1da98a0f7"), (member, 703854, "0d7a4db3bb56"):
        text = b"".join(prepare.clean_wiki(file))
        assert len(text) == size and hashlib.sha256(text).hexdigest()[:12] == sha

def check_pairs(folder, n_type):
    meta, train, val = load(folder)
    pairs = [re.fullmatch(r"Question: (.+)\nAnswer: (.+)", text) for text in decode(meta, val)]
    asked = {text.split("\nAnswer:")[0][10:] for text in decode(meta, train)}
    assert not asked & {pair[1] for pair in pairs}
    rows, order = np.array(meta["val_pairs"]), np.array(meta["val_pairs"])[:, 0]
    parts = np.split(val, np.cumsum(rows[:, 1:].sum(1)))
    assert len(meta["types"]) == n_type == len({*order[:n_type]}) and len(parts.pop()) == 0
    for i, kind in enumerate(meta["types"]):
        one, _, ids = load(folder / kind)
        assert one["types"] == [kind] and one["fingerprint"] == meta["fingerprint"]
        assert np.array_equal(np.array(one["val_pairs"])[:, 1:], rows[order == i, 1:])
        assert np.array_equal(ids, np.concatenate([parts[j] for j in np.flatnonzero(order == i)]))
    return meta["types"], order, pairs

def test_arithmetic_is_right_and_no_type_has_a_common_answer(tmp_path):
    prepared_run(tmp_path, "arithmetic")
    types, order, pairs = check_pairs(tmp_path / "arithmetic", 8)
    for i, kind in enumerate(types):
        mine = [pair for j, pair in zip(order, pairs) if i == j]
        assert max(collections.Counter(pair[2] for pair in mine).values()) < 0.4 * len(mine)
        for pair in mine if kind == "numbers__gcd" else ():
            assert int(pair[2]) == np.gcd(*map(int, re.findall(r"\d+", pair[1])))

@pytest.mark.parametrize("tokenizer", ["char", "byte", pytest.param("gpt2", marks=needs_gpt2)])
def test_own_text_is_kept_as_it_is(tmp_path, tokenizer):
    texts = ["\r\n\u00e9 \u4f60 \U0001f642 <|endoftext|>\r\n" * 30, "tab\tend", "z" * 20000 + "y"]
    for name, text in zip("abc", texts):
        (tmp_path / f"{name}.txt").write_bytes(("\ufeff" * (name == "a") + text).encode())
    (tmp_path / "empty.txt").touch()
    options = f"--files={tmp_path}/*.txt", f"--tokenizer={tokenizer}"
    meta, train, val = prepared_run(tmp_path, "own", *options)
    documents = decode(meta, train) + decode(meta, val)
    assert [*documents[:2], "".join(documents[2:])] == texts and len(documents) == 4
    assert np.sum(train == meta["end_mark"]) == 3 and np.sum(val == meta["end_mark"]) == 1
    meta, train, val = prepared_run(tmp_path, "one", f"--files={tmp_path}/a.txt", options[1])
    assert meta["end_mark"] == (50256 if tokenizer == "gpt2" else None)
    assert "".join(decode(meta, train) + decode(meta, val)) == texts[0]
    assert refuses("a.txt; choose another", prepared_run, tmp_path, "one", options[0], options[1])
    n_byte = np.array(meta["bytes_per_token"])[train].sum()
    assert n_byte / len(texts[0].encode()) == pytest.approx(0.9, abs=0.005)     # whole characters

def test_own_text_of_odd_names_and_places_is_kept_whole_or_refused(tmp_path):
    (tmp_path / "[b].txt").write_text("a" * 27 + "\ufeff", "utf-8")      # 90 % end before the mark
    meta, train, val = prepared_run(tmp_path, "odd", f"--files={tmp_path}/[b].txt",
                                    "--tokenizer=char")
    assert decode(meta, val) == ["\ufeff"] and decode(meta, train) == ["a" * 27]
    (tmp_path / "gone.txt").symlink_to("nowhere")
    assert refuses("gone.txt is a link to nothing", prepare.main, ["odd", "--tokenizer=char",
        f"--files={tmp_path}/*.txt", f"--data_dir={tmp_path}/data"])
    for place in ("[b].txt", "x" * 300):
        assert refuses("choose another --data_dir", prepare.main, ["odd", "--tokenizer=char",
            f"--files={tmp_path}/[b].txt", f"--data_dir={tmp_path}/{place}"])

@slow
def test_a_line_of_50_megabytes_is_read_in_pieces(tmp_path):
    (tmp_path / "a.txt").write_bytes("one l\u00efne ".encode() * 5_000_000)
    meta, train, val = prepared_run(tmp_path, "own", f"--files={tmp_path}/a.txt",
                                    "--tokenizer=byte")
    assert (len(train), len(val)) == (45_000_000, 5_000_000) and train[-1] == ord(" ")

@needs_gpt2
def test_pieces_of_one_long_line_give_the_tokens_of_the_whole():
    words = " don't, x=1, , ,\t,\n,\u00a0, \u4f60\u597d, \u00e9t\u00e9,12345,\r".split(",")
    text = "".join(random.Random(0).choices(words, k=80_000))
    file, gpt2 = io.BytesIO(text.encode()), prepare.load_gpt2()
    pieces = [piece for piece, _ in prepare.read_text(file, 0, len(file.getbuffer()), "", 1)]
    assert len(pieces) > 10 and "".join(pieces) == text
    assert sum(gpt2.encode_ordinary_batch(pieces), []) == gpt2.encode_ordinary(text)

@pytest.mark.parametrize("content, message", [
    (b"abc\xffdef", "a.txt: invalid UTF-8 at byte 3"), (b"a" * 9000 + b"\xe4", "at byte 9000"),
    (b"x", "too little text"), (b"", "matches no file"), (b"\xef\xbb\xbf", "too little text"),
    pytest.param("".join(map(chr, range(0x10000, 0x22000))).encode(), "fit 16 bits", id="kinds")])
def test_text_that_cannot_be_used_is_refused_and_leaves_nothing(tmp_path, content, message):
    (tmp_path / "own_byte").mkdir()
    (tmp_path / "own_byte" / "a.txt").write_bytes(content)
    for name, reason in ("x", message), ("own", "choose another name"):     # never replaced
        with pytest.raises(SystemExit, match=reason):
            kind = "char" if name == "x" and "fit" in message else "byte"
            prepared_run(tmp_path, name, f"--files={tmp_path}/*/a.txt", f"--tokenizer={kind}")
    assert list_all(tmp_path) == ["own_byte/a.txt"]

@pytest.mark.parametrize("argv, message", [
    ("shakespere", "did you mean shakespeare"), ("math/numbers__gcd", "did you mean math"),
    ("code --tokeniser=char", "did you mean tokenizer"),
    ("code --tokenizer=bpe", "not in"), ("math --difficulty=1", "not in"), ("a/b --files=", "a/b"),
    ("code --max_tokens=0", "not in"), ("code --files=x", "name 'code'"), ("a --files=_", "no"),
    ("shakespeare --tokenizer=byte --mirror=nowhere", "put a copy at nowhere"),
    ("fineweb --tokenizer=char", "comes as GPT-2 tokens")])
def test_bad_arguments_stop_with_one_line(tmp_path, argv, message):
    with pytest.raises(SystemExit, match=message) as stop:
        prepare.main([*argv.split(), f"--data_dir={tmp_path}"])
    assert "\n" not in stop.value.code and list_all(tmp_path) == []

def test_docstrings_and_code_are_told_apart():
    docs, code = prepare.split_docstrings(
        '"""doc"""\nclass A:\n    "only"\n\ndef f():\n    """two\n    lines"""\n    return 1  # x')
    assert docs == "doc\n\nonly\n\ntwo\nlines"
    assert code == "class A:\n    pass\n\ndef f():\n    return 1  # x"

def test_math_questions_that_training_asks_are_left_out_of_validation(tmp_path):
    (tmp_path / "mathematics_dataset-v1.0.tar.gz").write_bytes(make_archive("math"))
    options = f"--mirror={tmp_path}", "--tokenizer=char", "--max_tokens=2000"
    meta, train, _ = prepared_run(tmp_path, "math", *options)
    assert len(meta["val_pairs"]) == 56 and check_pairs(tmp_path / "math_char", 56)
    assert 1960 < len(train) <= 2000 and train[-1] == meta["end_mark"]      # whole pairs

@pytest.mark.parametrize("name", ["enwik8", "math"])
@pytest.mark.parametrize("status, headers, body, message", [
    (403, {}, b"<Error>AccessDenied</Error>", "403"), (404, {}, b"no", "404"),
    (200, {"Content-Type": "text/html"}, b"<p>virus scan", "html"), (200, {}, b"", "damaged"),
    (200, {"Content-Length": 0}, b"", "not the data"),
    (200, {}, b"no zip", "not the data"), (200, {}, b"\n<!DOCTYPE html>", "not the data"),
    (302, {"Location": "/login"}, b"", "not the data"), (429, {"Retry-After": "0"}, b"", "429")])
def test_a_failing_server_leaves_no_data_and_the_message_helps(
        tmp_path, name, status, headers, body, message):
    body = body or make_archive(name)[:150]
    with serve(lambda path, _: (200, {}, b"<html>log in</html>", None) if path == "/login" else
               (status, headers, body, None)) as (url, log):
        with pytest.raises(SystemExit, match=message) as stop:
            prepared_run(tmp_path, name, f"--mirror={url}", "--tokenizer=byte")
    assert "put a copy at" in stop.value.code and "\n" not in stop.value.code
    assert list_all(tmp_path) == [] and len(log) <= 4

def test_downloads_wait_fall_back_and_go_on_where_they_were_cut(tmp_path):
    body = b"plain text" * 9000
    answers = [(404, {}, b"", 0), (429, {"Retry-After": "1"}, b"", 0), (200, {}, body, 60000)]
    answers += [(200, {}, body, None)] * 3 + [(200, {}, b"<html>", None), (200, {}, b"", None)]
    with serve(lambda path, n: answers[n]) as (url, log):
        flags, first = {**prepare.FLAGS, "data_dir": str(tmp_path), "retries": 1}, time.time()
        with pytest.raises(SystemExit, match="cut after 60,000"):
            prepare.fetch(flags, f"{url}/bad/a.txt", f"{url}/a.txt")
        assert time.time() - first >= 1
        right = {"size": 90000, "sha256": hashlib.sha256(body).hexdigest()}
        assert len({prepare.fetch(flags, f"{url}/a.txt", **right) for _ in range(2)}) == 1
        assert [row[1:] for row in log[2:]] == [(0, 60000), (60000, 30000)]
        for wrong in {"size": 11}, {"sha256": "0" * 64}, {}, {}:            # the last: 416
            with pytest.raises(SystemExit, match="published" if wrong else "not the data|416"):
                prepare.fetch(flags, f"{url}/b.txt", **wrong)
        for headers in {"Content-Length": "many"}, {"Content-Length": "99999",
                                                    "Content-Encoding": "gzip"}:
            answer = SimpleNamespace(headers=headers, raw=SimpleNamespace(),
                                     iter_content=lambda size: iter([body] * 9))
            assert prepare.save(answer, tmp_path / "raw" / "a.txt", 0, len(body)) == ""
            assert os.path.getsize(tmp_path / "raw" / "a.txt") == len(body)     # though more came
    assert list_all(tmp_path) == ["raw/a.txt"]

def test_a_download_never_joins_parts_that_do_not_fit(tmp_path):
    old, new = b"old" * 9000, b"new" * 9000
    answers = [(200, {}, new, 6000), (206, {"Content-Range": "bytes 0-26999/27000"}, new, None),
               (200, {}, new, None), (200, {"ETag": "1"}, old, 6000)]
    answers += [(200, {"ETag": "2"}, new, None), (200, {"ETag": "1"}, old, 6000)]
    answers += [(206, {"ETag": "2", "Content-Range": "bytes 6000-26999/27000"}, new[6000:], None)]
    answers += [(200, {}, new, None), (200, {}, old, 6000)]
    answers += [(206, {"Content-Range": "bytes 6000-26998/26999"}, new[6001:], None)]
    answers += [(200, {}, new, None)]
    with serve(lambda path, n: answers[n]) as (url, log):
        flags = {**prepare.FLAGS, "data_dir": str(tmp_path), "retries": 2}
        for name in "abcd":
            assert Path(prepare.fetch(flags, f"{url}/{name}.txt")).read_bytes() == new
    assert [row[1] for row in log] == [0, 6000, 0, 0, 6000, 0, 6000, 0, 0, 6000, 0]

def test_a_zip_with_a_wrong_byte_is_damaged(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:       # not packed
        archive.writestr("text", b"word " * 99)
    data = (tmp_path / "x.zip").read_bytes().replace(b"word", b"ward", 1)
    (tmp_path / "x.zip").write_bytes(data)
    assert "is damaged" in prepare.find_fault(tmp_path / "x.zip", None, None, b"PK\3\4")

@pytest.mark.parametrize("name, member, content, message", [
    ("csn_python", "", b"", "to validate"), ("csn_python", "x/train/1.gz", b"CUT", "1.gz should"),
    *(("csn_python", "x/valid/1.gz", row, "lines of JSON with a text")
      for row in (b"[1]", b'{"code": 5}', b"{}", b"{")),
    ("math", "v/interpolate/t00.txt", b"0?\n\n1\n", "t00.txt should hold pairs of lines"),
    ("math", "v/train-easy/t01.txt", b"0?\n1\n0?\n", "t01.txt should hold pairs of lines")])
def test_damage_inside_a_download_is_named_in_one_line(tmp_path, name, member, content, message):
    (tmp_path / "in").mkdir()
    if name == "math":
        with tarfile.open(fileobj=io.BytesIO(make_archive(name))) as old, tarfile.open(
                tmp_path / "in" / "mathematics_dataset-v1.0.tar.gz", "w:gz") as new:
            for each in old:
                data = content if each.name == member else old.extractfile(each).read()
                each.size = len(data)
                new.addfile(each, io.BytesIO(data))
    else:
        with zipfile.ZipFile(tmp_path / "in" / "python.zip", "w") as archive:
            rows = gzip.compress(b'{"code": "def f(): pass"}\n' * 99)
            archive.writestr("x/train/0.gz", rows)
            if member:
                archive.writestr("x/valid/0.gz", rows)
                packed = rows[:-20] if content == b"CUT" else gzip.compress(content)
                archive.writestr(member, packed)
    with pytest.raises(SystemExit, match=message) as stop:
        prepare.main([name, f"--mirror={tmp_path / 'in'}", f"--data_dir={tmp_path / 'data'}",
                      "--tokenizer=byte"])
    assert "\n" not in stop.value.code and not os.path.exists(tmp_path / "data" / name)

def test_a_built_in_set_never_replaces_own_text_and_links_count_once(tmp_path, monkeypatch):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "input.txt").write_text("abcdefghij" * 90)
    (tmp_path / "in" / "sub" / "up").symlink_to("..")
    (tmp_path / "in" / "link.txt").symlink_to("input.txt")
    place = [f"--data_dir={tmp_path}", f"--mirror={tmp_path / 'in'}"]
    char, files = "--tokenizer=char", f"--files={tmp_path}/in/**/*.txt"
    prepare.main(["shakespeare_char", files, char, *place])
    meta = tmp_path / "shakespeare_char_char" / "meta.json"
    assert sum(json.loads(meta.read_text())["n_token"].values()) == 900
    meta.parent.rename(tmp_path / "shakespeare_char")
    with pytest.raises(SystemExit, match="was made of .*choose another name"):
        prepare.main(["shakespeare", char, *place])
    for folder in ("in", "in/sub"):         # the same pattern means another text elsewhere
        monkeypatch.chdir(tmp_path / folder)
        Path("own.md").write_text(folder * 90)
        with contextlib.nullcontext() if folder == "in" else pytest.raises(SystemExit, match="own"):
            prepare.main(["own", "--files=*.md", char, place[0]])
    prepare.main(["link", files, char, place[0]])
    own = (link := tmp_path / "link_char").rename(tmp_path / "aim")
    link.symlink_to("aim")
    own.joinpath("val.bin").write_bytes(b"")
    assert refuses(f"prepare.py link --tokenizer=char --files='{files[8:]}'", train.read_dataset,
                   str(tmp_path), "link_char", 8)
    prepare.main(["link", files, char, place[0]])       # the folder behind a link is made anew
    assert link.is_symlink() and [*tmp_path.glob("*aim*")] == [own]
    assert train.read_dataset(str(tmp_path), "link_char", 8)
    with pytest.raises(SystemExit, match="there is no .*nowhere/enwik8.zip"):
        prepare.main(["enwik8", char, place[0], f"--mirror={tmp_path}/nowhere"])

def test_a_prefix_of_a_shard_fetches_only_its_bytes_and_grows(tmp_path):
    body = np.array([20240520, 1, 50000] + [0] * 253, "<i4").tobytes() + bytes(100000)
    with serve(lambda path, n: (200, {"No": "range"} if n > 1 else {}, body, None)) as (url, log):
        flags = {**prepare.FLAGS, "data_dir": str(tmp_path), "mirror": url}
        for limit in (1000, 3000, 2000, 20000):
            assert sum(len(ids) for ids, _ in prepare.open_fineweb(flags, limit)("train")) == limit
    assert [row[2] for row in log] == [1024 + 2 * 1000, 2 * 2000, len(body)]
    flags = {**flags, "mirror": str(tmp_path)}
    for told in (50_000, -1, 0, 499):                                   # there are 500
        header = np.array([20240520, 1, told] + [0] * 253, "<i4").tobytes()
        (tmp_path / "fineweb_train_000001.bin").write_bytes(header + bytes(1000))
        with pytest.raises(SystemExit, match=f"header tells {told:,} tokens, there are 500; rem"):
            list(prepare.open_fineweb(flags, 20000)("train"))
    (tmp_path / "fineweb_train_000001.bin").write_bytes(body[:1500] + b"\xff" * 1500)
    with pytest.raises(SystemExit, match="fineweb_train_000001.bin holds token id 65535"):
        list(prepare.open_fineweb(flags, 400)("train"))
    assert os.path.getsize(tmp_path / list_all(tmp_path)[0]) < len(body)

@pytest.mark.parametrize("moment", [
    "p.save = lambda answer, part, *_: (open(part, 'wb').write(next(answer.iter_content(9))), d())",
    "p.hash_file = d", "p.os.rename = d"], ids=["download", "tokens", "rename"])
def test_kill_9_leaves_nothing_half_done_and_the_next_run_is_undisturbed(tmp_path, moment):
    body, code = make_archive("enwik8"), "import os, sys, prepare as p; d = lambda *_: os.kill("
    with serve(lambda path, n: (200, {}, body, None)) as (url, _):
        options, code = (f"--mirror={url}", "--tokenizer=byte"), f"{code}os.getpid(), 9); {moment}"
        command = [sys.executable, "-c", f"{code}; p.main(sys.argv[1:])", "enwik8", *options]
        killed = subprocess.run([*command, f"--data_dir={tmp_path}/a"],
                                cwd=os.path.dirname(prepare.__file__))
        assert killed.returncode == -9 and not (tmp_path / "a" / "enwik8_byte").exists()
        one, two = (prepared_run(tmp_path / folder, "enwik8", *options) for folder in "ab")
    assert one[0] == two[0] and np.array_equal(one[1], two[1])

@slow
def test_ctrl_c_ends_prepare_without_a_traceback_and_leaves_nothing(tmp_path):
    process = subprocess.Popen(         # a shell's background jobs ignore the signal: not here
        [sys.executable, prepare.__file__, "arithmetic", f"--data_dir={tmp_path}"], stdout=-1,
        stderr=-1, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    while not list_all(tmp_path):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == b"" and process.returncode == 130
    assert list_all(tmp_path) == []

def test_the_locale_changes_nothing_and_a_missing_vocabulary_is_explained(tmp_path):
    (tmp_path / "\u00e9.txt").write_bytes("\u00e9 \u4f60 \U0001f642\n".encode() * 50)
    (tmp_path / "6d1cbeee0f20b3d9449abfede4726ed8212e3aee").write_text("<html>")
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "TIKTOKEN_CACHE_DIR":
           str(tmp_path), "HTTPS_PROXY": "http://127.0.0.1:9"}
    command = [sys.executable, prepare.__file__, "own", f"--files={tmp_path}/*.txt"]
    for i, tokenizer in ("0", "char"), ("1", "char"), ("0", "gpt2"):
        options = f"--data_dir={tmp_path}/{i}", f"--tokenizer={tokenizer}"
        done = subprocess.run([*command, *options], env={**env, "PYTHONUTF8": i},
                              capture_output=True, text=True)
        assert done.returncode == (tokenizer == "gpt2")
    assert load(tmp_path / "0/own_char")[0] == load(tmp_path / "1/own_char")[0]
    assert done.stderr.count("\n") == 1
    assert "vocab.bpe" in done.stderr and "6c7ea1a7e38e3a7f062df639a5b80947f075ffe6" in done.stderr

# --------------------------------------------------------------------------------------------------
# analyze.py
SHORT = {"max_iters": 100, "batch_size": 2, "block_size": 5}

def write_run(out_dir, dataset, rate, seed, value, source=None, **settings):
    """A run's folder; value is the loss, a dict for the whole last row, 0 for a failed run."""
    folder = out_dir / f"{len(list(out_dir.iterdir()))}"
    folder.mkdir()
    flags = DEFAULTS | SHORT | {"mode": "transfer" if source else "baseline", "dataset": dataset,
                                "learning_rate": rate, "seed": seed} | settings
    source = source and source | {"flags": source["flags"] | {"seed": seed}, "seed": seed}
    last = value if isinstance(value, dict) else {"val_loss": value} if value > 0 else {}
    last = last and {"iter": flags["max_iters"], "tokens": 1000, "val_loss": 9.0} | last
    result = {"status": "finished", "last": last, "tokens": 1000} if last else {"status": "failed"}
    write_json(folder / "flags.json", flags=flags, source=source, data={"train": dataset})
    write_json(folder / "result.json", **result)
    return folder

def write_json(path, **content):
    path.write_text(json.dumps(content))

def make_source(dataset, tokenizer="char", control=None, **flags):
    flags = {"mode": "warmup", "dataset": dataset, "learning_rate": 0.001} | flags
    return {"dataset": dataset, "tokenizer": tokenizer, "control": control, "sha256": "aa",
            "flags": DEFAULTS | SHORT | flags, "model_iters": 250}

def call(capsys, command, out_dir, *files, **flags):
    """What a command prints, blanks squeezed, one list entry per line."""
    defaults = {k: v for k, v in vars(analyze).items() if isinstance(v, str) and k[0] != "_"}
    cfg = SimpleNamespace(**defaults | {"out_dir": str(out_dir)} | flags)
    getattr(analyze, command)(cfg, list(map(str, files)))
    return [" ".join(line.split()) for line in capsys.readouterr().out.split("\n")]

def test_matrix_of_hand_made_results_prints_the_hand_computed_table(tmp_path, capsys):
    learned, other = make_source("p_char"), make_source("q", "gpt2", n_models=5)
    for target, source, cells in (      # rate in thousandths, seed, loss
            ("p_char", None, "1 0 2.0, 2 0 1.8, 4 0 1.9, 2 1 1.7, 2 2 1.9, 1 3 0.1"),
            ("p_char", learned, "1 0 1.5, 2 0 1.6, 1 1 1.4, 2 1 1.3"),
            ("q", None, "1 0 3.0, 2 0 3.5"),
            ("q", learned, "1 0 0, 2 0 3.2, 2 1 0"), ("q", other, "1 0 7.0")):
        for rate, seed, loss in (map(float, cell.split()) for cell in cells.split(",")):
            write_run(tmp_path, target, rate / 1000, int(seed), loss, source)
    write_run(tmp_path, "q", 0.001, 0, 9.0, n_layer=2)
    last = {"val_loss": 2.5, "outside": {"mlp": 0.0}, "unvisited": {"mlp": 0.25}}
    write_run(tmp_path, "q", 0.001, 0, last, make_source("q", "gpt2", scramble=True))
    lines = call(capsys, "matrix", tmp_path)
    start = lines.index("gelu 1.800+-0.100 3.000 2.400")
    assert lines[start:start + 11] == [
        "gelu 1.800+-0.100 3.000 2.400", "0.002/3 n=2 0.001/2< same",
        "p_char 1.400 failed 1/1 -", "char at 0.001 0.001/2< n=1 0.002/2> n=1",
        "q - 7.000 -", "gpt2 at 0.001 0.001 n=1", "n_models=5", "q - 2.500 -",
        "gpt2 at 0.001 0.001 n=1", "scrambled unseen 25%", "mean of sources - - -"]
    assert lines.count("gelu 1.800+-0.100 3.000 2.400") == 2    # equal rate: no judge there either
    assert "p_char 1.300 failed 1/1 -" in lines         # p_char at 0.002 on seed 1, q at 0.001
    assert [line.split()[-1] for line in lines if "n_layer=" in line] == ["n_layer=4", "n_layer=2"]
    assert "gelu 9.000 9.000" in lines and sum("9.000" in line for line in lines) == 2

def test_means_and_diagonal_against_the_rest_are_those_computed_by_hand(tmp_path, capsys):
    for source, target, loss in zip("aabb", "abab", (1.0, 2.0, 1.3, 1.8)):
        write_run(tmp_path, target, 0.001, 0, loss, make_source(source))
    write_run(tmp_path, "a", 0.001, 0, 5.0, make_source("a", control="line"))
    lines = call(capsys, "matrix", tmp_path)
    assert {"a 1.000 2.000 1.500", "b 1.300 1.800 1.550", "mean of sources 1.150 1.900 1.525",
            "own - others -0.300 -0.200 -0.250", "a 5.000 - -"} <= set(lines)     # the control last

def test_higher_metrics_choose_the_higher_rate_and_further_metrics_come_along(tmp_path, capsys):
    for rate, accuracy in ((0.001, 0.2), (0.002, 0.4), (0.004, 0.3)):
        write_run(tmp_path, "a", rate, 0, {"val_loss": 5.0, "exact_match": accuracy,
                                           "answer_loss": 1 - accuracy})
    assert "gelu 0.400 0.400" in call(capsys, "matrix", tmp_path, metric="exact_match")
    lines = call(capsys, "matrix", tmp_path, metric=",exact_match")      # answer_loss by itself
    assert "gelu 0.600 0.600" in lines and "exact_match 0.400" in lines

def test_p_of_the_paired_t_test_is_five_percent_at_the_table_values():
    for n, t in ((3, 4.302653), (4, 3.182446), (5, 2.776445), (10, 2.262157)):
        sample = np.arange(n) - (n - 1) / 2
        sample = sample / sample.std(ddof=1) + t / math.sqrt(n)
        assert abs(analyze.get_paired_p(sample) - 0.05) < 1e-4      # the density is summed in steps

def test_holm_marks_what_a_hand_worked_case_marks_and_nothing_below_three_seeds():
    def make_cell(p, n=3):              # differences m-1, m, m+1 have t = sqrt(3) m and 2 degrees
        t = (1 - p) * math.sqrt(2 / (1 - (1 - p) ** 2))         # p = 1 - t / sqrt(2 + t**2)
        return {"seeds": {s: 1 + t / math.sqrt(3) + s - 1 for s in range(n)}}
    base = {("gelu", c): {"seeds": {0: 1.0, 1: 1.0, 2: 1.0}} for c in "abcd"}
    judged = base | {("x", "a"): make_cell(0.03), ("x", "b"): make_cell(0.01),
                     ("x", "c"): make_cell(0.04), ("x", "d"): make_cell(1e-9, n=2)}
    assert analyze.mark_cells(judged, "gelu") == ({("x", "b")}, 3)      # 0.03 > 0.05 / 2
    judged["x", "c"] = make_cell(0.012)
    assert analyze.mark_cells(judged, "gelu")[0] == {("x", "a"), ("x", "b"), ("x", "c")}

def test_types_show_specialists_beside_the_generalist_at_its_one_best_rate(tmp_path, capsys):
    for rate, one, two in ((0.001, 0.5, 0.7), (0.002, 0.1, 1.5)):
        types = {"one": {"answer_loss": one}, "two": {"answer_loss": two}}
        write_run(tmp_path, "m", rate, 0, {"answer_loss": (one + two) / 2, "by_type": types})
    for kind, loss in (("one", 0.3), ("two", 0.2)):
        write_run(tmp_path, f"m/{kind}", 0.001, 0, {"answer_loss": loss})
    lines = call(capsys, "matrix", tmp_path, by="types")
    assert "gelu 0.500 0.700 0.600" in lines and "1,000 tokens" in lines
    assert "gelu 0.300 0.200 0.250" in lines and "2,000 tokens" in lines

def test_curves_count_iterations_with_and_without_the_warm_up_and_the_drop(tmp_path, capsys):
    for source, losses in ((None, (5.0, 3.0, 2.0)), (make_source("a"), (4.0, 1.9, 1.0))):
        folder = write_run(tmp_path, "a", 0.001, 0, losses[-1], source)
        rows = [{"iter": 50 * i, "tokens": 500 * i, "val_loss": x} for i, x in enumerate(losses)]
        rows[-1] = json.loads((folder / "result.json").read_text())["last"]
        (folder / "log.jsonl").write_text("\n".join(map(json.dumps, rows)))
    by_hand = json.loads((folder / "flags.json").read_text())
    by_hand |= {"source": dict.fromkeys(make_source("a")) | {"sha256": "b"}}    # of a bare file
    shutil.copytree(folder, tmp_path / "by_hand")
    write_json(tmp_path / "by_hand" / "flags.json", **by_hand)
    lines = call(capsys, "curves", tmp_path)                    # the warm-up: 250 of 10 tokens
    assert "gelu 2.000 100 1,000 100 1,000 1.000" in lines
    assert "a 1.000 50 500 300 3,000 0.900" in lines and "file 1.000 50 500 - - 0.900" in lines

def test_two_runs_of_one_cell_rate_and_seed_are_never_told_apart_in_silence(tmp_path, capsys):
    for loss in (1.0, 2.0):
        write_run(tmp_path, "a", 0.001, 0, loss)
    assert "gelu 1.000 1.000" in call(capsys, "matrix", tmp_path)
    flags = SimpleNamespace(out_dir=tmp_path, targets="", baseline="gelu", metric="")
    analyze.read_cells(flags)
    error = capsys.readouterr().err
    for words, change in (("baseline=glu is no row, only gelu", {"baseline": "glu"}),
                          ("by=types: no run is on a data set with", {"by": "types"})):
        with pytest.raises(SystemExit, match=words):
            call(capsys, "matrix", tmp_path, **change)
    (write_run(tmp_path, "b", 0.001, 0, 9.0) / "result.json").unlink()     # unfinished, but first
    write_run(tmp_path, "b", 0.001, 0, 3.0)
    assert "gelu 1.000 3.000 2.000" in call(capsys, "matrix", tmp_path)
    learned = make_source("a")
    for sha256 in ("aa", "bb"):
        write_run(tmp_path, "a", 0.001, 0, 1.0, learned | {"sha256": sha256})
    analyze.read_cells(flags)
    assert "seed, but other splines" in capsys.readouterr().err
    write_run(tmp_path, "a", 0.001, 0, 7.0, learned | {"data": {"train": "other", "val": "data"}})
    assert {"a 7.000 - -", "char #otheda at"} <= {      # learned on other data: another row
        line.replace(" 0.001 n=1", "") for line in call(capsys, "matrix", tmp_path)}
    assert error.count("left out") == 1 and str(tmp_path / "1") in error.split()[0]

def test_damaged_files_and_an_empty_folder_are_named_in_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit, match="holds no baseline or transfer"):
        call(capsys, "matrix", tmp_path)
    for name in ("flags.json", "result.json", "log.jsonl"):
        (write_run(tmp_path, name, 0.001, 0, 1.0) / name).write_text("{")
    for row in ('{"iter": 1, "tokens": 1, "val_loss": "x"}', "[]", '{"tokens": 1}',
                '{"iter": 1, "tokens": 1, "outside": 5}', '{"iter": 1, "tokens": %s}' % 10**400,
                "", '{"iter": 100, "tokens": 1000, "val_loss": 2.0}'):     # of another run
        (write_run(tmp_path, row[:99], 0.001, 0, 1.0) / "log.jsonl").write_text(row)
    for value in (True, -1.0, math.nan):
        write_run(tmp_path, "value", 0.001, 0, {"answer_loss": value})
    write_json(write_run(tmp_path, "status", 0.001, 0, 1.0) / "result.json", status=3, last={})
    write_json(write_run(tmp_path, "last", 0.001, 0, 1.0) / "result.json", last={"val_loss": "x"})
    write_json(write_run(tmp_path, "tokens", 0.001, 0, 1.0) / "result.json",
               status="finished", last={"val_loss": 1.0, "iter": 100}, tokens=None)
    write_json(write_run(tmp_path, "iter", 0.001, 0, 1.0) / "result.json", status="finished")
    for change in ({"seed": {}}, {"max_iters": None}, {"dataset": 5}, {"mode": []}, "seed"):
        folder = write_run(tmp_path, "a", 0.001, 0, 1.0)
        content = json.loads((folder / "flags.json").read_text())
        content["flags"] |= change if isinstance(change, dict) else {}
        content["flags"].pop(change) if isinstance(change, str) else None
        write_json(folder / "flags.json", **content)
    write_run(tmp_path, "source", 0.001, 0, 1.0, make_source("a") | {"model_iters": "x"})
    part = make_source("a") | {"flags": {"n_models": 20}}    # of a file written by hand
    assert analyze.place_run(DEFAULTS | {"mode": "transfer"}, part, {})[1][2] == "char #aa"
    write_run(tmp_path, "d", 0.001, 0, 1.0)
    analyze.read_runs(tmp_path)
    errors = [Path(line.split()[0]).name for line in capsys.readouterr().err.split("\n") if line]
    assert collections.Counter(errors) == {"flags.json": 7, "result.json": 8, "log.jsonl": 8}
    assert "gelu 1.000 1.000" in call(capsys, "matrix", tmp_path)
    with pytest.raises(SystemExit, match="metric=los is in no result; there are .*val_loss"):
        call(capsys, "matrix", tmp_path, metric="val_loss,los")

def make_splines(path, parts=("mlp", "attn"), n_row=2, **changes):
    values = {part: np.random.default_rng(1).normal(size=(n_row, 7)).tolist() for part in parts}
    content = {"n_knot": 7, "spline_range": 3.0, "share_layers": "none", "dataset": "a", "seed": 3,
               "tokenizer": "char", "control": None, "flags": {"x": 1}, "model_iters": 9,
               "data": None,
               "visits": {part: [[0, 0, 1.5, 4, 2, 3, 0]] * n_row for part in parts}}
    content |= values | changes
    write_json(path, **content)
    return content

def test_controls_keep_scale_or_slope_or_visited_values_as_numpy_computes_them(tmp_path, capsys):
    learned = make_splines(tmp_path / "s.json")
    call(capsys, "controls", tmp_path, tmp_path / "s.json")
    made = {name: json.loads((tmp_path / f"s-{name}.json").read_text())
            for name in ("gelu", "scaled", "line", "scaled_line", "shuffled")}
    x, w = np.arange(-3.0, 4), np.array([0, 0, 1.5, 4, 2, 3, 0])
    gelu = np.array([v / 2 * math.erfc(-v / math.sqrt(2)) for v in x])
    assert np.allclose(made["gelu"]["mlp"], [gelu, gelu]) and "attn" not in made["gelu"]
    for i, row in enumerate(learned["mlp"]):
        scaled, shuffled = made["scaled"]["mlp"][i], made["shuffled"]["mlp"][i]
        assert np.allclose(np.array(scaled) * gelu[5], gelu * scaled[5])        # a multiple of GELU
        assert np.isclose(w @ np.square(scaled), w @ np.square(row))            # of the learned RMS
        assert sorted(shuffled) == sorted(row) and shuffled != row
        assert [shuffled[i] for i in (0, 1, 6)] == [row[i] for i in (0, 1, 6)]
    for row, line in zip(learned["attn"], made["line"]["attn"]):
        design = np.stack([x, np.ones(7)], 1)
        best = np.linalg.lstsq(design * np.sqrt(w)[:, None], row * np.sqrt(w), rcond=None)[0]
        assert np.allclose(line, design @ best)
    assert made["scaled"]["attn"] == learned["attn"] and made["line"]["mlp"] == learned["mlp"]
    assert made["scaled_line"] == made["line"] | {"mlp": made["scaled"]["mlp"],
                                                  "control": "scaled_line"}
    for name, control in made.items():
        assert control | {"mlp": 0, "attn": 0} == learned | {"mlp": 0, "attn": 0, "control": name}
    for part, expected in (("mlp", ["gelu", "scaled", "shuffled"]), ("attn", ["line", "shuffled"])):
        make_splines(tmp_path / f"{part}.json", [part])
        call(capsys, "controls", tmp_path, tmp_path / f"{part}.json")
        assert sorted(path.stem[len(part) + 1:] for path in tmp_path.glob(f"{part}-*")) == expected

def test_splines_prints_slope_scale_and_distances_and_draws(tmp_path, capsys):
    line = np.arange(-6.0, 8, 2)
    make_splines(tmp_path / "1.json", n_row=1, mlp=[line.tolist()])
    make_splines(tmp_path / "2.json", n_row=1, mlp=[(line + 0.5).tolist()], control="x")
    files, png = [tmp_path / "1.json", tmp_path / "2.json"], tmp_path / "picture"
    lines = call(capsys, "splines", tmp_path, *files, png=str(png) if HAS_MATPLOTLIB else "")
    rms = math.sqrt((1.5 * 4 + 0 + 2 * 4 + 3 * 16) / 10.5)      # values 2x over the visits
    row = next(line.split() for line in lines if line.startswith("[1] a 4/7 in -1.0..2.0 2.000"))
    assert row[6] == f"{rms:.3f}" and row[-2:] == ["0.000", "0.500"]
    if HAS_MATPLOTLIB:
        assert png.read_bytes().startswith(b"\x89PNG")
        with pytest.raises(SystemExit, match="there is no folder"):
            call(capsys, "splines", tmp_path, *files, png=str(tmp_path / "none" / "s.png"))

def test_plan_asks_for_warm_ups_first_then_transfers_until_nothing_is_left(tmp_path, capsys):
    write_run(tmp_path, "q r", 0.001, 0, 1.0)           # another size, another experiment
    def plan():
        given = {"sources": "p,p:line", "targets": "q r", "seeds": "0,1", "rates": "1e-3,2e-3"}
        lines = call(capsys, "plan", tmp_path, "--warmup_scramble=True", "--n_layer=2", **given)
        return [shlex.split(line)[2:] for line in lines if line]
    def finish(argv):
        flags = configurator.parse(DEFAULTS, argv)
        (folder := Path(flags["out_dir"])).mkdir()
        source = json.loads(Path(flags["splines"]).read_text()) if flags["splines"] else None
        write_json(folder / "flags.json", flags=flags, source=source, data={})
        last = {"val_loss": 1.0, "iter": flags["max_iters"], "tokens": 9}
        write_json(folder / "result.json", status="finished", last=last, tokens=9)
        for control in (None, "line", "gelu"):
            name = "-".join(filter(None, ("splines", control)))
            make_splines(folder / f"{name}.json", dataset=flags["dataset"], flags=flags,
                         seed=flags["seed"], control=control, mlp=[[len(name)] * 7] * 2)
    with pytest.raises(SystemExit, match="learning_rate=0.0 should be above 0"):
        call(capsys, "plan", tmp_path, sources="p", targets="q r", rates="1e-3,0")
    assert not capsys.readouterr().out
    first = plan()
    assert [argv[-5] for argv in first] == ["--mode=warmup"] * 2 + ["--mode=baseline"] * 4
    assert ["--scramble=True" in argv for argv in first] == [True] * 2 + [False] * 4
    list(map(finish, first))
    second = plan()
    assert [argv[1] for argv in second] == ["--mode=transfer"] * 8
    assert sum("splines-line.json" in " ".join(argv) for argv in second) == 4
    list(map(finish, second))
    assert plan() == []
    folder = Path(second[0][-1].split("=")[1])
    (folder / "result.json").unlink()
    folder.rename(tmp_path / "elsewhere")       # wherever it is, it goes on there
    assert plan() == [second[0][:-1] + [f"--out_dir={tmp_path / 'elsewhere'}", "--resume=True"]]
    finish(second[0])                           # done once more: the finished one counts
    assert plan() == []
    lines = call(capsys, "plan", tmp_path, "--n_layer=2", "--warmup_scramble=True",
                 sources="p:gelu", targets="q r", seeds="0,0", rates="1e-3,1e-3")
    assert len(lines) == 2 and "--parts=mlp --attn_act=none" in lines[0]        # nothing twice
    analyze.plan(SimpleNamespace(**vars(analyze) | {
        "out_dir": str(tmp_path), "sources": "p:scaled", "targets": "q r", "seeds": "0",
        "rates": "1e-3"}), ["--n_layer=2", "--warmup_scramble=True"])
    error = capsys.readouterr().err
    assert "splines-scaled.json is missing" in error and "q r is not in " in error
    with pytest.raises(SystemExit, match="source p:typo: there is no control typo, only gelu, "):
        call(capsys, "plan", tmp_path, sources="p:typo", targets="q r")
    (place := tmp_path / "data" / "p").mkdir(parents=True)
    write_json(place / "meta.json", sha256={"train": "other", "val": "other"})
    analyze.plan(SimpleNamespace(**vars(analyze) | {
        "out_dir": str(tmp_path), "sources": "p", "targets": "q r", "seeds": "0", "rates": "1e-3"}),
        ["--n_layer=2", "--warmup_scramble=True", f"--data_dir={tmp_path / 'data'}"])
    out, error = capsys.readouterr()
    assert "--mode=warmup" in out and "was made anew since" in error

def make_run(folder, dataset="toy", **changes):
    """A tiny model trained for two iterations on made-up tokens; gives its recorded loss."""
    data_dir = folder.parent / "data"
    (data_dir / dataset).mkdir(parents=True, exist_ok=True)
    for name, n in (("train", 400), ("val", 90)):
        tokens = np.random.default_rng(n).integers(7, size=n).astype("<u2")
        tokens.tofile(data_dir / dataset / f"{name}.bin")
    write_json(data_dir / dataset / "meta.json", vocab_size=7, end_mark=None, tokenizer="char",
               n_token={"train": 400, "val": 90}, fingerprint="", bytes_per_token=[1] * 7, sha256={
                   path.stem: hashlib.sha256(path.read_bytes()).hexdigest()
                   for path in (data_dir / dataset).glob("*.bin")})
    flags = {"dataset": dataset, "data_dir": str(data_dir), "out_dir": str(folder), "n_layer": 2,
             "n_head": 2, "n_embd": 8, "block_size": 16, "max_iters": 4, "device": "cpu",
             "learning_rate": 0.05, "compile": "False"}
    cfg = SimpleNamespace(**DEFAULTS | flags | changes)
    return train.train(cfg)["last"]

SPLINES = {"mlp_act": "spline", "attn_act": "spline"}

def test_basins_start_at_the_recorded_loss_and_move_matrices_by_their_norm(tmp_path, capsys,
                                                                          monkeypatch):
    recorded = [make_run(tmp_path / "a", average_checkpoints=True, average_interval=1),
                make_run(tmp_path / "b", **SPLINES)]
    seen, evaluate = [], analyze.evaluate
    def watch(model, data, cfg):
        seen.append({name: w.detach().clone() for name, w in model.state_dict().items()})
        return evaluate(model, data, cfg)
    monkeypatch.setattr(analyze, "evaluate", watch)
    lines = call(capsys, "basins", tmp_path, tmp_path / "a", tmp_path / "b")
    lines = [line.split() for line in lines]
    start = next(line for line in lines if line and line[0] == "0")
    for loss, shown in zip(recorded, start[1:]):
        assert abs(loss["val_loss"] - float(shown)) < 1e-6
    assert len(seen) == 2 * 41 <= 90
    unmoved, moved, farther = seen[41], seen[41 + 1], seen[-1]      # radii 0, 0.02 and 0.5
    for name, weight in unmoved.items():
        for other, radius in ((moved, 0.02), (farther, 0.5)):
            distance = float((other[name] - weight).norm() / weight.norm())
            assert math.isclose(distance, radius if weight.dim() > 1 else 0, rel_tol=1e-4), name
        assert (moved["head.weight"] == moved["wte.weight"]).all()
    assert not (seen[42]["head.weight"] == seen[43]["head.weight"]).all()       # another direction
    lines = call(capsys, "basins", tmp_path, tmp_path / "a", weights="average")
    averaged = recorded[0]["averaged"]["val_loss"]
    assert averaged != recorded[0]["val_loss"] and f"0 {averaged:.6f}" in lines
    (tmp_path / "a" / "result.json").write_text("[1]")      # nothing recorded, the rest as before
    assert "recorded nan" in call(capsys, "basins", tmp_path, tmp_path / "a")
    write_json(tmp_path / "a" / "flags.json", flags={})
    assert refuses("cannot be loaded as a run", call, capsys, "basins", tmp_path, tmp_path / "a")

def test_kurtosis_quantizer_and_sqnr_agree_with_numpy_on_known_distributions():
    rng = np.random.default_rng(0)
    for sample, kurtosis in ((rng.normal(size=400_000), 0), (rng.laplace(size=400_000), 3),
                             (rng.uniform(size=400_000), -1.2)):
        x = torch.tensor(5 + 2 * sample)
        assert abs(analyze.get_kurtosis(x) - kurtosis) < 0.15       # the sample's own error
        for n_bit in (8, 4):
            levels = np.arange(1 - 2 ** (n_bit - 1), 2 ** (n_bit - 1)) * float(x.abs().max()) \
                / (2 ** (n_bit - 1) - 1)
            at = np.searchsorted((levels[1:] + levels[:-1]) / 2, x.numpy())
            assert np.allclose(analyze.quantize_tensor(x, n_bit), levels[at])
            noise = np.mean((x.numpy() - levels[at]) ** 2)
            expected = 10 * np.log10(np.mean(x.numpy() ** 2) / noise)
            assert np.isclose(analyze.get_sqnr(x, n_bit), expected, atol=1e-2)      # in float32
    assert (analyze.quantize_tensor(torch.zeros(3), 4) == 0).all()

def test_quantize_rounds_weights_and_inputs_of_the_linear_layers_of_the_blocks(tmp_path, capsys):
    make_run(tmp_path / "a")
    flags = SimpleNamespace(weights="last")
    (_, model, data, cfg), = analyze.load_runs(flags, [str(tmp_path / "a")])
    both = analyze.quantize_model(model, 4, "both")
    for name, weight in model.state_dict().items():
        linear = name.startswith("blocks") and weight.dim() == 2
        assert len(both.state_dict()[name].unique()) <= 15 if linear else \
            (both.state_dict()[name] == weight).all()
    linear, x = model.blocks[0].mlp.c_fc, torch.randn(3, 8)
    by_hand = analyze.quantize_tensor(x, 4) @ analyze.quantize_tensor(linear.weight, 4).T
    assert torch.allclose(both.blocks[0].mlp.c_fc(x), by_hand)
    png = tmp_path / "loss.png"
    drawn = {"png": str(png)} if HAS_MATPLOTLIB else {}
    lines = call(capsys, "quantize", tmp_path, tmp_path / "a", "--max_iters=8", **drawn)
    assert f"{tmp_path / 'a'}: unfinished, iteration 4 of 8" in lines
    assert png.exists() == HAS_MATPLOTLIB
    assert f"full precision {train.evaluate(model, data, cfg)['val_loss']:.4f}" in lines
    assert f"both, 4 bits {train.evaluate(both, data, cfg)['val_loss']:.4f}" in lines
    tokens = torch.tensor(np.fromfile(data.path["val"], "<u2").astype(int))
    rows = torch.stack([tokens[i:i + 16] for i in (0, 16, 32, 48, 64, 73)])     # as evaluate does
    outputs = []
    model.blocks[1].register_forward_hook(lambda *args: outputs.append(args[2][0]))
    model(rows)
    y = outputs[0].detach().double().numpy()
    kurtosis = np.mean((y - y.mean()) ** 4) / y.var() ** 2 - 3
    assert any(line.startswith(f"block 2 {kurtosis:.2f}, ") for line in lines)
    path, val = Path(data.path["val"]).with_name("meta.json"), np.arange(90, dtype="<u2") % 7
    meta = json.loads(path.read_text())
    val.tofile(data.path["val"])
    meta["sha256"]["val"] = hashlib.sha256(val.tobytes()).hexdigest()
    path.write_text(json.dumps(meta))
    with pytest.raises(SystemExit, match="made anew"):
        call(capsys, "quantize", tmp_path, tmp_path / "a")

def test_sides_take_turns_and_give_the_median_after_two_unmeasured_calls():
    now, calls, costs = [0.0], [], {"a": [9, 9, 1, 5, 2], "b": [9, 9, 4, 4, 100]}
    def make_side(name):
        def run():
            calls.append(name)
            now[0] += costs[name][(len(calls) - 1) // 2]
        return run
    times = analyze.time_sides({name: make_side(name) for name in "ab"}, 3, clock=lambda: now[0])
    assert times == {"a": 2, "b": 4} and "".join(calls) == "ab" * 5

def test_speed_compares_equal_sizes_and_its_gpt2_is_causal_with_the_known_count(tmp_path, capsys):
    L, C, V, T = 2, 8, 7, 16
    cfg = SimpleNamespace(n_layer=L, n_embd=C, n_head=2, vocab_size=V, block_size=T)
    model = analyze.PlainGPT(cfg)
    n_param = sum(w.numel() for w in model.parameters())
    assert n_param == 12 * L * C * C + 13 * L * C + (V + T + 2) * C
    a, b = torch.zeros(1, T, dtype=torch.long), torch.zeros(1, T, dtype=torch.long)
    b[0, 9] = 3
    same = (model(a) - model(b)).abs().amax((0, 2)) < 1e-6
    assert same[:9].all() and not same[9:].any()
    lines = call(capsys, "speed", tmp_path, "--n_layer=2", "--n_head=2", "--n_embd=8",
                 "--n_models=2", "--block_size=16", "--batch_size=1", "--n_repeat=1",
                 "--n_element=2048",
                 "--compile=False", "--device=cpu")
    rows = [line.split() for line in lines]
    rows = {" ".join(row[:-3]): row[-3:] for row in rows[-6:-1]}
    assert rows["GELU"][1] == "1.00" and len(rows) == 5
    ms, ratio, rate = (float(x.replace(",", "")) for x in rows["warm-up, per model"])
    gelu = float(rows["GELU"][0])       # printed with one digit after the point, the ratio with two
    assert (ms - 0.05) / (gelu + 0.05) - 0.006 < ratio < (ms + 0.05) / (gelu - 0.05) + 0.006
    assert (rate - 0.5) * (ms - 0.05) / 1000 < 16 < (rate + 0.5) * (ms + 0.05) / 1000
