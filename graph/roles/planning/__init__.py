"""What a round tunes: plans by a model or by rules, and their approval by a person. It reads the journal and changes
nothing but the plan; the templates themselves come from `templating`."""
