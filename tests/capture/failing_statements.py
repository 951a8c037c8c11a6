"""Statements of the programs that `failing_programs` writes, and what these programs stand on.

`{i}` is a position from 0 to 2, `{r}` a number or a variable that holds one, `{b}` a bool. `s` is
the state (`State` at the end), `x` a vector that is computed on, `k` a position that is out of
range in some calls, `z` has a zero in some.
"""

from __future__ import annotations

WRITES = (
    "s.w.add_(1)", "s.w.mul_(s.w + {r})", "s.w[{i}] = x.sum().detach()", "s.w[1:].add_(1)",
    "s.w.data.add_(1)", "s.w.data[{i}] = 5.0", "s.w.detach().add_(2)", "s.w.data.copy_(s.w + 1)",
    "s.p.data.mul_(1.5)", "s.p.data[{i}] += 1", "s.p.data.lerp_(torch.ones(3), 0.5)",
    "torch._foreach_add_([s.p.data, s.w], 1.0)", "torch._foreach_mul_([s.w, s.n], 2)",
    "with torch.no_grad(): s.p.add_(1)", "with torch.no_grad(): s.p[{i}] = 3.0",
    "with torch.no_grad(): s.p.copy_(s.w)", "s.tail.mul_(2)", "s.flat.add_(1)", "s.n.add_(1)",
    "s.n[{i}] = {r}", "s.m.t()[{i}].add_(1)", "s.m.data.view(-1)[2:].mul_(2)",
    "s.m.copy_(s.m.t().clone())", "torch.add(s.w, 1, out=s.w)", "torch.mul(x.detach(), 2, out=s.o)",
    "s.a += 1", "s.a[{i}] = 7", "s.of_a.add_(1)", "s.of_a.numpy()[{i}] += 2",
    "torch.from_numpy(s.a).mul_(2)", "s.w.numpy()[{i}] = 4",
    "s.w.index_copy_(0, k, x[:1].detach())", "s.w.index_put_((k,), s.w[:1], accumulate=True)",
    "s.w[k] = x[:1].detach()", "s.w.scatter_(0, k, 9.0)", "s.w[s.w > 1] = 0.5",
    "s.n.clamp_(max={r})", "s.w.masked_fill_(x.detach() > 0, 1.5)", "s.w.fill_({r})", "s.w.zero_()",
    "s.w.exponential_()", "s.w.uniform_(0, 1)", "s.w.data.normal_()", "torch.nn.init.uniform_(s.p)",
    "s.p.data = s.w * 2", "s.w.set_(torch.ones(3))", "s.o.resize_(2)", "s.m.t_()",
    "s.o.unsqueeze_(0)", "s.h.mul_(2)", "s.h.add_(x)", "s.h[{i}] = x[0]",
    "s.w.add_(x.detach()).relu_()", "F.relu(s.w, inplace=True)", "s.w.clone().add_(1).data.zero_()",
    "s.layer.weight.data.add_(1)", "s.layer.requires_grad_({b})", "s.w = s.w + 1",
    "s.p.grad = None", "s.p.grad = torch.ones(3)", "s.norm.running_mean.mul_(2)",
    "s.w.view_as(s.w).add_(1)", "s.w.narrow(0, 1, 2).copy_(torch.rand(2))", "del s.o",
    "s.w.unsqueeze(0).squeeze(0).sub_(0.5)", "s.both.data.add_(1)", "s.m.diagonal().add_(1)",
    "s.w.exponential_(generator=s.g)", "s.w.normal_(0, 1, generator=s.g)", "s.c.real.add_(1)",
    "torch.view_as_real(s.c)[{i}].mul_(2)", "s.c.mul_(1j)", "s.small.add_(100)", "s.bits ^= True",
    "s.bits[{i}] = x.sum() > 0", "s.half.add_(x.detach())", "s.w.view(torch.int32).bitwise_xor_(1)",
    "s.v = torch.cat([s.v, x.detach()[:{r}]])", "s.v = s.v[1:]", "s.v.add_(1)", "s.v[-1] = {r}",
    "s.v = torch.arange({r}) + 1.0", "s.row += 1", "s.row[:] = s.a", "s.a[s.a > 1] = 0",
    "np.add(s.a, 1, out=s.a)", "s.a.sort()", "s.table[{i}] += s.a", "s.table.T[{i}] *= 2",
    "torch._foreach_add_(list(s.net.parameters()), 0.1)", "torch._foreach_zero_([s.w, s.n])",
    "with torch.no_grad(): torch._foreach_lerp_([s.p, s.w], [s.w + 1, s.w], 0.5)",
    "torch._foreach_copy_([s.w, s.n], [s.o, s.n + 1])", "s.net.seen.add_(1)",
    "s.net.gain.data *= 2", "s.w.swapaxes(0, 0).add_(1)", "s.m.unfold(0, 2, 1).mul_(2)",
    "s.m.expand(1, 3, 3)[0].add_(1)", "s.tree['t'].add_(1)", "s.pair.left.mul_(2)",
    "s.data.t.add_(1)", "s.tensors[{i}].add_(1)", "for t in s.tensors: t.mul_(2)",
    "s.tensors[{i}] = s.w", "s.w.resize_(3)", "s.m.transpose_(0, 1)",
    "s.p.grad is None or torch.nn.utils.clip_grad_norm_([s.p], 0.5)",
    "s.w.copy_(torch.from_numpy(s.a))",
    "s.w.random_(0, 5)", "s.w.cauchy_().clamp_(-3, 3)", "s.bits.bernoulli_(0.5)",
    "s.w.sort()[0].add_(1)", "torch.cumsum(s.w, 0, out=s.o)", "s.w.put_(k, x[:1].detach())",
    "s.m.fill_diagonal_({r})", "s.p.grad.zero_()", "s.p.grad.add_(1)", "s.h.detach_()",
    "s.h.requires_grad_()", "s.w.squeeze_().unsqueeze_(0).squeeze_()", "s.w.index_fill_(0, k, 2.0)",
)
"""Statements that write tensors of the state; `{i}` is a position, `{r}` a number."""

