from typing import final

def configure(tensor_offset: int, get_data_ptr: int, /) -> None: ...

@final
class Kernel:
    name: str
    def __new__(
        cls, address: int, buffers: int, sizes: int, name: str, keep: object = None
    ) -> Kernel: ...
    def __call__(self, *arguments: object) -> None: ...
