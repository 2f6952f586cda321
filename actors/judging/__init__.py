"""The verdict on one candidate, in processes of its own, without Ray."""
