# the paper's larger model, GPT-2 small, about 120 M parameters; stack it with others
# python train.py config/gpt_120m.py config/transfer_math.py --splines=FILE
n_layer = 12
n_head = 12              # 64 channels per head
n_embd = 768
