# learns the two splines on DeepMind Math, the source of the paper's title experiment
# 20 models cost 10.5 trainings: hours on one GPU; python prepare.py math comes first
mode = "warmup"
dataset = "math"
