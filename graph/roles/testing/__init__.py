"""The end of a round: the best configurations compared with the baseline, the verdict, and the winners' examination.
It decides whether the run goes on."""
