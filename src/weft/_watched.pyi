from typing import final

from torch import Tensor

def configure(
    tensor: int, storage: int, hook: int, flag: int, get_const_data_ptr: int, /
) -> None: ...

@final
class Watch:
    def __new__(cls, tensors: tuple[Tensor, ...], /) -> Watch: ...
    def holds(self, inputs: list[object], positions: tuple[int, ...], /) -> bool: ...
