"""Mutation and aliasing through `weft.compile`, capture included: programs against eager.

Inputs are those of `test_aliasing.py`; every program is called twice. Errors must be eager's.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from observing import assert_alike, run

import weft

PROGRAMS: list[Callable] = []


def program(function: Callable) -> Callable:
    PROGRAMS.append(function)
    return function


@program
def view_of_view_inplace(x, w, b):
    v = x.view(8, 4)[2:6].t()
    v.mul_(2)
    return (x + 0, v)


@program
def view_chain_ret(x, w, b):
    y = x * 2
    v = y.view(8, 4)
    u = v[1:]
    z = u[0]
    z.add_(1)
    return (z, u, v, y)


@program
def inplace_on_view_of_input_ret_both(x, w, b):
    v = x[1]
    v.mul_(3)
    return (v, x)


@program
def inplace_view_after_base(x, w, b):
    v = x[0]
    x.mul_(2)
    return (v + 1, v)


@program
def outputs_alias_each_other(x, w, b):
    y = x.sin()
    return (y[0], y[1], y.t())


@program
def out_alias_intermediate(x, w, b):
    y = x.sin()
    z = y.view(-1)
    return (z, y * 2)


@program
def as_strided_in(x, w, b):
    return torch.as_strided(x, (2, 3), (8, 2), 1) * 2


@program
def as_strided_in_ret(x, w, b):
    return torch.as_strided(x, (2, 3), (8, 2), 1)


@program
def as_strided_write(x, w, b):
    v = x.as_strided((2, 3), (8, 2), 1)
    v.add_(1)
    return x * 2


@program
def as_strided_view(x, w, b):
    v = x[1:]
    u = v.as_strided((2, 2), (8, 1))
    u2 = v.as_strided((2, 2), (8, 1), 0)
    return (u, u2 * 2)


@program
def detach_inplace(x, w, b):
    y = x * 2
    y.detach_()
    return (y * w[0], y)


@program
def detach_input_(x, w, b):
    x.detach_()
    return (x * 2, x)


@program
def detach_view_write(x, w, b):
    y = x * 2
    d = y.detach()
    d.add_(1)
    return (y * 3, d)


@program
def reqgrad_inside(x, w, b):
    z = b.clone().requires_grad_()
    y = (z * 2).sum()
    return (y, z)


@program
def reqgrad_input(x, w, b):
    b.requires_grad_()
    return (b * w[0]).sum()


@program
def reqgrad_input_off(x, w, b):
    y = x.detach() * 2
    y.requires_grad_(True)
    y.requires_grad_(False)
    return y + 1


@program
def data_read(x, w, b):
    return (x.data * 2, x.data)


@program
def data_write(x, w, b):
    x.data.mul_(2)
    return x * 2


@program
def data_assign(x, w, b):
    b.data = torch.ones(8) * 3
    return b * 2


@program
def data_assign_inter(x, w, b):
    y = x.detach() * 2
    y.data = torch.ones(2, 2)
    return y + 1


@program
def set_inter(x, w, b):
    z = torch.empty(0)
    z.set_(x.detach())
    return z * 2


@program
def set_input(x, w, b):
    with torch.no_grad():
        b.set_(torch.ones(8) * 5)
    return b * 2


@program
def set_source_storage(x, w, b):
    z = torch.empty(0)
    z.set_(b.untyped_storage(), 2, (3,), (2,))
    return z * 2


@program
def resize_inter(x, w, b):
    z = torch.empty(4)
    z.resize_(2, 2)
    z.fill_(3)
    return z


@program
def resize_grow(x, w, b):
    z = torch.ones(2)
    z.resize_(4)
    z.fill_(1)
    return z


@program
def resize_in(x, w, b):
    with torch.no_grad():
        b.resize_(4)
        b.mul_(2)
    return b + 1


@program
def out_inter(x, w, b):
    o = torch.empty(8)
    torch.add(b, 1, out=o)
    return o


@program
def out_resize(x, w, b):
    o = torch.empty(0)
    torch.add(b, 1, out=o)
    return o


@program
def out_view(x, w, b):
    o = torch.zeros(4, 8)
    torch.add(b, 1, out=o[1])
    return o


@program
def out_two(x, w, b):
    v = torch.empty(0)
    i = torch.empty(0, dtype=torch.long)
    torch.max(x.detach(), 1, out=(v, i))
    return (v, i)


@program
def out_input(x, w, b):
    torch.cumsum(b.clone(), 0, out=b)
    return b


@program
def leaf_no_grad(x, w, b):
    with torch.no_grad():
        w.mul_(2)
        w[0].zero_()
    return ((x @ w.t()).sum(), w)


@program
def leaf_error(x, w, b):
    w.add_(1)
    return w


@program
def leaf_view_error(x, w, b):
    w[0].add_(1)
    return w


@program
def chunk_write(x, w, b):
    y = x * 2
    a, c = y.chunk(2, 1)
    a = a * 2
    return (a, c)


@program
def chunk_inplace(x, w, b):
    y = x * 2
    a, c = y.chunk(2, 1)
    a.mul_(2)
    return y


@program
def split_inplace(x, w, b):
    y = x * 1
    for i, s in enumerate(y.split(1)):
        s.add_(i)
    return y


@program
def unbind_inplace(x, w, b):
    y = x * 1
    for s in y.unbind(0):
        s.mul_(2)
    return y


@program
def split_nograd_inplace(x, w, b):
    y = x.detach().clone()
    a, c = y.split(2)
    a.add_(1)
    c.mul_(2)
    return (y, a, c)


@program
def expand_inplace_error(x, w, b):
    b.expand(3, 8).add_(1)
    return b


@program
def expand_with_an_argument_that_must_be_named(x, w, b):
    return (torch.expand_copy(b, (3, 8), implicit=True), b.expand(3, 8, implicit=False))


@program
def expand_inplace_error2(x, w, b):
    y = (b * 2).expand(3, 8)
    y.mul_(2)
    return y


@program
def dtype_error(x, w, b):
    i = torch.ones(8, dtype=torch.long)
    i.add_(b)
    return i


@program
def dtype_error2(x, w, b):
    i = torch.ones(8, dtype=torch.long)
    i /= 2
    return i


@program
def bool_inplace_err(x, w, b):
    i = b > 0
    i += b
    return i


@program
def size_err(x, w, b):
    b.add_(x)
    return b


@program
def swap_rows(x, w, b):
    x[0], x[1] = (x[1].clone(), x[0].clone())
    return x


@program
def slice_assign(x, w, b):
    y = torch.zeros(4, 8)
    y[:, 1:3] = x[:, :2]
    y[0] = b
    y[1, 2] = 7
    return y


@program
def slice_assign_in(x, w, b):
    x[:, 1:3] = 0
    x[0] = b
    return x * 1


@program
def mask_assign(x, w, b):
    y = x.clone()
    y[y > 0] = 1
    y[y < -0.5] *= 2
    return y


@program
def idx_assign(x, w, b):
    y = x.clone()
    y[torch.tensor([0, 2])] = b
    y[[1, 3], [0, 1]] = 5
    y[..., ::3] += 1
    return y


@program
def inplace_saved_error(x, w, b):
    y = x * w[:4]
    z = y.exp()
    z.add_(1)
    return z.sum()


@program
def ret_input_views_multi(x, w, b):
    return (x, x.view(-1), x[0], x.detach(), x.T)


@program
def inp_mut_after_view_out(x, w, b):
    v = x.view(-1)
    x.add_(1)
    return v


@program
def transposed_inplace(x, w, b):
    b2 = x.t()
    b2 += 1
    return b2


@program
def metadata_in(x, w, b):
    x.t_()
    return x * 2


@program
def metadata_in_unsq(x, w, b):
    b.unsqueeze_(0)
    return b * 2


@program
def squeeze_(x, w, b):
    y = (x * 2)[:1]
    y.squeeze_(0)
    y.add_(1)
    return y


@program
def swapdims(x, w, b):
    y = x.clone()
    y.swapdims_(0, 1)
    y.mul_(2)
    return (y, y[0])


@program
def real_imag(x, w, b):
    c = torch.complex(x, x * 2)
    r = c.real
    c.imag.mul_(3)
    return (r, c, torch.view_as_real(c))


@program
def view_dtype(x, w, b):
    y = (b * 2).detach()
    i = y.view(torch.int32)
    i.add_(1)
    return y


@program
def diag_view(x, w, b):
    y = x * 1
    d = y.diagonal()
    d.fill_(0)
    torch.diagonal(y, 1).add_(2)
    return (y, d)


@program
def unfold_view(x, w, b):
    y = b * 1
    u = y.unfold(0, 3, 2)
    return (u, y)


@program
def unfold_write(x, w, b):
    y = b * 1
    u = y.unfold(0, 2, 2)
    u.mul_(2)
    return y


@program
def movedim(x, w, b):
    y = x * 1
    y.movedim(0, 1)[0].add_(3)
    return y


@program
def setitem_none(x, w, b):
    y = x * 1
    y[None, 1:3] = 4
    return y


@program
def iadd_alias(x, w, b):
    y = x
    y += 1
    return (x is y, x)


@program
def clone_pres(x, w, b):
    return (x.t().clone(), x.t().contiguous(), x.clone(memory_format=torch.contiguous_format))


@program
def view_as(x, w, b):
    return (
        x.view_as(x),
        b.view_as(b),
        b.reshape(8),
        b.to(torch.float32),
        b.contiguous(),
        b.expand(8),
    )


@program
def noop_views(x, w, b):
    return (x[:], x[...], x.flatten(), x.squeeze(), x.view(4, 8), x.transpose(0, 0))


@program
def bn_like(x, w, b):
    with torch.no_grad():
        b.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return (x - b) * 2


@program
def copy_self(x, w, b):
    x.copy_(x)
    return x


@program
def inp_mutated_twice_views(x, w, b):
    a = x[:2]
    c = x[1:3]
    a.add_(1)
    c.mul_(2)
    return (a, c)


@program
def nan_to_num_(x, w, b):
    y = x / 0
    y.nan_to_num_(0)
    return y


@program
def inplace_relu_on_view(x, w, b):
    y = x * 1
    F.relu_(y[0])
    F.dropout(y, 0.0, inplace=True)
    return y


@program
def param_alias(x, w, b):
    v = w.view(8, 6)
    return (v, (v * 2).sum())


@program
def zero_grad_like(x, w, b):
    return torch.zeros_like(x).copy_(w[:4])


@program
def index_copy(x, w, b):
    y = x.clone()
    y.index_copy_(0, torch.tensor([1, 2]), w[:2])
    y.index_fill_(1, torch.tensor([3]), 9.0)
    y.index_add_(0, torch.tensor([0]), w[:1])
    return y


@program
def scatter_in(x, w, b):
    x.scatter_add_(1, torch.zeros(4, 1, dtype=torch.long), w[:4, :1])
    return x.sum()


@program
def foreach_(x, w, b):
    ys = [x * 1, b * 1]
    torch._foreach_mul_(ys, 2.0)
    return ys


@program
def foreach_in(x, w, b):
    torch._foreach_add_([x, b], 1.0)
    return (x * 2, b * 2)


@program
def baddbmm_(x, w, b):
    y = torch.ones(4, 6)
    y.addmm_(x, w.t())
    return y


@program
def lazy_out_detach(x, w, b):
    y = x.exp()
    return (y.detach(), y.sum())


@program
def alias_through_list(x, w, b):
    l = [x]
    l[0] += 1
    d = {"a": l[0]}
    d["a"].mul_(2)
    return (l, d)


@program
def return_leaf_twice(x, w, b):
    return (w, w, w.detach(), w.data)


@program
def empty_strided_(x, w, b):
    y = torch.empty_strided((4, 8), (1, 4))
    y.copy_(x)
    return y


@program
def set_grad_inside(x, w, b):
    with torch.no_grad():
        y = x * 2
    with torch.enable_grad():
        z = y * w[0]
    return (y, z)


@program
def inference_inside(x, w, b):
    with torch.inference_mode():
        y = b * 2
    return y.clone()


@program
def shared_write_then_view(x, w, b):
    y = x * 1
    v = y[0]
    y.zero_()
    v.add_(1)
    return (y, v)


@program
def fill_diag(x, w, b):
    y = x.clone()
    y.fill_diagonal_(3)
    return y


@program
def hsplit(x, w, b):
    a, c = torch.hsplit(x, 2)
    return (a, c)


@program
def tensor_split(x, w, b):
    y = x * 2
    return y.tensor_split(3)


@program
def rot(x, w, b):
    y = x * 1
    y.copy_(torch.roll(y, 1, 0))
    return y


@program
def tril_(x, w, b):
    y = x * 1
    y.tril_()
    y.pow_(2)
    y.clamp_min_(0.1)
    return y


@program
def masked_scatter(x, w, b):
    y = x * 1
    y.masked_scatter_(y > 0, w[:4])
    return y


@program
def to_alias(x, w, b):
    y = x.to(torch.float64)
    z = x.to(x.dtype)
    z2 = x.type(torch.float32)
    return (y, z, z2)


@program
def broadcast_tensors(x, w, b):
    p, q = torch.broadcast_tensors(x, b)
    return (p, q)


@program
def meshgrid(x, w, b):
    return torch.meshgrid(b, b, indexing="ij")


@program
def atleast(x, w, b):
    return (torch.atleast_2d(b), torch.atleast_1d(b))


@program
def ravel(x, w, b):
    return (x.ravel(), x.t().ravel(), torch.flatten(b))


@program
def views_with_gaps_of_what_is_copied(x, w, b):
    y = x @ x.t()
    return (x * 1).expand(2, *x.shape), y.diagonal(), y


@pytest.mark.parametrize(("backend", "dynamic"), [("aot_eager", True), ("inductor", False)])
@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda p: p.__name__)
def test_equals_eager(function: Callable, gradients: bool, backend: str, dynamic: bool) -> None:
    compiled = weft.compile(function, backend=backend, dynamic=dynamic)
    try:
        wanted = run(function, gradients)
    except (RuntimeError, TypeError) as error:
        for _ in range(2):
            with pytest.raises(type(error)):
                run(compiled, gradients)
        return
    for _ in range(2):
        # What `swapdims_` leaves is a view of what it was.
        assert_alike(run(compiled, gradients), wanted, bases=function is not swapdims)


OF_STORAGE: dict[str, Callable] = {
    "position": lambda x: x + x.storage_offset(),
    "from_the_tensor": lambda x: x.as_strided((2, 2), (2, 1)) * 2,
    "from_the_storage": lambda x: x.as_strided((2, 2), (2, 1), 1) * 2,
    "view_of_the_storage": lambda x: x.as_strided((2, 2), (2, 1), 1),
    "view_from_the_tensor": lambda x: x.as_strided((2, 2), (2, 1)),
    "of_a_view": lambda x: x[1:].as_strided((2, 2), (2, 1), 2) * 1,
    "of_a_result": lambda x: (x * 2)[1:].as_strided((2, 2), (2, 1), 2),
    "outside": lambda x: x.as_strided((2,), (1,), x.storage_offset() + 11) * 1,
    "written": lambda x: (x.as_strided((2, 2), (2, 1), 4).add_(1), x * 2),
    "written_from_the_tensor": lambda x: (x.as_strided((2, 2), (2, 1)).add_(1), x * 2),
}


@pytest.mark.parametrize("gradients", [False, True], ids=["plain", "grad"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", OF_STORAGE)
def test_as_strided_on_inputs_that_start_elsewhere(
    name: str, backend: str, gradients: bool, fresh: None
) -> None:
    """Offsets of `as_strided` count from the storage's start; a call may start elsewhere in it."""
    function = OF_STORAGE[name]
    compiled = weft.compile(function, backend=backend)
    for start in (0, 2, 5):
        wanted_memory, memory = (torch.arange(40.0, requires_grad=gradients) * 1 for _ in "ab")
        wanted = function(wanted_memory[start : start + 12])
        found = compiled(memory[start : start + 12])
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(memory, wanted_memory)
        for f, w in zip([*found], [*wanted], strict=True):
            assert f.storage_offset() == w.storage_offset()


