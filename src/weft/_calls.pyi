from collections.abc import Callable
from typing import Any, TypeAlias, final

Number: TypeAlias = int | None
Form: TypeAlias = tuple[tuple[Number, ...], tuple[Number, ...] | None, Number]

def configure(tensor_offset: int, /, *addresses: int) -> None: ...

class _Call:
    @property
    def fallback(self) -> Callable[..., Any]: ...
    def __call__(self, *arguments: Any) -> Any: ...

@final
class Empty(_Call):
    def __new__(
        cls, form: Form, dtype: int, device_type: int, device_index: int,
        fallback: Callable[..., Any], /,
    ) -> Empty: ...

@final
class View(_Call):
    def __new__(cls, form: Form, fallback: Callable[..., Any], /) -> View: ...

@final
class Product(_Call):
    def __new__(
        cls, kind: str, operands: tuple[Form | None, ...], form: Form, dtype: int,
        device_type: int, device_index: int, fallback: Callable[..., Any], /,
    ) -> Product: ...
