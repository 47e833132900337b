"""
nanoSpline: learn a transformer's nonlinearities on one data set, use them on another.

Two functions, one in the MLPs and one at the attention input, are linear splines of 64 knots.
`warmup` learns them with many models that share them and start one after the other; `transfer`
freezes them and trains a fresh model; `baseline` is the same model with fixed nonlinearities;
`compare` does all three on one data set, at several learning rates, and prints who wins.

    python train.py config/quickstart.py
    python train.py config/warmup_math.py
    python train.py config/transfer_math.py --splines=out/.../splines.json --dataset=fineweb

[1] D. Teney et al., Language Models Can Benefit from Domain-Specific Inductive Biases, 2026
[2] D. Teney et al., Can Transformers Really Do It All?, ICLR 2026
[3] Y. Ji et al., The Quantization Benefits of Residual-Free Transformers, 2026
`Differs:` marks a departure from [1], `Ours:` a choice where the papers are silent.

Axes: B batch, T time, C channels, H heads, D channels per head, V vocabulary, K knots, M models.
A run leaves in out_dir: flags.json (settings, versions, data hashes), log.jsonl (a row for every
evaluation), result.json (at the end), splines.json (if it learned any), ckpt.pt (to resume).
"""
import functools
import glob
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import configurator

# --------------------------------------------------------------------------------------------------
# flags
# what to do
mode = "baseline"            # baseline | warmup | transfer (needs splines) | compare (all three)
dataset = "arithmetic"       # folder in data_dir, made by prepare.py; NAME/TYPE: one question type
data_dir = ""                # "": data/ beside this script
out_dir = ""                 # "": out/ and a name made of the settings; compare: parent of all
overwrite = False            # replace what another run left in out_dir
resume = False               # go on from ckpt.pt in out_dir; start where there is none
seed = 0                     # of weights, batches and all else that is drawn
device = "auto"              # auto | cpu | cuda | cuda:1 | mps
dtype = "float32"            # float32 | bfloat16 (autocast; weights stay float32)
compile = "auto"             # True: blocks | False | auto: blocks on cuda, splines on a cpu
attention = "sdpa"           # sdpa | flex (cuda only)
# model
n_layer = 4                  # blocks; 0: embedding and head alone, the floor of a frozen network
n_head = 4                   # attention heads
n_embd = 256                 # channels
block_size = 4096            # tokens per sequence
window = 1024                # tokens that attention sees: itself and those before
tie_embeddings = True        # head and token embedding are one matrix
mlp_act = "gelu"             # gelu | relu | relu2 | spline (in baseline: learned with one model)
residual = True              # False: no residuals, orthogonal start, norm before the head
attn_temperature = 1.0       # factor of the attention logits of the first block (Ours) ...
attn_temperature_depth = 0.0  # ... and what every further block adds to it
attn_act = "auto"            # none | linear | spline | auto: linear where only the MLP is a spline
# splines
splines = ""                 # splines.json, or the authors' CSV, for mode transfer
parts = "both"               # both | mlp | attn: what is a spline in warmup and transfer
n_knot = 64                  # knots per spline
spline_range = 15.0          # knots lie evenly from -spline_range to spline_range
spline_init = 0.01           # value of every knot at the start
share_layers = "all"         # all | middle (first and last block have their own) | none
n_models = 20                # models of a warmup
stagger = "delayed"          # delayed | common (one learning-rate curve for all) | none (all start)
spline_lr = 0.1              # learning rate of the splines
spline_data = "train"        # train | held_out (splines learn on a tenth unseen by weights)
# optimization
batch_size = 1               # sequences per iteration, of each model
max_iters = 20000            # iterations
learning_rate = 6e-4         # of the weights
optimizer = "adamw"          # adamw | muon (matrices of the blocks, torch 2.9; rest: adamw)
muon_lr = 0.02               # learning rate of muon
beta1 = 0.8                  # AdamW
beta2 = 0.95                 # AdamW
weight_decay = 0.0           # AdamW, on matrices
grad_clip = 0.0              # largest gradient norm; 0.0: none
lr_schedule = "trapezoid"    # trapezoid | constant (after the ramp) | cosine (after the ramp)
lr_warmup_frac = 0.1         # share of the iterations in which the rate rises
lr_decay_frac = 0.5          # share of the iterations in which it falls (trapezoid)
compare_rates = "1e-3,2e-3,4e-3"  # learning rates of both sides in mode compare
# probes
freeze_all_but_embeddings = False  # only the token embedding and the head train
scramble = False             # permute the tokens of every training window; end marks stay
average_checkpoints = False  # also evaluate the running mean of the weights
average_start_frac = 0.5     # share of the iterations after which it begins
average_interval = 0         # iterations between its members; 0: max_iters / 50
# reports
eval_interval = 1000         # iterations between evaluations
eval_tokens = 10485760       # validation tokens, at most
log_interval = 100           # iterations between printed lines
save_interval = 1000         # iterations between checkpoints

# --------------------------------------------------------------------------------------------------
# constants
DEFAULTS = {name: value for name, value in list(globals().items())
            if not name.startswith("_") and isinstance(value, (bool, int, float, str))}
HERE = os.path.dirname(os.path.realpath(__file__))
# flags that do not change what is learned; all others tell one experiment from another
BOOKKEEPING = ("out_dir", "data_dir", "overwrite", "resume", "device", "compile", "compare_rates",
               "eval_interval", "log_interval", "save_interval")
CHOICES = {"mode": "baseline warmup transfer compare", "dtype": "float32 bfloat16",
           "compile": "auto True False", "attention": "sdpa flex", "parts": "both mlp attn",
           "mlp_act": "gelu relu relu2 spline", "attn_act": "auto none linear spline",
           "share_layers": "all middle none", "stagger": "delayed common none",
           "spline_data": "train held_out", "optimizer": "adamw muon",
           "lr_schedule": "trapezoid constant cosine"}
BUILT_IN = ("arithmetic", "code", "prose")     # data sets that prepare.py makes without download
FRACTIONS = ("beta1", "beta2", "lr_warmup_frac", "lr_decay_frac", "average_start_frac")

# --------------------------------------------------------------------------------------------------
# spline: the learnable activation
def locate(x, n_knot, spline_range):
    """Segment of every element (int32: 0 before the first knot, n_knot beyond the last) and the
    position in it (0 to 1). By arithmetic, as knots are even. A NaN: segment 0, position NaN."""
    pos = x * ((n_knot - 1) / (2 * spline_range)) + (n_knot + 1) / 2
    pos = pos.clamp(0, n_knot)
    segment = pos.int().clamp(0, n_knot)                # second clamp: a NaN must not index
    return segment, pos - segment

def interpolate(x, values, spline_range):
    """The spline at flat x: linear between knots, constant beyond the ends."""
    segment, pos = locate(x, len(values), spline_range)
    left = torch.cat([values[:1], values])              # value at the left end of every segment
    rise = torch.diff(left, append=values[-1:])
    return left.index_select(0, segment) + pos * rise.index_select(0, segment)

def interpolate_backward(grad, x, values, spline_range):
    """grad times the slope at flat x: 0 beyond the ends, at a knot that of the right segment."""
    segment, _ = locate(x, len(values), spline_range)
    slope = torch.diff(values, prepend=values[:1], append=values[-1:])
    return grad * slope.index_select(0, segment) * ((len(values) - 1) / (2 * spline_range))

@torch.library.custom_op("nanospline::histograms", mutates_args=())
def histograms(index: torch.Tensor, left: torch.Tensor, right: torch.Tensor,
               n_bin: int) -> torch.Tensor:
    """(2, n_bin) sums of both weights by index; an operator, so that it can be compiled in."""
    return torch.stack([torch.bincount(index, weight, n_bin) for weight in (left, right)])

@histograms.register_fake
def _(index, left, right, n_bin):
    return left.new_empty(2, n_bin)

def sum_some_hats(grad, x, n_knot, spline_range):
    """sum_hats of one piece. Without atomics: two histograms on a CPU, elsewhere a sum over all
    hats, which becomes a loop when compiled."""
    segment, pos = locate(x, n_knot, spline_range)
    if x.device.type == "cpu":
        right = grad * pos
        left, right = histograms(segment, (grad - right).double(), right.double(), n_knot + 1)
        total = left[1:] + right[:-1]
        return torch.cat([total[:1] + left[:1], total[1:]]).to(grad.dtype)
    pos = (segment - 1 + pos).clamp(0, n_knot - 1)[:, None]
    distance = (pos - torch.arange(n_knot, device=x.device)).abs()                  # (n, K)
    return (grad[:, None] * (1 - distance).clamp(min=0)).sum(0)

