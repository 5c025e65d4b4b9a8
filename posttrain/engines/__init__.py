"""Engines: token ids in, completions with their sampled logprobs out."""