EFFECTS = (
    "s.items.append({r})", "s.items.append(x.detach().clone())", "s.d['k'] = {r}",
    "s.d.pop('a', None)", "s.seen.add({r})", "s.queue.append({r})", "s.queue.popleft()",
    "s.count += 1", "s.items.clear()", "s.d.setdefault('l', []).append({r})",
    "s.d['t'] = s.w.clone()", "bump()", "s.layer.tag = {r}", "TOTAL['n'] += 1", "s.items[0] = {r}",
    "log({r})", "s.inner.value = x.sum().item()", "del s.d['a']", "s.items += [1, {r}]",
    "s.layer.register_buffer('extra', torch.ones(1) * {r})", "log(s.w.sum().item())",
    "setattr(s.inner, 'value', s.w * 1)", "s.tree['l'].append({r})",
    "s.tree['d'][{r}] = x.sum().item()", "s.tree |= {'m': {r}}", "s.many[{r}].append(1)",
    "s.order.move_to_end('a')", "s.order.popitem()", "s.data.n += {r}", "s.data.items.append({r})",
    "s.items[1:] = [{r}]", "s.items.sort()", "s.items.reverse()", "s.items.insert(0, {r})",
    "del s.items[{i}]", "del s.items[:1]", "s.items.extend(i * {r} for i in range(2))",
    "s.seen |= {{r}, 7}", "s.seen.discard({r})", "s.seen.remove({r})", "s.queue.rotate(1)",
    "s.queue.extend([{r}, 1])", "random.shuffle(s.items)", "np.random.shuffle(s.a)",
    "s.nrng.shuffle(s.a)", "s.rng.shuffle(s.items)", "random.seed({r})", "np.random.seed({r})",
    "torch.manual_seed({r})", "s.g.manual_seed({r})", "s.rng.seed({r})",
    "s.rng.setstate(random.getstate())", "torch.set_rng_state(s.g.get_state())",
    "s.g.set_state(torch.get_rng_state())", "print({r})", "print('sum', x.sum().item())",
    "warnings.warn(f'w: {{r}}')", "log(kept({r}))", "bump.calls = {r}", "State.shared.append({r})",
    "State.total = {r}", "s.named = {r}", "log(s.named)", "s.net.mode = {r}", "s.net.train({b})",
    "s.net.register_buffer('late', x.detach() * 1)", "s.net.steps.append({r})",
    "s.tensors.append(s.w)", "s.tensors.append(x.detach())", "s.tensors.pop()",
    "s.d.update(a={r}, b=2)", "s.d.clear()", "s.d = dict(s.d)", "s.items = s.items + [{r}]",
    "log(next(s.numbers))", "s.numbers = iter([{r}, 1])", "log(s.seen)", "log(list(s.d.items()))",
    "s.pair = s.pair._replace(right={r})", "s.handles.append(s.p.register_hook(double))",
    "s.handles.pop().remove()", "s.handles.append(s.layer.register_forward_hook(on_forward))",
    "s.handles.append(s.net.register_forward_pre_hook(refuse_large))",
    "x.register_hook(double) if x.requires_grad else None", "s.sched.step()",
    "s.opt.param_groups[0]['lr'] = 0.1 * {r}",
)
"""Statements that change other objects of the state."""