def sum_hats(grad, x, n_knot, spline_range, fuse=lambda function: function):
    """(K,) gradient of the values: each element adds to the two knots around it, by hat weights.
    In pieces that stay in the cache, whose memory is used again: three times faster on a CPU."""
    pieces = zip(grad.split(2**18), x.split(2**18))
    return sum(fuse(sum_some_hats)(*piece, n_knot, spline_range) for piece in pieces)

@functools.cache
def fuse(function):
    """A pure function compiled once for all shapes and models: on bare data."""
    compiled = torch.compile(function, dynamic=True)
    return lambda *args: compiled(*(x.data if isinstance(x, torch.Tensor) else x for x in args))

class SplineFunction(torch.autograd.Function):
    """interpolate with its own backward; a frozen spline costs no gradient of its values."""

    @staticmethod
    def forward(ctx, x, values, spline_range, fused):
        ctx.save_for_backward(x, values)
        ctx.spline_range, ctx.fuse = spline_range, fuse if fused else lambda function: function
        return ctx.fuse(interpolate)(x, values, spline_range)

    @staticmethod
    def backward(ctx, grad):
        x, values = ctx.saved_tensors
        grad_x = ctx.fuse(interpolate_backward)(grad, x, values, ctx.spline_range)
        if not ctx.needs_input_grad[1]:
            return grad_x, None, None, None
        grad_values = sum_hats(grad, x, len(values), ctx.spline_range, ctx.fuse)
        return grad_x, grad_values, None, None

class Spline(nn.Module):
    """Piecewise-linear function of every element, constant beyond the outermost knots. [1]

    Keeps shape and dtype; computes in float32 (float64 for float64). While visits is a tensor
    (K+1,) it gathers the hat weights of every element and, last, the number beyond the ends.
    Ours: starts at 0.01; at 0, behind projections that start at zero, nothing would move it.
    """

    def __init__(self, n_knot, spline_range, init=0.01, fused=False):
        super().__init__()
        self.n_knot, self.spline_range, self.fused, self.visits = n_knot, spline_range, fused, None
        self.values = nn.Parameter(torch.full((n_knot,), init))                     # (K,)

    def forward(self, x):
        flat = x.reshape(-1).to(torch.promote_types(x.dtype, torch.float32))
        if self.visits is not None:
            inside = (flat.abs() <= self.spline_range).to(flat.dtype)
            self.visits[:-1] += sum_hats(inside, flat, self.n_knot, self.spline_range)
            self.visits[-1] += (1 - inside).sum()
        y = SplineFunction.apply(flat, self.values.to(flat.dtype), self.spline_range, self.fused)
        return y.view(x.shape).to(x.dtype)

# --------------------------------------------------------------------------------------------------
# model: a GPT-2 style decoder after the NanoGPT speedrun of late 2024
def has_compiler():
    """Whether torch.compile can work on this CPU."""
    return any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "cl")))

def make_config(cfg, meta):
    """The flags and what a model needs beside them: vocabulary, end mark, nonlinearities."""
    mlp_act, attn_act = get_acts(cfg)
    return SimpleNamespace(**vars(cfg) | {
        "vocab_size": meta["vocab_size"], "end_mark": meta["end_mark"], "mlp_act": mlp_act,
        "attn_act": attn_act,
        "fused": cfg.compile == "auto" and cfg.device == "cpu" and has_compiler()})

def get_row(layer, config):
    """Which of its kind's splines a layer uses: what is shared across layers."""
    middle = int(layer > 0) + int(layer == config.n_layer - 1)
    return {"all": 0, "none": layer, "middle": middle}[config.share_layers]

def make_splines(config):
    """{kind: its distinct splines}, for the kinds (mlp, attn) that are splines."""
    acts = {"mlp": config.mlp_act, "attn": config.attn_act}
    return {kind: [Spline(config.n_knot, config.spline_range, config.spline_init, config.fused)
                   for _ in range(get_row(config.n_layer - 1, config) + 1)]
            for kind, act in acts.items() if act == "spline"}

def make_act(act, splines, row):
    """The nonlinearity of one layer: a Spline, a function, or None for attention without one."""
    if act == "spline":
        return splines[row]
    return {"gelu": F.gelu, "relu": F.relu, "relu2": lambda x: F.relu(x).square(),
            "linear": lambda x: x, "none": None}[act]

class Attention(nn.Module):
    """Causal attention with rotary positions, normed q and k, value residual, a nonlinearity."""

    def __init__(self, config, layer, act):
        super().__init__()
        self.temperature = config.attn_temperature + config.attn_temperature_depth * layer
        self.n_head, self.flex, self.act = config.n_head, config.attention == "flex", act
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)
        self.v_mix = nn.Parameter(torch.tensor(0.5)) if config.residual else None
        if act is not None:
            self.act_scale = nn.Parameter(torch.tensor(1.0))
            self.act_shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, x, v_first, mask, cos, sin):
        """x (B, T, C), already normed -> the same shape, and v of the first block (B, H, T, D)."""
        B, T, C = x.shape
        if self.act is not None:                # where the attention nonlinearity sits
            x = x + self.act(self.act_scale * x + self.act_shift)
        qkv = self.c_attn(x).view(B, T, 3 * self.n_head, C // self.n_head).transpose(1, 2)
        q, k, v = qkv.chunk(3, dim=1)                                               # (B, H, T, D)
        q = rotate(F.rms_norm(q, q.shape[-1:]), cos, sin) * self.temperature
        k = rotate(F.rms_norm(k, k.shape[-1:]), cos, sin)
        v_first = v if v_first is None else v_first
        if self.v_mix is not None:
            v = torch.lerp(v, v_first, self.v_mix.to(v.dtype))
        if self.flex:
            from torch.nn.attention.flex_attention import flex_attention
            y = flex_attention(q, k, v, block_mask=mask)
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C)), v_first

