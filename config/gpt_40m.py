# the paper's smaller model, about 40 M parameters with the GPT-2 vocabulary; stack it with others
# python train.py config/gpt_40m.py config/warmup_math.py
n_layer = 4
n_head = 8               # 64 channels per head
n_embd = 512
