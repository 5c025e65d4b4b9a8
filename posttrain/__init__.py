"""LLM post-training as plain Python: the library under the Flyte tasks. Never imports flytekit."""
