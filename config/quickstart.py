# splines learned on arithmetic by three staggered models, then both sides at four rates
# 5 minutes on 2 CPU cores, data included
mode = "compare"
n_embd = 64              # small, so that a laptop needs minutes
n_layer = 3
block_size = 128
batch_size = 8
max_iters = 220
n_models = 3             # enough that no spline fits a single set of weights
learning_rate = 4e-3     # of the warm-up: about the best of small models
compare_rates = "4e-3,8e-3,1.6e-2,3.2e-2"  # both optima lie inside
eval_interval = 220
eval_tokens = 40000
log_interval = 110
