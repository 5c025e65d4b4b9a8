# pyarrow carries no types, and the published stubs are of a much older version: everything is Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
