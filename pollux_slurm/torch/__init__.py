"""The public training API: the agent's measurements wired into a PyTorch training loop."""
