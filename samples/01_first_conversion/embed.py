"""Loads the bundle, and runs it on two batches whose sizes differ from those of the conversion."""

import torch

import fuseconv

model = fuseconv.load("minilm.fuseconv")
print(model.contract.inputs[0])
for batch, length in ((1, 7), (5, 33)):
    ids = torch.randint(0, 30522, (batch, length))
    outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), token_type_ids=torch.zeros_like(ids))
    print(tuple(outputs.last_hidden_state.shape), tuple(outputs.pooler_output.shape))
