"""torch.optim: optimizers become operations that graphs can hold.

Captured: `step` and `zero_grad` of every optimizer of torch.optim, as the foreach form or plain
operations (`rules`; `polyfills`, `gradient_polyfills`). States on other devices than their
parameter, and closures that a graph cannot hold, break as they do elsewhere.
"""