def test_unsafe_chunks_of_a_leaf_keep_their_gradient(fresh: None) -> None:
    x = torch.randn(5, 3, requires_grad=True)
    for backend in ("aot_eager", "inductor"):
        first, _ = weft.compile(lambda t: torch.unsafe_chunk(t, 2), backend=backend)(x)
        (gradient,) = torch.autograd.grad(first.sum(), x)
        assert gradient.sum() == 9


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_single_element_in_memory_of_other_strides_is_written(
    dynamic: bool, fresh: None
) -> None:
    """The new value, in place but with other strides, was copied onto itself, which PyTorch
    refuses."""
    def add(x: torch.Tensor) -> torch.Tensor:
        return x.add_(x)

    def fill(x: torch.Tensor) -> torch.Tensor:
        x[:1] = 3
        return x.double()

    for function in (add, fill):
        for made in (torch.ones(4)[:1], torch.ones(4, 2)[:1, 0], torch.ones(2, 3)[:, 1:2]):
            given = made.clone()[:, None] if made.dim() > 1 else made
            wanted = given.clone()
            version = given._version
            torch.testing.assert_close(weft.compile(function, dynamic=dynamic)(given),
                                       function(wanted))
            torch.testing.assert_close(given, wanted)
            assert given._version > version


@pytest.mark.parametrize("dynamic", [False, True])
def test_memory_with_gaps_lost_its_strides_when_all_of_it_was_written(dynamic):
    def program(x):
        made = torch.empty_strided(x.size(), x.stride())
        made[:] = x + x
        other = x.new_empty_strided((4, 3), (6, 2)).copy_(x[:4, :3])
        return made, other, other * 2

    x = torch.randn(16, 16)[:, :8]
    for wanted, found in zip(program(x), weft.compile(program, dynamic=dynamic)(x), strict=True):
        torch.testing.assert_close(found, wanted, check_stride=True)
        assert not found._is_view()


@pytest.mark.parametrize("dynamic", [False, True])
def test_pixels_shuffled_in_channels_last_memory_came_row_major(dynamic):
    """The meta kernel asks for the device in a function within it, which hid the question."""
    for x in (torch.randn(2, 16, 4, 6).to(memory_format=torch.channels_last),
              torch.randn(2, 8, 6, 16).permute(0, 3, 1, 2)[:, :, ::2]):
        found = weft.compile(F.pixel_shuffle, dynamic=dynamic)(x, 2)
        torch.testing.assert_close(found, F.pixel_shuffle(x, 2), check_stride=True)
