from collections.abc import Callable

def configure(tensor_offset: int, get_data_ptr: int, get_current_stream: int) -> None: ...

def reciprocal(divisor: int, /) -> tuple[int, int]: ...

class Kernel:
    unaligned: Callable[..., None] | None

    def __init__(
        self,
        image: bytes,
        name: str,
        device: int,
        grid: int,
        block: int,
        shared: int,
        n_buffers: int,
        n_sizes: int,
        n_divisors: int,
        grid_of: Callable[..., tuple[int, ...]] | None = ...,
        unaligned: Callable[..., None] | None = ...,
    ) -> None: ...
    def __call__(self, *args: object) -> None: ...

class Sized:
    def __init__(
        self,
        find: Callable[[tuple[int, ...]], tuple[Callable[..., None], bool]],
        keys: tuple[int, ...],
        /,
    ) -> None: ...
    def __call__(self, *args: object) -> None: ...