def rotate(x, cos, sin):
    """Rotary positions on x (B, H, T, D): pairs (i, i + D/2) turn by an angle (T, D/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(x.dtype)

class MLP(nn.Module):
    """C -> 4C -> nonlinearity -> C of every token."""

    def __init__(self, config, act):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)
        self.act = act

    def forward(self, x):
        return self.c_proj(self.act(self.c_fc(x)))

class Block(nn.Module):
    """Attention and MLP, each of its normed input and added to it unless residual is False."""

    def __init__(self, config, layer, splines):
        super().__init__()
        row = get_row(layer, config)
        self.norm_attn = nn.RMSNorm(config.n_embd, eps=1e-5)
        self.attn = Attention(config, layer, make_act(config.attn_act, splines.get("attn"), row))
        self.norm_mlp = nn.RMSNorm(config.n_embd, eps=1e-5)
        self.mlp = MLP(config, make_act(config.mlp_act, splines.get("mlp"), row))
        self.residual = config.residual
        if self.residual:
            self.x_mix = nn.Parameter(torch.tensor(1.0))
            self.x0_mix = nn.Parameter(torch.tensor(0.0))

    def forward(self, x, x0, v_first, mask, cos, sin):
        """x (B, T, C) -> the same shape; x0 is the normed embedding."""
        if not self.residual:
            y, v_first = self.attn(self.norm_attn(x), v_first, mask, cos, sin)
            return self.mlp(self.norm_mlp(y.to(x.dtype))).to(x.dtype), v_first  # norms: float32
        x = self.x_mix * x + self.x0_mix * x0
        y, v_first = self.attn(self.norm_attn(x), v_first, mask, cos, sin)
        x = x + y
        return x + self.mlp(self.norm_mlp(x)), v_first

class GPT(nn.Module):
    """Decoder-only transformer; forward gives what the head reads. [1]

    Differs: no norm before the head (see README); instead the embedding is taken out of the
    head's input at the start, so that a fresh model predicts uniformly whatever its width.
    """

    def __init__(self, config, splines, generator=None):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.norm_embd = nn.LayerNorm(config.n_embd, bias=False)
        self.blocks = nn.ModuleList(Block(config, i, splines) for i in range(config.n_layer))
        frozen = config.freeze_all_but_embeddings
        if config.residual:
            self.skip_mix = nn.Parameter(torch.ones(config.n_layer // 2))
            self.x0_out = nn.Parameter(torch.tensor(0.0 if frozen else -1.0 - config.n_layer // 2))
        else:
            self.norm_head = nn.RMSNorm(config.n_embd, eps=1e-5)
        self.head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02, generator=generator)
        if config.tie_embeddings:
            self.head.weight = self.wte.weight
        for block in self.blocks:
            outputs = block.attn.c_proj.weight, block.mlp.c_proj.weight
            if not config.residual:     # orthogonal, and W_K = W_Q: a token first sees itself [3]
                q, k, v = block.attn.c_attn.weight.data.chunk(3)
                for weight in (q, v, outputs[0], block.mlp.c_fc.weight, outputs[1]):
                    nn.init.orthogonal_(weight, generator=generator)
                k.copy_(q)
            elif not frozen:            # frozen at zero it would be silent for ever
                for weight in outputs:
                    nn.init.zeros_(weight)

    def forward(self, idx):
        """idx (B, T) int64 -> (B, T, C)."""
        T, D = idx.shape[1], self.config.n_embd // self.config.n_head
        rate = 10000 ** (-torch.arange(0, D, 2, device=idx.device) / D)             # (D/2,)
        angle = torch.arange(T, device=idx.device)[:, None] * rate                  # (T, D/2)
        cos, sin, mask = angle.cos(), angle.sin(), make_mask(idx, self.config)
        x = x0 = self.norm_embd(self.wte(idx))                                      # (B, T, C)
        v_first, skips = None, []
        for i, block in enumerate(self.blocks):
            mirror = len(self.blocks) - 1 - i
            if self.config.residual and i > mirror:     # U-Net: takes up what the mirror left
                x = x + self.skip_mix[mirror] * skips.pop()
            x, v_first = block(x, x0, v_first, mask, cos, sin)
            if i < mirror:
                skips.append(x)
        return x + self.x0_out * x0 if self.config.residual else self.norm_head(x)

def make_mask(idx, config):
    """Who attends to whom: (B or 1, 1, T, T) bool, or None for plain causal attention. Never across
    documents. Ours: an end mark belongs to the one after it, so no text follows from another."""
    T, several = idx.shape[1], config.end_mark is not None
    if config.attention == "sdpa" and not several and T <= config.window:
        return None
    document = (idx == (config.end_mark if several else -1)).cumsum(1)      # (B, T)
    if config.attention == "flex":
        from torch.nn.attention.flex_attention import create_block_mask
        def sees(b, h, q, k):
            return (q >= k) & (q - k < config.window) & (document[b, q] == document[b, k])
        return create_block_mask(sees, len(idx), None, T, T, device=idx.device)
    i = torch.arange(T, device=idx.device)
    mask = ((i[:, None] >= i) & (i[:, None] - i < config.window))[None]             # (1, T, T)
    mask = mask & (document[:, :, None] == document[:, None, :]) if several else mask
    return mask[:, None]

def compute_loss(model, x, y):
    """Training loss: mean cross-entropy over all tokens, nats. x, y: (B, T) int64. With a large
    vocabulary in chunks of tokens, so that all logits never coexist: torch's own where it has one
    (2.13; not for autocast), else recomputed in backward, a third slower."""
    hidden, weight = model(x).flatten(0, 1), model.head.weight                      # (B*T, C)
    if len(weight) < 4096:
        return F.cross_entropy(F.linear(hidden, weight).float(), y.flatten())
    options = getattr(nn, "LinearCrossEntropyOptions", None)
    if options and not torch.is_autocast_enabled(hidden.device.type):
        chunked = options(batch_chunk_size=512)
        return F.linear_cross_entropy(hidden, weight, y.flatten(), options=chunked)
    def sum_nats(h, t):
        return F.cross_entropy(F.linear(h, weight).float(), t, reduction="sum")
    chunks = zip(hidden.split(1024), y.flatten().split(1024))
    return sum(checkpoint(sum_nats, h, t, use_reentrant=False) for h, t in chunks) / y.numel()

# --------------------------------------------------------------------------------------------------
# warm-up: what is learned, when a model starts, how gradients combine
def get_acts(cfg):
    """(mlp_act, attn_act) of the model; in warmup and transfer `parts` says what is a spline."""
    parts = cfg.parts if cfg.mode in ("warmup", "transfer") else "none"
    mlp_act = "spline" if parts in ("both", "mlp") else cfg.mlp_act
    automatic = "linear" if mlp_act == "spline" else "none"     # so that parameter counts match
    attn_act = automatic if cfg.attn_act == "auto" else cfg.attn_act
    return mlp_act, "spline" if parts in ("both", "attn") else attn_act

def get_start(m, cfg):
    """Iteration at which model m starts. [1]"""
    staggered = cfg.mode == "warmup" and cfg.stagger != "none"
    return round(m * cfg.max_iters / cfg.n_models) if staggered else 0

def get_started(it, cfg):
    """Number of models that train at iteration `it`."""
    return sum(get_start(m, cfg) <= it for m in range(cfg.n_models if cfg.mode == "warmup" else 1))

def add_spline_gradients(totals, values, loss):
    """Moves the gradients of one model at the shared values into the totals; not finite: adds 0."""
    for total, value in zip(totals, values):
        healthy = loss.isfinite() & value.grad.isfinite().all()
        total += torch.where(healthy, value.grad, 0)
        value.grad = None

def step_splines(optimizer, totals, values, n_started, learning_rate):
    """One update of the shared values with the mean of the gradients of the started models."""
    optimizer.param_groups[0]["lr"] = learning_rate
    for total, value in zip(totals, values):
        value.grad = total / n_started
        total.zero_()
    optimizer.step()
    optimizer.zero_grad()

def get_rank():
    """(number of this process, how many there are)."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

def sum_over_ranks(tensors):
    """Sums tensors over the processes, in place, in one message."""
    if dist.is_initialized():
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(part.view_as(tensor))

# --------------------------------------------------------------------------------------------------
# data: training batches, fixed validation windows
def read_dataset(data_dir, dataset, block_size):
    """Paths, lengths and meta.json of a data set that prepare.py made, checked from end to end."""
    folder, name = os.path.join(data_dir, dataset), dataset.split("/")[0]
    command = "python prepare.py " + re.sub("_(char|byte|gpt2)$", r" --tokenizer=\1", name)
    if name in BUILT_IN and not os.path.exists(os.path.join(data_dir, name)) and get_rank()[0] == 0:
        subprocess.run([sys.executable, f"{HERE}/prepare.py", name, f"--data_dir={data_dir}"])
    if dist.is_initialized():
        dist.barrier()
    try:
        meta = load_json(f"{folder}/meta.json")
        expected, vocab_size = check_meta(meta)
    except Exception as error:          # whatever a damaged file comes up with
        there = glob.glob(f"{glob.escape(os.path.dirname(folder))}/*/meta.json")
        there = sorted(os.path.basename(os.path.dirname(path)) for path in there)
        raise SystemExit(f"dataset={dataset}: no usable {folder}/meta.json ({error}); there are "
                         f"{', '.join(there) or 'none'}; make it with: {command} (and --files=... "
                         "if it is your own text)") from None
    own = meta.get("licence") == "your own"
    command += f" --files={shlex.quote(str(meta.get('source')))}" if own else ""
    data = SimpleNamespace(meta=meta, n_token={}, path={})
    for split in ("train", "val"):
        path = data.path[split] = f"{folder}/{split}.bin"
        size = os.path.getsize(path) if os.path.isfile(path) else 0
        n = data.n_token[split] = size // 2
        if size != 2 * expected[split]:
            raise SystemExit(f"{path} has {size} bytes, not {2 * expected[split]}: missing or "
                             f"damaged; run again: {command}")
        if n < block_size + 1:
            raise SystemExit(f"{path} has {n} tokens, block_size needs {block_size + 1} or more")
        largest, digest = 0, hashlib.sha256()
        for i in range(0, n, 2**22):
            tokens = np.fromfile(path, "<u2", 2**22, offset=2 * i)
            largest = max(largest, tokens.max())
            digest.update(tokens)
        if largest >= vocab_size:
            raise SystemExit(f"{path} holds id {largest} but vocab_size is {vocab_size}")
        if digest.hexdigest() != meta["sha256"][split]:
            raise SystemExit(f"{path} is not the file that meta.json describes: its sha256 differs;"
                             f" run again: {command}")
    return data

def check_meta(meta):
    """Its n_token and vocab_size; an exception of any kind if it is not what prepare.py writes."""
    content = json.dumps({name: value for name, value in meta.items() if name != "checksum"})
    if meta.get("checksum", digest := hashlib.sha256(content.encode()).hexdigest()) != digest:
        raise ValueError("it does not fit its checksum")
    n_token, mark, sizes = meta["n_token"], meta["end_mark"], meta["bytes_per_token"]
    pairs = np.array(meta.get("val_pairs", [[0, 0, n_token["val"]]]))
    numbers = [meta["vocab_size"], mark or 0, n_token["train"], *sizes, *pairs.flatten().tolist()]
    texts = [meta["tokenizer"], meta["fingerprint"], *meta["sha256"].values()]
    texts += meta.get("types", [])
    if not (all(type(x) is str for x in texts) and {*meta["sha256"]} == {"train", "val"}
            and all(type(x) is int and x >= 0 for x in numbers)
            and (mark or 0) < len(sizes) == meta["vocab_size"]
            and pairs[:, 1:].sum() == n_token["val"]
            and pairs[:, 0].max() < len(meta.get("types", [""]))):
        raise ValueError("its parts do not fit each other")
    return n_token, meta["vocab_size"]

