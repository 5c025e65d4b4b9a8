"""The planner: what a run costs, from arithmetic alone, before anything is launched."""
