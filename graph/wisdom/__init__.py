"""What runs have found, kept for later ones: the best configurations by task, device model, driver and shape.

It only suggests what to measure first; nothing in it is believed before it was measured again."""
