def location_of(node): return None
