"""Prior precisions: which weights share one, and their values by the evidence."""
