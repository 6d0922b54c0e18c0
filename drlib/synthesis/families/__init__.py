"""Published recipes, one file each and named after it; what several use stands one level up."""
