"""From a traced graph to its factors: axes are labelled, joined by rules, and counted."""
