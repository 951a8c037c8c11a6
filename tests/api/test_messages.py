"""Messages name the user's own functions, files and values."""

import pytest
import torch
from torch import nn

import weft
from weft.config import config
from weft.diagnostics import trace_files
from weft.errors import BadValue, RecompileLimitWarning

pytestmark = pytest.mark.usefixtures("fresh")


class Net(nn.Module):
    def forward(self, x, text):
        return x * len(text)


@pytest.mark.parametrize("wrap", [weft.compile, weft.compile_inplace])
@pytest.mark.parametrize("hooked", [False, True])
def test_the_limit_s_warning_names_the_module_and_the_line_that_calls_it(wrap, hooked):
    net = Net()
    if hooked:
        net.register_forward_hook(lambda *args: None)
    compiled = wrap(net, backend="eager")
    with pytest.warns(RecompileLimitWarning) as warned, config.patch(cache_size_limit=2):
        for n in range(4):
            compiled(torch.ones(2), "a" * n)
    (message,) = warned
    assert message.filename == __file__
    assert str(message.message).startswith("Net")
    assert f"({__file__}:" in str(message.message)


@pytest.mark.parametrize("texts", [("graph:info",), ("graph:info,guards",), ("graph", "aot:debug")])
def test_logs_are_chosen_as_in_the_environment(texts):
    try:
        weft.set_logs(*texts)
    finally:
        weft.set_logs()


def test_a_dimension_that_does_not_exist_is_named_with_the_shape():
    compiled = weft.compile(lambda x: x + 1, dynamic_shapes={"x": {3: weft.Dim.AUTO}})
    with pytest.raises(BadValue, match=r"dimension 3 of x, whose shape is \(2, 2\)"):
        compiled(torch.ones(2, 2))


def test_traces_say_where_they_are(tmp_path, capsys):
    with config.patch(trace=True, cache_dir=str(tmp_path)):
        compiled = weft.compile(lambda x: x + 1)
        compiled(torch.ones(2))
        compiled(torch.ones(2, 2))
        folder = trace_files.directory()
    assert capsys.readouterr().err.count(str(folder)) == 1