NUMBERS = (
    "random.randrange(0, 4)", "random.randint(0, 3)", "random.getrandbits(2)",
    "np.random.randint(4)", "s.rng.randrange(4)", "s.rng.choice([0, 1, 2, 3])",
    "int(s.nrng.integers(0, 4))", "int(s.state.randint(0, 4))", "torch.randint(0, 4, ()).item()",
    "int(torch.randint(0, 4, (1,)))", "torch.randint(0, 4, (), generator=s.g).item()",
    "torch.randperm(4)[0].item()", "int(random.random() * 4)", "s.n[0].item() % 4",
    "int(x.sum().item()) % 4", "int((x > 0).sum())", "len(s.items) % 4", "x[x > 0].shape[0]",
    "int(np.random.rand() * 4)", "random.sample(range(4), 1)[0]",
    "torch.bernoulli(torch.full((3,), 0.5)).sum().int().item()", "int(torch.rand(()) * 4)",
    "random.choice((0, 1, 2, 3))", "torch.multinomial(torch.ones(4), 1).item()", "k.item() % 4",
    "torch.empty(()).uniform_(0, 4).int().item()", "np.random.default_rng(3).integers(0, 4)",
    "random.Random(s.count).randrange(4)", "s.n.tolist()[0] % 4",
    "int(torch.argmax(torch.rand(4)))", "torch.randperm(4, generator=s.g)[0].item()",
    "int(np.random.choice(4))", "np.random.permutation(4)[0]", "s.nrng.integers(4)",
    "s.nrng.choice([0, 1, 2, 3])", "s.nrng.permutation(4).tolist()[0]", "int(s.nrng.random() * 4)",
    "s.rng.sample([0, 1, 2, 3], 2)[1]", "random.choices([0, 1, 2, 3], k=2)[0]",
    "s.rng.getrandbits(2)", "int(random.triangular(0, 3))", "int(random.betavariate(1, 1) * 4)",
    "s.v.shape[0] % 4", "len(s.tensors) % 4", "s.v.numel()", "int(s.w.sum().item()) % 4",
    "s.a.argmax()", "int(s.a.sum()) % 4", "(s.w > 0).sum().item()", "x.argmax().item()",
    "torch.nonzero(x > 0).shape[0]", "torch.unique(s.n).numel()", "len(s.d) % 4",
    "int(s.bits.any())", "s.n.max().item() % 4", "sum(random.random() < 0.5 for _ in range(3))",
    "[random.randrange(4) for _ in range(2)][1]", "max(s.rng.random(), 0.5) > 0.7", "draw(4)",
    "next(draws(4))", "(lambda: random.randrange(4))()", "s.draw()",
    "int(torch.rand(2)[k % 2] * 4)", "torch.poisson(torch.ones(2)).sum().int().item() % 4",
    "int(s.state.rand() * 4)", "s.state.choice(4)", "int(np.random.normal() > 0)",
    "int(np.random.binomial(3, 0.5))", "bool(torch.rand(()) > 0.5)", "random.random() > 0.5",
    "round(random.uniform(0, 3))",
)
"""Numbers from 0 to 3 that are drawn, or depend on data."""

