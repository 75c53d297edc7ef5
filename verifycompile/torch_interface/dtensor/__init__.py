"""DTensors: placements, the styles of plans, sharding decisions, and the whole tensors that stand for them."""