def read_tokens(path, first, count):
    """Token ids (count,) int64 from `first` on; no memory map, which makes memory grow."""
    return np.fromfile(path, "<u2", count, offset=2 * first).astype(np.int64)

@functools.lru_cache(maxsize=64)
def permute_windows(n_window, seed, stream, epoch):
    order = np.arange(n_window, dtype=np.uint32)
    return np.random.default_rng([seed, 1, stream, epoch]).permutation(order)

def get_batch(data, first, count, cfg, stream=0, held_out=False):
    """Training sequences first to first+count-1 of one model: x, y (count, T) int64.

    A pure function of data, block_size and (seed, stream, sequence number). Windows of T+1 tokens,
    permuted each epoch; the last overlaps its neighbour: every token but the first is a target.
    """
    T, begin, end = cfg.block_size, 0, data.n_token["train"]
    if cfg.spline_data == "held_out":
        border = end - max(end // 10, T + 1)
        begin, end = (border, end) if held_out else (0, border)
    n_window, rows = -(-(end - begin - 1) // T), []
    for number in range(first, first + count):
        epoch, i = divmod(number, n_window)
        window = int(permute_windows(n_window, cfg.seed, stream, epoch)[i])
        tokens = read_tokens(data.path["train"], min(begin + window * T, end - 1 - T), T + 1)
        if cfg.scramble:
            places = np.flatnonzero(tokens != data.meta["end_mark"])
            generator = np.random.default_rng([cfg.seed, 2, stream, number])
            tokens[places] = generator.permutation(tokens[places])
        rows.append(tokens)
    batch = torch.from_numpy(np.stack(rows)).to(cfg.device)                         # (count, T+1)
    return batch[:, :-1], batch[:, 1:]

def get_val_cuts(data, cfg):
    """Where validation windows begin and the last one ends, and their length in tokens.

    Window i scores the tokens after cuts[i] up to cuts[i+1], each once; it holds as many whole
    question-answer pairs as fit.
    """
    n_target, length = min(cfg.eval_tokens, data.n_token["val"] - 1), cfg.block_size
    if "val_pairs" not in data.meta:
        return [*range(0, n_target, length), n_target], length
    sizes = np.array(data.meta["val_pairs"])[:, 1:].sum(1)
    ends = np.cumsum(sizes) - 1                             # index of the end mark of every pair
    ends = ends[ends <= max(n_target, ends[0])].tolist()
    length, cuts = max(length, int(sizes.max())), [0]
    for end, following in zip(ends, [*ends[1:], math.inf]):
        if following - cuts[-1] > length:
            cuts.append(end)
    return cuts, min(length, data.n_token["val"] - 1)

# --------------------------------------------------------------------------------------------------
# optimization
def get_lr_factor(it, cfg):
    """Learning rate of update `it` (0 is the first) as a fraction of its peak; always above 0."""
    ramp = round(cfg.lr_warmup_frac * cfg.max_iters)
    if it < ramp:
        return (it + 1) / (ramp + 1)
    if cfg.lr_schedule == "cosine":
        return 0.5 + 0.5 * math.cos(math.pi * (it - ramp) / (cfg.max_iters - ramp))
    decay = cfg.lr_decay_frac * cfg.max_iters if cfg.lr_schedule == "trapezoid" else 0
    return min(1.0, (cfg.max_iters - it) / decay) if decay else 1.0

def make_optimizers(model, cfg):
    """AdamW for all that trains but the splines, or Muon [3] for the matrices of the blocks."""
    embeddings = {id(model.wte.weight), id(model.head.weight)}
    splines = {id(module.values) for module in model.modules() if isinstance(module, Spline)}
    muon, matrices, others = [], [], []
    for weight in [weight for weight in model.parameters() if id(weight) not in splines]:
        embedding = id(weight) in embeddings
        weight.requires_grad_(embedding or not cfg.freeze_all_but_embeddings)
        if weight.requires_grad:
            inner = weight.dim() == 2 and not embedding and cfg.optimizer == "muon"
            (muon if inner else matrices if weight.dim() == 2 else others).append(weight)
    groups = [{"params": matrices, "weight_decay": cfg.weight_decay}]
    groups += [{"params": others, "weight_decay": 0.0}] if others else []
    optimizers = [torch.optim.AdamW(groups, cfg.learning_rate, (cfg.beta1, cfg.beta2),
                                    fused=cfg.device != "mps")]
    if muon:
        optimizers += [torch.optim.Muon(muon, cfg.muon_lr, weight_decay=cfg.weight_decay)]
    return optimizers

def update_model(run, values, it, position, data, cfg, rank=0, n_rank=1):
    """Batch, backward and update of one model; gives its loss, leaves the gradients of values.
    With n_rank processes on one model each takes its part of the batch."""
    weights = []
    for optimizer, peak in zip(run.optimizers, (cfg.learning_rate, cfg.muon_lr)):
        for group in optimizer.param_groups:
            group["lr"] = peak * get_lr_factor(position, cfg)
            weights += group["params"]
    count = cfg.batch_size // n_rank
    which = it * cfg.batch_size + rank * count, count, cfg, run.stream
    apart = values and cfg.spline_data == "held_out"
    with autocast(cfg):
        if apart:
            batch = get_batch(data, *which, held_out=True)
            (compute_loss(run.model, *batch) / n_rank).backward(inputs=values)
        loss = compute_loss(run.model, *get_batch(data, *which)) / n_rank
    loss.backward(inputs=weights if apart else [*weights, *values])
    loss = loss.detach()
    if n_rank > 1:
        grads = (weight.grad for weight in [*weights, *values])
        sum_over_ranks([loss, *(grad for grad in grads if grad is not None)])   # None: unused
    if cfg.grad_clip:
        nn.utils.clip_grad_norm_(weights, cfg.grad_clip)
    for optimizer in run.optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return loss

# --------------------------------------------------------------------------------------------------
# evaluation
@torch.no_grad()
def score_tokens(model, data, cfg):
    """Nats (n,) float32 and hits (n,) bool of validation tokens 1 to n, given those before."""
    cuts, length = get_val_cuts(data, cfg)
    nats, hits = np.zeros(cuts[-1], np.float32), np.zeros(cuts[-1], bool)
    starts = [min(begin, data.n_token["val"] - 1 - length) for begin in cuts[:-1]]
    size = max(1, 8192 // length)       # sequences at a time, whatever batch_size is
    for i in range(0, len(starts), size):
        some = starts[i:i + size]
        tokens = np.stack([read_tokens(data.path["val"], start, length + 1) for start in some])
        tokens = torch.from_numpy(tokens).to(cfg.device)                            # (n, length+1)
        with autocast(cfg):
            hidden, scored = model(tokens[:, :-1]).flatten(0, 1), []
            for h, y in zip(hidden.split(1024), tokens[:, 1:].flatten().split(1024)):
                logits = model.head(h).float()                                      # (1024, V)
                scored.append(torch.stack([F.cross_entropy(logits, y, reduction="none"),
                                           logits.argmax(1) == y], 1))
        scored = torch.cat(scored).view(len(some), length, 2).cpu().numpy()
        for begin, end, start, row in zip(cuts[i:], cuts[i + 1:], some, scored):
            nats[begin:end], hits[begin:end] = row[begin - start:end - start].T
    return nats, hits

def evaluate(model, data, cfg):
    """Validation metrics: losses in nats per token; bits per byte counts the end mark as no byte.

    exact_match: plain mean over question types of the share of answers, end mark included, of
    which every token is the arg-max given the true prefix, so that greedy decoding is right.
    """
    nats, hits = score_tokens(model, data, cfg)
    tokens = read_tokens(data.path["val"], 1, len(nats))
    n_byte = np.take(data.meta["bytes_per_token"], tokens).sum()
    loss = nats.sum(dtype=np.float64) / len(nats)
    metrics = {"val_loss": loss, "val_accuracy": hits.mean(),
               "val_perplexity": np.exp(min(loss, 700)),        # finite: JSON knows no infinity
               "val_bits_per_byte": loss * len(nats) / math.log(2) / max(1, n_byte)}
    if "val_pairs" in data.meta:
        kind, n_prompt, n_answer = np.array(data.meta["val_pairs"]).T
        end = np.cumsum(n_prompt + n_answer) - 1
        kind, n_answer, end = (array[end <= len(nats)] for array in (kind, n_answer, end))
        nats, hits = (np.append(0, np.cumsum(x, dtype=np.float64)) for x in (nats, hits))
        nats, right = nats[end] - nats[end - n_answer], hits[end] - hits[end - n_answer] == n_answer
        by_type = {data.meta["types"][i]: {
            "answer_loss": nats[kind == i].sum() / n_answer[kind == i].sum(),
            "exact_match": right[kind == i].mean(), "n": int((kind == i).sum())}
            for i in np.unique(kind)}
        metrics |= {"answer_loss": nats.sum() / n_answer.sum(), "by_type": by_type,
                    "exact_match": np.mean([row["exact_match"] for row in by_type.values()])}
    return json.loads(json.dumps(metrics, default=float))       # plain numbers, no numpy

@torch.no_grad()
def count_visits(model, splines, data, cfg):
    """{kind: (rows, K+1) float64 on the CPU}, see Spline.visits; over the first windows."""
    n_row = max(1, min(4096, data.n_token["val"]) // cfg.block_size)
    tokens = read_tokens(data.path["val"], 0, n_row * cfg.block_size).reshape(n_row, -1)
    visits = {}
    for spline in sum(splines.values(), []):
        spline.visits = torch.zeros(spline.n_knot + 1, device=cfg.device)
    with autocast(cfg):
        model(torch.from_numpy(tokens).to(cfg.device))
    for kind, mine in splines.items():
        visits[kind] = torch.stack([spline.visits for spline in mine]).cpu().double()
        for spline in mine:
            spline.visits = None
    return visits

def get_coverage(visits, source):
    """Shares of activations beyond the ends and, given the source's visits, where it had none;
    number of knots visited."""
    coverage = {"outside": {kind: (n[:, -1].sum() / n.sum()).item() for kind, n in visits.items()},
                "visited": {kind: int((n[:, :-1] > 0).sum()) for kind, n in visits.items()}}
    if source:
        coverage["unvisited"] = {
            kind: (n[:, :-1][torch.tensor(source[kind]) == 0].sum() / n.sum()).item()
            for kind, n in visits.items() if kind in source}
    return coverage

# --------------------------------------------------------------------------------------------------
# files
def save_json(path, *rows):
    """A line of JSON for each row; writes beside and renames, so nobody ever sees half a file."""
    try:
        with open(path + ".part", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        os.replace(path + ".part", path)
    except OSError as error:
        if os.path.exists(path + ".part"):
            os.remove(path + ".part")
        raise SystemExit(f"{os.path.abspath(path)} cannot be written: {error}") from None

def load_json(path):
    """The object in a JSON file; ValueError if there is anything else."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        if not isinstance(content, dict):
            raise ValueError(f"it should hold an object, not {content!r:.40}")
        return content
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None

def check_numbers(row):
    """An exception of any kind unless a dict and those in it hold numbers from 0 on."""
    for x in row.values():
        if isinstance(x, dict):
            check_numbers(x)
        elif type(x) not in (int, float) or not 0 <= x < 1e300:
            raise ValueError

def check_row(row):
    """An exception of any kind unless it is like what train leaves in log.jsonl."""
    nested = [row.get(name, {}) for name in ("outside", "unvisited", "visited", "averaged")]
    for part in [row, *nested, *row.get("by_type", {}).values()]:
        check_numbers(part)
    row["iter"] + row["tokens"] + row["val_loss"]       # are there, and numbers

def check_result(result, max_iters):
    """An exception of any kind unless it is like what train leaves in result.json."""
    if result["status"] != "failed":
        check_row(result["last"])
        if (result["status"], result["last"]["iter"]) != ("finished", max_iters):
            raise ValueError
        check_numbers({"tokens": result["tokens"]})

def check_types(content, examples=DEFAULTS):
    """ValueError if a value read from a JSON file has not the type of the example of that name."""
    for name, value in content.items():
        kinds = type(example := examples.get(name, value)), type(value)
        if kinds[0] is not kinds[1] and kinds != (float, int):
            raise ValueError(f"{name} should be like {example!r}, not {value!r:.40}")

def save_checkpoint(path, state, running, spline_optimizer, average, n_models):
    """Everything to go on from. When the disk is full the last good file stays; gives a warning."""
    rank, n_rank = get_rank()
    parts = [{run.m: (run.model.state_dict(), [x.state_dict() for x in run.optimizers])
              for run in running}]
    if n_rank > 1 and n_models > 1:
        mine, parts = parts[0], [None] * n_rank if rank == 0 else None
        dist.gather_object(mine, parts)
    if rank > 0:
        return
    models = {m: saved for part in parts for m, saved in part.items()}
    try:
        torch.save(state | {"models": models, "spline_optimizer": spline_optimizer.state_dict(),
                            "average": average and average.state_dict()}, path + ".part")
        os.replace(path + ".part", path)
    except (OSError, RuntimeError) as error:
        stays = "an older one stays" if os.path.exists(path) else "there is none"
        if os.path.exists(path + ".part"):
            os.remove(path + ".part")
        warning = f"warning: {path} was not saved, {stays}; is the disk full? {error}"
        print(warning, file=sys.stderr)
        return warning

def load_checkpoint(path, device, about):
    """What save_checkpoint wrote in the run that flags.json describes; SystemExit if it did not."""
    try:
        with zipfile.ZipFile(path) as file:         # torch.load looks at no sums
            if file.testzip():
                raise ValueError("a wrong sum")
        saved = torch.load(path, map_location=device, weights_only=True)
        if changed := tell_apart(saved["about"], about):
            raise ValueError(changed)
        check_saved(saved, SimpleNamespace(**about["flags"]))
        return saved
    except Exception as error:          # whatever a foreign or damaged file comes up with
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise SystemExit(f"{path} is damaged or of another run ({reason}); train.py with "
                         "--overwrite=True makes it anew") from None

def check_saved(saved, cfg):
    """An exception of any kind unless the state in a checkpoint is one of a run with these flags.
    """
    it, n_models = saved["it"], cfg.n_models if cfg.mode == "warmup" else 1
    shape = get_row(cfg.n_layer - 1, cfg) + 1, cfg.n_knot + 1
    kinds = [kind for kind, act in zip(("mlp", "attn"), get_acts(cfg)) if act == "spline"]
    started, models = get_started(it - 1, cfg), saved["models"]
    visits = {kind: n.shape for kind, n in saved["visits"].items()}
    [*map(check_row, saved["rows"])]
    if not (type(it) is int and 0 < it <= cfg.max_iters and 0 <= saved["time_s"] < math.inf
            and saved["rows"] and saved["losses"].shape == (2, n_models)
            and visits == dict.fromkeys(kinds, shape)
            and {*range(started)} <= {*models} <= {*range(n_models)}
            and all(moments["state"] for m in range(started) for moments in models[m][1])
            and bool(saved["spline_optimizer"]["state"]) == bool(kinds and cfg.mode != "transfer")):
        raise ValueError("its parts do not fit each other")

def load_moments(optimizer, saved):
    """The state of an optimizer, whose settings stay; an exception if its shapes are others."""
    optimizer.load_state_dict(saved | {"param_groups": optimizer.state_dict()["param_groups"]})
    for weight, moments in optimizer.state.items():
        if any(moment.shape not in ((), weight.shape) for moment in moments.values()):
            raise ValueError("moments of another shape")

def read_csv_splines(path):
    """The authors' layout: per layer, MLPs first, a line of knot positions and a line of values."""
    with open(path, encoding="utf-8") as file:
        lines = np.array([line.split(",") for line in file if line.strip()], dtype=np.float64)
    if lines.ndim != 2 or len(lines) % 4:                                   # (4*n_layer, K)
        raise ValueError("it should have four lines for each layer")
    n_knot, spline_range = lines.shape[1], lines[0, -1].item()
    even = np.linspace(-spline_range, spline_range, n_knot)
    if not np.allclose(lines[::2], even, atol=1e-3):
        raise ValueError("knots should be even, symmetric and the same in every layer")
    rows = lines[1::2].reshape(2, -1, n_knot)                               # (2, n_layer, K)
    shared = (rows == rows[:, :1]).all()
    mlp, attn = (rows[:, :1] if shared else rows).tolist()
    return {"n_knot": n_knot, "spline_range": spline_range, "mlp": mlp, "attn": attn,
            "share_layers": "all" if shared else "none", "dataset": "csv"}

SPLINES_FILE = {"n_knot": 64, "spline_range": 15.0, "share_layers": "all", "mlp": [], "attn": [],
                "visits": {}, "dataset": "", "tokenizer": "", "data": {}, "control": "", "seed": 0,
                "flags": {}, "model_iters": 0}      # the first three must be there

def load_splines(path):
    """The content of a splines file (see README) and the sha256 of its functions, wherever and by
    whatever run it was written; SystemExit if anything is off."""
    def check_rows(name, rows, least):
        right = all(isinstance(row, list) and len(row) == n_knot and all(
            type(x) in (int, float) and least <= x < 1e30 for x in row) for row in rows)
        if not right:
            raise ValueError(f"{name} should be rows of {n_knot} numbers from {least:g} to 1e30")
    try:
        content = read_csv_splines(path) if path.endswith(".csv") else load_json(path)
        content = {name: value for name, value in content.items() if value is not None}
        check_types(content, SPLINES_FILE)
        check_types(content.get("flags", {}))
        names = "n_knot", "spline_range", "share_layers"
        n_knot, spline_range, share_layers = (content.get(name, 0) for name in names)
        if n_knot < 2 or not 0 < spline_range < 1e30 or content.get("seed", 0) < 0 or (
                share_layers not in CHOICES["share_layers"].split()):
            raise ValueError(f"n_knot={n_knot} should be 2 or more, {spline_range=} a number above "
                             f"0, {share_layers=} all, middle or none, seed 0 or more")
        content["spline_range"] = float(spline_range)
        visits = content.get("visits", {})
        for kind in [kind for kind in ("mlp", "attn") if kind in content]:
            check_rows(kind, content[kind], -1e30)
            check_rows(f"visits of {kind}", visits.get(kind, []), 0)
            if len(visits.get(kind, content[kind])) != len(content[kind]):
                raise ValueError(f"visits of {kind} should be as many rows")
            content[kind] = np.array(content[kind], dtype=np.float64).tolist()
        functions = {name: content.get(name) for name in (*names, "mlp", "attn")}
        digest = hashlib.sha256(json.dumps(functions).encode()).hexdigest()
        return dict.fromkeys([*SPLINES_FILE][5:]) | content | {
            "sha256": digest, "dataset": content.get("dataset") or "file"}
    except Exception as error:          # whatever a damaged file comes up with
        raise SystemExit(f"splines={path} is no splines file as train.py writes it, nor the "
                         f"authors' CSV: {error}") from None

def describe_splines(splines, visits, cfg, data, model_iters):
    """The content of splines.json; load_splines reads it."""
    return {**{name: getattr(cfg, name) for name in ("n_knot", "spline_range", "share_layers")},
            **{kind: [spline.values.tolist() for spline in mine] for kind, mine in splines.items()},
            "visits": {kind: n[:, :-1].tolist() for kind, n in visits.items()},
            **get_coverage(visits, None), "dataset": cfg.dataset, "seed": cfg.seed, "control": None,
            "tokenizer": data.meta["tokenizer"], "data": data.meta["sha256"], "flags": vars(cfg),
            "model_iters": model_iters}

def place_splines(splines, source, cfg):
    """Copies loaded values to their places and freezes them; SystemExit if they do not fit."""
    for name in ("n_knot", "spline_range", "share_layers"):
        if source[name] != getattr(cfg, name):
            raise SystemExit(f"splines={cfg.splines} has {name}={source[name]}, the flag says "
                             f"{getattr(cfg, name)}; give --{name}={source[name]}")
    for kind, mine in splines.items():
        rows = source.get(kind, [])
        if len(rows) != len(mine):
            raise SystemExit(f"splines={cfg.splines} has {len(rows)} {kind} functions, parts="
                             f"{cfg.parts} and n_layer={cfg.n_layer} need {len(mine)}")
        for spline, row in zip(mine, rows):
            spline.values = nn.Parameter(torch.tensor(row, dtype=torch.float32), False)

# --------------------------------------------------------------------------------------------------
# main
def autocast(cfg):
    return torch.autocast(cfg.device.split(":")[0], torch.bfloat16, cfg.dtype == "bfloat16")

def check_flags(cfg):
    """Stops with one line at the first setting that cannot work; fills in what is automatic."""
    def check(wrong, name, right):
        value = getattr(cfg, name)
        if wrong:
            raise SystemExit(f"{name}={'(empty)' if value == '' else value} should be {right}")
    there = [name for name, module in (("cuda", torch.cuda), ("mps", torch.backends.mps))
             if module.is_available()] + ["cpu"]
    cfg.device = there[0] if cfg.device == "auto" else cfg.device
    there += [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    cfg.compile = {"true": "True", "false": "False"}.get(cfg.compile.lower(), cfg.compile)
    cfg.data_dir = cfg.data_dir or f"{HERE}/data"
    for name, value in vars(cfg).items():
        if name in CHOICES:
            check(value not in CHOICES[name].split(), name, f"one of: {CHOICES[name]}")
        if type(value) in (int, float):
            may_be_0 = DEFAULTS.get(name) == 0 or name in (*FRACTIONS, "spline_init", "n_layer")
            largest = 1e30 if type(value) is float else 2**62   # larger ones do not fit a tensor
            check(not 0 <= value < largest or value == 0 and not may_be_0, name,
                  f"{'0 or more' if may_be_0 else 'above 0'}, below {largest:.0e}")
            check(value > 1 and name in FRACTIONS, name, "between 0 and 1")
    share, n_rank = cfg.lr_warmup_frac + cfg.lr_decay_frac, get_rank()[1]
    number = r"(\d+\.?\d*|\.\d+)(e[-+]?\d+)?"
    rates = re.fullmatch(f"{number}(,{number})*", cfg.compare_rates)
    rates = rates and all(0 < float(rate) < 1e30 for rate in cfg.compare_rates.split(","))
    check(cfg.n_embd % (2 * cfg.n_head), "n_embd", f"a multiple of n_head={cfg.n_head} times 2")
    check(cfg.n_knot < 2, "n_knot", "at least 2")
    check(cfg.overwrite and cfg.resume, "overwrite", "False together with resume=True")
    check(cfg.n_layer == 0 and "spline" in get_acts(cfg), "n_layer", "1 or more to have splines")
    for name in ("mlp_act", "attn_act") if cfg.mode in ("warmup", "transfer") else ():
        check(getattr(cfg, name) == "spline", name, f"fixed: in mode {cfg.mode} parts decides")
    check(cfg.beta1 == 1, "beta1", "below 1")
    check(cfg.beta2 == 1, "beta2", "below 1")
    check(not cfg.dataset, "dataset", "the name of a folder in data_dir")
    check(not rates, "compare_rates", "like 1e-3,2e-3,4e-3")
    check(cfg.share_layers == "middle" and cfg.n_layer < 3, "n_layer", "3 or more to share middle")
    check(cfg.lr_schedule == "trapezoid" and share > 1, "lr_warmup_frac",
          f"at most 1 together with lr_decay_frac={cfg.lr_decay_frac}")
    check((cfg.mode == "transfer") != bool(cfg.splines), "splines",
          "a file in mode transfer, empty elsewhere")
    check(cfg.compile == "True" and cfg.device == "cpu" and not has_compiler(), "compile",
          "auto or False: there is no C++ compiler here")
    check(cfg.device not in there, "device", f"one of those here: {' '.join(there)}")
    check(cfg.attention == "flex" and cfg.device[:4] != "cuda", "attention", "sdpa except on cuda")
    check(cfg.optimizer == "muon" and not hasattr(torch.optim, "Muon"), "optimizer",
          f"adamw: muon needs torch 2.9 or newer, this is {torch.__version__}")
    fixed = cfg.mode == "transfer" or cfg.mode == "baseline" and "spline" not in get_acts(cfg)
    check(fixed and cfg.spline_data != "train", "spline_data", "train where no spline is learned")
    if cfg.mode == "warmup":
        check(cfg.average_checkpoints, "average_checkpoints", "False in mode warmup")
        check(cfg.n_models < n_rank, "n_models", f"at least the {n_rank} processes")
    else:
        check(cfg.batch_size % n_rank, "batch_size", f"a multiple of the {n_rank} processes")

def describe_run(cfg, data, source):
    """The content of flags.json: everything that the run depends on."""
    about = ("dataset", "tokenizer", "data", "seed", "control", "flags", "sha256", "model_iters")
    git = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, text=True,
                         capture_output=True) if shutil.which("git") else None
    versions = {"python": sys.version.split()[0], "torch": str(torch.__version__),
                "numpy": np.__version__}
    facts = {name: data.meta[name] for name in ("tokenizer", "fingerprint", "vocab_size")}
    return {"flags": vars(cfg).copy(), "commit": git and git.stdout.strip(), "device": cfg.device,
            "source": source and {name: source.get(name) for name in about},
            "versions": versions, "data": data.meta["sha256"] | facts}

def name_run(cfg, source):
    """Default name of out_dir; a hash stands for the settings that the name does not show."""
    name = f"{cfg.mode}-{cfg.dataset}" + (f"-from-{source['dataset']}" if source else "")
    name = f"{name.replace('/', '.')}-{cfg.n_layer}x{cfg.n_embd}-{cfg.learning_rate:g}-s{cfg.seed}"
    shown = "mode dataset n_layer n_embd learning_rate seed splines".split()
    rest = {key: value for key, value in vars(cfg).items()
            if value != DEFAULTS[key] and key not in (*shown, *BOOKKEEPING)}
    rest |= {"splines": source["sha256"]} if source else {}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()[:6]
    return name + (f"-{digest}" if rest else "")

def tell_apart(old, new):
    """What of flags, data and functions differs between two runs as flags.json describes them."""
    before, now = (run["flags"] | run["data"] | {"splines": (run["source"] or {}).get("sha256")}
                   for run in (old, new))
    return "; ".join(f"{name}={before.get(name)} there, {now[name]} here" for name in now
                     if name not in BOOKKEEPING and before.get(name) != now[name])

def open_run(cfg, description):
    """Makes out_dir; gives its result if it holds this very run, finished, else None; SystemExit if
    it holds another one, or an unfinished one and neither resume nor overwrite is set."""
    flags_path, result_path = f"{cfg.out_dir}/flags.json", f"{cfg.out_dir}/result.json"
    if os.path.isfile(cfg.out_dir):
        raise SystemExit(f"out_dir={cfg.out_dir} is a file; give another --out_dir")
    try:
        os.makedirs(cfg.out_dir, exist_ok=True)
        there = os.path.exists(path := flags_path) and not cfg.overwrite
        old = load_json(flags_path) if there else description
        if changed := tell_apart(old, description):
            raise SystemExit(f"out_dir={cfg.out_dir} holds another run: {changed}; give another "
                             "--out_dir or --overwrite=True")
        result = None
        if there and os.path.exists(path := result_path):
            check_result(result := load_json(path), cfg.max_iters)
        if there and not result and not cfg.resume:
            raise SystemExit(f"out_dir={cfg.out_dir} holds an unfinished run; give --resume=True "
                             "or --overwrite=True")
        for name in () if there else ("ckpt.pt", "log.jsonl", "result.json", "splines.json"):
            if os.path.exists(f"{cfg.out_dir}/{name}"):
                if not cfg.overwrite:
                    raise SystemExit(f"out_dir={cfg.out_dir} holds a {name} but no flags.json; give"
                                     " another --out_dir or --overwrite=True")
                os.remove(f"{cfg.out_dir}/{name}")
        for name in BOOKKEEPING:
            before, now = old["flags"].get(name), description["flags"][name]
            if before != now and name not in ("resume", "overwrite"):
                print(f"changed: {name}={before} before, {now} now")
        if result and old["commit"] != description["commit"]:
            print(f"{cfg.out_dir} was made at commit {old['commit']}, the code here is "
                  f"{description['commit']}: --overwrite=True runs it anew")
        elif not result:
            save_json(flags_path, description)
        return result
    except OSError as error:
        raise SystemExit(f"out_dir={os.path.abspath(cfg.out_dir)} cannot be written: {error}; give "
                         "another --out_dir") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise SystemExit(f"{path} is damaged or of another version; give another --out_dir or "
                         "--overwrite=True") from None

def make_model(m, config, splines, cfg):
    """Model m, its optimizer and its stream of draws: 0 for fresh models, which share none."""
    stream = m + 1 if cfg.mode == "warmup" else 0
    seed = int(np.random.SeedSequence([cfg.seed, 0, stream]).generate_state(1)[0])
    model = GPT(config, splines, torch.Generator().manual_seed(seed)).to(cfg.device)
    if cfg.compile == "True" or cfg.compile == "auto" and cfg.device.startswith("cuda"):
        for block in model.blocks:      # in place, so names stay; all models share the graphs
            block.compile()
    return SimpleNamespace(m=m, model=model, optimizers=make_optimizers(model, cfg), stream=stream)

def report(row, cfg):
    """One line: losses, pace, time spent and left; warnings about splines left idle."""
    pace = row["time_s"] / max(1, row["iter"])
    spent, left = (timedelta(seconds=int(seconds)) for seconds in
                   (row["time_s"], pace * (cfg.max_iters - row["iter"])))
    losses = "".join(f" | {key.split('_')[0]} {row[key]:.3f}" for key in
                     ("train_loss", "val_loss", "answer_loss", "exact_match") if key in row)
    losses += f" | averaged {row['averaged']['val_loss']:.3f}" if "averaged" in row else ""
    losses += f" | spread {row['spread']:.3f}" if row.get("spread") else ""
    knots = "".join(f" | {kind} knots {n}" for kind, n in row.get("visited", {}).items())
    speed = (f" | {1e3 * pace:.0f} ms/iter | {row['tokens'] / row['time_s']:.0f} tok/s | {spent}, "
             f"{left} left") if row["iter"] and row["time_s"] else ""
    print(f"iter {row['iter']:5d}{losses}{knots} | lr {row['lr']:.1e}{speed}", flush=True)
    for key, where in (("outside", "outside the knots"), ("unvisited", "unvisited by the source")):
        for kind, share in row.get(key, {}).items():
            if share > 0.01:
                print(f"warning: {share:.1%} of the {kind} activations lie {where}", flush=True)

class Diverged(SystemExit):
    """A loss that is not finite."""

def check_finite(it, losses, running, path):
    """Ends the run, marked as failed, if a loss since the last report was not finite."""
    bad = (~losses[0].isfinite()).nonzero().flatten().tolist()
    if bad:
        names = [name for run in running if run.m == bad[0] for name, weight in
                 run.model.named_parameters() if not weight.isfinite().all()]
        reason = (f"the loss of model {bad[0]} stopped being finite before iteration {it}; first "
                  f"such tensor: {(names or ['none'])[0]}; a lower learning_rate may help")
        rank, n_rank = get_rank()
        if rank == bad[0] % n_rank:         # one process writes: that which has the model
            save_json(path, {"status": "failed", "reason": reason, "iter": it})
        raise Diverged(reason)

def catch_signals():
    """A list that takes up the first SIGINT or SIGTERM; the second one ends the process at once."""
    caught = []
    def handle(number, frame):
        if caught:
            os._exit(128 + number)
        caught.append(number)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    return caught

def give_up(error):
    """Ends with one line where output, disk or memory has run out, or another process has ended."""
    if isinstance(error, RuntimeError) and not re.search("memory|by peer", str(error)):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)            # a closed pipe would complain again
    raise SystemExit(f"stopped: {str(error).splitlines()[0]}") from None

def train(cfg, parent="out", caught=()):
    """One run of mode baseline, warmup or transfer, from flags to result.json; gives the result.
    Ends after the iteration in which catch_signals has caught something: saved, 128 + the signal.
    Several processes get the models of a warm-up dealt out; in other modes they split the batch."""
    check_flags(cfg)
    data = read_dataset(cfg.data_dir, cfg.dataset, cfg.block_size)
    if cfg.spline_data == "held_out" and data.n_token["train"] < 2 * (cfg.block_size + 1):
        raise SystemExit(f"spline_data=held_out: {data.n_token['train']} training tokens are not "
                         "twice block_size+1")
    torch.set_float32_matmul_precision("high")          # TF32 where there is any
    source = load_splines(cfg.splines) if cfg.splines else None
    cfg.out_dir = cfg.out_dir or os.path.join(parent, name_run(cfg, source))
    config = make_config(cfg, data.meta)
    splines = make_splines(config)
    if source:
        place_splines(splines, source, cfg)
    rank, n_rank = get_rank()
    about = describe_run(cfg, data, source)
    result = [open_run(cfg, about) if rank == 0 else None]
    if n_rank > 1:
        dist.broadcast_object_list(result)
    if result[0]:
        if result[0]["status"] == "failed":
            raise Diverged(f"{cfg.out_dir} failed before: {result[0].get('reason')}; give another "
                           "--out_dir or --overwrite=True")
        print(f"{cfg.out_dir}: finished already")
        return result[0]
    warmup, max_iters = cfg.mode == "warmup", cfg.max_iters
    n_models, dealt, split = (cfg.n_models, n_rank, ()) if warmup else (1, 1, (rank, n_rank))
    values = [] if source else [x.to(cfg.device).values for x in sum(splines.values(), [])]
    totals = [torch.zeros_like(value) for value in values]
    spline_optimizer = torch.optim.Adam(values or [torch.zeros(1)], betas=(0.99, 0.999))
    running = []
    def start_models(n_started):
        for m in range(rank % dealt + dealt * len(running), n_started, dealt):
            running.append(make_model(m, config, splines, cfg))
    start_models(dealt)                 # each process has one, started or not
    model = running[0].model
    average = AveragedModel(model) if cfg.average_checkpoints else None
    state = {"about": about, "it": 0, "time_s": 0.0, "rows": [], "visits": {},
             "losses": torch.zeros(2, n_models, device=cfg.device)}     # sums and counts
    ckpt_path, result_path = f"{cfg.out_dir}/ckpt.pt", f"{cfg.out_dir}/result.json"
    if cfg.resume and os.path.exists(ckpt_path):
        saved = load_checkpoint(ckpt_path, cfg.device, about)
        state |= {name: saved[name] for name in state if name != "about"}
        start_models(len(saved["models"]))
        try:
            for run in [run for run in running if run.m in saved["models"]]:
                weights, moments = saved["models"][run.m]
                run.model.load_state_dict(weights)
                for optimizer, moment in zip(run.optimizers, moments, strict=True):
                    load_moments(optimizer, moment)
            load_moments(spline_optimizer, saved["spline_optimizer"])
            if average:
                average.load_state_dict(saved["average"])
        except Exception as error:      # whatever a foreign or damaged file comes up with
            raise SystemExit(f"{ckpt_path} is not of this run ({type(error).__name__}): "
                             "--overwrite=True") from None
    model_iters = sum(max_iters - get_start(m, cfg) for m in range(n_models))
    shared = {id(spline.values) for spline in sum(splines.values(), [])}
    weights = [weight for weight in model.parameters() if id(weight) not in shared]
    n_param = sum(weight.numel() for weight in weights)
    n_trainable = sum(weight.numel() for weight in weights if weight.requires_grad)
    names = [name for name, weight in model.named_parameters() if weight.requires_grad]
    if rank == 0:
        print(f"{cfg.mode} on {cfg.dataset} ({cfg.device}) in {cfg.out_dir}: {n_param:,} parameters"
              f", {n_trainable:,} train{cfg.freeze_all_but_embeddings * f' {names}'}, "
              f"{cfg.batch_size * cfg.block_size:,} tokens per iteration" +
              (f", {n_models} models cost {model_iters / max_iters:.1f} trainings"
               if n_models > 1 else ""))
        changed = [f"{name}={value}" for name, value in about["flags"].items()
                   if value != DEFAULTS[name] and name not in BOOKKEEPING]
        print("not as in --help:", *changed, "| commit", about["commit"], "| torch",
              torch.__version__, "| data", *(about["data"][x][:8] for x in ("train", "val")))
    began, first, unsaved = time.time() - state["time_s"], state["it"], None
    for it in range(first, max_iters + 1):
        state |= {"it": it, "time_s": time.time() - began}
        row = {"iter": it, "lr": cfg.learning_rate * get_lr_factor(min(it, max_iters - 1), cfg),
               "tokens": it * cfg.batch_size * cfg.block_size, "time_s": state["time_s"]}
        log, evaluation, save = (it % interval == 0 or it == max_iters for interval in
                                 (cfg.log_interval, cfg.eval_interval, cfg.save_interval))
        stop = caught[0] if caught and (log or n_rank == 1) else 0
        if log and n_rank > 1:          # processes stop together, when they report
            flag = torch.tensor([stop], device=cfg.device)
            dist.all_reduce(flag, dist.ReduceOp.MAX)
            stop = int(flag)
        if log or evaluation or save or stop:
            losses = state["losses"].clone()
            for run in running:             # + 0, or NaN if a weight is not finite
                losses[0, run.m] += 0 * sum(weight.data.sum() for weight in run.model.parameters())
            if warmup:
                sum_over_ranks([losses])
            check_finite(it, losses, running, result_path)
        if (save or stop) and it > first:
            unsaved = save_checkpoint(ckpt_path, state, running, spline_optimizer, average,
                                      n_models)
        if stop:
            raise SystemExit(128 + stop)
        n_started = get_started(it, cfg)
        if log or evaluation:
            means = (losses[0] / losses[1])[losses[1] > 0].tolist()     # of models that trained
            row |= {"train_loss": means[0], "spread": np.std(means).item()} if means else {}
            state["losses"].zero_()
        if evaluation and rank == 0:
            row |= evaluate(model, data, cfg)
            check_finite(it, torch.tensor([[row["val_loss"]]]), running, result_path)
            counts = count_visits(model, splines, data, cfg) if splines else {}
            state["visits"] = {kind: n + state["visits"].get(kind, 0) for kind, n in counts.items()}
            row |= get_coverage(state["visits"], source and source.get("visits"))
            if average and average.n_averaged:
                row["averaged"] = evaluate(average.module, data, cfg)
            state["rows"].append(row)
            save_json(f"{cfg.out_dir}/log.jsonl", *state["rows"])
        if (log or evaluation) and rank == 0:
            report(row, cfg)
        if it == max_iters:
            break
        start_models(n_started)
        for run in [run for run in running if run.m < n_started]:
            position = it - get_start(run.m, cfg) if cfg.stagger == "delayed" else it
            loss = update_model(run, values, it, position, data, cfg, *split)
            state["losses"][:, run.m] += torch.stack([loss, torch.ones_like(loss)])
            add_spline_gradients(totals, values, loss)
        if values:
            if warmup:
                sum_over_ranks(totals)
            step_splines(spline_optimizer, totals, values, n_started,
                         cfg.spline_lr * get_lr_factor(it, cfg))
        due = (it + 1) % (cfg.average_interval or max(1, max_iters // 50)) == 0
        if average and due and it + 1 >= cfg.average_start_frac * max_iters:
            average.update_parameters(model)
    result = {"status": "finished", "last": row, "time_s": state["time_s"], "iters": max_iters,
              "model_iters": model_iters, "tokens": row["tokens"], "n_param": n_param,
              "n_trainable": n_trainable, "tokens_per_param": row["tokens"] / n_param}
    if rank == 0:
        result["best"] = min(state["rows"], key=lambda row: row["val_loss"])
        if values:
            save_json(f"{cfg.out_dir}/splines.json",
                      describe_splines(splines, state["visits"], cfg, data, model_iters))
        save_json(result_path, result)
    if n_rank > 1:
        dist.barrier()
    if unsaved:             # not in silence, though the result is there
        raise SystemExit(f"{cfg.out_dir} is complete, but {unsaved}")
    if caught:              # in the last evaluation: the run is complete, what follows is not begun
        raise SystemExit(128 + caught[0])
    return result

def compare(cfg, caught=()):
    """A warm-up, then baseline and transfer at each rate; prints who wins and by how much."""
    def run(mode, **changes):
        changes |= {} if mode == "warmup" else {"spline_data": "train"}
        part = SimpleNamespace(**vars(cfg) | {"out_dir": "", "mode": mode} | changes)
        try:
            return train(part, cfg.out_dir or "out", caught) | {"out_dir": part.out_dir}
        except Diverged as error:
            print(error)
            return {"status": "failed"}
    check_flags(cfg)
    source, rates = run(mode="warmup"), cfg.compare_rates.split(",")
    if source["status"] == "failed":
        raise SystemExit("the warm-up failed; a lower learning_rate may help")
    splines = source["out_dir"] + "/splines.json"
    table = {"baseline": [], "own splines": []}
    for rate in rates:
        table["baseline"] += [run(mode="baseline", learning_rate=float(rate))]
        table["own splines"] += [run(mode="transfer", splines=splines, learning_rate=float(rate))]
    if get_rank()[0] == 0:
        print_comparison(table, rates)

def print_comparison(table, rates):
    """Final loss of each side at each rate: * marks its best, which lies inside or at the edge."""
    rows = {side: [result.get("last", {}) for result in results] for side, results in table.items()}
    key = "answer_loss" if any("answer_loss" in row for row in rows["baseline"]) else "val_loss"
    print(f"\n{key:14}" + "".join(f"{'lr ' + rate:>11}" for rate in rates) + "   best rate")
    best = {}
    for side, mine in rows.items():
        losses = [row.get(key, math.inf) for row in mine]
        best[side], i = min(zip(losses, range(len(losses))))
        cells = "".join(f"{x:10.3f}{'*' if j == i else ' '}" if x < math.inf else f"{'failed ':>11}"
                        for j, x in enumerate(losses))
        where = "at the edge, widen" if i in (0, len(rates) - 1) else "inside"
        exact = f", exact match {mine[i]['exact_match']:.1%}" if "exact_match" in mine[i] else ""
        print(f"{side:14}{cells}   {where}{exact}")
    if math.inf in best.values():
        raise SystemExit("nobody won: one side failed at every rate")
    gain = best["baseline"] - best["own splines"]
    print(f"{'own splines' if gain > 0 else 'the baseline'} won by {abs(gain):.3f} nats per token, "
          "each at its best rate, one seed")

if __name__ == "__main__":
    try:
        if {"--help", "-h"} & set(sys.argv):
            raise SystemExit(print(configurator.read_section(__file__, "flags"), flush=True))
        cfg = SimpleNamespace(**configurator.parse(DEFAULTS, sys.argv[1:]))
        if {"RANK", "WORLD_SIZE"} <= os.environ.keys():     # started by torchrun
            try:
                dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
            except ValueError as error:
                raise SystemExit("RANK and WORLD_SIZE are set but this is no process of torchrun: "
                                 f"{str(error).splitlines()[0]}; unset them") from None
            if torch.cuda.is_available():
                cfg.device = f"cuda:{os.environ['LOCAL_RANK']}"
        caught = catch_signals()
        compare(cfg, caught) if cfg.mode == "compare" else train(cfg, caught=caught)
    except (OSError, MemoryError, RuntimeError) as error:
        give_up(error)
