"""A second opinion: both programs element by element, as expressions, on all ranks (TrainVerify's own method)."""
