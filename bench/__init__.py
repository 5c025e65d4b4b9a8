"""Speed as a ratio: each comparison measures this project beside a named peer, in one run, on equal outputs."""
