"""Which kernel for which shape: shapes drawn from a task's ranges, the winners measured on them, a rule over sizes and
types fitted to that, and what the rule costs on shapes that neither tuning nor fitting saw."""