TENSORS = (
    "torch.rand(3)", "torch.randn_like(x)", "F.dropout(x, 0.5)", "x * random.random()", "x + s.w",
    "x * s.p", "s.layer(x)", "s.norm(torch.stack([x, x + 1])).sum(0)",
    "x + torch.from_numpy(np.random.rand(3)).float()", "torch.rand(3, generator=s.g) + x",
    "x * {r}", "torch.normal(0.0, 1.0, (3,))", "F.dropout(s.w + x, 0.2)", "x * s.rng.gauss(0, 1)",
    "(x + s.h)", "x.bernoulli(0.5)", "x + s.n", "F.rrelu(x, training=True)",
    "torch.randint(0, 5, (3,)) + x", "x - s.m.sum(0)", "x * torch.tensor(random.uniform(0, 1))",
    "x.view(3, 1)[:, 0]", "s.net(x)", "Scaled.apply(x, {r})", "Noisy.apply(x)", "x + s.v.sum()",
    "x * s.v[:3].mean()", "x + s.half", "x + s.small", "(x * s.c).real", "x + s.bits",
    "torch.utils.checkpoint.checkpoint(s.layer, x, use_reentrant=False)", "sum(pieces(x, {r}), x)",
    "x + torch.as_tensor(s.a).float()", "torch.where(torch.rand(3) > 0.5, x, s.w)",
    "F.dropout(x, 0.5, training=s.net.training)", "F.gumbel_softmax(x)",
    "x + torch.randn(3, generator=s.g)", "x + s.tree['t']", "x * s.pair.left", "x + sum(s.tensors)",
    "torch.stack(s.tensors[:2]).sum(0) + x", "x + s.data.t * s.data.n", "torch.vmap(torch.sin)(x)",
    "x[torch.randperm(3)]", "x + s.m[{i}]", "x.detach()", "x.clone().requires_grad_()", "x * x",
    "deep(x, k * 0, s, 2)", "s.module_list[0](x)", "[x, s.w, s.layer(x)][{r} % 3]",
    "x + np.float64({r})", "x + float(s.a.sum())", "torch.tensor(s.items[:1] + [1.0, 2.0]) + x",
    "F.layer_norm(x, (3,))", "x.float() if {r} else x + 1",
    "torch.func.grad(lambda t: (t * t).sum())(x.detach())", "x + torch.tensor(s.a.tolist())",
    "F.multi_head_attention_forward if False else x", "x.sigmoid().bernoulli() + x",
)
"""New values of `x`."""

REFUSING = (
    "x = x + x[k]", "x = x + F.embedding(k, s.e)[0]", "x = x + x.index_select(0, k)",
    "s.n.copy_(s.n // z)", "x = x + (s.n // z)", "x = x + (s.n % z)",
    "x = x * torch.linalg.cholesky(torch.eye(3) * (3 - k)).sum()",
    "x = x + F.cross_entropy(s.m, k.expand(3))", "x = x + F.nll_loss(s.m, k.expand(3))",
    "x = x + x.gather(0, k)", "x = x + s.items[{r}]", "x = x + [1, 2, 3][{r}]",
    "x = x / (1 // {r})", "assert (x < 40).all(), 'large'", "if k > 2: raise ValueError('k')",
    "x = x * random.randrange({r})", "x = x + random.choice([1, 2][:{r}])",
    "x = x + math.sqrt(2 - k.item())", "x = x + s.d['a']", "x = x + torch.ones(3 - k.item()).sum()",
    "x = x + torch.bernoulli(k * 0.3)", "torch._assert((k < 3).all(), 'k')",
    "x = x + torch.multinomial((k < 3).float().expand(3), 1)", "x = x + F.one_hot(k, 3)[0]",
    "x = x.view(-1, k.item()).sum() + x", "x = x + torch.linalg.inv(torch.eye(3) * (k < 3)).sum(0)",
    "s.w.index_copy_(0, k, torch.ones(1))", "s.w[k] = 2.0", "s.w.scatter_add_(0, k, torch.ones(1))",
    "x = x + s.w[k.item()]", "x = x + list(s.w)[k.item()]",
    "x = x + torch.repeat_interleave(torch.ones(1), 2 - k).sum()", "x = x + 1 / (3 - k.item())",
    "x = x + s.queue.popleft()", "torch._check(k.item() < 3)", "x = x + s.o",
    "x = x + F.embedding(torch.tensor([{r}]), s.e[:3])[0]", "x = x + s.m[k, k]",
    "x = x + (2 ** (s.n - k)).sum()",
    "if x.sum() > 30: raise RuntimeError(f'{x.sum().item():.2f}')", "x = x + Refuses.apply(x, k)",
    "x = x + refuses(x, k)", "x = x + s.w.numpy()[k.item()]", "x = x + torch.take(x, k)",
    "F.embedding(k, s.e)", "x = x + torch.searchsorted(x.detach(), x.detach(), sorter=k.expand(3))",
    "x[k]", "s.n // z", "x = x + s.v[k]", "x = x + s.v[k.item()]", "x = deep(x, k, s, 2)",
    "x = x + next(y for y in pieces(x, 2) if k < 3)", "raise Own({r})", "x = x + s.a[k.item()]",
    "x = x + np.take(s.a, k.item())", "x = x + s.tensors[k.item()]", "x = x + s.net(x, k)",
    "x = x + s.tree['missing']", "x = x + s.order['a']", "x = x + s.tensors[{r}]", "x = x @ s.v",
    "x = x + torch.cat([s.v, s.m])", "x = x + torch.stack([x, s.v]).sum(0)",
    "x = x + int('1' * (3 - k.item()))", "x = x + [*s.queue][k.item()]", "s.seen.remove(k.item())",
    "a, b = s.items", "x = x + (lambda q: x[q])(k)", "x = x.reshape({r}, -1).sum(0)",
    "with Swallows(): x = x + x[k]", "x = x + s.m.index_select(1, k).sum()",
    "x = x + torch.split(x, k.item())[0]", "np.random.randint({r})", "s.nrng.integers({r})",
    "s.rng.sample([1, 2], {r})", "random.choices([], k={r})", "torch.randperm(2 - k.item())",
    "s.w.normal_(0, 2 - k.item())", "torch.randint(0, 3 - k.item(), (2,))",
    "x = x + torch.distributions.Categorical(logits=x.detach()).sample()", "x.sum().backward()",
    "x = x + Fails.apply(x, k)", "(Fails.apply(x * s.p, k)).sum().backward()",
    "assert k.item() < 4, k", "x = x + torch.linalg.solve(torch.eye(3) * (k < 3), x)",
    "s.small.floor_divide_(z)", "x = x + torch.gather(x, 0, k)", "torch.scatter(s.w, 0, k, 1.0)",
    "x = x + F.one_hot(s.n % 3, k.item()).sum(1)", "s.data.nothing += 1", "x = x.sum(dim=k.item())",
    "x = x.unsqueeze(k.item()).sum(0)", "x = x + torch.full((3,), 1.0)[k]",
    "torch._foreach_add_([s.w, s.m], [x.detach(), x.detach()[k]])", "s.w.view(k.item() + 1, -1)",
    "x = x + torch.tensor([1, 2, 3])[k] + (1 if k < 3 else {}['k'])",
    "x = x + s.layer.weight[k, k]",
)
"""Statements that raise for some data; `k` is [0] to [5], `z` has a 0 sometimes."""

