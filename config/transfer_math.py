# trains a fresh model on DeepMind Math (or --dataset=...) with frozen splines (--splines=FILE)
# 20,000 iterations of 4,096 tokens: the same run as mode baseline but for the nonlinearities
mode = "transfer"
dataset = "math"