BACKWARD = (
    "(x * s.p).sum().backward()", "(s.layer(x) * s.p).sum().backward()", "s.opt.step()",
    "s.opt.zero_grad()", "s.opt.zero_grad(); (x.detach() * s.p).sum().backward(); s.opt.step()",
    "x = x + torch.autograd.grad((s.p * s.p).sum(), s.p)[0]", "s.net(x).sum().backward()",
    "s.adam.zero_grad(set_to_none={b}); s.net(x.detach()).square().sum().backward(); s.adam.step()",
    "s.adam.step()", "Scaled.apply(x * s.p, {r}).sum().backward()",
    "(Noisy.apply(s.p) * x).sum().backward()",
    "s.net.zero_grad(); (s.net(x) * s.p).mean().backward(); s.opt.step(); s.sched.step()",
    "x = x + torch.autograd.grad(s.net(x).sum(), list(s.net.parameters()))[0].sum()",
    "(s.layer(x).sum() / s.v.numel()).backward(); s.layer.weight.grad.clamp_(max=0.1)",
    "s.h.sum().backward(retain_graph=True)",
    "torch.autograd.grad(s.h.sum(), s.leaf, retain_graph=True)",
    "s.opt.step(lambda: (s.p * 2).sum())",
)
"""Statements of training."""

CAUGHT = (
    "IndexError", "RuntimeError", "(ValueError, KeyError)", "Exception",
    "(IndexError, RuntimeError, ZeroDivisionError)", "Own", "(Own, LookupError)", "ArithmeticError",
)
"""What handlers catch."""

COUNTED = (
    "p", "m", "n", "o", "both", "flat", "v", "c", "small", "half",
)
"""Tensors whose writes are compared in number; NumPy writes others, which eager does not count."""

SUPPORT = """
counter = 0
TOTAL = {"n": 0}

def bump():
    global counter
    counter += 1

def log(value):
    LOG.append(value)

def refuses(x, k):
    try:
        return x[k]
    except IndexError:
        log("inner")
        return x * 2

class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        return x + x.detach()[k]

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None

class Own(Exception):
    pass

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.save_for_backward(x)
        ctx.n = n
        return x * n + x.sin()

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * (ctx.n + x.cos()), None

class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(k)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        if ctx.saved_tensors[0].item() > 2:
            raise Own("backward")
        return gradient * 2, None

class Swallows:
    def __enter__(self):
        log("enter")
        return self

    def __exit__(self, kind, error, traceback):
        log(("exit", kind and kind.__name__))
        return kind is not None and issubclass(kind, LookupError)

@contextlib.contextmanager
def doubled(s):
    s.w.mul_(2)
    try:
        yield s.w
    except IndexError:
        log("passes")
        raise
    finally:
        s.w.div_(2)
        s.count += 1

def pieces(x, n):
    try:
        for i in range(n):
            yield x * i + random.random()
    finally:
        log("closed")

def draws(n):
    while True:
        yield random.randrange(n)

def draw(n):
    log("draws")
    return random.randrange(n)

def deep(x, k, s, n):
    s.items.append(n)
    return x + x[k] if n == 0 else deep(x + 1, k, s, n - 1)

def kept(value, into=[]):
    into.append(value)
    return len(into)

def double(gradient):
    log("hook")
    return gradient * 2

def on_forward(module, args, y):
    log("forward")
    return y + 1

def refuse_large(module, args):
    if args[0].sum() > 9:
        raise Own("large")

Pair = collections.namedtuple("Pair", ["left", "right"])

@dataclasses.dataclass
class Data:
    t: torch.Tensor
    n: int = 1
    items: list = dataclasses.field(default_factory=list)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        torch.nn.init.constant_(self.inner.weight, 0.2)
        torch.nn.init.zeros_(self.inner.bias)
        self.drop = torch.nn.Dropout(0.3)
        self.gain = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))
        self.steps, self.mode = [], 0

    def forward(self, x, k=None):
        if self.training:
            self.seen += 1
            self.mean.lerp_(x.detach(), 0.5)
        self.steps.append(self.mode)
        y = self.drop(self.inner(x)) * self.gain
        return y if k is None else y + self.gain[k]

class Inner:
    value = 0

class State:
    def __init__(self):
        self.w, self.o, self.n = torch.arange(3.0), torch.zeros(3), torch.tensor([1, 2, 3])
        self.p = torch.nn.Parameter(torch.ones(3))
        self.m = torch.arange(9.0).view(3, 3) / 9
        self.e = torch.arange(12.0).view(4, 3)
        self.tail, self.flat, self.both = self.w[1:], self.m.view(-1), self.p.detach()
        self.a = np.arange(3.0)
        self.of_a = torch.from_numpy(self.a)
        self.h = torch.ones(3)
        self.layer = torch.nn.Linear(3, 3)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.zeros_(self.layer.bias)
        self.norm = torch.nn.BatchNorm1d(3)
        self.opt = torch.optim.SGD([self.p, self.layer.weight], lr=0.1, momentum=0.9)
        self.items, self.d, self.seen, self.queue = [1, 2], {"a": 1}, {0}, deque([1, 2, 3], 6)
        self.count, self.inner = 0, Inner()
        self.rng, self.nrng = random.Random(5), np.random.default_rng(5)
        self.state, self.g = np.random.RandomState(5), torch.Generator().manual_seed(5)
        self.leaf = torch.ones(3, requires_grad=True)
        self.net, self.module_list = Net(), torch.nn.ModuleList([self.layer])
        self.adam = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 1, 0.5)
        self.c = torch.complex(torch.ones(3), torch.arange(3.0))
        self.small, self.bits = torch.tensor([1, 2, 3], dtype=torch.int8), torch.zeros(3) > 0
        self.half, self.v = torch.ones(3, dtype=torch.bfloat16), torch.arange(4.0)
        self.table = np.arange(9.0).reshape(3, 3)
        self.row = self.table[1]
        self.tree = {"l": [1], "t": self.w, "d": {}}
        self.many, self.order = collections.defaultdict(list), collections.OrderedDict(a=1, b=2)
        self.pair, self.data = Pair(torch.ones(3), 1), Data(torch.ones(3))
        self.tensors = [torch.ones(3), self.w, torch.zeros(3)]
        self.numbers, self.handles = iter([1, 2, 3]), []

    shared, total = [], 0

    @property
    def named(self):
        log("reads")
        return self._named

    @named.setter
    def named(self, value):
        log("writes")
        self._named = value

    def draw(self):
        return self.rng.randrange(4)
"""
